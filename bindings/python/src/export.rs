//! Export to ONNX.

use std::path::PathBuf;

use pyo3::prelude::*;
use swinq::model::Size;
use swinq::onnx::{BatchSize, ExportOptions, ImageSize, InputForm, ProbsForm, Target};
use swinq::{Error, FileKind, export_onnx};

use crate::error::{choice, raise, raise_as};
use crate::model::Model;
use crate::work;

/// The options of the command `swinq export`; `batch` is a number or `free`.
#[derive(FromPyObject)]
pub struct GraphOptions {
    opset: i64,
    target: String,
    fp16: bool,
    batch: String,
    probs: Option<String>,
    input: String,
    size: Option<GivenSize>,
}

/// Writes `model` to the ONNX file `path`. Returns the remarks that the command prints.
#[pyfunction]
pub fn export(py: Python<'_>, model: &Model, path: PathBuf, options: GraphOptions) -> PyResult<Vec<String>> {
    let GraphOptions { opset, target, fp16, batch, probs, input, size } = options;
    let targets = [Target::Ort, Target::OpenVino, Target::TensorRt].map(|target| (target.name(), target));
    let forms = [ProbsForm::Exact, ProbsForm::Softmax].map(|form| (form.name(), form));
    let inputs = [InputForm::Normalized, InputForm::Pixels].map(|form| (form.name(), form));
    let batch = batch.parse::<BatchSize>();
    let options = ExportOptions {
        opset,
        target: choice(py, "target", &target, &targets)?,
        fp16,
        batch: batch.map_err(|problem| raise_as(py, "ArgumentError", format!("batch: {problem}")))?,
        probs: probs.map(|form| choice(py, "probs", &form, &forms)).transpose()?,
        input: choice(py, "input", &input, &inputs)?,
        size: image_size(py, size)?,
        checkpoint_hash: None,
    };
    options.check().map_err(|error| raise(py, &error.into()))?;
    FileKind::Onnx
        .check(&path)
        .map_err(|problem| raise_as(py, "ArgumentError", format!("path: {}: {problem}", path.display())))?;
    let model = model.model.clone();
    let written = work::run(py, None, move |reporter| {
        let file = export_onnx(&model, &options)?;
        if reporter.is_stopped() {
            return Err(Error::Interrupted);
        }
        file.write(&path)?;
        Ok(file.remarks)
    })?;
    written.map_err(|error| raise(py, &error))
}

/// The argument `size`.
#[derive(FromPyObject)]
pub enum GivenSize {
    /// Height and width.
    Sides(usize, usize),
    /// `any`.
    Word(String),
}

fn image_size(py: Python<'_>, size: Option<GivenSize>) -> PyResult<ImageSize> {
    match size {
        None => Ok(ImageSize::Own),
        Some(GivenSize::Sides(height, width)) => Ok(ImageSize::Fixed(Size::new(height, width))),
        Some(GivenSize::Word(word)) if word == "any" => Ok(ImageSize::Any),
        Some(GivenSize::Word(word)) => {
            let text = format!("size: `{word}` is no size; give (height, width), as in (800, 1344), or any");
            Err(raise_as(py, "ArgumentError", text))
        }
    }
}
