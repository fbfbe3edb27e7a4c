//! The logits of every image of an epoch.

use std::ops::ControlFlow;

use swinq_model::{Batch, BatchSource, Classifier, Logits};

use crate::error::EvalError;

/// The logits of a model over a data set, image by image.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// Scores, `[n, classes]`.
    pub logits: Logits,
    /// Class of each image, `n` of them; empty where the data set has none.
    pub labels: Vec<u32>,
    /// Position of each image in the data set's full list, `n` of them.
    pub ids: Vec<usize>,
}

impl Collected {
    /// Number of images.
    pub fn images(&self) -> usize {
        self.ids.len()
    }

    /// Checks that logits, labels and ids are of the same images, that every logit is finite and every label a
    /// class.
    ///
    /// # Errors
    /// [`EvalError::NoImages`], [`EvalError::Length`], [`EvalError::Label`] or [`EvalError::NonFiniteLogit`].
    pub fn check(&self) -> Result<(), EvalError> {
        let (n, classes) = (self.images(), self.logits.classes);
        if n == 0 {
            return Err(EvalError::NoImages);
        }
        same_length("logits against images times classes", self.logits.values.len(), n * classes)?;
        if !self.labels.is_empty() {
            same_length("labels against images", self.labels.len(), n)?;
        }
        if classes == 0 {
            return Err(EvalError::mismatch("the logits have no classes"));
        }
        check_labels(&self.labels, &self.ids, classes)?;
        check_finite(&self.logits, &self.ids)
    }
}

pub(crate) fn same_length(what: &'static str, left: usize, right: usize) -> Result<(), EvalError> {
    if left == right { Ok(()) } else { Err(EvalError::Length { what, left, right }) }
}

fn check_labels(labels: &[u32], ids: &[usize], classes: usize) -> Result<(), EvalError> {
    match labels.iter().zip(ids).find(|(label, _)| **label as usize >= classes) {
        Some((&label, &image)) => Err(EvalError::Label { image, label, classes }),
        None => Ok(()),
    }
}

fn check_finite(logits: &Logits, ids: &[usize]) -> Result<(), EvalError> {
    for (row, &image) in logits.rows().zip(ids) {
        if let Some(class) = row.iter().position(|v| !v.is_finite()) {
            return Err(EvalError::NonFiniteLogit { image, class, value: row[class] });
        }
    }
    Ok(())
}

/// Runs `classifier` on every batch of epoch 0 of `source`.
///
/// `progress` is called with (images done, images in the epoch) after each batch, and once with (0, images) before
/// the first; it stops the run by returning [`ControlFlow::Break`].
///
/// # Errors
/// Whatever the data set or the classifier met; a batch whose size, labels or logits contradict what was declared;
/// a NaN or infinite logit; [`EvalError::Interrupted`] when `progress` breaks; [`EvalError::NoImages`].
pub fn collect(
    classifier: &mut dyn Classifier,
    source: &mut dyn BatchSource,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Collected, EvalError> {
    let total = source.images();
    let classes = classifier.classes();
    let mut all = Collected {
        logits: Logits { values: Vec::with_capacity(total * classes), classes },
        labels: Vec::new(),
        ids: Vec::with_capacity(total),
    };
    let mut report = |done: usize| match progress(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EvalError::Interrupted { done, total }),
    };
    report(0)?;
    for index in 0..source.batches() {
        let batch = source.batch(0, index).map_err(|source| EvalError::Data { batch: index, source })?;
        check_batch(&batch, index, classifier.input_size())?;
        let logits = classifier.infer(&batch).map_err(|source| EvalError::Infer { batch: index, source })?;
        append(&mut all, batch, logits, index)?;
        report(all.images())?;
    }
    all.check()?;
    Ok(all)
}

fn check_batch(batch: &Batch, index: usize, input_size: usize) -> Result<(), EvalError> {
    if batch.size != input_size {
        let text = format!(
            "images of {0}x{0} for a model of {1}x{1}; preprocess with the model's own transform",
            batch.size, input_size
        );
        return Err(EvalError::batch(index, text));
    }
    let bytes = batch.len() * batch.size * batch.size * 3;
    if batch.pixels.len() != bytes {
        let text =
            format!("{} bytes of pixels where {} images need {bytes}", batch.pixels.len(), batch.len());
        return Err(EvalError::batch(index, text));
    }
    if !batch.labels.is_empty() && batch.labels.len() != batch.len() {
        let text = format!("{} labels for {} images", batch.labels.len(), batch.len());
        return Err(EvalError::batch(index, text));
    }
    Ok(())
}

fn append(all: &mut Collected, batch: Batch, logits: Logits, index: usize) -> Result<(), EvalError> {
    let classes = all.logits.classes;
    if logits.classes != classes || logits.values.len() != batch.len() * classes {
        let text = format!(
            "{} logits in rows of {} where {} images of {classes} classes were asked for",
            logits.values.len(),
            logits.classes,
            batch.len()
        );
        return Err(EvalError::batch(index, text));
    }
    if !batch.is_empty() && !all.ids.is_empty() && batch.labels.is_empty() != all.labels.is_empty() {
        let text = "some batches have labels and some have none; the data set is inconsistent";
        return Err(EvalError::batch(index, text));
    }
    check_labels(&batch.labels, &batch.ids, classes)?;
    check_finite(&logits, &batch.ids)?;
    all.logits.values.extend(logits.values);
    all.labels.extend(batch.labels);
    all.ids.extend(batch.ids);
    Ok(())
}
