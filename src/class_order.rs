//! The order in which a library numbers the class folders of a data set.

use std::cmp::Ordering;

use swinq_data::Dataset;
use swinq_model::{ClassOrder, Dialect};

/// The names of the classes of `dataset` in the order in which the library with the naming convention
/// `dialect` numbers them ([`ClassOrder`]). Classes that a data set numbers itself keep their order.
pub(crate) fn ordered_names(dataset: &Dataset, dialect: &str) -> Option<Vec<String>> {
    let mut names = dataset.class_names()?.to_vec();
    let order = dialect.parse().map_or(ClassOrder::Text, Dialect::class_order);
    if order == ClassOrder::Natural && dataset.numbered_by_name() {
        names.sort_by(|a, b| natural(a, b));
    }
    Some(names)
}

/// The order of timm's `natural_key`; equal keys are in the order of the texts.
fn natural(a: &str, b: &str) -> Ordering {
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

/// The lower-case texts of `name`, each with the number behind it: its digits without leading zeros, shorter
/// ones first.
fn key(name: &str) -> Vec<(String, Option<(usize, String)>)> {
    let mut parts = Vec::new();
    let mut rest = name.to_lowercase();
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - text);
        let number = rest[text..text + digits].trim_start_matches('0').to_owned();
        parts.push((rest[..text].to_owned(), (digits > 0).then_some((number.len(), number))));
        rest = rest.split_off(text + digits);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_by_their_values() {
        // The order of `sorted(names, key=timm.data.readers.reader_image_folder.natural_key)`.
        let sorted =
            ["", "0", "1", "2", "9", "10", "010a", "11", "A", "a1", "a2b3", "a2b10", "a02c", "a10", "B", "c"];
        let mut names = sorted.to_vec();
        names.sort_unstable();
        assert_ne!(names, sorted);
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, sorted);
    }
}
