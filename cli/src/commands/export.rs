//! `swinq export`.

use swinq::export_onnx;

use crate::args::{ExportArgs, Usage};
use crate::out::{info, note};
use crate::paths::check_outputs;
use crate::{interrupt, model_arg};

/// Runs the command.
pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let options = args.options();
    options.check().map_err(|error| Usage(error.to_string()))?;
    check_outputs([&args.onnx], [args.model.as_path()].into_iter().chain(args.float.files()))?;
    let model = model_arg::open(&args.model, &args.float)?;
    args.float.check_used(!model.describes_itself())?;
    let file = export_onnx(&model, &options)?;
    interrupt::check_before_writing()?;
    file.write(&args.onnx)?;
    for remark in &file.remarks {
        note!("{remark}");
    }
    info!("wrote {}", args.onnx.display());
    Ok(())
}
