//! Arrays of numpy inside a pickle, as tensors.
//!
//! `ndarray.__reduce_ex__` writes an array as an empty one whose state is set afterwards (protocols 2 to 4,
//! and arrays that are not contiguous), or as a call of `_frombuffer` (protocol 5).

use super::object::{ArrayRef, Id, Object, Pickle};
use super::rebuild::sizes;
use crate::checkpoint::raw::{DType, RawTensor, contiguous_strides};
use crate::error::damaged;

impl<'a> Pickle<'a> {
    /// The array as a tensor whose values lie in the pickle.
    ///
    /// # Errors
    /// A type other than little-endian numbers, or a description that contradicts the values.
    pub(crate) fn array(&self, array: &ArrayRef) -> Result<RawTensor<'a>, String> {
        match *array {
            ArrayRef::Empty => Err(broken("it has no values")),
            ArrayRef::State(state) => match self.items(state) {
                &[version, shape, dtype, fortran, values] if *self.get(version) == Object::Int(1) => {
                    let dtype = self.dtype(dtype)?;
                    let Object::Bool(fortran) = *self.get(fortran) else { return Err(unknown_state()) };
                    let shape = self.sizes(shape)?;
                    let strides = if fortran { column_strides(&shape) } else { contiguous_strides(&shape) };
                    self.tensor(dtype, shape, strides, values)
                }
                _ => Err(unknown_state()),
            },
            ArrayRef::Buffer(arguments) => match *self.items(arguments) {
                [values, dtype, shape, order] => self.buffer(values, dtype, shape, (order, None)),
                [values, dtype, shape, order, axes] => self.buffer(values, dtype, shape, (order, Some(axes))),
                _ => Err(unknown_state()),
            },
        }
    }

    /// The array `_frombuffer(values, dtype, shape, *order)`: an order is `C`, `F`, or `K` with the axes that
    /// the array of order `C` is transposed to.
    fn buffer(
        &self,
        values: Id,
        dtype: Id,
        shape: Id,
        order: (Id, Option<Id>),
    ) -> Result<RawTensor<'a>, String> {
        let (dtype, shape) = (self.dtype(dtype)?, self.sizes(shape)?);
        let rows = contiguous_strides(&shape);
        match (self.get(order.0).text(), order.1) {
            (Some("C"), _) => self.tensor(dtype, shape, rows, values),
            (Some("F"), _) => self.tensor(dtype, shape.clone(), column_strides(&shape), values),
            (Some("K"), Some(axes)) => {
                let axes = self.sizes(axes)?;
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..shape.len()) {
                    return Err(broken("the order of its axes is impossible"));
                }
                let moved = |sizes: &[usize]| axes.iter().map(|&axis| sizes[axis]).collect();
                self.tensor(dtype, moved(&shape), moved(&rows), values)
            }
            _ => Err(unknown_state()),
        }
    }

    /// The tensor of `values`, which must be as many as the shape says.
    fn tensor(
        &self,
        dtype: DType,
        shape: Vec<usize>,
        strides: Vec<usize>,
        values: Id,
    ) -> Result<RawTensor<'a>, String> {
        let wanted = shape.iter().try_fold(dtype.size(), |all, &size| all.checked_mul(size));
        let fits = |found: usize| match wanted {
            Some(wanted) if wanted == found => Ok(()),
            _ => Err(broken(&format!(
                "it has {found} bytes of values, which is wrong for its shape {shape:?}"
            ))),
        };
        match *self.get(values) {
            Object::Bytes { bytes, .. } => {
                fits(bytes.len())?;
                RawTensor::new(dtype, shape, strides, 0, bytes)
            }
            Object::Latin1(text) => {
                fits(text.chars().count())?;
                RawTensor::latin1(dtype, shape, strides, text)
            }
            _ => Err(format!("is an array whose values are {}, not bytes", self.kind(values))),
        }
    }

    fn dtype(&self, id: Id) -> Result<DType, String> {
        let bad = || broken("its type is not one of numpy");
        let Object::Dtype { code, state: Some(state) } = *self.get(id) else { return Err(bad()) };
        let code = self.get(code).text().ok_or_else(bad)?;
        let &[version, order, subarray, names, fields, ..] = self.items(state) else { return Err(bad()) };
        if !matches!(*self.get(version), Object::Int(3 | 4)) {
            return Err(broken("its type has an unknown version"));
        }
        if [subarray, names, fields].iter().any(|&id| *self.get(id) != Object::None) {
            return Err("is an array of structures, not of numbers".to_owned());
        }
        let dtype = number_type(code)?;
        match (self.get(order).text(), dtype.size()) {
            (Some("<"), _) | (Some("|"), 1) => Ok(dtype),
            (Some(">"), _) => Err(format!("is big-endian; save array.astype('<{code}') instead")),
            _ => Err(broken("its type has an unknown byte order")),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>, String> {
        sizes(&self.objects, id).map_err(|_| broken("its shape is not a tuple of up to 16 whole numbers"))
    }

    /// The items of a tuple; none of another object.
    fn items(&self, id: Id) -> &[Id] {
        match self.get(id) {
            Object::Tuple(items) => items,
            _ => &[],
        }
    }
}

/// The strides of an array in Fortran's order, whose first index changes fastest.
fn column_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for dim in 1..shape.len() {
        strides[dim] = strides[dim - 1].saturating_mul(shape[dim - 1]);
    }
    strides
}

fn broken(cause: &str) -> String {
    damaged("array of numpy", cause)
}

fn unknown_state() -> String {
    broken("it is not stored as numpy stores arrays")
}

/// The type with numpy's `code`, such as `f4`.
fn number_type(code: &str) -> Result<DType, String> {
    Ok(match code {
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "b1" | "i1" | "u1" => DType::Other(1),
        "i2" | "u2" => DType::Other(2),
        "i4" | "u4" => DType::Other(4),
        "i8" | "u8" | "c8" => DType::Other(8),
        "c16" => DType::Other(16),
        "O" | "O8" => return Err("is an array of Python objects, not of numbers".to_owned()),
        _ => {
            let code: String = code.chars().take(16).collect();
            return Err(format!("is an array of numpy's type {code}, not of numbers"));
        }
    })
}
