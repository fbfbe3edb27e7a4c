//! Rows of tensors: how codes lie in memory, how values are stored, and the order of rows.

use crate::quantizer::Quantizer;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Bytes from one row of codes to the next: `columns` rounded up to a multiple of 4, because INT8 products
/// read codes in groups of four. Long rows of whole cache lines are an odd number of lines apart, so that a
/// column of 16 or 32 rows does not compete for a few sets of the first-level cache. The bytes after the last
/// column may hold anything, because their weights are zero.
#[inline]
pub fn code_stride(columns: usize) -> usize {
    const LONG: usize = 8 * LINE;
    match columns.next_multiple_of(4) {
        len @ LONG.. if len.is_multiple_of(LINE) => odd_lines(len),
        len => len,
    }
}

/// `bytes`, rounded up to an odd number of cache lines.
#[inline]
pub fn odd_lines(bytes: usize) -> usize {
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
        // A token beyond u32 is none of a map either.
        let number = |token: usize| u32::try_from(token).unwrap_or(PAD - 1);
        RowMap::from_rows(rows.iter().map(|row| row.map_or(PAD, number)).collect(), tokens)
    }

    /// A map onto `tokens` rows; [`PAD`] is padding.
    ///
    /// # Errors
    /// As [`RowMap::new`].
    pub fn from_rows(rows: Vec<u32>, tokens: usize) -> Result<RowMap, RowMapError> {
        if tokens >= PAD as usize || rows.len() >= PAD as usize {
            return Err(RowMapError(format!("{} rows of {tokens} tokens are too many", rows.len())));
        }
        let mut seen = vec![false; tokens];
        for &token in rows.iter().filter(|&&token| token != PAD) {
            match seen.get_mut(token as usize) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return Err(RowMapError(format!("token {token} appears twice"))),
                None => return Err(RowMapError(format!("token {token} is outside 0..{tokens}"))),
            }
        }
        match seen.iter().position(|seen| !seen) {
            Some(token) => Err(RowMapError(format!("token {token} is missing"))),
            None => Ok(RowMap { rows, tokens }),
        }
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
    #[inline]
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Tokens of one image.
    #[inline]
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
