//! Two networks on the same images, run by segments, and the inputs and targets of one layer's
//! reconstruction.

use std::ops::Range;

use candle_core::{Device, Tensor};
use swinq_float::{FakeQuant, Float, Segment, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, Linear, QuantizedModel, Size, SwinConfig};

use super::recorder::LayerRecorder;
use crate::error::CalibError;

/// The float network and the quantized one in simulation, and their inputs of one segment.
pub struct Networks<'a> {
    float: Swin,
    quantized: Swin,
    sites: FakeQuant,
    device: &'a Device,
    chunks: Vec<Chunk>,
}

/// The images of one forward, before one segment.
struct Chunk {
    images: usize,
    size: Size,
    residuals: Residuals,
}

/// A tensor of both networks, in host memory.
struct Residuals {
    float: Tensor,
    quantized: Tensor,
}

/// The inputs and the targets of one image, for the reconstruction of a layer with `k` inputs and `n`
/// outputs.
pub struct ImageRows<'a> {
    /// The inputs of the product in the quantized network, `[rows, k]`.
    pub x: &'a [f32],
    /// The target of the product, `[rows, n]`.
    pub t: &'a [f32],
}

impl<'a> Networks<'a> {
    /// The networks before the first segment, for the images of `batches`; each batch is one forward.
    pub fn new(
        float: &FloatModel,
        model: &QuantizedModel,
        batches: &[Batch],
        device: &'a Device,
    ) -> Result<Networks<'a>, CalibError> {
        let swin = Swin::new(&float.config, &float.tensors, device)?;
        let chunk = |batch: &Batch| {
            let images = swin.images(batch, &float.transform)?.to_device(&Device::Cpu)?;
            let residuals = Residuals { float: images.clone(), quantized: images };
            Ok(Chunk { images: batch.len(), size: batch.size, residuals })
        };
        let chunks = batches.iter().map(chunk).collect::<Result<_, CalibError>>()?;
        Ok(Networks {
            quantized: Swin::new(&model.config, &model.float_tensors(), device)?,
            sites: FakeQuant::new(model, device)?,
            float: swin,
            device,
            chunks,
        })
    }

    /// Runs `segment` on every image, and calls `visit` with the input and the target of `layer` for each
    /// image; it is a layer of the segment.
    ///
    /// The target is the product of the float network. If the layer's output is added to a shortcut, the
    /// difference of the two networks' shortcuts is added to the target, so that the sum should be the float
    /// network's. Rows of padding at `attn.proj`, which nothing reads, are left out.
    pub fn visit(
        &mut self,
        segment: Segment,
        layer: Linear,
        visit: &mut dyn FnMut(ImageRows) -> Result<(), CalibError>,
    ) -> Result<(), CalibError> {
        for chunk in &self.chunks {
            let places = residual_places(self.float.config(), chunk.size, layer)?;
            let input = |residual: &Tensor| residual.to_device(self.device);
            let mut sites = Float;
            let mut float =
                LayerRecorder::new(&mut sites, layer, |layer, x| layer.before_bias(x, &layer.weight));
            self.float.run(segment, chunk.size, input(&chunk.residuals.float)?, &mut float)?;
            let (mut t, shortcut) = float.into_values()?;
            let mut quantized = LayerRecorder::new(&mut self.sites, layer, |_, x| Ok(x.clone()));
            self.quantized.run(segment, chunk.size, input(&chunk.residuals.quantized)?, &mut quantized)?;
            let (mut x, quantized_shortcut) = quantized.into_values()?;
            if let (Some(places), Some(float), Some(quantized)) = (&places, shortcut, quantized_shortcut) {
                let error: Vec<f32> = float.iter().zip(&quantized).map(|(f, q)| f - q).collect();
                t = with_shortcut(&t, &error, places, chunk.images);
                x = only_tokens(x, places, chunk.images);
            }
            for image in 0..chunk.images {
                visit(ImageRows {
                    x: &x[part(&x, image, chunk.images)],
                    t: &t[part(&t, image, chunk.images)],
                })?;
            }
        }
        Ok(())
    }

    /// Runs `segment`: its outputs become the inputs of the next one.
    pub fn advance(&mut self, segment: Segment) -> Result<(), CalibError> {
        for chunk in &mut self.chunks {
            let (size, Residuals { float, quantized }) = (chunk.size, &mut chunk.residuals);
            let output = self.float.run(segment, size, float.to_device(self.device)?, &mut Float)?;
            *float = output.to_device(&Device::Cpu)?;
            let output =
                self.quantized.run(segment, size, quantized.to_device(self.device)?, &mut self.sites)?;
            *quantized = output.to_device(&Device::Cpu)?;
        }
        Ok(())
    }

    /// Takes over the weight of `layer` from `model`, and its bias if there is one.
    pub fn update(
        &mut self,
        model: &QuantizedModel,
        layer: Linear,
        bias: Option<&[f32]>,
    ) -> Result<(), CalibError> {
        self.sites.update(model, layer)?;
        if let Some(bias) = bias {
            self.quantized.set_bias(layer, bias)?;
        }
        Ok(())
    }
}

/// For a layer whose output is added to a shortcut: the row of the residual stream that each row of its
/// output is added to, in one image of `size`; `None` for padding.
fn residual_places(
    config: &SwinConfig,
    size: Size,
    layer: Linear,
) -> Result<Option<Vec<Option<usize>>>, CalibError> {
    let grid = |stage: usize| Ok::<_, CalibError>(config.grids(size)?.swap_remove(stage));
    Ok(match layer {
        Linear::Proj(block) => Some(grid(block.stage)?.partition(block.block % 2 == 1)),
        Linear::Fc2(block) => Some((0..grid(block.stage)?.tokens()).map(Some).collect()),
        _ => None,
    })
}

/// The values of one image among those of `images`.
fn part(values: &[f32], image: usize, images: usize) -> Range<usize> {
    let len = values.len() / images;
    image * len..(image + 1) * len
}

/// The rows of `values` that are not padding.
fn only_tokens(values: Vec<f32>, places: &[Option<usize>], images: usize) -> Vec<f32> {
    if places.iter().all(Option::is_some) {
        return values;
    }
    let width = values.len() / (images * places.len());
    let rows = values.chunks_exact(width).zip(places.iter().cycle());
    rows.filter(|(_, place)| place.is_some()).flat_map(|(row, _)| row).copied().collect()
}

/// The rows of `t` that are not padding, with the rows of `shortcut` that they are added to.
fn with_shortcut(t: &[f32], shortcut: &[f32], places: &[Option<usize>], images: usize) -> Vec<f32> {
    let width = t.len() / (images * places.len());
    let mut sums = Vec::with_capacity(shortcut.len());
    for image in 0..images {
        let (t, shortcut) = (&t[part(t, image, images)], &shortcut[part(shortcut, image, images)]);
        for (t, place) in t.chunks_exact(width).zip(places) {
            let Some(place) = place else { continue };
            sums.extend(t.iter().zip(&shortcut[place * width..][..width]).map(|(t, s)| t + s));
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortcuts_are_added_in_the_order_of_windows_without_padding() {
        let places = [Some(1), None, Some(0)];
        let t = [1.0, 2.0, 30.0, 40.0, 5.0, 6.0, 7.0, 8.0, 90.0, 90.0, 11.0, 12.0];
        let shortcut = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0];
        let sums = with_shortcut(&t, &shortcut, &places, 2);
        assert_eq!(sums, [301.0, 402.0, 105.0, 206.0, 707.0, 808.0, 511.0, 612.0]);
        assert_eq!(only_tokens(t.to_vec(), &places, 2), [1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 11.0, 12.0]);
    }
}
