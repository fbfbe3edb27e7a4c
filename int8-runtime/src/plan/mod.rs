//! The network as a list of logical ops, before any backend: the one permitted second description of a Swin (the
//! first is the float forward).

mod build;
mod display;

use swinq_kernels::{AttentionQuant, Quantizer, code_stride};
use swinq_model::{BlockId, Linear};

/// A tensor of the plan, by index into [`Plan::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorId(pub usize);

/// Elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// u8 pixels as given.
    Pixel,
    /// f32.
    F32,
    /// INT8 codes.
    Code,
}

/// A tensor of the plan: `[images * rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSpec {
    /// Rows per image.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements.
    pub element: Element,
}

impl TensorSpec {
    /// Bytes per image.
    pub fn bytes(&self) -> usize {
        match self.element {
            Element::Pixel => self.rows * self.columns,
            Element::F32 => self.rows * self.columns * 4,
            Element::Code => self.rows * code_stride(self.columns),
        }
    }
}

/// What an op does with the values it produces.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Writes f32.
    F32,
    /// Quantizes and dequantizes: the site is on, but its product runs in float.
    Fake(Quantizer),
    /// Writes INT8 codes; one quantizer, or one for each equal part of the columns (q, k, v).
    Codes(Vec<Quantizer>),
    /// Adds to the residual stream, each operand through its site.
    Residual {
        /// Site of the branch.
        branch: Option<Quantizer>,
        /// Site of the stream.
        shortcut: Option<Quantizer>,
    },
}

/// Order of an op's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tokens, row by row of the grid.
    Tokens,
    /// Windows of the grid shifted by `shift` and padded, of stage `stage`.
    Windows {
        /// Stage.
        stage: usize,
        /// Cyclic shift in tokens.
        shift: usize,
    },
}

/// A logical op.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Pixels to the rows of the patch embedding's product, normalised.
    Patches,
    /// A product with a weight, its bias, activation and store.
    Product {
        /// Which.
        linear: Linear,
        /// Whether it runs in INT8.
        int8: bool,
        /// The `.output` site.
        output: Option<Quantizer>,
        /// Whether GELU follows the bias.
        gelu: bool,
        /// Order of the rows (matters to a residual store).
        order: Order,
    },
    /// LayerNorm by the parameters under a prefix, reading the stream in an order.
    Norm {
        /// Prefix of the parameters' names.
        params: String,
        /// Order of the rows written.
        order: Order,
    },
    /// LayerNorm of the stream in place.
    NormInPlace {
        /// Prefix of the parameters' names.
        params: String,
    },
    /// Adds the absolute position embedding to the stream in place.
    PositionEmbedding,
    /// Window attention of a block.
    Attention {
        /// Which block.
        block: BlockId,
        /// Cyclic shift in tokens.
        shift: usize,
        /// Sites inside attention.
        quant: AttentionQuant,
    },
    /// Gathers 2 x 2 tokens and normalises them.
    Merge {
        /// The stage that ends here.
        stage: usize,
    },
    /// The last norm and the mean over tokens.
    Pool,
}

/// One op with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Module path, for profiles and listings.
    pub name: String,
    /// What is done.
    pub op: Op,
    /// What is done with the result.
    pub store: Store,
    /// Tensor read.
    pub input: TensorId,
    /// Tensor written (for residual stores and in-place ops: the stream, read and written).
    pub output: TensorId,
    /// Multiply-accumulates per image.
    pub macs: u64,
}

/// A Swin as a list of ops.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Every tensor; the first is the image, the last the logits.
    pub tensors: Vec<TensorSpec>,
    /// Every op in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The tensor `id`.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// The image.
    pub fn image(&self) -> TensorId {
        TensorId(0)
    }

    /// The logits.
    pub fn logits(&self) -> TensorId {
        self.steps.last().expect("a plan has steps").output
    }
}
