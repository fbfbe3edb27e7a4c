//! The memory of a training with and without recomputed activations.

#[path = "it/common.rs"]
#[allow(dead_code, unused_imports)] // It serves the other tests, too.
mod common;

use candle_core::Device;
use common::{Images, calibrated, random, shifted};
use dhat::HeapStats;
use swinq_float::ops::Compute;
use swinq_model::SwinConfig;
use swinq_qat::schedule::Schedule;
use swinq_qat::{Job, Start, Trainer};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const JOB: &str = "model: q\nfloat: f\ndata: {path: d}\noutput: o\nsteps: 1\nbatch_size: 8\nloss: {kl: 0}\n";

#[test]
fn recomputed_activations_are_not_kept() {
    let float = random(SwinConfig { depths: vec![4, 4], ..shifted() }, 5);
    let mut images = Images::of(&float.config, 8, 1);
    let quantized = calibrated(&float, "default", &mut images);
    // The highest amount of memory during an iteration, above what there was before it.
    let mut peak = |keys: &str| {
        let job = Job::from_yaml("test", &format!("{JOB}{keys}"), &[]).unwrap();
        let start = Start {
            job: &job,
            float: &float,
            quantized: Some(&quantized),
            teacher: None,
            drop_path: 0.0,
            device: Device::Cpu,
            compute: Compute::host().unwrap(),
        };
        let mut trainer = Trainer::new(&start, Schedule::of(&job, 1).unwrap()).unwrap();
        let _profiler = dhat::Profiler::builder().testing().build();
        trainer.iterate(&mut images).unwrap();
        HeapStats::get().max_bytes
    };
    let (kept, recomputed) = (peak(""), peak("recompute: true\n"));
    eprintln!("{kept} bytes, {recomputed} with recomputed activations");
    assert!(recomputed < kept / 3, "{recomputed} of {kept} bytes");
}
