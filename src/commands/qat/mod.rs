//! `swinq qat`.

mod hooks;
mod inputs;
mod validate;

use anyhow::Context;
use candle_core::Device;
use swinq_data::{Augment, LoaderOptions, TrainLoader, TrainOptions};
use swinq_model::BatchSource;
use swinq_qat::job::{Course, Job};
use swinq_qat::schedule::Schedule;
use swinq_qat::{Outcome, Start, Trainer};

use crate::args::QatArgs;
use crate::float_device::FloatDevice;
use crate::out::say;
use hooks::TrainHooks;
use inputs::Inputs;
use validate::Validator;

/// Batches that are decoded ahead.
const PREFETCH: usize = 4;

/// Runs the command.
pub fn run(args: &QatArgs) -> anyhow::Result<()> {
    let overrides: Vec<(String, String)> =
        args.opts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let mut job = Job::load(&args.job, &overrides)?;
    let augment: Augment = job.augmentation()?;
    use_threads(job.threads)?;
    let inputs = Inputs::load(&job)?;
    let mut source = loader(&job, &inputs, augment)?;
    let course = job.course(source.images());
    let schedule = Schedule::of(&job, course.iterations())?;
    describe(&job, &inputs, &course, &schedule);
    let start = Start {
        job: &job,
        float: &inputs.float,
        quantized: inputs.quantized.as_ref(),
        teacher: inputs.teacher.as_ref(),
        drop_path: inputs.drop_path,
        device: device(&job)?,
    };
    let mut trainer = Trainer::new(&start, schedule)?;
    if args.dry_run {
        return Ok(());
    }
    std::fs::create_dir_all(&job.output).with_context(|| job.output.display().to_string())?;
    let identity = inputs.identity(&job)?;
    let validator = Validator::new(&job, &inputs)?;
    let mut hooks = TrainHooks::new(validator, &course);
    let outcome =
        swinq_qat::run(&job, &identity, &mut trainer, &course, &mut source, &mut hooks, args.resume);
    hooks.finish();
    for skipped in source.skipped() {
        eprintln!("warning: left out {skipped}");
    }
    match outcome? {
        Outcome::Finished(_) => write(&job, &trainer)?,
        Outcome::Stopped(path) => say!("stopped; --resume goes on from {}", path.display()),
    }
    if let Some(bytes) = swinq_eval::peak_memory_bytes() {
        say!("peak memory {:.0} MB", bytes as f64 / 1e6);
    }
    Ok(())
}

/// Writes the trained model, and beside it the job as it was in effect.
fn write(job: &Job, trainer: &Trainer) -> anyhow::Result<()> {
    let name = if job.quant { "model.safetensors" } else { "float.safetensors" };
    let path = job.output.join(name);
    trainer.model()?.save(&path)?;
    let effective = job.output.join("job.yaml");
    swinq_model::atomic::write_atomic(&effective, |out| out.write_all(job.to_string().as_bytes()))?;
    say!("wrote {} and {}", path.display(), effective.display());
    Ok(())
}

fn use_threads(threads: usize) -> anyhow::Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("starting threads")
}

fn device(job: &Job) -> anyhow::Result<Device> {
    let device = match job.device {
        swinq_qat::job::Device::Cpu => FloatDevice::Cpu,
        swinq_qat::job::Device::Cuda(ordinal) => FloatDevice::Cuda(ordinal),
    };
    device.open("the job's device")
}

fn loader(job: &Job, inputs: &Inputs, augment: Augment) -> anyhow::Result<TrainLoader> {
    let loader = LoaderOptions {
        batch_size: job.batch_size,
        threads: job.threads,
        prefetch: PREFETCH,
        skip_corrupt: job.data.skip_corrupt,
    };
    let options = TrainOptions {
        loader,
        augment,
        seed: job.seed,
        require_labels: job.loss.labels > 0.0,
        cache_bytes: (job.data.cache_mb as u64) << 20,
        ..TrainOptions::default()
    };
    let (data, transform) = (&inputs.train, inputs.float.transform.clone());
    Ok(TrainLoader::new(data.dataset.clone(), data.ids.clone(), transform, options)?)
}

/// Prints what holds, so that no key is silently without effect.
fn describe(job: &Job, inputs: &Inputs, course: &Course, schedule: &Schedule) {
    say!("{}", job.to_string().trim_end());
    say!();
    say!("model       {}, {} classes", inputs.float.config.name, inputs.float.config.num_classes);
    say!("transform   {}", inputs.float.transform);
    say!("images      {} of {}", inputs.train.ids.len(), inputs.train.dataset.describe());
    say!("validation  {} of {}", inputs.val.ids.len(), inputs.val.dataset.describe());
    say!(
        "length      {} iterations of {} images, {:.2} epochs",
        course.iterations(),
        course.images_per_iteration(),
        course.epoch(course.iterations())
    );
    say!("drop path   {}", inputs.drop_path);
    say!("learning rates (absolute):\n{schedule}");
}
