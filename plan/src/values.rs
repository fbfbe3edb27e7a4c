//! Parameters that a plan borrows from its model.

use std::borrow::Cow;
use std::sync::Arc;

use swinq_model::quantized::{Int8Weight, Param};

/// A float parameter, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Values<'m> {
    /// Stored in float.
    Float(&'m [f32]),
    /// Stored as INT8 codes, which are dequantized when they are read. If the plan held dequantized values,
    /// it would hold all such weights in float at once.
    Codes(&'m Int8Weight),
}

impl<'m> Values<'m> {
    /// The values of `param`.
    pub fn of(param: &'m Param) -> Values<'m> {
        match param {
            Param::Float(tensor) => Values::Float(&tensor.data),
            Param::Int8(weight) => Values::Codes(weight),
        }
    }

    /// The values: borrowed, or dequantized for this call.
    pub fn read(&self) -> Cow<'m, [f32]> {
        match self {
            Values::Float(values) => Cow::Borrowed(values),
            Values::Codes(weight) => Cow::Owned(weight.dequantize().data),
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::Float(values) => values.len(),
            Values::Codes(weight) => weight.codes.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The relative position bias of a block: a table, and the index of the table's row for each pair of tokens.
#[derive(Clone, Debug)]
pub struct RelativeBias<'m> {
    /// The table, `[bias_rows, heads]`: a parameter of a Swin V1, computed for a Swin V2.
    pub table: Cow<'m, [f32]>,
    /// Row of the table for each pair of a query and a key, `[tokens, tokens]`. Blocks of one stage share it.
    pub index: Arc<[usize]>,
    /// Heads.
    pub heads: usize,
}

impl RelativeBias<'_> {
    /// The bias of each head, query and key: `[heads, tokens, tokens]`.
    pub fn expand(&self) -> Vec<f32> {
        let of_head = |head| self.index.iter().map(move |&row| row * self.heads + head);
        (0..self.heads).flat_map(of_head).map(|at| self.table[at]).collect()
    }

    /// Number of values that [`RelativeBias::expand`] gives.
    pub fn len(&self) -> usize {
        self.heads * self.index.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
