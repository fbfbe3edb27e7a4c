//! The end of an iteration: the update of all parameters, and the values that the host reads.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use swinq_cuda::training::{Flat as FlatMemory, Kind, MomentRule, Outcome, UpdateRule};
use swinq_float::ops::taped::cuda::{LockedTensor, failed, write, write_if_some};

use super::DeviceStep;
use crate::error::QatError;
use crate::flat::Flat;
use crate::job::{Job, OptimizerKeys};
use crate::scales::LIMIT;
use crate::student::{Student, decays, is_scale};

impl DeviceStep {
    /// Finds the parameters that have a gradient in any process. Call it after the passes of an iteration;
    /// only the first call does anything. `sum` adds values over all processes.
    pub fn settle(
        &mut self,
        student: &Student,
        sum: &mut dyn FnMut(&mut [f64]) -> Result<(), QatError>,
    ) -> Result<(), QatError> {
        if self.kinds.is_some() {
            return Ok(());
        }
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let names = student.parameters().keys();
        let mut found: Vec<f64> =
            names.clone().map(|name| f64::from(u8::from(self.seen.contains(name)))).collect();
        sum(&mut found)?;
        self.seen =
            names.zip(found).filter(|(_, found)| *found > 0.0).map(|(name, _)| name.clone()).collect();
        self.kinds = Some(Tensor::from_vec(kinds(flat, student, &self.seen), flat.len(), &self.device)?);
        Ok(())
    }

    /// The update of the parameters, unless something is not finite or the loss is too high. Call
    /// [`DeviceStep::settle`] before.
    pub fn update(&mut self, student: &Student, job: &Job) -> Result<(), QatError> {
        let (_, values) = student.flat().expect("the student is on a GPU");
        let kinds = self.kinds.as_ref().expect("settled before");
        let rule = rule(&job.optimizer);
        let held = (
            LockedTensor::new(&self.gradients)?,
            LockedTensor::new(kinds)?,
            LockedTensor::new(&self.controls)?,
        );
        let (grad, kinds, controls) = (held.0.view()?, held.1.view()?, held.2.view()?);
        let (grad, kinds) = (&grad, &kinds);
        write(values, |values| {
            write(&self.first_moments, |first| {
                write(&self.second_moments, |second| {
                    write_if_some(self.average.as_ref(), |average| {
                        let flat = FlatMemory { values, first, second, average, grad, kinds };
                        write(&self.outcome, |mut outcome| {
                            self.kernels.update(flat, rule, &controls, &mut outcome).map_err(failed)
                        })
                    })
                })
            })
        })?;
        Ok(())
    }

    /// Waits for the iteration, and reads its result. `waiting` is called now and then meanwhile; its error
    /// ends the wait.
    pub fn outcome(
        &mut self,
        waiting: &mut dyn FnMut() -> Result<(), QatError>,
    ) -> Result<Outcome, QatError> {
        if let Some(communicator) = &self.communicator {
            let idle = || self.kernels.stream().is_idle().map_err(|error| QatError::Tensor(failed(error)));
            let mut polls = 0u32;
            while !idle()? {
                std::thread::sleep(std::time::Duration::from_micros(50));
                polls += 1;
                if polls.is_multiple_of(1000) {
                    let healthy = communicator.health().map_err(|error| QatError::Tensor(failed(error)));
                    healthy.and_then(|()| waiting())?;
                }
            }
        }
        let values: Vec<f64> = self.outcome.to_vec1()?;
        Ok(Outcome::from_values(&values.try_into().expect("it has this many values")))
    }

    /// The gradients by parameter, for messages.
    pub fn gradients(&self, student: &Student) -> Result<BTreeMap<String, Tensor>, QatError> {
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let views = flat.views(&self.gradients)?;
        Ok(views.into_iter().filter(|(name, _)| self.seen.contains(name)).collect())
    }
}

fn kinds(flat: &Flat, student: &Student, seen: &BTreeSet<String>) -> Vec<u8> {
    flat.each(Kind::NO_GRADIENT, |name| {
        let parameter = &student.parameters()[name];
        let bits = [
            (decays(name, parameter), Kind::DECAYS),
            (is_scale(name), Kind::SCALE),
            (!seen.contains(name), Kind::NO_GRADIENT),
        ];
        bits.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum()
    })
}

fn rule(keys: &OptimizerKeys) -> UpdateRule {
    UpdateRule {
        moments: MomentRule::new(keys.betas, keys.eps),
        clip: keys.clip_norm as f32,
        decay_average: keys.ema as f32,
        limit: LIMIT,
    }
}
