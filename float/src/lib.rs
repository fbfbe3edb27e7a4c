//! The one float forward of Swin, in candle, with a hook at every site.
//!
//! What a forward does to the tensors that may be quantized is decided by a [`Sites`]: [`Float`] leaves them alone,
//! [`FakeQuant`] rounds them with fixed scales; calibration and training bring their own.

mod attention;
mod block;
mod classifier;
mod error;
mod fake_quant;
pub mod ops;
mod packed;
mod swin;
pub mod tape;
mod weights;

use candle_core::Tensor;

pub use attention::Attention;
pub use classifier::FloatClassifier;
pub use error::FloatError;
pub use fake_quant::FakeQuant;
pub use swin::Swin;
pub use weights::LinearWeights;

use ops::taped::AttentionSites;
use swinq_model::site::{BlockId, Site};

/// What happens to the tensors that may be quantized. A forward visits every site that is watched
/// once, in the order of [`all_sites`](swinq_model::site::all_sites), unless [`Sites::product`] or [`Sites::attention`] are taken
/// over. Tensors are f32; `x` and `logits` may be views into larger storage.
pub trait Sites {
    /// An activation, in the layout the forward has it in (every value belongs to the site, none is padding added
    /// by the layout). Returns what the forward goes on with, of the same shape.
    ///
    /// # Errors
    /// Whatever the implementation met; it ends the forward.
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError>;

    /// A weight in its own shape. Returns what the forward multiplies with, of the same shape.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError>;

    /// Softmax over the last dimension of `logits` `[windows, heads, n, n]` (scale, bias and mask applied), times
    /// `v` `[windows, heads, n, head_dim]`; `site` is the probabilities' site. Returns `v`'s shape.
    /// [`ops::attend`] is the float computation.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError>;

    /// Whether anything is done or seen at `site`. Where it is not, a forward may compute past the site in one step.
    fn watches(&self, _site: Site) -> bool {
        true
    }

    /// The residual stream after a block, `[images * tokens, c]`, for whoever compares it with another network's.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn block_output(&mut self, _block: BlockId, _x: &Tensor) -> Result<(), FloatError> {
        Ok(())
    }

    /// The product of `x` `[rows, in]`, which its input site returned, with a weight, through the sites of weight and
    /// output, plus the bias, and through GELU where it follows: `[rows, out]`. The default computes it in float.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn product(&mut self, linear: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let weight = self.weight(Site::Weight(linear.linear), &linear.weight)?;
        let output = Site::Output(linear.linear);
        let unchanged = weight.id() == linear.weight.id();
        if let Some(packed) = linear.packed().filter(|_| unchanged && !self.watches(output)) {
            return Ok(packed.product(x)?);
        }
        if !self.watches(output) {
            return Ok(linear.apply(x, &weight)?);
        }
        let y = self.activation(output, linear.before_bias(x, &weight)?)?;
        Ok(linear.finish(y)?)
    }

    /// Attention inside every window of a block, through its sites: `[windows * n, heads * head_dim]`. The default
    /// computes it in float, with [`Sites::attend`] at its end; on a tape, past the sites.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        if let Some(mixed) = attention.taped(&AttentionSites::FLOAT)? {
            return Ok(mixed);
        }
        let block = attention.block;
        let [q, k, v] = attention.split()?;
        let q = self.activation(Site::Q(block), q)?;
        let k = self.activation(Site::K(block), k)?;
        let v = self.activation(Site::V(block), v)?;
        let scores = self.activation(Site::Scores(block), attention.scores(&q, &k)?)?;
        attention.merge(&self.attend(Site::Probs(block), attention.logits(&scores)?, v)?)
    }
}

/// The identity at every site: the network in float.
#[derive(Clone, Copy, Debug, Default)]
pub struct Float;

impl Sites for Float {
    fn activation(&mut self, _: Site, x: Tensor) -> Result<Tensor, FloatError> {
        Ok(x)
    }

    fn weight(&mut self, _: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        Ok(w.clone())
    }

    fn watches(&self, _: Site) -> bool {
        false
    }

    fn attend(&mut self, _: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        Ok(ops::attend(&logits, &v)?)
    }
}
