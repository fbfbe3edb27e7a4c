//! Quantized models whose parameters and scales were trained outside of this program.

use std::collections::BTreeMap;

use swinq_model::quantized::{ChannelCodes, Source};
use swinq_model::{Linear, Site, StateDict};
use swinq_qat::export::{self, Trained};

use crate::{Error, Model};

/// The result of a training of a quantized model.
#[derive(Clone, Debug, Default)]
pub struct TrainedParameters {
    /// Every parameter in f32, in the names of [`parameters`](swinq_model::params::parameters).
    pub tensors: StateDict,
    /// The ranges of activation sites; those of other sites stay.
    pub ranges: BTreeMap<Site, f32>,
    /// The factors and zero points of sites whose channels have their own; those of other sites stay.
    pub channels: BTreeMap<Site, ChannelCodes>,
    /// The scales of weights, one or one per output channel. Those of other layers are computed from their
    /// weights, as the recipe says.
    pub weight_scales: BTreeMap<Site, Vec<f32>>,
}

impl Model {
    /// The quantized model with trained parameters and scales: its codes are those that fake quantization
    /// computed in the training. Recipe, configuration, preprocessing and the record of the calibration are
    /// those of `self`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model without a quantized site; sites that do not exist or have no range;
    /// parameters that are missing, have another shape or are not finite; scales that do not fit or are not
    /// positive.
    pub fn trained(&self, trained: TrainedParameters) -> Result<Model, Error> {
        if !self.is_quantized() {
            return Err(Error::argument("model", "is in float; the recipe quantizes no site"));
        }
        let mut template = self.as_quantized().clone();
        let TrainedParameters { tensors, ranges, channels, weight_scales } = trained;
        swinq_model::params::check_parameters(&template.config, &tensors)?;
        for (site, codes) in channels {
            let state = template.sites.get_mut(&site).filter(|state| state.channels.is_some());
            let state = state.ok_or_else(|| unknown(site, "factors and zero points"))?;
            state.channels = Some(codes);
        }
        if let Some(site) =
            ranges.keys().find(|site| template.sites.get(site).is_none_or(|s| s.amax.is_none()))
        {
            return Err(unknown(*site, "a range"));
        }
        for (site, scales) in &weight_scales {
            check_scales(&template, *site, scales)?;
        }
        let source = Source { sha256: String::new(), ..template.provenance.source.clone() };
        let weights = |linear: Linear| Ok(weight_scales.get(&Site::Weight(linear)).cloned());
        let trained = Trained {
            tensors: &tensors,
            amax: &|site| Ok(ranges.get(&site).copied()),
            weight_scales: &weights,
        };
        Model::from_quantized(export::quantized(&template, &source, &trained)?)
    }
}

fn unknown(site: Site, what: &str) -> Error {
    Error::argument("scales", format!("the model's site {site} has no {what}"))
}

/// Checks that `site` is that of a quantized weight which has as many `scales`, all of them usable.
fn check_scales(model: &swinq_model::QuantizedModel, site: Site, scales: &[f32]) -> Result<(), Error> {
    let expected = match site {
        Site::Weight(linear) => match model.params.get(&linear.weight_name()) {
            Some(swinq_model::quantized::Param::Int8(weight)) => weight.scales.len(),
            _ => return Err(unknown(site, "codes")),
        },
        _ => return Err(unknown(site, "scales of a weight")),
    };
    if scales.len() != expected {
        return Err(Error::argument("scales", format!("{site} has {} scales, not {expected}", scales.len())));
    }
    match scales.iter().find(|scale| !(**scale > 0.0 && scale.is_finite() && scale.recip().is_finite())) {
        Some(scale) => Err(Error::argument("scales", format!("{site} has the scale {scale}"))),
        None => Ok(()),
    }
}
