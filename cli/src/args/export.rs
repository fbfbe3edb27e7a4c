//! Arguments of `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use swinq::onnx::{BatchSize, ExportOptions, ImageSize, InputForm, ProbsForm, Target};
use swinq::{FileKind, Sizing};

use super::FloatArgs;
use super::shared::file;

/// Arguments of `export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Quantized checkpoint, float checkpoint or directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    /// The ONNX file to write.
    #[arg(short = 'o', long, visible_alias = "output", value_name = "FILE.onnx", value_parser = file(FileKind::Onnx))]
    pub onnx: PathBuf,
    /// Version of ONNX's operators.
    #[arg(long, value_name = "18..23", default_value_t = 20)]
    pub opset: i64,
    /// The runtime that will run the graph.
    #[arg(long, value_enum, default_value_t = TargetArg::Ort)]
    pub target: TargetArg,
    /// Height and width of the images, such as 800x1344, or any: a graph for all sizes that the network
    /// takes. A backbone needs it; a classifier has its own size without it.
    #[arg(long, value_name = "HEIGHTxWIDTH|any", value_parser = size)]
    pub size: Option<ImageSize>,
    /// Make float tensors f16 inside the graph; inputs and outputs stay f32.
    #[arg(long)]
    pub fp16: bool,
    /// Images of one inference: a number, or free.
    #[arg(long, value_name = "N|free", default_value_t = BatchSize::Free)]
    pub batch: BatchSize,
    /// Form of attention probabilities of kind u8: the engine's arithmetic, or the softmax that runtimes
    /// fuse, which loses some precision. TensorRT has softmax only; the others have exact unless you say
    /// otherwise.
    #[arg(long, value_enum)]
    pub probs: Option<ProbsArg>,
    /// Input of the graph: normalised f32 [batch, 3, height, width], or u8 pixels [batch, height, width, 3].
    #[arg(long, value_enum, default_value_t = InputArg::Normalized)]
    pub input: InputArg,
}

impl ExportArgs {
    /// The options of the library.
    pub fn options(&self) -> ExportOptions {
        ExportOptions {
            opset: self.opset,
            target: match self.target {
                TargetArg::Ort => Target::Ort,
                TargetArg::Openvino => Target::OpenVino,
                TargetArg::Tensorrt => Target::TensorRt,
            },
            fp16: self.fp16,
            batch: self.batch,
            probs: self.probs.map(|form| match form {
                ProbsArg::Exact => ProbsForm::Exact,
                ProbsArg::Softmax => ProbsForm::Softmax,
            }),
            input: match self.input {
                InputArg::Normalized => InputForm::Normalized,
                InputArg::Pixels => InputForm::Pixels,
            },
            size: self.size.unwrap_or_default(),
            checkpoint_hash: None,
        }
    }
}

/// The value of `--size`.
fn size(text: &str) -> Result<ImageSize, String> {
    match text.parse() {
        _ if text == "any" => Ok(ImageSize::Any),
        Ok(Sizing::Exact(size)) => Ok(ImageSize::Fixed(size)),
        _ => Err("give HEIGHTxWIDTH, as in 800x1344, with sides of 1 to 65535, or any".to_owned()),
    }
}

/// A runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetArg {
    /// ONNX Runtime.
    Ort,
    /// OpenVINO.
    Openvino,
    /// TensorRT.
    Tensorrt,
}

/// A form of attention probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbsArg {
    /// The engine's arithmetic.
    Exact,
    /// Softmax and its codes.
    Softmax,
}

/// A form of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputArg {
    /// Normalised f32, channels first.
    Normalized,
    /// Bytes, channels last.
    Pixels,
}
