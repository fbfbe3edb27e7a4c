//! What a forward in training does at each site: fake quantization with gradients, DropPath, and a look at the blocks'
//! outputs.

use std::collections::BTreeMap;

use candle_core::Tensor;
use swinq_float::ops::taped::{self, AttentionSites, FakeProbs};
use swinq_float::tape::Tape;
use swinq_float::{Attention, FloatError, LinearWeights, Sites};
use swinq_model::quantized::SiteState;
use swinq_model::{BlockId, Kind, Linear, ModelError, Operand, QuantizedModel, Site};

use crate::audit::Audit;
use crate::drop_path::DropPath;
use crate::scales::ScaleTable;

/// The sites of a student, for one forward at a time.
pub struct TrainSites {
    tape: Tape,
    /// The steps; the trainer updates them once a step.
    pub scales: ScaleTable,
    /// How probabilities are quantized, where they are: by unsigned codes, or else by a step.
    probs: BTreeMap<BlockId, Kind>,
    /// Images of the batch.
    pub images: usize,
    /// Whose branches are dropped in this forward.
    pub drop_path: Option<DropPath>,
    /// The blocks' outputs, if they are wanted.
    pub features: Option<BTreeMap<BlockId, Tensor>>,
    /// Looks for what is not finite, if wanted.
    pub audit: Option<Audit>,
}

impl TrainSites {
    /// Quantization as in `model` with the steps of `scales`; none without a model.
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
        match self.scales.fake(site, x.elem_count() / self.images) {
            Some(fake) => taped::fake_quantize(&self.tape, x, &fake),
            None => Ok(x.clone()),
        }
    }

    fn seen(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        if let Some(audit) = &mut self.audit {
            audit.look(&site.to_string(), x)?;
        }
        Ok(())
    }
}

impl Sites for TrainSites {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.seen(site, &x)?;
        if site == Site::Input(Linear::PatchEmbed) {
            // The product quantizes its patches: the same values, in a tensor that the tape knows.
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
            Some(fake) => Ok(taped::fake_quantize_weight(&self.tape, w, &fake)?),
            None => Ok(w.clone()),
        }
    }

    fn attend(&mut self, site: Site, _: Tensor, _: Tensor) -> Result<Tensor, FloatError> {
        Err(ModelError::site(site, "is part of one operation in training").into())
    }

    fn product(&mut self, linear: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let patches = linear.linear == Linear::PatchEmbed;
        let x = if patches { self.fake(Site::Input(linear.linear), x)? } else { x.clone() };
        let weight = self.weight(Site::Weight(linear.linear), &linear.weight)?;
        let output = Site::Output(linear.linear);
        let y = match self.scales.fake(output, 1) {
            Some(_) => linear.finish(self.fake(output, &linear.before_bias(&x, &weight)?)?)?,
            None => linear.apply(&x, &weight)?,
        };
        self.seen(output, &y)?;
        Ok(y)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let block = attention.block;
        let values = attention.qkv.elem_count() / 3 / self.images;
        let (heads, n, _) = attention.bias.dims3()?;
        let pairs = attention.qkv.dim(0)? * n * heads / self.images;
        let step = |site, values| self.scales.fake(site, values);
        let probs = match self.probs.get(&block) {
            None => FakeProbs::Float,
            Some(Kind::U8) => FakeProbs::U8,
            Some(Kind::S8) => step(Site::Probs(block), pairs).map_or(FakeProbs::Float, FakeProbs::S8),
        };
        let sites = AttentionSites {
            q: step(Site::Q(block), values),
            k: step(Site::K(block), values),
            v: step(Site::V(block), values),
            scores: step(Site::Scores(block), pairs),
            probs,
        };
        let mixed = attention.taped(&sites)?;
        let mixed = mixed.ok_or_else(|| ModelError::site(Site::Probs(block), "a student runs on a tape"))?;
        self.seen(Site::Probs(block), &mixed)?;
        Ok(mixed)
    }

    fn block_output(&mut self, block: BlockId, x: &Tensor) -> Result<(), FloatError> {
        if let Some(features) = &mut self.features {
            features.insert(block, x.clone());
        }
        Ok(())
    }
}
