//! Window attention and its gradients.

mod program;

use cudarc::driver::{CudaSlice, CudaView};
use swinq_numerics::Quantizer;

use super::{Call, Training, int};
use crate::CudaError;
use crate::params::train::Step;
use crate::params::train_attention::Params;

pub use program::AttentionProgram;

/// Channels of a head.
const D: usize = 32;

/// Fake quantization of the probabilities; see [`Probs`](swinq_numerics::Probs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainProbs {
    /// No fake quantization.
    Float,
    /// Unsigned codes of the exponentials, divided by the sum of the codes.
    U8,
    /// Signed codes of the softmax.
    S8(Quantizer),
}

/// The attention of all windows of one transformer block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowAttention {
    /// Number of windows of all images.
    pub windows: usize,
    /// Number of tokens of a window.
    pub tokens: usize,
    /// Number of heads, of 32 channels each.
    pub heads: usize,
    /// Factor of `q k^T`.
    pub scale: f32,
    /// Sites of queries, keys, values and scores; `None` if a site is off.
    pub sites: [Option<Quantizer>; 4],
    /// Site of the probabilities.
    pub probs: TrainProbs,
}

/// Result of [`Training::attention_gradient`].
pub struct AttentionGradients {
    /// `[windows * tokens, 3 * heads * 32]`.
    pub qkv: CudaSlice<f32>,
    /// `[heads, tokens, tokens]`.
    pub bias: CudaSlice<f32>,
    /// Gradients of the scales of queries, keys, values, scores and probabilities, if requested.
    pub steps: Option<CudaSlice<f32>>,
}

/// Inputs of both passes.
#[derive(Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// `[windows * tokens, 3 * heads * 32]`.
    pub qkv: &'a CudaView<'a, f32>,
    /// `[heads, tokens, tokens]`.
    pub bias: &'a CudaView<'a, f32>,
    /// `[any, tokens, tokens]`; window `i` of all windows uses mask `i % any`.
    pub mask: Option<&'a CudaView<'a, f32>>,
}

impl WindowAttention {
    fn compiled(&self) -> AttentionProgram {
        let on = |(i, site): (usize, &Option<Quantizer>)| u32::from(site.is_some()) << i;
        let probs = match self.probs {
            TrainProbs::Float => 0,
            TrainProbs::U8 => 1,
            TrainProbs::S8(_) => 2,
        };
        let sites = self.sites.iter().enumerate().map(on).sum();
        AttentionProgram { tokens: self.tokens, sites, probs }
    }

    fn steps(&self) -> [Step; 5] {
        let step = |q: Option<Quantizer>| match q {
            Some(q) => Step { recip: q.recip(), scale: q.scale() },
            None => Step { recip: 1.0, scale: 1.0 },
        };
        let probs = if let TrainProbs::S8(q) = self.probs { Some(q) } else { None };
        let [q, k, v, scores] = self.sites;
        [q, k, v, scores, probs].map(step)
    }

    fn values(&self) -> usize {
        self.windows * self.tokens * self.heads * D
    }
}

impl Training {
    /// Whether the kernels support `attention` with heads of `channels` channels in this GPU's shared memory.
    pub fn takes(&self, attention: &WindowAttention, channels: usize) -> bool {
        let WindowAttention { windows, tokens, heads, .. } = *attention;
        let fits = || {
            let compiled = attention.compiled();
            let [a, b] = [compiled.forward_launch(windows, heads), compiled.backward_launch(windows, heads)];
            a.shared.max(b.shared) <= self.device.shared_per_block()
        };
        channels == D
            && (1..=AttentionProgram::MOST_TOKENS).contains(&tokens)
            && heads > 0
            && windows > 0
            && fits()
    }

    /// Attention inside every window, `[windows * tokens, heads * 32]`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match, or [`Training::takes`] returns false.
    pub fn attention(
        &self,
        attention: &WindowAttention,
        inputs: AttentionInputs<'_>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        assert!(self.takes(attention, D), "attention: {attention:?}");
        let WindowAttention { windows, heads, .. } = *attention;
        let mut out = self.allocate(attention.values())?;
        let mut call = Call::new(self);
        let params = Params { out: call.write(&mut out), ..params(&mut call, attention, inputs) };
        let compiled = attention.compiled();
        let config = compiled.forward_launch(windows, heads);
        // SAFETY: `Params` is the kernel's parameter. The inputs' lengths are checked, and `out` has a row
        // for each token.
        unsafe { self.launch(&compiled.forward(), config, &params)? };
        drop(call);
        Ok(out)
    }

    /// The gradients of [`Training::attention`] given the gradient of its result, `grad`. Those of the scales
    /// are computed only if `learned`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// As [`Training::attention`]; or if `grad` has another length.
    pub fn attention_gradient(
        &self,
        attention: &WindowAttention,
        inputs: AttentionInputs<'_>,
        grad: &CudaView<'_, f32>,
        learned: bool,
    ) -> Result<AttentionGradients, CudaError> {
        assert!(self.takes(attention, D), "attention_gradient: {attention:?}");
        let WindowAttention { windows, tokens, heads, .. } = *attention;
        let compiled = attention.compiled();
        let config = compiled.backward_launch(windows, heads);
        let (parts, pairs) = (config.grid[1] as usize, heads * tokens * tokens);
        let mut qkv = self.allocate(3 * attention.values())?;
        let mut dbias = self.allocate(parts * pairs)?;
        let mut dsteps = self.allocate(parts * heads * 5)?;
        let mut call = Call::new(self);
        let params = Params {
            grad: call.read("attention_gradient", grad, attention.values()),
            out: call.write(&mut qkv),
            dbias: call.write(&mut dbias),
            dsteps: call.write(&mut dsteps),
            parts: int(parts),
            ..params(&mut call, attention, inputs)
        };
        assert!(params.grad.is_multiple_of(16), "attention_gradient: not aligned to 16 bytes");
        // SAFETY: `Params` is the kernel's parameter. The inputs' lengths are checked, `qkv` is as long as
        // its gradient, and every part has room, for each head, for the gradients of the bias and of five
        // scales.
        unsafe { self.launch(&compiled.backward(learned), config, &params)? };
        drop(call);
        let steps = learned.then(|| self.column_sums(&dsteps.as_view(), 5)).transpose()?;
        Ok(AttentionGradients { qkv, bias: self.column_sums(&dbias.as_view(), pairs)?, steps })
    }
}

/// The parameters of both passes, without outputs.
fn params<'a>(
    call: &mut Call<'a>,
    attention: &WindowAttention,
    AttentionInputs { qkv, bias, mask }: AttentionInputs<'a>,
) -> Params {
    let WindowAttention { windows, tokens, heads, scale, .. } = *attention;
    let pairs = tokens * tokens;
    let masks = mask.map_or(1, |mask| mask.len() / pairs);
    assert!(masks > 0, "attention: an empty mask");
    let params = Params {
        qkv: call.read("attention: qkv", qkv, 3 * attention.values()),
        bias: call.read("attention: bias", bias, heads * pairs),
        mask: call.read("attention: mask", mask, masks * pairs),
        windows: int(windows),
        heads: int(heads),
        mask_windows: int(masks),
        parts: 1,
        scale,
        steps: attention.steps(),
        ..Params::default()
    };
    assert!(params.qkv.is_multiple_of(16), "attention: qkv is not aligned to 16 bytes");
    params
}
