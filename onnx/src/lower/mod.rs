//! Turns the steps of a plan into nodes.
//!
//! A value of the graph is `[batch, rows, columns]` of the plan's tensor, always float: a tensor that the plan holds as
//! codes is the value behind QuantizeLinear and DequantizeLinear here, and the runtime fuses these with the product.

mod attention;
mod linear;
mod rows;

use std::collections::{HashMap, HashSet};

use swinq_model::Size;
use swinq_plan::{Element, Geometry, Op, Order, Output, OutputKind, Patches, Plan, Step, Store, TensorId};

use crate::error::OnnxError;
use crate::graph::{Attribute, Graph};
use crate::options::{BatchSize, ExportOptions, InputForm};
use crate::proto::{GraphProto, data_type};

/// The graph of `plan`, named `name`, for images of the size of `geometry`. `mean` and `std` normalise the pixels.
pub(crate) fn lower(
    (plan, geometry): (&Plan<'_>, &Geometry),
    name: &str,
    (mean, std): (&[f32], &[f32]),
    options: &ExportOptions,
) -> Result<GraphProto, OnnxError> {
    let mut lowering = Lowering {
        plan,
        geometry,
        options,
        graph: Graph::new(name, options.fp16),
        values: HashMap::new(),
        normalised: HashSet::new(),
    };
    for (index, step) in plan.steps.iter().enumerate() {
        lowering.step(index, step, (mean, std))?;
    }
    lowering.outputs();
    lowering.graph.finish()
}

/// The state of a lowering.
struct Lowering<'a> {
    plan: &'a Plan<'a>,
    geometry: &'a Geometry,
    options: &'a ExportOptions,
    graph: Graph,
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
                let shape = *self.plan.tensor(step.output);
                let x = self.value(step.output);
                let rows = self.geometry.rows(shape.rows);
                let table = self.graph.floats(name, &[1, rows, shape.columns], &table.read());
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
                let y = self.merge(name, op, x, self.plan.tensor(step.output).columns);
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

    /// The current value of a tensor.
    fn value(&self, tensor: TensorId) -> String {
        self.values[&tensor.0].clone()
    }

    /// Passes `x` through the site at which `step` stores it.
    fn store(&mut self, index: usize, step: &Step<'_>, x: String) -> Result<String, OnnxError> {
        match &step.store {
            Store::F32 | Store::Residual { .. } => Ok(x),
            Store::Fake(q) => Ok(self.quantize(&self.reader(index, step), &x, q.scale(), q.scale())),
            // The parts are the sites of queries, keys and values, which attention passes its operands through.
            Store::Codes(parts) if parts.len() > 1 => Ok(x),
            Store::Codes(parts) => {
                let scale = parts[0].scale();
                Ok(self.quantize(&self.reader(index, step), &x, scale, scale))
            }
            Store::ChannelFake(columns) => self.channel_fake(&self.reader(index, step), &x, columns),
            Store::ChannelCodes(columns) => self.channel_codes(&self.reader(index, step), &x, columns),
        }
    }

    /// The site at which the result of `step` is quantized: the input of the linear layer that reads it.
    fn reader(&self, index: usize, step: &Step<'_>) -> String {
        let readers = self.plan.steps[index + 1..].iter().filter(|later| later.input == step.output);
        let layer = readers.filter_map(|later| match &later.op {
            Op::Linear(linear) => Some(format!("{}.input", linear.layer)),
            _ => None,
        });
        let mut layer = layer;
        layer.next().expect("only inputs of linear layers are stored through a site")
    }

    /// The rows of a branch's end: back in the order of the tokens, and added to the residual, if the step adds to it.
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

    /// QuantizeLinear and DequantizeLinear at `site`: codes in steps of `scale`, which stand for multiples of `meaning`.
    fn quantize(&mut self, site: &str, x: &str, scale: f32, meaning: f32) -> String {
        let zero = self.graph.zero_s8();
        self.quantize_to(site, x, scale, meaning, &zero)
    }

    /// As [`Lowering::quantize`], with codes of the type of the zero point `zero`.
    fn quantize_to(&mut self, site: &str, x: &str, scale: f32, meaning: f32, zero: &str) -> String {
        let step = self.graph.scales(&format!("{site}.scale"), &[], &[scale]);
        let codes = self.graph.node("QuantizeLinear", &format!("{site}.codes"), &[x, &step, zero], &[]);
        let step = match meaning == scale {
            true => step,
            false => self.graph.scales(&format!("{site}.factor"), &[], &[meaning]),
        };
        self.graph.node("DequantizeLinear", site, &[&codes, &step, zero], &[])
    }

    /// The outputs, in f32: logits `[batch, classes]`, feature maps `[batch, channels, height, width]`.
    fn outputs(&mut self) {
        for Output { name, tensor, kind } in &self.plan.outputs {
            let (x, columns) = (self.value(*tensor), self.plan.tensor(*tensor).columns);
            let (x, sides) = match *kind {
                OutputKind::Logits => (x, vec![columns]),
                OutputKind::Stage(stage) => {
                    let grid = self.geometry.grid(stage).size;
                    let x = self.transpose(&format!("{name}.channels"), &x, &[0, 2, 1]);
                    (x, vec![columns, grid.height, grid.width])
                }
            };
            let shape: Vec<i64> = [0].into_iter().chain(sides.iter().map(|&side| side as i64)).collect();
            let shape = self.graph.list(&shape);
            if self.options.fp16 {
                let half = self.graph.node("Reshape", &format!("{name}.f16"), &[&x, &shape], &[]);
                let to = Attribute::Int("to", i64::from(data_type::FLOAT));
                self.graph.node("Cast", name, &[&half], &[to]);
            } else {
                self.graph.node("Reshape", name, &[&x, &shape], &[]);
            }
            let shape: Vec<Option<usize>> =
                [self.batch()].into_iter().chain(sides.into_iter().map(Some)).collect();
            self.graph.output(name, data_type::FLOAT, &shape);
        }
    }

    /// The input, and its patches `[batch, patches, channels patch^2]`.
    fn patches(&mut self, op: &Patches, normalisation: (&[f32], &[f32])) -> String {
        debug_assert_eq!(self.plan.tensor(self.plan.image()).element, Element::Pixel);
        let (image, grid, side) = (self.geometry.image(), self.geometry.grid(0).size, op.patch as i64);
        let channels = op.lookup.len();
        let (height, width) = (grid.height as i64, grid.width as i64);
        let (below, right) = (height * side - image.height as i64, width * side - image.width as i64);
        let to = Attribute::Int("to", i64::from(self.graph.float_type()));
        let rows = match self.options.input {
            InputForm::Normalized => {
                let shape = [self.batch(), Some(channels), Some(image.height), Some(image.width)];
                let mut x = self.graph.input("images", data_type::FLOAT, &shape);
                if self.options.fp16 {
                    x = self.graph.node("Cast", "images.f16", &[&x], &[to]);
                }
                x = self.pad(x, &[0, 0, 0, 0, 0, 0, below, right]);
                let shape = self.graph.list(&[0, channels as i64, height, side, width, side]);
                let x = self.graph.node("Reshape", "patch_embed.grid", &[&x, &shape], &[]);
                self.transpose("patch_embed.patches", &x, &[0, 2, 4, 1, 3, 5])
            }
            InputForm::Pixels => {
                let x = self.pixels(image, channels, normalisation);
                let x = self.pad(x, &[0, 0, 0, 0, 0, below, right, 0]);
                let shape = self.graph.list(&[0, height, side, width, side, channels as i64]);
                let x = self.graph.node("Reshape", "patch_embed.grid", &[&x, &shape], &[]);
                self.transpose("patch_embed.patches", &x, &[0, 1, 3, 5, 2, 4])
            }
        };
        let shape = self.graph.list(&[0, height * width, channels as i64 * side * side]);
        self.graph.node("Reshape", "patch_embed.rows", &[&rows, &shape], &[])
    }

    /// Normalised images with zeros around them: `pads` before and after each axis.
    fn pad(&mut self, x: String, pads: &[i64]) -> String {
        if pads.iter().all(|&pad| pad == 0) {
            return x;
        }
        let pads = self.graph.list(pads);
        self.graph.node("Pad", "patch_embed.padded", &[&x, &pads], &[])
    }

    /// The input of bytes, normalised as docs/inference.md states: `(p / 255 - mean) / std`.
    fn pixels(&mut self, image: Size, channels: usize, (mean, std): (&[f32], &[f32])) -> String {
        let shape = [self.batch(), Some(image.height), Some(image.width), Some(channels)];
        let x = self.graph.input("pixels", data_type::UINT8, &shape);
        let to = Attribute::Int("to", i64::from(data_type::FLOAT));
        let mut x = self.graph.node("Cast", "pixels.f32", &[&x], &[to]);
        for (op, what, values) in [("Div", "scale", &[255.0][..]), ("Sub", "mean", mean), ("Div", "std", std)]
        {
            let constant = self.graph.floats32(&format!("transform.{what}"), &[values.len()], values);
            x = self.graph.node(op, &format!("pixels.{what}"), &[&x, &constant], &[]);
        }
        if self.options.fp16 {
            let to = Attribute::Int("to", i64::from(data_type::FLOAT16));
            x = self.graph.node("Cast", "pixels.f16", &[&x], &[to]);
        }
        x
    }

    fn transpose(&mut self, name: &str, x: &str, order: &[i64]) -> String {
        self.graph.node("Transpose", name, &[x], &[Attribute::Ints("perm", order)])
    }

    fn batch(&self) -> Option<usize> {
        match self.options.batch {
            BatchSize::Free => None,
            BatchSize::Fixed(images) => Some(images),
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
