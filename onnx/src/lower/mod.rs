//! Turns the steps of a plan into nodes.
//!
//! A value of the graph is `[batch, rows, columns]` of the plan's tensor, always float: a tensor that the
//! plan holds as codes is the value behind QuantizeLinear and DequantizeLinear here, and the runtime fuses
//! these with the product.

mod attention;
mod grid;
mod integer;
mod linear;
mod patches;
mod rows;

use std::collections::{HashMap, HashSet};

use swinq_model::SizeRules;
use swinq_numerics::reference::resize_bicubic;
use swinq_plan::{Geometry, Op, Order, Output, OutputKind, Plan, Step, Store, TensorId};

use self::grid::{FreeGrid, Sides};
use self::integer::Integer;
use crate::error::OnnxError;
use crate::graph::{Attribute, Dim, Graph};
use crate::options::{BatchSize, ExportOptions};
use crate::proto::{GraphProto, data_type};

/// The sizes of the images of a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizing<'a> {
    /// One size.
    Fixed(&'a Geometry),
    /// All that the network takes.
    Free(&'a SizeRules),
}

/// The graph of `plan`, named `name`, for images of the sizes `sizing`. `mean` and `std` normalise the
/// pixels. In an f16 graph the residual stream is f32 if `f32_residual`.
pub(crate) fn lower(
    (plan, sizing): (&Plan<'_>, Sizing<'_>),
    name: &str,
    (mean, std): (&[f32], &[f32]),
    (options, f32_residual): (&ExportOptions, bool),
) -> Result<GraphProto, OnnxError> {
    let mut lowering = Lowering {
        plan,
        sizing,
        grids: Vec::new(),
        options,
        graph: Graph::new(name),
        residual: if f32_residual { residual_tensors(plan) } else { HashSet::new() },
        values: HashMap::new(),
        normalised: HashSet::new(),
    };
    for (index, step) in plan.steps.iter().enumerate() {
        lowering.step(index, step, (mean, std))?;
    }
    lowering.outputs();
    lowering.graph.finish()
}

/// The tensors of the residual stream.
fn residual_tensors(plan: &Plan<'_>) -> HashSet<usize> {
    let adding = plan.steps.iter().filter(|step| matches!(step.store, Store::Residual { .. }));
    let merged = plan.steps.iter().filter(|step| matches!(step.op, Op::Merge(_)));
    // A stack of blocks may end with the result of merging.
    let linear = |tensor: &TensorId| {
        plan.steps.iter().any(|step| step.output == *tensor && matches!(step.op, Op::Linear(_)))
    };
    let maps =
        plan.outputs.iter().filter(|output| output.kind != OutputKind::Logits).map(|output| output.tensor);
    adding
        .map(|step| step.output)
        .chain(merged.map(|step| step.input))
        .chain(maps.filter(linear))
        .map(|tensor| tensor.0)
        .collect()
}

/// The state of a lowering.
struct Lowering<'a> {
    plan: &'a Plan<'a>,
    sizing: Sizing<'a>,
    /// The grids of the stages, where the size is free.
    grids: Vec<FreeGrid>,
    options: &'a ExportOptions,
    graph: Graph,
    /// The tensors of the residual stream if it is f32 in an f16 graph.
    residual: HashSet<usize>,
    /// The current value of each tensor of the plan.
    values: HashMap<usize, String>,
    /// The tensors of queries, keys and values that are to be normalised (Swin V2).
    normalised: HashSet<usize>,
}

impl Lowering<'_> {
    fn step(
        &mut self,
        index: usize,
        step: &Step<'_>,
        normalisation: (&[f32], &[f32]),
    ) -> Result<(), OnnxError> {
        let name = &step.name[..];
        // The steps around an f32 residual compute in f32.
        self.graph.set_half(self.is_half(step.input) && self.is_half(step.output));
        let value = match &step.op {
            Op::Patches(op) => {
                let x = self.patches(op, normalisation);
                self.store(index, step, x)?
            }
            Op::Linear(op) => {
                let x = self.value(step.input);
                let y = self.linear(op, &x)?;
                self.finish_branch(index, step, op.order, y)?
            }
            Op::Norm(op, order) => {
                let x = self.value(step.input);
                let y = self.layer_norm(name, op, &x);
                match step.store {
                    Store::Residual { .. } => self.finish_branch(index, step, *order, y)?,
                    _ => {
                        let y = self.gather_windows(name, *order, y);
                        self.store(index, step, y)?
                    }
                }
            }
            Op::Quantize(order) => {
                let x = self.value(step.input);
                let y = self.gather_windows(name, *order, x);
                self.store(index, step, y)?
            }
            Op::NormInPlace(op) => {
                let x = self.value(step.input);
                self.layer_norm(name, op, &x)
            }
            Op::PositionEmbedding(table) => {
                let columns = self.plan.tensor(step.output).columns;
                let (x, table) = (self.value(step.output), self.position(&table.read()));
                let table = self.graph.floats(name, &[1, table.len() / columns, columns], &table);
                self.graph.node("Add", &format!("{name}.add"), &[&x, &table], &[])
            }
            Op::QkNorm(_) => {
                self.normalised.insert(step.output.0);
                self.value(step.input)
            }
            Op::Attention(op) => {
                let qkv = self.value(step.input);
                let y = self.attention(name, op, &qkv, self.normalised.contains(&step.input.0));
                self.store(index, step, y)?
            }
            Op::Merge(op) => {
                let x = self.value(step.input);
                let y = self.merge(name, op, &x, self.plan.tensor(step.output).columns);
                self.store(index, step, y)?
            }
            Op::Pool(op) => {
                let x = self.value(step.input);
                let y = self.layer_norm(name, op, &x);
                let axes = self.graph.list(&[1]);
                let y = self.graph.node(
                    "ReduceMean",
                    &format!("{name}.mean"),
                    &[&y, &axes],
                    &[Attribute::Int("keepdims", 1)],
                );
                self.store(index, step, y)?
            }
        };
        self.values.insert(step.output.0, value);
        Ok(())
    }

    /// The absolute position embedding `table` for the tokens of the images.
    fn position(&self, table: &[f32]) -> Vec<f32> {
        let own = self.plan.own.grid(0).size;
        match self.sizing {
            Sizing::Fixed(geometry) if geometry.grid(0).size != own => {
                resize_bicubic(table, own, geometry.grid(0).size)
            }
            Sizing::Fixed(_) | Sizing::Free(_) => table.to_vec(),
        }
    }

    /// Whether the values of a tensor are f16, unless they are the operand of a product in f32.
    fn is_half(&self, tensor: TensorId) -> bool {
        self.options.fp16 && !self.residual.contains(&tensor.0)
    }

    /// Whether the values are f16 behind the site of the result of `step`: those of the residual, and
    /// operands of products that are added to it, are not, and neither are maps, which are f32 outputs.
    fn stores_half(&self, index: usize, step: &Step<'_>) -> bool {
        let is_map = |output: &Output| output.tensor == step.output && output.kind != OutputKind::Logits;
        let product = self.reader(index, step).map_or(step.output, |reader| reader.output);
        let precise = !self.residual.is_empty() && self.plan.outputs.iter().any(is_map);
        self.is_half(step.output) && self.is_half(product) && !precise
    }

    /// `x`, which is f16 if the constants are, in f16 if `half`, else in f32.
    fn cast(&mut self, x: String, half: bool) -> String {
        if half == self.graph.is_half() {
            return x;
        }
        let (suffix, to) = if half { ("f16", data_type::FLOAT16) } else { ("f32", data_type::FLOAT) };
        self.graph.node("Cast", &format!("{x}.{suffix}"), &[&x], &[Attribute::Int("to", i64::from(to))])
    }

    /// The current value of a tensor.
    fn value(&self, tensor: TensorId) -> String {
        self.values[&tensor.0].clone()
    }

    /// Passes `x` through the site at which `step` stores it.
    fn store(&mut self, index: usize, step: &Step<'_>, x: String) -> Result<String, OnnxError> {
        let half = self.stores_half(index, step);
        match &step.store {
            // The parts are the sites of queries, keys and values, which attention passes its operands
            // through.
            Store::Codes(parts) if parts.len() > 1 => Ok(x),
            Store::F32 | Store::Residual { .. } => Ok(self.cast(x, half)),
            Store::Fake(q) => Ok(self.quantize_for(&self.site(index, step), &x, q.scale(), half)),
            Store::Codes(parts) => Ok(self.quantize_for(&self.site(index, step), &x, parts[0].scale(), half)),
            Store::ChannelFake(columns) => self.channel_fake(&self.site(index, step), &x, columns, half),
            Store::ChannelCodes(columns) => self.channel_codes(&self.site(index, step), &x, columns, half),
        }
    }

    /// The linear layer that reads the result of `step`, if one does.
    fn reader(&self, index: usize, step: &Step<'_>) -> Option<&Step<'_>> {
        let mut later = self.plan.steps[index + 1..].iter();
        later.find(|later| later.input == step.output && matches!(later.op, Op::Linear(_)))
    }

    /// The site at which the result of `step` is quantized: the input of the linear layer that reads it.
    fn site(&self, index: usize, step: &Step<'_>) -> String {
        match self.reader(index, step).map(|reader| &reader.op) {
            Some(Op::Linear(linear)) => format!("{}.input", linear.layer),
            _ => unreachable!("only inputs of linear layers are stored through a site"),
        }
    }

    /// The rows of a branch's end: back in the order of the tokens, and added to the residual, if the step
    /// adds to it.
    fn finish_branch(
        &mut self,
        index: usize,
        step: &Step<'_>,
        order: Order,
        y: String,
    ) -> Result<String, OnnxError> {
        let Store::Residual { branch, shortcut } = &step.store else { return self.store(index, step, y) };
        let mut y = self.scatter_windows(&step.name, order, y);
        let sum = addition(&step.name);
        let mut residual = self.value(step.output);
        if let Some(q) = branch {
            y = self.quantize(&format!("{sum}.branch"), &y, q.scale(), q.scale());
        }
        if let Some(q) = shortcut {
            residual = self.quantize(&format!("{sum}.shortcut"), &residual, q.scale(), q.scale());
        }
        Ok(self.graph.node("Add", &sum, &[&residual, &y], &[]))
    }

    /// QuantizeLinear and DequantizeLinear at `site`: codes in steps of `scale`, which stand for multiples of
    /// `meaning`.
    fn quantize(&mut self, site: &str, x: &str, scale: f32, meaning: f32) -> String {
        let (zero, half) = (self.graph.zero_s8(), self.graph.is_half());
        self.quantize_to(site, x, scale, (meaning, half), &zero)
    }

    /// QuantizeLinear and DequantizeLinear at `site`, whose values are f16 if `half`.
    fn quantize_for(&mut self, site: &str, x: &str, scale: f32, half: bool) -> String {
        let zero = self.graph.zero_s8();
        self.quantize_to(site, x, scale, (scale, half), &zero)
    }

    /// Codes of `x` in steps of `scale` and of the type of the zero point `zero`, and their values, multiples
    /// of `meaning`, which are f16 if `half`.
    fn quantize_to(
        &mut self,
        site: &str,
        x: &str,
        scale: f32,
        (meaning, half): (f32, bool),
        zero: &str,
    ) -> String {
        let own = self.graph.is_half();
        let step = self.graph.scales(&format!("{site}.scale"), &[], &[scale]);
        let codes = self.graph.node("QuantizeLinear", &format!("{site}.codes"), &[x, &step, zero], &[]);
        let step = match (meaning, half) == (scale, own) {
            true => step,
            false => {
                self.graph.set_half(half);
                let factor = self.graph.scales(&format!("{site}.factor"), &[], &[meaning]);
                self.graph.set_half(own);
                factor
            }
        };
        self.graph.node("DequantizeLinear", site, &[&codes, &step, zero], &[])
    }

    /// The outputs, in f32: logits `[batch, classes]`, feature maps `[batch, channels, height, width]`.
    fn outputs(&mut self) {
        for Output { name, tensor, kind } in &self.plan.outputs {
            let (x, columns) = (self.value(*tensor), self.plan.tensor(*tensor).columns);
            let mut shape = vec![Integer::Known(0), Integer::from(columns)];
            let mut dims = vec![self.batch(), Dim::Fixed(columns)];
            let x = match *kind {
                OutputKind::Logits => x,
                OutputKind::Stage(stage) => {
                    let Sides { height, width } = self.grid(stage);
                    for (side, tokens) in [("height", height), ("width", width)] {
                        dims.push(tokens.dim(&format!("{name}_{side}")));
                        shape.push(tokens);
                    }
                    self.transpose(&format!("{name}.channels"), &x, &[0, 2, 1])
                }
            };
            let shape = self.sizes(&format!("{name}.shape"), &shape);
            if self.options.fp16 && (self.residual.is_empty() || *kind == OutputKind::Logits) {
                let half = self.graph.node("Reshape", &format!("{name}.f16"), &[&x, &shape], &[]);
                let to = Attribute::Int("to", i64::from(data_type::FLOAT));
                self.graph.node("Cast", name, &[&half], &[to]);
            } else {
                self.graph.node("Reshape", name, &[&x, &shape], &[]);
            }
            self.graph.output(name, data_type::FLOAT, &dims);
        }
    }

    /// Height and width of the grid of a stage.
    fn grid(&self, stage: usize) -> Sides {
        match self.sizing {
            Sizing::Fixed(geometry) => Sides::from(geometry.grid(stage).size),
            Sizing::Free(_) => self.free(stage).sides(),
        }
    }

    /// The grid of a stage in a graph for images of any size.
    fn free(&self, stage: usize) -> &FreeGrid {
        &self.grids[stage]
    }

    fn transpose(&mut self, name: &str, x: &str, order: &[i64]) -> String {
        self.graph.node("Transpose", name, &[x], &[Attribute::Ints("perm", order)])
    }

    fn batch(&self) -> Dim {
        match self.options.batch {
            BatchSize::Free => Dim::Free("batch".to_owned()),
            BatchSize::Fixed(images) => Dim::Fixed(images),
        }
    }
}

/// The name of the residual addition at the end of the branch whose last step is `name`: `BLOCK.attn.add` or
/// `BLOCK.mlp.add`.
fn addition(name: &str) -> String {
    let block: Vec<&str> = name.split('.').take(4).collect();
    let attention = name.ends_with(".attn.proj") || name.ends_with(".norm1");
    format!("{}.{}.add", block.join("."), if attention { "attn" } else { "mlp" })
}
