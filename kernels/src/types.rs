//! Types that ops share: quantizers, outputs, and the order of rows.

use crate::buffer::Aligned;

/// A symmetric quantizer with zero point 0: `code = round_ties_even(clamp(x * recip, -128, 127))`,
/// `x ~ code * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantizer {
    scale: f32,
    recip: f32,
}

impl Quantizer {
    /// A quantizer with the given scale. `None` unless `scale` and `1 / scale` are positive and finite.
    pub fn new(scale: f32) -> Option<Quantizer> {
        let recip = 1.0 / scale;
        (scale.is_finite() && scale > 0.0 && recip.is_finite() && recip > 0.0)
            .then_some(Quantizer { scale, recip })
    }

    /// The scale.
    pub fn scale(self) -> f32 {
        self.scale
    }

    /// The f32 reciprocal of the scale, by which quantization multiplies.
    pub fn recip(self) -> f32 {
        self.recip
    }

    /// The code of `x`; a NaN has code 0.
    pub fn code(self, x: f32) -> i8 {
        crate::reference::code(x * self.recip)
    }

    /// The value that the code of `x` represents.
    pub fn fake(self, x: f32) -> f32 {
        f32::from(self.code(x)) * self.scale
    }
}

/// The quantizers of the columns of a tensor: for each column `c` a scale and an integer zero point.
///
/// ```text
/// code  = round_ties_even(clamp(fma(x, recip[c], zero_point[c]), -128, 127))
/// x     ~ scale[c] * (code - zero_point[c])
/// ```
/// With the zero point 0 these are the codes and values of a [`Quantizer`].
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnQuantizers {
    scales: Aligned<f32>,
    recips: Aligned<f32>,
    /// Whole numbers in -128..=127.
    zero_points: Aligned<f32>,
}

impl ColumnQuantizers {
    /// `columns` columns in equal parts, one symmetric quantizer for each part.
    ///
    /// # Panics
    /// If the parts are not equal.
    pub fn symmetric(columns: usize, parts: &[Quantizer]) -> ColumnQuantizers {
        assert!(
            !parts.is_empty() && columns.is_multiple_of(parts.len()),
            "{columns} columns for {} quantizers",
            parts.len()
        );
        let part = (columns / parts.len()).max(1);
        let each = || (0..columns).map(|c| parts[c / part]);
        ColumnQuantizers {
            scales: each().map(Quantizer::scale).collect(),
            recips: each().map(Quantizer::recip).collect(),
            zero_points: vec![0.0; columns].into(),
        }
    }

    /// One column for each of `factors`: its scale is `step * factor`, rounded to f32, and its reciprocal that
    /// of this scale. `None` if the lengths differ, or if a scale or its reciprocal is not positive and
    /// finite.
    pub fn channels(step: f32, factors: &[f32], zero_points: &[i8]) -> Option<ColumnQuantizers> {
        if factors.len() != zero_points.len() {
            return None;
        }
        let each: Option<Vec<Quantizer>> = factors.iter().map(|f| Quantizer::new(step * f)).collect();
        let each = each?;
        Some(ColumnQuantizers {
            scales: each.iter().map(|q| q.scale()).collect(),
            recips: each.iter().map(|q| q.recip()).collect(),
            zero_points: zero_points.iter().map(|&z| f32::from(z)).collect(),
        })
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// Whether there is no column.
    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// The scale of each column.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The f32 reciprocals of the scales, by which quantization multiplies.
    pub fn recips(&self) -> &[f32] {
        &self.recips
    }

    /// The zero point of each column, a whole number.
    pub fn zero_points(&self) -> &[f32] {
        &self.zero_points
    }

    /// Whether every zero point is 0.
    pub fn is_symmetric(&self) -> bool {
        self.zero_points.iter().all(|z| *z == 0.0)
    }

    /// The code of `x` in column `column`; a NaN has code 0.
    #[inline(always)]
    pub fn code(&self, column: usize, x: f32) -> i8 {
        crate::reference::code(x.mul_add(self.recips[column], self.zero_points[column]))
    }

    /// The value that the code of `x` in column `column` represents.
    #[inline(always)]
    pub fn fake(&self, column: usize, x: f32) -> f32 {
        (f32::from(self.code(column, x)) - self.zero_points[column]) * self.scales[column]
    }

    /// The same quantizers, followed by columns of zeros up to `columns` columns.
    pub(crate) fn padded(&self, columns: usize) -> ColumnQuantizers {
        let pad = |values: &[f32]| {
            let mut values = values.to_vec();
            values.resize(columns, 0.0);
            Aligned::from(values)
        };
        ColumnQuantizers {
            scales: pad(&self.scales),
            recips: pad(&self.recips),
            zero_points: pad(&self.zero_points),
        }
    }
}

/// Bytes from one row of codes to the next: `columns` rounded up to a multiple of 4, because INT8 products
/// read codes in groups of four. Long rows of whole cache lines are an odd number of lines apart, so that a column of
/// 16 or 32 rows does not compete for a few sets of the first-level cache. The bytes after the last column may hold
/// anything, because their weights are zero.
pub fn code_stride(columns: usize) -> usize {
    const LONG: usize = 8 * LINE;
    match columns.next_multiple_of(4) {
        len @ LONG.. if len.is_multiple_of(LINE) => odd_lines(len),
        len => len,
    }
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// `bytes`, rounded up to an odd number of cache lines.
pub(crate) fn odd_lines(bytes: usize) -> usize {
    (bytes.div_ceil(LINE) | 1) * LINE
}

/// How an op that writes whole rows stores each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowStore {
    /// Writes f32.
    F32,
    /// Quantizes and dequantizes, then writes f32 (for a linear that runs in float on a quantized operand).
    Fake(Quantizer),
    /// Writes codes, `u8 = code + 128`, rows [`code_stride`] apart.
    Codes(Quantizer),
}

/// The output of an op that writes whole rows; the variant must match its [`RowStore`].
#[derive(Debug)]
pub enum RowOut<'a> {
    /// f32 `[rows, columns]`, for [`RowStore::F32`] and [`RowStore::Fake`].
    F32(&'a mut [f32]),
    /// Codes `[rows, code_stride(columns)]`, for [`RowStore::Codes`].
    Codes(&'a mut [u8]),
}

/// The row number of padding in a [`RowMap`].
pub const PAD: u32 = u32::MAX;

/// The window partition of one image's shifted, padded token grid: for each row in window order, the row of
/// the grid from which it comes. Gathering reads `tokens[map[i]]` into row `i` (zeros for [`PAD`]);
/// scattering writes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMap {
    rows: Vec<u32>,
    tokens: usize,
}

/// An invalid map.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("row map: {0}")]
pub struct RowMapError(String);

impl RowMap {
    /// A map onto `tokens` rows; `None` is padding.
    ///
    /// # Errors
    /// Unless every token is named exactly once, because scattering relies on it.
    pub fn new(rows: &[Option<usize>], tokens: usize) -> Result<RowMap, RowMapError> {
        if tokens >= PAD as usize || rows.len() >= PAD as usize {
            return Err(RowMapError(format!("{} rows of {tokens} tokens are too many", rows.len())));
        }
        let mut seen = vec![false; tokens];
        for &token in rows.iter().flatten() {
            match seen.get_mut(token) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return Err(RowMapError(format!("token {token} appears twice"))),
                None => return Err(RowMapError(format!("token {token} is outside 0..{tokens}"))),
            }
        }
        if let Some(token) = seen.iter().position(|seen| !seen) {
            return Err(RowMapError(format!("token {token} is missing")));
        }
        let rows = rows.iter().map(|row| row.map_or(PAD, |token| token as u32)).collect();
        Ok(RowMap { rows, tokens })
    }

    /// The map that keeps the order.
    ///
    /// # Panics
    /// For 2^32 - 1 tokens or more.
    pub fn identity(tokens: usize) -> RowMap {
        assert!(tokens < PAD as usize, "{tokens} tokens are too many");
        RowMap { rows: (0..tokens as u32).collect(), tokens }
    }

    /// Token of each row of one image, [`PAD`] for padding. Every token appears exactly once.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Tokens of one image.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_of_codes_are_an_odd_number_of_lines_apart() {
        let strides = [(0, 0), (1, 4), (96, 96), (384, 384), (448, 448), (508, 508), (509, 576)];
        let long = [(512, 576), (513, 516), (576, 576), (1536, 1600), (2048, 2112), (2049, 2052)];
        for (columns, stride) in strides.into_iter().chain(long) {
            assert_eq!(code_stride(columns), stride, "{columns} columns");
        }
    }
}
