//! The input, the output and the shortcut of one layer of a network.

use candle_core::{Device, Tensor};
use swinq_float::{Attention, FloatError, LinearWeights, Sites};
use swinq_model::site::Operand;
use swinq_model::{Linear, Site};

/// The function that chooses the tensor to keep from a linear layer and its input.
type Take = fn(&LinearWeights, &Tensor) -> candle_core::Result<Tensor>;

/// Runs as `inner` does, and keeps a tensor of one layer, and the shortcut that its output is added to.
pub struct LayerRecorder<'a> {
    inner: &'a mut dyn Sites,
    layer: Linear,
    take: Take,
    taken: Option<Tensor>,
    shortcut: Option<Tensor>,
}

impl<'a> LayerRecorder<'a> {
    /// Keeps the result of `take` for `layer` and its input.
    pub fn new(inner: &'a mut dyn Sites, layer: Linear, take: Take) -> LayerRecorder<'a> {
        LayerRecorder { inner, layer, take, taken: None, shortcut: None }
    }

    /// The tensor, and the shortcut if the layer's output is added to one.
    ///
    /// # Panics
    /// If the layer was not run.
    pub fn into_values(self) -> candle_core::Result<(Vec<f32>, Option<Vec<f32>>)> {
        let values = |x: Tensor| x.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<f32>();
        Ok((values(self.taken.expect("the layer was run"))?, self.shortcut.map(values).transpose()?))
    }
}

impl Sites for LayerRecorder<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        let x = self.inner.activation(site, x)?;
        if let Site::Add(block, branch, Operand::Shortcut) = site
            && (self.layer.block(), self.layer.branch()) == (Some(block), Some(branch))
        {
            self.shortcut = Some(x.clone());
        }
        Ok(x)
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> Result<(), FloatError> {
        self.inner.residual(after, x)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        if layer.linear == self.layer {
            self.taken = Some((self.take)(layer, x)?);
        }
        self.inner.linear(layer, x)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        self.inner.attention(attention)
    }
}
