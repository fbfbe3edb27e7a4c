//! The loss of a backbone's feature maps.

use candle_core::{Tensor, TensorId};
use swinq_cuda::training::MapLoss;
use swinq_float::ops::taped::cuda::{LockedTensor, failed, tensor, write};

use super::{DeviceStep, Pass, PassInputs};
use crate::error::QatError;

impl DeviceStep {
    /// The gradients of the maps that have a weight in the loss, with their ids. The loss is stored or added
    /// on the device.
    pub(super) fn loss_of_maps(
        &self,
        maps: &[Tensor],
        taught: &[Tensor],
        work: &PassInputs<'_>,
        pass: Pass,
    ) -> Result<Vec<(TensorId, Tensor)>, QatError> {
        let keys = &work.job.loss;
        let weights = keys.weights_of(work.student.config());
        let mut seeds = Vec::new();
        for ((map, target), weight) in maps.iter().zip(taught).zip(weights).filter(|(_, w)| *w > 0.0) {
            let of = MapLoss {
                images: work.count,
                weight: keys.outputs,
                share: weight * work.share / work.count as f64,
                first: pass.first && seeds.is_empty(),
            };
            seeds.push((map.id(), self.loss_of_map(map, target, of)?));
        }
        Ok(seeds)
    }

    fn loss_of_map(&self, map: &Tensor, target: &Tensor, of: MapLoss) -> Result<Tensor, QatError> {
        let (x, target, controls) =
            (LockedTensor::new(map)?, LockedTensor::new(target)?, LockedTensor::new(&self.controls)?);
        let (x, target, controls) = (x.view()?, target.view()?, controls.view()?);
        let mut gradient = None;
        write(&self.outcome, |mut outcome| {
            let found = self.kernels.loss_of_map(&x, &target, of, &controls, &mut outcome);
            gradient = Some(tensor(found.map_err(failed)?, self.device.as_cuda_device()?, map.shape()));
            Ok(())
        })?;
        Ok(gradient.expect("set by the call"))
    }
}
