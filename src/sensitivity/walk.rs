//! A walk through a model with a group of images: what variants share before their first difference is computed
//! once.

use swinq_int8_runtime::{Start, Variant, VariantRunner};
use swinq_model::{Batch, Logits};

/// Images that walk through the network together. The number bounds the memory for their residual streams.
pub(crate) const GROUP: usize = 64;

/// A group of images at one position of a variant.
pub(crate) struct Walk<'a> {
    base: &'a Variant,
    images: &'a Batch,
    classes: usize,
    position: usize,
    /// The tensor at the position, `[images, values]`; empty at the first position.
    stream: Vec<f32>,
}

impl<'a> Walk<'a> {
    /// A walk of `images` through `base`, at the first position.
    pub(crate) fn new(base: &'a Variant, images: &'a Batch, classes: usize) -> Walk<'a> {
        Walk { base, images, classes, position: 0, stream: Vec::new() }
    }

    /// The residual stream after the walk has gone on to `position`, `[images, values]`.
    pub(crate) fn stream_at(&mut self, runner: &mut VariantRunner, position: usize) -> &[f32] {
        if position < self.position {
            (self.position, self.stream) = (0, Vec::new());
        }
        if position > self.position {
            self.stream = self.run(runner, self.base, position);
            self.position = position;
        }
        &self.stream
    }

    /// The logits of `variant`. The walk goes on to the last position before the variant's first difference from
    /// the base, and the variant runs from there.
    pub(crate) fn logits(&mut self, runner: &mut VariantRunner, variant: &Variant) -> Logits {
        // A variant that equals the base may start anywhere.
        if let Some(position) = runner.first_difference(self.base, variant) {
            self.stream_at(runner, position);
        }
        let last = runner.positions().len() - 1;
        Logits { values: self.run(runner, variant, last), classes: self.classes }
    }

    /// Runs all images through `variant` from the walk's position to `to`.
    fn run(&self, runner: &mut VariantRunner, variant: &Variant, to: usize) -> Vec<f32> {
        let (each, images) = (runner.images_at_a_time(), self.images.len());
        let (from, out) = (runner.positions()[self.position].values, runner.positions()[to].values);
        let mut output = vec![0.0; images * out];
        for (part, output) in output.chunks_mut(each * out).enumerate() {
            let (first, count) = (part * each, output.len() / out);
            let range = first * from..(first + count) * from;
            let start = match self.position {
                0 => Start::Pixels(&self.images.pixels[range]),
                position => Start::Stream(position, &self.stream[range]),
            };
            runner.run(variant, count, start, to, output);
        }
        output
    }
}
