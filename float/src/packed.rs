//! Float linear layers on packed weights, with the engine's kernels, for the forward pass on the host.

use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor};
use swinq_kernels::{Cpu, LinearF32, LinearOut, LinearSpec, Pool, Quantizer, Store};

use crate::ops::{Ops, with_values};
use swinq_model::ModelError;

use crate::error::FloatError;

/// Threads and instruction set that the linear layers of one network share.
#[derive(Clone)]
pub(super) struct Workers {
    cpu: Cpu,
    pool: Arc<Mutex<Pool>>,
}

impl Workers {
    /// One thread per core, and the fastest instruction set or the one in `SWINQ_ISA`.
    pub fn new() -> std::result::Result<Workers, FloatError> {
        let cpu = Cpu::detect().map_err(|e| ModelError::config("SWINQ_ISA", e.to_string()))?;
        Ok(Workers { cpu, pool: Arc::new(Mutex::new(Pool::new(0))) })
    }
}

/// The preparation of a network's linear layers.
pub(super) struct Packing {
    /// The family of operations.
    pub ops: Ops,
    /// The threads for packed layers; `None` if layers are not packed: they are packed only for inference on
    /// the host.
    workers: Option<Workers>,
}

impl Packing {
    /// The preparation for a family of operations.
    pub fn new(ops: Ops) -> std::result::Result<Packing, FloatError> {
        let workers = matches!(ops, Ops::Fused).then(Workers::new).transpose()?;
        Ok(Packing { ops, workers })
    }

    /// Packs a layer, if layers are packed.
    pub fn pack(&self, weight: &Tensor, bias: Option<&Tensor>, gelu: bool) -> Result<Option<PackedLinear>> {
        self.workers.as_ref().map(|workers| PackedLinear::new(workers, weight, bias, None, gelu)).transpose()
    }
}

/// A packed float linear layer: `[rows, in]` to `[rows, out]`.
pub(super) struct PackedLinear {
    linear: LinearF32,
    workers: Workers,
    columns: usize,
}

impl PackedLinear {
    /// Packs a layer: the product with `weight` `[out, ...]`, then the site `output`, `bias` `[out]`, and
    /// GELU if `gelu`.
    pub fn new(
        workers: &Workers,
        weight: &Tensor,
        bias: Option<&Tensor>,
        output: Option<Quantizer>,
        gelu: bool,
    ) -> Result<PackedLinear> {
        let weight = weight.flatten_from(1)?;
        let (n, k) = weight.dims2()?;
        let bias = bias.map(|b| b.to_vec1::<f32>()).transpose()?;
        let spec = LinearSpec { n, k, bias: bias.as_deref(), output, gelu, store: Store::F32 };
        let linear = with_values(&weight, |weight| LinearF32::new(workers.cpu, spec, weight))?;
        Ok(PackedLinear { linear, workers: workers.clone(), columns: n })
    }

    /// A layer with another weight, and without bias and GELU.
    pub fn with_weight(&self, weight: &Tensor) -> Result<PackedLinear> {
        PackedLinear::new(&self.workers, weight, None, None, false)
    }

    /// The layer of `weight` with another bias.
    pub fn with_bias(&self, weight: &Tensor, bias: &Tensor, gelu: bool) -> Result<PackedLinear> {
        PackedLinear::new(&self.workers, weight, Some(bias), None, gelu)
    }

    /// Runs the layer on `x` `[rows, in]`.
    pub fn run(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let mut out = vec![0.0; rows * self.columns];
        let mut pool = self.workers.pool.lock().unwrap_or_else(|e| e.into_inner());
        with_values(x, |x| self.linear.run(&mut pool, rows, x, LinearOut::F32(&mut out)))?;
        Tensor::from_vec(out, (rows, self.columns), x.device())
    }
}
