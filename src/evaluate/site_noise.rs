//! Quantization noise of each site: the error that rounding at this site adds to its input tensor.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use swinq_data::{Padding, Sizing};
use swinq_eval::{Distortion, ModelResult};
use swinq_float::{Attention, FakeQuant, FloatError, Sites, Swin};
use swinq_model::{Batch, BatchSource, ModelError, QuantizedModel, Site, Transform};

use super::{Candidate, Observer};
use crate::{Error, Images, Model, ReadOptions};

/// Number of images on which the noise is measured.
const IMAGES: usize = 16;

/// Pixels of an image for a backbone that takes so many.
const AREA: usize = 224 * 224;

/// Measures the noise of every quantized site of the candidates that keep their model, on the first of
/// `images`, and stores it. A model that several candidates run is measured once, and models of one
/// preprocessing share the images.
pub(crate) fn measure_all(
    candidates: &mut [Candidate],
    images: &Images,
    sizing: Sizing,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let mut batches: Vec<(Transform, Batch)> = Vec::new();
    let mut measured: Vec<(Model, BTreeMap<Site, f64>)> = Vec::new();
    for candidate in candidates.iter_mut().filter(|candidate| !candidate.result.sites.is_empty()) {
        let Some(model) = candidate.model().cloned() else { continue };
        let known = measured.iter().position(|(other, _)| other.is_same(&model));
        let index = match known {
            Some(index) => index,
            None => {
                let batch = batch_of(&mut batches, candidate, images, sizing)?;
                let found = measure(model.as_quantized(), batch, &candidate.result, observer)?;
                measured.push((model, found));
                measured.len() - 1
            }
        };
        for (site, db) in &measured[index].1 {
            candidate.set_noise(&site.to_string(), *db);
        }
    }
    Ok(())
}

/// The first images, preprocessed for `candidate`: those in `batches`, or read now. For a backbone they are
/// the first that have the size of the first image, and fewer if they are large.
fn batch_of<'a>(
    batches: &'a mut Vec<(Transform, Batch)>,
    candidate: &Candidate,
    images: &Images,
    sizing: Sizing,
) -> Result<&'a Batch, Error> {
    let transform = candidate.transform();
    if let Some(index) = batches.iter().position(|(other, _)| other == transform) {
        return Ok(&batches[index].1);
    }
    let read = ReadOptions { batch_size: IMAGES, threads: 0, skip_corrupt: IMAGES };
    let first = images.first(IMAGES);
    let batch = match candidate.config().is_backbone() {
        false => first.batches(transform, &read)?.batch(0, 0),
        true => first
            .batches_by_size(candidate.config(), transform, &read, sizing, Padding::default())?
            .batch(0, 0),
    };
    let batch = batch.map_err(Error::batch)?;
    let fitting = (IMAGES * AREA / batch.size.area()).clamp(1, batch.len().max(1));
    let batch =
        if candidate.config().is_backbone() { batch.slice(0..fitting.min(batch.len())) } else { batch };
    batches.push((transform.clone(), batch));
    Ok(&batches[batches.len() - 1].1)
}

/// Signal-to-noise ratio in dB at every enabled activation site of `model`, on the images of `batch`, in a
/// forward in which every enabled site is quantized. For attention probabilities the ratio is measured after
/// their product with the values, because their integer codes are normalised only there.
///
/// # Errors
/// An error if the float forward fails; [`Error::Interrupted`] if `observer` stops it.
fn measure(
    model: &QuantizedModel,
    batch: &Batch,
    result: &ModelResult,
    observer: &mut dyn Observer,
) -> Result<BTreeMap<Site, f64>, Error> {
    let total = model.sites.iter().filter(|(site, state)| state.spec.enabled && !site.is_weight()).count();
    if observer.site(result, 0, total).is_break() {
        return Err(Error::Interrupted);
    }
    let swin = Swin::new(&model.config, &model.float_tensors(), &Device::Cpu)?;
    let fake = FakeQuant::new(model, &Device::Cpu)?;
    let mut stopped = false;
    let mut noted = |done| {
        stopped |= observer.site(result, done, total).is_break();
        !stopped
    };
    let mut sites = Noise { model, fake, found: BTreeMap::new(), noted: &mut noted };
    let forward =
        swin.images(batch, &model.transform).and_then(|images| swin.outputs(&images, &mut sites).map(drop));
    let found = std::mem::take(&mut sites.found);
    match forward {
        _ if stopped => return Err(Error::Interrupted),
        forward => forward?,
    };
    Ok(found.into_iter().map(|(site, distortion)| (site, distortion.sqnr_db())).collect())
}

struct Noise<'a> {
    model: &'a QuantizedModel,
    fake: FakeQuant,
    found: BTreeMap<Site, Distortion>,
    /// Called after each site with the number of sites done; `false` stops the forward.
    noted: &'a mut dyn FnMut(usize) -> bool,
}

impl Noise<'_> {
    fn note(&mut self, site: Site, exact: &Tensor, rounded: &Tensor) -> Result<(), FloatError> {
        let values = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
        let (exact, rounded) = (values(exact)?, values(rounded)?);
        let distortion = self.found.entry(site).or_default();
        distortion.update(&exact, &rounded).map_err(|e| ModelError::site(site, e.to_string()))?;
        match (self.noted)(self.found.len()) {
            true => Ok(()),
            false => Err(ModelError::site(site, "the caller asked to stop").into()),
        }
    }

    fn is_on(&self, site: Site) -> bool {
        self.model.site(site).spec.enabled
    }
}

impl Sites for Noise<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        let rounded = self.fake.activation(site, x.clone())?;
        if self.is_on(site) {
            self.note(site, &x, &rounded)?;
        }
        Ok(rounded)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        self.fake.weight(site, w)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let rounded = self.fake.attention(attention)?;
        let block = attention.block;
        let [q, k, v] = attention.split()?;
        let q = self.activation(Site::Q(block), q)?;
        let k = self.activation(Site::K(block), k)?;
        let v = self.activation(Site::V(block), v)?;
        let probs = Site::Probs(block);
        if self.is_on(probs) {
            let logits = attention.logits(&attention.scores(&q, &k)?)?;
            self.note(probs, &attention.merge(&attention.attend(&logits, &v)?)?, &rounded)?;
        }
        Ok(rounded)
    }
}
