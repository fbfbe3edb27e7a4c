//! Codes of GELU from one cubic polynomial per interval, where they provably equal the reference's codes.
//!
//! The initial accumulators have an offset that makes the final bits a valid f32: the bits of an f32 in
//! [2^23, 2^24) are its integer part plus a constant. One multiply-add turns this f32 into GELU's argument. A
//! cubic ([`fit`]) turns the argument into an f32 whose bits 16 to 23 are the code. Its lower bits show
//! whether the code is certain. An uncertain code is rare; it is computed again, as the reference computes
//! it.

mod fit;

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::epilogue::Epilogue;
use super::super::spec::Store;
use super::full_panels::panel_values;
use super::{COLUMNS, ROWS, Tile};
use crate::pool::Parts;
use crate::reference::{self, math::ROUNDER};
use crate::types::code_stride;
use fit::{Fit, INTERVAL_ROUNDER, Intervals};

/// Adding these bits to an accumulator of magnitude below [`FLOAT_REACH`] gives the bits of an f32, whose
/// value is the sum of [`FLOAT`] and the accumulator.
const FLOAT_BITS: i32 = 0x4b40_0000;
const FLOAT: f64 = 1.5 * ROUNDER as f64;
const FLOAT_REACH: i64 = 1 << 22;

/// The most offsets to try for a column. One offset in hundreds or thousands is close enough, depending on
/// the factor.
const TRIES: u64 = 1 << 14;

/// The error to aim for in an argument before it is rounded: about half the last place of an f32 in [2, 4).
const INPUT_ERROR: f64 = 1e-7;

/// The largest error accepted: about half the last place of a bias in [8, 16).
const GREATEST_ERROR: f64 = 5e-7;

/// How a linear computes codes of GELU.
#[derive(Debug)]
pub(in super::super) struct Plan {
    fit: Fit,
    /// The offset of the initial accumulator of each column of full panels, which makes the final accumulator
    /// the bits of an f32. Empty if some column has no suitable offset; accumulators are then converted to
    /// f32.
    offset: Vec<i32>,
    /// For each column: the accumulator as f32 times the column's factor, plus this bias, is GELU's argument
    /// minus the centre of the cubics.
    bias: Vec<f32>,
}

impl Plan {
    /// The plan for `epilogue`; `None` if cubics cannot give its codes. `reach` bounds the magnitude of each
    /// column's accumulators.
    pub(in super::super) fn new(epilogue: &Epilogue, reach: impl Fn(usize) -> i64) -> Option<Plan> {
        let Store::Codes(columns) = &epilogue.store else { return None };
        let recip = *columns.recips().first()?;
        let uniform = columns.recips()[..epilogue.n].iter().all(|r| *r == recip);
        if !epilogue.gelu || !epilogue.skips_range_checks || !uniform || !columns.is_symmetric() {
            return None;
        }
        let intervals = Intervals::new(recip)?;
        let centre = intervals.centre;
        // Only full panels: the general epilogue stores the columns of a partial last panel.
        let columns = 0..epilogue.n / COLUMNS * COLUMNS;
        let float = |c| float_column(epilogue.factor[c], epilogue.bias[c], centre, reach(c));
        let integer = |c: usize| Column::new(f64::from(epilogue.bias[c]) - f64::from(centre), 0);
        let floats: Option<Vec<Column>> = columns.clone().map(float).collect();
        let columns = floats.unwrap_or_else(|| columns.map(integer).collect());
        let error = columns.iter().map(|column| column.error).fold(INPUT_ERROR, f64::max);
        // `f64::max` ignores a NaN, so every error is compared as well: the comparison is false for a NaN.
        let fit =
            intervals.fit(error).filter(|_| columns.iter().all(|column| column.error <= GREATEST_ERROR))?;
        let offset = columns.iter().map(|column| column.offset).filter(|offset| *offset != 0).collect();
        Some(Plan { fit, offset, bias: columns.iter().map(|column| column.bias).collect() })
    }

    /// The offsets of the initial accumulators, from the first column on.
    pub(in super::super) fn offset(&self) -> &[i32] {
        &self.offset
    }
}

/// How an accumulator becomes GELU's argument.
#[derive(Debug)]
struct Column {
    /// Added to the initial accumulator; 0 if accumulators are converted to f32.
    offset: i32,
    bias: f32,
    /// The rounding error of `bias`.
    error: f64,
}

impl Column {
    fn new(bias: f64, offset: i32) -> Column {
        Column { offset, bias: bias as f32, error: (f64::from(bias as f32) - bias).abs() }
    }
}

/// A column whose final accumulators are the bits of an f32; without the offset their magnitude is at most
/// `reach`. The bias then has the size of `2^23 factor`, and rounding it to f32 could make the argument
/// inexact. The function therefore searches for an offset whose bias is so close to an f32 that the argument
/// is about as exact as with a converted accumulator. `None` if it finds no such offset.
fn float_column(factor: f32, bias: f32, centre: f32, reach: i64) -> Option<Column> {
    // The offset may be shifted by up to this much in either direction.
    let room = u64::try_from(FLOAT_REACH - 1 - reach).unwrap_or(0);
    if room < TRIES {
        return None;
    }
    let bias = f64::from(bias) - f64::from(centre);
    let column = |i: u64| {
        // Shifts are pseudorandom over the whole range: neighbouring or evenly spaced shifts can all have
        // nearly the same error.
        let shift = (scatter(i) % (2 * room)) as i64 - room as i64;
        Column::new(bias - (FLOAT + shift as f64) * f64::from(factor), FLOAT_BITS + shift as i32)
    };
    let mut best = column(0);
    for column in (1..TRIES).map(column) {
        if best.error <= INPUT_ERROR {
            break;
        }
        if column.error < best.error {
            best = column;
        }
    }
    (best.error <= GREATEST_ERROR).then_some(best)
}

/// Pseudorandom numbers (the finalizer of SplitMix64; Steele, Lea and Flood, 2014).
fn scatter(i: u64) -> u64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The constants of the evaluation, in registers.
struct Registers {
    factor: [__m512; 2],
    bias: [__m512; 2],
    table: [[__m512; 2]; 4],
    limit: __m512,
    reach: __m512,
    per_unit: __m512,
    certain: __m512i,
    fourths: [__mmask64; 3],
}

impl Registers {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn new(factor: &[f32; COLUMNS], bias: &[f32; COLUMNS], fit: &Fit) -> Registers {
        // SAFETY: a row is two registers.
        let row =
            |row: &[f32; 32]| unsafe { [_mm512_loadu_ps(row.as_ptr()), _mm512_loadu_ps(row[16..].as_ptr())] };
        let [c0, c1, c2, c3] = &fit.table.0;
        Registers {
            factor: row(factor),
            bias: row(bias),
            table: [row(c0), row(c1), row(c2), row(c3)],
            limit: _mm512_set1_ps(fit.limit),
            reach: _mm512_set1_ps(fit.reach),
            per_unit: _mm512_set1_ps(fit.per_unit),
            certain: _mm512_set1_epi32(fit.certain),
            fourths: fourths(),
        }
    }

    /// The `w` of a [`Fit`] for 16 accumulators in half `half` of the columns. Bits 16 to 23 of each lane are
    /// the code.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn w<const FAR: bool>(&self, acc: __m512, half: usize) -> __m512i {
        let z = _mm512_fmadd_ps(acc, self.factor[half], self.bias[half]);
        // The smaller magnitude with the sign of the first operand: a clamp to `-limit..=limit`.
        let z = _mm512_range_ps::<0b0010>(z, self.limit);
        let near = if FAR { _mm512_range_ps::<0b0010>(z, self.reach) } else { z };
        let interval = _mm512_fmadd_ps(near, self.per_unit, _mm512_set1_ps(INTERVAL_ROUNDER));
        let interval = _mm512_castps_si512(interval);
        let [c0, c1, c2, c3] = self.table.map(|[low, high]| _mm512_permutex2var_ps(low, interval, high));
        _mm512_castps_si512(_mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_fmadd_ps(c3, z, c2), z, c1), z, c0))
    }

    /// The lanes whose code is certain.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn certain(&self, w: __m512i) -> __mmask16 {
        _mm512_test_epi32_mask(w, self.certain)
    }

    /// The codes of two rows, one row after the other, from the `w` of their four half rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn bytes(&self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        // The shuffles take byte 2 of the four dwords in each 128-bit lane; dword i of the lane keeps the
        // bytes of operand i. The permutation then puts the dwords of each operand next to each other.
        let column = _mm512_set1_epi32(0x0e0a_0602);
        let [second, third, last] = self.fourths;
        let bytes = _mm512_shuffle_epi8(a, column);
        let bytes = _mm512_mask_shuffle_epi8(bytes, second, b, column);
        let bytes = _mm512_mask_shuffle_epi8(bytes, third, c, column);
        let bytes = _mm512_mask_shuffle_epi8(bytes, last, d, column);
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_epi32(order, bytes)
    }
}

/// The bits of the codes of a tile that are certain: one mask for each half row.
#[repr(C, align(64))]
struct Certain([__mmask16; 32]);

/// Stores the codes of a tile at once, and recomputes its uncertain codes only after the product of the next
/// tile. By then the processor has resolved the branch on whether there are any. Right after the tile, a
/// mispredicted branch would discard work on the next tile that has already begun.
pub(super) struct Late<'a> {
    plan: &'a Plan,
    epilogue: &'a Epilogue,
    out: &'a Parts<'a, u8>,
    tiles: [Tile<i32>; 2],
    /// Index of the tile that the next product fills.
    turn: usize,
    certain: Certain,
    /// The starts of the last tile's rows in the destination, and its first column.
    last: (&'a [usize], usize),
}

impl<'a> Late<'a> {
    pub(super) fn new(plan: &'a Plan, epilogue: &'a Epilogue, out: &'a Parts<'a, u8>) -> Late<'a> {
        let tiles = [const { Tile([[0; COLUMNS]; ROWS]) }; 2];
        Late { plan, epilogue, out, tiles, turn: 0, certain: Certain([!0; 32]), last: (&[], 0) }
    }

    /// The tile that the next product fills.
    pub(super) fn tile(&mut self) -> &mut Tile<i32> {
        &mut self.tiles[self.turn]
    }

    /// Whether a panel is full. The accumulators of full panels have the plan's offsets.
    pub(super) fn suits(&self, panel: usize) -> bool {
        (panel + 1) * COLUMNS <= self.epilogue.n
    }

    /// Stores the codes of the product in [`Late::tile`], which must be of a full panel.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn finish(&mut self, starts: &'a [usize], panel: usize) {
        self.settle();
        self.last = (starts, panel * COLUMNS);
        match (self.plan.fit.is_far(), self.plan.offset.is_empty()) {
            (false, false) => self.codes::<false, true>(),
            (false, true) => self.codes::<false, false>(),
            (true, false) => self.codes::<true, true>(),
            (true, true) => self.codes::<true, false>(),
        }
        self.turn ^= 1;
    }

    /// Recomputes and stores the uncertain codes of the last tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn settle(&mut self) {
        // SAFETY: 64 bytes.
        let certain = unsafe { _mm512_loadu_si512(self.certain.0.as_ptr().cast()) };
        let doubtful = _mm512_cmpneq_epi16_mask(certain, _mm512_set1_epi16(-1));
        if doubtful != 0 {
            self.mend(doubtful);
        }
        self.certain = Certain([!0; 32]);
    }

    /// Stores the codes that the cubics give for the tile that was just multiplied.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn codes<const FAR: bool, const FLOATS: bool>(&mut self) {
        let (plan, epilogue, (starts, first)) = (self.plan, self.epilogue, self.last);
        let Some(&start) = starts.first() else { return };
        let registers =
            Registers::new(panel_values(&epilogue.factor, first), panel_values(&plan.bias, first), &plan.fit);
        let (rows, stride) = (starts.len(), code_stride(epilogue.n));
        // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place; rows of codes
        // are `stride` bytes apart.
        let mut to = unsafe { self.out.get(start + first, (rows - 1) * stride + COLUMNS).as_mut_ptr() };
        let tile = &self.tiles[self.turn];
        let pairs = tile.0.chunks_exact(2).zip(self.certain.0.chunks_exact_mut(4)).take(rows.div_ceil(2));
        for (i, (pair, certain)) in pairs.enumerate() {
            let mut w = [_mm512_setzero_si512(); 4];
            for (half, acc) in pair.as_flattened().chunks_exact(16).enumerate() {
                // SAFETY: 16 accumulators.
                let acc = unsafe { _mm512_loadu_si512(acc.as_ptr().cast()) };
                let acc = if FLOATS { _mm512_castsi512_ps(acc) } else { _mm512_cvtepi32_ps(acc) };
                w[half] = registers.w::<FAR>(acc, half % 2);
            }
            let bytes = registers.bytes(w);
            for (certain, w) in certain.iter_mut().zip(w) {
                *certain = registers.certain(w);
            }
            // SAFETY: rows `2 i` and `2 i + 1` are inside the part that `get` returned for all rows; the
            // second is written only if it exists.
            unsafe {
                _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(bytes));
                if 2 * i + 1 < rows {
                    _mm256_storeu_si256(to.add(stride).cast(), _mm512_extracti64x4_epi64::<1>(bytes));
                }
            }
            to = to.wrapping_add(2 * stride);
        }
    }

    /// Stores the uncertain codes of the last tile, computed as the reference computes them. Bit `h` of
    /// `doubtful` is set if half row `h` has one.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn mend(&self, mut doubtful: u32) {
        let (epilogue, (starts, first), tile) = (self.epilogue, self.last, &self.tiles[self.turn ^ 1]);
        let Store::Codes(columns) = &epilogue.store else { unreachable!("a plan is of codes") };
        while doubtful != 0 {
            let half = doubtful.trailing_zeros() as usize;
            doubtful &= doubtful - 1;
            // With an odd number of rows, the last row has no partner.
            let Some(start) = starts.get(half / 2) else { continue };
            let mut lanes = !self.certain.0[half];
            while lanes != 0 {
                let column = half % 2 * 16 + lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                let c = first + column;
                let acc = tile.0[half / 2][column] - self.plan.offset.get(c).unwrap_or(&0);
                let value = reference::epilogue_i8(acc, epilogue.factor[c], epilogue.bias[c], None, true);
                // SAFETY: as in `codes`.
                let place = unsafe { self.out.get(start + c, 1) };
                place[0] = columns.code(c, value) as u8 ^ 0x80;
            }
        }
    }
}

/// Byte masks of the second, third and last dword of each 128-bit lane. The assembly hides their values from
/// the compiler, which would turn the five instructions of [`Registers::bytes`] into eight if they were
/// constants.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn fourths() -> [__mmask64; 3] {
    let mut fourths = [0x00f0_00f0_00f0_00f0, 0x0f00_0f00_0f00_0f00, 0xf000_f000_f000_f000];
    let [second, third, last] = &mut fourths;
    // SAFETY: the assembly is only a comment.
    unsafe {
        asm!(
            "/* {} {} {} */",
            inout(kreg) * second,
            inout(kreg) * third,
            inout(kreg) * last,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    fourths
}

const _: () =
    assert!(COLUMNS == 32 && 2 * ROWS <= 32, "a pair of rows is one register of bytes, a tile one of masks");

#[cfg(test)]
mod tests;
