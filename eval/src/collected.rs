//! Collecting the logits of a model over a data set.

use std::ops::ControlFlow;

use swinq_model::{Batch, BatchSource, Classifier, Logits, Size};

use crate::error::EvalError;

/// The logits of a model for every image of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// Scores, `[n, classes]`.
    pub logits: Logits,
    /// Class of each image, `[n]`; empty if the data set has no labels.
    pub labels: Vec<u32>,
    /// Position of each image in the data set's full list, `[n]`.
    pub ids: Vec<usize>,
}

impl Collected {
    /// Number of images.
    pub fn images(&self) -> usize {
        self.ids.len()
    }

    /// These logits, if they pass [`Collected::check`].
    ///
    /// # Errors
    /// Those of [`Collected::check`].
    pub fn checked(self) -> Result<Collected, EvalError> {
        self.check().map(|()| self)
    }

    /// Checks that the numbers of logits, labels and ids agree, that every logit is finite, and that every
    /// label is a class of the model.
    ///
    /// # Errors
    /// [`EvalError::NoImages`], [`EvalError::Length`], [`EvalError::Mismatch`] for logits without classes,
    /// [`EvalError::Label`] or [`EvalError::NonFiniteLogit`].
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
            return Err(EvalError::mismatch("the logits have no classes; the model must have at least one"));
        }
        check_labels(&self.labels, &self.ids, classes)?;
        check_finite(&self.logits, &self.ids)
    }
}

/// Refuses two lengths that differ.
pub(crate) fn same_length(what: &'static str, left: usize, right: usize) -> Result<(), EvalError> {
    if left == right { Ok(()) } else { Err(EvalError::Length { what, left, right }) }
}

/// Refuses a label that is not a class of the model.
fn check_labels(labels: &[u32], ids: &[usize], classes: usize) -> Result<(), EvalError> {
    match labels.iter().zip(ids).find(|(label, _)| **label as usize >= classes) {
        Some((&label, &image)) => Err(EvalError::Label { image, label, classes }),
        None => Ok(()),
    }
}

/// Refuses a logit that is NaN or infinite.
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
/// `progress` is called before the first batch and after every batch with the number of images done and the
/// number of images in the epoch. It stops the run by returning [`ControlFlow::Break`].
///
/// # Errors
/// - [`EvalError::Data`] and [`EvalError::Infer`] for errors of the data set and of the classifier.
/// - [`EvalError::Batch`] for a batch whose size, labels or logits contradict those declared.
/// - [`EvalError::Interrupted`] if `progress` returns `Break`.
/// - The errors of [`Collected::check`].
pub fn collect(
    classifier: &dyn Classifier,
    source: &mut dyn BatchSource,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Collected, EvalError> {
    collect_any(classifier, source, progress)?.checked()
}

/// [`collect`], for images that may all be left out.
///
/// # Errors
/// Those of [`collect`], without [`EvalError::NoImages`].
pub fn collect_any(
    classifier: &dyn Classifier,
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
    let batches = source.batches();
    let mut read = |index| match index < batches {
        true => source.batch(0, index).map(Some).map_err(|source| EvalError::Data { batch: index, source }),
        false => Ok(None),
    };
    let (mut index, mut next) = (0, read(0)?);
    while let Some(batch) = next {
        check_batch(&batch, index, (classifier.input_size(), classifier.channels()))?;
        // While this batch is classified, another thread puts the next one together.
        let (logits, following) = std::thread::scope(|scope| {
            let following = scope.spawn(|| read(index + 1));
            let logits = classifier.infer(&batch);
            (logits, following.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let logits = logits.map_err(|source| EvalError::Infer { batch: index, source })?;
        append(&mut all, batch, logits, index)?;
        report(all.images())?;
        next = following?;
        index += 1;
    }
    Ok(all)
}

/// Refuses a batch that contradicts itself or the model's input size.
fn check_batch(batch: &Batch, index: usize, (size, channels): (Size, usize)) -> Result<(), EvalError> {
    if (batch.size, batch.channels) != (size, channels) {
        let shape = |size: Size, channels| match channels {
            3 => size.to_string(),
            _ => format!("{size} with {channels} channels"),
        };
        let text = format!(
            "the images are {}, but the model takes {}; preprocess with the model's own transform",
            shape(batch.size, batch.channels),
            shape(size, channels)
        );
        return Err(EvalError::batch(index, text));
    }
    let bytes = batch.len() * batch.image_bytes();
    if batch.pixels.len() != bytes {
        let text =
            format!("the pixels are {} bytes, but {} images need {bytes}", batch.pixels.len(), batch.len());
        return Err(EvalError::batch(index, text));
    }
    if !batch.labels.is_empty() && batch.labels.len() != batch.len() {
        let text = format!("{} labels for {} images", batch.labels.len(), batch.len());
        return Err(EvalError::batch(index, text));
    }
    Ok(())
}

/// Adds a batch and its logits, after checking them against each other and the batches before.
fn append(all: &mut Collected, batch: Batch, logits: Logits, index: usize) -> Result<(), EvalError> {
    let classes = all.logits.classes;
    if logits.classes != classes || logits.values.len() != batch.len() * classes {
        let text = format!(
            "the classifier returned {} logits in rows of {} for {} images and {classes} classes",
            logits.values.len(),
            logits.classes,
            batch.len()
        );
        return Err(EvalError::batch(index, text));
    }
    if !batch.is_empty() && !all.ids.is_empty() && batch.labels.is_empty() != all.labels.is_empty() {
        let text = "some batches have labels and others have none; label all images or none";
        return Err(EvalError::batch(index, text));
    }
    check_labels(&batch.labels, &batch.ids, classes)?;
    check_finite(&logits, &batch.ids)?;
    all.logits.values.extend(logits.values);
    all.labels.extend(batch.labels);
    all.ids.extend(batch.ids);
    Ok(())
}
