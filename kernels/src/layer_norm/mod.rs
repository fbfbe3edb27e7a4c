//! Layer normalisation (Ba et al., 2016) of f32 rows, fused with the gather before it and the quantizer after it.
//!
//! ```text
//! y = (x - mean) / sqrt(var + eps) * gamma + beta          var: biased, over the channels of the row
//! ```
//! The definition is [`crate::reference::layer_norm_row`], which every instruction set equals bit for bit.

mod ops;
mod vector;

pub use ops::{LayerNorm, MergeNorm, PooledNorm};

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::reference;
use crate::rows::Segment;

/// Scale, shift and epsilon of one normalisation.
#[derive(Clone, Copy)]
pub(crate) struct Affine<'a> {
    pub(crate) gamma: &'a [f32],
    pub(crate) beta: &'a [f32],
    pub(crate) eps: f32,
}

/// Normalises `count` rows: row `i` is `source(i)`, or zeros for `None`, and goes to `out(i)`. `buffer` holds one row,
/// which the scalar reference needs unless it stores f32.
pub(crate) fn normalise<'x, 's>(
    cpu: Cpu,
    affine: Affine<'_>,
    count: usize,
    source: impl Fn(usize) -> Option<&'x [f32]>,
    out: impl Fn(usize) -> Segment<'s>,
    buffer: &mut [f32],
) {
    dispatch(cpu, Rows { affine, count, source, out, buffer });
}

/// The normalisation of some rows.
struct Rows<'a, S, O> {
    affine: Affine<'a>,
    count: usize,
    source: S,
    out: O,
    buffer: &'a mut [f32],
}

impl<'x, 's, S: Fn(usize) -> Option<&'x [f32]>, O: Fn(usize) -> Segment<'s>> Kernel for Rows<'_, S, O> {
    fn scalar(self) {
        let Affine { gamma, beta, eps } = self.affine;
        for i in 0..self.count {
            match ((self.source)(i), (self.out)(i)) {
                (None, mut out) => out.clear(),
                (Some(x), Segment::F32(out)) => reference::layer_norm_row(x, gamma, beta, eps, out),
                (Some(x), mut out) => {
                    reference::layer_norm_row(x, gamma, beta, eps, self.buffer);
                    out.put_all(self.buffer);
                }
            }
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        vector::rows(lanes, self.affine, self.count, self.source, self.out);
    }
}
