//! Types that ops share: quantizers, outputs, and the order of rows.

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

/// Bytes from one row of codes to the next: `columns` rounded up to a multiple of 4, because INT8 products
/// read codes in groups of four. The bytes after the last column may hold anything, because their weights are
/// zero.
pub fn code_stride(columns: usize) -> usize {
    columns.next_multiple_of(4)
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
