//! [`QkNorm`](super::QkNorm) by vectors.

use swinq_numerics::reference::SHORTEST;
use swinq_numerics::{Quantizer, code_stride};

use super::{Out, Rows, Sizes, VALUES};
use crate::lanes::Lanes;
use crate::quantize::store_row;
use crate::rows::ToCodes;

/// Rows that are processed together. Their queries and keys of one head are as many vectors as
/// [`Lanes::folds`] folds.
const TOGETHER: usize = 8;

/// Normalises and stores all rows. `sizes` are those of the op.
#[inline(always)]
pub(super) fn rows<L: Lanes>(lanes: L, Rows { op, x, out }: Rows<'_>, sizes: Sizes) {
    let together = x.chunks(TOGETHER * sizes.wide());
    match out {
        Out::F32(out) => {
            for (x, out) in together.zip(out.chunks_mut(TOGETHER * sizes.wide())) {
                floats(lanes, sizes, x, out);
            }
        }
        Out::Codes(out, sites) => {
            let stride = code_stride(op.columns_out());
            for (x, out) in together.zip(out.chunks_mut(TOGETHER * stride)) {
                codes(lanes, (sizes, &op.low), x, sites, (out, stride));
            }
        }
    }
}

/// Stores at most [`TOGETHER`] rows as f32.
#[inline(always)]
fn floats<L: Lanes>(lanes: L, sizes: Sizes, x: &[f32], out: &mut [f32]) {
    let (wide, values) = (sizes.wide(), sizes.column(VALUES, 0));
    let count = x.len() / wide;
    for head in 0..sizes.heads {
        let factors = factors(lanes, sizes, head, count, x);
        for (part, factors) in factors.chunks_exact(TOGETHER).enumerate() {
            for (row, &factor) in factors[..count].iter().enumerate() {
                let (at, factor) = (row * wide + sizes.column(part, head), lanes.splat(factor));
                let (x, out) = (&x[at..][..sizes.d], &mut out[at..][..sizes.d]);
                for (x, out) in x.chunks(L::N).zip(out.chunks_mut(L::N)) {
                    lanes.store(out, lanes.mul(load(lanes, x), factor));
                }
            }
        }
    }
    for (x, out) in x.chunks_exact(wide).zip(out.chunks_exact_mut(wide)) {
        out[values..].copy_from_slice(&x[values..]);
    }
}

/// Stores at most [`TOGETHER`] rows as codes, `stride` apart.
#[inline(always)]
fn codes<L: Lanes>(
    lanes: L,
    (sizes, low): (Sizes, &[Option<usize>]),
    x: &[f32],
    sites: [Quantizer; 3],
    (out, stride): (&mut [u8], usize),
) {
    let (wide, values) = (sizes.wide(), sizes.column(VALUES, 0));
    let count = x.len() / wide;
    for (head, &low) in low.iter().enumerate() {
        let factors = factors(lanes, sizes, head, count, x);
        for (part, factors) in factors.chunks_exact(TOGETHER).enumerate() {
            let (column, recip) = (sizes.column(part, head), lanes.splat(sites[part].recip()));
            for (row, &factor) in factors[..count].iter().enumerate() {
                let (x, out) = (&x[row * wide..][..wide], &mut out[row * stride..][..stride]);
                let (codes, lo_codes) = out.split_at_mut(wide);
                let low = low.map(|position| &mut lo_codes[sizes.low_column(part, position)..][..sizes.d]);
                let (x, out) = (&x[column..][..sizes.d], &mut codes[column..][..sizes.d]);
                store(lanes, x, [lanes.splat(factor), recip], out, low);
            }
        }
    }
    for (x, out) in x.chunks_exact(wide).zip(out.chunks_exact_mut(stride)) {
        store_row(lanes, &x[values..], &mut out[values..wide], ToCodes(sites[VALUES]));
    }
}

/// [`inverse_length`](swinq_numerics::reference::inverse_length) of the queries of `head` in each of the
/// `count` rows of `x`, then of its keys. The last row stands in for rows after it.
#[inline(always)]
fn factors<L: Lanes>(lanes: L, sizes: Sizes, head: usize, count: usize, x: &[f32]) -> [f32; 2 * TOGETHER] {
    let (wide, d, last) = (sizes.wide(), sizes.d, count - 1);
    let mut sums = [lanes.splat(0.0); 2 * TOGETHER];
    for (part, sums) in sums.chunks_exact_mut(TOGETHER).enumerate() {
        let x = &x[sizes.column(part, head)..];
        assert!(x.len() >= last * wide + d);
        for (row, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a vector of a row up to `last`, in bounds by the assertion. Without checks the loop is
            // unrolled, and the sums stay in registers.
            let x = unsafe { x.get_unchecked(row.min(last) * wide..).get_unchecked(..d) };
            *sum = squares(lanes, x);
        }
    }
    let mut factors = lanes.folds(sums);
    let (shortest, one) = (lanes.splat(SHORTEST), lanes.splat(1.0));
    for factors in factors.chunks_exact_mut(L::N) {
        // `max` returns its second operand if either is a NaN.
        let length = lanes.max(shortest, lanes.sqrt(lanes.load(factors)));
        lanes.store(factors, lanes.div(one, length));
    }
    factors
}

/// The sixteen sums of squares of `x` of which [`inverse_length`](swinq_numerics::reference::inverse_length)
/// takes the fold; of fewer lanes, the two halves are added.
#[inline(always)]
fn squares<L: Lanes>(lanes: L, x: &[f32]) -> L::F {
    let mut sums = [lanes.splat(0.0); 2];
    let mut blocks = x.chunks_exact(16);
    for block in &mut blocks {
        for (x, sum) in block.chunks_exact(L::N).zip(&mut sums) {
            let x = lanes.load(x);
            *sum = lanes.fma(x, x, *sum);
        }
    }
    for (x, sum) in blocks.remainder().chunks(L::N).zip(&mut sums) {
        let x = lanes.load_part(x);
        *sum = lanes.fma(x, x, *sum);
    }
    if L::N == 16 { sums[0] } else { lanes.add(sums[0], sums[1]) }
}

/// Stores the codes, and the lo codes if there are any, of `x` times both factors.
#[inline(always)]
fn store<L: Lanes>(
    lanes: L,
    x: &[f32],
    [factor, recip]: [L::F; 2],
    out: &mut [u8],
    mut low: Option<&mut [u8]>,
) {
    let pairs = x.len() - x.len() % (2 * L::N);
    for at in (0..pairs).step_by(2 * L::N) {
        let span = at..at + 2 * L::N;
        let [a, b] = [lanes.load(&x[at..]), lanes.load(&x[at + L::N..])];
        let [a, b] = [lanes.mul(lanes.mul(a, factor), recip), lanes.mul(lanes.mul(b, factor), recip)];
        // SAFETY: the slice has `2 N` bytes.
        unsafe { lanes.write_codes2(out[span.clone()].as_mut_ptr(), [a, b]) };
        if let Some(low) = &mut low {
            let scaled = [lo_scaled(lanes, a), lo_scaled(lanes, b)];
            // SAFETY: the slice has `2 N` bytes.
            unsafe { lanes.write_codes2(low[span].as_mut_ptr(), scaled) };
        }
    }
    for at in (pairs..x.len()).step_by(L::N) {
        let span = at..x.len().min(at + L::N);
        let scaled = lanes.mul(lanes.mul(load(lanes, &x[span.clone()]), factor), recip);
        lanes.store_codes(&mut out[span.clone()], scaled);
        if let Some(low) = &mut low {
            lanes.store_codes(&mut low[span], lo_scaled(lanes, scaled));
        }
    }
}

/// At most a register of values.
#[inline(always)]
fn load<L: Lanes>(lanes: L, x: &[f32]) -> L::F {
    if x.len() == L::N { lanes.load(x) } else { lanes.load_part(x) }
}

/// The values that [`lo_code`](swinq_numerics::reference::lo_code) rounds, from values already multiplied by
/// the reciprocal scale.
#[inline(always)]
pub(crate) fn lo_scaled<L: Lanes>(lanes: L, scaled: L::F) -> L::F {
    let high = lanes.float(lanes.round(lanes.clamp(scaled)));
    let rest = lanes.mul(lanes.sub(scaled, high), lanes.splat(256.0));
    // `max` returns its second operand if either is a NaN.
    lanes.max(rest, lanes.splat(-127.0))
}
