//! Tensors of a part: how they are stored, and typed reading.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, View};

use crate::error::ModelError;

/// A tensor to store, row-major in little-endian bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PartTensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// Tensors to store, by name.
pub type PartTensors = BTreeMap<String, PartTensor>;

impl PartTensor {
    fn new(dtype: Dtype, shape: impl Into<Vec<usize>>, bytes: Vec<u8>, width: usize) -> PartTensor {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>() * width, bytes.len(), "shape {shape:?}");
        PartTensor { dtype, shape, bytes }
    }

    /// Floats.
    ///
    /// # Panics
    /// If the number of values is not that of `shape`.
    pub fn f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> PartTensor {
        PartTensor::new(Dtype::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect(), 4)
    }

    /// Counts or positions.
    ///
    /// # Panics
    /// As [`PartTensor::f32`].
    pub fn u64(shape: impl Into<Vec<usize>>, values: impl IntoIterator<Item = u64>) -> PartTensor {
        PartTensor::new(Dtype::U64, shape, values.into_iter().flat_map(u64::to_le_bytes).collect(), 8)
    }

    /// Bytes.
    ///
    /// # Panics
    /// As [`PartTensor::f32`].
    pub fn u8(shape: impl Into<Vec<usize>>, bytes: Vec<u8>) -> PartTensor {
        PartTensor::new(Dtype::U8, shape, bytes, 1)
    }
}

impl View for &PartTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The tensors of a part that was read and whose hash was verified.
pub struct StoredTensors<'a> {
    pub(super) path: &'a Path,
    pub(super) file: SafeTensors<'a>,
}

impl<'a> StoredTensors<'a> {
    /// The names of the tensors.
    pub fn names(&self) -> Vec<&str> {
        self.file.names().into_iter().collect()
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_ok()
    }

    /// The shape and the bytes of a tensor of type `dtype` with `dimensions` dimensions.
    fn bytes(
        &self,
        name: &str,
        dtype: Dtype,
        dimensions: usize,
    ) -> Result<(Vec<usize>, &'a [u8]), ModelError> {
        let view = self.file.tensor(name).map_err(|_| self.problem(name, "is missing"))?;
        if view.dtype() != dtype || view.shape().len() != dimensions {
            let problem = format!(
                "is {:?} {:?} instead of {dtype:?} of {dimensions} dimensions",
                view.dtype(),
                view.shape()
            );
            return Err(self.problem(name, &problem));
        }
        Ok((view.shape().to_vec(), view.data()))
    }

    /// Floats with their shape, of `dimensions` dimensions.
    ///
    /// # Errors
    /// [`ModelError::File`] if the tensor is missing or of another type.
    pub fn f32(&self, name: &str, dimensions: usize) -> Result<(Vec<usize>, Vec<f32>), ModelError> {
        let (shape, bytes) = self.bytes(name, Dtype::F32, dimensions)?;
        Ok((shape, bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    /// A list of counts or positions.
    ///
    /// # Errors
    /// As [`StoredTensors::f32`].
    pub fn u64(&self, name: &str) -> Result<Vec<u64>, ModelError> {
        let (_, bytes) = self.bytes(name, Dtype::U64, 1)?;
        Ok(bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect())
    }

    /// Bytes with their shape, of `dimensions` dimensions.
    ///
    /// # Errors
    /// As [`StoredTensors::f32`].
    pub fn u8(&self, name: &str, dimensions: usize) -> Result<(Vec<usize>, &'a [u8]), ModelError> {
        self.bytes(name, Dtype::U8, dimensions)
    }

    /// Positions of images, in which none is twice.
    ///
    /// # Errors
    /// As [`StoredTensors::f32`], and for a position that is repeated or too large for this machine.
    pub fn ids(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        let ids = self.u64(name)?;
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        let fits = sorted.last().is_none_or(|last| usize::try_from(*last).is_ok());
        if !fits || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(self.problem(name, "has an impossible position of an image, or the same twice"));
        }
        Ok(ids.into_iter().map(|id| id as usize).collect())
    }

    /// The error for a tensor that is not as it should be.
    pub fn problem(&self, name: &str, problem: &str) -> ModelError {
        let text = format!("its tensor `{name}` {problem}; run this shard again");
        ModelError::file(self.path, text)
    }
}
