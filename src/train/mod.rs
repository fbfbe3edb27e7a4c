//! Training: loads and checks the models and images of a job, and runs the training.

mod compare;
mod inputs;
mod lock;
mod maps;
mod validate;
mod words;

use std::path::PathBuf;

use swinq_data::{Augment, LoaderOptions, Sizing, Stride, TrainLoader, TrainOptions};
use swinq_float::ops::Compute;
use swinq_model::{BatchSource, SwinConfig};
use swinq_qat::job::{Device, Identity, Job, JobError, ScheduleLength};
use swinq_qat::ranks::{ProcessGroup, RankInfo, Rendezvous};
use swinq_qat::schedule::Schedule;
use swinq_qat::{Begin, Hooks, Outcome, Start, Trainer};

pub use compare::Compared;
pub use inputs::Inputs;
pub use validate::Validator;

use lock::RunLock;

use crate::limits::check_threads;
use crate::{Error, FloatDevice, Images};

/// Number of batches that are decoded before they are requested.
const PREFETCH: usize = 4;

/// A training run: the job with the models and images that it names.
///
/// [`Training::open`] loads and checks the models and images, [`Training::trainer`] prepares the model, and
/// [`Training::run`] trains it. [`Training::open_at`] and [`Training::meet`] do so as one of several
/// processes.
pub struct Training {
    /// The job, with every key set.
    pub job: Job,
    /// The models and images.
    pub inputs: Inputs,
    /// Length of the training.
    pub length: ScheduleLength,
    /// Learning rates.
    pub schedule: Schedule,
    source: TrainLoader,
    /// Everything that the result depends on.
    identity: Identity,
    /// The lock of the output folder, from the first [`Training::run`] to the end of this value.
    lock: Option<RunLock>,
}

impl Training {
    /// Loads the models and images that `job` names, and checks them.
    ///
    /// # Errors
    /// An error for a key with an impossible value, and for models or images that cannot be read or do not
    /// fit each other.
    pub fn open(job: Job) -> Result<Training, Error> {
        Training::open_at(job, &RankInfo::default())
    }

    /// [`Training::open`] for the process that `info` describes, one of those that train together. The
    /// processes of a machine divide its cores and its GPUs: with `threads: 0` each has its share of the
    /// cores, and with `device: cuda` the GPU that has the number of the process on the machine. All float
    /// operations of this process run on these cores from now on.
    ///
    /// # Errors
    /// The errors of [`Training::open`].
    pub fn open_at(mut job: Job, info: &RankInfo) -> Result<Training, Error> {
        if let Device::Cuda(first) = job.device {
            job.device = Device::Cuda(first + info.local_rank);
        }
        let threads = check_threads(threads(&job, info))?;
        swinq_float::use_threads(threads)
            .map_err(|error| Error::argument("threads", format!("{threads}: {error}")))?;
        let augment: Augment = job.augmentation()?;
        let inputs = Inputs::load(&job)?;
        let source = loader(&job, &inputs, augment, info)?;
        let length = job.schedule_length_on(info.size, source.images());
        let schedule = Schedule::of(&job, length.iterations())?;
        let identity = inputs.identity(&job)?.on(info.size);
        Ok(Training { job, inputs, length, schedule, source, identity, lock: None })
    }

    /// The model on the job's device, ready for training.
    ///
    /// # Errors
    /// [`Error::Device`]; an error for parameters or sites that cannot be trained.
    pub fn trainer(&self) -> Result<Trainer, Error> {
        let device = float_device(&self.job).open()?;
        let start = Start {
            job: &self.job,
            float: &self.inputs.float,
            quantized: self.inputs.quantized.as_ref(),
            teacher: self.inputs.teacher.as_ref(),
            drop_path: self.inputs.drop_path,
            compute: Compute::for_training(&device)?,
            device,
        };
        Ok(Trainer::new(&start, self.schedule)?)
    }

    /// Waits until all processes of `rendezvous` are there with the same job, and connects them for
    /// [`Trainer::join`]. `give_up` is asked for a reason not to wait any longer.
    ///
    /// # Errors
    /// Processes that do not come in time, or that have another job.
    pub fn meet(
        &self,
        rendezvous: Rendezvous,
        give_up: &dyn Fn() -> Option<String>,
    ) -> Result<ProcessGroup, Error> {
        Ok(rendezvous.wait(&self.identity, give_up).map_err(swinq_qat::QatError::from)?)
    }

    /// The validator of the model during training.
    ///
    /// # Errors
    /// An error if the engine cannot run the teacher.
    pub fn validator(&self) -> Result<Validator, Error> {
        Validator::new(&self.job, &self.inputs)
    }

    /// Trains until the end or until `hooks` stop the run. The output folder is locked until this value is
    /// dropped. Of several processes, rank 0 alone locks and writes it.
    ///
    /// # Errors
    /// [`Error::Busy`]; the errors of [`swinq_qat::run()`]; an error if the output folder cannot be made.
    pub fn run(
        &mut self,
        trainer: &mut Trainer,
        hooks: &mut dyn Hooks,
        begin: Begin,
    ) -> Result<Outcome, Error> {
        if trainer.group().is_first() {
            self.lock().inspect_err(|error| trainer.group().end(&error.to_string()))?;
        }
        let (job, length) = (&self.job, &self.length);
        Ok(swinq_qat::run(job, &self.identity, trainer, length, &mut self.source, hooks, begin)?)
    }

    fn lock(&mut self) -> Result<(), Error> {
        std::fs::create_dir_all(&self.job.output).map_err(Error::io(&self.job.output))?;
        if self.lock.is_none() {
            self.lock = Some(RunLock::take(&self.job.output)?);
        }
        Ok(())
    }

    /// The error messages of the corrupt images that were left out so far, by this process.
    pub fn skipped(&self) -> &[String] {
        self.source.skipped()
    }

    /// The files that the training writes and that users name: the trained model, the best validated model,
    /// and the job with every key set.
    pub fn outputs(&self) -> [PathBuf; 3] {
        let folder = &self.job.output;
        [self.model_path(), folder.join(swinq_qat::run::BEST), folder.join(swinq_qat::run::JOB)]
    }

    /// Writes the trained model to the job's output folder, and returns its path.
    ///
    /// # Errors
    /// An error if a weight is not finite or a file cannot be written.
    pub fn save(&self, trainer: &Trainer) -> Result<PathBuf, Error> {
        let model = self.model_path();
        let mut trained = trainer.model()?;
        let record = swinq_qat::record(&self.job, &self.identity, &self.length, trainer.progress());
        trained.provenance.training = Some(record);
        trained.save(&model)?;
        Ok(model)
    }
}

impl Training {
    /// The path of the trained model.
    fn model_path(&self) -> PathBuf {
        self.job.output.join(if self.job.quant { "model.safetensors" } else { "float.safetensors" })
    }
}

/// Number of threads of the process that `info` describes: those of the job or, with `threads: 0`, its share
/// of the machine's cores. 0 means all of them.
pub fn threads(job: &Job, info: &RankInfo) -> usize {
    if job.threads > 0 || info.local_size == 1 {
        return job.threads;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / info.local_size).max(1)
}

/// The device of the job's float networks.
fn float_device(job: &Job) -> FloatDevice {
    match job.device {
        Device::Cpu => FloatDevice::Cpu,
        Device::Cuda(ordinal) => FloatDevice::Cuda(ordinal),
    }
}

fn loader(job: &Job, inputs: &Inputs, mut augment: Augment, info: &RankInfo) -> Result<TrainLoader, Error> {
    let config = &inputs.float.config;
    if config.is_backbone() {
        check_sizes(job, &inputs.float.config, &augment)?;
        if augment.sizes.is_empty() {
            augment.sizes.push(config.image_size);
        }
    }
    let loader = LoaderOptions {
        batch_size: job.batch_size,
        threads: check_threads(threads(job, info))?,
        prefetch: PREFETCH,
        skip_corrupt: job.data.skip_corrupt,
    };
    let options = TrainOptions {
        loader,
        augment,
        seed: job.seed,
        require_labels: job.loss.labels > 0.0,
        cache_bytes: (job.data.cache_mb as u64) << 20,
        stride: stride(job, info),
        // All batches of an iteration, so that no process waits for the larger images of another.
        batches_of_one_size: (job.accumulate * info.size) as u64,
        ..TrainOptions::default()
    };
    let images: &Images = &inputs.train;
    let dataset = images.dataset().expect("a job's images are a data set").clone();
    let transform = inputs.float.transform.clone();
    Ok(TrainLoader::new(dataset, images.ids(), transform, options)?)
}

/// Refuses training sizes that the backbone `config` does not take.
fn check_sizes(job: &Job, config: &SwinConfig, augment: &Augment) -> Result<(), Error> {
    for &size in &augment.sizes {
        config.grids(size).map_err(|error| {
            let problem = format!("{} is no size for {}: {error}", Sizing::Exact(size), config.name);
            JobError::key(&job.name, "augment.sizes", problem)
        })?;
    }
    Ok(())
}

/// The batches of the process that `info` describes.
fn stride(job: &Job, info: &RankInfo) -> Stride {
    let run = job.accumulate as u64;
    Stride { first: run * info.rank as u64, run, of: run * info.size as u64 }
}
