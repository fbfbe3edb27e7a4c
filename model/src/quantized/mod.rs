//! A Swin with its recipe applied: INT8 weights where the recipe enables them, and a scale for every enabled
//! activation.
//!
//! This is the content of the quantized-checkpoint file, through which calibration and training hand models
//! to the engine. A float model is a quantized model whose sites are all off
//! ([`QuantizedModel::from_float`]), so that the plan, the file and its hash have one kind of model. Both
//! conversions move the parameters.

mod channels;
mod decode;
pub mod file;
pub(crate) mod hash;
mod param;
mod provenance;
mod residual;
mod task;

use std::collections::BTreeMap;

pub use channels::{ChannelCodes, allowed_at as channel_codes_allowed_at};
pub use file::FileInfo;
pub use param::{Int8Weight, Param};
pub use provenance::{CalibrationRecord, Chosen, FileRecord, Provenance, Score, Source, TrainingRecord};
pub use residual::{F16_MARGIN, F16_MAX, F16Residual, ResidualRange};

use swinq_numerics::{ColumnQuantizers, Gelu, Int8};

use crate::arch::{Stage, SwinConfig, SwinVersion};
use crate::batch::Transform;
use crate::error::ModelError;
use crate::params::check_parameters;
use crate::position::AttentionParameters;
use crate::recipe::{Recipe, SiteSpec};
use crate::site::{BlockId, Linear, Site, all_linears, all_sites};
use crate::tensor::{HostTensor, StateDict};

/// A trained float Swin in Microsoft's naming, checked against its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatModel {
    /// Architecture.
    pub config: SwinConfig,
    /// Evaluation preprocessing.
    pub transform: Transform,
    /// Class names by class index, if known.
    pub labels: Option<Vec<String>>,
    /// Where the class names come from, in words, if the float checkpoint does not hold them.
    pub labels_from: Option<String>,
    /// Every parameter ([`crate::params::parameters`]).
    pub tensors: StateDict,
    /// Where the model came from.
    pub source: Source,
}

impl FloatModel {
    /// The same model with other parameters.
    pub fn with_tensors(&self, tensors: StateDict) -> FloatModel {
        let FloatModel { config, transform, labels, labels_from, tensors: _, source } = self;
        FloatModel {
            config: config.clone(),
            transform: transform.clone(),
            labels: labels.clone(),
            labels_from: labels_from.clone(),
            tensors,
            source: source.clone(),
        }
    }
}

/// The state of one site in a quantized model.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteState {
    /// The recipe's setting.
    pub spec: SiteSpec,
    /// The range: the calibrated or fixed amax of an enabled `s8` activation, `None` for every other site.
    /// With `channels` it only defines the scale.
    pub amax: Option<f32>,
    /// The scales and zero points of the channels, if they have their own.
    pub channels: Option<ChannelCodes>,
}

impl SiteState {
    /// The state of a site whose channels share one scale, with the zero point 0.
    pub fn new(spec: SiteSpec, amax: Option<f32>) -> SiteState {
        SiteState { spec, amax, channels: None }
    }

    /// The scale `amax / 127`, if the site has a range.
    pub fn scale(&self) -> Option<f32> {
        self.amax.map(scale_of)
    }
}

/// A Swin with its recipe applied.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedModel {
    /// Architecture.
    pub config: SwinConfig,
    /// Evaluation preprocessing.
    pub transform: Transform,
    /// Class names by class index, if known.
    pub labels: Option<Vec<String>>,
    /// The recipe, as given.
    pub recipe: Recipe,
    /// The GELU of `mlp.fc1` where its result is quantized next, at `mlp.fc2.input`. Elsewhere it is
    /// [`Gelu::Erf`].
    pub gelu: Gelu,
    /// Every site of the model.
    pub sites: BTreeMap<Site, SiteState>,
    /// Every parameter, in Microsoft's naming.
    pub params: BTreeMap<String, Param>,
    /// The origin of the model.
    pub provenance: Provenance,
}

impl QuantizedModel {
    /// The float model with every site off. Moves the parameters.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a parameter that does not fit the configuration or is not finite.
    pub fn from_float(mut model: FloatModel) -> Result<QuantizedModel, ModelError> {
        check_parameters(&model.config, &model.tensors)?;
        let recipe = Recipe::float();
        let table = recipe.resolve(&model.config)?;
        let sites = table.into_iter().map(|(site, spec)| (site, SiteState::new(spec, None))).collect();
        let tensors = std::mem::take(&mut model.tensors);
        let params = tensors.into_iter().map(|(name, tensor)| (name, Param::Float(tensor))).collect();
        Ok(QuantizedModel::of_parts(&model, recipe, sites, params))
    }

    /// A model with the description and the origin of `float`, and with these sites and parameters. The
    /// caller checks that they fit together ([`QuantizedModel::validate`]).
    pub fn of_parts(
        float: &FloatModel,
        recipe: Recipe,
        sites: BTreeMap<Site, SiteState>,
        params: BTreeMap<String, Param>,
    ) -> QuantizedModel {
        QuantizedModel {
            config: float.config.clone(),
            transform: float.transform.clone(),
            labels: float.labels.clone(),
            recipe,
            gelu: Gelu::Quadratic,
            sites,
            params,
            provenance: Provenance {
                tool_version: env!("CARGO_PKG_VERSION").to_owned(),
                source: float.source.clone(),
                labels_from: float.labels_from.clone(),
                ..Provenance::default()
            },
        }
    }

    /// The float model, if every site is off. Moves the parameters.
    pub fn into_float(self) -> Option<FloatModel> {
        if self.is_quantized() {
            return None;
        }
        let QuantizedModel { config, transform, labels, params, provenance, .. } = self;
        let tensors = params.into_iter().map(|(name, param)| (name, param.into_float())).collect();
        let Provenance { source, labels_from, .. } = provenance;
        Some(FloatModel { config, transform, labels, labels_from, tensors, source })
    }

    /// The state of `site`.
    ///
    /// # Panics
    /// If the architecture does not have the site.
    pub fn site(&self, site: Site) -> &SiteState {
        self.sites.get(&site).unwrap_or_else(|| panic!("{site} is not a site of {}", self.config.name))
    }

    /// The factors of `QK^T` and the relative position bias of a block of `stage`. Both versions of Swin have
    /// them in this form, which is computed here for Swin V2.
    ///
    /// # Panics
    /// If the model lacks a parameter of the block.
    pub fn attention_parameters(&self, stage: &Stage, block: BlockId) -> AttentionParameters<'_> {
        AttentionParameters::of(&self.config, stage, block, |name| match &self.params[name] {
            Param::Float(tensor) => &tensor.data,
            Param::Int8(_) => panic!("{name} is not a weight of a linear layer"),
        })
    }

    /// The scale of an enabled `s8` activation site; `None` if the site is off.
    ///
    /// # Errors
    /// [`ModelError::Site`] if an enabled site has no usable range.
    pub fn activation_scale(&self, site: Site) -> Result<Option<f32>, ModelError> {
        let state = self.site(site);
        if !state.spec.enabled {
            return Ok(None);
        }
        let Some(amax) = state.amax else {
            return Err(ModelError::site(
                site,
                "is enabled but has no range: this site was never calibrated; run `swinq calibrate`, or disable the \
                 site with a rule",
            ));
        };
        check_range(site, amax)?;
        Ok(Some(scale_of(amax)))
    }

    /// The quantizers of the channels of an activation site that has [`ChannelCodes`]; `None` for other
    /// sites.
    ///
    /// # Errors
    /// [`ModelError::Site`] if the site may not have them, is off, has no usable range, or if they do not
    /// fit.
    pub fn column_quantizers(&self, site: Site) -> Result<Option<ColumnQuantizers>, ModelError> {
        let Some(channels) = &self.site(site).channels else { return Ok(None) };
        let (Site::Input(Linear::Fc2(block)), Some(step)) = (site, self.activation_scale(site)?) else {
            let problem =
                "has factors and zero points of channels, but it is off, or not an input of mlp.fc2";
            return Err(ModelError::site(site, problem));
        };
        let hidden = self.config.stages()[block.stage].hidden;
        channels.quantizers(site, step, hidden).map(Some)
    }

    /// The float values of every parameter. INT8 weights are dequantized; the factors of [`ChannelCodes`],
    /// which their codes include, are divided out.
    pub fn float_tensors(&self) -> StateDict {
        let mut tensors: StateDict =
            self.params.iter().map(|(name, param)| (name.clone(), param.to_float())).collect();
        for linear in all_linears(&self.config).into_iter().filter(|&l| self.weight_factors(l).is_some()) {
            tensors.insert(linear.weight_name(), self.float_weight(linear));
        }
        tensors
    }

    /// The float values of the weight of `linear`, as in [`QuantizedModel::float_tensors`].
    ///
    /// # Panics
    /// If the model does not have the layer.
    pub fn float_weight(&self, linear: Linear) -> HostTensor {
        let mut weight = self.params[&linear.weight_name()].to_float();
        if let Some(factors) = self.weight_factors(linear) {
            let rows = weight.data.chunks_exact_mut(factors.len());
            rows.for_each(|row| row.iter_mut().zip(factors).for_each(|(w, f)| *w /= f));
        }
        weight
    }

    /// The factors of the input channels that the INT8 weight of `linear` includes, if any.
    pub fn weight_factors(&self, linear: Linear) -> Option<&[f32]> {
        let channels = self.site(Site::Input(linear)).channels.as_ref()?;
        self.is_int8(linear).then_some(&channels.factors)
    }

    /// Whether the linear layer runs in INT8: true if the sites of its input and of its weight are both on.
    pub fn is_int8(&self, linear: Linear) -> bool {
        self.site(Site::Input(linear)).spec.enabled && self.site(Site::Weight(linear)).spec.enabled
    }

    /// The GELU of the MLP of `block`.
    ///
    /// # Panics
    /// If the model does not have the block.
    pub fn gelu_of(&self, block: BlockId) -> Gelu {
        if self.site(Site::Input(Linear::Fc2(block))).spec.enabled { self.gelu } else { Gelu::Erf }
    }

    /// The version of the number contract (`docs/inference.md`) that a file of the model states: the newest,
    /// unless the model has [`Gelu::Erf`] where GELU is quantized next. Then it is the oldest that has the
    /// model's other features: 3 for a Swin V2, 2 for channels with their own scales and zero points, else 1.
    pub fn numbers(&self) -> u64 {
        let quantized_gelu =
            |linear| matches!(linear, Linear::Fc2(_)) && self.site(Site::Input(linear)).spec.enabled;
        if self.gelu == Gelu::Quadratic || !all_linears(&self.config).into_iter().any(quantized_gelu) {
            return file::NUMBERS_VERSION;
        }
        match self.config.version {
            SwinVersion::V2 => 3,
            SwinVersion::V1 if self.sites.values().any(|state| state.channels.is_some()) => 2,
            SwinVersion::V1 => 1,
        }
    }

    /// Checks everything that the engine relies on: every parameter is present, has its shape and is finite;
    /// weights are stored as the recipe says; every scale is positive and finite; every enabled activation
    /// has a range.
    ///
    /// # Errors
    /// The error names the tensor or site, and the next step.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.config.validate()?;
        if let Some(site) = all_sites(&self.config).into_iter().find(|site| !self.sites.contains_key(site)) {
            return Err(ModelError::site(site, "is missing from the model's table of sites"));
        }
        for linear in all_linears(&self.config) {
            self.validate_weight(linear)?;
        }
        check_parameters(&self.config, &self.params)?;
        if let Some(labels) = self.labels.as_ref().filter(|l| l.len() != self.config.num_classes) {
            let problem = format!("{} names for {} classes", labels.len(), self.config.num_classes);
            return Err(ModelError::config("labels", problem));
        }
        for (site, spec) in self.recipe.resolve(&self.config)? {
            if self.site(site).spec != spec {
                return Err(ModelError::site(site, "the stored site table contradicts the stored recipe"));
            }
            if spec.needs_scale(site) {
                self.activation_scale(site)?;
            }
            self.column_quantizers(site)?;
        }
        match self.provenance.calibration.as_ref().and_then(|record| record.residual.as_ref()) {
            Some(range) => range.check(&self.config),
            None => Ok(()),
        }
    }

    fn validate_weight(&self, linear: Linear) -> Result<(), ModelError> {
        let name = linear.weight_name();
        let enabled = self.site(Site::Weight(linear)).spec.enabled;
        match (self.params.get(&name), enabled) {
            (Some(Param::Int8(weight)), true) => weight.check(&name),
            (Some(Param::Float(_)), true) => Err(ModelError::tensor(
                name,
                "is stored in float, but the recipe quantizes it; calibrate again",
            )),
            (Some(Param::Int8(_)), false) => Err(ModelError::tensor(
                name,
                "is stored as INT8, but the recipe leaves it in float; calibrate again",
            )),
            _ => Ok(()),
        }
    }

    /// Bytes of the parameters and scales in the file.
    pub fn size_bytes(&self) -> u64 {
        let param = |p: &Param| match p {
            Param::Float(t) => 4 * t.data.len(),
            Param::Int8(w) => w.codes.len() + 4 * w.scales.len(),
        };
        let ranges = self.sites.values().filter(|s| s.amax.is_some()).count();
        let channels = self.sites.values().filter_map(|s| s.channels.as_ref());
        let channels: usize = channels.map(|c| 4 * c.factors.len() + c.zero_points.len()).sum();
        (self.params.values().map(param).sum::<usize>() + 4 * ranges + channels) as u64
    }

    /// Fraction of the linear layers' multiply-accumulates that run in INT8, in 0..=1.
    pub fn int8_share(&self) -> f64 {
        let (mut int8, mut all) = (0.0, 0.0);
        for (linear, macs) in self.config.linear_macs() {
            let macs = macs as f64;
            all += macs;
            if self.is_int8(linear) {
                int8 += macs;
            }
        }
        int8 / all
    }

    /// Whether any site is on.
    pub fn is_quantized(&self) -> bool {
        self.sites.values().any(|state| state.spec.enabled)
    }
}

/// The scale of an activation of range `amax`: `amax / 127`.
pub fn scale_of(amax: f32) -> f32 {
    amax / Int8::MAX
}

/// The range of an activation with `scale`: 127 times the scale.
pub fn amax_of(scale: f32) -> f32 {
    Int8::MAX * scale
}

/// The largest plausible scale of an activation or a weight. Values of a network that need a larger one would
/// lose their squares, which norms sum in f32.
pub const LARGEST_SCALE: f32 = 1e9;

/// Checks that `amax` is usable as a range: positive, with a scale of at most [`LARGEST_SCALE`] and a finite
/// `1 / (amax / 127)`.
///
/// # Errors
/// [`ModelError::Site`] with the value.
pub fn check_range(site: Site, amax: f32) -> Result<(), ModelError> {
    let scale = scale_of(amax);
    if scale > 0.0 && scale <= LARGEST_SCALE && (1.0 / scale).is_finite() {
        return Ok(());
    }
    let problem = format!(
        "amax {amax} cannot be a range (it must be positive, with a finite 127 / amax, and at most {:e}); calibrate on \
         images that reach this site, or disable it with a rule",
        amax_of(LARGEST_SCALE)
    );
    Err(ModelError::site(site, problem))
}
