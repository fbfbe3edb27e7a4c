//! A check at start-up with a known product. A library that computes INT8 products incorrectly is rejected.

use swinq_numerics::Int8;

use super::{Lt, LtPlan, Output};
use crate::{CudaError, DeviceBuf, Plain, Stream};

/// The sizes differ, so that exchanging two operands gives a wrong result.
const M: usize = 48;
const N: usize = 64;
const K: usize = 96;

impl Lt {
    /// Multiplies small matrices with each proposed algorithm, for both result types, and compares the
    /// results with the CPU's.
    ///
    /// # Errors
    /// A product is wrong, cuBLASLt has no algorithm for it, or a call fails.
    pub fn verify(&self) -> Result<(), CudaError> {
        let device = &self.device;
        let stream = Stream::new(device)?;
        let (a, w) = operands();
        let alpha: Vec<f32> = (0..N).map(|c| [0.5, 1.0, 0.25, 8.0][c % 4]).collect();
        let sums = product(&a, &w);
        let codes: Vec<i8> = sums.iter().enumerate().map(|(i, sum)| code(*sum, alpha[i % N])).collect();
        let a = DeviceBuf::from_slice(device, &a)?;
        let w = DeviceBuf::from_slice(device, &w)?;
        let alpha = DeviceBuf::from_slice(device, &alpha)?;
        for plan in LtPlan::new(self, M, N, K, Output::S32)? {
            let d = DeviceBuf::zeroed(device, M * N * 4)?;
            plan.run(self, &stream, &a.all(), &w.all(), None, &d.all())?;
            compare(&plan, &stream, &d, &sums)?;
        }
        for plan in LtPlan::new(self, M, N, K, Output::S8)? {
            let d = DeviceBuf::zeroed(device, M * N)?;
            plan.run(self, &stream, &a.all(), &w.all(), Some(&alpha.all()), &d.all())?;
            compare(&plan, &stream, &d, &codes)?;
        }
        Ok(())
    }
}

/// A and W: small integers in patterns whose periods differ from the sizes.
fn operands() -> (Vec<i8>, Vec<i8>) {
    let a = (0..M * K).map(|i| (i * i % 17) as i8 - 8).collect();
    let w = (0..N * K).map(|i| (i * i * 3 % 13) as i8 - 6).collect();
    (a, w)
}

fn product(a: &[i8], w: &[i8]) -> Vec<i32> {
    let dot =
        |row: &[i8], column: &[i8]| row.iter().zip(column).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum();
    a.chunks(K).flat_map(|row| w.chunks(K).map(move |column| dot(row, column))).collect()
}

fn code(sum: i32, alpha: f32) -> i8 {
    Int8::clamp((sum as f32 * alpha).round_ties_even()) as i8
}

fn compare<T>(plan: &LtPlan, stream: &Stream, d: &DeviceBuf, expected: &[T]) -> Result<(), CudaError>
where
    T: Plain + PartialEq + std::fmt::Debug,
{
    let mut found = expected.to_vec();
    d.all().copy_to(stream, &mut found)?;
    let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
    wrong.map_or(Ok(()), |i| {
        let (row, column) = (i / N, i % N);
        let (found, expected) = (found[i], expected[i]);
        let what = format!("{plan:?}: {found:?} instead of {expected:?} in row {row}, column {column}");
        Err(CudaError::WrongProduct(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_product_tells_operands_and_roundings_apart() {
        let (a, w) = operands();
        let sums = product(&a, &w);
        assert_eq!(sums.len(), M * N);
        let distinct: std::collections::BTreeSet<i32> = sums.iter().copied().collect();
        assert!(distinct.len() > 20, "{distinct:?}");
        // Both signs have halves, which the rounding modes to even and away from zero round differently; some
        // values saturate.
        assert!(sums.iter().any(|s| s.rem_euclid(4) == 1) && sums.iter().any(|s| s.rem_euclid(4) == 3));
        assert!(sums.iter().any(|s| *s > 16) && sums.iter().any(|s| *s < -16));
    }
}
