//! Parameters of a quantized model: float tensors, and INT8 weights with their scales.

use crate::error::ModelError;
use crate::params::Parameter;
use crate::tensor::HostTensor;

/// An INT8 weight: codes in [-127, 127] (7 bits: [-63, 63], 4 bits: [-7, 7]), `weight = code * scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Weight {
    /// Sizes, output channels first.
    pub shape: Vec<usize>,
    /// Codes, row-major.
    pub codes: Vec<i8>,
    /// One scale per output channel, or one for the whole tensor.
    pub scales: Vec<f32>,
}

impl Int8Weight {
    /// Number of output channels, and of values in each.
    pub fn matrix(&self) -> (usize, usize) {
        let rows = self.shape[0];
        (rows, self.codes.len() / rows)
    }

    /// Scale of output channel `row`.
    pub fn scale(&self, row: usize) -> f32 {
        if self.scales.len() == 1 { self.scales[0] } else { self.scales[row] }
    }

    /// The float weight `code * scale`.
    pub fn dequantize(&self) -> HostTensor {
        let (_, columns) = self.matrix();
        let mut values = Vec::with_capacity(self.codes.len());
        for (row, codes) in self.codes.chunks(columns.max(1)).enumerate() {
            let scale = self.scale(row);
            values.extend(codes.iter().map(|&code| f32::from(code) * scale));
        }
        HostTensor::new(self.shape.clone(), values)
    }

    /// Checks the number and values of the scales, and the range of the codes; `name` is the tensor's.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] with the value.
    pub(super) fn check(&self, name: &str) -> Result<(), ModelError> {
        let (rows, _) = self.matrix();
        if self.scales.len() != 1 && self.scales.len() != rows {
            let problem = format!("{} scales for {rows} output channels", self.scales.len());
            return Err(ModelError::tensor(name, problem));
        }
        if let Some(row) = self.scales.iter().position(|s| !(*s > 0.0 && *s <= super::LARGEST_SCALE)) {
            let problem = format!(
                "scale {} of output channel {row} is not a positive number of at most {:e}",
                self.scales[row],
                super::LARGEST_SCALE
            );
            return Err(ModelError::tensor(name, problem));
        }
        if self.codes.contains(&-128) {
            return Err(ModelError::tensor(
                name,
                "holds the code -128; weights use [-127, 127]; calibrate again",
            ));
        }
        Ok(())
    }
}

/// A parameter of a quantized model.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// A parameter that stays in float.
    Float(HostTensor),
    /// A quantized weight.
    Int8(Int8Weight),
}

impl Param {
    /// The parameter in float, dequantized if it is quantized.
    pub fn to_float(&self) -> HostTensor {
        match self {
            Param::Float(tensor) => tensor.clone(),
            Param::Int8(weight) => weight.dequantize(),
        }
    }

    /// [`Param::to_float`] without a copy of a float parameter.
    pub fn into_float(self) -> HostTensor {
        match self {
            Param::Float(tensor) => tensor,
            Param::Int8(weight) => weight.dequantize(),
        }
    }
}

impl Parameter for Param {
    fn shape(&self) -> &[usize] {
        match self {
            Param::Float(tensor) => &tensor.shape,
            Param::Int8(weight) => &weight.shape,
        }
    }

    fn not_finite(&self) -> Option<(usize, f32)> {
        match self {
            Param::Float(tensor) => tensor.not_finite(),
            // No code is larger than 128, so finite products of 128 and the scales leave nothing to look for.
            Param::Int8(weight) if weight.scales.iter().all(|scale| (128.0 * scale).is_finite()) => None,
            Param::Int8(weight) => weight.dequantize().not_finite(),
        }
    }
}
