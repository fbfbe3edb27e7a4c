//! `swinq qat`.

mod hooks;
mod launch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use swinq::model::quantized::Score;
use swinq::qat::job::{Device, Job};
use swinq::qat::ranks::{RankInfo, Rendezvous};
use swinq::qat::{Begin, Outcome, QatError, Trainer, Validation};
use swinq::train::Compared;
use swinq::{FloatDevice, Training};

use crate::args::{self, QatArgs, Usage};
use crate::out::{caution, info, note, say, set_rank};
use crate::paths::check_outputs;
use crate::{float_device, interrupt, tables};
use hooks::TrainHooks;
use launch::Others;

/// Runs the command: as the only process, as one of several that a launcher started, or as the first of
/// several; it starts the others.
pub fn run(args: &QatArgs) -> anyhow::Result<()> {
    let info = info(args)?;
    if !info.is_first() {
        set_rank(info.rank);
    }
    let mut opts = args::pairs(&args.opts)?;
    // As an option, so that the job's other keys are checked against it.
    opts.extend(args.devices.first().map(|first| ("device".to_owned(), launch::of_job(*first).to_string())));
    let job = Job::load(&args.job, &opts)?;
    let training = open(args, job, &info)?;
    if args.dry_run {
        return Ok(training.trainer().map(drop)?);
    }
    let rendezvous = Rendezvous::new(info, Duration::from_secs(args.timeout)).map_err(QatError::from)?;
    // Only now, so that an error of the job or of its files is printed once.
    let others = Others::start(args, rendezvous.info())?;
    match rank(args, training, rendezvous, &others) {
        Ok(()) => others.wait(),
        Err(error) => {
            others.end();
            Err(error)
        }
    }
}

/// The rank of this process among those that `--devices` asks for, or among those that a launcher describes.
fn info(args: &QatArgs) -> anyhow::Result<RankInfo> {
    launch::check(&args.devices)?;
    let stated = RankInfo::from_environment().map_err(QatError::from)?;
    match (stated, args.devices.len()) {
        (Some(info), 0) => Ok(info),
        (Some(_), _) => {
            let problem =
                "--devices starts processes, but RANK or WORLD_SIZE says that a launcher has started them";
            Err(Usage(problem.to_owned()).into())
        }
        (None, 0 | 1) => Ok(RankInfo::default()),
        (None, size) => Ok(RankInfo { size, local_size: size, ..RankInfo::default() }),
    }
}

/// Trains as one of the processes of `rendezvous`. `others` are those that this process started.
fn rank(
    args: &QatArgs,
    mut training: Training,
    rendezvous: Rendezvous,
    others: &Others,
) -> anyhow::Result<()> {
    let mut trainer = training.trainer()?;
    let info = rendezvous.info();
    if info.size > 1 && info.is_first() && args.devices.is_empty() {
        let (host, port) = &info.address;
        note!("waiting for {} other processes at {host}:{port}", info.size - 1);
    }
    let give_up = || match interrupt::requested() {
        true => Some("interrupted while the processes were waiting for each other".to_owned()),
        false => others.ended(),
    };
    trainer.join(training.meet(rendezvous, &give_up)?);
    train(args, &mut training, &mut trainer)
}

/// Loads everything that the process that `info` describes needs, checks it, and prints the effective job.
fn open(args: &QatArgs, job: Job, info: &RankInfo) -> anyhow::Result<Training> {
    use_threads(swinq::train::threads(&job, info))?;
    let training = Training::open_at(job, info)?;
    if info.is_first() {
        check_files(&training)?;
        if !args.resume && !args.restart {
            check_job(&args.job, &training)?;
        }
        for warning in &training.inputs.warnings {
            caution!("{warning}");
        }
    }
    describe(&training, info);
    if let Device::Cuda(ordinal) = training.job.device {
        float_device::check(FloatDevice::Cuda(ordinal), "the job's device")?;
    }
    Ok(training)
}

fn train(args: &QatArgs, training: &mut Training, trainer: &mut Trainer) -> anyhow::Result<()> {
    let mut hooks = TrainHooks::new(training.validator()?, &training.length);
    let begin = match (args.resume, args.restart) {
        (true, _) => Begin::Resume,
        (_, true) => Begin::Restart,
        _ => Begin::New,
    };
    let outcome = training.run(trainer, &mut hooks, begin);
    hooks.finish();
    for skipped in training.skipped() {
        caution!("left out {skipped}");
    }
    training.inputs.train.turned().iter().for_each(|remark| note!("{remark}"));
    let outcome = outcome?;
    if trainer.group().is_first() {
        ended(args, training, trainer, &mut hooks, outcome)?;
    }
    if let Some(bytes) = swinq::eval::peak_memory_bytes() {
        info!("peak memory {}", swinq::eval::mebibytes(bytes));
    }
    Ok(())
}

/// Writes the trained model and compares it with the others, or says how to continue.
fn ended(
    args: &QatArgs,
    training: &Training,
    trainer: &Trainer,
    hooks: &mut TrainHooks,
    outcome: Outcome,
) -> anyhow::Result<()> {
    match outcome {
        Outcome::Finished(last) => {
            training.save(trainer)?;
            let [model, best, job] = training.outputs();
            info!("wrote {}, {} (the best validated) and {}", model.display(), best.display(), job.display());
            let stop = &interrupt::requested;
            match training.compare(&mut hooks.validator, trainer, &last, stop)? {
                Some(rows) => compared(&rows),
                None => say!("stopped before the models were compared; the training is complete"),
            }
        }
        Outcome::Stopped(path) => {
            let [.., job] = training.outputs();
            let on = match (trainer.processes(), args.devices.as_slice()) {
                (1, _) => "`".to_owned(),
                (count, []) => format!("` on {count} processes"),
                (_, devices) => {
                    let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
                    format!(" --devices {}`", devices.join(","))
                }
            };
            say!("stopped; `swinq qat {} --resume{on} continues from {}", job.display(), path.display());
            if !interrupt::requested() {
                bail!("another process was asked to stop");
            }
        }
    }
    Ok(())
}

/// Refuses an output that is a file, and an output folder where the training would replace one of its own
/// inputs.
fn check_files(training: &Training) -> anyhow::Result<()> {
    let job = &training.job;
    if !job.output.is_dir() {
        if job.output.exists() {
            bail!("output: {} is a file; give a folder", job.output.display());
        }
        return Ok(());
    }
    let models = [&job.model, &job.float, &job.teacher, &job.data.val_path].into_iter().flatten();
    let inputs = models.chain([&job.data.path]).map(PathBuf::as_path);
    check_outputs(&training.outputs(), inputs.chain(job.cfg.as_ref().map(Path::new)))
}

/// Refuses a job in its own output folder, where the training would replace it with the job of all keys.
fn check_job(given: &str, training: &Training) -> anyhow::Result<()> {
    let [.., written] = training.outputs();
    let same = matches!((Path::new(given).canonicalize(), written.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same && std::fs::read_to_string(&written)? != training.job.to_string() {
        bail!(
            "{given}: the training would replace this job with one that states every key; rename it, or choose another \
             output folder"
        );
    }
    Ok(())
}

/// Prints the scores of the models before, during and after the training.
fn compared(rows: &[Compared]) {
    let Some(first) = rows.first() else { return };
    let outputs = &first.validation.outputs;
    let mut head = match first.validation.score {
        Score::Top1(_) => ["", "top-1 %", "top-5 %", "as teacher %"].map(str::to_owned).to_vec(),
        Score::Sqnr(_) => ["", "SQNR dB"].map(str::to_owned).to_vec(),
    };
    head.extend(outputs.iter().map(|(name, _)| name.clone()));
    let numbers = head.len() - 1;
    head.push("file".to_owned());
    let mut table = tables::markdown(head);
    tables::align_numbers(&mut table, numbers);
    for row in rows {
        let Compared { kind, file, note, .. } = row;
        let file = file.display();
        let file = if note.is_empty() { file.to_string() } else { format!("{file} ({note})") };
        table.add_row([vec![(*kind).to_owned()], scores(&row.validation), vec![file]].concat());
    }
    say!("on {} validation images:\n{table}", first.validation.images);
}

/// The cells of a validation.
fn scores(found: &Validation) -> Vec<String> {
    let percent = |value: Option<f64>| value.map_or(String::new(), |value| format!("{:.2}", 100.0 * value));
    match found.score {
        Score::Top1(top1) => [Some(top1), found.top5, found.agreement].map(percent).to_vec(),
        Score::Sqnr(db) => {
            let all = [db].into_iter().chain(found.outputs.iter().map(|(_, db)| *db));
            all.map(|db| format!("{db:.2}")).collect()
        }
    }
}

fn use_threads(threads: usize) -> anyhow::Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().context("starting threads")
}

/// Prints the job with the effective value of every key.
fn describe(training: &Training, info: &RankInfo) {
    let Training { job, inputs, length, schedule, .. } = training;
    info!("{}", job.to_string().trim_end());
    info!("");
    let config = &inputs.float.config;
    if config.is_backbone() {
        let outputs: Vec<&str> = config.outputs.iter().map(|output| &output.name[..]).collect();
        info!("model       {}, a backbone with {}", config.name, outputs.join(", "));
        info!("sizes       {} in validations", inputs.sizing);
    } else {
        info!("model       {}, {} classes", config.name, config.num_classes);
        info!("transform   {}", inputs.float.transform);
    }
    info!("images      {} of {}", inputs.train.len(), inputs.train.describe());
    info!("validation  {} of {}", inputs.val.len(), inputs.val.describe());
    if info.size > 1 {
        info!("processes   {}, each with batches of {} images", info.size, job.batch_size);
    }
    info!(
        "length      {} iterations of {} images, {:.2} epochs",
        length.iterations(),
        length.images_per_iteration(),
        length.epoch(length.iterations())
    );
    info!("drop path   {}", inputs.drop_path);
    info!("learning rates (absolute):\n{schedule}");
}
