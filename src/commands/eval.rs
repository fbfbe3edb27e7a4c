//! `swinq eval`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use candle_core::Device;
use swinq_eval::report::ReportExtras;
use swinq_eval::{Collected, DataInfo, Environment, LatencyOptions, ModelResult, Precision, Results};
use swinq_float::FloatClassifier;
use swinq_int8_runtime::{Backend, CpuOptions, Engine};
use swinq_kernels::Cpu;
use swinq_model::{BatchSource, Classifier, QuantizedModel, Transform};

use crate::args::{EvalArgs, Simulate, Usage};
use crate::backend::{Runnable, Target};
use crate::data_arg::Sample;
use crate::float_device::FloatDevice;
use crate::model_arg::Model;
use crate::out::say;
use crate::paths::check_outputs;
use crate::progress::Progress;
use crate::runner::{self, Subject};
use crate::{html, interrupt, shell, site_noise};

/// Seconds of latency measurement for each model and batch size.
const LATENCY_SECONDS: f64 = 2.0;

/// Images over which the noise of each site is measured.
const NOISE_IMAGES: usize = 16;

/// Runs the command; `words` is the command line, for the report.
pub fn run(args: &EvalArgs, words: &[String]) -> anyhow::Result<()> {
    let (results, calibration) = evaluate(args)?;
    if let Some(path) = &args.json {
        swinq_eval::write_results(path, &results)?;
        say!("wrote {}", path.display());
    }
    if let Some(path) = &args.report {
        let commands = vec![shell::join(words)];
        html::write(path, &results, &ReportExtras { calibration, commands, ..ReportExtras::default() })?;
        say!("wrote {}", path.display());
    }
    Ok(())
}

/// The results, and how each quantized model was calibrated.
fn evaluate(args: &EvalArgs) -> anyhow::Result<(Results, Vec<String>)> {
    check_outputs(args.json.iter().chain(&args.report), args.models.iter().map(PathBuf::as_path))?;
    let mut subjects = subjects(args)?;
    let sample = Sample::open(&args.data.data_path, args.split, args.limit, args.seed)?;
    say!("{} of {}", images(sample.ids.len()), sample.dataset.describe());
    let options = CpuOptions { threads: args.threads, ..CpuOptions::detect()? };
    let threads = swinq_kernels::Pool::new(args.threads).threads();
    let mut results =
        Results::new(Environment::detect(Some(options.cpu.name()), threads, Default::default()));
    let mut baseline: Option<Collected> = None;
    for subject in &mut subjects {
        let collected = collect(subject, &sample, args)?;
        let accuracy = swinq_eval::accuracy(&collected)?;
        say!("{}: {}", subject.result.label(), swinq_eval::acc_line(&accuracy));
        subject.result.set_accuracy(&accuracy);
        match &baseline {
            None => baseline = Some(collected),
            Some(baseline) => {
                subject.result.set_fidelity(&swinq_eval::fidelity(baseline, &collected)?);
                subject.result.top1_difference = Some(swinq_eval::top1_difference(baseline, &collected)?);
            }
        }
    }
    if !args.no_latency {
        let options = LatencyOptions { min_ms: 1000.0 * LATENCY_SECONDS, ..LatencyOptions::default() };
        runner::measure(&mut subjects, &args.latency, &options, &mut |_, _, _| {})?;
    }
    if args.json.is_some() || args.report.is_some() {
        measure_sites(&mut subjects, &sample)?;
    }
    results.data = Some(data_info(args, &sample, &subjects[0].transform));
    let calibration = subjects.iter().filter_map(calibration_of).collect();
    results.models = subjects.into_iter().map(|subject| subject.result).collect();
    say!("\n{}", swinq_eval::table(&results));
    Ok((results, calibration))
}

/// How a quantized model was calibrated, in one sentence.
fn calibration_of(subject: &Subject) -> Option<String> {
    let model = subject.quantized.as_ref()?;
    let how = match &model.provenance.calibration {
        Some(record) => {
            format!(
                "{} images, seed {}, SHA-256 of the pixels {}",
                record.images.len(),
                record.seed,
                record.sha256
            )
        }
        None => "ranges imported or fixed by the recipe".to_owned(),
    };
    let (recipe, source) = (&model.recipe.name, &model.provenance.source);
    Some(format!(
        "{}: recipe {recipe}; {how}; made from {} ({})",
        subject.result.name, source.file, source.sha256
    ))
}

/// The models as they will be run: each on the engine, and quantized ones simulated too where that was asked for.
fn subjects(args: &EvalArgs) -> anyhow::Result<Vec<Subject>> {
    let largest = args.latency.iter().copied().filter(|_| !args.no_latency).chain([args.batch_size]).max();
    let targets = Target::all(&args.backend, args.threads, largest.unwrap_or(1))?;
    if args.simulate == Some(Simulate::Exact) && args.simulate_device.is_some() {
        let text = "--simulate-device is about fake quantization; --simulate=exact runs on the CPU";
        return Err(Usage(text.to_owned()).into());
    }
    let float_device = args.simulate_device.unwrap_or_default();
    let device = float_device.open("--simulate-device")?;
    let mut subjects = Vec::new();
    let mut any_float = false;
    for path in &args.models {
        let model = Model::load(path, &args.float)?;
        any_float |= model.is_float();
        let model = model.into_quantized()?;
        for &target in &targets {
            let mut subject = Subject::engine(path, &model, target)?;
            subject.quantized = model.is_quantized().then(|| model.clone());
            subjects.push(subject);
        }
        if let Some(simulate) = args.simulate.filter(|_| model.is_quantized()) {
            let options = CpuOptions { threads: args.threads, ..CpuOptions::detect()? };
            let mut subject = simulated(path, &model, simulate, &device, options)?;
            if float_device != FloatDevice::Cpu {
                subject.result.backend += &format!(" on {float_device}");
            }
            subjects.push(subject);
        }
    }
    args.float.check_used(any_float)?;
    let classes = subjects[0].classifier.classes();
    for subject in &subjects {
        anyhow::ensure!(
            subject.classifier.classes() == classes,
            "{} has {} classes and {} has {classes}; only models of the same classes can be compared",
            subject.result.name,
            subject.classifier.classes(),
            subjects[0].result.name
        );
    }
    Ok(subjects)
}

fn simulated(
    path: &Path,
    model: &QuantizedModel,
    simulate: Simulate,
    device: &Device,
    options: CpuOptions,
) -> anyhow::Result<Subject> {
    let mut result = ModelResult::new(path.display().to_string(), Precision::Simulated, "");
    let classifier = match simulate {
        Simulate::Fake => {
            result.backend = "fake quantization".to_owned();
            Runnable::Other(Box::new(FloatClassifier::simulate(model, device)?))
        }
        Simulate::Exact => {
            result.backend = "scalar reference".to_owned();
            let cpu = Cpu::scalar();
            Runnable::Engine(Box::new(Engine::new(model, Backend::Cpu(CpuOptions { cpu, ..options }))?))
        }
    };
    result.recipe = Some(model.recipe.name.clone());
    Ok(Subject {
        result,
        classifier,
        transform: model.transform.clone(),
        config: model.config.clone(),
        quantized: None,
    })
}

fn collect(subject: &mut Subject, sample: &Sample, args: &EvalArgs) -> anyhow::Result<Collected> {
    sample.check_labels(&subject.config)?;
    let mut loader = sample.loader(&subject.transform, args.batch_size, args.threads, args.data.skip_corrupt);
    let mut progress = Progress::new(&subject.result.label(), sample.ids.len());
    let mut seen = 0;
    let mut on_images = |done: usize, _total: usize| {
        seen = done;
        progress.set(done);
        interrupt::check()
    };
    let collected = swinq_eval::collect(&mut subject.classifier, &mut loader, &mut on_images)
        .with_context(|| format!("evaluating {}", subject.result.name))?;
    progress.finish(seen);
    for skipped in loader.skipped() {
        eprintln!("warning: left out {skipped}");
    }
    Ok(collected)
}

/// Enters the noise of every quantized site, over the first images of the sample.
fn measure_sites(subjects: &mut [Subject], sample: &Sample) -> anyhow::Result<()> {
    for subject in subjects.iter_mut().filter(|s| !s.result.sites.is_empty()) {
        let Some(model) = &subject.quantized else { continue };
        let first = Sample {
            dataset: sample.dataset.clone(),
            ids: sample.ids.iter().copied().take(NOISE_IMAGES).collect(),
        };
        let batch = first.loader(&subject.transform, NOISE_IMAGES, 0, NOISE_IMAGES).batch(0, 0);
        let noise = site_noise::measure(model, &batch.map_err(anyhow::Error::from_boxed)?)?;
        for (site, db) in noise {
            let name = site.to_string();
            if let Some(result) = subject.result.sites.iter_mut().find(|r| r.site == name) {
                result.sqnr_db = Some(db);
            }
        }
    }
    Ok(())
}

fn data_info(args: &EvalArgs, sample: &Sample, transform: &Transform) -> DataInfo {
    DataInfo {
        path: args.data.data_path.display().to_string(),
        split: Some(args.split.to_string()),
        total: Some(sample.dataset.len()),
        limit: args.limit,
        seed: args.limit.map(|_| args.seed),
        sha256: Some(sample.list_sha256()),
        skipped: None,
        transform: Some(transform.clone()),
    }
}

fn images(count: usize) -> String {
    if count == 1 { "1 image".to_owned() } else { format!("{count} images") }
}
