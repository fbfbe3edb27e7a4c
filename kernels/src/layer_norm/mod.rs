//! Layer normalisation (Ba et al., 2016) of f32 rows, fused with the gather before it and the quantizer after it.
//!
//! ```text
//! y = (x - mean) / sqrt(var + eps) * gamma + beta          var: biased, over the channels of the row
//! ```
//! Class B: within twice the error of a plain f32 implementation, against the f64 definition in
//! [`crate::reference::layer_norm_row`].

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

    /// Normalises the row `x` into `out`, by way of `buffer` (as many f32) in the reference.
    #[inline(always)]
    fn row(&self, x: &[f32], buffer: &mut [f32], out: Segment<'_>) {
        dispatch(self.cpu, Row { affine: self, x, buffer, out });
    }
}

/// The normalisation of one row.
struct Row<'a> {
    affine: &'a Affine,
    x: &'a [f32],
    buffer: &'a mut [f32],
    out: Segment<'a>,
}

impl Kernel for Row<'_> {
    fn scalar(mut self) {
        let Affine { gamma, beta, eps, .. } = self.affine;
        reference::layer_norm_row(self.x, gamma, beta, *eps, self.buffer);
        self.out.put_all(self.buffer);
    }

    #[inline(always)]
    fn vector<L: Lanes>(mut self, lanes: L) {
        vector::row(lanes, self.affine, self.x, &mut self.out);
    }
}
