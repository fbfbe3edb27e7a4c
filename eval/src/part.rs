//! An evaluation in parts: the logits of several models on some of the images each. All figures follow from the logits,
//! which are stored as they are, so that the figures of the merged parts are those of one evaluation, bit for bit.

use swinq_model::part::{PartTensor, PartTensors, StoredTensors};
use swinq_model::{Logits, ModelError};

use crate::collected::Collected;
use crate::error::EvalError;

/// The tensors of a part: what each of several models returned for the same images.
///
/// # Errors
/// [`EvalError::Mismatch`] if the models have run on different images, or there is no model.
pub fn tensors(models: &[Collected]) -> Result<PartTensors, EvalError> {
    let Some(first) = models.first() else { return Err(EvalError::mismatch("there is no model")) };
    if models.iter().any(|other| (&other.ids, &other.labels) != (&first.ids, &first.labels)) {
        return Err(EvalError::mismatch("the models were not evaluated on the same images"));
    }
    let mut tensors = PartTensors::new();
    let ids = first.ids.iter().map(|&id| id as u64);
    tensors.insert("ids".to_owned(), PartTensor::u64([first.ids.len()], ids));
    let labels = first.labels.iter().map(|&label| u64::from(label));
    tensors.insert("labels".to_owned(), PartTensor::u64([first.labels.len()], labels));
    for (index, model) in models.iter().enumerate() {
        let shape = [model.ids.len(), model.logits.classes];
        tensors.insert(logits_of(index), PartTensor::f32(shape, &model.logits.values));
    }
    Ok(tensors)
}

fn logits_of(model: usize) -> String {
    format!("logits.{model}")
}

/// No images yet of `models` models with `classes` classes.
pub fn nothing(models: usize, classes: usize) -> Vec<Collected> {
    let logits = Logits { values: Vec::new(), classes };
    vec![Collected { logits, labels: Vec::new(), ids: Vec::new() }; models]
}

/// Adds the images of a part to those of the parts before it, and returns their number. `labelled` says whether the
/// images have labels.
///
/// # Errors
/// [`EvalError::Model`] for tensors that are missing or contradict each other.
pub fn append(
    models: &mut [Collected],
    tensors: &StoredTensors<'_>,
    labelled: bool,
) -> Result<usize, EvalError> {
    let (ids, labels) = (tensors.ids("ids")?, tensors.u64("labels")?);
    if labels.len() != if labelled { ids.len() } else { 0 } {
        return Err(tensors.problem("labels", &format!("has {} labels", labels.len())).into());
    }
    let labels = labels.into_iter().map(u32::try_from).collect::<Result<Vec<u32>, _>>();
    let labels = labels.map_err(|_| tensors.problem("labels", "has an impossible class"))?;
    for (index, model) in models.iter_mut().enumerate() {
        let values = logits(tensors, &logits_of(index), [ids.len(), model.logits.classes])?;
        model.logits.values.extend(values);
        model.ids.extend(&ids);
        model.labels.extend(&labels);
    }
    Ok(ids.len())
}

fn logits(tensors: &StoredTensors<'_>, name: &str, expected: [usize; 2]) -> Result<Vec<f32>, ModelError> {
    let (shape, values) = tensors.f32(name, 2)?;
    if shape != expected {
        return Err(tensors.problem(name, &format!("has the shape {shape:?} instead of {expected:?}")));
    }
    Ok(values)
}
