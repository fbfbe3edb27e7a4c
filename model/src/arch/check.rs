//! Checks of a configuration: every field, and every size that follows from the fields.

use super::{SwinConfig, SwinVersion, WindowPolicy};
use crate::error::ModelError;

// The largest sizes accepted, so that a hostile file cannot ask for absurd memory.
const MAX_IMAGE: usize = 4096;
const MAX_PATCH: usize = 64;
const MAX_DIM: usize = 16384;
const MAX_DEPTH: usize = 256;
const MAX_STAGES: usize = 8;
const MAX_CLASSES: usize = 1 << 20;
const MAX_WINDOW: usize = 64;
/// Most values of one image's residual stream.
const MAX_STREAM: usize = 1 << 26;

impl SwinConfig {
    /// Checks every field and every size that follows from the fields.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.check_sizes()?;
        self.check_numbers()?;
        self.check_stages()?;
        self.check_positions()?;
        self.check_windows()
    }

    fn check_sizes(&self) -> Result<(), ModelError> {
        bound("DATA.IMG_SIZE", self.image_size, MAX_IMAGE)?;
        bound(&self.key("PATCH_SIZE"), self.patch_size, MAX_PATCH)?;
        bound("MODEL.NUM_CLASSES", self.num_classes, MAX_CLASSES)?;
        bound(&self.key("EMBED_DIM"), self.embed_dim, MAX_DIM)?;
        bound(&self.key("WINDOW_SIZE"), self.window_size, MAX_WINDOW)?;
        bound(&self.key("DEPTHS (its length)"), self.depths.len(), MAX_STAGES)?;
        if self.num_heads.len() != self.depths.len() {
            let text = format!("{} entries, but DEPTHS has {}", self.num_heads.len(), self.depths.len());
            return Err(ModelError::config(self.key("NUM_HEADS"), text));
        }
        if !self.image_size.is_multiple_of(self.patch_size) {
            let text = format!("{} is not a multiple of PATCH_SIZE {}", self.image_size, self.patch_size);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ModelError> {
        if !(self.mlp_ratio.is_finite() && self.mlp_ratio > 0.0 && self.mlp_ratio <= 64.0) {
            let text = format!("{} is outside (0, 64]", self.mlp_ratio);
            return Err(ModelError::config(self.key("MLP_RATIO"), text));
        }
        if self.qk_scale.is_some_and(|s| !s.is_finite() || s == 0.0) {
            return Err(ModelError::config("MODEL.SWIN.QK_SCALE", "must be finite and not 0".to_owned()));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            let text = format!("{} is not a positive number", self.norm_eps);
            return Err(ModelError::config("norm_eps", text));
        }
        if !(self.mask.is_finite() && self.mask < 0.0) {
            return Err(ModelError::config("mask", format!("{} is not a negative number", self.mask)));
        }
        Ok(())
    }

    fn check_stages(&self) -> Result<(), ModelError> {
        for (stage, (&depth, &heads)) in self.depths.iter().zip(&self.num_heads).enumerate() {
            bound(&self.key(&format!("DEPTHS[{stage}]")), depth, MAX_DEPTH)?;
            let dim = self.embed_dim << stage;
            bound(&format!("channels of stage {stage}"), dim, MAX_DIM)?;
            bound(&self.key(&format!("NUM_HEADS[{stage}]")), heads, dim)?;
            if !dim.is_multiple_of(heads) {
                let text = format!("{heads} does not divide the stage's {dim} channels");
                return Err(ModelError::config(self.key(&format!("NUM_HEADS[{stage}]")), text));
            }
            bound(&format!("MLP width of stage {stage}"), self.hidden(dim), 4 * MAX_DIM)?;
        }
        let tokens = self.grid().pow(2);
        if tokens * self.embed_dim > MAX_STREAM {
            let text =
                format!("{tokens} tokens of {} channels are more than this program accepts", self.embed_dim);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        Ok(())
    }

    /// Checks the fields of which only one version knows the meaning: factors of `QK^T` and windows of positions.
    fn check_positions(&self) -> Result<(), ModelError> {
        let windows = &self.pretrained_window_sizes;
        if self.version == SwinVersion::V1 {
            if !windows.is_empty() {
                let problem = "only a Swin V2 has windows of an earlier training";
                return Err(ModelError::config("pretrained_window_sizes", problem));
            }
            if self.mask != super::MASK {
                let problem = format!("{}; in every Swin V1 it is {}", self.mask, super::MASK);
                return Err(ModelError::config("mask", problem));
            }
            return Ok(());
        }
        if self.qk_scale.is_some() {
            let problem = "a Swin V2 has no such setting: it learns the scale of each head; remove it";
            return Err(ModelError::config("qk_scale", problem));
        }
        if self.window_size == 1 {
            let problem =
                "1: a Swin V2 cannot have windows of one token, because it divides by the window less 1";
            return Err(ModelError::config(self.key("WINDOW_SIZE"), problem));
        }
        let key = self.key("PRETRAINED_WINDOW_SIZES");
        if !windows.is_empty() && windows.len() != self.depths.len() {
            let text = format!("{} entries, but DEPTHS has {}", windows.len(), self.depths.len());
            return Err(ModelError::config(key, text));
        }
        match windows.iter().find(|&&window| window == 1 || window > MAX_WINDOW) {
            Some(window) => {
                Err(ModelError::config(key, format!("{window} is neither 0 nor in 2..={MAX_WINDOW}")))
            }
            None => Ok(()),
        }
    }

    fn check_windows(&self) -> Result<(), ModelError> {
        if self.window_policy != WindowPolicy::Microsoft {
            return Ok(());
        }
        for stage in self.stages() {
            if self.version == SwinVersion::V2
                && stage.window == 1
                && self.pretrained_window(stage.index).is_none()
            {
                let text = format!(
                    "stage {} has one token, so its window is 1, for which Microsoft's code divides by 0",
                    stage.index
                );
                return Err(ModelError::config("DATA.IMG_SIZE", text));
            }
            if stage.padded != stage.grid {
                let text = format!(
                    "window {} does not divide the {}x{} tokens of stage {} (Microsoft's code refuses it too; timm, \
                     Hugging Face and torchvision pad)",
                    stage.window, stage.grid, stage.grid, stage.index
                );
                return Err(ModelError::config(self.key("WINDOW_SIZE"), text));
            }
            if stage.merge && !stage.grid.is_multiple_of(2) {
                let text = format!(
                    "stage {} ends with {}x{} tokens; patch merging needs an even side",
                    stage.index, stage.grid, stage.grid
                );
                return Err(ModelError::config("DATA.IMG_SIZE", text));
            }
        }
        Ok(())
    }
}

fn bound(field: &str, value: usize, max: usize) -> Result<(), ModelError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(ModelError::config(field, format!("{value} is outside 1..={max}")))
}
