//! The network as a list of ops, before any backend.
//!
//! [`Plan::new`] validates a [`QuantizedModel`](swinq_model::QuantizedModel) and resolves it once: each
//! [`Step`] carries its parameters (weights, scales, quantizers, row orders), so that a backend, an exporter
//! or a tuner reads the plan and never the model. The plan borrows the model and copies no weight. An
//! [`Outline`] holds only names, shapes and element types, so it does not borrow the model.
//!
//! A plan does not know the size of the image: it names rows ([`Rows`]) and their order ([`Order`]). A
//! [`Geometry`] counts and lists them for one image size.
//!
//! Only three places describe the computations of a Swin: the float forward (`swinq-float`), the plan, and
//! the forward of training in PyTorch (`_training/network.py`).

mod build;
mod geometry;
mod op;
mod outline;
mod values;

use std::sync::Arc;

pub use geometry::{Geometry, Grids, Order, Rows};
pub use op::{Attention, Linear, Merge, Norm, Op, Patches, QkNorm, Store, Weight};
pub use outline::{Outline, StepOutline};
pub use values::{RelativeBias, Values};

/// A tensor of the plan, by index into [`Plan::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorId(pub usize);

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// u8 pixels, as the caller gives them.
    Pixel,
    /// f32. A backend may hold it in another float type.
    F32,
    /// INT8 codes.
    Code,
}

impl Element {
    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Element::Pixel => "u8",
            Element::F32 => "f32",
            Element::Code => "INT8",
        }
    }
}

/// A tensor of the plan: `[images * rows, columns]`. How rows are laid out in memory is the backend's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The rows of one image.
    pub rows: Rows,
    /// Columns.
    pub columns: usize,
    /// Type of the elements.
    pub element: Element,
}

/// One op with its operands.
#[derive(Clone, Debug)]
pub struct Step<'m> {
    /// Module path in Microsoft's naming, for profiles, listings, errors and values of ONNX. No other step
    /// has it.
    pub name: String,
    /// The op, with its parameters.
    pub op: Op<'m>,
    /// How the result is stored.
    pub store: Store,
    /// The tensor that the op reads.
    pub input: TensorId,
    /// The tensor that the op writes. Residual stores and in-place ops read and write it: it is the residual.
    pub output: TensorId,
    /// Multiply-accumulates for each row of the input.
    pub macs_per_row: u64,
}

/// The kind of an output of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Class scores before softmax: one row.
    Logits,
    /// The feature map of a stage, counted from 0: its tokens, row by row of the grid.
    Stage(usize),
}

/// An output of a plan: a tensor that the caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name, for callers. No step has it.
    pub name: String,
    /// What it is.
    pub kind: OutputKind,
    /// The tensor.
    pub tensor: TensorId,
}

/// A Swin as a list of ops.
#[derive(Clone, Debug)]
pub struct Plan<'m> {
    /// Every tensor; the first is the image.
    pub tensors: Vec<TensorSpec>,
    /// Every op in order.
    pub steps: Vec<Step<'m>>,
    /// Every output, in the order in which the network computes them. No step changes an output after it is
    /// complete.
    pub outputs: Vec<Output>,
    /// The geometry for the network's own image size.
    pub own: Arc<Geometry>,
}

impl Plan<'_> {
    /// The tensor `id`.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// The image.
    pub fn image(&self) -> TensorId {
        TensorId(0)
    }

    /// The plan without its parameters.
    pub fn outline(&self) -> Outline {
        Outline::new(self)
    }
}
