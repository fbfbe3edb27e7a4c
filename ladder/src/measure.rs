//! Measures a prepared rung: checks its results, then times it.

use swinq_cuda::ladder::Matrix;
use swinq_cuda::{CudaError, Stream};
use swinq_eval::Latency;

use crate::LadderError;
use crate::check::Check;
use crate::clock::{Clock, Launch};
use crate::machine::Gpu;
use crate::row::{Outcome, Workload};

/// A rung with its operands in GPU memory.
pub struct Prepared {
    /// Enqueues the rung on a stream.
    pub launch: Box<Launch<'static>>,
    /// Enqueues the conversion of the results into `outs`, which is not timed.
    pub finish: Option<Box<Launch<'static>>>,
    /// The results.
    pub outs: Vec<Matrix>,
    /// A note for the table, such as the chosen kernel.
    pub detail: String,
}

impl Prepared {
    /// A rung that needs no conversion of its results.
    pub fn new(launch: impl Fn(&Stream) -> Result<(), CudaError> + 'static, outs: Vec<Matrix>) -> Prepared {
        Prepared { launch: Box::new(launch), finish: None, outs, detail: String::new() }
    }

    /// Overwrites the outputs, runs the rung once and returns all results.
    fn results(&self, stream: &Stream) -> Result<Vec<f32>, CudaError> {
        self.outs.iter().try_for_each(|out| out.spoil(stream))?;
        (self.launch)(stream)?;
        if let Some(finish) = &self.finish {
            finish(stream)?;
        }
        let parts = self.outs.iter().map(|out| out.fetch(stream)).collect::<Result<Vec<_>, _>>()?;
        Ok(parts.concat())
    }
}

/// Passes the results to `check`, and lets `clock` time the rung if the check passes.
pub fn on_gpu(
    gpu: &Gpu,
    clock: Clock,
    work: &Workload,
    prepared: Result<Prepared, CudaError>,
    check: impl FnOnce(&[f32]) -> Check,
) -> Result<Outcome, LadderError> {
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Ok(refused(error)),
    };
    let check = match prepared.results(gpu.timer.stream()) {
        Ok(results) => check(&results),
        Err(error) => return Ok(refused(error)),
    };
    if !check.passed() {
        return Ok(Outcome::Failed(check.complaint(), Some(check)));
    }
    let latency = clock.on_gpu(&gpu.timer, &prepared.launch)?;
    let share = latency.as_ref().map(|latency| work.share(&gpu.roofline, latency));
    Ok(Outcome::Right { check: Some(check), latency, share, detail: prepared.detail })
}

/// The outcome of a CPU rung. `times` measures it, and runs only if the check passed or there is none.
pub fn on_cpu(
    check: Option<Check>,
    times: impl FnOnce() -> Result<Option<Latency>, LadderError>,
    detail: String,
) -> Result<Outcome, LadderError> {
    if let Some(check) = check.filter(|check| !check.passed()) {
        return Ok(Outcome::Failed(check.complaint(), Some(check)));
    }
    Ok(Outcome::Right { check, latency: times()?, share: None, detail })
}

/// The outcome of a rung that could not run: skipped if the machine lacks a feature, else failed.
pub fn refused(error: CudaError) -> Outcome {
    let not_there = match &error {
        CudaError::Unsupported(_) | CudaError::MissingLibrary { .. } => true,
        CudaError::CublasLt { status, .. } => status.contains("NOT_SUPPORTED"),
        _ => false,
    };
    if not_there { Outcome::Skipped(error.to_string()) } else { Outcome::Failed(error.to_string(), None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_not_timed() {
        let wrong = Check::against(&[1.0], &[2.0], 0.0);
        let outcome = on_cpu(Some(wrong), || unreachable!("it is wrong"), String::new()).unwrap();
        assert!(matches!(outcome, Outcome::Failed(why, Some(_)) if why.contains("is 1 instead of 2")));
        let times = || Ok(Some(Latency::from_samples(vec![1.0])?));
        let outcome = on_cpu(None, times, String::new()).unwrap();
        assert!(matches!(outcome, Outcome::Right { check: None, latency: Some(_), .. }));
    }

    #[test]
    fn only_what_the_machine_lacks_is_skipped() {
        let lacking = CudaError::Unsupported("not supported on sm_90".into());
        assert!(matches!(refused(lacking), Outcome::Skipped(why) if why.contains("sm_90")));
        let status = "CUBLAS_STATUS_NOT_SUPPORTED".to_owned();
        assert!(matches!(refused(CudaError::CublasLt { call: "x", status }), Outcome::Skipped(_)));
        let broken = CudaError::Driver { call: "cuLaunchKernelEx", what: "illegal address".into() };
        assert!(matches!(refused(broken), Outcome::Failed(..)));
    }
}
