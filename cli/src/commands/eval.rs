//! `swinq eval`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swinq::eval::results::sensitivity::read_sensitivity;
use swinq::eval::results::tune::read_tuning;
use swinq::eval::{self, Accuracy, Latency, LatencyOptions, ModelResult, ReportExtras, Results};
use swinq::{
    Candidate, EvaluateOptions, FloatDevice, Images, Model, Observer, ReadOptions, ReportFiles, Shard,
};

use crate::args::{EvalArgs, Simulate, Usage};
use crate::json_arg::JsonArg;
use crate::out::{caution, counted, info, note, say};
use crate::paths::{check_inputs, check_outputs, check_part};
use crate::progress::Progress;
use crate::{backend_arg, float_device, images_arg, interrupt, model_arg, names, shell};

/// The files in `folder`, which a training wrote; none if it cannot be read, which is an error later.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

/// Runs the command; `words` is the command line, for the report.
pub fn run(args: &EvalArgs, words: &[String]) -> anyhow::Result<()> {
    check_inputs([
        ("--data-path", Some(args.data.data_path.as_path())),
        ("--sensitivity", args.sensitivity.as_deref()),
        ("--tuning", args.tuning.as_deref()),
        ("--training", args.training.as_deref()),
        ("--program", args.program.as_deref()),
    ])?;
    let json = JsonArg::new(args.json.as_deref());
    let files = ReportFiles {
        html: args.report.clone(),
        markdown: args.markdown.clone(),
        json: json.file().cloned(),
    };
    let training = args.training.as_deref().map(files_in).unwrap_or_default();
    let others = [&args.sensitivity, &args.tuning, &args.program].into_iter().flatten().chain(&training);
    let inputs = args.models.iter().chain([&args.data.data_path]).chain(others);
    let outputs = files.paths().chain(&args.predictions).chain(&args.output);
    check_outputs(outputs, inputs.map(PathBuf::as_path).chain(args.float.files()))?;
    if let (Some(shard), Some(output)) = (args.shard, &args.output) {
        check_part(output)?;
        return one_shard(args, shard, output, shell::join(words));
    }
    let sensitivity = args.sensitivity.as_deref().map(read_sensitivity).transpose()?;
    let tuning = args.tuning.as_deref().map(read_tuning).transpose()?;
    let training = args.training.as_deref().map(eval::read_training).transpose()?;
    let program = args.program.as_deref().map(eval::read_program_gain).transpose()?;
    let detailed = args.json.is_some() || files.paths().next().is_some();
    let images = images_arg::open(&args.data.data_path, &args.split, "--split", args.limit, args.seed)?;
    let mut results = evaluate(args, &images, detailed)?;
    results.commands = vec![shell::join(words)];
    (results.training, results.program) = (training, program);
    let extras = ReportExtras { sensitivity, tuning, ..ReportExtras::default() };
    swinq::write_report(&results, extras, Some(&images), &files)?;
    json.print(|| eval::results_json(&results))?;
    for path in files.paths().chain(&args.predictions) {
        info!("wrote {}", path.display());
    }
    Ok(())
}

/// Evaluates on one shard, and writes its part.
fn one_shard(args: &EvalArgs, shard: Shard, output: &Path, command: String) -> anyhow::Result<()> {
    let images = images_arg::open(&args.data.data_path, &args.split, "--split", args.limit, args.seed)?;
    let (mut candidates, notes) = candidates(args, true)?;
    check_kind(args, &candidates)?;
    info!("shard {shard} of {} of {}", counted(images.len(), "image"), images.describe());
    let options = EvaluateOptions {
        read: read_options(args, &candidates),
        sizing: args.size.unwrap_or_default(),
        threads: args.threads.most,
        site_noise: !args.no_sites,
        ..EvaluateOptions::default()
    };
    let mut printer = Printer::default();
    let part = swinq::evaluate_shard(
        &mut candidates,
        &images,
        shard,
        &options,
        &notes,
        Some(command),
        &mut printer,
    )?;
    part.save(output)?;
    info!("wrote {} (shard {shard}, {})", output.display(), counted(part.images, "image"));
    Ok(())
}

/// Images per batch where none are stated.
const BATCH: usize = 32;

/// Batch sizes whose latency is measured where none are stated; of backbones the first alone, because their
/// images are large.
const LATENCY: [usize; 2] = [1, 8];

/// Whether the models are backbones.
fn are_backbones(candidates: &[Candidate]) -> bool {
    candidates.first().is_some_and(|candidate| candidate.config().is_backbone())
}

/// Refuses options that the models' kind does not have.
fn check_kind(args: &EvalArgs, candidates: &[Candidate]) -> anyhow::Result<()> {
    if let Some(first) = candidates.first() {
        images_arg::check_size(args.size, first.config())?;
    }
    if args.predictions.is_some() && are_backbones(candidates) {
        let text =
            "--predictions lists classes, which backbones do not have; `swinq features` writes their outputs";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// The batch sizes whose latency is measured.
fn latencies(args: &EvalArgs, candidates: &[Candidate]) -> Vec<usize> {
    match &args.latency {
        _ if args.no_latency => Vec::new(),
        Some(stated) => stated.clone(),
        None => LATENCY[..if are_backbones(candidates) { 1 } else { 2 }].to_vec(),
    }
}

/// How the images are read. A CPU engine divides a batch among its threads, so that these need some images
/// each.
fn read_options(args: &EvalArgs, candidates: &[Candidate]) -> ReadOptions {
    if are_backbones(candidates) {
        let batch_size = args.batch_size.unwrap_or(swinq::DEFAULT_BATCH);
        return ReadOptions { batch_size, threads: args.threads.most, skip_corrupt: args.data.skip_corrupt };
    }
    let engines = candidates.iter().filter_map(|candidate| candidate.runner.cpu_engine());
    let busy = engines.map(|engine| 4 * engine.threads());
    let batch_size = args.batch_size.unwrap_or_else(|| busy.chain([BATCH]).max().unwrap_or(BATCH));
    ReadOptions { batch_size, threads: args.threads.most, skip_corrupt: args.data.skip_corrupt }
}

/// The results; with `detailed`, also what only files show.
pub fn evaluate(args: &EvalArgs, images: &Images, detailed: bool) -> anyhow::Result<Results> {
    let (mut candidates, notes) = candidates(args, detailed)?;
    check_kind(args, &candidates)?;
    info!("{} of {}", counted(images.len(), "image"), images.describe());
    let options = EvaluateOptions {
        read: read_options(args, &candidates),
        sizing: args.size.unwrap_or_default(),
        threads: args.threads.most,
        latency: latencies(args, &candidates),
        latency_options: LatencyOptions { min_ms: 1000.0 * args.seconds, ..LatencyOptions::default() },
        site_noise: detailed && !args.no_sites,
        profile: detailed,
    };
    let classes = candidates.first().map_or(0, |candidate| candidate.classes());
    let sources = candidates.iter().map(|candidate| candidate.source_sha256().to_owned()).collect();
    let mut printer = Printer { accuracies: Accuracies::new(classes, sources), ..Printer::default() };
    let mut results = swinq::evaluate(&mut candidates, images, &options, &mut printer)?;
    results.notes.extend(notes);
    if let Some(path) = &args.predictions {
        swinq::write_predictions(path, &candidates, images)?;
    }
    say!("\n{}", eval::table(&results));
    Ok(results)
}

/// Prints the accuracies of models, and warns of one that guessing would give.
#[derive(Default)]
pub struct Accuracies {
    /// Number of classes of the models.
    classes: usize,
    /// SHA-256 of the float file that each model was made from, in the order of the models.
    sources: Vec<String>,
    printed: usize,
    /// Label of the first model, if it is better than guessing.
    baseline: Option<String>,
}

impl Accuracies {
    /// For models with `classes` classes that were made from the float files with these hashes.
    pub fn new(classes: usize, sources: Vec<String>) -> Accuracies {
        Accuracies { classes, sources, ..Accuracies::default() }
    }

    /// Prints the accuracy of the next model.
    pub fn print(&mut self, model: &ModelResult, accuracy: &Accuracy) {
        let (label, index) = (model.label(), self.printed);
        say!("{label}: {}", eval::acc_line(accuracy));
        let remark = match &self.baseline {
            Some(baseline) => {
                let source = self.sources.get(index).filter(|source| !source.is_empty());
                let same = source.is_some() && source == self.sources.first();
                eval::near_chance_beside(accuracy, self.classes, baseline, same)
            }
            None => eval::near_chance(accuracy, self.classes),
        };
        if let Some(remark) = remark {
            caution!("{label}: {remark}");
        }
        if index == 0 && eval::is_above_chance(accuracy, self.classes) {
            self.baseline = Some(label);
        }
        self.printed += 1;
    }
}

/// Prints the results of an evaluation while it runs.
#[derive(Default)]
struct Printer {
    progress: Option<Progress>,
    seen: usize,
    accuracies: Accuracies,
}

impl Observer for Printer {
    fn remark(&mut self, text: &str) {
        note!("{text}");
    }

    fn begin(&mut self, model: &ModelResult, images: usize) {
        self.progress = Some(Progress::new(&model.label(), images));
    }

    fn begin_together(&mut self, models: &[&ModelResult], images: usize) {
        let label = format!("{} and {}", models[0].label(), counted(models.len() - 1, "other model"));
        self.progress = Some(Progress::new(&label, images));
    }

    fn images(&mut self, done: usize, _total: usize) -> ControlFlow<()> {
        self.seen = done;
        if let Some(progress) = &mut self.progress {
            progress.set(done);
        }
        interrupt::check()
    }

    fn evaluated(&mut self, model: &ModelResult, accuracy: Option<&Accuracy>, skipped: &[String]) {
        if let Some(progress) = self.progress.take() {
            progress.finish(self.seen);
        }
        for skipped in skipped {
            caution!("left out {skipped}");
        }
        if let Some(accuracy) = accuracy {
            self.accuracies.print(model, accuracy);
        }
    }

    fn site(&mut self, model: &ModelResult, done: usize, total: usize) -> ControlFlow<()> {
        if done == 0 {
            self.progress = Some(Progress::counting(&format!("noise of {}", model.label()), "sites", total));
        }
        if let Some(progress) = &mut self.progress {
            progress.set(done);
        }
        if done == total
            && let Some(progress) = self.progress.take()
        {
            progress.finish(done);
        }
        interrupt::check()
    }

    fn timing(&mut self, batch_size: usize, estimate: Duration) {
        note!("latency at batch {batch_size}: measuring takes about {:.0} s", estimate.as_secs_f64());
    }

    fn timed(&mut self, batch_size: usize, elapsed: Duration, _: &[(&ModelResult, &Latency)]) {
        note!("latency at batch {batch_size}: measured in {:.1} s", elapsed.as_secs_f64());
    }

    fn stop(&self) -> bool {
        interrupt::requested()
    }
}

/// The candidates: each model on an engine and, if simulation was requested, each quantized model simulated
/// as well; and remarks for the reader. With `detailed`, the candidates record their files and keep their
/// models.
fn candidates(args: &EvalArgs, detailed: bool) -> anyhow::Result<(Vec<Candidate>, Vec<String>)> {
    let timed = args.latency.as_deref().unwrap_or(&LATENCY);
    let timed = timed.iter().copied().filter(|_| !args.no_latency);
    let largest = timed.chain([args.batch_size.unwrap_or(BATCH)]).max();
    let engines = backend_arg::engines(&args.backend, args.threads, largest.unwrap_or(1))?;
    if args.simulate == Some(Simulate::Exact) && args.simulate_device.is_some() {
        let text = "--simulate-device applies to fake quantization only; --simulate=exact runs on the CPU";
        return Err(Usage(text.to_owned()).into());
    }
    let device = args.simulate_device.unwrap_or_default();
    float_device::check(device, "--simulate-device")?;
    check_simulate(args)?;
    let names = names::shown(&args.models, &args.name)?;
    let (mut candidates, mut notes) = (Vec::new(), Vec::new());
    let mut any_float = false;
    let float = args.float.described_by(&args.models);
    for (path, name) in args.models.iter().zip(&names) {
        let model = model_arg::open(path, &float)?;
        any_float |= !model.describes_itself();
        let first = candidates.len();
        for options in &engines {
            let candidate = backend_arg::candidate(name, &model, options, &args.backend.devices)?;
            candidates.push(if detailed { candidate.with_sites_of(&model) } else { candidate });
        }
        if let Some(simulate) = args.simulate.filter(|_| model.is_quantized()) {
            candidates.push(simulated(name, &model, simulate, device, args.threads.most)?);
        }
        if args.shard.is_some() {
            let own = candidates.split_off(first).into_iter().map(|own| own.with_hash_of(&model));
            candidates.extend(own.collect::<Result<Vec<_>, _>>()?);
        }
        for candidate in candidates[first..].iter_mut().filter(|_| detailed) {
            notes.extend(candidate.record_file(path)?.filter(|note| !notes.contains(note)));
        }
    }
    args.float.check_used(any_float)?;
    Ok((candidates, notes))
}

/// Refuses `--simulate exact`: without `=`, the word is the first model.
fn check_simulate(args: &EvalArgs) -> Result<(), Usage> {
    let value = args
        .models
        .iter()
        .find(|model| [Path::new("exact"), Path::new("fake")].contains(&model.as_path()) && !model.exists());
    match value.filter(|_| args.simulate.is_some()) {
        Some(value) => {
            let value = value.display();
            Err(Usage(format!(
                "{value}: no such model; for the kind of simulation, write --simulate={value}"
            )))
        }
        None => Ok(()),
    }
}

fn simulated(
    name: &str,
    model: &Model,
    simulate: Simulate,
    device: FloatDevice,
    threads: usize,
) -> anyhow::Result<Candidate> {
    if simulate == Simulate::Exact {
        return Ok(Candidate::reference(name, model, &swinq::EngineOptions::cpu(threads))?);
    }
    let mut candidate = Candidate::simulated(name, model, device)?;
    if device != FloatDevice::Cpu {
        candidate.result.backend += &format!(" on {device}");
    }
    Ok(candidate)
}
