//! Class numbers by the places of the classes' names in a list of names.

use std::collections::HashMap;

/// New numbers for the classes of a data set.
#[derive(Debug)]
pub(super) struct Numbering {
    /// Name of each class, by its new number.
    names: Vec<String>,
    /// New number of each class, by the number in the data set's list.
    numbers: Vec<u32>,
}

/// Why the classes of a data set cannot be numbered by a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NumberingError {
    /// The data set has no class names.
    Nameless,
    /// These classes of the data set are not in the list.
    Unknown(Vec<String>),
    /// The list has this class of the data set several times, first at these two places.
    Repeated(String, [usize; 2]),
}

impl Numbering {
    /// Numbers the classes `own` by their places in `names`.
    pub(super) fn new(own: &[String], names: &[String]) -> Result<Numbering, NumberingError> {
        if own.is_empty() {
            return Err(NumberingError::Nameless);
        }
        let mut places: HashMap<&str, (usize, Option<usize>)> = HashMap::new();
        for (place, name) in names.iter().enumerate() {
            let again = |known: &mut (usize, Option<usize>)| known.1 = known.1.or(Some(place));
            places.entry(name).and_modify(again).or_insert((place, None));
        }
        let unknown: Vec<String> =
            own.iter().filter(|name| !places.contains_key(name.as_str())).cloned().collect();
        if !unknown.is_empty() {
            return Err(NumberingError::Unknown(unknown));
        }
        let number = |name: &String| match places[name.as_str()] {
            (place, None) => Ok(place as u32),
            (first, Some(second)) => Err(NumberingError::Repeated(name.clone(), [first, second])),
        };
        let numbers = own.iter().map(number).collect::<Result<_, _>>()?;
        Ok(Numbering { names: names.to_vec(), numbers })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The new number of the class `label` of the data set's list.
    pub(super) fn number(&self, label: u32) -> u32 {
        self.numbers[label as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn classes_take_the_places_of_their_names() {
        let numbering = Numbering::new(&names("church dog tench"), &names("tench dog cat church")).unwrap();
        assert_eq!([0, 1, 2].map(|label| numbering.number(label)), [3, 1, 0]);
        assert_eq!(numbering.names(), names("tench dog cat church"));
    }

    #[test]
    fn names_that_are_not_there_once_are_refused() {
        let of = |own, model| Numbering::new(&names(own), &names(model)).unwrap_err();
        assert_eq!(of("", "tench"), NumberingError::Nameless);
        assert_eq!(of("cat church tunch", "tench cat"), NumberingError::Unknown(names("church tunch")));
        assert_eq!(of("crane", "a crane b crane"), NumberingError::Repeated("crane".to_owned(), [1, 3]));
    }
}
