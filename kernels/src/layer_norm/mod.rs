//! Layer normalisation (Ba et al., 2016) of f32 rows, fused with the gather before it and the quantizer after it.
//!
//! ```text
//! y = (x - mean) / sqrt(var + eps) * gamma + beta          var: biased, over the channels of the row
//! ```
//! The definition is [`crate::reference::layer_norm_row`], which every instruction set equals bit for bit.

mod ops;
mod vector;

pub use ops::{LayerNorm, MergeNorm, PooledNorm};

use crate::isa::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::reference;
use crate::rows::Segment;

/// Scale, shift and epsilon of one normalisation.
struct Affine {
    cpu: Cpu,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    eps: f32,
}

impl Affine {
    fn new(op: &str, cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32) -> Affine {
        assert!(!gamma.is_empty(), "{op}: no channels");
        assert_eq!(gamma.len(), beta.len(), "{op}: gamma and beta differ in length");
        assert!(eps.is_finite() && eps >= 0.0, "{op}: epsilon is {eps}");
        Affine { cpu, gamma: gamma.to_vec(), beta: beta.to_vec(), eps }
    }

    fn channels(&self) -> usize {
        self.gamma.len()
    }

    /// Normalises `count` rows: row `i` is `source(i)`, or zeros for `None`, and goes to `out(i)`. `buffer` holds one
    /// row, for the reference.
    fn rows<'x, 's>(
        &self,
        count: usize,
        source: impl Fn(usize) -> Option<&'x [f32]>,
        out: impl Fn(usize) -> Segment<'s>,
        buffer: &mut [f32],
    ) {
        dispatch(self.cpu, Rows { affine: self, count, source, out, buffer });
    }
}

/// The normalisation of some rows.
struct Rows<'a, S, O> {
    affine: &'a Affine,
    count: usize,
    source: S,
    out: O,
    buffer: &'a mut [f32],
}

impl<'x, 's, S: Fn(usize) -> Option<&'x [f32]>, O: Fn(usize) -> Segment<'s>> Kernel for Rows<'_, S, O> {
    fn scalar(self) {
        let Affine { gamma, beta, eps, .. } = self.affine;
        for i in 0..self.count {
            match (self.source)(i) {
                None => (self.out)(i).clear(),
                Some(x) => {
                    reference::layer_norm_row(x, gamma, beta, *eps, self.buffer);
                    (self.out)(i).put_all(self.buffer);
                }
            }
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        vector::rows(lanes, self.affine, self.count, self.source, self.out);
    }
}
