//! A walk through a model with a group of images: what variants share before their first difference is
//! computed once.

use swinq_int8_runtime::{ImageLayout, Images, Pixels, Start, Variant, VariantRunner};
use swinq_model::{Batch, Size, SwinConfig};

use super::metric::Computed;

/// Images of the network's own size that walk through it together. The number bounds the memory for their
/// residual streams.
pub(crate) const GROUP: usize = 64;

/// The images of `size` that walk through a network of the architecture `config` together: of larger ones
/// there are fewer.
pub(crate) fn group_of(config: &SwinConfig, size: Size) -> usize {
    (GROUP * config.image_size.area() / size.area()).clamp(1, GROUP)
}

/// Groups of at most `each` of `all`, images of one size.
pub(crate) fn groups(all: &Batch, each: usize) -> Vec<Batch> {
    let starts = (0..all.len()).step_by(each);
    starts.map(|first| all.slice(first..(first + each).min(all.len()))).collect()
}

/// A group of images at one position of a variant.
pub(crate) struct Walk<'a> {
    base: &'a Variant,
    images: &'a Batch,
    /// The values of normalised images, f32 `[images, channels, height, width]`; `None` for bytes.
    values: Option<Vec<f32>>,
    position: usize,
    /// The tensor at the position, `[images, values]`; empty at the first position.
    residual: Vec<f32>,
}

impl<'a> Walk<'a> {
    /// A walk of `images` through `base`, at the first position. The runner must have the images' size.
    pub(crate) fn new(base: &'a Variant, images: &'a Batch) -> Walk<'a> {
        Walk { base, images, values: images.values(), position: 0, residual: Vec::new() }
    }

    /// The residual stream after the walk has gone on to `position`, `[images, values]`.
    pub(crate) fn residual_at(&mut self, runner: &mut VariantRunner, position: usize) -> &[f32] {
        if position < self.position {
            (self.position, self.residual) = (0, Vec::new());
        }
        if position > self.position {
            self.residual = self.run(runner, self.base, position);
            self.position = position;
        }
        &self.residual
    }

    /// The outputs of `variant` that may differ from those of the base. The walk goes on to the last position
    /// before the variant's first difference from the base, and the variant runs from there.
    pub(crate) fn outputs(&mut self, runner: &mut VariantRunner, variant: &Variant) -> Computed {
        // A variant that equals the base may start anywhere.
        if let Some(position) = runner.first_difference(self.base, variant) {
            self.residual_at(runner, position);
        }
        let (each, images) = (runner.images_at_a_time(), self.images.len());
        let computed = runner.outputs_from(self.position);
        let lengths: Vec<usize> = computed.clone().map(|output| runner.output_values(output)).collect();
        let mut values: Vec<Vec<f32>> = lengths.iter().map(|length| vec![0.0; images * length]).collect();
        for first in (0..images).step_by(each) {
            let count = each.min(images - first);
            let part = values.iter_mut().zip(&lengths);
            let mut part: Vec<&mut [f32]> =
                part.map(|(values, length)| &mut values[first * length..(first + count) * length]).collect();
            runner.run_to_outputs(variant, count, self.start(runner, first, count), &mut part);
        }
        Computed { first: computed.start, values }
    }

    /// The images.
    fn pixels(&self) -> Images<'_> {
        let size = self.images.size;
        match &self.values {
            None => Images::new(size, &self.images.pixels[..]),
            Some(values) => Images { size, pixels: Pixels::F32(values), layout: ImageLayout::ChannelsFirst },
        }
    }

    /// The tensor at the walk's position of `count` images from `first` on.
    fn start(&self, runner: &VariantRunner, first: usize, count: usize) -> Start<'_> {
        let values = runner.positions()[self.position].values;
        let range = first * values..(first + count) * values;
        match self.position {
            0 => Start::Images(self.pixels().of_values(range)),
            position => Start::Residual(position, &self.residual[range]),
        }
    }

    /// Runs all images through `variant` from the walk's position to `to`.
    fn run(&self, runner: &mut VariantRunner, variant: &Variant, to: usize) -> Vec<f32> {
        let (each, images) = (runner.images_at_a_time(), self.images.len());
        let out = runner.positions()[to].values;
        let mut output = vec![0.0; images * out];
        for (part, output) in output.chunks_mut(each * out).enumerate() {
            let count = output.len() / out;
            runner.run(variant, count, self.start(runner, part * each, count), to, output);
        }
        output
    }
}
