//! How long a rung takes.

use std::time::Instant;

use swinq_eval::Latency;
use swinq_kernels::cuda::ladder::Timer;
use swinq_kernels::cuda::{CudaError, Stream};

use super::check_interrupt;

/// The fewest and the most runs on a CPU.
const CPU_RUNS: (usize, usize) = (3, 1000);
/// The fewest and the most runs on a GPU.
const GPU_RUNS: (usize, usize) = (30, 1000);
/// Runs on a GPU that say how many are timed.
const TRIAL: usize = 3;

/// Times `step`, which has run before, for `seconds`.
pub fn on_cpu(seconds: f64, mut step: impl FnMut()) -> anyhow::Result<Latency> {
    let mut samples = Vec::new();
    let mut total = 0.0;
    while samples.len() < CPU_RUNS.0 || (total < 1e3 * seconds && samples.len() < CPU_RUNS.1) {
        check_interrupt()?;
        let start = Instant::now();
        step();
        let elapsed = 1e3 * start.elapsed().as_secs_f64();
        // A run too short for the clock is as long as the clock can tell.
        samples.push(elapsed.max(1e-6));
        total += elapsed;
    }
    Ok(Latency::from_samples(samples)?)
}

/// Something that is put on a stream.
pub type Launch<'a> = dyn Fn(&Stream) -> Result<(), CudaError> + 'a;

/// Times `launch` for about `seconds`, each run with a cold cache.
pub fn on_gpu(timer: &Timer, seconds: f64, launch: &Launch<'_>) -> anyhow::Result<Latency> {
    check_interrupt()?;
    let each = 1e-3 * f64::from(median(timer.samples(TRIAL, launch)?)).max(1e-6);
    let runs = ((seconds / each) as usize).clamp(GPU_RUNS.0, GPU_RUNS.1);
    let samples = timer.samples(runs, launch)?;
    Ok(Latency::from_samples(samples.into_iter().map(|ms| f64::from(ms).max(1e-6)).collect())?)
}

/// Milliseconds of a few runs, to choose between kernels by.
pub fn quick(timer: &Timer, launch: &Launch<'_>) -> Result<f32, CudaError> {
    timer.samples(1, launch)?;
    Ok(median(timer.samples(2 * TRIAL + 1, launch)?))
}

fn median(mut samples: Vec<f32>) -> f32 {
    samples.sort_by(f32::total_cmp);
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cpu_is_timed_at_least_three_times() {
        let mut runs = 0;
        let latency = super::on_cpu(1e-9, || runs += 1).unwrap();
        assert_eq!((runs, latency.runs()), (3, 3));
        assert!(latency.median() > 0.0);
        assert_eq!(super::median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
