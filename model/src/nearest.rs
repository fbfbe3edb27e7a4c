//! The known name that is most similar to one that a user has written.

use strsim::damerau_levenshtein;

/// `name` without the differences that do not count: capitals, and dashes for underscores. Very long names
/// are cut.
pub(crate) fn spelled(name: &str) -> String {
    name.chars().take(80).collect::<String>().to_lowercase().replace('-', "_")
}

/// The most similar of `known`; the first of several. `None` if there are none.
pub fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = spelled(name);
    known.into_iter().min_by_key(|known| damerau_levenshtein(&name, &spelled(known)))
}

/// The most similar of the dotted keys `known`: one with the same last part, if there is one, else the one
/// with the fewest edits, among which those of the last part count twice.
pub fn nearest_key<'a>(key: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let key = spelled(key);
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let distance = |known: &&str| {
        let known = spelled(known);
        let of_last = damerau_levenshtein(&last(&key), &last(&known));
        (of_last > 0, of_last + damerau_levenshtein(&key, &known))
    };
    known.into_iter().min_by_key(distance)
}
