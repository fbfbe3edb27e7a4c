//! Scales and zero points for the channels of the input of `mlp.fc2`.

use std::borrow::Cow;

use rayon::prelude::*;
use swinq_model::quantized::{ChannelCodes, FloatModel, Param, check_range};
use swinq_model::{BlockId, HostTensor, Linear, QuantizedModel, Site};

use crate::error::CalibError;
use crate::weight::quantize_for;

/// Gives the input of `mlp.fc2` of `block` the codes `channels`, with the common scale `amax / 127`.
///
/// If the weight's site is on too, the weight of `float` is quantized again, with the factors folded into it
/// ([`fold_factors`]) and the settings of its site. The caller chooses `amax` and `channels`;
/// refinement does ([`Ptq`](swinq_model::Ptq)).
///
/// # Errors
/// - [`CalibError::Model`] if the site is off, or `amax` or `channels` cannot be used there.
/// - [`CalibError::WeightSite`] if the weight cannot be quantized.
///
/// On an error `model` is unchanged.
///
/// # Panics
/// If the models do not have the block.
pub fn set_channel_codes(
    model: &mut QuantizedModel,
    float: &FloatModel,
    block: BlockId,
    amax: f32,
    channels: ChannelCodes,
) -> Result<(), CalibError> {
    let linear = Linear::Fc2(block);
    let (site, name) = (Site::Input(linear), linear.weight_name());
    check_range(site, amax)?;
    let folded = fold_factors(&float.tensors[&name], &channels.factors);
    let before = model.site(site).clone();
    let state = model.sites.get_mut(&site).expect("`site` would have panicked");
    (state.amax, state.channels) = (Some(amax), Some(channels));
    let quantized = model.column_quantizers(site).map_err(CalibError::from).and_then(|_| {
        let spec = &model.site(Site::Weight(linear)).spec;
        spec.enabled.then(|| quantize_for(linear, &folded, spec)).transpose()
    });
    match quantized {
        Ok(weight) => {
            if let Some(weight) = weight {
                model.params.insert(name, Param::Int8(weight));
            }
            Ok(())
        }
        Err(error) => {
            model.sites.insert(site, before);
            Err(error)
        }
    }
}

/// `weight` `[out, in]` times the factor of each input channel, or as it is if there are no factors. The INT8
/// weight of a layer whose input has [`ChannelCodes`] is quantized from this.
pub fn fold_factors<'a>(weight: &'a HostTensor, factors: &[f32]) -> Cow<'a, HostTensor> {
    if factors.is_empty() {
        return Cow::Borrowed(weight);
    }
    let mut folded = weight.clone();
    let rows = folded.data.par_chunks_mut(factors.len());
    rows.for_each(|row| row.iter_mut().zip(factors).for_each(|(w, f)| *w *= f));
    Cow::Owned(folded)
}
