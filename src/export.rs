//! Export to other runtimes.

use swinq_onnx::{ExportOptions, OnnxFile};

use crate::error::Error;
use crate::open::Model;

/// The ONNX graph of `model`, quantized or float; [`OnnxFile::write`] writes it. Its metadata states the
/// preprocessing, the classes, the recipe and the origin, and the hash of a quantized checkpoint if `options`
/// has none.
///
/// # Errors
/// [`Error::Onnx`] for options that contradict each other or the model, and for a site that the target has no
/// faithful form of.
pub fn export_onnx(model: &Model, options: &ExportOptions) -> Result<OnnxFile, Error> {
    let stored = || model.file_info().and_then(|file| file.hash.as_ref()).map(ToString::to_string);
    let checkpoint_hash = options.checkpoint_hash.clone().or_else(stored);
    let options = ExportOptions { checkpoint_hash, ..options.clone() };
    Ok(swinq_onnx::export(model.as_quantized(), &options)?)
}
