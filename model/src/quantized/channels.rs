//! Codes with a scale and a zero point for each channel.

use swinq_numerics::ColumnQuantizers;
use swinq_numerics::reference::MAX_INT8_K;

use crate::error::ModelError;
use crate::site::{Linear, Site};

/// The codes of an activation site whose channels have their own scales and zero points. Only the sites
/// `mlp.fc2.input` accept them ([`allowed_at`]).
///
/// With the scale `s` of the site, channel `j` has
///
/// ```text
/// s_j  = s * factors[j]                                        one f32 product
/// code = round(clamp(fma(x, 1 / s_j, zero_points[j]), -128, 127))
/// x    ~ s_j * (code - zero_points[j])
/// ```
/// An INT8 weight that multiplies such codes includes the factors: its codes are those of
/// `weight[c][j] * factors[j]`. A float weight does not include them.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelCodes {
    /// The factor of each channel's scale: positive and finite.
    pub factors: Vec<f32>,
    /// The code of the value 0 in each channel.
    pub zero_points: Vec<i8>,
}

impl ChannelCodes {
    /// The quantizer of each channel, for the site's scale `step`.
    ///
    /// # Errors
    /// [`ModelError::Site`] for another number of channels than `channels`, more channels than sums in INT32
    /// hold, or a factor that gives an unusable scale. The error names `site`.
    pub fn quantizers(&self, site: Site, step: f32, channels: usize) -> Result<ColumnQuantizers, ModelError> {
        let lengths = (self.factors.len(), self.zero_points.len());
        if lengths != (channels, channels) {
            let problem = format!(
                "has {} factors and {} zero points for {channels} channels; calibrate again",
                lengths.0, lengths.1
            );
            return Err(ModelError::site(site, problem));
        }
        if channels > MAX_INT8_K {
            let problem = format!(
                "has {channels} channels; with zero points, INT32 holds sums over at most {MAX_INT8_K}; use one scale \
                 for the site"
            );
            return Err(ModelError::site(site, problem));
        }
        ColumnQuantizers::channels(step, &self.factors, &self.zero_points).ok_or_else(|| {
            let usable = |f: &f32| ColumnQuantizers::channels(step, &[*f], &[0]).is_some();
            let channel = self.factors.iter().position(|f| !usable(f)).unwrap_or_default();
            let problem = format!(
                "has the factor {} in channel {channel}; its product with the scale {step} and the reciprocal of the \
                 product must be positive and finite; calibrate again",
                self.factors[channel]
            );
            ModelError::site(site, problem)
        })
    }
}

/// Whether `site` accepts [`ChannelCodes`]: the inputs of `mlp.fc2` do.
pub fn allowed_at(site: Site) -> bool {
    matches!(site, Site::Input(Linear::Fc2(_)))
}
