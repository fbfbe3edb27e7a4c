//! Float linear layers on packed weights and float attention, with the engine's kernels, for the forward pass
//! on the host.

use candle_core::{Result, Tensor};
use swinq_kernels::{
    AttentionIn, Cpu, LinearF32, LinearOut, LinearSpec, RowOut, Store, WindowAttention, transposed_product,
};
use swinq_numerics::{AttentionQuant, AttentionSpec, Gelu, Probs, Quantizer, RowStore};

use swinq_model::arch::Stage;

use crate::ops::with_values;
use crate::threads::{pool, zeros};

/// A packed float linear layer: `[rows, in]` to `[rows, out]`.
pub(super) struct PackedLinear {
    linear: LinearF32,
    cpu: Cpu,
    columns: usize,
}

impl PackedLinear {
    /// Packs a layer: the product with `weight` `[out, ...]`, then the site `output`, `bias` `[out]`, and
    /// `gelu`, if any.
    pub fn new(
        cpu: Cpu,
        weight: &Tensor,
        bias: Option<&Tensor>,
        output: Option<Quantizer>,
        gelu: Option<Gelu>,
    ) -> Result<PackedLinear> {
        let weight = weight.flatten_from(1)?;
        let (n, k) = weight.dims2()?;
        let bias = bias.map(|b| b.to_vec1::<f32>()).transpose()?;
        let spec = LinearSpec { n, k, bias: bias.as_deref(), output, gelu, store: Store::F32 };
        let linear = with_values(&weight, |weight| LinearF32::new(cpu, spec, weight))?;
        Ok(PackedLinear { linear, cpu, columns: n })
    }

    /// The product with `weight` `[in, out]` itself, without bias.
    pub fn by_inputs(cpu: Cpu, weight: &Tensor) -> Result<PackedLinear> {
        let (k, n) = weight.dims2()?;
        let spec = LinearSpec { n, k, bias: None, output: None, gelu: None, store: Store::F32 };
        let linear = with_values(weight, |weight| LinearF32::by_inputs(cpu, spec, weight))?;
        Ok(PackedLinear { linear, cpu, columns: n })
    }

    /// A layer with another weight, and without bias and GELU.
    pub fn with_weight(&self, weight: &Tensor) -> Result<PackedLinear> {
        PackedLinear::new(self.cpu, weight, None, None, None)
    }

    /// The layer of `weight` with another bias.
    pub fn with_bias(&self, weight: &Tensor, bias: &Tensor, gelu: Option<Gelu>) -> Result<PackedLinear> {
        PackedLinear::new(self.cpu, weight, Some(bias), None, gelu)
    }

    /// Runs the layer on `x` `[rows, in]`.
    pub fn run(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let mut out = zeros(rows * self.columns);
        with_values(x, |x| self.linear.run(&mut pool(), rows, x, LinearOut::F32(&mut out)))?;
        Tensor::from_vec(out, (rows, self.columns), x.device())
    }
}

/// `a^T b` `[m, n]` of `a` `[rows, m]` and `b` `[rows, n]`, in host memory.
pub(super) fn product_over_rows(cpu: Cpu, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let ((rows, m), n) = (a.dims2()?, b.dim(1)?);
    let mut out = vec![0.0; m * n];
    with_values(a, |a| {
        with_values(b, |b| {
            transposed_product(cpu, &mut pool(), [rows, m, n], (a, b), &mut out);
        })
    })??;
    Tensor::from_vec(out, (m, n), a.device())
}

/// Float attention inside the windows of one block, without its sites.
pub(super) struct PackedAttention {
    attention: WindowAttention,
    /// Tokens of a window.
    tokens: usize,
}

impl PackedAttention {
    /// Prepares the attention of a block of `stage`, whose grid is `shifted` if it is an odd one; `scales`
    /// `[heads]` are the factors of `q k^T`, and `bias` `[heads, n, n]` is added to it.
    pub fn new(
        cpu: Cpu,
        stage: &Stage,
        shifted: bool,
        scales: &[f32],
        bias: &Tensor,
    ) -> Result<PackedAttention> {
        let regions = shifted.then(|| stage.mask_regions());
        let attention = with_values(bias, |bias| {
            let spec = AttentionSpec {
                heads: stage.heads,
                head_dim: stage.head_dim(),
                tokens: stage.window_tokens(),
                scales,
                hi_lo: &[],
                bias,
                regions: regions.as_deref(),
                mask: -100.0,
                quant: AttentionQuant { q: None, k: None, v: None, scores: None, probs: Probs::Float },
                store: RowStore::F32,
            };
            WindowAttention::new(cpu, spec)
        })?;
        Ok(PackedAttention { attention, tokens: stage.window_tokens() })
    }

    /// Runs attention on `qkv` `[rows, 3 * c]`, rows in window order: `[rows, c]`. `masks` has the number of
    /// the mask of each window of an image.
    pub fn run(&self, qkv: &Tensor, masks: &[u8]) -> Result<Tensor> {
        let (rows, width) = qkv.dims2()?;
        let mut out = zeros(rows * width / 3);
        let images = rows / (masks.len() * self.tokens);
        with_values(qkv, |qkv| {
            self.attention.run(&mut pool(), images, masks, AttentionIn::F32(qkv), RowOut::F32(&mut out));
        })?;
        Tensor::from_vec(out, (rows, width / 3), qkv.device())
    }
}
