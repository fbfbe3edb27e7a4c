//! Tensors as a file stores them: typed, strided views of the file's bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::{bf16, f16};

use crate::error::damaged;
use crate::tensor::HostTensor;

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    F16,
    Bf16,
    F32,
    F64,
    /// Any other type, with its element size in bytes. Only buffers have such types, and buffers are never
    /// read.
    Other(usize),
}

impl DType {
    /// Bytes of one element.
    pub(crate) fn size(self) -> usize {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 => 4,
            DType::F64 => 8,
            DType::Other(size) => size,
        }
    }
}

/// A tensor in a file's bytes. Every index that it can reach lies inside `storage`.
#[derive(Clone, Debug)]
pub(crate) struct RawTensor<'a> {
    dtype: DType,
    shape: Vec<usize>,
    /// One stride per dimension, in elements.
    strides: Vec<usize>,
    storage: Storage<'a>,
}

/// The storage of a tensor, starting at the tensor's first element.
#[derive(Clone, Copy, Debug)]
enum Storage<'a> {
    Bytes(&'a [u8]),
    /// Text of `length` characters, whose code points are the bytes. It is decoded when the values are read.
    Latin1 {
        text: &'a str,
        length: usize,
    },
}

/// Stored tensors by their names in the file.
pub(crate) type RawDict<'a> = BTreeMap<String, RawTensor<'a>>;

impl<'a> RawTensor<'a> {
    /// A tensor of `shape` that starts at element `offset` of `storage`; `strides` are in elements.
    ///
    /// # Errors
    /// An element lies outside the storage, or the tensor has more elements than the storage because it
    /// repeats them.
    pub(crate) fn new(
        dtype: DType,
        shape: Vec<usize>,
        strides: Vec<usize>,
        offset: usize,
        storage: &'a [u8],
    ) -> Result<RawTensor<'a>, String> {
        let elements = check_layout(dtype, &shape, &strides, offset, storage.len())?;
        let bytes = if elements == 0 { &[] } else { &storage[offset * dtype.size()..] };
        Ok(RawTensor { dtype, shape, strides, storage: Storage::Bytes(bytes) })
    }

    /// A tensor that starts at the first character of `text`, each of which stands for the byte of its code
    /// point.
    ///
    /// # Errors
    /// A character is no byte, or those of [`new`](RawTensor::new).
    pub(crate) fn latin1(
        dtype: DType,
        shape: Vec<usize>,
        strides: Vec<usize>,
        text: &'a str,
    ) -> Result<RawTensor<'a>, String> {
        // The code points above 0xff are those whose first byte in UTF-8 exceeds 0xc3.
        if text.bytes().any(|byte| byte > 0xc3) {
            return Err(damaged("tensor", "its values are text that is not Latin-1"));
        }
        let length = text.chars().count();
        check_layout(dtype, &shape, &strides, 0, length)?;
        Ok(RawTensor { dtype, shape, strides, storage: Storage::Latin1 { text, length } })
    }

    /// A contiguous, row-major tensor that fills `bytes`.
    pub(crate) fn contiguous(
        dtype: DType,
        shape: Vec<usize>,
        bytes: &'a [u8],
    ) -> Result<RawTensor<'a>, String> {
        let strides = contiguous_strides(&shape);
        RawTensor::new(dtype, shape, strides, 0, bytes)
    }

    /// A tensor of a type that no parameter has; it cannot be converted.
    pub(crate) fn unreadable() -> RawTensor<'a> {
        RawTensor { dtype: DType::Other(1), shape: vec![0], strides: vec![1], storage: Storage::Bytes(&[]) }
    }

    /// Sizes.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The values in f32, row-major. f64 is rounded to nearest.
    ///
    /// # Errors
    /// The type is not a float.
    pub(crate) fn to_f32(&self) -> Result<HostTensor, String> {
        let data = match self.dtype {
            DType::F16 => self.gather(|b| f16::from_le_bytes(b).to_f32()),
            DType::Bf16 => self.gather(|b| bf16::from_le_bytes(b).to_f32()),
            DType::F32 => self.gather(f32::from_le_bytes),
            DType::F64 => self.gather(|b| f64::from_le_bytes(b) as f32),
            DType::Other(_) => {
                return Err(
                    "has a type that no parameter has; parameters are f16, bf16, f32 or f64".to_owned()
                );
            }
        };
        Ok(HostTensor::new(self.shape.clone(), data))
    }

    fn gather<const N: usize>(&self, read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        let elements = self.elements();
        let bytes = self.storage.bytes();
        let (stored, _) = bytes.as_chunks::<N>();
        if self.strides == contiguous_strides(&self.shape) {
            return stored[..elements].iter().map(|&b| read(b)).collect();
        }
        let mut data = Vec::with_capacity(elements);
        let mut index = vec![0usize; self.shape.len()];
        let mut at = 0usize;
        for _ in 0..elements {
            data.push(read(stored[at]));
            for dim in (0..index.len()).rev() {
                index[dim] += 1;
                // A dimension of size 1 may have any stride: the step below takes it back, so overflow is
                // harmless.
                at = at.wrapping_add(self.strides[dim]);
                if index[dim] < self.shape[dim] {
                    break;
                }
                at = at.wrapping_sub(self.shape[dim].wrapping_mul(self.strides[dim]));
                index[dim] = 0;
            }
        }
        data
    }
}

impl<'a> Storage<'a> {
    fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            Storage::Bytes(bytes) => Cow::Borrowed(bytes),
            Storage::Latin1 { text, length } => {
                let mut bytes = vec![0; length];
                let (mut next, mut before) = (0, 0);
                for byte in text.bytes() {
                    // Characters from 0x80 on are 0xc2 or 0xc3 and a byte below 0xc0, which overwrites it. No
                    // branch depends on the values, which are as good as random.
                    bytes[next] = byte | u8::from(before == 0xc3) << 6;
                    next += usize::from(byte < 0xc0);
                    before = byte;
                }
                Cow::Owned(bytes)
            }
        }
    }
}

/// The number of elements of a tensor that starts at element `offset` of a storage of `length` bytes.
///
/// # Errors
/// An element lies outside the storage, or the tensor has more elements than the storage because it repeats
/// them.
fn check_layout(
    dtype: DType,
    shape: &[usize],
    strides: &[usize],
    offset: usize,
    length: usize,
) -> Result<usize, String> {
    let available = length / dtype.size();
    let outside = || {
        format!(
            "shape {shape:?} with strides {strides:?} and offset {offset} reaches outside its storage of {available} \
             elements; the file is truncated or damaged"
        )
    };
    if shape.len() != strides.len() || shape.len() > 16 {
        return Err(outside());
    }
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(outside)?;
    let last = shape
        .iter()
        .zip(strides)
        .try_fold(offset, |at, (&size, &stride)| at.checked_add(size.saturating_sub(1).checked_mul(stride)?));
    if elements > available || (elements > 0 && last.is_none_or(|last| last >= available)) {
        return Err(outside());
    }
    Ok(elements)
}

/// The strides of a row-major tensor, in elements.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1].saturating_mul(shape[dim + 1]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> Vec<u8> {
        (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect()
    }

    #[test]
    fn strides_and_offsets_are_honoured() {
        let bytes = storage();
        let tensor = RawTensor::new(DType::F32, vec![2, 3], vec![1, 2], 4, &bytes).unwrap();
        assert_eq!(tensor.to_f32().unwrap().data, [4.0, 6.0, 8.0, 5.0, 7.0, 9.0]);
        let broadcast = RawTensor::new(DType::F32, vec![2, 2], vec![0, 3], 0, &bytes).unwrap();
        assert_eq!(broadcast.to_f32().unwrap().data, [0.0, 3.0, 0.0, 3.0]);
        let scalar = RawTensor::new(DType::F32, vec![], vec![], 11, &bytes).unwrap();
        assert_eq!(scalar.to_f32().unwrap().data, [11.0]);
        let unit = RawTensor::new(DType::F32, vec![2, 1], vec![3, usize::MAX], 1, &bytes).unwrap();
        assert_eq!(unit.to_f32().unwrap().data, [1.0, 4.0]);
        let empty = RawTensor::new(DType::F32, vec![0, 5], vec![5, 1], 99, &bytes).unwrap();
        assert!(empty.to_f32().unwrap().data.is_empty());
    }

    #[test]
    fn other_float_types_convert() {
        let half: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let brain: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        let double: Vec<u8> = [1.5f64, -2.0].iter().flat_map(|&v| v.to_le_bytes()).collect();
        for (dtype, bytes) in [(DType::F16, half), (DType::Bf16, brain), (DType::F64, double)] {
            let tensor = RawTensor::contiguous(dtype, vec![2], &bytes).unwrap();
            assert_eq!(tensor.to_f32().unwrap().data, [1.5, -2.0]);
        }
        assert!(RawTensor::contiguous(DType::Other(8), vec![1], &[0; 8]).unwrap().to_f32().is_err());
    }

    #[test]
    fn every_byte_is_read_from_latin_1() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
        let tensor = RawTensor::latin1(DType::F16, vec![16, 8], vec![1, 16], &text).unwrap();
        assert_eq!(*tensor.storage.bytes(), bytes);
        let wanted =
            RawTensor::new(DType::F16, vec![16, 8], vec![1, 16], 0, &bytes).unwrap().to_f32().unwrap();
        let bits = |tensor: HostTensor| tensor.data.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(tensor.to_f32().unwrap()), bits(wanted));
        assert!(RawTensor::latin1(DType::F16, vec![1], vec![1], "\u{100}a").is_err());
        assert!(RawTensor::latin1(DType::F16, vec![2], vec![1], "\u{ff}aa").is_err());
    }

    #[test]
    fn what_lies_outside_the_storage_is_refused() {
        let bytes = storage();
        let bad = [
            (vec![3, 5], vec![5, 1], 0),
            (vec![2, 3], vec![6, 3], 1),
            (vec![2], vec![usize::MAX], 1),
            (vec![usize::MAX, 2], vec![0, 0], 0),
            (vec![1 << 40], vec![0], 0),
            (vec![2, 2], vec![1], 0),
            (vec![1], vec![1], 12),
        ];
        for (shape, strides, offset) in bad {
            assert!(RawTensor::new(DType::F32, shape.clone(), strides, offset, &bytes).is_err(), "{shape:?}");
        }
    }
}
