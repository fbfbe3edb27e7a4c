//! A fingerprint of a step: a hash of everything that its launch is made of. Steps with the same fingerprint
//! have the same launch.

use std::fmt::Debug;

use sha2::{Digest, Sha256};
use swinq_model::quantized::Int8Weight;
use swinq_plan::{Attention, Linear, Merge, Norm, Op, Patches, Plan, RelativeBias, Step, Values, Weight};

/// The hash of a step.
pub(super) type Fingerprint = [u8; 32];

/// The fingerprint of step `index` of `plan`. It is valid for plans of one architecture.
pub(super) fn fingerprint(plan: &Plan<'_>, index: usize) -> Fingerprint {
    let Step { name, op, store, input, output, macs_per_row } = &plan.steps[index];
    let mut hash = Hash(Sha256::new());
    hash.text(&(index, name, store, input, plan.tensor(*input), output, plan.tensor(*output), macs_per_row));
    hash.op(op);
    hash.0.finalize().into()
}

struct Hash(Sha256);

impl Hash {
    /// Adds small values. The debug form of a float identifies its bits, except for NaN, which no plan holds.
    fn text(&mut self, value: &impl Debug) {
        let text = format!("{value:?}");
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
    }

    fn f32s(&mut self, values: &[f32]) {
        self.0.update((values.len() as u64).to_le_bytes());
        self.0.update(bytemuck::cast_slice::<f32, u8>(values));
    }

    fn values(&mut self, values: &Values<'_>) {
        match values {
            Values::Float(values) => self.f32s(values),
            Values::Codes(weight) => self.codes(weight),
        }
    }

    fn codes(&mut self, weight: &Int8Weight) {
        self.text(&weight.shape);
        self.0.update(bytemuck::cast_slice::<i8, u8>(&weight.codes));
        self.f32s(&weight.scales);
    }

    fn op(&mut self, op: &Op<'_>) {
        match op {
            Op::Patches(Patches { patch, lookup, edge }) => {
                self.text(&(patch, edge));
                self.f32s(lookup.as_flattened());
            }
            Op::Linear(linear) => self.linear(linear),
            Op::Norm(norm, order) => {
                self.norm(norm);
                self.text(order);
            }
            Op::Quantize(order) => self.text(order),
            Op::NormInPlace(norm) | Op::Pool(norm) => self.norm(norm),
            Op::PositionEmbedding(table) => self.values(table),
            Op::QkNorm(heads) => self.text(heads),
            Op::Attention(attention) => self.attention(attention),
            Op::Merge(Merge { norm, stage }) => {
                self.text(&norm.is_some());
                if let Some(norm) = norm {
                    self.norm(norm);
                }
                self.text(stage);
            }
        }
    }

    fn linear(&mut self, linear: &Linear<'_>) {
        let Linear { layer, n, k, weight, bias, output, gelu, order } = linear;
        self.text(&(layer, n, k, output, gelu));
        match weight {
            Weight::Int8 { codes, input, multiplier, zero_points } => {
                self.text(&(input, zero_points));
                self.codes(codes);
                self.f32s(multiplier);
            }
            Weight::Float(values) => self.values(values),
        }
        self.text(&(weight_kind(weight), bias.is_some()));
        if let Some(bias) = bias {
            self.values(bias);
        }
        self.text(order);
    }

    fn attention(&mut self, attention: &Attention<'_>) {
        let Attention { heads, head_dim, tokens, order, scales, hi_lo, bias, regions, mask, quant } =
            attention;
        self.text(&(heads, head_dim, tokens, order, hi_lo, regions.as_deref(), mask, quant));
        self.f32s(scales);
        let RelativeBias { table, index, heads } = bias;
        self.f32s(table);
        self.text(&(index, heads));
    }

    fn norm(&mut self, norm: &Norm<'_>) {
        let Norm { gamma, beta, eps } = norm;
        self.values(gamma);
        self.values(beta);
        self.text(eps);
    }
}

fn weight_kind(weight: &Weight<'_>) -> &'static str {
    match weight {
        Weight::Int8 { .. } => "INT8",
        Weight::Float(Values::Codes(_)) => "float of codes",
        Weight::Float(Values::Float(_)) => "float",
    }
}
