//! The results of all launches of a forward, for tests that search for the first launch that differs.

use swinq_numerics::code_stride;
use swinq_plan::TensorId;

/// The result of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Module path of the launch.
    pub name: String,
    /// The tensor of the plan that the launch wrote.
    pub tensor: TensorId,
    /// The whole tensor after the launch, `[images * rows, columns]`.
    pub values: TracedValues,
}

/// The values of a tensor, without padding.
#[derive(Clone, Debug, PartialEq)]
pub enum TracedValues {
    /// INT8 codes.
    Codes(Vec<i8>),
    /// f32 values, or f16 values converted to f32.
    Float(Vec<f32>),
}

impl TracedValues {
    /// Converts codes from the form of the CPU engine: `code + 128`, in padded rows.
    pub(crate) fn cpu_codes(bytes: &[u8], columns: usize) -> TracedValues {
        let rows = bytes.chunks_exact(code_stride(columns));
        TracedValues::Codes(rows.flat_map(|row| &row[..columns]).map(|&b| (b ^ 0x80).cast_signed()).collect())
    }

    /// Elements of `bytes` bytes each, rows `stride` elements apart, read by `value`.
    pub(crate) fn rows<T>(
        raw: &[u8],
        bytes: usize,
        (columns, stride): (usize, usize),
        value: impl Fn(&[u8]) -> T,
    ) -> Vec<T> {
        let rows = raw.chunks_exact(stride * bytes);
        rows.flat_map(|row| row[..columns * bytes].chunks_exact(bytes)).map(value).collect()
    }
}
