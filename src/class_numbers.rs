//! The numbers of a data set's classes as a model has them.

use swinq_data::{Dataset, Layout, NumberingError};
use swinq_model::{Problem, Scores, SwinConfig};

use crate::class_order::ordered_names;

/// `dataset` with its classes numbered as in a model with the architecture `config` and the class names
/// `labels`, whose float file is named as by `dialect`, and a remark. `None` if its numbers are certainly the
/// model's, or are WordNet's identifiers in sorted order, as everywhere.
///
/// # Errors
/// The problem, if the data set's classes cannot be the model's.
pub fn numbered_for(
    dataset: &Dataset,
    config: &SwinConfig,
    labels: Option<&[String]>,
    dialect: &str,
) -> Result<Option<(Dataset, String)>, String> {
    let data = dataset.describe();
    if config.scores() != Scores::Softmax {
        return Err(format!(
            "{data}: {} is a {}, for which swinq has no measure of accuracy by labels; compare it with another model on images \
             without labels (eval), or give a classifier whose images are of one class",
            config.name,
            match config.problem {
                Problem::Regression => "regression",
                Problem::MultiLabel => "multi-label classifier",
                Problem::SingleLabel => "classifier with one logit",
            }
        ));
    }
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
    let numbered_names = dataset.class_names().filter(|_| !dataset.numbered_by_name());
    let named = match (numbered_names, labels) {
        (Some(names), Some(labels)) => {
            numbered(names, labels).map_err(|problem| format!("{data}: {problem}"))?
        }
        _ => None,
    };
    if classes > config.num_classes {
        let own = config.num_classes;
        let example = dataset.beyond(own).map_or(String::new(), |image| format!(" ({image})"));
        return Err(format!(
            "{data}, but {} has {own}, from 0 to {}{example}; {}is it the data the model was trained on?",
            config.name,
            own.saturating_sub(1),
            if from_one(dataset, own) { "do labels start at 1? They start at 0. Else: " } else { "" }
        ));
    }
    if dataset.numbered_by_name() && classes < config.num_classes {
        let what =
            if dataset.layout() == Layout::ImageFolder { "class folders" } else { "class names of the list" };
        return Err(format!(
            "{data} by {what}, but {} has {} classes, so their numbers are not the model's class numbers; use a list \
             file with class numbers, or with all names in classes.txt beside it, for a part of the classes, or give \
             the names of all the model's classes with --labels",
            config.name, config.num_classes
        ));
    }
    if let Some(remark) = named {
        return Ok(Some((dataset.clone(), format!("{data}: {remark}"))));
    }
    Ok(in_order(dataset, dialect).map(|(ordered, remark)| (ordered, format!("{data}: {remark}"))))
}

/// Whether the labels of `dataset` are numbers that seem to start at 1 for a model with `classes` classes.
fn from_one(dataset: &Dataset, classes: usize) -> bool {
    let labels = || (0..dataset.len()).filter_map(|image| dataset.label(image));
    labels().max() == u32::try_from(classes).ok() && labels().all(|label| label > 0)
}

/// The remark on `names` of classes that the data set numbers itself, if the model has none of them. `None`
/// for WordNet's identifiers and for names that the model has.
///
/// # Errors
/// The model gives one of the names to another class.
fn numbered(names: &[String], labels: &[String]) -> Result<Option<String>, String> {
    let number = |name: &String| labels.iter().position(|label| label == name);
    for (class, name) in names.iter().enumerate() {
        // Two classes of a model may have the same name.
        if let Some(own) = number(name).filter(|_| labels.get(class) != Some(name)) {
            return Err(format!(
                "class {class} is {name}, which is class {own} of the model; number the images in the model's order, or \
                 give the model's right names with --labels"
            ));
        }
    }
    let foreign = names.iter().all(|name| number(name).is_none() && !is_wordnet(name));
    let first = names.first().zip(labels.first()).filter(|_| foreign);
    Ok(first.map(|(data, model)| {
        format!(
            "the model has none of these class names: class 0 is {data} here and {model} in the model; is it the data the \
             model was trained on?"
        )
    }))
}

/// `dataset` in the order of [`ordered_names`], and the remark on class names that a model without these
/// names cannot confirm. `None` for other numbers and for WordNet's identifiers, which every model has in the
/// same order.
fn in_order(dataset: &Dataset, dialect: &str) -> Option<(Dataset, String)> {
    let names = dataset.class_names().filter(|_| dataset.numbered_by_name())?;
    let ordered = ordered_names(dataset, dialect)?;
    let moved = names.iter().zip(&ordered).position(|(name, ordered)| name != ordered);
    let number = moved.or_else(|| ordered.iter().position(|name| !is_wordnet(name)))?;
    let how = if moved.is_some() {
        "as timm sorts them (case ignored, numbers by value)"
    } else {
        "in sorted order"
    };
    let numbered = if moved.is_some() { dataset.numbered_by(&ordered).ok()? } else { dataset.clone() };
    let remark = format!(
        "no model given has these class names, which are therefore numbered {how}: {} is class {number}. If the models have \
         another order, give their names with --labels; a job takes a list file with class numbers instead",
        ordered[number]
    );
    Some((numbered, remark))
}

/// Whether `name` is an identifier of WordNet, such as n01440764.
fn is_wordnet(name: &str) -> bool {
    name.strip_prefix('n').is_some_and(|id| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `dataset` numbered by the places of its class names in `labels`, with a remark if these numbers are not
/// those of the sorted names. `None` if it has none of the names, such as WordNet's identifiers for ImageNet.
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

/// The remark on `names`, in sorted order, that are numbered by `labels`. `None` for names that have the same
/// numbers in both.
fn remark(names: &[String], labels: &[String]) -> Option<String> {
    let (class, name) = names.iter().enumerate().find(|(class, name)| labels[*class] != **name)?;
    let part = if names.len() < labels.len() {
        format!(", {} of the model's {}", names.len(), labels.len())
    } else {
        String::new()
    };
    let number = labels.iter().position(|label| label == name)?;
    Some(format!(
        "classes are matched with the model's by name{part}: {name} is class {number}, not {class} as in sorted order"
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
        assert!(other.contains("2 of the model's 4: cat is class 2, not 1 as"), "{other}");
    }

    #[test]
    fn numbered_names_must_have_the_models_numbers() {
        let model = names("ant bee cat dog");
        assert_eq!(numbered(&model, &model), Ok(None));
        // A part of the names, with others that the model lacks.
        assert_eq!(numbered(&names("ant bee cow"), &model), Ok(None));
        let swapped = numbered(&names("ant cat bee dog"), &model).unwrap_err();
        assert!(swapped.contains("class 1 is cat, which is class 2 of the model"), "{swapped}");
        let foreign = numbered(&names("tench church"), &model).unwrap().unwrap();
        assert!(foreign.contains("class 0 is tench here and ant in the model"), "{foreign}");
        assert_eq!(numbered(&names("n01440764 n02102040"), &model), Ok(None));
        assert_eq!(numbered(&names("ant bee bee"), &names("ant bee bee")), Ok(None));
    }

    #[test]
    fn orders_contradict_each_other_if_the_names_are_the_same() {
        assert_eq!(contradiction(&names("a b c"), &names("a c b")), Some(1));
        assert_eq!(contradiction(&names("a b c"), &names("a b c")), None);
        assert_eq!(contradiction(&names("a b c"), &names("a c d")), None);
    }
}
