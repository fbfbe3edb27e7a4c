//! `swinq inspect`.

use std::io::Write;

use swinq::eval::Inspection;
use swinq::int8_runtime::Plan;
use swinq::model::quantized::{F16Residual, ResidualRange};
use swinq::model::{QuantizedModel, StageOutput, SwinConfig, SwinVersion, params};
use swinq::{BackendChoice, EngineOptions, Model};

use crate::args::{InspectArgs, Threads};
use crate::out::{counted, raw, say};
use crate::{backend_arg, model_arg, site_table};

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let opened = model_arg::open(&args.model, &args.float)?;
    args.float.check_used(!opened.describes_itself())?;
    if args.json {
        return json(args, &opened);
    }
    let kind = if opened.describes_itself() { "quantized checkpoint" } else { "float checkpoint" };
    let model = opened.as_quantized();
    let mut out = Vec::new();
    writeln!(out, "{} ({kind})", args.model.display())?;
    if let Some(file) = opened.file_info() {
        let hash = file.hash.as_ref().map_or("no hash".to_owned(), |hash| format!("hash {hash}, verified"));
        let (version, numbers) = (file.format_version, file.numbers);
        writeln!(
            out,
            "  file          format version {version}, {hash}, version {numbers} of the number contract"
        )?;
    }
    describe(model, &mut out)?;
    if model.is_quantized() {
        writeln!(out, "\n{}", site_table::products(model))?;
        writeln!(out, "{}", site_table::summary(model))?;
    }
    if args.sites {
        writeln!(out, "\n{}", site_table::sites(model))?;
    }
    if args.plan {
        let options = backend_arg::engine(&args.backend, Threads::default(), args.batch_size)?;
        if options.backend == BackendChoice::Cpu {
            writeln!(out, "\nlaunches of the CPU engine, per image:\n{}", Plan::new(model)?)?;
        } else {
            write_launches(&opened, &options, &mut out)?;
        }
    }
    say!("{}", String::from_utf8_lossy(&out).trim_end_matches('\n'));
    Ok(())
}

/// Prints the description as JSON.
fn json(args: &InspectArgs, model: &Model) -> anyhow::Result<()> {
    let file = args.model.display().to_string();
    let info = model.file_info();
    let mut inspection = Inspection::of(model.as_quantized(), &file, model.describes_itself(), info);
    if args.plan {
        let options = backend_arg::engine(&args.backend, Threads::default(), args.batch_size)?;
        inspection.launches = Some(match options.backend {
            BackendChoice::Cpu => {
                Plan::new(model.as_quantized())?.to_string().lines().map(str::to_owned).collect()
            }
            _ => {
                let engine = backend_arg::engine_of(model, &options)?;
                engine.launches(options.max_batch)?
            }
        });
    }
    raw(format!("{}\n", serde_json::to_string_pretty(&inspection)?).as_bytes());
    Ok(())
}

/// Prints the launches of the CUDA engine, with the kernel chosen for each product.
fn write_launches(model: &Model, options: &EngineOptions, out: &mut impl Write) -> anyhow::Result<()> {
    let engine = backend_arg::engine_of(model, options)?;
    let Some(device) = engine.device() else { return Ok(()) };
    let (name, images) = (device.name(), options.max_batch);
    let of_images = counted(images, "image");
    let (gemm, autotune) = (options.cuda.gemm, options.cuda.autotune);
    writeln!(out, "\nlaunches of {name} for {of_images} (--gemm {gemm}, --autotune {autotune}):")?;
    for launch in engine.launches(images)? {
        writeln!(out, "{launch}")?;
    }
    Ok(())
}

/// The first class names, and where they come from.
fn labels(model: &QuantizedModel) -> String {
    let Some(labels) = &model.labels else {
        return "none; classes have their numbers (--labels gives names)".to_owned();
    };
    let shown = labels.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = if labels.len() > 5 { ", ..." } else { "" };
    let from = model.provenance.labels_from.as_deref().unwrap_or("the float model's own files");
    format!("{shown}{more} (from {from})")
}

/// The outputs of a backbone, with their norms.
fn outputs(config: &SwinConfig) -> String {
    let text = |output: &StageOutput| {
        let norm = output.norm_name().map_or(String::new(), |norm| format!(" ({norm})"));
        output.name.clone() + &norm
    };
    config.outputs.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Prints the architecture, its preprocessing, and what its outputs mean.
fn describe_network(model: &QuantizedModel, out: &mut impl Write) -> anyhow::Result<()> {
    let (config, transform) = (&model.config, &model.transform);
    let backbone = config.is_backbone();
    let input = match config.in_chans {
        3 => config.image_size.to_string(),
        channels => format!("{}x{channels}", config.image_size),
    };
    writeln!(
        out,
        "  architecture  {}: {:?} blocks, {:?} heads, {} channels, window {}, {}",
        config.name,
        config.depths,
        config.num_heads,
        config.embed_dim,
        config.window_size.short(),
        match backbone {
            true if config.takes_tokens() => "a stack of blocks, which takes tokens".to_owned(),
            true => "a backbone".to_owned(),
            false => format!("{input} input, {} classes", config.num_classes),
        }
    )?;
    let parameters: usize =
        params::parameters(config).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let at = if backbone { format!(" at {input}") } else { String::new() };
    let (parameters, macs) = (parameters as f64 / 1e6, config.macs() as f64 / 1e9);
    writeln!(out, "  size          {parameters:.2} M parameters, {macs:.3} GMAC{at}")?;
    if backbone {
        writeln!(out, "  outputs       {}", outputs(config))?;
    }
    if backbone && !config.takes_tokens() {
        write!(out, "  pixels        mean {:?}, std {:?}", transform.mean, transform.std)?;
        writeln!(out, "{}", transform.rules())?;
    }
    if !backbone {
        writeln!(out, "  transform     {transform}")?;
        writeln!(out, "  labels        {}", labels(model))?;
    }
    Ok(())
}

/// Whether f16 holds the residual stream, and its type or a refusal otherwise.
fn in_f16(model: &QuantizedModel) -> &'static str {
    match (model.f16_residual(), model.config.version) {
        (F16Residual::Fits, _) => "fits f16",
        (_, SwinVersion::V1) => "f32 on a GPU and in export --fp16",
        (_, SwinVersion::V2) => "f32 on a GPU; export --fp16 is refused",
    }
}

fn describe(model: &QuantizedModel, out: &mut impl Write) -> anyhow::Result<()> {
    describe_network(model, out)?;
    let source = &model.provenance.source;
    writeln!(out, "  made from     {} ({}), SHA-256 {}", source.file, source.dialect, source.sha256)?;
    if let Some(record) = &model.provenance.calibration {
        writeln!(
            out,
            "  calibrated on {}, seed {}, {}, SHA-256 of the pixels {}",
            counted(record.images.len(), "image"),
            record.seed,
            match &record.sizing {
                Some(sizing) => format!("sizes {sizing}"),
                None => format!("batches of {}", record.batch_size),
            },
            record.sha256
        )?;
        let first = record.images.iter().take(2).cloned().collect::<Vec<_>>().join(", ");
        writeln!(out, "                {first}, ...")?;
        if let Some((block, largest)) = record.residual.as_ref().map(ResidualRange::largest) {
            writeln!(out, "  residual      up to {largest} in {block}, {}", in_f16(model))?;
        }
    }
    if let Some(ranges) = &model.provenance.imported_ranges {
        writeln!(out, "  ranges from   {ranges}")?;
    }
    let method = if model.is_quantized() { model.provenance.method() } else { "float" };
    match &model.provenance.training {
        Some(training) if training.quantized => writeln!(out, "  made by       {method}: {training}")?,
        Some(training) => writeln!(out, "  made by       {method} after training in float: {training}")?,
        None if model.is_quantized() => writeln!(out, "  made by       {method}")?,
        None => {}
    }
    if model.is_quantized() {
        writeln!(out, "  recipe        {}", model.recipe.name)?;
    }
    for rule in &model.recipe.rules {
        if model.is_quantized() {
            writeln!(out, "  rule          {}", serde_json::to_string(rule)?)?;
        }
    }
    Ok(())
}
