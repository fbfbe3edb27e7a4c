//! The options of an export.

use std::fmt;
use std::str::FromStr;

use swinq_model::{Size, SizeRules, SwinConfig};

use crate::error::OnnxError;

/// The runtime that will run the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// ONNX Runtime.
    #[default]
    Ort,
    /// OpenVINO.
    OpenVino,
    /// TensorRT: symmetric signed codes only.
    TensorRt,
}

/// The graph for attention probabilities of kind `u8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbsForm {
    /// ReduceMax, Sub, Exp, codes of `exp` in steps of 1/255, product with the values, division by the sum of
    /// the codes: the arithmetic of our engine.
    Exact,
    /// Softmax, then codes of the probabilities in steps of 1/255, or of 1/127 for TensorRT. Runtimes fuse
    /// Softmax. The step is a part of 1 and not of the largest probability of the row, so that rows with even
    /// attention lose precision.
    Softmax,
}

/// The input of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputForm {
    /// `images`, f32 `[batch, 3, height, width]`: RGB, normalised with the mean and deviation in the
    /// metadata; of a backbone whatever it was trained on.
    #[default]
    Normalized,
    /// `pixels`, u8 `[batch, height, width, 3]`: RGB; the graph normalises.
    Pixels,
}

/// Images of one inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchSize {
    /// Any number.
    #[default]
    Free,
    /// This number, at least 1.
    Fixed(usize),
}

/// The size of the images of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageSize {
    /// That of the network's configuration. A backbone has none of its own.
    #[default]
    Own,
    /// This height and width in pixels.
    Fixed(Size),
    /// Any that the network takes: height and width of the input are free, and the graph computes the order
    /// of rows.
    Any,
}

/// [`ImageSize`] for a network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Images {
    OfOneSize(Size),
    OfAnySize(SizeRules),
}

/// The options of [`crate::export`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// Version of ONNX's operators, [`OPSETS`].
    pub opset: i64,
    /// The runtime.
    pub target: Target,
    /// Whether float tensors are f16 inside the graph. Inputs and outputs stay f32, and so does the residual
    /// stream if f16 does not hold it
    /// ([`QuantizedModel::f16_residual`](swinq_model::QuantizedModel::f16_residual)).
    pub fp16: bool,
    /// Images of one inference.
    pub batch: BatchSize,
    /// The form of probabilities of kind `u8`; `None` is softmax for TensorRT, and exact for the others.
    pub probs: Option<ProbsForm>,
    /// The input.
    pub input: InputForm,
    /// The size of the images.
    pub size: ImageSize,
    /// The hash in the quantized checkpoint, for the metadata.
    pub checkpoint_hash: Option<String>,
}

/// The versions of ONNX's operators that can be written. Gelu is an operator from 20 on, and is written with
/// Erf before.
pub const OPSETS: std::ops::RangeInclusive<i64> = 18..=23;

/// The first version of the operators whose quantization takes f16.
const FIRST_WITH_F16_CODES: i64 = 19;

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions {
            opset: 20,
            target: Target::default(),
            fp16: false,
            batch: BatchSize::default(),
            probs: None,
            input: InputForm::default(),
            size: ImageSize::Own,
            checkpoint_hash: None,
        }
    }
}

impl ExportOptions {
    /// The form of probabilities of kind `u8`.
    pub fn probs_form(&self) -> ProbsForm {
        let default = if self.target == Target::TensorRt { ProbsForm::Softmax } else { ProbsForm::Exact };
        self.probs.unwrap_or(default)
    }

    /// The images of the network `config`.
    ///
    /// # Errors
    /// [`OnnxError::Option`] for a backbone without a size, for a size that the network cannot process, for
    /// any size of a network that takes one, and for pixels of a stack of blocks.
    pub(crate) fn images(&self, config: &SwinConfig) -> Result<Images, OnnxError> {
        let refuse = |problem: String| Err(OnnxError::Option { option: "--size", problem });
        let name = &config.name;
        if config.takes_tokens() && self.input == InputForm::Pixels {
            let problem = format!("{name} is a stack of blocks, which takes tokens; use normalized");
            return Err(OnnxError::Option { option: "--input", problem });
        }
        match (config.is_backbone(), self.size) {
            (_, ImageSize::Any) => match config.size_rules() {
                Ok(rules) => Ok(Images::OfAnySize(rules)),
                Err(error) => refuse(format!("{name} has no graph for images of any size: {error}")),
            },
            (false, ImageSize::Own) => Ok(Images::OfOneSize(config.image_size)),
            (true, ImageSize::Own) => refuse(format!(
                "{name} is a backbone, which has no image size of its own; give HEIGHTxWIDTH, as in 800x1344, or any"
            )),
            (_, ImageSize::Fixed(size)) => match config.grids(size) {
                Ok(_) => Ok(Images::OfOneSize(size)),
                Err(error) => {
                    refuse(format!("{name} cannot process {}x{}: {error}", size.height, size.width))
                }
            },
        }
    }

    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`OnnxError::Option`].
    pub fn check(&self) -> Result<(), OnnxError> {
        let refuse = |option, problem: String| Err(OnnxError::Option { option, problem });
        if !OPSETS.contains(&self.opset) {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            return refuse("--opset", format!("{} is not supported; use {first} to {last}", self.opset));
        }
        if self.fp16 && self.opset < FIRST_WITH_F16_CODES {
            let problem = format!("f16 needs opset {FIRST_WITH_F16_CODES} or newer, not {}", self.opset);
            return refuse("--fp16", problem);
        }
        if self.batch == BatchSize::Fixed(0) {
            return refuse("--batch", "0 images; use 1 or more, or free".to_owned());
        }
        if self.target == Target::TensorRt && self.probs == Some(ProbsForm::Exact) {
            let problem = "exact needs unsigned codes, which TensorRT does not have; use softmax".to_owned();
            return refuse("--probs", problem);
        }
        Ok(())
    }
}

impl Target {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Ort => "ort",
            Target::OpenVino => "openvino",
            Target::TensorRt => "tensorrt",
        }
    }
}

impl ProbsForm {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ProbsForm::Exact => "exact",
            ProbsForm::Softmax => "softmax",
        }
    }
}

impl InputForm {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            InputForm::Normalized => "normalized",
            InputForm::Pixels => "pixels",
        }
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchSize::Free => f.write_str("free"),
            BatchSize::Fixed(images) => write!(f, "{images}"),
        }
    }
}

impl FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchSize, String> {
        match text.parse() {
            _ if text == "free" => Ok(BatchSize::Free),
            Ok(images) if (1..=65_536).contains(&images) => Ok(BatchSize::Fixed(images)),
            _ => Err("give a number of images from 1 to 65536, or free".to_owned()),
        }
    }
}
