//! From a tile of accumulators to stored values.

use std::arch::x86_64::*;

use super::super::dest::{DROPPED, Dest};
use super::super::epilogue::Epilogue;
use super::super::spec::Store;
use super::{COLUMNS, Tile};
use crate::simd_math::avx512::gelu;
use crate::types::Quantizer;

/// An accumulator type: how 16 of them become f32.
pub(super) trait Lanes: Copy {
    /// # Safety
    /// The processor has AVX-512 F, and `from` points to 16 accumulators.
    unsafe fn load(from: *const Self) -> __m512;
}

impl Lanes for i32 {
    #[inline(always)]
    unsafe fn load(from: *const i32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())) }
    }
}

impl Lanes for f32 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
}

/// 16 columns of a tile and what their epilogue needs, in registers.
struct Columns<'a> {
    epilogue: &'a Epilogue,
    /// The first column.
    first: usize,
    /// Columns that exist, those of `mask`: at most 16, 0 in padding.
    lanes: usize,
    mask: u16,
    factor: __m512,
    bias: __m512,
    /// Step of `output`; without effect when that is off.
    scale: __m512,
}

impl<'a> Columns<'a> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn new(epilogue: &'a Epilogue, first: usize) -> Columns<'a> {
        let lanes = epilogue.n.saturating_sub(first).min(16);
        Columns {
            epilogue,
            first,
            lanes,
            mask: ((1u32 << lanes) - 1) as u16,
            factor: sixteen(&epilogue.factor, first),
            bias: sixteen(&epilogue.bias, first),
            scale: _mm512_set1_ps(epilogue.output.map_or(1.0, Quantizer::scale)),
        }
    }

    /// From accumulators to values after bias and GELU.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn value<const OUTPUT: bool, const GELU: bool>(&self, acc: __m512) -> __m512 {
        let value = if OUTPUT {
            let code = code(_mm512_mul_ps(acc, self.factor));
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), self.scale, self.bias)
        } else {
            _mm512_fmadd_ps(acc, self.factor, self.bias)
        };
        if GELU { gelu(value) } else { value }
    }

    /// Calls `store` with each row's values and where they go.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn each<T: Lanes, const OUTPUT: bool, const GELU: bool>(
        &self,
        tile: &Tile<T>,
        starts: &[usize],
        store: impl Fn(__m512, usize),
    ) {
        let half = self.first % COLUMNS;
        for (row, &start) in tile.0.iter().zip(starts) {
            if start != DROPPED {
                // SAFETY: the half row holds 16 accumulators; the processor has this function's features.
                let acc = unsafe { T::load(row[half..][..16].as_ptr()) };
                store(self.value::<OUTPUT, GELU>(acc), start + self.first);
            }
        }
    }

    /// The epilogue of these columns.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
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
                    _mm512_mask_storeu_ps(out.get(at, self.lanes).as_mut_ptr(), self.mask, value);
                };
                match store {
                    &Store::Fake(q) => {
                        self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| put(fake(Some(q), value), at));
                    }
                    _ => self.each::<T, OUTPUT, GELU>(tile, starts, put),
                }
            }
            (Dest::Codes(out), Store::Codes(recip)) => {
                let recip = sixteen(recip, self.first);
                self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| {
                    let bytes = bytes(_mm512_mul_ps(value, recip));
                    // SAFETY: as above.
                    unsafe {
                        let out = out.get(at, self.lanes).as_mut_ptr();
                        _mm_mask_storeu_epi8(out.cast(), self.mask, bytes);
                    }
                });
            }
            (Dest::Residual(stream, _), &Store::Residual { branch, shortcut }) => {
                self.each::<T, OUTPUT, GELU>(tile, starts, |value, at| {
                    // SAFETY: as above; the masked load reads what the masked store writes.
                    unsafe {
                        let place = stream.get(at, self.lanes).as_mut_ptr();
                        let held = fake(shortcut, _mm512_maskz_loadu_ps(self.mask, place));
                        _mm512_mask_storeu_ps(place, self.mask, _mm512_add_ps(held, fake(branch, value)));
                    }
                });
            }
            _ => unreachable!("`Dest::new` refuses what does not suit the store"),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sixteen(values: &[f32], start: usize) -> __m512 {
    let values: &[f32; 16] = values[start..].first_chunk().expect("padded to whole panels");
    // SAFETY: 16 values.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Codes in [-128, 127] of values already multiplied by the reciprocal step; 0 for NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn code(scaled: __m512) -> __m512i {
    let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scaled, scaled);
    let clamped = _mm512_min_ps(_mm512_max_ps(scaled, _mm512_set1_ps(-128.0)), _mm512_set1_ps(127.0));
    _mm512_maskz_cvtps_epi32(number, clamped)
}

/// Bytes `code + 128` of values already multiplied by the reciprocal step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn bytes(scaled: __m512) -> __m128i {
    let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scaled, scaled);
    // Values far below convert to the least i32; narrowing saturates it, and all others below -128.
    let code = _mm512_maskz_cvtps_epi32(number, _mm512_min_ps(scaled, _mm512_set1_ps(127.0)));
    _mm_xor_si128(_mm512_cvtsepi32_epi8(code), _mm_set1_epi8(-128))
}

/// Quantizes and dequantizes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn fake(quantizer: Option<Quantizer>, x: __m512) -> __m512 {
    let Some(q) = quantizer else { return x };
    let code = code(_mm512_mul_ps(x, _mm512_set1_ps(q.recip())));
    _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(q.scale()))
}

/// The epilogue of the rows that start at `starts` in `dest`, for panel `panel`, with their accumulators in `tile`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn finish<T: Lanes>(
    epilogue: &Epilogue,
    tile: &Tile<T>,
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    let first = panel * COLUMNS;
    let firsts = (first..epilogue.n.min(first + COLUMNS)).step_by(16);
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
