//! A rung from its preparation to its row: checked first, then timed.

use swinq_eval::Latency;
use swinq_kernels::cuda::ladder::Matrix;
use swinq_kernels::cuda::{CudaError, Stream};

use crate::LadderError;
use crate::check::Check;
use crate::clock::{Clock, Launch};
use crate::machine::Gpu;
use crate::row::{Outcome, Work};

/// A rung on a GPU, with its operands there.
pub struct Prepared {
    /// Puts it on a stream.
    pub launch: Box<Launch<'static>>,
    /// Puts on the stream what brings its results into `outs`, and is not timed.
    pub finish: Option<Box<Launch<'static>>>,
    /// Its results.
    pub outs: Vec<Matrix>,
    /// How it is run.
    pub detail: String,
}

impl Prepared {
    /// A rung that writes its results by itself.
    pub fn new(launch: impl Fn(&Stream) -> Result<(), CudaError> + 'static, outs: Vec<Matrix>) -> Prepared {
        Prepared { launch: Box::new(launch), finish: None, outs, detail: String::new() }
    }

    /// Runs it over spoiled memory; all of its results.
    fn results(&self, on: &Stream) -> Result<Vec<f32>, CudaError> {
        self.outs.iter().try_for_each(|out| out.spoil(on))?;
        (self.launch)(on)?;
        if let Some(finish) = &self.finish {
            finish(on)?;
        }
        let parts = self.outs.iter().map(|out| out.fetch(on)).collect::<Result<Vec<_>, _>>()?;
        Ok(parts.concat())
    }
}

/// Checks a rung by `check`, which is given its results, then times it.
pub fn on_gpu(
    gpu: &Gpu,
    clock: Clock,
    work: &Work,
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
    let share = Some(work.share(&gpu.roofline, &latency));
    Ok(Outcome::Measured { check: Some(check), latency, share, detail: prepared.detail })
}

/// The outcome on a CPU: of a check, if there was one, and of a clock that runs if nothing is wrong.
pub fn on_cpu(
    check: Option<Check>,
    times: impl FnOnce() -> Result<Latency, LadderError>,
    detail: String,
) -> Result<Outcome, LadderError> {
    if let Some(check) = check.filter(|check| !check.passed()) {
        return Ok(Outcome::Failed(check.complaint(), Some(check)));
    }
    Ok(Outcome::Measured { check, latency: times()?, share: None, detail })
}

/// What became of a rung that could not be run.
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
        assert!(matches!(outcome, Outcome::Failed(why, Some(_)) if why.contains("1 results are off")));
        let times = || Ok(Latency::from_samples(vec![1.0])?);
        let outcome = on_cpu(None, times, String::new()).unwrap();
        assert!(matches!(outcome, Outcome::Measured { check: None, .. }));
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
