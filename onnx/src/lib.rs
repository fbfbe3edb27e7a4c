//! ONNX files of a Swin: the plan as a graph whose products run on codes between QuantizeLinear and
//! DequantizeLinear, for ONNX Runtime, OpenVINO and TensorRT.
//!
//! [`export`] reads the plan of a model, like the engine, and gives a message that [`OnnxFile::write`]
//! writes. A value that passes a site has the site's name, and so has the DequantizeLinear that defines it;
//! QuantizeLinear defines `SITE.codes`. `docs/deploy.md` describes the graph and compares the runtimes.
//!
//! A graph differs from the engine by f32 rounding (the order of sums, `x / s` for `x * (1 / s)`, other
//! approximations of exp and erf), which moves a code where it meets a tie. It has no approximation of its
//! own, except for [`ProbsForm::Softmax`].

mod check;
mod error;
mod graph;
mod lower;
mod metadata;
mod options;
pub mod proto;

use std::path::Path;

use prost::Message;
use swinq_model::atomic::write_atomic;
use swinq_model::quantized::F16Residual;
use swinq_model::{QuantizedModel, SwinConfig, SwinVersion};
use swinq_numerics::Probs;
use swinq_plan::{Geometry, Op, Plan};

pub use check::{Checked, check};
pub use error::OnnxError;
pub use options::{BatchSize, ExportOptions, ImageSize, InputForm, OPSETS, ProbsForm, Target};
pub use proto::ModelProto;

use self::lower::Sizing;
use self::options::Images;

/// The largest protobuf message in bytes.
const LARGEST: usize = i32::MAX as usize;

/// An exported model.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxFile {
    /// The message.
    pub model: ModelProto,
    /// Remarks on the graph, one sentence each: forms that differ from the engine's.
    pub remarks: Vec<String>,
}

/// Exports `model`, quantized or float.
///
/// # Errors
/// [`OnnxError::Option`] for options that contradict each other or the model; [`OnnxError::Site`] for a site
/// without a faithful form for the target; [`OnnxError::Float16`] for a value that does not fit;
/// [`OnnxError::TooLarge`]; the errors of [`Plan::new`].
pub fn export(model: &QuantizedModel, options: &ExportOptions) -> Result<OnnxFile, OnnxError> {
    options.check()?;
    let images = options.images(&model.config)?;
    let plan = Plan::new(model)?;
    let geometry = match &images {
        Images::OfOneSize(size) => Some(Geometry::new(&model.config, *size)?),
        Images::OfAnySize(_) => None,
    };
    let sizing = match (&images, &geometry) {
        (Images::OfAnySize(rules), _) => Sizing::Free(rules),
        (_, geometry) => Sizing::Fixed(geometry.as_ref().expect("images of one size have a geometry")),
    };
    let normalisation = (&model.transform.mean[..], &model.transform.std[..]);
    let residual = options.fp16.then(|| model.f16_residual());
    let f32_residual = is_f32(residual, &model.config)?;
    let graph = lower::lower((&plan, sizing), &model.config.name, normalisation, (options, f32_residual))?;
    let mut remarks = remarks(&plan, options);
    remarks.extend(residual.map(|residual| types(residual, model.is_quantized())));
    let message = ModelProto {
        ir_version: Some(ir_version(options.opset)),
        producer_name: Some("swinq".to_owned()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        doc_string: None,
        graph: Some(graph),
        opset_import: vec![proto::OperatorSetIdProto {
            domain: Some(String::new()),
            version: Some(options.opset),
        }],
        metadata_props: metadata::properties(model, &images, (options, f32_residual), &remarks),
    };
    let bytes = message.encoded_len();
    if bytes > LARGEST {
        return Err(OnnxError::TooLarge { bytes, most: LARGEST });
    }
    match &images {
        Images::OfOneSize(_) => drop(check(&message, None)?),
        Images::OfAnySize(rules) => {
            for size in [model.config.image_size, rules.smallest] {
                check(&message, Some(size))?;
            }
        }
    }
    Ok(OnnxFile { model: message, remarks })
}

impl OnnxFile {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Those of [`write_atomic`].
    pub fn write(&self, path: &Path) -> Result<(), OnnxError> {
        let bytes = self.encode();
        write_atomic(path, |out| out.write_all(&bytes))?;
        Ok(())
    }
}

/// The file format's version that came with a version of the operators.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        _ => 11,
    }
}

/// The forms of `plan` that differ from the engine's, or that a user may not expect.
fn remarks(plan: &Plan<'_>, options: &ExportOptions) -> Vec<String> {
    let attention = || {
        plan.steps.iter().filter_map(|step| match &step.op {
            Op::Attention(op) => Some(op),
            _ => None,
        })
    };
    let mut remarks = Vec::new();
    let tokens = attention().filter(|op| op.quant.probs == Probs::U8).map(|op| op.tokens).max();
    if let (Some(tokens), ProbsForm::Softmax) = (tokens, options.probs_form()) {
        let steps = if options.target == Target::TensorRt { 127 } else { 255 };
        // The error of rounding is uniform in half a step either way; the value of an even row is 1 / tokens.
        let sqnr = 10.0 * (12.0 * (f64::from(steps) / tokens as f64).powi(2)).log10();
        remarks.push(format!(
            "attention probabilities are codes of softmax in steps of 1/{steps}, not of exp in steps of 1/255 of the \
             largest of the row: a row with even attention to {tokens} tokens has {sqnr:.1} dB of SQNR instead of an \
             exact result"
        ));
    }
    if plan.steps.iter().any(|step| matches!(step.store, swinq_plan::Store::ChannelCodes(_))) {
        remarks.push(
            "zero points of mlp.fc2.input are added before QuantizeLinear, and their part of the product is subtracted in \
             the bias, so that the codes are symmetric"
                .to_owned(),
        );
    }
    if attention().any(|op| !op.hi_lo.is_empty()) {
        remarks.push(
            "heads with two codes for each query and key have three products of codes, as in the engine"
                .to_owned(),
        );
    }
    remarks
}

/// Whether the residual stream of an f16 graph is f32 because f16 does not hold it.
fn is_f32(residual: Option<F16Residual>, config: &SwinConfig) -> Result<bool, OnnxError> {
    match residual {
        Some(residual @ F16Residual::TooLarge { .. }) if config.version == SwinVersion::V2 => {
            let problem = format!(
                "{residual}; the branches of a Swin V2 read the stream without a norm, so that they leave f16 with it; export \
                 without --fp16"
            );
            Err(OnnxError::Option { option: "--fp16", problem })
        }
        residual => Ok(matches!(residual, Some(F16Residual::TooLarge { .. }))),
    }
}

/// The types of float tensors in an f16 graph.
fn types(residual: F16Residual, quantized: bool) -> String {
    let f16 = "float tensors are f16 inside the graph";
    match residual {
        F16Residual::Fits => f16.to_owned(),
        F16Residual::TooLarge { .. } => {
            format!("{f16}, except the residual stream, which is f32: {residual}")
        }
        F16Residual::Unknown => {
            let remedy = if quantized { "calibrate again" } else { "calibrate it and export the result" };
            format!(
                "{f16}, and nobody knows whether they fit, because {residual}; {remedy} to have it decided"
            )
        }
    }
}
