//! `swinq eval`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swinq::eval::{self, Accuracy, Latency, LatencyOptions, ModelResult, ReportExtras, Results};
use swinq::model::atomic::write_atomic;
use swinq::{Candidate, EvaluateOptions, FloatDevice, Images, Model, Observer, ReadOptions};

use crate::args::{EvalArgs, Simulate, Usage};
use crate::out::say;
use crate::paths::check_outputs;
use crate::progress::Progress;
use crate::{backend_arg, float_device, interrupt, model_arg, shell};

/// Seconds of latency measurement for each model and batch size.
const LATENCY_SECONDS: f64 = 2.0;

/// Runs the command; `words` is the command line, for the report.
pub fn run(args: &EvalArgs, words: &[String]) -> anyhow::Result<()> {
    let (results, calibration) = evaluate(args)?;
    if let Some(path) = &args.json {
        eval::write_results(path, &results)?;
        say!("wrote {}", path.display());
    }
    if let Some(path) = &args.report {
        let commands = vec![shell::join(words)];
        let page = eval::html(&results, &ReportExtras { calibration, commands, ..ReportExtras::default() });
        write_atomic(path, |out| out.write_all(page.as_bytes()))?;
        say!("wrote {}", path.display());
    }
    Ok(())
}

/// The results, and how each quantized model was calibrated.
fn evaluate(args: &EvalArgs) -> anyhow::Result<(Results, Vec<String>)> {
    check_outputs(args.json.iter().chain(&args.report), args.models.iter().map(PathBuf::as_path))?;
    let mut candidates = candidates(args)?;
    let images = Images::open(&args.data.data_path, args.split, args.limit, args.seed)?;
    say!("{} of {}", count(images.len()), images.describe());
    let options = EvaluateOptions {
        read: ReadOptions {
            batch_size: args.batch_size,
            threads: args.threads,
            skip_corrupt: args.data.skip_corrupt,
        },
        threads: args.threads,
        latency: if args.no_latency { Vec::new() } else { args.latency.clone() },
        latency_options: LatencyOptions { min_ms: 1000.0 * LATENCY_SECONDS, ..LatencyOptions::default() },
        site_noise: args.json.is_some() || args.report.is_some(),
    };
    let results = swinq::evaluate(&mut candidates, &images, &options, &mut Printer::default())?;
    say!("\n{}", eval::table(&results));
    Ok((results, candidates.iter().filter_map(Candidate::calibration).collect()))
}

/// Prints the results of an evaluation while it runs.
#[derive(Default)]
struct Printer {
    progress: Option<Progress>,
    seen: usize,
}

impl Observer for Printer {
    fn begin(&mut self, model: &ModelResult, images: usize) {
        self.progress = Some(Progress::new(&model.label(), images));
    }

    fn images(&mut self, done: usize, _total: usize) -> ControlFlow<()> {
        self.seen = done;
        if let Some(progress) = &mut self.progress {
            progress.set(done);
        }
        interrupt::check()
    }

    fn evaluated(&mut self, model: &ModelResult, accuracy: &Accuracy, skipped: &[String]) {
        if let Some(progress) = self.progress.take() {
            progress.finish(self.seen);
        }
        for skipped in skipped {
            eprintln!("warning: left out {skipped}");
        }
        say!("{}: {}", model.label(), eval::acc_line(accuracy));
    }

    fn timed(&mut self, batch_size: usize, elapsed: Duration, _: &[(&ModelResult, &Latency)]) {
        eprintln!("latency at batch {batch_size}: {:.1} s", elapsed.as_secs_f64());
    }

    fn stop(&self) -> bool {
        interrupt::requested()
    }
}

/// The candidates: each model on an engine and, if simulation was requested, each quantized model simulated
/// as well.
fn candidates(args: &EvalArgs) -> anyhow::Result<Vec<Candidate>> {
    let largest = args.latency.iter().copied().filter(|_| !args.no_latency).chain([args.batch_size]).max();
    let engines = backend_arg::engines(&args.backend, args.threads, largest.unwrap_or(1))?;
    if args.simulate == Some(Simulate::Exact) && args.simulate_device.is_some() {
        let text = "--simulate-device applies to fake quantization only; --simulate=exact runs on the CPU";
        return Err(Usage(text.to_owned()).into());
    }
    let device = args.simulate_device.unwrap_or_default();
    float_device::check(device, "--simulate-device")?;
    let mut candidates = Vec::new();
    let mut any_float = false;
    for path in &args.models {
        let model = model_arg::open(path, &args.float)?;
        any_float |= !model.describes_itself();
        for options in &engines {
            let candidate = backend_arg::candidate(path, &model, options)?;
            let quantized = model.is_quantized();
            candidates.push(if quantized { candidate.with_sites_of(&model) } else { candidate });
        }
        if let Some(simulate) = args.simulate.filter(|_| model.is_quantized()) {
            candidates.push(simulated(path, &model, simulate, device, args.threads)?);
        }
    }
    args.float.check_used(any_float)?;
    Ok(candidates)
}

fn simulated(
    path: &Path,
    model: &Model,
    simulate: Simulate,
    device: FloatDevice,
    threads: usize,
) -> anyhow::Result<Candidate> {
    let name = path.display().to_string();
    if simulate == Simulate::Exact {
        return Ok(Candidate::reference(&name, model, &swinq::EngineOptions::cpu(threads))?);
    }
    let mut candidate = Candidate::simulated(&name, model, device)?;
    if device != FloatDevice::Cpu {
        candidate.result.backend += &format!(" on {device}");
    }
    Ok(candidate)
}

fn count(images: usize) -> String {
    if images == 1 { "1 image".to_owned() } else { format!("{images} images") }
}
