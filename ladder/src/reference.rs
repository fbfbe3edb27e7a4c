//! The expected products. The CPU kernels compute them; plain loops in f64 and in integers verify some of
//! their rows.

use swinq_kernels::{Cpu, LinearF32, LinearI8, LinearOut, LinearSpec, Pool, Store};
use swinq_numerics::code_stride;

use crate::check::Check;
use crate::operands::Operands;
use crate::shape::Shape;

/// Multiply-accumulates spent on verifying rows.
const AGAIN: f64 = 1e8;

/// A product on the CPU kernels, with packed weights.
pub struct CpuProduct {
    linear: Linear,
    rows: usize,
}

enum Linear {
    Float(LinearF32, Vec<f32>),
    Int8(LinearI8, Vec<u8>),
}

fn spec(shape: Shape) -> LinearSpec<'static> {
    LinearSpec { n: shape.n, k: shape.k, bias: None, output: None, gelu: None, store: Store::F32 }
}

impl CpuProduct {
    /// The product in f32.
    pub fn float(cpu: Cpu, operands: &Operands) -> CpuProduct {
        let linear = LinearF32::new(cpu, spec(operands.shape), &operands.w);
        CpuProduct { linear: Linear::Float(linear, operands.a.clone()), rows: operands.shape.m }
    }

    /// The product in INT8. Its results are the accumulators as f32.
    pub fn int8(cpu: Cpu, operands: &Operands) -> CpuProduct {
        let Shape { m, n, k } = operands.shape;
        let linear = LinearI8::new(cpu, spec(operands.shape), &operands.w_codes, &vec![1.0; n]);
        let mut codes = vec![0; m * code_stride(k)];
        for (to, row) in codes.chunks_exact_mut(code_stride(k)).zip(operands.a_codes.chunks_exact(k)) {
            to.iter_mut().zip(row).for_each(|(to, &code)| *to = code.cast_unsigned() ^ 0x80);
        }
        CpuProduct { linear: Linear::Int8(linear, codes), rows: m }
    }

    /// Multiplies; `out` is `[m, n]`.
    pub fn run(&self, pool: &mut Pool, out: &mut [f32]) {
        match &self.linear {
            Linear::Float(linear, a) => linear.run(pool, self.rows, a, LinearOut::F32(out)),
            Linear::Int8(linear, a) => linear.run(pool, self.rows, a, LinearOut::F32(out)),
        }
    }
}

/// The expected products. Each is compared with exact sums, and the result of the comparison is kept.
pub struct Reference {
    /// The product of the f32 operands, computed by the f32 kernel.
    pub float: Vec<f32>,
    /// Comparison of its rows with sums in f64.
    pub float_check: Check,
    /// The accumulators of the INT8 operands as f32, computed by the INT8 kernel. They are exact, because
    /// random sums stay below 2^24.
    pub sums: Vec<f32>,
    /// Comparison of their rows with sums of integers.
    pub sums_check: Check,
}

impl Reference {
    /// Multiplies `operands` and verifies rows of the products.
    pub fn new(cpu: Cpu, pool: &mut Pool, operands: &Operands) -> Reference {
        let shape = operands.shape;
        let (mut float, mut sums) = (vec![f32::NAN; shape.m * shape.n], vec![f32::NAN; shape.m * shape.n]);
        CpuProduct::float(cpu, operands).run(pool, &mut float);
        CpuProduct::int8(cpu, operands).run(pool, &mut sums);
        let dot = |row: &[f32], w: &[f32]| -> f64 {
            row.iter().zip(w).map(|(&a, &w)| f64::from(a) * f64::from(w)).sum()
        };
        let dot_codes = |row: &[i8], w: &[i8]| -> f64 {
            f64::from(row.iter().zip(w).map(|(&a, &w)| i32::from(a) * i32::from(w)).sum::<i32>())
        };
        let float_check =
            check_rows(shape, &float, (&operands.a, &operands.w), float_tolerance(shape.k), dot);
        let sums_check = check_rows(shape, &sums, (&operands.a_codes, &operands.w_codes), 0.0, dot_codes);
        Reference { float, float_check, sums, sums_check }
    }
}

/// Limit on the f32 rounding error of a sum of `k` products of random values in [-1, 1), for every order of
/// summation: four times the largest error of 10^5 sums in the order of the index, for `k` from 128 to 1024.
pub fn float_tolerance(k: usize) -> f64 {
    4.0 * k as f64 * 2.0_f64.powi(-24)
}

/// The rows to verify: the first, the last, and others evenly spaced.
fn rows_again(shape: Shape) -> Vec<usize> {
    let affordable = (AGAIN / (shape.n as f64 * shape.k as f64)) as usize;
    let count = affordable.max(2).min(shape.m);
    (0..count).map(|i| if count == 1 { 0 } else { i * (shape.m - 1) / (count - 1) }).collect()
}

fn check_rows<T>(
    shape: Shape,
    found: &[f32],
    (a, w): (&[T], &[T]),
    tolerance: f64,
    dot: impl Fn(&[T], &[T]) -> f64,
) -> Check {
    let Shape { n, k, .. } = shape;
    let check = |row: usize| {
        let (found, a) = (&found[row * n..][..n], &a[row * k..][..k]);
        Check::new(found, w.chunks_exact(k).map(|w| dot(a, w)), tolerance).beginning_at(row * n)
    };
    let checks = rows_again(shape).into_iter().map(check);
    checks.reduce(Check::and).expect("the first row is always computed again")
}

/// The product as three loops.
pub fn scalar_product(operands: &Operands, out: &mut [f32]) {
    let Shape { n, k, .. } = operands.shape;
    for (row, out) in operands.a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (w, out) in operands.w.chunks_exact(k).zip(out) {
            let mut sum = 0.0;
            for (a, w) in row.iter().zip(w) {
                sum += a * w;
            }
            *out = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_odd_sizes_are_right() {
        let cpu = Cpu::detect().unwrap();
        let mut pool = Pool::new(2);
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (33, 17, 65), (70, 130, 301)] {
            let operands = Operands::new(Shape { m, n, k });
            let reference = Reference::new(cpu, &mut pool, &operands);
            assert!(reference.float_check.passed(), "{m} {n} {k}: {:?}", reference.float_check);
            assert!(reference.sums_check.passed(), "{m} {n} {k}: {:?}", reference.sums_check);
            let mut scalar = vec![0.0; m * n];
            scalar_product(&operands, &mut scalar);
            assert!(Check::against(&scalar, &reference.float, float_tolerance(k)).passed(), "{m} {n} {k}");
        }
    }

    #[test]
    fn a_planted_error_in_a_row_is_found() {
        let shape = Shape { m: 4, n: 3, k: 2 };
        let operands = Operands::new(shape);
        let mut out = vec![0.0; 12];
        scalar_product(&operands, &mut out);
        let dot = |row: &[f32], w: &[f32]| row.iter().zip(w).map(|(a, w)| f64::from(a * w)).sum();
        let check = |out: &[f32]| check_rows(shape, out, (&operands.a, &operands.w), 1e-6, dot);
        assert!(check(&out).passed());
        out[10] += 1e-3;
        let check = check(&out);
        assert_eq!((check.wrong, check.first.unwrap().index), (1, 10));
        assert_eq!(rows_again(Shape { m: 5, n: 1 << 20, k: 1 << 20 }), [0, 4]);
        assert_eq!(rows_again(Shape { m: 1, n: 8, k: 8 }), [0]);
    }
}
