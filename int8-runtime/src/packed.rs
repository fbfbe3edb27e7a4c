//! A model lowered for a backend; several engines can share it.

use std::sync::Arc;

use swinq_model::quantized::F16Residual;
use swinq_model::{QuantizedModel, SwinConfig, Transform};
use swinq_plan::{Outline, Plan};

use crate::backend::Backend;
use crate::cpu;
use crate::cuda;
use crate::error::RuntimeError;

/// A model lowered for a backend: its launches, with their weights packed for one instruction set or uploaded
/// to one GPU.
///
/// It is made once, and any number of [`Engine`](crate::Engine)s run on one copy of the weights
/// ([`Engine::from_packed`](crate::Engine::from_packed)). It has what an engine and its callers must know of
/// the model, which is not needed after it.
pub struct PackedModel {
    pub(crate) plan: Arc<Outline>,
    pub(crate) lowered: Lowered,
    config: SwinConfig,
    transform: Transform,
    labels: Option<Vec<String>>,
    f16_residual: F16Residual,
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
    /// The model does not pass [`QuantizedModel::validate`], the backend cannot run a part of the model, an
    /// f16 residual is asked for that does not fit, there is no GPU, or the GPU has too little memory.
    pub fn new(model: &QuantizedModel, backend: Backend) -> Result<PackedModel, RuntimeError> {
        let f16_residual = model.f16_residual();
        let backend = backend.resolved(f16_residual, &model.config)?;
        let plan = Plan::new(model)?;
        let outline = Arc::new(plan.outline());
        let lowered = match &backend {
            Backend::Cpu(options) => Lowered::Cpu(Arc::new(cpu::Packed::new(&plan, &outline, options.cpu))),
            Backend::Cuda(options) => {
                cuda::check_architecture(&model.config)?;
                Lowered::Cuda(Arc::new(cuda::Packed::new(&plan, options)?))
            }
        };
        Ok(PackedModel {
            plan: outline,
            lowered,
            config: model.config.clone(),
            transform: model.transform.clone(),
            labels: model.labels.clone(),
            f16_residual,
            backend,
        })
    }

    /// Whether an engine of `backend` can run on these weights.
    pub fn suits(&self, backend: &Backend) -> bool {
        self.resolved(*backend).is_ok_and(|backend| self.backend.packs_like(&backend))
    }

    /// `backend` with the type of the residual stream that it has for this model.
    ///
    /// # Errors
    /// [`RuntimeError::F16Residual`].
    pub(crate) fn resolved(&self, backend: Backend) -> Result<Backend, RuntimeError> {
        backend.resolved(self.f16_residual, &self.config)
    }

    /// The network as a list of ops.
    pub fn plan(&self) -> &Outline {
        &self.plan
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Class names by class index; `None` if they are not known.
    pub fn labels(&self) -> Option<&[String]> {
        self.labels.as_deref()
    }

    /// Checks that [`PackedModel::suits`].
    pub(crate) fn check_suits(&self, backend: &Backend) -> Result<(), RuntimeError> {
        if self.suits(backend) {
            return Ok(());
        }
        Err(RuntimeError::OtherPacking { packed: self.backend.packing(), asked: backend.packing() })
    }
}
