//! Times steps of a training on fixed images: forward of teacher and student, backward, AdamW.
//!
//! ```text
//! cargo run --release -p swinq-qat --example step_time -- CALIBRATED FLOAT CFG [KEY VALUE]...
//! ```
//! The keys are those of a job (`batch_size 64 device cuda precision bf16 threads 2`). The last line is JSON with the median
//! in milliseconds, for `benches/peers/qat_torch.py --swinq`.

use std::path::Path;
use std::time::Instant;

use candle_core::Device;
use swinq_model::checkpoint::{LoadOptions, load_float};
use swinq_model::{Batch, BatchSource, BoxError, QuantizedModel, load_config};
use swinq_qat::job::Job;
use swinq_qat::schedule::Schedule;
use swinq_qat::{Start, Trainer};

/// Steps before the clock counts, and steps counted.
const WARMUP: usize = 3;
const STEPS: usize = 12;

/// The same images again and again.
struct Fixed(Batch);

impl BatchSource for Fixed {
    fn batches(&self) -> usize {
        1
    }

    fn images(&self) -> usize {
        self.0.len()
    }

    fn batch(&mut self, _: u64, _: usize) -> Result<Batch, BoxError> {
        Ok(self.0.clone())
    }
}

fn noise(size: usize, images: usize, classes: usize) -> Batch {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 32
    };
    let pixels = (0..images * size * size * 3).map(|_| next() as u8).collect();
    let labels = (0..images).map(|_| (next() % classes as u64) as u32).collect();
    Batch { pixels, size, labels, ids: (0..images).collect() }
}

#[cfg(feature = "cuda")]
fn device(job: &Job) -> Device {
    match job.device {
        swinq_qat::job::Device::Cpu => Device::Cpu,
        swinq_qat::job::Device::Cuda(ordinal) => Device::new_cuda(ordinal).expect("a GPU"),
    }
}

#[cfg(not(feature = "cuda"))]
fn device(job: &Job) -> Device {
    assert_eq!(job.device, swinq_qat::job::Device::Cpu, "built without --features cuda");
    Device::Cpu
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [calibrated, float, cfg, overrides @ ..] = words.as_slice() else {
        panic!("CALIBRATED FLOAT CFG [KEY VALUE]...")
    };
    let overrides: Vec<(String, String)> =
        overrides.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let text =
        format!("model: {calibrated}\nfloat: {float}\ncfg: {cfg}\ndata: {{path: unused}}\noutput: unused\n");
    let job = Job::from_yaml("step_time", &text, &overrides).expect("a job");
    rayon::ThreadPoolBuilder::new().num_threads(job.threads).build_global().expect("threads");
    let options = LoadOptions { cfg: Some(load_config(cfg, &[]).expect("a configuration")), dialect: None };
    let float = load_float(Path::new(float), &options).expect("a float checkpoint");
    let quantized = QuantizedModel::load(Path::new(calibrated)).expect("a calibrated checkpoint");
    let start = Start {
        job: &job,
        float: &float,
        quantized: job.quant.then_some(&quantized),
        teacher: job.loss.needs_teacher().then_some(&float),
        drop_path: job.drop_path.unwrap_or(0.0),
        device: device(&job),
    };
    let schedule = Schedule::of(&job, 1000).expect("a schedule");
    let mut trainer = Trainer::new(&start, schedule).expect("a trainer");
    let mut images = Fixed(noise(float.config.image_size, job.batch_size, float.config.num_classes));
    let mut times = Vec::new();
    for step in 0..WARMUP + STEPS {
        let clock = Instant::now();
        let report = trainer.step(&mut images).expect("a step");
        // The loss and the length of the gradient are on the host, so the device is done.
        if step >= WARMUP {
            times.push(1e3 * clock.elapsed().as_secs_f64());
        }
        assert!(report.loss.total.is_finite());
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "{} images a step on {}, {:.1} images/s",
        job.batch_size,
        job.device,
        1e3 * job.batch_size as f64 / median
    );
    println!("{{\"median_step_ms\": {median:.3}, \"least_step_ms\": {:.3}}}", times[0]);
}
