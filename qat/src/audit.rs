//! Finds the first tensor of a forward pass that is not finite.

use candle_core::Tensor;
use swinq_float::FloatError;

/// Checks tensors in forward order and keeps the first that holds a NaN or an infinity.
#[derive(Debug, Default)]
pub struct Audit {
    /// Description of that tensor: its name, the value and its place.
    pub first: Option<String>,
}

impl Audit {
    /// Checks the tensor `name`.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn check(&mut self, name: &str, x: &Tensor) -> Result<(), FloatError> {
        if self.first.is_none()
            && let Some((index, value)) = not_finite(x)?
        {
            self.first = Some(format!("{name} has {value} at flat index {index} of {:?}", x.dims()));
        }
        Ok(())
    }
}

/// Whether one of `tensors` may hold a value that is not finite: whether one of their sums is not finite. The
/// tensors are on one device, and the check needs one transfer.
pub fn any_not_finite<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> candle_core::Result<bool> {
    let sums: Vec<Tensor> = tensors.into_iter().map(Tensor::sum_all).collect::<candle_core::Result<_>>()?;
    if sums.is_empty() {
        return Ok(false);
    }
    Ok(Tensor::stack(&sums, 0)?.to_vec1::<f32>()?.iter().any(|sum| !sum.is_finite()))
}

/// The flat index and the value of the first value that is not finite.
pub fn not_finite(x: &Tensor) -> candle_core::Result<Option<(usize, f32)>> {
    // Zero times a finite value is zero, so one sum tells whether the values must be searched.
    if (x * 0.0)?.sum_all()?.to_scalar::<f32>()?.is_finite() {
        return Ok(None);
    }
    let values: Vec<f32> = x.flatten_all()?.to_vec1()?;
    Ok(values.into_iter().enumerate().find(|(_, value)| !value.is_finite()))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_first_bad_value_is_found() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        assert_eq!(not_finite(&tensor(&[1.0, -3e38, 2.0])).unwrap(), None);
        let (index, value) = not_finite(&tensor(&[1.0, 2.0, f32::NAN, f32::INFINITY])).unwrap().unwrap();
        assert!(index == 2 && value.is_nan());
        let mut audit = Audit::default();
        audit.check("a", &tensor(&[1.0])).unwrap();
        audit.check("b", &tensor(&[0.0, f32::NEG_INFINITY])).unwrap();
        audit.check("c", &tensor(&[f32::NAN])).unwrap();
        assert_eq!(audit.first.unwrap(), "b has -inf at flat index 1 of [2]");
    }
}
