//! A plan without its parameters. An engine keeps it, and `inspect --plan` prints it.

use std::fmt;
use std::sync::Arc;

use swinq_model::Size;
use swinq_numerics::Probs;

use crate::{
    Attention, Geometry, Linear, Op, Order, Output, Plan, QkNorm, Step, Store, TensorId, TensorSpec,
};

/// A plan without its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Every tensor; the first is the image.
    pub tensors: Vec<TensorSpec>,
    /// Every op in order.
    pub steps: Vec<StepOutline>,
    /// Every output.
    pub outputs: Vec<Output>,
    /// The geometry for the network's own image size.
    pub own: Arc<Geometry>,
}

/// One op in words, with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutline {
    /// Module path in Microsoft's naming.
    pub name: String,
    /// The op, in words.
    pub op: String,
    /// How the result is stored, in words.
    pub store: String,
    /// The tensor that the op reads.
    pub input: TensorId,
    /// The tensor that the op writes.
    pub output: TensorId,
    /// Multiply-accumulates for each row of the input.
    pub macs_per_row: u64,
}

impl Outline {
    pub(crate) fn new(plan: &Plan<'_>) -> Outline {
        let step = |step: &Step<'_>| StepOutline {
            name: step.name.clone(),
            op: describe(step, &plan.own),
            store: store(&step.store),
            input: step.input,
            output: step.output,
            macs_per_row: step.macs_per_row,
        };
        Outline {
            tensors: plan.tensors.clone(),
            steps: plan.steps.iter().map(step).collect(),
            outputs: plan.outputs.clone(),
            own: Arc::clone(&plan.own),
        }
    }

    /// Multiply-accumulates of `step` for one image of the network's own size.
    pub fn macs(&self, step: &StepOutline) -> u64 {
        step.macs_per_row * self.own.rows(self.tensor(step.input).rows) as u64
    }

    /// The tensor `id`.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }
}

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outline().fmt(f)
    }
}

impl fmt::Display for Outline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<36} {:<44} {:>16} {:>9}  reads -> writes", "launch", "op", "per image", "MMAC")?;
        for step in &self.steps {
            let (input, output) = (self.tensor(step.input), self.tensor(step.output));
            let rows = self.own.rows(input.rows);
            let shape = format!("{rows}x{}", output.columns);
            let macs = self.macs(step);
            let macs = if macs == 0 { String::new() } else { format!("{:.1}", macs as f64 / 1e6) };
            let (name, op, reads, writes) = (&step.name, &step.op, input.element.name(), &step.store);
            writeln!(f, "{name:<36} {op:<44} {shape:>16} {macs:>9}  {reads} -> {writes}")?;
        }
        Ok(())
    }
}

fn store(store: &Store) -> String {
    match store {
        Store::F32 => "f32".to_owned(),
        Store::Fake(q) => format!("f32 on the INT8 grid (scale {:.4e})", q.scale()),
        Store::Codes(q) => {
            let scales: Vec<String> = q.iter().map(|q| format!("{:.4e}", q.scale())).collect();
            format!("INT8 (scale {})", scales.join(", "))
        }
        Store::ChannelFake(_) => "f32 on the INT8 grid (scale and zero point per channel)".to_owned(),
        Store::ChannelCodes(_) => "INT8 (scale and zero point per channel)".to_owned(),
        Store::Residual { branch: None, shortcut: None } => "f32 residual +=".to_owned(),
        Store::Residual { .. } => "f32 residual += (operands on the INT8 grid)".to_owned(),
    }
}

fn describe(step: &Step<'_>, own: &Geometry) -> String {
    let text = match &step.op {
        Op::Patches(_) => "patch gather + normalise".to_owned(),
        Op::Linear(linear) => describe_linear(linear, &step.store),
        Op::Norm(_, order) => match &step.store {
            Store::Residual { .. } => format!("LayerNorm{} + residual", window_reverse(order)),
            _ => format!("LayerNorm{}", window_partition(*order, own)),
        },
        Op::Quantize(order) => format!("gather{}", window_partition(*order, own)),
        Op::NormInPlace(_) => "LayerNorm in place".to_owned(),
        Op::PositionEmbedding(_) => "add position embedding".to_owned(),
        Op::QkNorm(heads) => describe_qk_norm(heads),
        Op::Attention(attention) => describe_attention(attention),
        Op::Merge(merge) if merge.norm.is_none() => "2x2 merge".to_owned(),
        Op::Merge(_) => "2x2 merge + LayerNorm".to_owned(),
        Op::Pool(_) => "LayerNorm + mean over tokens".to_owned(),
    };
    match step.store {
        Store::F32 | Store::Residual { .. } => text,
        _ => text + " + quantize",
    }
}

fn describe_linear(linear: &Linear<'_>, store: &Store) -> String {
    let kind = if linear.is_int8() { "gemm INT8" } else { "gemm f32" };
    let output = if linear.output.is_some() { " -> INT8 out" } else { "" };
    let gelu = if linear.gelu.is_some() { " + GELU" } else { "" };
    let residual = match store {
        Store::Residual { .. } => window_reverse(&linear.order).to_owned() + " + residual",
        _ => String::new(),
    };
    format!("{kind}{output} + bias{gelu}{residual}")
}

fn window_partition(order: Order, own: &Geometry) -> &'static str {
    match order {
        Order::Tokens(_) => "",
        Order::Windows { stage, shifted } => match own.grid(stage).shift_of(shifted) {
            Size { height: 0, width: 0 } => " + window partition",
            _ => " + shift + window partition",
        },
    }
}

fn window_reverse(order: &Order) -> &'static str {
    match order {
        Order::Tokens(_) => "",
        Order::Windows { .. } => " + window reverse",
    }
}

fn describe_qk_norm(heads: &QkNorm) -> String {
    match heads.hi_lo.iter().filter(|&&two| two).count() {
        0 => "q, k to length 1".to_owned(),
        two => format!("q, k to length 1, 2 codes in {two} of {}", heads.heads),
    }
}

fn describe_attention(attention: &Attention<'_>) -> String {
    let quant = &attention.quant;
    let name = |int8: bool| if int8 { "INT8" } else { "f32" };
    let scores = name(quant.q.is_some() && quant.k.is_some());
    let values = name(quant.v.is_some() && quant.probs != Probs::Float);
    let signed = if matches!(quant.probs, Probs::S8(_)) { " (s8 probabilities)" } else { "" };
    let rounded = if quant.scores.is_some() { " -> INT8 out" } else { "" };
    format!("window attention, QK^T {scores}{rounded}, PV {values}{signed}")
}
