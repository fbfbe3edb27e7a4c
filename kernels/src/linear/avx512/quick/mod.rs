//! Codes of GELU by a cubic that gives them at once, where they provably are the reference's.
//!
//! A tile's accumulators begin with what makes them floats as they are: the bits of an f32 in [2^23, 2^24) are its integer
//! part with a constant. One multiply-add makes an argument of GELU of such a float, a cubic by intervals ([`fit`]) makes a
//! number of the argument whose bits 16 to 23 are the code. Lower bits say whether that is certain; where it is not (one
//! code in some thousands) the reference's way is gone.

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

/// An accumulator with these bits added is a float, [`FLOAT`] more than it, if its magnitude is below [`FLOAT_REACH`].
const FLOAT_BITS: i32 = 0x4b40_0000;
const FLOAT: f64 = 1.5 * ROUNDER as f64;
const FLOAT_REACH: i64 = 1 << 22;

/// Offsets tried for a column at most. One in some hundreds or thousands is near enough, as the factor has it.
const TRIES: u64 = 1 << 14;

/// By how much an argument is to be off at most, rounding apart: half the last place of 1 to 2.
const INPUT_ERROR: f64 = 1e-7;

/// By how much it may be: half the last place of a bias of 8 to 16.
const GREATEST_ERROR: f64 = 5e-7;

/// A product's way to codes of GELU.
#[derive(Debug)]
pub(in super::super) struct Plan {
    fit: Fit,
    /// What is added to the initial accumulator of each column of whole panels, so that it is a float; nothing if some
    /// accumulator could be too great for that.
    offset: Vec<i32>,
    /// The argument of GELU, less the centre of the cubics, is the accumulator as a float times the column's factor, and this.
    bias: Vec<f32>,
}

impl Plan {
    /// The plan for `epilogue`, where the codes can be had this way; `reach` bounds the accumulators of each column.
    pub(in super::super) fn new(epilogue: &Epilogue, reach: impl Fn(usize) -> i64) -> Option<Plan> {
        let Store::Codes(recip) = &epilogue.store else { return None };
        let recip = &recip[..epilogue.n];
        if !epilogue.gelu || !epilogue.skips_range_checks || recip.iter().any(|r| *r != recip[0]) {
            return None;
        }
        let recip = *recip.first()?;
        let intervals = Intervals::new(recip)?;
        let centre = intervals.centre;
        // What is left of the last panel is finished by others.
        let columns = 0..epilogue.n / COLUMNS * COLUMNS;
        let float = |c| float_column(epilogue.factor[c], epilogue.bias[c], centre, reach(c));
        let integer = |c: usize| Column::new(f64::from(epilogue.bias[c]) - f64::from(centre), 0);
        let floats: Option<Vec<Column>> = columns.clone().map(float).collect();
        let columns = floats.unwrap_or_else(|| columns.map(integer).collect());
        let error = columns.iter().map(|column| column.error).fold(INPUT_ERROR, f64::max);
        // Not of a NaN, which the maximum passes over.
        let fit =
            intervals.fit(error).filter(|_| columns.iter().all(|column| column.error <= GREATEST_ERROR))?;
        let offset = columns.iter().map(|column| column.offset).filter(|offset| *offset != 0).collect();
        Some(Plan { fit, offset, bias: columns.iter().map(|column| column.bias).collect() })
    }

    /// What is added to the initial accumulators, from the first column on.
    pub(in super::super) fn offset(&self) -> &[i32] {
        &self.offset
    }
}

/// How the argument of GELU comes of an accumulator.
#[derive(Debug)]
struct Column {
    /// Added to the initial accumulator; 0 where accumulators are converted.
    offset: i32,
    bias: f32,
    /// What `bias` is off.
    error: f64,
}

impl Column {
    fn new(bias: f64, offset: i32) -> Column {
        Column { offset, bias: bias as f32, error: (f64::from(bias as f32) - bias).abs() }
    }
}

/// A column whose accumulators, of at most `reach` in magnitude, are floats: with an offset with which the bias, of the size of
/// `2^23 factor`, is so near to an f32 that the argument is about as exact as if the accumulator had been converted. `None`
/// where there is none.
fn float_column(factor: f32, bias: f32, centre: f32, reach: i64) -> Option<Column> {
    // By how much the float may be shifted either way.
    let room = u64::try_from(FLOAT_REACH - 1 - reach).unwrap_or(0);
    if room < TRIES {
        return None;
    }
    let bias = f64::from(bias) - f64::from(centre);
    let column = |i: u64| {
        // At random, all over the room: of neighbours, or at equal distances, what is lost can be nearly the same.
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

/// Numbers without a visible order (the finalizer of SplitMix64; Steele, Lea and Flood, 2014).
fn scatter(i: u64) -> u64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the evaluation takes, in registers.
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

    /// `w` of 16 accumulators of half `half` of the columns: their codes are bits 16 to 23.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn w<const FAR: bool>(&self, acc: __m512, half: usize) -> __m512i {
        let z = _mm512_fmadd_ps(acc, self.factor[half], self.bias[half]);
        // The lesser magnitude with the first operand's sign.
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

    /// The codes of two rows, one after the other, from `w` of their halves.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn bytes(&self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        // Byte 2 of each of four columns, into each fourth of a lane; of these, those of one half come together.
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

/// Which codes of a tile are certain: a bit for each, half a row after the other.
#[repr(C, align(64))]
struct Certain([__mmask16; 32]);

/// Tiles whose codes are stored at once, and the uncertain of them only after the product of the next tile: by then it has
/// long been known whether there are any. A wrong guess about that would cost what was begun of the next tile.
pub(super) struct Late<'a> {
    plan: &'a Plan,
    epilogue: &'a Epilogue,
    out: &'a Parts<'a, u8>,
    tiles: [Tile<i32>; 2],
    /// The tile that is next.
    turn: usize,
    certain: Certain,
    /// Where the rows of the last tile start, and its first column.
    last: (&'a [usize], usize),
}

impl<'a> Late<'a> {
    pub(super) fn new(plan: &'a Plan, epilogue: &'a Epilogue, out: &'a Parts<'a, u8>) -> Late<'a> {
        let tiles = [const { Tile([[0; COLUMNS]; ROWS]) }; 2];
        Late { plan, epilogue, out, tiles, turn: 0, certain: Certain([!0; 32]), last: (&[], 0) }
    }

    /// Where the next product goes.
    pub(super) fn tile(&mut self) -> &mut Tile<i32> {
        &mut self.tiles[self.turn]
    }

    /// Whether a panel is whole, so that its accumulators had the plan's offsets.
    pub(super) fn suits(&self, panel: usize) -> bool {
        (panel + 1) * COLUMNS <= self.epilogue.n
    }

    /// Stores the codes of the product that is in [`Late::tile`], of a whole panel.
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

    /// Stores what of the last tile is not certain.
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

    /// The codes of the tile that is next, as the cubics have them.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn codes<const FAR: bool, const FLOATS: bool>(&mut self) {
        let (plan, epilogue, (starts, first)) = (self.plan, self.epilogue, self.last);
        let Some(&start) = starts.first() else { return };
        let registers =
            Registers::new(panel_values(&epilogue.factor, first), panel_values(&plan.bias, first), &plan.fit);
        let (rows, stride) = (starts.len(), code_stride(epilogue.n));
        // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place: rows of codes follow each
        // other.
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
            // SAFETY: rows 2 i and 2 i + 1 of those at `to`, which were got as a whole; the second if there is one.
            unsafe {
                _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(bytes));
                if 2 * i + 1 < rows {
                    _mm256_storeu_si256(to.add(stride).cast(), _mm512_extracti64x4_epi64::<1>(bytes));
                }
            }
            to = to.wrapping_add(2 * stride);
        }
    }

    /// Stores codes of the last tile that are not certain, in the halves of rows `doubtful`, as the reference has them.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn mend(&self, mut doubtful: u32) {
        let (epilogue, (starts, first), tile) = (self.epilogue, self.last, &self.tiles[self.turn ^ 1]);
        let Store::Codes(recip) = &epilogue.store else { unreachable!("a plan is of codes") };
        while doubtful != 0 {
            let half = doubtful.trailing_zeros() as usize;
            doubtful &= doubtful - 1;
            // The last of an odd number of rows has no partner.
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
                place[0] = reference::code(value * recip[c]) as u8 ^ 0x80;
            }
        }
    }
}

/// The second, third and last of four dwords of each lane, as bytes. The compiler is not to know which they are: with constants
/// it makes eight instructions of the five in [`Registers::bytes`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn fourths() -> [__mmask64; 3] {
    let mut fourths = [0x00f0_00f0_00f0_00f0, 0x0f00_0f00_0f00_0f00, 0xf000_f000_f000_f000];
    let [second, third, last] = &mut fourths;
    // SAFETY: a comment.
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
