//! AVX2 and FMA: f32 by fused multiply-add, INT8 by widening to 16 bits and `vpmaddwd`; 6 rows by 16 columns of
//! accumulators in 12 registers. The epilogue serves AVX-VNNI too.
//!
//! A pair of products is at most 2 * 128 * 128, so that `vpmaddwd` is exact; `vpmaddubsw` would saturate.

use std::arch::x86_64::*;

use super::Block;
use super::dest::{DROPPED, Dest};
use super::epilogue::Epilogue;
use super::pack::Layout;
use super::spec::Store;
use super::split::row_tiles;
use crate::buffer::AlignedBuf;
use crate::simd_math::avx2::gelu;
use crate::types::Quantizer;

/// Rows of a tile at most.
pub(super) const ROWS: usize = 6;

/// Columns of a tile: two registers of 8.
pub(super) const COLUMNS: usize = 16;

pub(super) const INT8: Layout = Layout { columns: COLUMNS, group: 2 };

pub(super) const F32: Layout = Layout { columns: COLUMNS, group: 1 };

/// Accumulators of a tile, `[ROWS][COLUMNS]`, between the product and the epilogue.
#[repr(C, align(64))]
pub(super) struct Tile<T>(pub(super) [[T; COLUMNS]; ROWS]);

/// One block of an INT8 product. `scratch` takes the widened rows of a tile.
#[target_feature(enable = "avx2,fma")]
pub(super) fn block_i8(
    block: &Block<'_, u8, i8>,
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    let pairs = block.panel_len / (2 * COLUMNS);
    scratch.reserve(4 * ROWS * pairs);
    let widened = &mut scratch.as_i32_mut()[..ROWS * pairs];
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    for rows in row_tiles(block.rows.clone(), ROWS) {
        if pairs > 0 {
            for (row, widened) in rows.clone().zip(widened.chunks_exact_mut(pairs)) {
                widen(block.input_from(row), widened);
            }
        }
        for panel in block.panels.clone() {
            let weight = block.panel(panel);
            match rows.len() {
                1 => tile_i8::<1>(widened, weight, &mut tile),
                2 => tile_i8::<2>(widened, weight, &mut tile),
                3 => tile_i8::<3>(widened, weight, &mut tile),
                4 => tile_i8::<4>(widened, weight, &mut tile),
                5 => tile_i8::<5>(widened, weight, &mut tile),
                _ => tile_i8::<6>(widened, weight, &mut tile),
            }
            finish(epilogue, &tile, &starts[rows.start - block.rows.start..][..rows.len()], panel, dest);
        }
    }
}

/// One block of a product in f32.
#[target_feature(enable = "avx2,fma")]
pub(super) fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0f32; COLUMNS]; ROWS]);
    for panel in block.panels.clone() {
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let (input, weight) = (block.input_from(rows.start), block.panel(panel));
            match rows.len() {
                1 => tile_f32::<1>(input, block.stride, weight, &mut tile),
                2 => tile_f32::<2>(input, block.stride, weight, &mut tile),
                3 => tile_f32::<3>(input, block.stride, weight, &mut tile),
                4 => tile_f32::<4>(input, block.stride, weight, &mut tile),
                5 => tile_f32::<5>(input, block.stride, weight, &mut tile),
                _ => tile_f32::<6>(input, block.stride, weight, &mut tile),
            }
            finish(epilogue, &tile, &starts[rows.start - block.rows.start..][..rows.len()], panel, dest);
        }
    }
}

/// Codes of one row as pairs of i16: the low half of each i32 comes first.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn widen(input: &[u8], pairs: &mut [i32]) {
    for (pair, bytes) in pairs.iter_mut().zip(input.as_chunks::<2>().0) {
        let [low, high] = bytes.map(|byte| i32::from(byte) - 128);
        *pair = (high << 16) | (low & 0xffff);
    }
}

/// `R` rows of `widened` by one panel of INT8.
#[target_feature(enable = "avx2,fma")]
fn tile_i8<const R: usize>(widened: &[i32], weight: &[i8], tile: &mut Tile<i32>) {
    let pairs = weight.len() / (2 * COLUMNS);
    assert!(widened.len() >= R * pairs, "a tile's rows are whole");
    let mut acc = [[_mm256_setzero_si256(); 2]; R];
    let (mut w, mut x) = (weight.as_ptr(), widened.as_ptr());
    for _ in 0..pairs {
        // SAFETY: `w` is at a group of `weight`, of which there are `pairs`, each of 32 bytes.
        let b = unsafe {
            let [low, high] = [_mm_loadu_si128(w.cast()), _mm_loadu_si128(w.add(16).cast())];
            [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)]
        };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the pair is in row r < R of `widened`, by the assertion above.
            let a = _mm256_set1_epi32(unsafe { *x.add(r * pairs) });
            acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(a, b[0]));
            acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(a, b[1]));
        }
        // Never read beyond the last group.
        (w, x) = (w.wrapping_add(2 * COLUMNS), x.wrapping_add(1));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_si256(row.as_mut_ptr().cast(), acc[0]);
            _mm256_storeu_si256(row[8..].as_mut_ptr().cast(), acc[1]);
        }
    }
}

/// `R` rows by one panel of f32; `input` starts at the first row.
#[target_feature(enable = "avx2,fma")]
fn tile_f32<const R: usize>(input: &[f32], stride: usize, weight: &[f32], tile: &mut Tile<f32>) {
    let k = weight.len() / COLUMNS;
    assert!(input.len() >= (R - 1) * stride + k, "a tile's rows are whole");
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let (mut w, mut x) = (weight.as_ptr(), input.as_ptr());
    for _ in 0..k {
        // SAFETY: `w` is at a row of `weight`, of which there are `k`, each of two registers.
        let b = unsafe { [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(8))] };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the value is in row r < R of `input`, by the assertion above.
            let a = _mm256_set1_ps(unsafe { *x.add(r * stride) });
            acc[0] = _mm256_fmadd_ps(a, b[0], acc[0]);
            acc[1] = _mm256_fmadd_ps(a, b[1], acc[1]);
        }
        // Never read beyond the last row of weights.
        (w, x) = (w.wrapping_add(COLUMNS), x.wrapping_add(1));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(row[8..].as_mut_ptr(), acc[1]);
        }
    }
}

/// An accumulator type: how 8 of them become f32.
pub(super) trait Lanes: Copy {
    /// # Safety
    /// The processor has AVX2, and `from` points to 8 accumulators.
    unsafe fn load(from: *const Self) -> __m256;
}

impl Lanes for i32 {
    #[inline(always)]
    unsafe fn load(from: *const i32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(_mm256_loadu_si256(from.cast())) }
    }
}

impl Lanes for f32 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }
}

/// 8 columns of a tile and what their epilogue needs, in registers.
struct Columns<'a> {
    epilogue: &'a Epilogue,
    /// The first column.
    first: usize,
    /// Columns that exist, those of `mask`: at most 8, 0 in padding.
    lanes: usize,
    mask: __m256i,
    factor: __m256,
    bias: __m256,
    /// Step of `output`; without effect when that is off.
    scale: __m256,
}

impl<'a> Columns<'a> {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(epilogue: &'a Epilogue, first: usize) -> Columns<'a> {
        let lanes = epilogue.n.saturating_sub(first).min(8);
        Columns {
            epilogue,
            first,
            lanes,
            mask: mask(lanes),
            factor: eight(&epilogue.factor, first),
            bias: eight(&epilogue.bias, first),
            scale: _mm256_set1_ps(epilogue.output.map_or(1.0, Quantizer::scale)),
        }
    }

    /// From accumulators to values after bias and GELU.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn value<const OUTPUT: bool, const GELU: bool>(&self, acc: __m256) -> __m256 {
        let value = if OUTPUT {
            let code = code(_mm256_mul_ps(acc, self.factor));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), self.scale, self.bias)
        } else {
            _mm256_fmadd_ps(acc, self.factor, self.bias)
        };
        if GELU { gelu(value) } else { value }
    }

    /// Calls `store` with each row's values and where they go.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn each<T: Lanes, const OUTPUT: bool, const GELU: bool>(
        &self,
        tile: &Tile<T>,
        starts: &[usize],
        store: impl Fn(__m256, usize),
    ) {
        let half = self.first % COLUMNS;
        for (row, &start) in tile.0.iter().zip(starts) {
            if start != DROPPED {
                // SAFETY: the half row holds 8 accumulators; the processor has this function's features.
                let acc = unsafe { T::load(row[half..][..8].as_ptr()) };
                store(self.value::<OUTPUT, GELU>(acc), start + self.first);
            }
        }
    }

    /// The epilogue of these columns.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn finish<T: Lanes, const OUTPUT: bool, const GELU: bool>(
        &self,
        tile: &Tile<T>,
        starts: &[usize],
        dest: &Dest<'_>,
    ) {
        match (dest, &self.epilogue.store) {
            (Dest::F32(out), store) => {
                // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place; `mask` selects
                // the `lanes` values of the part.
                let put = |value, at| unsafe {
                    _mm256_maskstore_ps(out.get(at, self.lanes).as_mut_ptr(), self.mask, value);
                };
                match store {
                    &Store::Fake(q) => {
                        self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| put(fake(Some(q), value), at));
                    }
                    _ => self.each::<T, OUTPUT, GELU>(tile, starts, put),
                }
            }
            (Dest::Codes(out), Store::Codes(recip)) => {
                let recip = eight(recip, self.first);
                self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| {
                    let bytes = bytes(code(_mm256_mul_ps(value, recip)));
                    // SAFETY: as above.
                    unsafe { out.get(at, self.lanes) }.copy_from_slice(&bytes[..self.lanes]);
                });
            }
            (Dest::Residual(stream, _), &Store::Residual { branch, shortcut }) => {
                self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| {
                    // SAFETY: as above; the masked load reads what the masked store writes.
                    unsafe {
                        let place = stream.get(at, self.lanes).as_mut_ptr();
                        let held = fake(shortcut, _mm256_maskload_ps(place, self.mask));
                        _mm256_maskstore_ps(place, self.mask, _mm256_add_ps(held, fake(branch, value)));
                    }
                });
            }
            _ => unreachable!("`Dest::new` refuses what does not suit the store"),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight(values: &[f32], start: usize) -> __m256 {
    let values: &[f32; 8] = values[start..].first_chunk().expect("padded to whole panels");
    // SAFETY: 8 values.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Codes in [-128, 127] of values already multiplied by the reciprocal step; 0 for NaN.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn code(scaled: __m256) -> __m256i {
    let number = _mm256_cmp_ps::<_CMP_ORD_Q>(scaled, scaled);
    let clamped = _mm256_min_ps(_mm256_max_ps(scaled, _mm256_set1_ps(-128.0)), _mm256_set1_ps(127.0));
    _mm256_cvtps_epi32(_mm256_and_ps(number, clamped))
}

/// Quantizes and dequantizes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn fake(quantizer: Option<Quantizer>, x: __m256) -> __m256 {
    let Some(q) = quantizer else { return x };
    let code = code(_mm256_mul_ps(x, _mm256_set1_ps(q.recip())));
    _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(q.scale()))
}

/// Codes as bytes `code + 128`, in the low half of the result.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn bytes(code: __m256i) -> [u8; 8] {
    let words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256::<1>(code));
    let bytes = _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
    _mm_cvtsi128_si64(bytes).to_le_bytes()
}

/// All ones in the first `lanes` lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn mask(lanes: usize) -> __m256i {
    let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), index)
}

/// The epilogue of the rows that start at `starts` in `dest`, for panel `panel`, with their accumulators in `tile`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn finish<T: Lanes>(
    epilogue: &Epilogue,
    tile: &Tile<T>,
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    let first = panel * COLUMNS;
    let firsts = (first..epilogue.n.min(first + COLUMNS)).step_by(8);
    match (epilogue.output.is_some(), epilogue.gelu) {
        (false, false) => {
            firsts.for_each(|first| {
                Columns::new(epilogue, first).finish::<T, false, false>(tile, starts, dest)
            });
        }
        (false, true) => {
            firsts
                .for_each(|first| Columns::new(epilogue, first).finish::<T, false, true>(tile, starts, dest));
        }
        (true, false) => {
            firsts
                .for_each(|first| Columns::new(epilogue, first).finish::<T, true, false>(tile, starts, dest));
        }
        (true, true) => {
            firsts
                .for_each(|first| Columns::new(epilogue, first).finish::<T, true, true>(tile, starts, dest));
        }
    }
}
