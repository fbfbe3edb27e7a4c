//! `swinq bench`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use swinq::eval::{self, Latency, LatencyOptions, ModelResult, Results};
use swinq::{BackendChoice, Candidate, EngineOptions, Model, Observer};
use swinq_ladder::LadderCommand;

use crate::args::{BenchArgs, Usage};
use crate::json_arg::JsonArg;
use crate::out::{info, note, say};
use crate::paths::check_outputs;
use crate::{backend_arg, interrupt, model_arg, names, profile};

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    refuse_ops_as_models(&args.models)?;
    let json = JsonArg::new(args.json.as_deref());
    check_outputs(json.file(), args.models.iter().map(PathBuf::as_path).chain(args.float.files()))?;
    let largest = args.batch_size.iter().copied().max().unwrap_or(1);
    let mut engines = backend_arg::engines(&args.backend, args.threads, largest)?;
    engines.iter_mut().for_each(|options| options.max_pixels = args.max_pixels);
    info!("{}", engines[0].describe()?);
    if args.streams > 0 && engines[0].backend == BackendChoice::Cuda {
        return Err(Usage(
            "--streams needs the CPU; on a GPU the copies of a batch overlap with the one before".to_owned(),
        )
        .into());
    }
    let mut candidates = candidates(args, &engines)?;
    candidates.iter().for_each(print_threads);
    let latency = LatencyOptions { min_ms: 1000.0 * args.seconds, ..LatencyOptions::default() };
    let load =
        swinq::measure_latency(&mut candidates, &args.batch_size, &latency, args.streams, &mut Printer)?;
    if args.profile {
        for candidate in &candidates {
            for &batch_size in &args.batch_size {
                profile::print(candidate, batch_size)?;
            }
        }
    }
    let mut results = Results::new(swinq::environment(args.threads.most)?);
    results.load = load;
    results.peak_memory_bytes = eval::peak_memory_bytes();
    results.models = candidates.into_iter().map(|candidate| candidate.result).collect();
    say!("\n{}", eval::table(&results));
    json.print(|| eval::results_json(&results))?;
    if let Some(path) = json.file() {
        eval::write_results(path, &results)?;
        info!("wrote {}", path.display());
    }
    Ok(())
}

/// Prints how the CPU engine of `candidate` divides its threads.
fn print_threads(candidate: &Candidate) {
    if let Some(engine) = candidate.runner.cpu_engine() {
        info!(
            "{}: threads {}, for one image {}; images side by side {}",
            candidate.result.label(),
            engine.threads(),
            engine.image_threads(),
            engine.lanes()
        );
    }
}

/// Explains the name of an op that follows options: the command line takes it for the first model.
fn refuse_ops_as_models(models: &[PathBuf]) -> anyhow::Result<()> {
    let Some(name) = models.first().filter(|model| !model.exists()).and_then(|model| model.to_str()) else {
        return Ok(());
    };
    if LadderCommand::has_subcommand(name) {
        bail!(
            "{name}: no such file or folder; to time the op {name}, put it before all options: swinq bench {name}"
        );
    }
    Ok(())
}

/// Prints each latency as soon as it is measured.
struct Printer;

impl Observer for Printer {
    fn images(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        interrupt::check()
    }

    fn timing(&mut self, batch_size: usize, estimate: Duration) {
        note!("latency at batch {batch_size}: measuring takes about {:.0} s", estimate.as_secs_f64());
    }

    fn timed(&mut self, batch_size: usize, elapsed: Duration, latencies: &[(&ModelResult, &Latency)]) {
        note!("latency at batch {batch_size}: measured in {:.1} s", elapsed.as_secs_f64());
        for (model, latency) in latencies {
            say!("\n{}", eval::performance_summary(&model.label(), batch_size, latency));
        }
    }

    fn stop(&self) -> bool {
        interrupt::requested()
    }
}

/// Every model on every engine, with images of every size. The models themselves are freed.
fn candidates(args: &BenchArgs, engines: &[EngineOptions]) -> anyhow::Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    let mut add = |name: &str, model: &Model| -> anyhow::Result<()> {
        for options in engines {
            let candidate = || backend_arg::candidate(name, model, options, &args.backend.devices);
            if args.size.is_empty() {
                candidates.push(candidate()?);
            }
            for &size in &args.size {
                let size = size.map(|side| side.next_multiple_of(args.pad_to.unwrap_or(1)));
                candidates.push(candidate()?.at(size)?);
            }
        }
        Ok(())
    };
    if let Some(seed) = args.random_weights {
        let model = model_arg::random(seed, &args.float)?;
        add(&format!("{} (random)", model.config().name), &model)?;
    }
    let mut any_float = args.random_weights.is_some();
    let float = args.float.described_by(&args.models);
    for (path, name) in args.models.iter().zip(names::shown(&args.models, &[])?) {
        let model = model_arg::open(path, &float)?;
        if args.backend.devices.len() > 1 {
            model.check_classifier().with_context(|| format!("{} with --devices", path.display()))?;
        }
        any_float |= !model.describes_itself();
        add(&name, &model)?;
    }
    args.float.check_used(any_float)?;
    Ok(candidates)
}
