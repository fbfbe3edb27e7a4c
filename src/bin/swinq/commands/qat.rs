//! `swinq qat`.

mod hooks;

use anyhow::Context;
use swinq::qat::Outcome;
use swinq::qat::job::{Device, Job};
use swinq::{FloatDevice, Training};

use crate::args::{self, QatArgs};
use crate::float_device;
use crate::out::{caution, info, say};
use hooks::TrainHooks;

/// Runs the command.
pub fn run(args: &QatArgs) -> anyhow::Result<()> {
    let job = Job::load(&args.job, &args::pairs(&args.opts)?)?;
    use_threads(job.threads)?;
    let mut training = Training::open(job)?;
    for warning in &training.inputs.warnings {
        caution!("{warning}");
    }
    describe(&training);
    if let Device::Cuda(ordinal) = training.job.device {
        float_device::check(FloatDevice::Cuda(ordinal), "the job's device")?;
    }
    let mut trainer = training.trainer()?;
    if args.dry_run {
        return Ok(());
    }
    let mut hooks = TrainHooks::new(training.validator()?, &training.course);
    let outcome = training.run(&mut trainer, &mut hooks, args.resume);
    hooks.finish();
    for skipped in training.skipped() {
        caution!("left out {skipped}");
    }
    match outcome? {
        Outcome::Finished(_) => {
            let [model, job] = training.save(&trainer)?;
            info!("wrote {} and {}", model.display(), job.display());
        }
        Outcome::Stopped(path) => say!("stopped; use --resume to continue from {}", path.display()),
    }
    if let Some(bytes) = swinq::eval::peak_memory_bytes() {
        info!("peak memory {:.0} MB", bytes as f64 / 1e6);
    }
    Ok(())
}

fn use_threads(threads: usize) -> anyhow::Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("starting threads")
}

/// Prints the job with the effective value of every key.
fn describe(training: &Training) {
    let Training { job, inputs, course, schedule, .. } = training;
    info!("{}", job.to_string().trim_end());
    info!("");
    info!("model       {}, {} classes", inputs.float.config.name, inputs.float.config.num_classes);
    info!("transform   {}", inputs.float.transform);
    info!("images      {} of {}", inputs.train.len(), inputs.train.describe());
    info!("validation  {} of {}", inputs.val.len(), inputs.val.describe());
    info!(
        "length      {} iterations of {} images, {:.2} epochs",
        course.iterations(),
        course.images_per_iteration(),
        course.epoch(course.iterations())
    );
    info!("drop path   {}", inputs.drop_path);
    info!("learning rates (absolute):\n{schedule}");
}
