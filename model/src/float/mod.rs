//! The one float forward of Swin, in candle, with a hook at every site.
//!
//! What a forward does to the tensors that may be quantized is decided by a [`Sites`]: [`Float`] leaves them alone,
//! [`FakeQuant`] rounds them with fixed scales; calibration and training bring their own.

mod attention;
mod block;
mod classifier;
mod fake_quant;
pub mod ops;
mod swin;
mod weights;

use candle_core::Tensor;

pub use classifier::FloatClassifier;
pub use fake_quant::FakeQuant;
pub use swin::Swin;

use crate::error::ModelError;
use crate::site::Site;

/// What happens to the tensors that may be quantized. A forward visits every site once, in the order of
/// [`all_sites`](crate::site::all_sites). Tensors are f32; `x` and `logits` may be views into larger storage.
pub trait Sites {
    /// An activation, in the layout the forward has it in (every value belongs to the site, none is padding added
    /// by the layout). Returns what the forward goes on with, of the same shape.
    ///
    /// # Errors
    /// Whatever the implementation met; it ends the forward.
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, ModelError>;

    /// A weight in its own shape. Returns what the forward multiplies with, of the same shape.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, ModelError>;

    /// Softmax over the last dimension of `logits` `[windows, heads, n, n]` (scale, bias and mask applied), times
    /// `v` `[windows, heads, n, head_dim]`; `site` is the probabilities' site. Returns `v`'s shape.
    /// [`ops::attend`] is the float computation.
    ///
    /// # Errors
    /// As [`Sites::activation`].
    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, ModelError>;
}

/// The identity at every site: the network in float.
#[derive(Clone, Copy, Debug, Default)]
pub struct Float;

impl Sites for Float {
    fn activation(&mut self, _: Site, x: Tensor) -> Result<Tensor, ModelError> {
        Ok(x)
    }

    fn weight(&mut self, _: Site, w: &Tensor) -> Result<Tensor, ModelError> {
        Ok(w.clone())
    }

    fn attend(&mut self, _: Site, logits: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        Ok(ops::attend(&logits, &v)?)
    }
}
