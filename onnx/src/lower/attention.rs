//! Window attention. Values of heads are `[batch, windows, heads, tokens, channels]`.

use std::sync::Arc;

use swinq_numerics::{Int8, MASKS, Probs, Quantizer, Windows};
use swinq_plan::{Attention, Order};

use super::{Lowering, Sizing};
use crate::graph::Attribute;
use crate::options::{ProbsForm, Target};

/// The order of axes that puts the heads before the tokens: `[batch, windows, tokens, heads, channels]`
/// becomes `[batch, windows, heads, tokens, channels]`.
const HEADS_FIRST: [i64; 5] = [0, 1, 3, 2, 4];
/// The order for keys: `[batch, windows, heads, channels, tokens]`.
const TRANSPOSED: [i64; 5] = [0, 1, 3, 4, 2];

/// Queries or keys behind their site.
struct Operand {
    /// The value of the codes, or the float value where the site is off.
    high: String,
    /// The value of the second codes (Swin V2).
    low: Option<String>,
}

impl Lowering<'_> {
    /// Attention `name` of the rows `qkv`, whose queries and keys are normalised here if `normalise` (Swin
    /// V2).
    pub(super) fn attention(&mut self, name: &str, op: &Attention<'_>, qkv: &str, normalise: bool) -> String {
        let [q, k, v] = self.heads(name, op, qkv);
        let [q, k] = [("q", q), ("k", k)].map(|(which, x)| match normalise {
            true => self.unit_length(&format!("{name}.{which}"), &x),
            false => x,
        });
        // One factor for all heads is part of the value of a query's code.
        let one_factor = op.scales.iter().all(|scale| *scale == op.scales[0]);
        let folded = one_factor && op.quant.q.is_some() && op.quant.scores.is_none() && op.hi_lo.is_empty();
        let factor = if folded { op.scales[0] } else { 1.0 };
        let q = self.operand(&format!("{name}.q"), op, q, (op.quant.q, factor), &HEADS_FIRST);
        let k = self.operand(&format!("{name}.k"), op, k, (op.quant.k, 1.0), &TRANSPOSED);
        let mut scores = self.products(name, &q, &k);
        if let Some(site) = op.quant.scores {
            scores = self.quantize(&format!("{name}.scores"), &scores, site.scale(), site.scale());
        }
        if !folded {
            let (shape, scales) = match one_factor {
                true => (vec![], &op.scales[..1]),
                false => (vec![op.heads, 1, 1], &op.scales[..]),
            };
            let factors = self.graph.floats(&format!("{name}.factor"), &shape, scales);
            scores = self.graph.node("Mul", &format!("{name}.scaled"), &[&scores, &factors], &[]);
        }
        let bias = self.bias(name, op);
        let logits = self.graph.node("Add", &format!("{name}.logits"), &[&scores, &bias], &[]);
        let v = match op.quant.v {
            Some(site) => self.quantize(&format!("{name}.v"), &v, site.scale(), site.scale()),
            None => v,
        };
        let v = self.transpose(&format!("{name}.v.heads"), &v, &HEADS_FIRST);
        let y = self.weighted(name, op.quant.probs, &logits, &v);
        let y = self.transpose(&format!("{name}.tokens"), &y, &HEADS_FIRST);
        let rows = self.windows(op).map_or(-1, |windows| (windows.count() * op.tokens) as i64);
        let shape = self.graph.list(&[0, rows, (op.heads * op.head_dim) as i64]);
        self.graph.node("Reshape", &format!("{name}.rows"), &[&y, &shape], &[])
    }

    /// The windows of an image, if its size is fixed.
    fn windows(&self, op: &Attention<'_>) -> Option<Arc<Windows>> {
        let (stage, shifted) = place(op);
        match self.sizing {
            Sizing::Fixed(geometry) => Some(Arc::clone(geometry.windows(stage, shifted))),
            Sizing::Free(_) => None,
        }
    }

    /// Queries, keys and values, each `[batch, windows, tokens, heads, channels]`.
    fn heads(&mut self, name: &str, op: &Attention<'_>, qkv: &str) -> [String; 3] {
        let columns = (op.heads * op.head_dim) as i64;
        let sizes = self.graph.list(&[columns; 3]);
        let parts = ["q", "k", "v"].map(|part| format!("{name}.{part}.rows"));
        let outputs = [&parts[0][..], &parts[1], &parts[2]];
        let split = format!("{name}.split");
        self.graph.nodes("Split", &split, &[qkv, &sizes], &[Attribute::Int("axis", 2)], &outputs);
        let windows = self.windows(op).map_or(-1, |windows| windows.count() as i64);
        let [tokens, heads, channels] = [op.tokens, op.heads, op.head_dim].map(|size| size as i64);
        let shape = self.graph.list(&[0, windows, tokens, heads, channels]);
        parts.map(|part| {
            let of_heads = format!("{}.of_heads", part.trim_end_matches(".rows"));
            self.graph.node("Reshape", &of_heads, &[&part, &shape], &[])
        })
    }

    /// Each query or key divided by its length (docs/inference.md, section 9).
    fn unit_length(&mut self, name: &str, x: &str) -> String {
        let axes = self.graph.list(&[-1]);
        let keep = [Attribute::Int("keepdims", 1)];
        let length = self.graph.node("ReduceL2", &format!("{name}.length"), &[x, &axes], &keep);
        // f16 has no 1e-12; its smallest normal number leaves a length of 0 harmless just as well.
        let least = if self.options.fp16 { 6.2e-5 } else { 1e-12 };
        let least = self.graph.floats("least_length", &[], &[least]);
        let length = self.graph.node("Max", &format!("{name}.divisor"), &[&length, &least], &[]);
        self.graph.node("Div", &format!("{name}.unit"), &[x, &length], &[])
    }

    /// Queries or keys through their site; `factor` is part of the value of a code. `order` puts the heads
    /// first.
    fn operand(
        &mut self,
        site: &str,
        op: &Attention<'_>,
        x: String,
        (quantizer, factor): (Option<Quantizer>, f32),
        order: &[i64],
    ) -> Operand {
        let heads = format!("{site}.heads");
        match quantizer {
            None => Operand { high: self.transpose(&heads, &x, order), low: None },
            Some(q) if op.hi_lo.is_empty() => {
                let codes = self.quantize(site, &x, q.scale(), q.scale() * factor);
                Operand { high: self.transpose(&heads, &codes, order), low: None }
            }
            // Several nodes read the codes. ONNX Runtime copies DequantizeLinear for each, but not a
            // Transpose behind it. On x86 the first operand of its INT8 products is unsigned, and it converts
            // only codes with one reader.
            Some(q) => {
                let x = self.transpose(&heads, &x, order);
                let unsigned = self.options.target == Target::Ort && *order == HEADS_FIRST;
                let zero = if unsigned { self.graph.middle_u8() } else { self.graph.zero_s8() };
                let high = self.quantize_to(site, &x, q.scale(), (q.scale(), self.graph.is_half()), &zero);
                let low = self.lo_codes(site, op, [&x, &high], q.scale());
                Operand { high, low: Some(low) }
            }
        }
    }

    /// The second codes of queries or keys, in steps of 1/256 of a code: the codes of the first codes' error.
    /// Heads with one code have zeros here, which leaves their product as it is.
    fn lo_codes(&mut self, site: &str, op: &Attention<'_>, [x, high]: [&str; 2], scale: f32) -> String {
        let mut rest = self.graph.node("Sub", &format!("{site}.error"), &[x, high], &[]);
        if op.hi_lo.contains(&false) {
            let which: Vec<f32> = op.hi_lo.iter().map(|&two| f32::from(u8::from(two))).collect();
            let which = self.graph.floats(&format!("{site}.two_codes"), &[op.heads, 1, 1], &which);
            rest = self.graph.node("Mul", &format!("{site}.low.rest"), &[&rest, &which], &[]);
        }
        let step = scale / 256.0;
        self.quantize(&format!("{site}.low"), &rest, step, step)
    }

    /// `QK^T`. The product of two lo codes is left out, as the engine does.
    fn products(&mut self, name: &str, q: &Operand, k: &Operand) -> String {
        let product = format!("{name}.product");
        let high = self.graph.node("MatMul", &product, &[&q.high, &k.high], &[]);
        let (Some(q_low), Some(k_low)) = (&q.low, &k.low) else { return high };
        let a = self.graph.node("MatMul", &format!("{product}.high_low"), &[&q.high, k_low], &[]);
        let b = self.graph.node("MatMul", &format!("{product}.low_high"), &[q_low, &k.high], &[]);
        let low = self.graph.node("Add", &format!("{product}.low"), &[&a, &b], &[]);
        self.graph.node("Add", &format!("{product}.sum"), &[&high, &low], &[])
    }

    /// The relative position bias, `[heads, tokens, tokens]`, or with the mask of shifted windows
    /// `[windows, heads, tokens, tokens]`.
    fn bias(&mut self, name: &str, op: &Attention<'_>) -> String {
        let bias = op.bias.expand();
        let name = format!("{name}.bias");
        let shape = [op.heads, op.tokens, op.tokens];
        let Some(regions) = &op.regions else { return self.graph.floats(&name, &shape, &bias) };
        let masked = |masks: &[u8]| -> Vec<f32> {
            masks.iter().flat_map(|&mask| masked_bias(op, regions, &bias, mask)).collect()
        };
        let all = |masks: usize| [&[masks][..], &shape].concat();
        match self.windows(op) {
            Some(windows) if windows.masks().iter().any(|&mask| mask != 0) => {
                self.graph.floats(&name, &all(windows.count()), &masked(windows.masks()))
            }
            None if self.free(place(op).0).rule.is_shifted() => {
                let table = self.graph.floats(&name, &all(MASKS), &masked(&[0, 1, 2, 3]));
                let masks = self.masks_of_free(place(op).0);
                let axis = [Attribute::Int("axis", 0)];
                self.graph.node("Gather", &format!("{name}.windows"), &[&table, &masks], &axis)
            }
            _ => self.graph.floats(&name, &shape, &bias),
        }
    }

    /// The values `v` weighted with the probabilities of `logits`.
    fn weighted(&mut self, name: &str, probs: Probs, logits: &str, v: &str) -> String {
        let site = format!("{name}.probs");
        let weighted = format!("{name}.weighted");
        let form = self.options.probs_form();
        if probs == Probs::U8 && form == ProbsForm::Exact {
            let p = self.exponentials(&site, logits);
            let sum = self.graph.node("MatMul", &format!("{weighted}.sum"), &[&p, v], &[]);
            let axes = self.graph.list(&[-1]);
            let keep = [Attribute::Int("keepdims", 1)];
            let total = self.graph.node("ReduceSum", &format!("{site}.total"), &[&p, &axes], &keep);
            return self.graph.node("Div", &weighted, &[&sum, &total], &[]);
        }
        let axis = [Attribute::Int("axis", -1)];
        let softmax = self.graph.node("Softmax", &format!("{name}.softmax"), &[logits], &axis);
        let p = match probs {
            Probs::Float => softmax,
            Probs::S8(q) => self.quantize(&site, &softmax, q.scale(), q.scale()),
            Probs::U8 if self.options.target == Target::TensorRt => {
                self.quantize(&site, &softmax, 1.0 / Int8::MAX, 1.0 / Int8::MAX)
            }
            Probs::U8 => self.quantize_u8(&site, &softmax),
        };
        self.graph.node("MatMul", &weighted, &[&p, v], &[])
    }

    /// `exp(logit - max)` of each row, as codes of steps of 1/255.
    fn exponentials(&mut self, site: &str, logits: &str) -> String {
        let axes = self.graph.list(&[-1]);
        let keep = [Attribute::Int("keepdims", 1)];
        let max = self.graph.node("ReduceMax", &format!("{site}.max"), &[logits, &axes], &keep);
        let below = self.graph.node("Sub", &format!("{site}.below_max"), &[logits, &max], &[]);
        let exp = self.graph.node("Exp", &format!("{site}.exp"), &[&below], &[]);
        self.quantize_u8(site, &exp)
    }

    fn quantize_u8(&mut self, site: &str, x: &str) -> String {
        let zero = self.graph.zero_u8();
        self.quantize_to(site, x, 1.0 / 255.0, (1.0 / 255.0, self.graph.is_half()), &zero)
    }
}

/// The stage whose windows attention runs in, and whether they are those of an odd block.
fn place(op: &Attention<'_>) -> (usize, bool) {
    let Order::Windows { stage, shifted } = op.order else { unreachable!("attention runs in windows") };
    (stage, shifted)
}

/// The bias `[heads, tokens, tokens]` with the mask of this number.
fn masked_bias(op: &Attention<'_>, regions: &[u8], bias: &[f32], mask: u8) -> Vec<f32> {
    let regions = &regions[usize::from(mask) * op.tokens..][..op.tokens];
    let apart = regions.iter().flat_map(|query| regions.iter().map(move |key| query != key));
    let apart: Vec<bool> = apart.collect();
    let add = |(&bias, &apart): (&f32, &bool)| if apart { bias + op.mask } else { bias };
    bias.chunks_exact(op.tokens * op.tokens).flat_map(|head| head.iter().zip(&apart).map(add)).collect()
}
