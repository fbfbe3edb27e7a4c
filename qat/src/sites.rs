//! The sites of a forward pass in training: fake quantization with gradients, DropPath, and the blocks'
//! outputs for the feature loss.

use std::collections::BTreeMap;

use candle_core::Tensor;
use swinq_float::ops::taped::{self, AttentionSites, FakeProbs, FakeWeight};
use swinq_float::tape::Tape;
use swinq_float::{Attention, FloatError, LinearWeights, Sites};
use swinq_model::quantized::SiteState;
use swinq_model::{BlockId, Kind, Linear, ModelError, Operand, QuantizedModel, Site};

use crate::audit::Audit;
use crate::drop_path::DropPath;
use crate::scales::ScaleTable;

/// The sites of a student. The caller sets the public fields before each forward pass.
pub struct TrainSites {
    tape: Tape,
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
}

impl TrainSites {
    /// The sites of `model` with the scales of `scales`; without a model nothing is quantized.
    pub fn new(tape: &Tape, model: Option<&QuantizedModel>, scales: ScaleTable) -> TrainSites {
        let kind = |(site, state): (&Site, &SiteState)| match site {
            Site::Probs(block) if state.spec.enabled => Some((*block, state.spec.kind)),
            _ => None,
        };
        let probs = model.map(|model| model.sites.iter().filter_map(kind).collect()).unwrap_or_default();
        TrainSites {
            tape: tape.clone(),
            scales,
            probs,
            images: 1,
            drop_path: None,
            features: None,
            audit: None,
        }
    }

    fn fake(&self, site: Site, x: &Tensor) -> candle_core::Result<Tensor> {
        let values = x.elem_count() / self.images;
        if let Some(fake) = self.scales.fake_channels(site, values) {
            return taped::fake_quantize_channels(&self.tape, x, &fake);
        }
        match self.scales.fake(site, values) {
            Some(fake) => taped::fake_quantize(&self.tape, x, &fake),
            None => Ok(x.clone()),
        }
    }

    /// The fake quantization of a weight. Factors of the input's channels are multiplied before and divided out
    /// after it, because activations keep their own scales.
    fn fake_weight(&self, linear: Linear, w: &Tensor, fake: &FakeWeight) -> candle_core::Result<Tensor> {
        let Some(factors) = self.scales.weight_factors(linear) else {
            return taped::fake_quantize_weight(&self.tape, w, fake);
        };
        let folded = taped::scale_columns(&self.tape, w, factors)?;
        let rounded = taped::fake_quantize_weight(&self.tape, &folded, fake)?;
        taped::scale_columns(&self.tape, &rounded, &factors.recip()?)
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
                    Some(factors) => Ok(taped::scale_images(&self.tape, &x, &factors)?),
                    None => Ok(x),
                }
            }
            _ => Ok(x),
        }
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        let Site::Weight(linear) = site else { return Ok(w.clone()) };
        match self.scales.fake_weight(linear, w.elem_count()) {
            Some(fake) => Ok(self.fake_weight(linear, w, &fake)?),
            None => Ok(w.clone()),
        }
    }

    fn attend(&mut self, site: Site, _: Tensor, _: Tensor) -> Result<Tensor, FloatError> {
        Err(ModelError::site(
            site,
            "is not a separate operation in training: attention is one taped operation",
        )
        .into())
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let patches = layer.linear == Linear::PatchEmbed;
        let x = if patches { self.fake(Site::Input(layer.linear), x)? } else { x.clone() };
        let weight = self.weight(Site::Weight(layer.linear), &layer.weight)?;
        let output = Site::Output(layer.linear);
        let y = match self.scales.fake(output, 1) {
            Some(_) => layer.finish(self.fake(output, &layer.before_bias(&x, &weight)?)?)?,
            None => layer.apply(&x, &weight)?,
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
        let mixed = attention.taped(&sites)?;
        let mixed = mixed
            .ok_or_else(|| ModelError::site(Site::Probs(block), "is not on a tape; a student needs one"))?;
        self.audit(Site::Probs(block), &mixed)?;
        Ok(mixed)
    }

    fn block_output(&mut self, block: BlockId, x: &Tensor) -> Result<(), FloatError> {
        if let Some(features) = &mut self.features {
            features.insert(block, x.clone());
        }
        Ok(())
    }
}
