//! LayerNorm, GELU and softmax on whole rows of f32, on the caller's thread. A float forward uses them to
//! produce the same bits as this crate's ops. Each call takes many rows; all instruction sets give the same
//! results.

use swinq_numerics::reference;
use swinq_numerics::sizes::check_len;

use crate::attention::softmax;
use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::layer_norm::{Affine, normalise};
use crate::pool::Parts;
use crate::rows::ColumnRange;

/// [`reference::layer_norm_row`] of each row of `x`, f32 `[rows, gamma.len()]`, into `out` of the same shape.
///
/// # Panics
/// If `gamma` is empty, if `gamma` and `beta` differ in length, if the length of `gamma` does not divide that
/// of `x`, or if `out` is not as long as `x`.
pub fn layer_norm(cpu: Cpu, x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
    let c = gamma.len();
    assert!(c > 0 && beta.len() == c, "layer_norm: gamma has {c} channels, beta {}", beta.len());
    assert!(x.len().is_multiple_of(c), "layer_norm: {c} channels do not divide {}", x.len());
    assert_eq!(out.len(), x.len(), "layer_norm: the output is not as long as the input");
    let parts = Parts::new(out);
    // SAFETY: rows are distinct, and each is written once.
    let out = |i| ColumnRange::F32(unsafe { parts.get(i * c, c) });
    // Only codes need a bound.
    let affine = Affine { gamma, beta, eps, largest: f32::INFINITY };
    normalise(cpu, affine, x.len() / c, |i| Some(&x[i * c..][..c]), out, &mut []);
}

/// [`reference::gelu`] of each value, in place.
pub fn gelu(cpu: Cpu, x: &mut [f32]) {
    dispatch(cpu, Gelu(x));
}

/// `fma(x, scale, y)` of each pair of values, into `out`.
///
/// # Panics
/// Unless all have the same length.
pub fn scale_add(cpu: Cpu, x: &[f32], scale: f32, y: &[f32], out: &mut [f32]) {
    assert_eq!(y.len(), x.len(), "scale_add: the operands differ in length");
    assert_eq!(out.len(), x.len(), "scale_add: the output is not as long as the operands");
    dispatch(cpu, ScaleAdd { x, scale, y, out });
}

/// Multiplies each value of `gradient` by `gelu'(x)`, equal to [`reference::gelu_derivative`] up to f32
/// rounding.
///
/// # Panics
/// Unless both have the same length.
pub fn gelu_gradient(cpu: Cpu, x: &[f32], gradient: &mut [f32]) {
    assert_eq!(gradient.len(), x.len(), "gelu_gradient: the gradient is not as long as the input");
    dispatch(cpu, GeluGradient { x, gradient });
}

/// [`reference::attention_row_exp`] of each row of `x`, f32 `[totals.len(), columns]`, in place; its sum goes
/// to `totals`. The softmax is each row times the reciprocal of its sum.
///
/// # Panics
/// Unless `x` holds `totals.len() * columns` values.
pub fn exp_minus_max(cpu: Cpu, columns: usize, x: &mut [f32], totals: &mut [f32]) {
    check_len("exp_minus_max", "input", x.len(), &[totals.len(), columns]);
    dispatch(cpu, ExpMinusMax { columns, x, totals });
}

/// [`reference::attention_row_u8`] of each row of `x`, f32 `[sums.len(), columns]`, into `codes` of the same
/// shape; its sum goes to `sums`.
///
/// # Panics
/// Unless `x` and `codes` hold `sums.len() * columns` values.
pub fn softmax_codes_u8(cpu: Cpu, columns: usize, x: &[f32], codes: &mut [u8], sums: &mut [u32]) {
    check_len("softmax_codes_u8", "input", x.len(), &[sums.len(), columns]);
    assert_eq!(codes.len(), x.len(), "softmax_codes_u8: the output is not as long as the input");
    dispatch(cpu, CodesU8 { columns, x, codes, sums });
}

struct Gelu<'a>(&'a mut [f32]);

impl Kernel for Gelu<'_> {
    fn scalar(self) {
        self.0.iter_mut().for_each(|x| *x = reference::gelu(*x));
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let mut registers = self.0.chunks_exact_mut(L::N);
        for x in &mut registers {
            lanes.store(x, lanes.gelu(lanes.load(x)));
        }
        let tail = registers.into_remainder();
        if !tail.is_empty() {
            lanes.store_part(tail, lanes.gelu(lanes.load_part(tail)));
        }
    }
}

struct ScaleAdd<'a> {
    x: &'a [f32],
    scale: f32,
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for ScaleAdd<'_> {
    fn scalar(self) {
        for ((out, x), &y) in self.out.iter_mut().zip(self.x).zip(self.y) {
            *out = reference::fma(*x, self.scale, y);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let scale = lanes.splat(self.scale);
        for ((out, x), y) in self.out.chunks_mut(L::N).zip(self.x.chunks(L::N)).zip(self.y.chunks(L::N)) {
            let (x, y) = if out.len() == L::N {
                (lanes.load(x), lanes.load(y))
            } else {
                (lanes.load_part(x), lanes.load_part(y))
            };
            lanes.store(out, lanes.fma(x, scale, y));
        }
    }
}

struct GeluGradient<'a> {
    x: &'a [f32],
    gradient: &'a mut [f32],
}

impl Kernel for GeluGradient<'_> {
    fn scalar(self) {
        for (gradient, &x) in self.gradient.iter_mut().zip(self.x) {
            *gradient *= reference::gelu_derivative(x);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for (gradient, x) in self.gradient.chunks_mut(L::N).zip(self.x.chunks(L::N)) {
            let (x, value) = if gradient.len() == L::N {
                (lanes.load(x), lanes.load(gradient))
            } else {
                (lanes.load_part(x), lanes.load_part(gradient))
            };
            lanes.store(gradient, lanes.mul(value, gelu_derivative(lanes, x)));
        }
    }
}

/// The normal distribution at `x` is `1 - h` for positive `x`, else `h`. It is computed without a comparison,
/// as `1/2 + 2 s (1/2 - h)`, where `s` is half the sign of `x`.
#[inline(always)]
fn gelu_derivative<L: Lanes>(lanes: L, x: L::F) -> L::F {
    let [half, minus_half] = [lanes.splat(0.5), lanes.splat(-0.5)];
    let high = lanes.max(lanes.mul(x, lanes.splat(1e30)), minus_half);
    let sign = lanes.sub(lanes.splat(0.0), lanes.max(lanes.sub(lanes.splat(0.0), high), minus_half));
    let offset = lanes.sub(half, lanes.gelu_tail(x));
    let distribution = lanes.fma(lanes.add(sign, sign), offset, half);
    let density = lanes.exp(lanes.mul(lanes.mul(x, x), minus_half));
    lanes.fma(x, lanes.mul(density, lanes.splat(reference::math::INVERSE_SQRT_TAU)), distribution)
}

struct ExpMinusMax<'a> {
    columns: usize,
    x: &'a mut [f32],
    totals: &'a mut [f32],
}

impl Kernel for ExpMinusMax<'_> {
    fn scalar(self) {
        for (i, total) in self.totals.iter_mut().enumerate() {
            *total = reference::attention_row_exp(&mut self.x[i * self.columns..][..self.columns]);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for (i, total) in self.totals.iter_mut().enumerate() {
            *total = softmax::exponentials(lanes, &mut self.x[i * self.columns..][..self.columns]);
        }
    }
}

struct CodesU8<'a> {
    columns: usize,
    x: &'a [f32],
    codes: &'a mut [u8],
    sums: &'a mut [u32],
}

impl Kernel for CodesU8<'_> {
    fn scalar(self) {
        for (i, sum) in self.sums.iter_mut().enumerate() {
            let row = i * self.columns..(i + 1) * self.columns;
            *sum = reference::attention_row_u8(&self.x[row.clone()], &mut self.codes[row]);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for (i, sum) in self.sums.iter_mut().enumerate() {
            let row = i * self.columns..(i + 1) * self.columns;
            *sum = softmax::unsigned_codes(lanes, &self.x[row.clone()], &mut self.codes[row]).cast_unsigned();
        }
    }
}
