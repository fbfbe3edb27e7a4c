//! Heads of fewer channels than the columns that they have in the kernels. The weights before and after
//! attention are filled up with zeros, so that queries, keys, values and results of the missing channels are
//! zeros, which change no sum.

use std::borrow::Cow;

use swinq_cuda::ops::attention::head_columns;
use swinq_plan::{Linear, Op, Plan, Step, TensorId, Weight};

/// The tensors whose columns are those of narrow heads, with the channels of a head.
pub(super) struct NarrowHeads(Vec<(TensorId, usize)>);

impl NarrowHeads {
    /// Those of `plan`.
    pub(super) fn of(plan: &Plan<'_>) -> NarrowHeads {
        let tensors = |step: &Step<'_>| match &step.op {
            Op::Attention(attention) => {
                vec![(step.input, attention.head_dim), (step.output, attention.head_dim)]
            }
            Op::QkNorm(heads) => vec![(step.input, heads.head_dim)],
            _ => Vec::new(),
        };
        let all = plan.steps.iter().flat_map(tensors);
        NarrowHeads(all.filter(|&(_, channels)| channels < head_columns(channels)).collect())
    }

    /// The columns of `tensor` on the device, where it has `columns` in the plan.
    pub(super) fn columns(&self, tensor: TensorId, columns: usize) -> usize {
        self.channels(tensor).map_or(columns, |channels| columns / channels * head_columns(channels))
    }

    /// The channels of a head in the columns of `tensor`, if its heads are narrow.
    pub(super) fn channels(&self, tensor: TensorId) -> Option<usize> {
        self.0.iter().find(|(narrow, _)| *narrow == tensor).map(|(_, channels)| *channels)
    }

    /// The values of the layer of `step`, filled up.
    pub(super) fn filled<'a>(&self, step: &Step<'_>, linear: &'a Linear<'a>) -> Filled<'a> {
        let of_weight = match &linear.weight {
            Weight::Int8 { codes, multiplier, zero_points, .. } => FilledWeight::Codes {
                codes: (&codes.codes).into(),
                multiplier: multiplier.into(),
                zero_points: (*zero_points).into(),
            },
            Weight::Float(values) => FilledWeight::Float(values.read()),
        };
        let bias = linear.bias.map(|bias| bias.read());
        let mut filled = Filled { n: linear.n, k: linear.k, weight: of_weight, bias };
        if let Some(channels) = self.channels(step.input) {
            filled.fill_inputs(channels);
        }
        if let Some(channels) = self.channels(step.output) {
            filled.fill_outputs(channels);
        }
        filled
    }
}

/// A linear layer's sizes and values.
pub(super) struct Filled<'a> {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) weight: FilledWeight<'a>,
    pub(super) bias: Option<Cow<'a, [f32]>>,
}

/// A weight, `[n, k]`.
pub(super) enum FilledWeight<'a> {
    Codes { codes: Cow<'a, [i8]>, multiplier: Cow<'a, [f32]>, zero_points: Cow<'a, [i8]> },
    Float(Cow<'a, [f32]>),
}

impl Filled<'_> {
    fn fill_inputs(&mut self, channels: usize) {
        self.k = self.k / channels * head_columns(channels);
        match &mut self.weight {
            FilledWeight::Codes { codes, zero_points, .. } => {
                fill(codes, channels, 1);
                fill(zero_points, channels, 1);
            }
            FilledWeight::Float(values) => fill(values, channels, 1),
        }
    }

    fn fill_outputs(&mut self, channels: usize) {
        self.n = self.n / channels * head_columns(channels);
        match &mut self.weight {
            FilledWeight::Codes { codes, multiplier, .. } => {
                fill(codes, channels, self.k);
                fill(multiplier, channels, 1);
            }
            FilledWeight::Float(values) => fill(values, channels, self.k),
        }
        if let Some(bias) = &mut self.bias {
            fill(bias, channels, 1);
        }
    }
}

/// Fills each group of `channels` channels, each of `each` values, up to [`head_columns`] channels.
fn fill<T: Copy + Default>(values: &mut Cow<'_, [T]>, channels: usize, each: usize) {
    let zeros = vec![T::default(); (head_columns(channels) - channels) * each];
    *values =
        values.chunks(channels * each).flat_map(|group| [group, &zeros].concat()).collect::<Vec<T>>().into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_and_outputs_of_each_head_are_followed_by_zeros() {
        // Two heads of one channel.
        let (codes, multiplier): (Vec<i8>, Vec<f32>) = (vec![1, 2, 3, 4], vec![5.0, 6.0]);
        let weight = FilledWeight::Codes {
            codes: codes.into(),
            multiplier: multiplier.into(),
            zero_points: Cow::Borrowed(&[]),
        };
        let mut filled = Filled { n: 2, k: 2, weight, bias: Some(vec![7.0, 8.0].into()) };
        filled.fill_inputs(1);
        filled.fill_outputs(1);
        assert_eq!((filled.n, filled.k), (64, 64));
        let FilledWeight::Codes { codes, multiplier, zero_points } = &filled.weight else { unreachable!() };
        let expected = |row: usize, column: usize| match (row, column) {
            (0, 0) => 1,
            (0, 32) => 2,
            (32, 0) => 3,
            (32, 32) => 4,
            _ => 0,
        };
        assert!(codes.iter().enumerate().all(|(at, &code)| code == expected(at / 64, at % 64)));
        assert!(zero_points.is_empty() && multiplier.len() == 64 && multiplier[32] == 6.0);
        let bias = filled.bias.unwrap();
        assert_eq!((bias.len(), bias[0], bias[1], bias[32]), (64, 7.0, 0.0, 8.0));
    }
}
