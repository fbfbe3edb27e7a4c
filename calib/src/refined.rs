//! The parameters and ranges that refinement found for a float model, and the models that recipes make of
//! them.

use std::collections::BTreeMap;

use swinq_model::quantized::{ChannelCodes, FloatModel, Param, SiteState, check_range};
use swinq_model::site::BlockId;
use swinq_model::{HostTensor, Linear, ModelError, Ptq, Site, SiteSpec, SwinConfig};

use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::weight::quantize_for;

/// The results of refinement, without the model that they belong to.
#[derive(Clone, Debug, Default)]
pub struct RefinedParameters {
    /// The rewritten float parameters, by name. Together they leave the function of the float model as it is.
    pub tensors: BTreeMap<String, HostTensor>,
    /// The range of every site that has one. At the input of `mlp.fc2` of a block in `channels` it is the
    /// common range.
    pub ranges: BTreeMap<Site, f32>,
    /// The blocks whose hidden channels have their own scales and zero points.
    pub channels: BTreeMap<BlockId, ChannelCodes>,
    /// The corrected biases of layers that run in INT8.
    pub biases: BTreeMap<Linear, Vec<f32>>,
}

/// How the parameters of a layer are made for a recipe. Equal forms make equal parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerForm {
    /// The settings of its weight.
    weight: SiteSpec,
    /// Whether the rewritten float parameters are used.
    rewritten: bool,
    /// Whether the bias is corrected for the error of INT8.
    corrected: bool,
    /// Whether the weight includes the factors of the input's channels.
    folded: bool,
}

impl LayerForm {
    /// The form of `layer` in a model with these sites.
    pub fn new(layer: Linear, sites: &BTreeMap<Site, SiteState>) -> LayerForm {
        let (weight, input) = (&sites[&Site::Weight(layer)].spec, &sites[&Site::Input(layer)]);
        let refined = |layer| sites[&Site::Weight(layer)].spec.ptq != Ptq::Basic;
        // The values of attention move from `attn.qkv` into `attn.proj`.
        let rewritten = match layer {
            Linear::Qkv(block) | Linear::Proj(block) => {
                refined(Linear::Qkv(block)) || refined(Linear::Proj(block))
            }
            _ => refined(layer),
        };
        LayerForm {
            weight: weight.clone(),
            rewritten,
            corrected: refined(layer) && weight.enabled && input.spec.enabled,
            folded: weight.enabled && input.channels.is_some(),
        }
    }
}

impl RefinedParameters {
    /// Nothing is refined yet: a model with calibrated `ranges`.
    pub(crate) fn new(ranges: BTreeMap<Site, f32>) -> RefinedParameters {
        RefinedParameters { ranges, ..RefinedParameters::default() }
    }

    /// The parameter `name` of the refined `float`: rewritten, or as it is.
    pub fn tensor<'a>(&'a self, float: &'a FloatModel, name: &str) -> Option<&'a HostTensor> {
        self.tensors.get(name).or_else(|| float.tensors.get(name))
    }

    /// A copy of `float` with the rewritten parameters: the same function.
    pub fn applied_to(&self, float: &FloatModel) -> FloatModel {
        let tensor = |(name, own)| (String::clone(name), self.tensors.get(name).unwrap_or(own).clone());
        float.with_tensors(float.tensors.iter().map(tensor).collect())
    }

    /// The range of `site`, if it was found with the refinement of a layer and `ptq` refines this layer. The
    /// patch embedding and the head are not refined.
    pub fn range(&self, site: Site, ptq: impl Fn(Linear) -> Ptq) -> Option<f32> {
        let layer = match site {
            Site::Input(Linear::PatchEmbed | Linear::Head) => return None,
            Site::Input(layer) => layer,
            Site::Q(block) | Site::K(block) | Site::V(block) => Linear::Proj(block),
            _ => return None,
        };
        self.ranges.get(&site).copied().filter(|_| ptq(layer) != Ptq::Basic)
    }

    /// The state of every site of `specs`, the resolved recipe: its settings and, if it needs a scale, its
    /// range and the codes of its channels. `range` tells a range that the recipe does not fix and refinement
    /// did not find.
    ///
    /// # Errors
    /// Those of `range`; [`ModelError`] for a range that is not positive and finite.
    pub fn site_states<E: From<ModelError>>(
        &self,
        specs: &BTreeMap<Site, SiteSpec>,
        mut range: impl FnMut(Site, &SiteSpec) -> Result<f32, E>,
    ) -> Result<BTreeMap<Site, SiteState>, E> {
        let mut state = |(&site, spec): (&Site, &SiteSpec)| {
            if !spec.needs_scale(site) {
                return Ok((site, SiteState::new(spec.clone(), None)));
            }
            let refined = self.range(site, |layer| specs[&Site::Weight(layer)].ptq);
            let refined = refined.filter(|_| spec.amax.is_none() && !self.shifts_rounded_sums(site, specs));
            let amax = match spec.amax.or(refined) {
                Some(amax) => amax,
                None => range(site, spec)?,
            };
            check_range(site, amax)?;
            let mut state = SiteState::new(spec.clone(), Some(amax));
            if refined.is_some() {
                state.channels = self.channels(site).cloned();
            }
            Ok((site, state))
        };
        specs.iter().map(&mut state).collect()
    }

    /// The parameters of `layer` in the quantized model, and those of the norm before it, by name.
    ///
    /// # Errors
    /// [`CalibError::WeightSite`] for a weight that cannot be quantized with the settings of its site.
    pub fn layer(
        &self,
        float: &FloatModel,
        layer: Linear,
        form: &LayerForm,
    ) -> Result<Vec<(String, Param)>, CalibError> {
        let tensor = |name: &str| match form.rewritten {
            true => self.tensor(float, name),
            false => float.tensors.get(name),
        };
        let (name, bias) = (layer.weight_name(), layer.bias_name());
        let weight = tensor(&name).expect("a layer has a weight");
        let factors = match self.channels(Site::Input(layer)) {
            Some(codes) if form.folded => &codes.factors[..],
            _ => &[],
        };
        let weight = match form.weight.enabled {
            true => Param::Int8(quantize_for(layer, &fold_factors(weight, factors), &form.weight)?),
            false => Param::Float(weight.clone()),
        };
        let mut made = vec![(name, weight)];
        let corrected = self.biases.get(&layer).filter(|_| form.corrected);
        let corrected = corrected.map(|bias| HostTensor::new([bias.len()], bias.clone()));
        made.extend(corrected.or_else(|| tensor(&bias).cloned()).map(|tensor| (bias, Param::Float(tensor))));
        for parameter in ["weight", "bias"] {
            let Some(norm) = norm_before(&float.config, layer) else { break };
            let name = format!("{norm}.{parameter}");
            let tensor = tensor(&name).expect("a norm has a weight and a bias").clone();
            made.push((name, Param::Float(tensor)));
        }
        Ok(made)
    }

    /// The scales and zero points of the channels of `site`.
    fn channels(&self, site: Site) -> Option<&ChannelCodes> {
        match site {
            Site::Input(Linear::Fc2(block)) => self.channels.get(&block),
            _ => None,
        }
    }

    /// Whether `site` has zero points that would shift INT32 sums that its layer's `.output` rounds.
    fn shifts_rounded_sums(&self, site: Site, specs: &BTreeMap<Site, SiteSpec>) -> bool {
        let rounded = |layer| specs[&Site::Output(layer)].enabled;
        self.channels(site).is_some() && matches!(site, Site::Input(layer) if rounded(layer))
    }
}

/// The module path of the norm whose output only `layer` reads. In a Swin V2 no layer of a block has one,
/// because norms follow the branches.
pub fn norm_before(config: &SwinConfig, layer: Linear) -> Option<String> {
    match layer {
        _ if config.post_norm() => None,
        Linear::Qkv(block) => Some(format!("{block}.norm1")),
        Linear::Fc1(block) => Some(format!("{block}.norm2")),
        Linear::Reduction(stage) => Some(format!("layers.{stage}.downsample.norm")),
        _ => None,
    }
}
