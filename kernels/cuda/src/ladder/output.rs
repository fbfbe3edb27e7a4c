//! Copies of the ladder's operands to a device, and of its results back.

use half::f16;

use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Plain, Stream};

/// Element type of a matrix on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elements {
    /// f32.
    F32,
    /// f16.
    F16,
    /// INT32.
    S32,
    /// INT8.
    S8,
    /// Unsigned bytes.
    U8,
}

impl Elements {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Elements::F32 | Elements::S32 => 4,
            Elements::F16 => 2,
            Elements::S8 | Elements::U8 => 1,
        }
    }
}

/// A matrix on a device that a launch writes.
#[derive(Clone)]
pub struct Matrix {
    slice: DeviceSlice,
    elements: Elements,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl Matrix {
    /// Allocates `rows` rows of `columns` elements, `stride` elements apart, with undefined content.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    ///
    /// # Panics
    /// If `stride` is less than `columns`.
    pub fn new(
        device: &Device,
        elements: Elements,
        (rows, columns): (usize, usize),
        stride: usize,
    ) -> Result<Matrix, CudaError> {
        assert!(stride >= columns, "rows of {columns} elements cannot be {stride} apart");
        let slice = DeviceBuf::new(device, rows * stride * elements.bytes())?.all();
        Ok(Matrix { slice, elements, rows, columns, stride })
    }

    /// All its bytes.
    pub fn slice(&self) -> &DeviceSlice {
        &self.slice
    }

    /// Fills the matrix with a byte pattern that no result has, so that elements which a launch does not
    /// write are detected.
    ///
    /// # Errors
    /// The driver fails.
    pub fn spoil(&self, stream: &Stream) -> Result<(), CudaError> {
        self.slice.copy_from(stream, &vec![0x5a_u8; self.slice.bytes()])
    }

    /// Waits for the work on the stream, then returns the elements as f32, row-major and contiguous.
    ///
    /// # Errors
    /// The driver fails, or earlier work on the stream failed.
    pub fn fetch(&self, stream: &Stream) -> Result<Vec<f32>, CudaError> {
        match self.elements {
            Elements::F32 => self.rows_of(stream, |x: f32| x),
            Elements::F16 => self.rows_of(stream, |x: u16| f16::from_bits(x).to_f32()),
            Elements::S32 => self.rows_of(stream, |x: i32| x as f32),
            Elements::S8 => self.rows_of(stream, |x: i8| f32::from(x)),
            Elements::U8 => self.rows_of(stream, |x: u8| f32::from(x)),
        }
    }

    fn rows_of<T: Plain + Default>(
        &self,
        stream: &Stream,
        as_f32: impl Fn(T) -> f32,
    ) -> Result<Vec<f32>, CudaError> {
        let mut all = vec![T::default(); self.rows * self.stride];
        self.slice.copy_to(stream, &mut all)?;
        let rows = all.chunks_exact(self.stride.max(1));
        Ok(rows.flat_map(|row| &row[..self.columns]).map(|&x| as_f32(x)).collect())
    }
}

/// Rounds `values` to f16 and returns the bits.
pub fn to_half(values: &[f32]) -> Vec<u16> {
    values.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

/// Converts f16 values, given as bits, to f32.
pub fn from_half(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|&x| f16::from_bits(x).to_f32()).collect()
}

/// Adds two f16 values, given as bits, in f32 and rounds the sum once.
pub fn half_sum(a: u16, b: u16) -> u16 {
    f16::from_f32(f16::from_bits(a).to_f32() + f16::from_bits(b).to_f32()).to_bits()
}

/// Pads rows of `columns` values with zeros, so that they are `stride` values apart.
///
/// # Panics
/// If `columns` is 0 or more than `stride`.
pub fn spread<T: Copy + Default>(values: &[T], columns: usize, stride: usize) -> Vec<T> {
    let mut spread = vec![T::default(); values.len() / columns * stride];
    for (to, row) in spread.chunks_exact_mut(stride).zip(values.chunks_exact(columns)) {
        to[..columns].copy_from_slice(row);
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_and_halves_are_exact() {
        assert_eq!(spread(&[1, 2, 3, 4, 5, 6], 3, 4), [1, 2, 3, 0, 4, 5, 6, 0]);
        assert_eq!(spread(&[1_i8, 2], 2, 2), [1, 2]);
        let values = [0.0, -1.5, 0.333_251_95, 65_504.0];
        assert_eq!(from_half(&to_half(&values)), values);
        assert_eq!(half_sum(to_half(&[1.5])[0], to_half(&[-0.25])[0]), to_half(&[1.25])[0]);
        assert_eq!(Elements::F16.bytes() + Elements::S8.bytes() + Elements::S32.bytes(), 7);
    }
}
