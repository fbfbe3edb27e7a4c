//! A Swin with its recipe applied: INT8 weights where the recipe says so, scales of every enabled activation site.
//!
//! This is what the quantized-checkpoint file holds, the only channel from calibration and training to the engine.
//! A float model is one whose sites are all off ([`QuantizedModel::from_float`]), so that the engine has one input.

mod decode;
pub mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::arch::SwinConfig;
use crate::batch::Transform;
use crate::error::ModelError;
use crate::params::{Parameter, check_parameters};
use crate::recipe::{Recipe, SiteSpec};
use crate::site::{Linear, Site, all_linears};
use crate::tensor::{HostTensor, StateDict};

/// Where a float checkpoint came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The file, as the user named it.
    pub file: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
    /// Naming convention of its tensors: `microsoft`, `timm`, `hf`, `torchvision`, `ft`, `swinq`, or `random`.
    pub dialect: String,
}

/// A trained float Swin in Microsoft's naming, checked against its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct FloatModel {
    /// Architecture.
    pub config: SwinConfig,
    /// Evaluation preprocessing.
    pub transform: Transform,
    /// Class names by class index, where known.
    pub labels: Option<Vec<String>>,
    /// Every parameter ([`crate::params::parameters`]).
    pub tensors: StateDict,
    /// Where it came from.
    pub source: Source,
}

/// The images a calibration saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// Names of the images, in the order seen.
    pub images: Vec<String>,
    /// SHA-256 over the images' decoded and preprocessed pixels in that order, hexadecimal.
    pub sha256: String,
    /// Seed of the sample.
    pub seed: u64,
    /// Images per batch.
    pub batch_size: usize,
}

/// How a quantized model came to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of swinq that wrote it.
    pub tool_version: String,
    /// The float checkpoint.
    pub source: Source,
    /// The calibration; absent where every range came from elsewhere (imported or fixed by the recipe).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
}

/// An INT8 weight: codes in [-127, 127] (or [-7, 7]), `weight = code * scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Weight {
    /// Sizes, output channels first.
    pub shape: Vec<usize>,
    /// Codes, row-major.
    pub codes: Vec<i8>,
    /// One scale per output channel, or one in all.
    pub scales: Vec<f32>,
}

impl Int8Weight {
    /// Output channels and the values of each.
    pub fn matrix(&self) -> (usize, usize) {
        let rows = self.shape[0];
        (rows, self.codes.len() / rows)
    }

    /// Scale of output channel `row`.
    pub fn scale(&self, row: usize) -> f32 {
        if self.scales.len() == 1 { self.scales[0] } else { self.scales[row] }
    }

    /// The float weight that the codes stand for.
    pub fn dequantize(&self) -> HostTensor {
        HostTensor::new(self.shape.clone(), self.values().collect())
    }

    /// What the codes stand for, row-major.
    fn values(&self) -> impl Iterator<Item = f32> {
        let (_, columns) = self.matrix();
        let value = move |(i, &code): (usize, &i8)| f32::from(code) * self.scale(i / columns);
        self.codes.iter().enumerate().map(value)
    }
}

/// A parameter of a quantized model.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// Left in float.
    Float(HostTensor),
    /// Quantized.
    Int8(Int8Weight),
}

impl Param {
    /// The float tensor that the parameter stands for.
    pub fn to_float(&self) -> HostTensor {
        match self {
            Param::Float(tensor) => tensor.clone(),
            Param::Int8(weight) => weight.dequantize(),
        }
    }
}

impl Parameter for Param {
    fn shape(&self) -> &[usize] {
        match self {
            Param::Float(tensor) => &tensor.shape,
            Param::Int8(weight) => &weight.shape,
        }
    }

    fn not_finite(&self) -> Option<(usize, f32)> {
        match self {
            Param::Float(tensor) => tensor.not_finite(),
            Param::Int8(weight) => weight.values().enumerate().find(|(_, value)| !value.is_finite()),
        }
    }
}

/// What a quantized model knows of one site.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteState {
    /// What the recipe says.
    pub spec: SiteSpec,
    /// The range: for an enabled `s8` activation its calibrated or fixed amax; otherwise `None`.
    pub amax: Option<f32>,
}

impl SiteState {
    /// The scale `amax / 127`, where the site has a range.
    pub fn scale(&self) -> Option<f32> {
        self.amax.map(|amax| amax / 127.0)
    }
}

/// A Swin with its recipe applied.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedModel {
    /// Architecture.
    pub config: SwinConfig,
    /// Evaluation preprocessing.
    pub transform: Transform,
    /// Class names by class index, where known.
    pub labels: Option<Vec<String>>,
    /// The rules, as given.
    pub recipe: Recipe,
    /// Every site of the model.
    pub sites: BTreeMap<Site, SiteState>,
    /// Every parameter, in Microsoft's naming.
    pub params: BTreeMap<String, Param>,
    /// How it came to be.
    pub provenance: Provenance,
}

impl QuantizedModel {
    /// A float model with every site off.
    ///
    /// # Errors
    /// A parameter that does not fit the configuration or is not finite.
    pub fn from_float(model: &FloatModel) -> Result<QuantizedModel, ModelError> {
        check_parameters(&model.config, &model.tensors)?;
        let recipe = Recipe::float();
        let table = recipe.resolve(&model.config)?;
        Ok(QuantizedModel {
            config: model.config.clone(),
            transform: model.transform.clone(),
            labels: model.labels.clone(),
            recipe,
            sites: table.into_iter().map(|(site, spec)| (site, SiteState { spec, amax: None })).collect(),
            params: model.tensors.iter().map(|(n, t)| (n.clone(), Param::Float(t.clone()))).collect(),
            provenance: Provenance {
                tool_version: env!("CARGO_PKG_VERSION").to_owned(),
                source: model.source.clone(),
                calibration: None,
            },
        })
    }

    /// The float model, if every site is off.
    pub fn into_float(self) -> Option<FloatModel> {
        if self.is_quantized() {
            return None;
        }
        let QuantizedModel { config, transform, labels, params, provenance, .. } = self;
        let tensors = params.into_iter().map(|(name, param)| (name, param.to_float())).collect();
        Some(FloatModel { config, transform, labels, tensors, source: provenance.source })
    }

    /// The state of `site`.
    ///
    /// # Panics
    /// For a site that the architecture does not have.
    pub fn site(&self, site: Site) -> &SiteState {
        self.sites.get(&site).unwrap_or_else(|| panic!("{site} is not a site of {}", self.config.name))
    }

    /// The scale of an enabled `s8` activation site, `None` where the site is off.
    ///
    /// # Errors
    /// [`ModelError::Site`] for an enabled site without a usable scale.
    pub fn activation_scale(&self, site: Site) -> Result<Option<f32>, ModelError> {
        let state = self.site(site);
        if !state.spec.enabled {
            return Ok(None);
        }
        let Some(amax) = state.amax else {
            return Err(ModelError::site(
                site,
                "is enabled but has no range: the model was never calibrated here; run `swinq calibrate`, or disable \
                 the site with a rule",
            ));
        };
        check_range(site, amax)?;
        Ok(Some(amax / 127.0))
    }

    /// Whether the product runs in INT8: both its operands' sites are on.
    pub fn is_int8(&self, linear: Linear) -> bool {
        self.site(Site::Input(linear)).spec.enabled && self.site(Site::Weight(linear)).spec.enabled
    }

    /// Checks everything the engine relies on: every parameter present with its shape and finite values, weights
    /// stored as their sites say, every scale positive and finite, every enabled activation with a range.
    ///
    /// # Errors
    /// The tensor or site at fault, with the remedy.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.config.validate()?;
        for linear in all_linears(&self.config) {
            self.validate_weight(linear)?;
        }
        check_parameters(&self.config, &self.params)?;
        if let Some(labels) = self.labels.as_ref().filter(|l| l.len() != self.config.num_classes) {
            let problem = format!("{} names for {} classes", labels.len(), self.config.num_classes);
            return Err(ModelError::config("labels", problem));
        }
        for (site, spec) in self.recipe.resolve(&self.config)? {
            let state = self.sites.get(&site);
            if state.is_none_or(|state| state.spec != spec) {
                return Err(ModelError::site(site, "the stored site table contradicts the stored recipe"));
            }
            if spec.needs_scale(site) {
                self.activation_scale(site)?;
            }
        }
        Ok(())
    }

    fn validate_weight(&self, linear: Linear) -> Result<(), ModelError> {
        let name = linear.weight_name();
        let enabled = self.site(Site::Weight(linear)).spec.enabled;
        match (self.params.get(&name), enabled) {
            (Some(Param::Int8(weight)), true) => check_int8(&name, weight),
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

    /// Bytes of the parameters and scales as stored.
    pub fn size_bytes(&self) -> u64 {
        let param = |p: &Param| match p {
            Param::Float(t) => 4 * t.data.len(),
            Param::Int8(w) => w.codes.len() + 4 * w.scales.len(),
        };
        let ranges = self.sites.values().filter(|s| s.amax.is_some()).count();
        (self.params.values().map(param).sum::<usize>() + 4 * ranges) as u64
    }

    /// Share of the multiply-accumulates of weighted products that run in INT8, in 0..=1.
    pub fn int8_share(&self) -> f64 {
        let (mut int8, mut all) = (0.0, 0.0);
        for linear in all_linears(&self.config) {
            let macs = linear_macs(&self.config, linear);
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

fn linear_macs(config: &SwinConfig, linear: Linear) -> f64 {
    let stages = config.stages();
    let macs = match linear {
        Linear::PatchEmbed => config.grid().pow(2) * config.embed_dim * 3 * config.patch_size.pow(2),
        Linear::Head => config.features() * config.num_classes,
        Linear::Reduction(s) => stages[s].merged_grid().pow(2) * 8 * stages[s].dim.pow(2),
        Linear::Qkv(b) => stages[b.stage].padded.pow(2) * 3 * stages[b.stage].dim.pow(2),
        Linear::Proj(b) => stages[b.stage].padded.pow(2) * stages[b.stage].dim.pow(2),
        Linear::Fc1(b) | Linear::Fc2(b) => {
            stages[b.stage].tokens() * stages[b.stage].dim * stages[b.stage].hidden
        }
    };
    macs as f64
}

/// Checks that `amax` can be a range: positive, finite, with a finite `1 / (amax / 127)`.
///
/// # Errors
/// [`ModelError::Site`] with the value.
pub fn check_range(site: Site, amax: f32) -> Result<(), ModelError> {
    let scale = amax / 127.0;
    if amax.is_finite() && amax > 0.0 && scale > 0.0 && (1.0 / scale).is_finite() {
        return Ok(());
    }
    let problem = format!(
        "amax {amax} cannot be a range (it must be positive and finite, and so must 127 / amax); calibrate on images \
         that reach this site, or disable it with a rule"
    );
    Err(ModelError::site(site, problem))
}

fn check_int8(name: &str, weight: &Int8Weight) -> Result<(), ModelError> {
    let (rows, _) = weight.matrix();
    if weight.scales.len() != 1 && weight.scales.len() != rows {
        let problem = format!("{} scales for {rows} output channels", weight.scales.len());
        return Err(ModelError::tensor(name, problem));
    }
    if let Some(row) = weight.scales.iter().position(|s| !(s.is_finite() && *s > 0.0)) {
        let problem =
            format!("scale {} of output channel {row} is not a positive number", weight.scales[row]);
        return Err(ModelError::tensor(name, problem));
    }
    if weight.codes.contains(&-128) {
        return Err(ModelError::tensor(name, "holds the code -128; weights use [-127, 127]"));
    }
    Ok(())
}
