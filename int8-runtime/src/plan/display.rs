//! A plan as text, for `inspect --plan`.

use std::fmt;

use super::{Element, Op, Order, Plan, Step, Store};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<36} {:<44} {:>16} {:>9}  reads -> writes", "launch", "op", "per image", "MMAC")?;
        for step in &self.steps {
            let output = self.tensor(step.output);
            let shape = format!("{}x{}", self.tensor(step.input).rows, output.columns);
            let macs = if step.macs == 0 { String::new() } else { format!("{:.1}", step.macs as f64 / 1e6) };
            let reads = element(self.tensor(step.input).element);
            writeln!(
                f,
                "{:<36} {:<44} {shape:>16} {macs:>9}  {reads} -> {}",
                step.name,
                describe(step),
                store(step)
            )?;
        }
        Ok(())
    }
}

fn element(element: Element) -> &'static str {
    match element {
        Element::Pixel => "u8",
        Element::F32 => "f32",
        Element::Code => "INT8",
    }
}

fn store(step: &Step) -> String {
    match &step.store {
        Store::F32 => "f32".to_owned(),
        Store::Fake(q) => format!("f32 on the INT8 grid (scale {:.4e})", q.scale()),
        Store::Codes(q) => {
            let scales: Vec<String> = q.iter().map(|q| format!("{:.4e}", q.scale())).collect();
            format!("INT8 (scale {})", scales.join(", "))
        }
        Store::Residual { branch: None, shortcut: None } => "f32 stream +=".to_owned(),
        Store::Residual { .. } => "f32 stream += (operands on the INT8 grid)".to_owned(),
    }
}

fn describe(step: &Step) -> String {
    let windows = |order: &Order| match order {
        Order::Tokens => "",
        Order::Windows { shift: 0, .. } => " + window partition",
        Order::Windows { .. } => " + shift + window partition",
    };
    let text = match &step.op {
        Op::Patches => "patch gather + normalise".to_owned(),
        Op::Product { int8, output, gelu, order, .. } => {
            let kind = if *int8 { "gemm INT8" } else { "gemm f32" };
            let output = if output.is_some() { " -> INT8 out" } else { "" };
            let gelu = if *gelu { " + GELU" } else { "" };
            let reverse = match (&step.store, order) {
                (Store::Residual { .. }, Order::Windows { .. }) => " + window reverse + residual",
                (Store::Residual { .. }, Order::Tokens) => " + residual",
                _ => "",
            };
            format!("{kind}{output} + bias{gelu}{reverse}")
        }
        Op::Norm { order, .. } => format!("LayerNorm{}", windows(order)),
        Op::NormInPlace { .. } => "LayerNorm in place".to_owned(),
        Op::PositionEmbedding => "add position embedding".to_owned(),
        Op::Attention { quant, .. } => {
            let scores = if quant.q.is_some() && quant.k.is_some() { "INT8" } else { "f32" };
            let quantized = quant.v.is_some() && quant.probs != swinq_kernels::Probs::Float;
            let values = if quantized { "INT8" } else { "f32" };
            format!("window attention, QK^T {scores}, PV {values}")
        }
        Op::Merge { .. } => "2x2 merge + LayerNorm".to_owned(),
        Op::Pool => "LayerNorm + mean over tokens".to_owned(),
    };
    let quantize = matches!(step.store, Store::Codes(_) | Store::Fake(_));
    if quantize { text + " + quantize" } else { text }
}
