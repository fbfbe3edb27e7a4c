//! `swinq bench`.

use std::path::{Path, PathBuf};

use comfy_table::{Table, presets};
use swinq_eval::{Environment, LatencyOptions, Results};
use swinq_int8_runtime::{Engine, EngineOptions};
use swinq_model::QuantizedModel;

use crate::args::BenchArgs;
use crate::model_arg::{self, Model};
use crate::out::say;
use crate::paths::check_outputs;
use crate::runner::{self, Subject};

/// Runs per launch of a profile.
const PROFILE_RUNS: usize = 20;

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    check_outputs(&args.json, args.models.iter().map(PathBuf::as_path))?;
    let options = EngineOptions { threads: args.threads, ..EngineOptions::detect()? };
    let models = models(args)?;
    let threads = swinq_kernels::Pool::new(args.threads).threads();
    say!("kernels {}, {threads} threads", options.cpu.isa());
    let mut subjects = Vec::new();
    for (name, model) in &models {
        subjects.push(Subject::engine(Path::new(name), model, options)?);
    }
    let latency = LatencyOptions { min_ms: 1000.0 * args.seconds, ..LatencyOptions::default() };
    runner::measure(&mut subjects, &args.batch_size, &latency, &mut |subject, batch, latency| {
        say!("\n{}", swinq_eval::performance_summary(&subject.result.label(), batch, latency));
    })?;
    let mut results =
        Results::new(Environment::detect(Some(options.cpu.isa().name()), threads, Default::default()));
    results.models = subjects.into_iter().map(|subject| subject.result).collect();
    say!("\n{}", swinq_eval::table(&results));
    if args.profile {
        profile(&models, args, options)?;
    }
    if let Some(path) = &args.json {
        swinq_eval::write_results(path, &results)?;
        say!("wrote {}", path.display());
    }
    Ok(())
}

fn models(args: &BenchArgs) -> anyhow::Result<Vec<(String, QuantizedModel)>> {
    let mut models = Vec::new();
    if let Some(seed) = args.random_weights {
        let model = model_arg::random_model(seed, &args.float)?;
        models.push((format!("{} (random)", model.config.name), QuantizedModel::from_float(&model)?));
    }
    let mut any_float = args.random_weights.is_some();
    for path in &args.models {
        let model = Model::load(path, &args.float)?;
        any_float |= model.is_float();
        models.push((path.display().to_string(), model.into_quantized()?));
    }
    args.float.check_used(any_float)?;
    Ok(models)
}

fn profile(
    models: &[(String, QuantizedModel)],
    args: &BenchArgs,
    options: EngineOptions,
) -> anyhow::Result<()> {
    for (name, model) in models {
        for &batch_size in &args.batch_size {
            let mut engine = Engine::new(model, EngineOptions { max_batch: batch_size, ..options })?;
            let batch = runner::noise(model.config.image_size, batch_size);
            engine.profile(&batch.pixels, 3)?;
            let launches = engine.profile(&batch.pixels, PROFILE_RUNS)?;
            let total: f64 = launches.iter().map(|l| l.time.as_secs_f64()).sum();
            let mut table = Table::new();
            table.load_style(presets::ASCII_MARKDOWN);
            table.set_header(["launch", "us", "share", "GMAC/s"]);
            for launch in &launches {
                let seconds = launch.time.as_secs_f64();
                let rate = launch.macs as f64 / seconds / 1e9;
                table.add_row([
                    launch.name.clone(),
                    format!("{:.1}", seconds * 1e6),
                    format!("{:.1} %", 100.0 * seconds / total),
                    if launch.macs == 0 { String::new() } else { format!("{rate:.0}") },
                ]);
            }
            say!("\n{name}, batch {batch_size}: {:.3} ms in launches\n{table}", total * 1e3);
        }
    }
    Ok(())
}
