//! The launches of a plan on a GPU, without its weights.

use swinq_cuda::Device;
use swinq_plan::{OutputKind, Plan};

use super::lower::launches;
use super::options::CudaOptions;
use super::packed::fuses;
use crate::error::RuntimeError;
use crate::launches::LaunchSteps;

/// Tells which launches an engine on a GPU makes of a plan.
pub struct DeviceLaunches {
    device: Device,
    options: CudaOptions,
}

impl DeviceLaunches {
    pub(crate) fn new(options: &CudaOptions) -> Result<DeviceLaunches, RuntimeError> {
        Ok(DeviceLaunches { device: Device::open(options.device)?, options: *options })
    }

    pub(crate) fn of(&self, plan: &Plan<'_>, images: usize) -> Result<Vec<LaunchSteps>, RuntimeError> {
        let (residual, fuse) = (self.options.residual(), fuses(&self.options));
        let mut all = launches(&self.device, plan, residual, fuse, images)?;
        // A launch of its own writes all maps.
        let maps = plan.outputs.iter().filter(|output| matches!(output.kind, OutputKind::Stage(_)));
        let name = name_of_maps(maps.map(|output| output.name.as_str()));
        all.extend((!name.is_empty()).then_some(LaunchSteps { name, steps: 0..0 }));
        Ok(all)
    }
}

/// The name of the launch that writes the maps with these names.
pub(super) fn name_of_maps<'a>(maps: impl Iterator<Item = &'a str>) -> String {
    maps.collect::<Vec<_>>().join(", ")
}
