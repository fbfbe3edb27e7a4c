//! An evaluation in parts: the logits of several models on some of the images each, or the distances of the
//! feature maps of single images. All figures follow from these, which are stored as they are, so that the
//! figures of the merged parts are those of one evaluation, bit for bit.

use swinq_model::part::{PartTensor, PartTensors, StoredTensors};
use swinq_model::{Logits, ModelError};

use crate::collected::Collected;
use crate::distortion::Distortion;
use crate::error::EvalError;
use crate::maps::{ImageErrors, MapErrors};

/// The tensors of a part: the results of each of several models for the same images.
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

/// Adds the images of a part to those of the parts before it, and returns their number. `labelled` says
/// whether the images have labels.
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

/// The tensors of a part of an evaluation of backbones: the distances of each but the first, for the same
/// images.
///
/// # Errors
/// [`EvalError::Mismatch`] if the models have run on different images, or there is only one.
pub fn map_tensors(models: &[MapErrors]) -> Result<PartTensors, EvalError> {
    let Some(first) = models.first() else { return Err(EvalError::mismatch("there is no second model")) };
    let key = |image: &ImageErrors| (image.id, image.size);
    let alike = |other: &MapErrors| other.images().iter().map(key).eq(first.images().iter().map(key));
    if !models.iter().all(alike) {
        return Err(EvalError::mismatch("the models were not evaluated on the same images"));
    }
    let count = first.images().len();
    let mut tensors = PartTensors::new();
    let ids = first.images().iter().map(|image| image.id as u64);
    tensors.insert("ids".to_owned(), PartTensor::u64([count], ids));
    let sizes = first.images().iter().flat_map(|image| image.size).map(|side| side as u64);
    tensors.insert("sizes".to_owned(), PartTensor::u64([2 * count], sizes));
    for (index, model) in models.iter().enumerate() {
        let errors = model.images().iter().flat_map(|image| &image.outputs);
        let words: Vec<u64> = errors.flat_map(Distortion::words).collect();
        tensors.insert(maps_of(index), PartTensor::u64([words.len()], words));
    }
    Ok(tensors)
}

fn maps_of(model: usize) -> String {
    format!("maps.{model}")
}

/// Adds the images of a part to those of the parts before it, and returns the ids of the part's images.
///
/// # Errors
/// [`EvalError::Model`] for tensors that are missing or contradict each other.
pub fn append_maps(models: &mut [MapErrors], tensors: &StoredTensors<'_>) -> Result<Vec<usize>, EvalError> {
    let (ids, sides) = (tensors.ids("ids")?, tensors.u64("sizes")?);
    let sizes: Vec<[usize; 2]> =
        sides.as_chunks().0.iter().map(|size: &[u64; 2]| size.map(|side| side as usize)).collect();
    if sides.len() != 2 * ids.len() {
        return Err(tensors.problem("sizes", &format!("has {} sides", sides.len())).into());
    }
    for (index, model) in models.iter_mut().enumerate() {
        let name = maps_of(index);
        let words = tensors.u64(&name)?;
        let outputs = model.outputs().len();
        if words.len() != ids.len() * outputs * Distortion::WORDS {
            return Err(tensors.problem(&name, &format!("has {} words", words.len())).into());
        }
        let errors = words.as_chunks().0.iter().map(|words| Distortion::from_words(*words));
        let errors: Option<Vec<Distortion>> = errors.collect();
        let errors = errors.ok_or_else(|| tensors.problem(&name, "has an impossible sum"))?;
        let image = |((&id, &size), errors): ((&usize, &[usize; 2]), &[Distortion])| ImageErrors {
            id,
            size,
            outputs: errors.to_vec(),
        };
        let images = ids.iter().zip(&sizes).zip(errors.chunks(outputs.max(1))).map(image).collect();
        model.append(images);
    }
    Ok(ids)
}
