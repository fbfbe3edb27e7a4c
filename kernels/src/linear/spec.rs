//! What a product is asked to do, and where its results go.

use crate::types::{Quantizer, RowMap, RowOut};

/// What a product's op does with each value after bias and GELU.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Writes it as f32.
    F32,
    /// Quantizes and dequantizes it, then writes f32.
    Fake(Quantizer),
    /// Writes its code with the reciprocal step of its column (n of them), as `u8 = code + 128`.
    Codes(Vec<f32>),
    /// Adds it to the residual stream: `stream = shortcut.fake(stream) + branch.fake(value)`, where `None` changes
    /// nothing.
    Residual {
        /// Quantizer of the product's value.
        branch: Option<Quantizer>,
        /// Quantizer of what the stream held.
        shortcut: Option<Quantizer>,
    },
}

/// Where the results go; the variant must suit the op's [`Store`].
#[derive(Debug)]
pub enum LinearOut<'a> {
    /// f32 `[rows, n]`, for [`Store::F32`] and [`Store::Fake`].
    F32(&'a mut [f32]),
    /// Codes `[rows, code_stride(n)]`, for [`Store::Codes`]. Only the first n bytes of a row are written.
    Codes(&'a mut [u8]),
    /// For [`Store::Residual`].
    Residual {
        /// f32 `[images * map.tokens(), n]`.
        stream: &'a mut [f32],
        /// Row of the stream, within its image, of each row of the product; rows that map to padding are dropped. The
        /// product has `images * map.rows().len()` rows.
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

/// The parts of a product's op other than its weight.
#[derive(Clone, Debug)]
pub struct LinearSpec<'a> {
    /// Columns of the result: output features.
    pub n: usize,
    /// Columns of the input: input features.
    pub k: usize,
    /// Bias, n values.
    pub bias: Option<&'a [f32]>,
    /// Quantizer of the product before its bias (the site `.output`).
    pub output: Option<Quantizer>,
    /// Whether GELU follows the bias.
    pub gelu: bool,
    /// What is done with the result.
    pub store: Store,
}
