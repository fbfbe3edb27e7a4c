//! The launches that a backend makes of a plan, without packing its weights.

use std::ops::Range;

use swinq_plan::Plan;

use crate::backend::Backend;
use crate::cuda::DeviceLaunches;
use crate::error::RuntimeError;

/// A launch, and the steps of the plan that it computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSteps {
    /// The name of the launch in a profile.
    pub name: String,
    /// Indices of the steps; none if the launch writes outputs to the memory of their reader.
    pub steps: Range<usize>,
}

/// Tells which launches a backend makes of a plan: those of [`Engine::profile`](crate::Engine::profile), in
/// its order.
pub enum Launches {
    /// The CPU has a launch for each step.
    Cpu,
    /// A GPU has launches that compute several steps.
    Cuda(DeviceLaunches),
}

impl Launches {
    /// The launches of `backend`.
    ///
    /// # Errors
    /// There is no such GPU.
    pub fn new(backend: &Backend) -> Result<Launches, RuntimeError> {
        match backend {
            Backend::Cpu(_) => Ok(Launches::Cpu),
            Backend::Cuda(options) => DeviceLaunches::new(options).map(Launches::Cuda),
        }
    }

    /// The launches of `images` images of the network's own size.
    ///
    /// # Errors
    /// The backend has no kernel for a step.
    pub fn of(&self, plan: &Plan<'_>, images: usize) -> Result<Vec<LaunchSteps>, RuntimeError> {
        match self {
            Launches::Cpu => {
                let launch = |(index, step): (usize, &swinq_plan::Step<'_>)| LaunchSteps {
                    name: step.name.clone(),
                    steps: index..index + 1,
                };
                Ok(plan.steps.iter().enumerate().map(launch).collect())
            }
            Launches::Cuda(device) => device.of(plan, images),
        }
    }
}
