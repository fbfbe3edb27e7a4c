//! The sites of a forward pass in training: fake quantization with gradients, DropPath, and the blocks'
//! outputs for the feature loss.

use std::collections::BTreeMap;

use candle_core::{Tensor, TensorId};
use swinq_float::ops::Ops;
use swinq_float::ops::taped::{self, AttentionSites, FakeHidden, FakeProbs};
use swinq_float::{Attention, FloatError, LinearWeights, Sites};
use swinq_model::quantized::SiteState;
use swinq_model::{BlockId, Kind, Linear, Operand, QuantizedModel, Site};

use crate::audit::Audit;
use crate::drop_path::DropPath;
use crate::scales::ScaleTable;

/// The sites of a student. The caller sets the public fields before each forward pass.
pub struct TrainSites {
    ops: Ops,
    /// The scales, which the trainer updates once per iteration.
    pub scales: ScaleTable,
    /// The kind of codes of each block with quantized attention probabilities.
    probs: BTreeMap<BlockId, Kind>,
    /// Number of images in the batch.
    pub images: usize,
    /// The branches that this forward pass drops.
    pub drop_path: Option<DropPath>,
    /// Collects the blocks' outputs, if `Some`.
    pub features: Option<BTreeMap<BlockId, Tensor>>,
    /// Searches for the first tensor that is not finite, if `Some`.
    pub audit: Option<Audit>,
    /// The hidden layer that already went through the site of the next layer's input.
    quantized: Option<TensorId>,
}

impl TrainSites {
    /// The sites of `model` with the scales of `scales`; without a model nothing is quantized.
    pub fn new(ops: Ops, model: Option<&QuantizedModel>, scales: ScaleTable) -> TrainSites {
        let kind = |(site, state): (&Site, &SiteState)| match site {
            Site::Probs(block) if state.spec.enabled => Some((*block, state.spec.kind)),
            _ => None,
        };
        let probs = model.map(|model| model.sites.iter().filter_map(kind).collect()).unwrap_or_default();
        TrainSites {
            ops,
            scales,
            probs,
            images: 1,
            drop_path: None,
            features: None,
            audit: None,
            quantized: None,
        }
    }

    fn fake(&self, site: Site, x: &Tensor) -> candle_core::Result<Tensor> {
        let values = x.elem_count() / self.images;
        if let Some(fake) = self.scales.fake_channels(site, values) {
            return taped::fake_quantize_channels(&self.ops, x, &fake);
        }
        match (self.scales.fake(site, values), site) {
            (Some(fake), Site::Input(_)) => taped::fake_quantize_operand(&self.ops, x, &fake),
            (Some(fake), _) => taped::fake_quantize(&self.ops, x, &fake),
            (None, _) => Ok(x.clone()),
        }
    }

    /// The fake quantization of the hidden layer of `block`, which has `values` values for each image.
    fn fake_hidden(&self, block: BlockId, values: usize) -> FakeHidden {
        let site = Site::Input(Linear::Fc2(block));
        match (self.scales.fake_channels(site, values), self.scales.fake(site, values)) {
            (Some(fake), _) => FakeHidden::Channels(fake),
            (None, Some(fake)) => FakeHidden::Tensor(fake),
            (None, None) => FakeHidden::Off,
        }
    }

    /// Bias, GELU and the site of the next layer's input as one operation; `None` where they are separate.
    fn hidden(
        &mut self,
        layer: &LinearWeights,
        x: &Tensor,
        weight: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        let Linear::Fc1(block) = layer.linear else { return Ok(None) };
        if !self.ops.compute.is_cuda() || self.audit.is_some() {
            return Ok(None);
        }
        let values = x.dim(0)? / self.images * weight.dim(0)?;
        let found = layer.apply_hidden(x, weight, &self.fake_hidden(block, values))?;
        self.quantized = found.as_ref().map(Tensor::id);
        Ok(found)
    }

    fn audit(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        if let Some(audit) = &mut self.audit {
            audit.check(&site.to_string(), x)?;
        }
        Ok(())
    }
}

impl Sites for TrainSites {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        if self.quantized == Some(x.id()) {
            return Ok(x);
        }
        self.audit(site, &x)?;
        if site == Site::Input(Linear::PatchEmbed) {
            // `linear` quantizes the patches instead: they hold the same values, in a tensor that is on the
            // tape.
            return Ok(x);
        }
        let x = self.fake(site, &x)?;
        match (site, &self.drop_path) {
            (Site::Add(block, half, Operand::Branch), Some(drop_path)) => {
                match drop_path.factors(block, half, self.images, x.device())? {
                    Some(factors) => Ok(taped::scale_images(&self.ops, &x, &factors)?),
                    None => Ok(x),
                }
            }
            _ => Ok(x),
        }
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        let Site::Weight(linear) = site else { return Ok(w.clone()) };
        match self.scales.fake_weight(linear, w.elem_count()) {
            Some(fake) => {
                let factors = self.scales.weight_factors(linear);
                Ok(taped::fake_quantize_weight(&self.ops, w, &fake, factors)?)
            }
            None => Ok(w.clone()),
        }
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let patches = layer.linear == Linear::PatchEmbed;
        let x = if patches { self.fake(Site::Input(layer.linear), x)? } else { x.clone() };
        let weight = self.weight(Site::Weight(layer.linear), &layer.weight)?;
        let output = Site::Output(layer.linear);
        let y = match self.scales.fake(output, 1) {
            Some(_) => layer.finish(self.fake(output, &layer.before_bias(&x, &weight)?)?)?,
            None => match self.hidden(layer, &x, &weight)? {
                Some(hidden) => return Ok(hidden),
                None if self.audit.is_some() => layer.finish(layer.before_bias(&x, &weight)?)?,
                None => layer.apply(&x, &weight)?,
            },
        };
        self.audit(output, &y)?;
        Ok(y)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let block = attention.block;
        let values = attention.qkv.elem_count() / 3 / self.images;
        let (heads, n, _) = attention.bias.dims3()?;
        let pairs = attention.qkv.dim(0)? * n * heads / self.images;
        let fake = |site, values| self.scales.fake(site, values);
        let probs = match self.probs.get(&block) {
            None => FakeProbs::Float,
            Some(Kind::U8) => FakeProbs::U8,
            Some(Kind::S8) => fake(Site::Probs(block), pairs).map_or(FakeProbs::Float, FakeProbs::S8),
        };
        let sites = AttentionSites {
            q: fake(Site::Q(block), values),
            k: fake(Site::K(block), values),
            v: fake(Site::V(block), values),
            scores: fake(Site::Scores(block), pairs),
            probs,
        };
        let mixed = attention.at_once(&sites)?;
        self.audit(Site::Probs(block), &mixed)?;
        Ok(mixed)
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> Result<(), FloatError> {
        if let (Linear::Fc2(block), Some(features)) = (after, &mut self.features) {
            features.insert(block, x.clone());
        }
        Ok(())
    }
}
