//! A model described in full, as JSON.

use serde::Serialize;
use swinq_model::quantized::{FileInfo, Provenance, SiteState};
use swinq_model::site::all_sites;
use swinq_model::{Granularity, QuantizedModel, Recipe, Site, SwinConfig, Transform, params};

use crate::results::SiteResult;

/// Version of the JSON's fields.
const SCHEMA: u32 = 1;

/// The description of a model: everything but its parameters.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection<'a> {
    /// Version of these fields.
    pub schema: u32,
    /// Path of the file or directory.
    pub file: String,
    /// Whether the file is a checkpoint of swinq, which contains its configuration.
    pub quantized_checkpoint: bool,
    /// Version of the file's format; `null` if the file is no checkpoint of swinq.
    pub format_version: Option<u64>,
    /// Hash of the file's tensors and document, which was verified; `null` if the file has none.
    pub hash: Option<String>,
    /// Version of the number contract by which the model runs; `null` if the file does not state it.
    pub numbers: Option<u64>,
    /// Architecture.
    pub config: &'a SwinConfig,
    /// Number of parameters.
    pub parameters: usize,
    /// Multiply-accumulates of one image.
    pub macs: u64,
    /// Bytes of the parameters and scales.
    pub size_bytes: u64,
    /// Preprocessing.
    pub transform: &'a Transform,
    /// Class names by class index; `null` if they are not known.
    pub labels: Option<&'a [String]>,
    /// The origin.
    pub provenance: &'a Provenance,
    /// The recipe; `null` for a float model.
    pub recipe: Option<&'a Recipe>,
    /// Fraction of the linear layers' multiply-accumulates that run in INT8, in 0..=1.
    pub int8_share: f64,
    /// Every site in forward order; empty for a float model.
    pub sites: Vec<SiteResult>,
    /// A line for each launch of the engine; `null` unless asked for.
    pub launches: Option<Vec<String>>,
}

impl<'a> Inspection<'a> {
    /// The description of `model`, which was read from `file`, without launches. `info` describes the file if
    /// it is a checkpoint of swinq.
    pub fn of(
        model: &'a QuantizedModel,
        file: &str,
        quantized_checkpoint: bool,
        info: Option<&FileInfo>,
    ) -> Inspection<'a> {
        let quantized = model.is_quantized();
        let parameters = params::parameters(&model.config);
        Inspection {
            schema: SCHEMA,
            file: file.to_owned(),
            quantized_checkpoint,
            format_version: info.map(|info| info.format_version),
            hash: info.and_then(|info| info.hash.clone()),
            numbers: info.map(|info| info.numbers),
            config: &model.config,
            parameters: parameters.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum(),
            macs: model.config.macs(),
            size_bytes: model.size_bytes(),
            transform: &model.transform,
            labels: model.labels.as_deref(),
            provenance: &model.provenance,
            recipe: quantized.then_some(&model.recipe),
            int8_share: model.int8_share(),
            sites: if quantized { site_results(model) } else { Vec::new() },
            launches: None,
        }
    }
}

/// Every site of `model` in forward order, without figures that only images show.
pub fn site_results(model: &QuantizedModel) -> Vec<SiteResult> {
    all_sites(&model.config).into_iter().map(|site| site_result(model, site)).collect()
}

fn site_result(model: &QuantizedModel, site: Site) -> SiteResult {
    let state = model.site(site);
    let name = site.to_string();
    let reason = (!state.spec.enabled).then(|| match model.recipe.deciding_rule(&name) {
        Some(rule) => format!("rule `{}` of recipe {}", rule.pattern, model.recipe.name),
        None => "no rule enables it".to_owned(),
    });
    let spec = &state.spec;
    SiteResult {
        scale: state.scale().filter(|_| state.channels.is_none()),
        reason,
        bits: spec.enabled.then_some(spec.bits),
        granularity: granularity(site, state),
        calibrator: (spec.enabled && (site.is_weight() || spec.needs_scale(site))).then_some(spec.calibrator),
        ..SiteResult::new(name, spec.enabled, spec.kind)
    }
}

/// Whether the scales of a quantized weight, or of an activation whose channels have their own, are per
/// channel.
fn granularity(site: Site, state: &SiteState) -> Option<Granularity> {
    let of_weight = (state.spec.enabled && site.is_weight()).then_some(state.spec.granularity);
    state.channels.as_ref().map(|_| Granularity::Channel).or(of_weight)
}
