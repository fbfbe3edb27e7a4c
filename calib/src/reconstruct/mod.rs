//! Reconstruction: layer by layer in the order of execution, chooses the codes and the bias of each weight by
//! the error of the layer's output in the network that is quantized so far ([`rounding`](crate::rounding)).
//!
//! Two networks run side by side on the calibration's images: the float one, and the quantized one in
//! simulation. They run by segments, and only what they hand from one segment to the next is kept.
//! `docs/calibration.md` defines the procedure.

mod networks;
mod recorder;

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Device;
use swinq_float::Segment;
use swinq_model::quantized::{FloatModel, Int8Weight, Param};
use swinq_model::{Batch, HostTensor, Linear, Ptq, QuantizedModel, Site, SiteSpec};

use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::refine::{Refinement, Trial};
use crate::rounding::{Moments, Rounded, RoundingOptions, Statistics, round};
use networks::Networks;

/// One part in this many is held out: codes are fitted to the others, and judged on it.
const PARTS: usize = 3;

/// The layers whose weights are quantized with `ptq: reconstruct`.
pub(crate) fn reconstructed_layers(specs: &BTreeMap<Site, SiteSpec>) -> BTreeSet<Linear> {
    let layer = |(site, spec): (&Site, &SiteSpec)| match site {
        Site::Weight(layer) if spec.enabled && spec.ptq == Ptq::Reconstruct => Some(*layer),
        _ => None,
    };
    specs.iter().filter_map(layer).collect()
}

/// `batches` as batches of up to `size` images of one size, in the order of their positions in the data set.
pub(crate) fn in_order(batches: &[Batch], size: usize) -> Vec<Batch> {
    let images = batches.iter().flat_map(|batch| {
        let pixels = batch.pixels.chunks_exact(batch.image_bytes());
        batch.ids.iter().zip(pixels).map(move |(id, pixels)| (*id, pixels, batch))
    });
    let mut images: Vec<(usize, &[u8], &Batch)> = images.collect();
    images.sort_by_key(|(id, ..)| *id);
    let batch = |images: &[(usize, &[u8], &Batch)]| Batch {
        pixels: images.iter().flat_map(|(_, pixels, _)| *pixels).copied().collect(),
        ids: images.iter().map(|(id, ..)| *id).collect(),
        ..images[0].2.without_images()
    };
    let of_one_size = images.chunk_by(|(_, _, a), (_, _, b)| (a.size, a.format) == (b.size, b.format));
    of_one_size.flat_map(|images| images.chunks(size)).map(batch).collect()
}

/// The model, the recipe and the images of a reconstruction.
pub(crate) struct Reconstruction<'a> {
    /// The model in float: the same function as the original, with the parameters that the codes are made of.
    pub float: &'a FloatModel,
    /// The quantized model, which gets new codes and biases.
    pub model: &'a mut QuantizedModel,
    /// The layers to reconstruct.
    pub layers: &'a BTreeSet<Linear>,
    /// The images; each batch is one forward.
    pub images: &'a [Batch],
    /// The device that runs both networks.
    pub device: &'a Device,
}

impl Reconstruction<'_> {
    /// Reconstructs the layers, and calls `done` with the number of layers done so far. Returns a trial for
    /// each layer that could be judged.
    pub fn run(
        mut self,
        done: &mut dyn FnMut(usize) -> Result<(), CalibError>,
    ) -> Result<Vec<Trial>, CalibError> {
        let mut networks = Networks::new(self.float, self.model, self.images, self.device)?;
        let (mut trials, mut finished) = (Vec::new(), 0);
        for segment in Segment::all(&self.float.config) {
            for layer in
                segment.linears(&self.float.config).into_iter().filter(|layer| self.layers.contains(layer))
            {
                trials.extend(self.layer(&mut networks, segment, layer)?);
                finished += 1;
                done(finished)?;
            }
            if finished == self.layers.len() {
                break;
            }
            networks.advance(segment)?;
        }
        Ok(trials)
    }

    /// Reconstructs one layer; `None` if there are too few rows to judge it.
    fn layer(
        &mut self,
        networks: &mut Networks,
        segment: Segment,
        layer: Linear,
    ) -> Result<Option<Trial>, CalibError> {
        let site = Site::Weight(layer);
        let factors = self.model.weight_factors(layer).unwrap_or_default().to_vec();
        let weight = fold_factors(&self.float.tensors[&layer.weight_name()], &factors);
        let bias = self.float.tensors.get(&layer.bias_name()).map(|bias| bias.data.as_slice());
        let Some([fit, held]) = self.statistics(networks, segment, layer, &factors)? else { return Ok(None) };
        let find = |statistics: &Statistics| {
            let spec = &self.model.site(site).spec;
            round(&weight, bias, spec, statistics, RoundingOptions::default())
                .map_err(|error| error.of_weight(layer))
        };
        let error = |rounded: &Rounded| {
            held.error(&rounded.weight, &added(rounded.bias.as_deref(), bias, &rounded.weight))
        };
        let (before, after) = (error(&self.current(layer))?, error(&find(&fit)?)?);
        let trial = Trial { layer, transform: Refinement::Rounding, before, after };
        if trial.kept() {
            let Rounded { weight, bias } = find(&fit.merged(&held))?;
            self.model.params.insert(layer.weight_name(), Param::Int8(weight));
            networks.update(self.model, layer, bias.as_deref())?;
            if let Some(bias) = bias {
                let bias = HostTensor::new([bias.len()], bias);
                self.model.params.insert(layer.bias_name(), Param::Float(bias));
            }
        }
        Ok(Some(trial))
    }

    /// The codes and the bias that the layer has in the quantized model.
    fn current(&self, layer: Linear) -> Rounded {
        let Some(Param::Int8(weight)) = self.model.params.get(&layer.weight_name()) else {
            unreachable!("a layer to reconstruct has an INT8 weight")
        };
        let bias = self.model.params.get(&layer.bias_name()).map(|bias| bias.to_float().data);
        Rounded { weight: weight.clone(), bias }
    }

    /// The statistics of the images to fit to, and of those held out: every third image, or with fewer images
    /// than three every third row. `None` if one of the parts has no row.
    fn statistics(
        &self,
        networks: &mut Networks,
        segment: Segment,
        layer: Linear,
        factors: &[f32],
    ) -> Result<Option<[Statistics; 2]>, CalibError> {
        let (outputs, inputs) = self.float.tensors[&layer.weight_name()].matrix();
        let mut parts = [Moments::new(inputs, outputs), Moments::new(inputs, outputs)];
        let images: usize = self.images.iter().map(Batch::len).sum();
        let mut index = 0;
        networks.visit(segment, layer, &mut |rows| {
            let rows_of_unit = if images < PARTS { 1 } else { rows.x.len() / inputs };
            let units =
                rows.x.chunks_exact(rows_of_unit * inputs).zip(rows.t.chunks_exact(rows_of_unit * outputs));
            for (x, t) in units {
                let part = &mut parts[usize::from(index % PARTS == PARTS - 1)];
                part.add(x, t).map_err(|error| error.of_weight(layer))?;
                index += 1;
            }
            Ok(())
        })?;
        if index < PARTS {
            return Ok(None);
        }
        let [fit, held] = parts.map(Moments::finish);
        let mut statistics = [fit?, held?];
        if !factors.is_empty() {
            statistics.iter_mut().for_each(|statistics| statistics.divide_inputs(factors));
        }
        Ok(Some(statistics))
    }
}

/// The difference between `bias` and the layer's float bias.
fn added(bias: Option<&[f32]>, float: Option<&[f32]>, weight: &Int8Weight) -> Vec<f32> {
    match (bias, float) {
        (Some(bias), Some(float)) => bias.iter().zip(float).map(|(bias, float)| bias - float).collect(),
        _ => vec![0.0; weight.matrix().0],
    }
}
