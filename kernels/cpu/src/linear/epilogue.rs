//! The parameters that turn accumulators into stored values.

use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer};

use super::spec::{LinearSpec, Store};
use crate::buffer::Aligned;

/// The epilogue of a linear. Its vectors are padded with zeros to full panels.
pub(super) struct Epilogue {
    /// Columns.
    pub(super) n: usize,
    /// The multiplier of each column without `output`.
    pub(super) multiplier: Aligned<f32>,
    /// The factor of each column's accumulator: `multiplier`, or `multiplier * output.recip`.
    pub(super) factor: Aligned<f32>,
    pub(super) bias: Aligned<f32>,
    pub(super) output: Option<Quantizer>,
    pub(super) gelu: Option<Gelu>,
    pub(super) store: Store,
    /// The quantizers of `store`, if it has some.
    pub(super) quantizers: PaddedQuantizers,
    /// Whether stores may skip the NaN and range checks, because no accumulator can produce a value that,
    /// times its reciprocal scale, does not fit an i32.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) skips_range_checks: bool,
}

impl Epilogue {
    /// The epilogue of `spec`, with vectors padded to `padded` values, for accumulators of magnitude at most
    /// `reach`.
    ///
    /// # Panics
    /// If a vector of `spec` or `multiplier` does not have n values.
    pub(super) fn new(spec: &LinearSpec<'_>, multiplier: &[f32], padded: usize, reach: f64) -> Epilogue {
        let n = spec.n;
        let pad = |what: &str, values: &[f32]| {
            assert_eq!(values.len(), n, "{what} of a linear with {n} columns has {} values", values.len());
            pad(values, padded)
        };
        let multiplier = pad("the multiplier", multiplier);
        let recip = spec.output.map_or(1.0, Quantizer::recip);
        let quantizers = match &spec.store {
            Store::Codes(columns) | Store::Fake(columns) => PaddedQuantizers::new(columns, n, padded),
            Store::F32 | Store::Residual { .. } => PaddedQuantizers::default(),
        };
        let mut epilogue = Epilogue {
            n,
            factor: multiplier.iter().map(|m| m * recip).collect(),
            multiplier,
            bias: spec.bias.map_or_else(|| vec![0.0; padded].into(), |bias| pad("the bias", bias)),
            output: spec.output,
            gelu: spec.gelu,
            store: spec.store.clone(),
            quantizers,
            skips_range_checks: false,
        };
        epilogue.skips_range_checks = epilogue.values_fit_i32(reach);
        epilogue
    }

    /// See [`Epilogue::skips_range_checks`]. `reach` bounds the accumulators; the limit is half of the range
    /// of an i32, which leaves room for rounding.
    fn values_fit_i32(&self, reach: f64) -> bool {
        let Store::Codes(columns) = &self.store else { return false };
        let value = |c: usize| reach * f64::from(self.factor[c]).abs() + f64::from(self.bias[c]).abs();
        // The comparisons are false for a NaN. GELU does not increase a magnitude.
        let within = |c: usize| {
            value(c) < f64::from(f32::MAX) && value(c) * f64::from(columns.recips()[c]).abs() < LIMIT
        };
        self.output.is_none() && (0..self.n).all(within)
    }
}

/// The quantizers of columns as vectors read them: on cache lines, padded with zeros to full panels.
#[derive(Default)]
pub(super) struct PaddedQuantizers {
    pub(super) scales: Aligned<f32>,
    pub(super) recips: Aligned<f32>,
    pub(super) zero_points: Aligned<f32>,
}

impl PaddedQuantizers {
    /// # Panics
    /// Unless there are `n` columns.
    fn new(columns: &ColumnQuantizers, n: usize, padded: usize) -> PaddedQuantizers {
        assert_eq!(columns.len(), n, "a linear with {n} columns has {} quantizers", columns.len());
        PaddedQuantizers {
            scales: pad(columns.scales(), padded),
            recips: pad(columns.recips(), padded),
            zero_points: pad(columns.zero_points(), padded),
        }
    }
}

/// `values`, followed by zeros up to `padded` values.
fn pad(values: &[f32], padded: usize) -> Aligned<f32> {
    let mut values = values.to_vec();
    values.resize(padded, 0.0);
    values.into()
}

/// The greatest magnitude, in units of a code and without the zero point, that is stored without range
/// checks.
const LIMIT: f64 = (1u64 << 30) as f64;
