//! Where the gradients of a pass go: into the memory of all gradients, and to the other processes.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::{Tensor, bail};
use swinq_cuda::nccl::Communicator;
use swinq_cuda::training::Training;
use swinq_float::ops::taped::cuda::{LockedTensor, failed, write};

use super::Pass;
use crate::flat::Flat;
use crate::student::Student;

/// Stores the gradients of a pass, and exchanges them.
pub(super) struct Sink<'a> {
    flat: Arc<Flat>,
    pass: Pass,
    pub communicator: Option<Communicator>,
    known: &'a BTreeSet<String>,
    /// Whether no other gradients exist.
    settled: bool,
    /// For each bucket the gradients that are missing; it is exchanged when there are none. Empty if that is
    /// not known.
    missing: Vec<usize>,
    sent: usize,
    /// The parameters whose first gradient this is.
    pub seen: Vec<String>,
}

impl<'a> Sink<'a> {
    /// For a pass of `student`. The gradients of `known` parameters exist; `settled` says that there are no
    /// others.
    pub fn new(
        student: &Student,
        pass: Pass,
        communicator: Option<Communicator>,
        (known, settled): (&'a BTreeSet<String>, bool),
    ) -> Sink<'a> {
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let missing = |names: &[String]| names.iter().filter(|name| known.contains(*name)).count();
        let missing = match (known.is_empty(), pass.last && communicator.is_some()) {
            (false, true) => flat.buckets().iter().map(|bucket| missing(&bucket.names)).collect(),
            _ => Vec::new(),
        };
        Sink {
            flat: Arc::clone(flat),
            pass,
            communicator,
            known,
            settled,
            missing,
            sent: 0,
            seen: Vec::new(),
        }
    }

    /// Takes the gradient of the parameter `name`, which is complete.
    pub fn take(
        &mut self,
        kernels: &Training,
        gradients: &Tensor,
        name: &str,
        gradient: &Tensor,
    ) -> candle_core::Result<()> {
        if self.settled && !self.known.contains(name) {
            bail!("{name} has a gradient that it did not have in the first iteration");
        }
        let (place, gradient) = (self.flat.view(gradients, name)?, gradient.contiguous()?);
        let held = LockedTensor::new(&gradient)?;
        let gradient = held.view()?;
        write(&place, |mut place| match self.pass.first {
            true => kernels.copy(&gradient, place).map_err(failed),
            false => kernels.add_to(&mut place, &gradient).map_err(failed),
        })?;
        if !self.known.contains(name) {
            self.seen.push(name.to_owned());
        }
        if let Some(missing) = self.flat.bucket_of(name).and_then(|bucket| self.missing.get_mut(bucket)) {
            *missing = missing.saturating_sub(1);
            while self.missing.get(self.sent) == Some(&0) {
                self.send(kernels, gradients)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, kernels: &Training, gradients: &Tensor) -> candle_core::Result<()> {
        let range = self.flat.buckets()[self.sent].range.clone();
        self.sent += 1;
        let Some(communicator) = &mut self.communicator else { return Ok(()) };
        write(&gradients.narrow(0, range.start, range.len())?, |values| {
            communicator.sum(kernels, values).map_err(failed)
        })
    }

    /// Exchanges the other buckets, and makes the stream wait for all of them.
    pub fn finish(&mut self, kernels: &Training, gradients: &Tensor) -> candle_core::Result<()> {
        if !self.pass.last || self.communicator.is_none() {
            return Ok(());
        }
        while self.sent < self.flat.buckets().len() {
            self.send(kernels, gradients)?;
        }
        let communicator = self.communicator.as_mut().expect("checked above");
        communicator.join(kernels).map_err(failed)
    }
}
