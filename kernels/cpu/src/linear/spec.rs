//! The parameters of a linear, and the destination of its results.

use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer, RowMap};

use crate::rows::RowOut;

/// How a linear stores each value after bias and GELU.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Writes it as f32.
    F32,
    /// Quantizes and dequantizes it, then writes f32.
    Fake(ColumnQuantizers),
    /// Writes its code as `u8 = code + 128`.
    Codes(ColumnQuantizers),
    /// Adds it to the residual stream: `residual = shortcut.fake(residual) + branch.fake(value)`, where
    /// `None` changes nothing.
    Residual {
        /// Quantizer of the linear's value.
        branch: Option<Quantizer>,
        /// Quantizer of the residual's previous value.
        shortcut: Option<Quantizer>,
    },
}

/// The destination of the results; the variant must match the op's [`Store`].
#[derive(Debug)]
pub enum LinearOut<'a> {
    /// f32 `[rows, n]`, for [`Store::F32`] and [`Store::Fake`].
    F32(&'a mut [f32]),
    /// Codes `[rows, code_stride(n)]`, for [`Store::Codes`]. Only the first n bytes of a row are written.
    Codes(&'a mut [u8]),
    /// For [`Store::Residual`].
    Residual {
        /// f32 `[images * map.tokens(), n]`.
        residual: &'a mut [f32],
        /// Row of the residual, within its image, of each row of the linear; rows that map to padding are
        /// dropped. The linear has `images * map.rows().len()` rows.
        map: &'a RowMap,
    },
}

impl<'a> From<RowOut<'a>> for LinearOut<'a> {
    fn from(out: RowOut<'a>) -> LinearOut<'a> {
        match out {
            RowOut::F32(out) => LinearOut::F32(out),
            RowOut::Codes(out) => LinearOut::Codes(out),
        }
    }
}

/// The parameters of a linear other than its weight.
#[derive(Clone, Debug)]
pub struct LinearSpec<'a> {
    /// Columns of the result: output features.
    pub n: usize,
    /// Columns of the input: input features.
    pub k: usize,
    /// Bias, n values.
    pub bias: Option<&'a [f32]>,
    /// Quantizer of the product before the bias (the site `.output`).
    pub output: Option<Quantizer>,
    /// The GELU that follows the bias, if any.
    pub gelu: Option<Gelu>,
    /// How the result is stored.
    pub store: Store,
}
