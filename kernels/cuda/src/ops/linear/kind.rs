//! The computation of a linear layer, how it stores its results, and the constants of its kernels.

use std::fmt;

use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer};

use super::tile::{Instruction, Tile};
use crate::Program;
use crate::ops::attention::HEAD_DIM;
use crate::ops::{self, DeviceStore, ResidualType, half_gelu};

/// The weight of a linear layer.
#[derive(Clone, Copy)]
pub enum DeviceWeight<'a> {
    /// INT8 codes `[n, k]`, for INT8 inputs, and the factor `s_x * s_w` of each column.
    Codes {
        /// The codes.
        codes: &'a [i8],
        /// One per column.
        multiplier: &'a [f32],
        /// The zero points of the k inputs, or none: an input code `q` stands for `q - zero_points[k]`.
        zero_points: &'a [i8],
    },
    /// Weights to be rounded to f16, `[n, k]`, for f16 inputs; sums are f32.
    Half(&'a [f32]),
}

/// The most heads of a layer that normalises them.
pub const MOST_HEADS: usize = 64;

/// How a linear layer stores its results.
#[derive(Clone, Debug, PartialEq)]
pub enum LinearStore {
    /// The same store as any op.
    Plain(DeviceStore),
    /// INT8 codes, with the reciprocal of a scale per column. Each aligned group of eight columns has the
    /// same scale.
    Codes(Vec<f32>),
    /// INT8 codes, with a scale and a zero point per column.
    ChannelCodes(ColumnQuantizers),
    /// Quantized and dequantized with a scale and a zero point per column, then stored as f16.
    ChannelFake(ColumnQuantizers),
    /// INT8 codes of queries, keys and values, `[3, heads, 32]`, of at most [`MOST_HEADS`] heads; queries and
    /// keys are normalised first ([`QkNormSpec`](swinq_numerics::QkNormSpec)). The lo codes of heads with hi
    /// and lo codes follow.
    Heads {
        /// The sites q, k and v.
        sites: [Quantizer; 3],
        /// Whether the queries and keys of a head have hi and lo codes for each value, for each head.
        hi_lo: Vec<bool>,
    },
    /// Added to the residual stream.
    Residual,
}

impl LinearStore {
    /// Columns of lo codes.
    pub(super) fn low_columns(&self) -> usize {
        match self {
            LinearStore::Heads { hi_lo, .. } => 2 * HEAD_DIM * hi_lo.iter().filter(|&&two| two).count(),
            _ => 0,
        }
    }
}

/// Description of a linear layer.
pub struct DeviceLinearSpec<'a> {
    /// Number of output columns.
    pub n: usize,
    /// Number of input columns.
    pub k: usize,
    /// The weight.
    pub weight: DeviceWeight<'a>,
    /// Per column.
    pub bias: Option<&'a [f32]>,
    /// The `.output` site.
    pub output: Option<Quantizer>,
    /// The GELU that follows the bias, if any. With an f16 residual all forms are the same approximation.
    pub gelu: Option<Gelu>,
    /// How the results are stored.
    pub store: LinearStore,
    /// Element type of the residual stream.
    pub residual: ResidualType,
}

/// Constants for which the kernels of a linear layer are compiled, without the tile: the options of
/// `epilogue.cuh`, which begins with the steps that they select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearKind {
    /// Whether operands are INT8; if not, they are f16.
    pub integer: bool,
    /// Whether there is an `.output` site.
    pub output: bool,
    /// The GELU that is applied, if any; [`Gelu::Erf`] with an f16 residual.
    pub gelu: Option<Gelu>,
    /// Whether values are quantized and dequantized before the store.
    pub fake: bool,
    /// Whether GELU and its codes are computed in packed halves.
    pub half_gelu: bool,
    /// Whether the codes of the results have a scale and a zero point per column.
    pub channels: bool,
    /// Whether the zero-point term of the input is subtracted from the sums. Otherwise it is part of the
    /// bias, if there are zero points.
    pub corrected: bool,
    /// Whether columns are queries, keys and values, of which queries and keys are normalised.
    pub heads: bool,
    /// Whether the number of columns is a multiple of 8, so that all stores are vectors of eight values.
    pub whole: bool,
    /// The STORE_ constant.
    pub(super) store: i64,
    /// Element type of the residual stream.
    pub residual: ResidualType,
}

/// Whether GELU and its codes are computed in packed halves: with an f16 residual, for INT8 layers without an
/// `.output` site that store codes in full groups of eight columns.
fn in_halves(spec: &DeviceLinearSpec<'_>) -> bool {
    let layer = spec.gelu.is_some()
        && spec.output.is_none()
        && spec.residual == ResidualType::F16
        && spec.n.is_multiple_of(8);
    let in_range = match &spec.store {
        LinearStore::Plain(DeviceStore::Codes(q)) => half_gelu::suits(&[q.recip()]),
        LinearStore::Codes(recips) => half_gelu::suits(recips),
        LinearStore::ChannelCodes(columns) => half_gelu::suits_channels(columns.recips()),
        _ => false,
    };
    layer && in_range && matches!(spec.weight, DeviceWeight::Codes { .. })
}

/// The GELU of kernels for `residual`: with an f16 residual, all forms are the same approximation.
fn gelu_for(gelu: Option<Gelu>, residual: ResidualType) -> Option<Gelu> {
    gelu.map(|gelu| if residual == ResidualType::F32 { gelu } else { Gelu::Erf })
}

/// The GELU_ constant of the kernels; 0 for none.
pub(in crate::ops) fn gelu_define(gelu: Option<Gelu>) -> i64 {
    match gelu {
        None => 0,
        Some(Gelu::Erf) => 1,
        Some(Gelu::Quadratic) => 2,
    }
}

impl LinearKind {
    /// The kind of `spec`.
    pub fn new(spec: &DeviceLinearSpec<'_>) -> LinearKind {
        let (store, fake) = match &spec.store {
            LinearStore::Plain(store) => (store.define(), store.is_fake()),
            LinearStore::Codes(_) | LinearStore::ChannelCodes(_) | LinearStore::Heads { .. } => {
                (ops::STORE_CODES, false)
            }
            LinearStore::ChannelFake(_) => (ops::STORE_HALF, true),
            LinearStore::Residual => (ops::STORE_RESIDUAL, false),
        };
        let corrected = match spec.weight {
            // With an f16 residual results are not those of the reference to the bit, so that the bias may
            // round.
            DeviceWeight::Codes { zero_points, .. } => {
                !zero_points.is_empty() && (spec.residual == ResidualType::F32 || spec.output.is_some())
            }
            DeviceWeight::Half(_) => false,
        };
        LinearKind {
            channels: matches!(spec.store, LinearStore::ChannelCodes(_) | LinearStore::ChannelFake(_)),
            corrected,
            integer: matches!(spec.weight, DeviceWeight::Codes { .. }),
            output: spec.output.is_some(),
            gelu: gelu_for(spec.gelu, spec.residual),
            fake,
            half_gelu: in_halves(spec),
            heads: matches!(spec.store, LinearStore::Heads { .. }),
            whole: spec.n.is_multiple_of(8),
            store,
            residual: spec.residual,
        }
    }

    /// Rewrites the factors and biases of all columns for the kernels.
    pub fn column_constants(&self, factors: &mut [f32], bias: &mut [f32]) {
        if self.half_gelu {
            factors.iter_mut().zip(bias).for_each(|(factor, bias)| half_gelu::argument(factor, bias));
        }
    }

    /// Whether the kernels read the quantizers of columns as [`half_gelu::half_codes`].
    pub fn half_codes(&self) -> bool {
        self.half_gelu && self.channels
    }

    /// The same kind for another type of the residual stream.
    #[must_use]
    pub fn with_residual(self, residual: ResidualType) -> LinearKind {
        let half_gelu = self.half_gelu && residual == ResidualType::F16;
        LinearKind { residual, half_gelu, gelu: gelu_for(self.gelu, residual), ..self }
    }

    /// Adds the defines of the epilogue to `program`.
    pub(super) fn define(&self, program: Program) -> Program {
        program
            .define("INTEGER", self.integer.into())
            .define("OUTPUT", self.output.into())
            .define("GELU", gelu_define(self.gelu))
            .define("HALF_GELU", self.half_gelu.into())
            .define("FAKE", self.fake.into())
            .define("CHANNELS", self.channels.into())
            .define("CORRECTED", self.corrected.into())
            .define("HEADS", self.heads.into())
            .define("WHOLE", self.whole.into())
            .define("STORE", self.store)
            .define("RESIDUAL_F32", self.residual.define())
    }

    /// The program of our own kernel with `tile`.
    pub fn program(&self, tile: Tile) -> Program {
        let program = match tile.instruction {
            Instruction::Mma => Program::new("gemm.cu", "gemm")
                .define("BM", tile.block.0.into())
                .define("WM", tile.warp.0.into())
                .define("WN", tile.warp.1.into())
                .define("BK", tile.depth.into()),
            Instruction::Wgmma => Program::new("gemm_sm90.cu", "gemm_sm90")
                .define("GROUPS_M", tile.groups().into())
                .define("BLOCKS", (tile.warp.0 / 64).into())
                .define("RESIDENT", tile.resident.into()),
            Instruction::Cooperative | Instruction::PingPong => {
                let (multiply, copy) = tile.registers().unwrap_or_default();
                Program::new("gemm_roles.cu", "gemm_roles")
                    .define("GROUPS_M", tile.groups().into())
                    .define("BLOCKS", (tile.warp.0 / 64).into())
                    .define("RESIDENT", tile.resident.into())
                    .define("TURNS", (tile.instruction == Instruction::PingPong).into())
                    .define("REGISTERS", multiply.into())
                    .define("COPY_REGISTERS", copy.into())
            }
        };
        let program = program
            .define("BN", tile.block.1.into())
            .define("STAGES", tile.stages.into())
            .define("THREADS", tile.threads().into());
        self.define(program)
    }

    /// Bytes per stored element.
    pub(super) fn element_bytes(&self) -> usize {
        match self.store {
            ops::STORE_CODES => 1,
            ops::STORE_HALF => 2,
            ops::STORE_FLOAT => 4,
            _ => self.residual.bytes(),
        }
    }

    /// Whether results are added to the residual stream.
    pub fn is_residual(&self) -> bool {
        self.store == ops::STORE_RESIDUAL
    }
}

impl fmt::Display for LinearKind {
    /// Describes the kind in words, which the tables of tiles use as its name. Scales and zero points per
    /// column are not part of it, because they hardly change the time of a tile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (integer, residual) = (self.integer, self.residual);
        f.write_str(if integer { "int8" } else { "f16" })?;
        for (on, name) in [(self.output, " output"), (self.gelu.is_some(), " gelu"), (self.fake, " fake")] {
            f.write_str(if on { name } else { "" })?;
        }
        let store = match self.store {
            ops::STORE_CODES => "codes",
            ops::STORE_HALF => "f16",
            ops::STORE_FLOAT => "f32",
            _ => "residual",
        };
        write!(f, " to {store}, {} stream", if residual == ResidualType::F32 { "f32" } else { "f16" })
    }
}
