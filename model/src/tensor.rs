//! Tensors in host memory, by name.

use std::collections::BTreeMap;

/// An f32 tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The values; as many as the product of `shape`.
    pub data: Vec<f32>,
}

impl HostTensor {
    /// A tensor of this shape.
    ///
    /// # Panics
    /// If the length of `data` is not the product of `shape`.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> HostTensor {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        HostTensor { shape, data }
    }

    /// Rows and columns of the tensor as a matrix: the first dimension, and the product of the others.
    pub fn matrix(&self) -> (usize, usize) {
        let rows = self.shape.first().copied().unwrap_or(1);
        (rows, self.data.len().checked_div(rows).unwrap_or(0))
    }
}

/// Float tensors by name, in Microsoft's naming. The map is ordered, so that sums over it are deterministic.
pub type StateDict = BTreeMap<String, HostTensor>;
