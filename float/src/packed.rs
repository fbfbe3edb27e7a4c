//! Float products on packed weights, by the same kernels as the engine's: what the forward does where no site changes or
//! watches the product.

use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor};
use swinq_kernels::{Cpu, LinearF32, LinearOut, LinearSpec, Pool, Quantizer, Store};

use crate::ops::{Ops, with_values};
use swinq_model::ModelError;

use crate::error::FloatError;

/// Threads and instruction set that the products of one network share.
#[derive(Clone)]
pub(super) struct Workers {
    cpu: Cpu,
    pool: Arc<Mutex<Pool>>,
}

impl Workers {
    /// One thread per core, the fastest instruction set (or `SWINQ_ISA`).
    pub fn new() -> std::result::Result<Workers, FloatError> {
        let cpu = Cpu::detect().map_err(|e| ModelError::config("SWINQ_ISA", e.to_string()))?;
        Ok(Workers { cpu, pool: Arc::new(Mutex::new(Pool::new(0))) })
    }
}

/// How a network's products are prepared.
pub(super) struct Packing {
    /// The family of operations.
    pub ops: Ops,
    /// Where products are packed: for inference on the host.
    workers: Option<Workers>,
}

impl Packing {
    /// What suits a family of operations.
    pub fn new(ops: Ops) -> std::result::Result<Packing, FloatError> {
        let workers = matches!(ops, Ops::Fused).then(Workers::new).transpose()?;
        Ok(Packing { ops, workers })
    }

    /// Prepares a product.
    pub fn pack(&self, weight: &Tensor, bias: Option<&Tensor>, gelu: bool) -> Result<Option<Packed>> {
        self.workers.as_ref().map(|workers| Packed::new(workers, weight, bias, None, gelu)).transpose()
    }
}

/// A product in float, prepared: `[rows, in]` to `[rows, out]`.
pub(super) struct Packed {
    product: LinearF32,
    workers: Workers,
    columns: usize,
}

impl Packed {
    /// The product with `weight` `[out, ...]`, its result through `output`, plus `bias` `[out]`, through GELU if `gelu`.
    pub fn new(
        workers: &Workers,
        weight: &Tensor,
        bias: Option<&Tensor>,
        output: Option<Quantizer>,
        gelu: bool,
    ) -> Result<Packed> {
        let weight = weight.flatten_from(1)?;
        let (n, k) = weight.dims2()?;
        let bias = bias.map(|b| b.to_vec1::<f32>()).transpose()?;
        let spec = LinearSpec { n, k, bias: bias.as_deref(), output, gelu, store: Store::F32 };
        let product = with_values(&weight, |weight| LinearF32::new(workers.cpu, spec, weight))?;
        Ok(Packed { product, workers: workers.clone(), columns: n })
    }

    /// The product with another weight, and nothing after it.
    pub fn with_weight(&self, weight: &Tensor) -> Result<Packed> {
        Packed::new(&self.workers, weight, None, None, false)
    }

    /// The product of `x` `[rows, in]`.
    pub fn product(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let mut out = vec![0.0; rows * self.columns];
        let mut pool = self.workers.pool.lock().unwrap_or_else(|e| e.into_inner());
        with_values(x, |x| self.product.run(&mut pool, rows, x, LinearOut::F32(&mut out)))?;
        Tensor::from_vec(out, (rows, self.columns), x.device())
    }
}
