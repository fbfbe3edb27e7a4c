//! One launch of the CUDA backend: an op with its input and its output.

use std::fmt;
use std::sync::Arc;

use swinq_cuda::ops::attention::{DeviceAttention, head_columns};
use swinq_cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_cuda::ops::linear::{DeviceLinear, LibraryLinear, OwnLinear, Target};
use swinq_cuda::ops::mlp::DeviceMlp;
use swinq_cuda::ops::norm::DeviceNorm;
use swinq_cuda::ops::patch::{DevicePatchEmbed, InputForm};
use swinq_cuda::ops::qk_norm::DeviceQkNorm;
use swinq_cuda::ops::rows::DeviceRows;
use swinq_cuda::ops::tokens::DeviceTokens;
use swinq_cuda::ops::window_block::DeviceWindowBlock;
use swinq_cuda::ops::{ResidualCodes, row_stride};
use swinq_cuda::{CudaError, DeviceSlice, Stream};
use swinq_plan::{Grids, Order, Rows, TensorId};

use super::geometry::{DeviceGeometry, Gather};
use super::when::When;
use crate::trace::TracedValues;

/// A tensor on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTensor {
    /// The rows of an image.
    pub(crate) rows: Rows,
    pub(crate) columns: usize,
    pub(crate) element: DeviceElement,
    /// The channels of a head, if they are fewer than its columns ([`head_columns`]): the rest are zeros.
    pub(crate) narrow: Option<usize>,
}

/// Element type and layout of a tensor on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceElement {
    /// u8 pixels, as passed by the caller.
    Pixel,
    /// INT8 codes; rows are padded to multiples of 16 bytes.
    Code,
    /// f16; rows are padded to multiples of 16 bytes.
    Half,
    /// f16 without padding: the residual stream.
    HalfResidual,
    /// f32 without padding.
    Float,
}

impl DeviceElement {
    /// The name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DeviceElement::Pixel => "u8",
            DeviceElement::Code => "INT8",
            DeviceElement::Half | DeviceElement::HalfResidual => "f16",
            DeviceElement::Float => "f32",
        }
    }
}

impl DeviceTensor {
    /// Bytes of an image with these grids.
    pub(crate) fn bytes(&self, grids: &Grids) -> usize {
        grids.rows(self.rows) * self.row_bytes()
    }

    /// Bytes of a row, with its padding.
    pub(crate) fn row_bytes(&self) -> usize {
        match self.element {
            DeviceElement::Pixel => self.columns,
            DeviceElement::Code => row_stride(self.columns, 1),
            DeviceElement::Half => 2 * row_stride(self.columns, 2),
            DeviceElement::HalfResidual => 2 * self.columns,
            DeviceElement::Float => 4 * self.columns,
        }
    }

    /// Reads the values of the tensor from its bytes, without the zeros of narrow heads.
    pub(crate) fn traced(&self, raw: &[u8]) -> TracedValues {
        let all = self.all_columns(raw);
        let Some(channels) = self.narrow else { return all };
        let kept = |at: usize| at % self.columns % head_columns(channels) < channels;
        match all {
            TracedValues::Codes(codes) => TracedValues::Codes(kept_of(codes, kept)),
            TracedValues::Float(values) => TracedValues::Float(kept_of(values, kept)),
        }
    }

    fn all_columns(&self, raw: &[u8]) -> TracedValues {
        let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
        let columns = self.columns;
        match self.element {
            DeviceElement::Pixel => TracedValues::Float(raw.iter().map(|&b| b.into()).collect()),
            DeviceElement::Code => {
                let shape = (columns, row_stride(columns, 1));
                TracedValues::Codes(TracedValues::rows(raw, 1, shape, |b| b[0].cast_signed()))
            }
            DeviceElement::Half => {
                TracedValues::Float(TracedValues::rows(raw, 2, (columns, row_stride(columns, 2)), half))
            }
            DeviceElement::HalfResidual => {
                TracedValues::Float(TracedValues::rows(raw, 2, (columns, columns), half))
            }
            DeviceElement::Float => {
                let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                TracedValues::Float(TracedValues::rows(raw, 4, (columns, columns), float))
            }
        }
    }
}

fn kept_of<T>(values: Vec<T>, kept: impl Fn(usize) -> bool) -> Vec<T> {
    values.into_iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, value)| value).collect()
}

/// A prepared op. What depends on the size of the image is found when it runs.
pub(crate) enum DeviceOp {
    PatchEmbed(DevicePatchEmbed),
    Tokens(DeviceTokens),
    Norm(DeviceNorm, Gather),
    /// Rows of the residual without a norm.
    Rows(DeviceRows, Gather),
    /// The normalisation of queries and keys.
    QkNorm(DeviceQkNorm),
    /// With the order of the rows, if they are added to the residual.
    Linear(Box<DeviceLinear>, Option<Order>),
    Attention(DeviceAttention, Order),
    /// LayerNorm, both linear layers and the residual addition.
    Mlp(DeviceMlp),
    WindowBlock(DeviceWindowBlock, Order),
    Pool(DevicePool),
    Head(DeviceLinearF32),
}

/// The kernel chosen for a linear layer at one batch size.
pub(crate) enum Choice {
    Own(Arc<OwnLinear>),
    /// cuBLASLt, with scratch memory for the GEMM's results.
    Library(LibraryLinear, DeviceSlice),
}

impl DeviceOp {
    /// Short name of the op.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            DeviceOp::PatchEmbed(_) => "patch embedding",
            DeviceOp::Tokens(_) => "tokens",
            DeviceOp::Norm(norm, _) if norm.adds() => "norm + add",
            DeviceOp::Norm(..) => "norm",
            DeviceOp::Rows(..) => "quantize",
            DeviceOp::QkNorm(_) => "normalize",
            DeviceOp::Linear(linear, _) if linear.kind().integer => "linear INT8",
            DeviceOp::Linear(..) => "linear f16",
            DeviceOp::Attention(..) => "attention",
            DeviceOp::Mlp(_) => "MLP INT8",
            DeviceOp::WindowBlock(..) => "window block",
            DeviceOp::Pool(_) => "norm + mean",
            DeviceOp::Head(_) => "linear f32",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Own(own) => write!(f, "own {}", own.tile()),
            Choice::Library(library, _) => {
                let (plan, results) = (library.plan(), if library.is_s8() { "s8" } else { "wide" });
                write!(f, "cuBLASLt {results}, algorithm {}, tile {}", plan.algo_id(), plan.tile_id())
            }
        }
    }
}

/// The codes of the residual that a launch stores besides the residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    pub(crate) tensor: TensorId,
    /// The order of the rows. If it has padding, the launch stores no codes, and a step of its own gathers
    /// them.
    pub(crate) order: Order,
}

impl Codes {
    /// Whether the rows are in the order of windows.
    pub(crate) fn in_windows(&self) -> bool {
        matches!(self.order, Order::Windows { .. })
    }
}

/// A prepared op with its operands.
pub(crate) struct DeviceStep {
    pub(crate) name: String,
    pub(crate) when: When,
    pub(crate) op: DeviceOp,
    pub(crate) input: TensorId,
    pub(crate) output: TensorId,
    /// A second output: the codes of the residual that a norm or an MLP has added to.
    pub(crate) codes: Option<Codes>,
    /// The rows that the launch computes.
    pub(crate) rows: Rows,
    /// Multiply-accumulates for each of the rows.
    pub(crate) macs_per_row: u64,
    /// Bytes of weights and tables that a launch must read.
    pub(crate) weight_bytes: u64,
}

/// Buffers of a step's operands.
pub(crate) struct Operands<'a> {
    pub(crate) input: &'a DeviceSlice,
    /// The form of the input, if it is images.
    pub(crate) form: InputForm,
    pub(crate) output: &'a DeviceSlice,
    pub(crate) codes: Option<&'a DeviceSlice>,
    /// The step's flag: a u32 that the step sets if its f16 residual, or an image, holds a value that is not
    /// finite.
    pub(crate) flag: &'a DeviceSlice,
}

impl DeviceStep {
    /// Puts the step on `stream` for `images` images of `geometry`; `choice` is required for a linear layer.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        (images, geometry): (usize, &DeviceGeometry),
        at: &Operands<'_>,
        choice: Option<&Choice>,
    ) -> Result<(), CudaError> {
        let rows = geometry.rows(self.rows);
        match &self.op {
            DeviceOp::PatchEmbed(op) => {
                let size = geometry.grids().image();
                op.run(stream, (images, size), (at.input, at.form), at.output, at.flag)
            }
            DeviceOp::Tokens(op) => {
                let size = geometry.grids().image();
                op.run(stream, (images, size), (at.input, at.form), at.output, at.flag)
            }
            DeviceOp::Norm(op, gather) if op.adds() => {
                let (order, codes) = ((images, geometry.tokens(*gather)), self.residual_codes(geometry, at));
                op.run_residual(stream, order, at.input, at.output, codes, at.flag)
            }
            DeviceOp::Norm(op, gather) => {
                op.run(stream, (images, geometry.tokens(*gather)), at.input, at.output, at.flag)
            }
            DeviceOp::Rows(op, gather) => {
                op.run(stream, (images, geometry.tokens(*gather)), at.input, at.output, at.flag)
            }
            DeviceOp::QkNorm(op) => op.run(stream, images * rows, at.input, at.output, at.flag),
            DeviceOp::Attention(op, order) => {
                op.run(stream, (images, geometry.windows(*order)), at.input, at.output)
            }
            DeviceOp::Mlp(op) => {
                op.run(stream, images * rows, at.output, self.residual_codes(geometry, at), at.flag)
            }
            DeviceOp::WindowBlock(op, order) => {
                op.run(stream, (images, geometry.windows(*order)), at.output, at.flag)
            }
            DeviceOp::Pool(op) => op.run(stream, (images, rows), at.input, at.output, at.flag),
            DeviceOp::Head(op) => op.run(stream, images * rows, at.input, at.output),
            DeviceOp::Linear(linear, order) => {
                let map = order.and_then(|order| geometry.map(order));
                let target = Target { slice: at.output, map };
                match choice.expect("a linear layer has a choice") {
                    Choice::Own(own) => own.run(linear, stream, images * rows, at.input, target),
                    Choice::Library(library, scratch) => {
                        library.run(linear, stream, at.input, scratch, target)
                    }
                }
            }
        }
    }

    /// Where the codes of the residual go, if the launch stores them for this geometry.
    fn residual_codes<'a>(
        &self,
        geometry: &'a DeviceGeometry,
        at: &Operands<'a>,
    ) -> Option<ResidualCodes<'a>> {
        let (codes, slice) = self.codes.zip(at.codes)?;
        match codes.order {
            Order::Tokens(_) => Some(ResidualCodes { slice, rows: None }),
            order => Some(ResidualCodes { slice, rows: Some(geometry.token_rows(order)?) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(columns: usize, element: DeviceElement) -> DeviceTensor {
        DeviceTensor { rows: Rows::Tokens(0), columns, element, narrow: None }
    }

    #[test]
    fn rows_of_codes_and_of_halves_are_padded_to_16_bytes_and_residuals_are_not() {
        let bytes = |columns, element| 10 * tensor(columns, element).row_bytes();
        assert_eq!(bytes(3, DeviceElement::Pixel), 30);
        for (columns, codes, halves) in [(16, 16, 32), (96, 96, 192), (40, 48, 80), (1, 16, 16), (12, 16, 32)]
        {
            assert_eq!(bytes(columns, DeviceElement::Code), 10 * codes, "{columns} codes");
            assert_eq!(bytes(columns, DeviceElement::Half), 10 * halves, "{columns} halves");
            assert_eq!(
                bytes(columns, DeviceElement::HalfResidual),
                20 * columns,
                "{columns} of an f16 residual"
            );
            assert_eq!(bytes(columns, DeviceElement::Float), 40 * columns, "{columns} floats");
        }
    }

    #[test]
    fn a_trace_has_the_channels_of_narrow_heads_alone() {
        let codes: Vec<u8> = (0..64).map(|at| if at % 32 < 2 { at } else { 0 }).collect();
        let traced = DeviceTensor { narrow: Some(2), ..tensor(64, DeviceElement::Code) }.traced(&codes);
        assert!(matches!(traced, TracedValues::Codes(c) if c == [0, 1, 32, 33]));
    }

    #[test]
    fn a_trace_has_the_values_without_the_padding() {
        let codes: Vec<u8> = [[1, 0xff, 3], [4, 5, 0x80]].map(|row| [&row[..], &[9; 13]].concat()).concat();
        let traced = tensor(3, DeviceElement::Code).traced(&codes);
        assert!(matches!(traced, TracedValues::Codes(c) if c == [1, -1, 3, 4, 5, -128]));

        let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
        let row = |a: f32, b: f32| {
            [half(a), half(b), half(9.0), half(9.0), half(9.0), half(9.0), half(9.0), half(9.0)]
        };
        let padded: Vec<u8> = [row(0.5, -1.0), row(2.0, 1e-3)].as_flattened().concat();
        let expected = [0.5, -1.0, 2.0, half::f16::from_f32(1e-3).to_f32()];
        let traced = tensor(2, DeviceElement::Half).traced(&padded);
        assert!(matches!(traced, TracedValues::Float(x) if x == expected));

        let residual: Vec<u8> = [half(0.5), half(-1.0), half(2.0), half(1e-3)].concat();
        let traced = tensor(2, DeviceElement::HalfResidual).traced(&residual);
        assert!(matches!(traced, TracedValues::Float(x) if x == expected));

        let floats = [1.5_f32, -0.0, f32::MIN_POSITIVE, 4.0];
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        let traced = tensor(2, DeviceElement::Float).traced(&bytes);
        assert!(matches!(traced, TracedValues::Float(x) if x == floats));

        let traced = tensor(3, DeviceElement::Pixel).traced(&[0, 7, 255]);
        assert!(matches!(traced, TracedValues::Float(x) if x == [0.0, 7.0, 255.0]));
    }
}
