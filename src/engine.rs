//! Engines of a model, which share its packed weights.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use swinq_int8_runtime::cuda::check_architecture;
use swinq_int8_runtime::{Backend, Engine, PackedModel, RuntimeError};
use swinq_model::QuantizedModel;

use crate::{EngineOptions, Error, Model};

impl Model {
    /// Prepares the model to run with `options`. The engine has its own buffers and threads; all engines of
    /// one model on one backend share its packed weights. The engine does not need the model any longer.
    ///
    /// Several threads may call one engine, but their calls run one after another. For throughput, give every
    /// thread its own engine of the same model.
    ///
    /// # Errors
    /// [`Error::Runtime`] for options outside their limits, or if the backend cannot be used or cannot run
    /// the model.
    pub fn engine(&self, options: &EngineOptions) -> Result<Engine, Error> {
        let backend = options.backend()?;
        let packed = self.packed().get(self.as_quantized(), backend)?;
        Ok(Engine::from_packed(&packed, backend)?)
    }

    /// As [`Model::engine`], for another part of the program of `other`: on a CPU with as many threads, both
    /// share their threads and their memory for tensors ([`Engine::beside`]).
    ///
    /// # Errors
    /// Those of [`Model::engine`].
    pub fn engine_beside(&self, options: &EngineOptions, other: &Engine) -> Result<Engine, Error> {
        let backend = options.backend()?;
        let packed = self.packed().get(self.as_quantized(), backend)?;
        Ok(other.beside(&packed, backend)?)
    }

    /// Refuses an architecture that no GPU runs. It needs no GPU, and does not find out whether there is one.
    ///
    /// # Errors
    /// [`Error::Runtime`] with the reason.
    pub fn check_cuda(&self) -> Result<(), Error> {
        Ok(check_architecture(self.config()).map_err(RuntimeError::from)?)
    }
}

/// The packed weights of a model: one set for each backend on which an engine exists.
#[derive(Default)]
pub(crate) struct PackedWeights {
    /// The references are weak, so that the weights are freed with the last engine that uses them.
    packed: Mutex<Vec<Weak<PackedModel>>>,
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PackedWeights")
    }
}

impl PackedWeights {
    /// The packed weights of `model` for `backend`: shared with an existing engine, or packed now. Threads
    /// that make engines at the same time wait here, so that the weights are packed only once.
    fn get(&self, model: &QuantizedModel, backend: Backend) -> Result<Arc<PackedModel>, RuntimeError> {
        let mut all = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|packed| packed.strong_count() > 0);
        if let Some(packed) = all.iter().filter_map(Weak::upgrade).find(|packed| packed.suits(&backend)) {
            return Ok(packed);
        }
        let packed = Arc::new(PackedModel::new(model, backend)?);
        all.push(Arc::downgrade(&packed));
        Ok(packed)
    }
}
