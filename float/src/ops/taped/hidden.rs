//! The hidden layer of an MLP in one operation: bias, GELU and the fake quantization of the next layer's
//! input. On CUDA the values that lie between them are not stored.

use candle_core::{Result, Tensor};

use super::channels::{FakeChannels, fake_quantize_channels};
#[cfg(feature = "cuda")]
use super::fake_quant::LearnedScale;
use super::fake_quant::{FakeActivation, fake_quantize};
use crate::ops::Ops;

/// The fake quantization of an MLP's hidden layer.
#[derive(Clone, Debug)]
pub enum FakeHidden {
    /// None.
    Off,
    /// One scale.
    Tensor(FakeActivation),
    /// Scales and zero points of the channels.
    Channels(FakeChannels),
}

impl FakeHidden {
    /// The trained parameter behind the scale, if it is learned.
    #[cfg(feature = "cuda")]
    pub(super) fn learned(&self) -> Option<&LearnedScale> {
        match self {
            FakeHidden::Off => None,
            FakeHidden::Tensor(fake) => fake.learned.as_ref(),
            FakeHidden::Channels(fake) => fake.learned.as_ref(),
        }
    }
}

/// `fake(gelu(product + bias))`: `product` `[rows, columns]`, `bias` `[columns]`. On CUDA the result has the
/// compute type.
///
/// # Errors
/// Shapes that do not fit.
pub fn hidden(ops: &Ops, product: &Tensor, bias: &Tensor, fake: &FakeHidden) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if ops.compute.is_cuda() {
        return super::cuda::hidden(ops, product, bias, fake);
    }
    let x = ops.gelu(&ops.add_rows(product, bias)?)?;
    match fake {
        FakeHidden::Off => Ok(x),
        FakeHidden::Tensor(fake) => fake_quantize(ops, &x, fake),
        FakeHidden::Channels(fake) => fake_quantize_channels(ops, &x, fake),
    }
}
