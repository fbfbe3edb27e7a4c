//! `swinq inspect`.

use std::io::Write;

use swinq_int8_runtime::{Backend, CudaOptions, Plan};
use swinq_model::{QuantizedModel, params};

use crate::args::InspectArgs;
use crate::backend::{Runnable, Target};
use crate::model_arg::Model;
use crate::site_table;

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let loaded = Model::load(&args.model, &args.float)?;
    args.float.check_used(loaded.is_float())?;
    let kind =
        if matches!(loaded, Model::Quantized(_)) { "quantized checkpoint" } else { "float checkpoint" };
    let model = loaded.into_quantized()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} ({kind})", args.model.display())?;
    describe(&model, &mut out)?;
    if model.is_quantized() {
        writeln!(out, "\n{}", site_table::products(&model))?;
        writeln!(out, "{}", site_table::summary(&model))?;
    }
    if args.sites {
        writeln!(out, "\n{}", site_table::sites(&model))?;
    }
    if args.plan {
        let target = Target::one(&args.backend, 0, args.batch_size)?;
        match target.0 {
            Backend::Cpu(_) => {
                writeln!(out, "\nwhat the CPU engine launches, per image:\n{}", Plan::new(&model)?)?;
            }
            Backend::Cuda(options) => {
                write_launches(&target.engine(&model)?, &options, args.batch_size, &mut out)?;
            }
        }
    }
    Ok(())
}

/// What the CUDA engine launches, with the kernel chosen for each product.
fn write_launches(
    engine: &Runnable,
    options: &CudaOptions,
    images: usize,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Runnable::Engine(engine) = engine else { return Ok(()) };
    let name = engine.device().map_or("", |device| device.name());
    let (gemm, autotune) = (options.gemm, options.autotune);
    writeln!(out, "\nwhat {name} launches for {images} images (--gemm {gemm}, --autotune {autotune}):")?;
    for launch in engine.launches(images)? {
        writeln!(out, "{launch}")?;
    }
    Ok(())
}

fn describe(model: &QuantizedModel, out: &mut impl Write) -> anyhow::Result<()> {
    let config = &model.config;
    let parameters: usize =
        params::parameters(config).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    writeln!(
        out,
        "  architecture  {}: {:?} blocks, {:?} heads, {} channels, window {}, {}x{} input, {} classes",
        config.name,
        config.depths,
        config.num_heads,
        config.embed_dim,
        config.window_size,
        config.image_size,
        config.image_size,
        config.num_classes
    )?;
    writeln!(
        out,
        "  size          {:.2} M parameters, {:.3} GMAC",
        parameters as f64 / 1e6,
        config.macs() as f64 / 1e9
    )?;
    writeln!(out, "  transform     {}", model.transform)?;
    if let Some(labels) = &model.labels {
        let shown = labels.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        writeln!(out, "  labels        {shown}{}", if labels.len() > 5 { ", ..." } else { "" })?;
    }
    let source = &model.provenance.source;
    writeln!(out, "  made from     {} ({}), SHA-256 {}", source.file, source.dialect, source.sha256)?;
    if let Some(record) = &model.provenance.calibration {
        writeln!(
            out,
            "  calibrated on {} images, seed {}, batches of {}, SHA-256 of the pixels {}",
            record.images.len(),
            record.seed,
            record.batch_size,
            record.sha256
        )?;
        let first = record.images.iter().take(2).cloned().collect::<Vec<_>>().join(", ");
        writeln!(out, "                {first}, ...")?;
    }
    for rule in &model.recipe.rules {
        if model.is_quantized() {
            writeln!(out, "  rule          {}", serde_json::to_string(rule)?)?;
        }
    }
    Ok(())
}
