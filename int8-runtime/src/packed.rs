//! A model lowered for a backend; several engines can share it.

use std::sync::Arc;

use swinq_model::QuantizedModel;
use swinq_plan::{Outline, Plan};

use crate::backend::Backend;
use crate::cpu;
use crate::cuda;
use crate::error::RuntimeError;

/// A model lowered for a backend: its launches, with their weights packed for one instruction set or uploaded
/// to one GPU.
///
/// It is made once, and any number of [`Engine`](crate::Engine)s run on one copy of the weights
/// ([`Engine::from_packed`](crate::Engine::from_packed)). An engine needs nothing else of the model.
pub struct PackedModel {
    pub(crate) plan: Arc<Outline>,
    pub(crate) lowered: Lowered,
    pub(crate) image_size: usize,
    pub(crate) classes: usize,
    backend: Backend,
}

/// The launches of a packed model.
pub(crate) enum Lowered {
    Cpu(Arc<cpu::Packed>),
    Cuda(Arc<cuda::Packed>),
}

impl PackedModel {
    /// Plans `model` and packs its weights. Packing depends only on the instruction set of `backend`, or on
    /// its GPU and the type of its residual stream.
    ///
    /// # Errors
    /// The model does not pass [`QuantizedModel::validate`], the backend cannot run a part of the model,
    /// there is no GPU, or the GPU has too little memory.
    pub fn new(model: &QuantizedModel, backend: Backend) -> Result<PackedModel, RuntimeError> {
        let plan = Plan::new(model)?;
        let outline = Arc::new(plan.outline());
        let lowered = match &backend {
            Backend::Cpu(options) => Lowered::Cpu(Arc::new(cpu::Packed::new(&plan, &outline, options.cpu))),
            Backend::Cuda(options) => Lowered::Cuda(Arc::new(cuda::Packed::new(&plan, options)?)),
        };
        let (image_size, classes) = (model.config.image_size, model.config.num_classes);
        Ok(PackedModel { plan: outline, lowered, image_size, classes, backend })
    }

    /// Whether an engine of `backend` can run on these weights.
    pub fn suits(&self, backend: &Backend) -> bool {
        self.backend.packs_like(backend)
    }

    /// The network as a list of ops.
    pub fn plan(&self) -> &Outline {
        &self.plan
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Side of the input in pixels.
    pub fn input_size(&self) -> usize {
        self.image_size
    }

    /// Checks that [`PackedModel::suits`].
    pub(crate) fn check_suits(&self, backend: &Backend) -> Result<(), RuntimeError> {
        if self.suits(backend) {
            return Ok(());
        }
        Err(RuntimeError::OtherPacking { packed: self.backend.packing(), asked: backend.packing() })
    }
}
