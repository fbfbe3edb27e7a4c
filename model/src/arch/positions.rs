//! The image sizes that a learned absolute position embedding fits.

use serde::{Deserialize, Serialize};
use swinq_numerics::Size;

use super::SwinConfig;
use crate::error::ModelError;

/// The image sizes that a learned absolute position embedding fits. The names are those in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionSizes {
    /// The sizes with the grid of the network's own image size.
    #[default]
    Own,
    /// All: the code of detectors interpolates the embedding to the grid of the image
    /// ([`resize_bicubic`](swinq_numerics::reference::resize_bicubic)).
    Bicubic,
    /// Whole patches: transformers' `interpolate_pos_encoding` does the same, but to the whole patches of an
    /// image, which it pads. It takes the places for a square.
    BicubicWholePatches,
}

impl PositionSizes {
    pub(super) fn is_own(&self) -> bool {
        *self == PositionSizes::Own
    }
}

impl SwinConfig {
    /// Whether the absolute position embedding is interpolated for images whose first stage has `grid`
    /// tokens.
    pub fn resizes_position(&self, grid: Size) -> bool {
        self.ape && grid != self.own_patches()
    }

    /// The grid of the places of the absolute position embedding: that of the tokens of the network's own
    /// image size.
    pub fn own_patches(&self) -> Size {
        self.patches(self.image_size)
    }

    /// Checks that a rule for sizes belongs to an embedding that the library can resize.
    pub(super) fn check_position_sizes(&self) -> Result<(), ModelError> {
        let problem = match self.ape_sizes {
            PositionSizes::Own => return Ok(()),
            _ if !self.ape => "the network has no absolute position embedding, so there is none to resize",
            PositionSizes::BicubicWholePatches if self.own_patches().side().is_none() => {
                "transformers resizes an absolute position embedding of a square grid only"
            }
            _ => return Ok(()),
        };
        Err(ModelError::config("ape_sizes", problem))
    }

    /// Refuses an image of `image` pixels to whose `grid` the absolute position embedding is not resized.
    pub(super) fn check_position(&self, image: Size, grid: Size) -> Result<(), ModelError> {
        if !self.resizes_position(grid) {
            return Ok(());
        }
        match self.ape_sizes {
            PositionSizes::Bicubic => Ok(()),
            PositionSizes::BicubicWholePatches => self.check_divided(image),
            PositionSizes::Own => {
                let problem = format!(
                    "the network has an absolute position embedding (absolute_pos_embed) for images of {} only; resize the image",
                    self.image_size
                );
                Err(ModelError::config("DATA.IMG_SIZE", problem))
            }
        }
    }
}
