//! Evaluation of backbones: the feature maps of several models on the same images, each compared with the
//! first's.

use std::collections::BTreeMap;

use swinq_data::Padding;
use swinq_eval::{EvalError, MapErrors, ModelResult};
use swinq_model::{Batch, BatchSource, Size, Transform};

use super::{Candidate, EvaluateOptions, Observer};
use crate::batches::ImageBatches;
use crate::{Error, Images};

/// Number of sizes of images for which latency is measured, at most.
const TIMED_SIZES: usize = 4;

/// The distance of the maps of each candidate but the first from the first's.
pub(crate) struct Compared {
    /// Of the candidates from the second on.
    pub(crate) errors: Vec<MapErrors>,
    /// The error messages of the corrupt images that were left out.
    pub(crate) skipped: Vec<String>,
}

impl Compared {
    /// Stores the figures of each candidate.
    pub(super) fn store(&self, candidates: &mut [Candidate], images: &Images) -> Result<(), Error> {
        let Some((first, others)) = candidates.split_first_mut() else { return Ok(()) };
        first.result.images = self.errors.first().map(|errors| errors.images().len());
        for (candidate, errors) in others.iter_mut().zip(&self.errors) {
            let stored = candidate.result.set_maps_against(errors, &|id| images.name_of(id));
            stored.map_err(|source| candidate.failed(source))?;
        }
        Ok(())
    }

    /// The sizes of the images before the network, at most [`TIMED_SIZES`], from the one that most images
    /// have. Of sizes of equally many images, the largest comes first.
    pub(super) fn sizes(&self) -> Vec<Size> {
        let mut counts: BTreeMap<[usize; 2], usize> = BTreeMap::new();
        for image in self.errors.iter().take(1).flat_map(MapErrors::images) {
            *counts.entry(image.size).or_default() += 1;
        }
        let mut sizes: Vec<([usize; 2], usize)> = counts.into_iter().collect();
        sizes.sort_by_key(|([height, width], count)| std::cmp::Reverse((*count, height * width, *height)));
        sizes.into_iter().take(TIMED_SIZES).map(|([height, width], _)| Size::new(height, width)).collect()
    }
}

/// Runs all candidates, which are backbones with the same outputs, side by side on `images`, and compares
/// their maps.
pub(crate) fn compare(
    candidates: &[Candidate],
    images: &Images,
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<Compared, Error> {
    let mut readers = Readers::new(candidates, images, options)?;
    let names: Vec<String> =
        candidates[0].config().outputs.iter().map(|output| output.name.clone()).collect();
    let mut errors = vec![MapErrors::of_outputs(names); candidates.len() - 1];
    let mut maps = vec![Vec::new(); candidates.len()];
    let results: Vec<&ModelResult> = candidates.iter().map(|candidate| &candidate.result).collect();
    let (total, mut done) = (images.len(), 0);
    observer.begin_together(&results, total);
    for index in 0..=readers.batches() {
        if observer.images(done, total).is_break() {
            return Err(candidates[0].failed(EvalError::Interrupted { done, total }));
        }
        if index == readers.batches() {
            break;
        }
        let batches = readers.read(index)?;
        let Batch { ids, size, .. } = &batches[0];
        done += ids.len();
        if ids.is_empty() {
            continue;
        }
        for ((candidate, &reader), maps) in candidates.iter().zip(&readers.of_candidate).zip(&mut maps) {
            let run = candidate.runner.compute(&batches[reader], maps);
            run.map_err(|source| candidate.failed(EvalError::Infer { batch: index, source }))?;
        }
        let (reference, others) = maps.split_first().expect("there is a candidate");
        for ((errors, maps), candidate) in errors.iter_mut().zip(others).zip(&candidates[1..]) {
            errors.add(ids, *size, reference, maps).map_err(|source| candidate.failed(source))?;
        }
    }
    if images.turned().is_some() {
        check_orientation(candidates)?;
    }
    errors.iter_mut().for_each(MapErrors::sort);
    Ok(Compared { errors, skipped: readers.skipped() })
}

/// Refuses to compare maps if one candidate turns images and another does not.
fn check_orientation(candidates: &[Candidate]) -> Result<(), Error> {
    let first = &candidates[0];
    let rule = |candidate: &Candidate| candidate.transform().orientation;
    let Some(other) = candidates.iter().find(|candidate| rule(candidate) != rule(first)) else {
        return Ok(());
    };
    let problem = format!(
        "{} reads images with the orientation {}, and {} with {}; give both one rule with --orientation",
        first.result.name,
        rule(first),
        other.result.name,
        rule(other)
    );
    Err(Error::Comparison { problem })
}

/// The images as each candidate reads them: candidates with the same preprocessing share a reader. All
/// readers have the same batches.
struct Readers {
    readers: Vec<ImageBatches>,
    /// The index of the reader of each candidate.
    of_candidate: Vec<usize>,
}

impl Readers {
    fn new(candidates: &[Candidate], images: &Images, options: &EvaluateOptions) -> Result<Readers, Error> {
        let mut known: Vec<&Transform> = Vec::new();
        let (mut readers, mut of_candidate) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let transform = candidate.transform();
            // The engines normalise; a reader resizes.
            let alike = |other: &&Transform| {
                let read = |t: &Transform| (t.filter, t.channels(), t.orientation, t.channel_order);
                read(other) == read(transform)
            };
            let index = known.iter().position(alike).unwrap_or(known.len());
            let reader = images.batches_by_size(
                candidate.config(),
                transform,
                &options.read,
                options.sizing,
                Padding::default(),
            )?;
            if index == known.len() {
                known.push(transform);
                readers.push(reader);
            }
            of_candidate.push(index);
        }
        // Images that no file turns have the same batches by either rule.
        if readers.iter().any(|reader| reader.sized() != readers[0].sized()) {
            check_orientation(candidates)?;
        }
        Ok(Readers { readers, of_candidate })
    }

    fn batches(&self) -> usize {
        self.readers[0].batches()
    }

    /// Batch `index` of every reader.
    fn read(&mut self, index: usize) -> Result<Vec<Batch>, Error> {
        self.readers.iter_mut().map(|reader| reader.batch(0, index).map_err(Error::batch)).collect()
    }

    fn skipped(&self) -> Vec<String> {
        self.readers[0].skipped().to_vec()
    }
}
