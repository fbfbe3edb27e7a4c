//! Faster epilogues for full panels, without the site `.output` and without values that could be a NaN, as in
//! a quantized Swin. The number of rows of a tile is a constant, because loops over any number of rows would
//! check their bounds. Two rows of a tile become codes at once, because narrowing instructions run on the
//! ports of `vpdpbusd`, where each of them delays the next tile.

use std::arch::x86_64::*;

use swinq_numerics::Gelu;

use super::super::dest::{DROPPED, Dest};
use super::super::epilogue::Epilogue;
use super::super::finish::{Accumulator, Activation, Erf, Identity, Quadratic};
use super::super::spec::Store;
use super::COLUMNS;
use crate::lanes::Avx512;
use crate::pool::Parts;

/// Stores `panel` if one of these epilogues applies; otherwise stores nothing and returns `false`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn finish<A: Accumulator, const R: usize>(
    epilogue: &Epilogue,
    tile: &[[A; COLUMNS]; R],
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) -> bool {
    let first = panel * COLUMNS;
    if first + COLUMNS > epilogue.n || epilogue.output.is_some() {
        return false;
    }
    match (dest, &epilogue.store, epilogue.gelu) {
        (Dest::Codes(out), Store::Codes(_), None) if epilogue.skips_range_checks => {
            codes::<A, Identity, R>(epilogue, first, tile, starts, out);
        }
        (Dest::Codes(out), Store::Codes(_), Some(Gelu::Erf)) if epilogue.skips_range_checks => {
            codes::<A, Erf, R>(epilogue, first, tile, starts, out);
        }
        (Dest::Codes(out), Store::Codes(_), Some(Gelu::Quadratic)) if epilogue.skips_range_checks => {
            codes::<A, Quadratic, R>(epilogue, first, tile, starts, out);
        }
        (Dest::F32(out), Store::F32, None) => f32(epilogue, first, tile, starts, out),
        (Dest::Residual(residual, _), Store::Residual { branch: None, shortcut: None }, None) => {
            add_residual(epilogue, first, tile, starts, residual);
        }
        _ => return false,
    }
    true
}

/// The parameters of a panel's columns, in registers.
struct Columns {
    factor: [__m512; 2],
    bias: [__m512; 2],
}

impl Columns {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn new(epilogue: &Epilogue, first: usize) -> Columns {
        Columns {
            factor: both(panel_values(&epilogue.factor, first)),
            bias: both(panel_values(&epilogue.bias, first)),
        }
    }

    /// The values of a row of accumulators.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn values<A: Accumulator>(&self, row: &[A; COLUMNS]) -> [__m512; 2] {
        // SAFETY: this function has the features.
        let lanes = unsafe { Avx512::assume() };
        let [low, high] = [A::load(lanes, row), A::load(lanes, &row[16..])];
        [
            _mm512_fmadd_ps(low, self.factor[0], self.bias[0]),
            _mm512_fmadd_ps(high, self.factor[1], self.bias[1]),
        ]
    }

    /// The codes of two rows, as bytes `code + 128`, one row after the other, for the given reciprocal scales
    /// and zero points.
    ///
    /// Packs as
    /// [`Lanes::write_pair_of_codes_of_numbers`](crate::lanes::Lanes::write_pair_of_codes_of_numbers) does,
    /// but calling it takes linears 2 to 10 % longer.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn pair<A: Accumulator, F: Activation>(
        &self,
        rows: [&[A; COLUMNS]; 2],
        recip: [__m512; 2],
        zero_point: [__m512; 2],
    ) -> __m512i {
        // A closure would not be inlined into `map`, which lacks the target features.
        // SAFETY: this function has the features.
        let lanes = unsafe { Avx512::assume() };
        let mut words = [_mm512_setzero_si512(); 2];
        for (words, row) in words.iter_mut().zip(rows) {
            let [low, high] = self.values(row);
            let [low, high] = [F::of(lanes, low), F::of(lanes, high)];
            let low = _mm512_fmadd_ps(low, recip[0], zero_point[0]);
            let high = _mm512_fmadd_ps(high, recip[1], zero_point[1]);
            *words = _mm512_packs_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
        }
        let [upper, lower] = words;
        // Each 128-bit lane holds a dword of four codes from each half of each row. The permutation puts one
        // row after the other.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(upper, lower));
        _mm512_xor_si512(bytes, _mm512_set1_epi8(-128))
    }
}

/// The values of the columns from `first` on.
#[inline(always)]
fn panel_values(values: &[f32], first: usize) -> &[f32; COLUMNS] {
    values.get(first..).and_then(<[f32]>::first_chunk).expect("padded to full panels")
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn both(values: &[f32; COLUMNS]) -> [__m512; 2] {
    // SAFETY: 32 values.
    unsafe { [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))] }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn f32<A: Accumulator, const R: usize>(
    epilogue: &Epilogue,
    first: usize,
    tile: &[[A; COLUMNS]; R],
    starts: &[usize],
    out: &Parts<'_, f32>,
) {
    let columns = Columns::new(epilogue, first);
    for (row, &start) in tile.iter().zip(starts) {
        let [low, high] = columns.values(row);
        // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place.
        unsafe {
            let out = out.get(start + first, COLUMNS).as_mut_ptr();
            _mm512_storeu_ps(out, low);
            _mm512_storeu_ps(out.add(16), high);
        }
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_residual<A: Accumulator, const R: usize>(
    epilogue: &Epilogue,
    first: usize,
    tile: &[[A; COLUMNS]; R],
    starts: &[usize],
    residual: &Parts<'_, f32>,
) {
    let columns = Columns::new(epilogue, first);
    for (row, &start) in tile.iter().zip(starts) {
        if start == DROPPED {
            continue;
        }
        let [low, high] = columns.values(row);
        // SAFETY: as in `f32`.
        unsafe {
            let place = residual.get(start + first, COLUMNS).as_mut_ptr();
            _mm512_storeu_ps(place, _mm512_add_ps(_mm512_loadu_ps(place), low));
            let place = place.add(16);
            _mm512_storeu_ps(place, _mm512_add_ps(_mm512_loadu_ps(place), high));
        }
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn codes<A: Accumulator, F: Activation, const R: usize>(
    epilogue: &Epilogue,
    first: usize,
    tile: &[[A; COLUMNS]; R],
    starts: &[usize],
    out: &Parts<'_, u8>,
) {
    let columns = Columns::new(epilogue, first);
    let to = &epilogue.quantizers;
    let (recip, zero_point) =
        (both(panel_values(&to.recips, first)), both(panel_values(&to.zero_points, first)));
    for (pair, starts) in tile.chunks(2).zip(starts.chunks(2)) {
        // With an odd number of rows, the last row is its own partner.
        let rows = [&pair[0], &pair[starts.len() - 1]];
        store(columns.pair::<A, F>(rows, recip, zero_point), starts, first, out);
    }
}

/// Writes one row of 32 bytes at each of `starts`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn store(bytes: __m512i, starts: &[usize], first: usize, out: &Parts<'_, u8>) {
    let halves = [_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64::<1>(bytes)];
    for (&start, half) in starts.iter().zip(halves) {
        // SAFETY: as in `f32`; 32 bytes.
        unsafe { _mm256_storeu_si256(out.get(start + first, COLUMNS).as_mut_ptr().cast(), half) };
    }
}
