//! [`NormalizeHeads`](super::NormalizeHeads) by vectors.

use super::{Out, Rows, Sizes, VALUES};
use crate::lanes::Lanes;
use crate::reference::SHORTEST;
use crate::types::{Quantizer, code_stride};

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
    for head in 0..sizes.heads {
        let factors = factors(lanes, sizes, head, x);
        for (part, factors) in factors.chunks_exact(TOGETHER).enumerate() {
            let rows = x.chunks_exact(wide).zip(out.chunks_exact_mut(wide));
            for ((x, out), &factor) in rows.zip(factors) {
                let (column, factor) = (sizes.column(part, head), lanes.splat(factor));
                let (x, out) = (&x[column..][..sizes.d], &mut out[column..][..sizes.d]);
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
    for (head, &low) in low.iter().enumerate() {
        let factors = factors(lanes, sizes, head, x);
        for (part, factors) in factors.chunks_exact(TOGETHER).enumerate() {
            let (column, recip) = (sizes.column(part, head), lanes.splat(sites[part].recip()));
            let rows = x.chunks_exact(wide).zip(out.chunks_exact_mut(stride));
            for ((x, out), &factor) in rows.zip(factors) {
                let (x, factors) = (&x[column..][..sizes.d], [lanes.splat(factor), recip]);
                store::<L, false>(lanes, x, factors, &mut out[column..][..sizes.d]);
                if let Some(position) = low {
                    let low = sizes.low_column(part, position);
                    store::<L, true>(lanes, x, factors, &mut out[low..][..sizes.d]);
                }
            }
        }
    }
    let factors = [lanes.splat(1.0), lanes.splat(sites[VALUES].recip())];
    for (x, out) in x.chunks_exact(wide).zip(out.chunks_exact_mut(stride)) {
        store::<L, false>(lanes, &x[values..], factors, &mut out[values..wide]);
    }
}

/// [`inverse_length`](crate::reference::inverse_length) of the queries of `head` in each row of `x`, then of its keys.
/// The last row stands in for rows after it.
#[inline(always)]
fn factors<L: Lanes>(lanes: L, sizes: Sizes, head: usize, x: &[f32]) -> [f32; 2 * TOGETHER] {
    let last = x.len() / sizes.wide() - 1;
    let mut sums = [[lanes.splat(0.0); 2]; 2 * TOGETHER];
    for (i, sums) in sums.iter_mut().enumerate() {
        let (part, row) = (i / TOGETHER, i % TOGETHER);
        let at = row.min(last) * sizes.wide() + sizes.column(part, head);
        *sums = squares(lanes, &x[at..][..sizes.d]);
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

/// Sixteen sums of squares of `x`, which are folded next.
#[inline(always)]
fn squares<L: Lanes>(lanes: L, x: &[f32]) -> [L::F; 2] {
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
    sums
}

/// Stores the codes, or the low codes, of `x` times both `factors`.
#[inline(always)]
fn store<L: Lanes, const LOW: bool>(lanes: L, x: &[f32], factors: [L::F; 2], out: &mut [u8]) {
    let (pairs, rest) = x.split_at(x.len() - x.len() % (2 * L::N));
    let (out, rest_out) = out.split_at_mut(pairs.len());
    for (x, out) in pairs.chunks_exact(2 * L::N).zip(out.chunks_exact_mut(2 * L::N)) {
        let (low, high) = (lanes.load(x), lanes.load(&x[L::N..]));
        let scaled = [scaled::<L, LOW>(lanes, low, factors), scaled::<L, LOW>(lanes, high, factors)];
        // SAFETY: `chunks_exact_mut` gives 2 N bytes.
        unsafe { lanes.write_codes2(out.as_mut_ptr(), scaled) };
    }
    for (x, out) in rest.chunks(L::N).zip(rest_out.chunks_mut(L::N)) {
        lanes.store_codes(out, scaled::<L, LOW>(lanes, load(lanes, x), factors));
    }
}

/// What is rounded to the code, or the low code, of `x` times both factors.
#[inline(always)]
fn scaled<L: Lanes, const LOW: bool>(lanes: L, x: L::F, [factor, recip]: [L::F; 2]) -> L::F {
    let scaled = lanes.mul(lanes.mul(x, factor), recip);
    if LOW { low_scaled(lanes, scaled) } else { scaled }
}

/// At most a register of values.
#[inline(always)]
fn load<L: Lanes>(lanes: L, x: &[f32]) -> L::F {
    if x.len() == L::N { lanes.load(x) } else { lanes.load_part(x) }
}

/// What [`low_code`](crate::reference::low_code) rounds, of values already multiplied by the reciprocal scale.
#[inline(always)]
pub(crate) fn low_scaled<L: Lanes>(lanes: L, scaled: L::F) -> L::F {
    let high = lanes.float(lanes.round(lanes.clamp(scaled)));
    let rest = lanes.mul(lanes.sub(scaled, high), lanes.splat(256.0));
    // `max` returns its second operand if either is a NaN.
    lanes.max(rest, lanes.splat(-127.0))
}
