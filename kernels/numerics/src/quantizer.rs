//! Quantizers: the scale of a tensor, or of each of its columns.

use crate::reference;

/// The range of INT8 codes, as f32.
pub struct Int8;

impl Int8 {
    /// The least code.
    pub const MIN: f32 = -128.0;
    /// The largest code, and the largest magnitude of a symmetric range in units of its scale.
    pub const MAX: f32 = 127.0;

    /// `x` limited to the codes. A NaN stays one.
    #[inline(always)]
    pub fn clamp(x: f32) -> f32 {
        x.clamp(Int8::MIN, Int8::MAX)
    }
}

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
    #[inline]
    pub fn scale(self) -> f32 {
        self.scale
    }

    /// The f32 reciprocal of the scale, by which quantization multiplies.
    #[inline]
    pub fn recip(self) -> f32 {
        self.recip
    }

    /// The code of `x`; a NaN has code 0.
    #[inline]
    pub fn code(self, x: f32) -> i8 {
        reference::code(x * self.recip)
    }

    /// The value that the code of `x` represents.
    #[inline]
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
    scales: Vec<f32>,
    recips: Vec<f32>,
    /// Whole numbers in -128..=127.
    zero_points: Vec<f32>,
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
            zero_points: vec![0.0; columns],
        }
    }

    /// One column for each of `factors`: its scale is `scale * factor`, rounded to f32, and its reciprocal
    /// that of this scale. `None` if the lengths differ, or if a scale or its reciprocal is not positive and
    /// finite.
    pub fn channels(scale: f32, factors: &[f32], zero_points: &[i8]) -> Option<ColumnQuantizers> {
        if factors.len() != zero_points.len() {
            return None;
        }
        let each: Option<Vec<Quantizer>> = factors.iter().map(|f| Quantizer::new(scale * f)).collect();
        let each = each?;
        Some(ColumnQuantizers {
            scales: each.iter().map(|q| q.scale()).collect(),
            recips: each.iter().map(|q| q.recip()).collect(),
            zero_points: zero_points.iter().map(|&z| f32::from(z)).collect(),
        })
    }

    /// Number of columns.
    #[inline]
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// Whether there is no column.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// The scale of each column.
    #[inline]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The f32 reciprocals of the scales, by which quantization multiplies.
    #[inline]
    pub fn recips(&self) -> &[f32] {
        &self.recips
    }

    /// The zero point of each column, a whole number.
    #[inline]
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
        reference::code(reference::fma(x, self.recips[column], self.zero_points[column]))
    }

    /// The value that the code of `x` in column `column` represents.
    #[inline(always)]
    pub fn fake(&self, column: usize, x: f32) -> f32 {
        (f32::from(self.code(column, x)) - self.zero_points[column]) * self.scales[column]
    }
}
