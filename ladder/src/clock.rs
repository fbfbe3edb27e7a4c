//! Measures the time of a rung.

use std::time::Instant;

use swinq_cuda::ladder::Timer;
use swinq_cuda::{CudaError, Stream};
use swinq_eval::{Latency, median};

use crate::LadderError;

/// The fewest and the most runs on a CPU.
const CPU_RUNS: (usize, usize) = (3, 1000);
/// The fewest and the most runs on a GPU.
const GPU_RUNS: (usize, usize) = (30, 1000);
/// Runs on a GPU from which the number of timed runs is chosen.
const TRIAL: usize = 3;

/// A function that enqueues work on a stream.
pub type Launch<'a> = dyn Fn(&Stream) -> Result<(), CudaError> + 'a;

/// Times rungs until the user asks to stop.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Seconds of measurement for each rung; `None` to time none.
    pub seconds: Option<f64>,
    /// Whether the user has asked to stop.
    pub stop: fn() -> bool,
}

impl Clock {
    /// Fails if the user has asked to stop.
    pub fn check_interrupt(self) -> Result<(), LadderError> {
        if (self.stop)() { Err(LadderError::Interrupted) } else { Ok(()) }
    }

    /// Times `step`, which must have run before; `None` if nothing is timed.
    pub fn on_cpu(self, mut step: impl FnMut()) -> Result<Option<Latency>, LadderError> {
        self.check_interrupt()?;
        let Some(seconds) = self.seconds else { return Ok(None) };
        let mut samples = Vec::new();
        let mut total = 0.0;
        while samples.len() < CPU_RUNS.0 || (total < 1e3 * seconds && samples.len() < CPU_RUNS.1) {
            self.check_interrupt()?;
            let start = Instant::now();
            step();
            let elapsed = 1e3 * start.elapsed().as_secs_f64();
            // A run shorter than the clock's resolution counts as the resolution.
            samples.push(elapsed.max(1e-6));
            total += elapsed;
        }
        Ok(Some(Latency::from_samples(samples)?))
    }

    /// Times `launch`, each run with a cold cache; `None` if nothing is timed.
    pub fn on_gpu(self, timer: &Timer, launch: &Launch<'_>) -> Result<Option<Latency>, LadderError> {
        self.check_interrupt()?;
        let Some(seconds) = self.seconds else { return Ok(None) };
        let each = 1e-3 * middle(timer.samples(TRIAL, launch)?).max(1e-6);
        let runs = ((seconds / each) as usize).clamp(GPU_RUNS.0, GPU_RUNS.1);
        let samples = timer.samples(runs, launch)?;
        let samples = samples.into_iter().map(|ms| f64::from(ms).max(1e-6)).collect();
        Ok(Some(Latency::from_samples(samples)?))
    }
}

/// Milliseconds of a few runs, to choose between kernels.
pub fn quick(timer: &Timer, launch: &Launch<'_>) -> Result<f64, CudaError> {
    timer.samples(1, launch)?;
    Ok(middle(timer.samples(2 * TRIAL + 1, launch)?))
}

fn middle(samples: Vec<f32>) -> f64 {
    median(samples.into_iter().map(f64::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_timed_at_least_three_times() {
        let mut runs = 0;
        let clock = Clock { seconds: Some(1e-9), stop: || false };
        let latency = clock.on_cpu(|| runs += 1).unwrap().unwrap();
        assert_eq!((runs, latency.runs()), (3, 3));
        assert!(latency.median() > 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        let untimed = Clock { seconds: None, ..clock };
        assert!(untimed.on_cpu(|| unreachable!("nothing is timed")).unwrap().is_none());
    }

    #[test]
    fn a_request_to_stop_ends_the_measurement() {
        let mut runs = 0;
        let error = Clock { seconds: Some(1.0), stop: || true }.on_cpu(|| runs += 1).unwrap_err();
        assert!(matches!(error, LadderError::Interrupted));
        assert_eq!(runs, 0);
    }
}
