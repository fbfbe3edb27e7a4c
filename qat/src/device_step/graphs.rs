//! Passes as CUDA graphs, which are recorded once and launched again.

use std::sync::Arc;

use swinq_cuda::CudaError;
use swinq_float::ops::taped::cuda::failed;

use super::{DeviceStep, Pass, Work};
use crate::error::QatError;

impl DeviceStep {
    /// Whether passes over `count` images may be recorded now.
    pub fn may_record(&self, count: usize) -> bool {
        count == self.images && self.warm && self.kinds.is_some() && self.capture.is_ok()
    }

    /// Whether kernels are still to be compiled, which takes a while.
    pub fn is_cold(&self) -> bool {
        !self.warm
    }

    /// Whether `pass` is recorded.
    pub fn is_recorded(&self, pass: Pass) -> bool {
        self.graphs.contains_key(&pass)
    }

    /// Records `pass` over the loaded batch. `false` if that fails; no pass is recorded from then on.
    pub fn record(&mut self, work: &mut Work<'_>, pass: Pass) -> Result<bool, QatError> {
        let (kernels, device) = (Arc::clone(&self.kernels), self.device.as_cuda_device()?.clone());
        let mut failure = None;
        let recorded = kernels.stream().capture(|| {
            self.run(work, pass).map_err(|error| {
                let text = error.to_string();
                failure = Some(error);
                CudaError::Unsupported(text)
            })
        });
        match recorded {
            Ok(graph) => {
                self.graphs.insert(pass, graph);
                // Graphs have memory of their own.
                kernels.trim().map_err(failed)?;
                Ok(true)
            }
            Err(error) => {
                self.stop_recording(failure.map_or_else(|| error.to_string(), |error| error.to_string()));
                // What was freed while it failed left an error behind, which the next use of the device would return.
                let _ = device.cuda_stream().context().check_err();
                Ok(false)
            }
        }
    }

    /// Drops all graphs. No pass is recorded from now on; `reason` says why, for [`DeviceStep::launches`].
    pub fn stop_recording(&mut self, reason: String) {
        self.release();
        self.capture = Err(reason);
    }

    /// Launches the recorded `pass` over the loaded batch.
    ///
    /// # Panics
    /// If it is not recorded.
    pub fn launch(&self, pass: Pass) -> Result<(), QatError> {
        let launched = self.graphs[&pass].launch(self.kernels.stream());
        launched.map_err(|error| QatError::Tensor(failed(error)))
    }
}
