//! The float forward pass of Swin, in candle, with a hook at every site.
//!
//! An implementation of [`Sites`] decides what happens to the tensors that may be quantized: [`Float`] leaves
//! them unchanged, [`FakeQuant`] rounds them with fixed scales; calibration and training have their own
//! implementations.

mod attention;
mod block;
mod classifier;
mod error;
mod fake_quant;
mod maps;
pub mod ops;
mod packed;
mod segment;
mod swin;
pub mod tape;
mod threads;
mod weights;

use candle_core::Tensor;

pub use attention::Attention;
pub use classifier::FloatClassifier;
pub use error::FloatError;
pub use fake_quant::FakeQuant;
pub use maps::Maps;
pub use segment::Segment;
pub use swin::Swin;
pub use threads::{default_threads, map_each, on_every_core, threads, use_threads};
pub use weights::LinearWeights;

use swinq_model::site::{Linear, Site};

/// The hooks of a forward pass at the tensors that may be quantized. A forward pass visits every watched site
/// once, in the order of [`all_sites`](swinq_model::site::all_sites), except the sites inside
/// [`Sites::linear`] and [`Sites::attention`] if an implementation replaces these functions. Tensors are f32;
/// `x` and `logits` may be views of larger tensors.
///
/// By default every tensor stays unchanged, so an implementation that looks at some tensors has the functions
/// of these alone. A forward pass calls [`Sites::activation`], [`Sites::linear`], [`Sites::attention`] and
/// [`Sites::residual`]; the defaults of these call the others.
pub trait Sites {
    /// Called with an activation in the forward pass's layout. Every value belongs to the site; none is
    /// padding. Returns the tensor to continue with, of the same shape.
    ///
    /// # Errors
    /// An error of the implementation, which ends the forward pass.
    fn activation(&mut self, _site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        Ok(x)
    }

    /// Called with a weight in its own shape. Returns the weight to use, of the same shape.
    ///
    /// # Errors
    /// The errors of [`Sites::activation`].
    fn weight(&mut self, _site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        Ok(w.clone())
    }

    /// Computes the softmax over the last dimension of `logits` `[windows, heads, n, n]` (scale, bias and
    /// mask applied), times `v` `[windows, heads, n, head_dim]`, through the probabilities' site. Returns
    /// `v`'s shape.
    ///
    /// # Errors
    /// The errors of [`Sites::activation`].
    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        attention.attend(&logits, &v)
    }

    /// Whether the implementation changes or reads the tensor at `site`. If not, the forward pass may fuse
    /// the operations around the site.
    fn watches(&self, _site: Site) -> bool {
        true
    }

    /// Called with the residual stream, `[images * tokens, c]`, after a layer has made it or has been added
    /// to it: the patch embedding, `attn.proj`, `mlp.fc2` and a reduction, each with the norm behind it.
    ///
    /// # Errors
    /// The errors of [`Sites::activation`].
    fn residual(&mut self, _after: Linear, _x: &Tensor) -> Result<(), FloatError> {
        Ok(())
    }

    /// Computes a linear layer, `[rows, in]` to `[rows, out]`: the product with the weight, through the sites
    /// of weight and output, then bias and GELU if the layer has them. `x` is the result of the input site.
    /// The default computes in float.
    ///
    /// # Errors
    /// The errors of [`Sites::activation`].
    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        linear_in_float(self, layer, x)
    }

    /// Computes attention inside every window of a block, through its sites:
    /// `[windows * n, heads * head_dim]`. The default computes in float, part by part if one of the sites is
    /// watched.
    ///
    /// # Errors
    /// The errors of [`Sites::activation`]; a site is watched, but attention is one operation
    /// ([`ops::Ops::tape`]).
    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let block = attention.block;
        let inside =
            [Site::Q(block), Site::K(block), Site::V(block), Site::Scores(block), Site::Probs(block)];
        if !inside.into_iter().any(|site| self.watches(site))
            && let Some(mixed) = attention.whole()?
        {
            return Ok(mixed);
        }
        attention_in_parts(self, attention)
    }
}

/// A linear layer in float, through the sites of its weight and output: `[rows, in]` to `[rows, out]`.
///
/// # Errors
/// An error of `sites`, and candle's errors.
pub fn linear_in_float<S: Sites + ?Sized>(
    sites: &mut S,
    layer: &LinearWeights,
    x: &Tensor,
) -> Result<Tensor, FloatError> {
    let weight = sites.weight(Site::Weight(layer.linear), &layer.weight)?;
    let output = Site::Output(layer.linear);
    let unchanged = weight.id() == layer.weight.id();
    if let Some(packed) = layer.packed().filter(|_| unchanged && !sites.watches(output)) {
        return Ok(packed.run(x)?);
    }
    if !sites.watches(output) {
        return Ok(layer.apply(x, &weight)?);
    }
    let y = sites.activation(output, layer.before_bias(x, &weight)?)?;
    Ok(layer.finish(y)?)
}

/// Float attention inside every window of a block, part by part through its sites, ending with
/// [`Sites::attend`]: `[windows * n, heads * head_dim]`.
///
/// # Errors
/// An error of `sites`; the errors of [`Attention::split`].
pub fn attention_in_parts<S: Sites + ?Sized>(
    sites: &mut S,
    attention: &Attention<'_>,
) -> Result<Tensor, FloatError> {
    let block = attention.block;
    let [q, k, v] = attention.split()?;
    let q = sites.activation(Site::Q(block), q)?;
    let k = sites.activation(Site::K(block), k)?;
    let v = sites.activation(Site::V(block), v)?;
    let scores = sites.activation(Site::Scores(block), attention.scores(&q, &k)?)?;
    attention.merge(&sites.attend(attention, attention.logits(&scores)?, v)?)
}

/// The identity at every site: the network in float.
#[derive(Clone, Copy, Debug, Default)]
pub struct Float;

impl Sites for Float {
    fn watches(&self, _: Site) -> bool {
        false
    }
}
