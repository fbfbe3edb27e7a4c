//! Times the iterations of a training on fixed images: forward passes of teacher and student, backward pass,
//! AdamW.
//!
//! ```text
//! cargo run --release -p swinq-qat --example step_time -- CALIBRATED FLOAT CFG [KEY VALUE]...
//! ```
//! The word `random` for both checkpoints means random weights of CFG, calibrated on the images. The keys are
//! the keys of a job (`batch_size 64 device cuda precision bf16 threads 2`), `ops`, which is `own` (this
//! program's, the default) or `candle` (candle's operations), and `iterations`. The last line is JSON with
//! the median in milliseconds, for `benches/peers/qat_torch.py --swinq`.
//!
//! With torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), each process is one of
//! several that train together; rank 0 prints.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::Device;
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_float::ops::Compute;
use swinq_model::checkpoint::{LoadOptions, load_float};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, BoxError, QuantizedModel, Recipe, Size, load_config, random_model};
use swinq_qat::job::Job;
use swinq_qat::ranks::{RankInfo, Rendezvous};
use swinq_qat::schedule::Schedule;
use swinq_qat::{Start, Trainer};

/// Number of iterations before the timing starts, and number of timed iterations.
const WARMUP: usize = 3;
const TIMED: usize = 12;
/// Number of batches, so that processes have different ones.
const BATCHES: u64 = 8;

/// A source that returns the same batches in every epoch.
struct Fixed(Vec<Batch>);

impl Fixed {
    fn new(size: Size, images: usize, classes: usize) -> Fixed {
        Fixed((1..=BATCHES).map(|seed| noise(seed, size, images, classes)).collect())
    }
}

impl BatchSource for Fixed {
    fn batches(&self) -> usize {
        self.0.len()
    }

    fn images(&self) -> usize {
        self.0.iter().map(Batch::len).sum()
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        Ok(self.0[index].clone())
    }
}

fn noise(seed: u64, size: Size, images: usize, classes: usize) -> Batch {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 32
    };
    let pixels = (0..images * size.area() * 3).map(|_| next() as u8).collect();
    let labels = (0..images).map(|_| (next() % classes as u64) as u32).collect();
    Batch { pixels, labels, ids: (0..images).collect(), ..Batch::empty(size, 3) }
}

#[cfg(feature = "cuda")]
fn device(job: &Job, info: Option<&RankInfo>) -> Device {
    match job.device {
        swinq_qat::job::Device::Cpu => Device::Cpu,
        swinq_qat::job::Device::Cuda(ordinal) => {
            let ordinal = info.map_or(ordinal, |info| info.local_rank);
            Device::new_cuda_with_stream(ordinal).expect("a GPU")
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn device(job: &Job, _: Option<&RankInfo>) -> Device {
    assert_eq!(job.device, swinq_qat::job::Device::Cpu, "built without --features cuda");
    Device::Cpu
}

/// Joins the processes that the environment describes.
fn join(trainer: &mut Trainer, info: RankInfo, job: &Job) {
    let rendezvous = Rendezvous::new(info, Duration::from_secs(60)).expect("an address");
    let identity = job.identity(&[]);
    trainer.join(rendezvous.wait(&identity, &|| None).expect("all ranks"));
}

/// Removes the key `name` from the overrides.
fn take(overrides: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    overrides.iter().position(|(key, _)| key == name).map(|i| overrides.remove(i).1)
}

/// The implementation that the key `ops` names.
fn compute(ops: Option<&str>, device: &Device) -> Compute {
    match ops {
        None | Some("own") => Compute::for_training(device).expect("an instruction set"),
        Some("candle") => Compute::Candle,
        Some(other) => panic!("ops {other}: own or candle"),
    }
}

/// Loads the two checkpoints. The word `random` gives random weights, calibrated on the training images.
fn models(calibrated: &str, float: &str, cfg: &str, batch: usize) -> (FloatModel, QuantizedModel) {
    let config = load_config(cfg, &[]).expect("a configuration");
    let float = match float {
        "random" => random_model(&config, 1),
        path => {
            let options = LoadOptions { cfg: Some(config), ..LoadOptions::default() };
            load_float(Path::new(path), &options).expect("a float checkpoint")
        }
    };
    if calibrated != "random" {
        return (float, QuantizedModel::load(Path::new(calibrated)).expect("a calibrated checkpoint"));
    }
    let recipe = Recipe::shipped("default").expect("it is shipped");
    let mut images = Fixed::new(float.config.image_size, batch.min(4), float.config.num_classes);
    images.0.truncate(1);
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let found = calibrate(&float, &recipe, &mut images, options).expect("a calibration");
    (float, found.model)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [calibrated, float, cfg, overrides @ ..] = words.as_slice() else {
        panic!("CALIBRATED FLOAT CFG [KEY VALUE]...")
    };
    let mut overrides: Vec<(String, String)> =
        overrides.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let ops = take(&mut overrides, "ops");
    let timed =
        take(&mut overrides, "iterations").map_or(TIMED, |n| n.parse().expect("a number of iterations"));
    let info = RankInfo::from_environment().expect("torchrun's variables");
    let text =
        format!("model: {calibrated}\nfloat: {float}\ncfg: {cfg}\ndata: {{path: unused}}\noutput: unused\n");
    let job = Job::from_yaml("step_time", &text, &overrides).expect("a job");
    swinq_float::use_threads(job.threads).expect("threads");
    let (float, quantized) = models(calibrated, float, cfg, job.batch_size);
    let device = device(&job, info.as_ref());
    let start = Start {
        job: &job,
        float: &float,
        quantized: job.quant.then_some(&quantized),
        teacher: job.loss.needs_teacher().then_some(&float),
        drop_path: job.drop_path.unwrap_or(0.0),
        compute: compute(ops.as_deref(), &device),
        device,
    };
    let schedule = Schedule::of(&job, 1000).expect("a schedule");
    let mut trainer = Trainer::new(&start, schedule).expect("a trainer");
    let printing = info.as_ref().is_none_or(RankInfo::is_first);
    if let Some(info) = info.filter(|info| info.size > 1) {
        join(&mut trainer, info, &job);
    }
    let mut images = Fixed::new(float.config.image_size, job.batch_size, float.config.num_classes);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    for iteration in 0..WARMUP + timed {
        let clock = Instant::now();
        let report = trainer.iterate(&mut images).expect("an iteration");
        // The report's loss and gradient norm are on the host, so the device is done.
        if iteration >= WARMUP {
            times.push(1e3 * clock.elapsed().as_secs_f64());
        }
        assert!(report.loss.total.is_finite());
        losses.push(format!("{:.6}", report.loss.total));
    }
    if !printing {
        return;
    }
    println!("losses: {}", losses.join(" "));
    println!("{}", trainer.launches().unwrap_or_else(|| "the host takes part in iterations".to_owned()));
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "{} x {} images per iteration on {} in {:?} ({:?}), {:.1} images/s",
        trainer.processes() * job.accumulate,
        job.batch_size,
        job.device,
        job.precision,
        start.compute,
        1e3 * (trainer.processes() * job.accumulate * job.batch_size) as f64 / median
    );
    println!("{{\"median_step_ms\": {median:.3}, \"least_step_ms\": {:.3}}}", times[0]);
}
