//! Passes as CUDA graphs, which are recorded once and launched again.

use std::collections::HashSet;
use std::sync::Arc;

use swinq_cuda::{CudaError, Graph};
use swinq_float::Maps;
use swinq_float::ops::taped::cuda::failed;
use swinq_model::Size;

use super::{DeviceStep, Pass, PassInputs};
use crate::error::QatError;

/// Number of image sizes whose passes are recorded; those of others are launched kernel by kernel.
const SIZES: usize = 16;

/// A recorded pass.
pub(super) struct Recorded {
    graph: Graph,
    /// The index maps that the graph reads: those of the student and of the teacher.
    _maps: Vec<Arc<Maps>>,
}

impl DeviceStep {
    /// Whether passes over the loaded batch, of `count` images, may be recorded now.
    pub fn may_record(&self, count: usize) -> bool {
        let able = count == self.images && self.kinds.is_some() && self.capture.is_ok();
        able && self.warm.contains(&self.size) && self.has_place()
    }

    /// Whether images of the size of the loaded batch are among those whose passes are recorded.
    fn has_place(&self) -> bool {
        let sizes: HashSet<Size> = self.graphs.keys().map(|(_, size)| *size).collect();
        sizes.len() < SIZES || sizes.contains(&self.size)
    }

    /// Whether kernels are still to be compiled, which takes a while.
    pub fn is_cold(&self) -> bool {
        !self.warm.contains(&self.size)
    }

    /// Whether `pass` over the loaded batch is recorded.
    pub fn is_recorded(&self, pass: Pass) -> bool {
        self.graphs.contains_key(&(pass, self.size))
    }

    /// Records `pass` over the loaded batch. `false` if that fails; no pass is recorded from then on.
    pub fn record(&mut self, work: &mut PassInputs<'_>, pass: Pass) -> Result<bool, QatError> {
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
                let mut maps = vec![work.student.maps(self.size)?];
                maps.extend(work.teacher.map(|teacher| teacher.maps(self.size)).transpose()?);
                self.graphs.insert((pass, self.size), Recorded { graph, _maps: maps });
                // Graphs have memory of their own.
                kernels.trim().map_err(failed)?;
                Ok(true)
            }
            Err(error) => {
                self.stop_recording(failure.map_or_else(|| error.to_string(), |error| error.to_string()));
                // What was freed while it failed left an error behind, which the next use of the device would
                // return.
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
        let launched = self.graphs[&(pass, self.size)].graph.launch(self.kernels.stream());
        launched.map_err(|error| QatError::Tensor(failed(error)))
    }
}
