//! A launch that is decided upon, and not built yet: its kernel is not compiled, and its weights are not on
//! the device.

use std::ops::Range;

use swinq_cuda::CudaError;
use swinq_plan::Step;

use crate::cuda::step::DeviceStep;
use crate::cuda::when::When;
use crate::error::RuntimeError;

/// Builds a launch with this name, for these batches.
type Build<'a> = Box<dyn FnOnce(String, When) -> Result<DeviceStep, CudaError> + 'a>;

/// A launch that is not built yet.
pub(super) struct Planned<'a> {
    pub(super) name: String,
    /// The batches for which it runs.
    pub(super) when: When,
    /// Indices of the steps of the plan that it computes.
    pub(super) steps: Range<usize>,
    build: Build<'a>,
}

impl<'a> Planned<'a> {
    /// The launch of the first `count` steps of `span`.
    pub(super) fn new(
        name: &str,
        when: &When,
        (span, count): (Span<'a>, usize),
        build: impl FnOnce(String, When) -> Result<DeviceStep, CudaError> + 'a,
    ) -> Planned<'a> {
        let steps = span.first..span.first + count;
        Planned { name: name.to_owned(), when: when.clone(), steps, build: Box::new(build) }
    }

    /// Compiles the kernel, and copies the weights to the device.
    pub(super) fn build(self) -> Result<DeviceStep, RuntimeError> {
        let name = self.name.clone();
        (self.build)(self.name, self.when).map_err(|error| RuntimeError::on_device(&name, error))
    }
}

/// Steps of a plan that follow each other.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    /// The index of the first of them.
    pub(super) first: usize,
    pub(super) steps: &'a [Step<'a>],
}

impl<'a> Span<'a> {
    /// The first `count` of the steps.
    pub(super) fn cut(self, count: usize) -> Span<'a> {
        Span { steps: &self.steps[..count], ..self }
    }

    /// The steps after the first `count`.
    pub(super) fn after(self, count: usize) -> Span<'a> {
        Span { first: self.first + count, steps: &self.steps[count..] }
    }
}
