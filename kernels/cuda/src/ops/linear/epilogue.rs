//! The arrays and numbers of a linear layer's epilogue, on the device.

use swinq_numerics::Quantizer;
use swinq_numerics::reference::correction_i8;

use super::Target;
use super::kind::{DeviceLinearSpec, DeviceWeight, LinearKind, LinearStore, MOST_HEADS};
use super::pack::pad_columns;
use crate::ops::attention::HEAD_DIM;
use crate::ops::half_gelu::half_codes;
use crate::ops::{Call, int};
use crate::params::epilogue::Epilogue;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice};

/// Per-column arrays, padded to full groups, and scalars.
pub(super) struct EpilogueArrays {
    pub(super) scale: DeviceSlice,
    bias: DeviceSlice,
    recip: DeviceSlice,
    /// Of columns that have their own codes; with GELU in halves they are part of `recip`.
    zero_point: Option<DeviceSlice>,
    step: Option<DeviceSlice>,
    /// If the input has zero points.
    correction: Option<DeviceSlice>,
    /// Heads whose queries and keys are normalised, and a bit for each that has hi and lo codes per value.
    heads: usize,
    hi_lo: u64,
    output_scale: f32,
    fake: (f32, f32),
}

impl EpilogueArrays {
    pub(super) fn new(device: &Device, spec: &DeviceLinearSpec<'_>) -> Result<EpilogueArrays, CudaError> {
        let n = spec.n;
        let (heads, hi_lo) = heads(spec);
        let copy =
            |values: &[f32]| Ok::<_, CudaError>(DeviceBuf::from_slice(device, &pad_columns(values))?.all());
        let recip = match &spec.store {
            LinearStore::Codes(recip) => {
                let same = recip.chunks(8).all(|eight| eight.iter().all(|r| *r == eight[0]));
                assert!(same && recip.len() == n, "linear: steps change within eight columns");
                recip.clone()
            }
            LinearStore::ChannelCodes(columns) | LinearStore::ChannelFake(columns) => {
                assert_eq!(columns.len(), n, "linear: {} quantizers for {n} columns", columns.len());
                columns.recips().to_vec()
            }
            LinearStore::Heads { sites, .. } => (0..n).map(|c| sites[3 * c / n].recip()).collect(),
            LinearStore::Plain(store) => vec![store.recip_and_scale().0; n],
            LinearStore::Residual => vec![1.0; n],
        };
        let (mut scale, mut bias) =
            (column_scales(spec), spec.bias.map_or_else(|| vec![0.0; n], <[f32]>::to_vec));
        let (zero_point, step) = column_codes(spec, &scale, &bias).unzip();
        let fake = match &spec.store {
            LinearStore::Plain(store) => store.recip_and_scale(),
            _ => (1.0, 1.0),
        };
        let kind = LinearKind::new(spec);
        let corrections = corrections(spec);
        if let Some(corrections) = corrections.as_ref().filter(|_| !kind.corrected) {
            let sums = corrections.iter().zip(&scale);
            bias.iter_mut().zip(sums).for_each(|(bias, (sum, scale))| *bias -= *sum as f32 * scale);
        }
        kind.column_constants(&mut scale, &mut bias);
        let (recip, zero_point) = match zero_point {
            Some(zero_points) if kind.half_codes() => (half_codes(&recip, &zero_points), None),
            zero_points => (recip, zero_points),
        };
        Ok(EpilogueArrays {
            scale: copy(&scale)?,
            bias: copy(&bias)?,
            recip: copy(&recip)?,
            zero_point: zero_point.map(|values| copy(&values)).transpose()?,
            step: step.map(|values| copy(&values)).transpose()?,
            correction: corrections
                .filter(|_| kind.corrected)
                .map(|values| Ok::<_, CudaError>(DeviceBuf::from_slice(device, &pad_columns(&values))?.all()))
                .transpose()?,
            heads,
            hi_lo,
            output_scale: spec.output.map_or(1.0, Quantizer::scale),
            fake,
        })
    }

    /// The parameters for `n` columns, which are written from the address `out` on, rows `stride` elements
    /// apart.
    pub(super) fn params(
        &self,
        call: &Call<'_>,
        target: &Target<'_>,
        out: u64,
        n: usize,
        stride: usize,
    ) -> Epilogue {
        Epilogue {
            scale: call.own(&self.scale),
            bias: call.own(&self.bias),
            recip: call.own(&self.recip),
            zero_point: call.own(&self.zero_point),
            step: call.own(&self.step),
            correction: call.own(&self.correction),
            hi_lo: self.hi_lo,
            map: call.own(target.map.map(|map| &map.slice)),
            out,
            n: int(n),
            stride: int(stride),
            map_rows: int(target.map.map_or(0, |map| map.rows)),
            map_tokens: int(target.map.map_or(0, |map| map.tokens)),
            heads: int(self.heads),
            output_scale: self.output_scale,
            fake_recip: self.fake.0,
            fake_scale: self.fake.1,
        }
    }
}

/// The factor of each column's sums.
fn column_scales(spec: &DeviceLinearSpec<'_>) -> Vec<f32> {
    match (spec.weight, spec.output) {
        (DeviceWeight::Codes { multiplier, .. }, None) => multiplier.to_vec(),
        (DeviceWeight::Codes { multiplier, .. }, Some(q)) => {
            multiplier.iter().map(|m| m * q.recip()).collect()
        }
        (DeviceWeight::Half(_), Some(q)) => vec![q.recip(); spec.n],
        (DeviceWeight::Half(_), None) => vec![1.0; spec.n],
    }
}

/// The zero point and the scale of each column's codes; none unless columns have their own. Codes of a column
/// with a NaN constant get the zero point 0, because some kernels store the code of 0 there, and the code of
/// a NaN is 0.
fn column_codes(spec: &DeviceLinearSpec<'_>, scale: &[f32], bias: &[f32]) -> Option<(Vec<f32>, Vec<f32>)> {
    match &spec.store {
        LinearStore::ChannelFake(columns) => {
            Some((columns.zero_points().to_vec(), columns.scales().to_vec()))
        }
        LinearStore::ChannelCodes(columns) => {
            let constants = scale.iter().zip(bias);
            let zero_points = columns.zero_points().iter().zip(constants);
            let known = zero_points.map(|(z, (s, b))| if s.is_nan() || b.is_nan() { 0.0 } else { *z });
            Some((known.collect(), columns.scales().to_vec()))
        }
        _ => None,
    }
}

/// The number of heads that the layer normalises, and a bit for each that has hi and lo codes.
fn heads(spec: &DeviceLinearSpec<'_>) -> (usize, u64) {
    let LinearStore::Heads { hi_lo, .. } = &spec.store else { return (0, 0) };
    let (n, heads) = (spec.n, hi_lo.len());
    assert!(n == 3 * heads * HEAD_DIM && heads <= MOST_HEADS, "linear: {n} columns for {heads} heads");
    (heads, (0..heads).filter(|&head| hi_lo[head]).map(|head| 1 << head).sum())
}

/// The subtrahend of the sums of each column; none if the input has no zero points.
fn corrections(spec: &DeviceLinearSpec<'_>) -> Option<Vec<i32>> {
    match spec.weight {
        DeviceWeight::Codes { codes, zero_points, .. } if !zero_points.is_empty() => {
            assert_eq!(zero_points.len(), spec.k, "linear: {} zero points", zero_points.len());
            Some(codes.chunks(spec.k).map(|row| correction_i8(zero_points, row)).collect())
        }
        _ => None,
    }
}
