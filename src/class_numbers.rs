//! The numbers of a data set's classes as a model has them.

use swinq_data::{Dataset, Layout, NumberingError};
use swinq_model::SwinConfig;

/// `dataset` with its classes numbered as in a model with the architecture `config` and the class names `labels`, and a
/// remark. `None` if its numbers are certainly the model's, or are WordNet's identifiers in sorted order, as everywhere.
///
/// # Errors
/// The problem, if the data set's classes cannot be the model's.
pub fn numbered_for(
    dataset: &Dataset,
    config: &SwinConfig,
    labels: Option<&[String]>,
) -> Result<Option<(Dataset, String)>, String> {
    let data = dataset.describe();
    let Some(classes) = dataset.num_classes() else {
        return Err(format!(
            "{data}; accuracy needs labels: an ImageFolder, a Swin zip layout or a list file with classes"
        ));
    };
    if let (true, Some(labels)) = (dataset.numbered_by_name(), labels)
        && let Some((numbered, remark)) =
            by_name(dataset, labels).map_err(|problem| format!("{data}: {problem}"))?
    {
        return Ok(remark.map(|remark| (numbered, format!("{data}: {remark}"))));
    }
    if classes > config.num_classes {
        return Err(format!(
            "{data}, but {} has {}; is it the data the model was trained on? (a float checkpoint's class count comes \
             from --cfg: --opts MODEL.NUM_CLASSES {classes})",
            config.name, config.num_classes
        ));
    }
    if dataset.numbered_by_name() && classes < config.num_classes {
        let what =
            if dataset.layout() == Layout::ImageFolder { "class folders" } else { "class names of the list" };
        return Err(format!(
            "{data} by {what}, but {} has {} classes, so their numbers are not the model's class numbers; use a list \
             file with class numbers, or with all names in classes.txt beside it, for a part of the classes, or give \
             the model these names with --labels",
            config.name, config.num_classes
        ));
    }
    Ok(in_sorted_order(dataset).map(|remark| (dataset.clone(), format!("{data}: {remark}"))))
}

/// The remark on class names that a model without these names cannot confirm. `None` for other numbers and for WordNet's
/// identifiers, which every model has in sorted order.
fn in_sorted_order(dataset: &Dataset) -> Option<String> {
    let names = dataset.class_names().filter(|_| dataset.numbered_by_name())?;
    let first = names.iter().find(|name| !is_wordnet(name))?;
    let number = names.iter().position(|name| name == first)?;
    Some(format!(
        "the model has none of these class names, which are numbered in sorted order: {first} is class {number}. If the \
         model has another order, give its names with --labels"
    ))
}

/// Whether `name` is an identifier of WordNet, such as n01440764.
fn is_wordnet(name: &str) -> bool {
    name.strip_prefix('n').is_some_and(|id| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `dataset` numbered by the places of its class names in `labels`, with a remark if these numbers are not those of the
/// sorted names. `None` if it has none of the names, such as WordNet's identifiers for ImageNet.
fn by_name(dataset: &Dataset, labels: &[String]) -> Result<Option<(Dataset, Option<String>)>, String> {
    let names = dataset.class_names().unwrap_or_default();
    match dataset.numbered_by(labels) {
        Ok(numbered) => Ok(Some((numbered, remark(names, labels)))),
        Err(NumberingError::Nameless) => Ok(None),
        Err(NumberingError::Unknown(unknown)) if unknown.len() == names.len() => Ok(None),
        Err(NumberingError::Unknown(unknown)) => Err(format!(
            "{} of {} class names are not the model's, such as {}; is it the data the model was trained on?",
            unknown.len(),
            names.len(),
            unknown[0]
        )),
        Err(NumberingError::Repeated(name, [first, second])) => Err(format!(
            "the model has two classes called {name}, {first} and {second}; use a list file with class numbers"
        )),
    }
}

/// The remark on `names`, in sorted order, that are numbered by `labels`. `None` for names that have the same numbers in
/// both.
fn remark(names: &[String], labels: &[String]) -> Option<String> {
    let (class, name) = names.iter().enumerate().find(|(class, name)| labels[*class] != **name)?;
    let part = if names.len() < labels.len() {
        format!(", {} of the model's {}", names.len(), labels.len())
    } else {
        String::new()
    };
    Some(format!(
        "classes are matched with the model's by name{part}: class {class} is {}, not {name} as in sorted order",
        labels[class]
    ))
}

/// The first class that `a` and `b` name differently, if they have the same names in different orders.
pub fn contradiction(a: &[String], b: &[String]) -> Option<usize> {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    let differ = a.iter().zip(b).position(|(a, b)| a != b)?;
    (sorted(a) == sorted(b)).then_some(differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn names_in_the_models_order_need_no_remark() {
        let model = names("ant bee cat dog");
        assert_eq!(remark(&model, &model), None);
        assert_eq!(remark(&names("ant bee"), &model), None);
        let other = remark(&names("ant cat"), &model).unwrap();
        assert!(other.contains("2 of the model's 4: class 1 is bee, not cat"), "{other}");
    }

    #[test]
    fn orders_contradict_each_other_if_the_names_are_the_same() {
        assert_eq!(contradiction(&names("a b c"), &names("a c b")), Some(1));
        assert_eq!(contradiction(&names("a b c"), &names("a b c")), None);
        assert_eq!(contradiction(&names("a b c"), &names("a c d")), None);
    }
}
