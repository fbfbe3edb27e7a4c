//! Checks of a configuration: every field, and every size that follows from the fields.

use swinq_numerics::{ImageEdge, Size};

use super::{Grid, Stage, StageOutput, SwinConfig, SwinVersion, WindowPolicy};
use crate::error::ModelError;

// The largest sizes accepted, so that a hostile file cannot ask for absurd memory.
const MAX_IMAGE: usize = 4096;
/// Of an image; tokens have those of the first stage.
const MAX_CHANNELS: usize = 16;
const MAX_PATCH: usize = 64;
const MAX_DIM: usize = 16384;
const MAX_DEPTH: usize = 256;
const MAX_STAGES: usize = 8;
const MAX_CLASSES: usize = 1 << 20;
pub(crate) const MAX_WINDOW: usize = 64;
/// Most values of one image's residual stream.
const MAX_RESIDUAL: usize = 1 << 26;

impl SwinConfig {
    /// Checks every field and every size that follows from the fields.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.check_sizes()?;
        self.check_input()?;
        self.check_numbers()?;
        self.check_stages()?;
        self.check_outputs()?;
        self.check_positions()?;
        self.check_position_sizes()?;
        self.check_windows()
    }

    fn check_sizes(&self) -> Result<(), ModelError> {
        bound_both("DATA.IMG_SIZE", self.image_size, MAX_IMAGE)?;
        let most = if self.takes_tokens() { MAX_DIM } else { MAX_CHANNELS };
        bound(&self.key("IN_CHANS"), self.in_chans, most)?;
        bound(&self.key("PATCH_SIZE"), self.patch_size, MAX_PATCH)?;
        if !self.is_backbone() {
            bound("MODEL.NUM_CLASSES", self.num_classes, MAX_CLASSES)?;
        }
        bound(&self.key("EMBED_DIM"), self.embed_dim, MAX_DIM)?;
        for &window in self.window_size.stated() {
            bound_both(&self.key("WINDOW_SIZE"), window, MAX_WINDOW)?;
        }
        bound(&self.key("DEPTHS (its length)"), self.depths.len(), MAX_STAGES)?;
        if self.num_heads.len() != self.depths.len() {
            let text = format!("{} entries, but DEPTHS has {}", self.num_heads.len(), self.depths.len());
            return Err(ModelError::config(self.key("NUM_HEADS"), text));
        }
        self.check_stated_windows()
    }

    /// Checks the number of the windows that are stated, and that they are square if their rule needs that.
    fn check_stated_windows(&self) -> Result<(), ModelError> {
        let wrong = |problem: String| Err(ModelError::config(self.key("WINDOW_SIZE"), problem));
        let stated = self.window_size.stated();
        if stated.len() > 1 && stated.len() != self.depths.len() {
            return wrong(format!("{} windows, but DEPTHS has {} stages", stated.len(), self.depths.len()));
        }
        let is_long = |window: &&Size| window.side().is_none();
        if let Some(window) =
            stated.iter().find(is_long).filter(|_| self.window_policy.needs_square_windows())
        {
            return wrong(format!("{window} is not square, but the rule for its windows takes square ones"));
        }
        Ok(())
    }

    /// Checks that a network of tokens has nothing before its first stage and behind its last one.
    fn check_input(&self) -> Result<(), ModelError> {
        if !self.takes_tokens() {
            return Ok(());
        }
        let wrong = |key: &str, problem: String| Err(ModelError::config(self.key(key), problem));
        if self.in_chans != self.embed_dim {
            return wrong(
                "IN_CHANS",
                format!("{}, but its tokens have {} channels", self.in_chans, self.embed_dim),
            );
        }
        if self.patch_size != 1 {
            return wrong("PATCH_SIZE", format!("{}, but the patch of a token is 1", self.patch_size));
        }
        let parts = [("PATCH_NORM", self.patch_norm), ("APE", self.ape)];
        if let Some((key, _)) = parts.into_iter().find(|(_, is_there)| *is_there) {
            return wrong(key, "True, but a network of tokens has no patch embedding".to_owned());
        }
        if !self.is_backbone() || self.outputs.iter().any(|output| output.norm) {
            let problem = "a network of tokens has no classifier, and no norm behind its blocks";
            return Err(ModelError::config("outputs", problem));
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
            if !self.is_merging_alone(stage) {
                bound(&self.key(&format!("DEPTHS[{stage}]")), depth, MAX_DEPTH)?;
            }
            let (dim, name) = (self.embed_dim << stage, StageOutput::usual_name(stage));
            bound(&format!("channels of {name}"), dim, MAX_DIM)?;
            bound(&self.key(&format!("NUM_HEADS[{stage}]")), heads, dim)?;
            if !dim.is_multiple_of(heads) {
                let text = format!("{heads} does not divide the stage's {dim} channels");
                return Err(ModelError::config(self.key(&format!("NUM_HEADS[{stage}]")), text));
            }
            bound(&format!("MLP width of {name}"), self.hidden(dim), 4 * MAX_DIM)?;
        }
        Ok(())
    }

    /// Whether stage `stage` of a network of tokens has no blocks: merging lies before its first blocks or
    /// behind its last ones.
    fn is_merging_alone(&self, stage: usize) -> bool {
        let last = self.depths.len() - 1;
        let with_blocks = |others: &[usize]| others.iter().all(|&depth| depth > 0) && !others.is_empty();
        let others = match stage {
            0 => &self.depths[1..],
            stage if stage == last => &self.depths[..last],
            _ => &[],
        };
        self.takes_tokens() && self.depths[stage] == 0 && with_blocks(others)
    }

    /// Checks the fields of which only one version knows the meaning: factors of `QK^T` and windows of
    /// positions.
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
        if self.window_size.stated().iter().any(|window| window.height == 1 || window.width == 1) {
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
        let microsoft_v2 = (self.window_policy, self.version) == (WindowPolicy::Microsoft, SwinVersion::V2);
        let divides_by_0 = |stage: &Stage| {
            let one = stage.window.height == 1 || stage.window.width == 1;
            one && self.pretrained_window(stage.index).is_none()
        };
        if let Some(stage) = self.stages().iter().find(|stage| microsoft_v2 && divides_by_0(stage)) {
            let text = format!(
                "{} has one token, so its window is 1, for which Microsoft's code divides by 0",
                StageOutput::usual_name(stage.index)
            );
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        // A network is built for whole patches, also where its library takes other images.
        if self.window_policy.image_edge() == ImageEdge::Cut {
            self.check_divided(self.image_size)?;
        }
        self.grids(self.image_size).map(drop)
    }

    /// Refuses an image whose sides are no multiples of the patch.
    pub(super) fn check_divided(&self, image: Size) -> Result<(), ModelError> {
        let patch = self.patch_size;
        if image.height.is_multiple_of(patch) && image.width.is_multiple_of(patch) {
            return Ok(());
        }
        let remedy = match image == self.image_size {
            true => "use a multiple of it".to_owned(),
            false => self.padding_remedy(image),
        };
        let text = format!("{} is not a multiple of PATCH_SIZE {patch}; {remedy}", image.short());
        Err(ModelError::config("DATA.IMG_SIZE", text))
    }

    /// How images of a size become those of whole patches and whole windows.
    fn padding_remedy(&self, image: Size) -> String {
        let (full, patch) = (self.full_windows(), self.patch_size);
        if image.height < full.height || image.width < full.width {
            let side = full.height.max(full.width);
            return format!("pad or resize the images to {full} or more (--pad-to {side}, --size)");
        }
        format!("pad or resize the images to multiples of it (--pad-to {patch}, --size)")
    }

    /// A size of images that gives every stage at least a whole window of tokens.
    fn full_windows(&self) -> Size {
        let of_stage = |stage: &Stage| stage.window.map(|side| (self.patch_size * side) << stage.index);
        let stages = self.stages().into_iter().filter(|stage| stage.depth > 0);
        stages.fold(Size { height: 1, width: 1 }, |size, stage| size.zip(of_stage(&stage), usize::max))
    }

    /// The token grid of every stage for an image of `image` pixels. The image is seen as a fresh model of
    /// the checkpoint's library sees it.
    ///
    /// # Errors
    /// [`ModelError::Image`] for an image that the network cannot process: one that is too large, that the
    /// patch does not divide where the library does not pad, or for which a stage would have another window
    /// than its parameters; [`ModelError::Config`] if the configuration states that size.
    pub fn grids(&self, image: Size) -> Result<Vec<Grid>, ModelError> {
        self.checked_grids(image).map_err(|error| match error {
            ModelError::Config { field, problem } if field == "DATA.IMG_SIZE" && image != self.image_size => {
                ModelError::Image { size: image, problem }
            }
            other => other,
        })
    }

    fn checked_grids(&self, image: Size) -> Result<Vec<Grid>, ModelError> {
        if let Some(side) = [image.height, image.width].iter().find(|side| !(1..=MAX_IMAGE).contains(*side)) {
            let text = format!("{side} is outside 1..={MAX_IMAGE}; resize the image");
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        if !self.window_policy.takes_any_image() {
            self.check_divided(image)?;
        }
        if self.patches(image).area() == 0 {
            let text = format!("{image} pixels do not fill a patch of {} pixels", self.patch_size);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        if self.window_policy == WindowPolicy::ShrinkAndPad && image != self.image_size {
            let text = format!(
                "the file does not say which library's rule for windows the network follows, so it takes only {}; make it \
                 again from the library's checkpoint",
                self.image_size
            );
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        let grids = self.grids_unchecked(image);
        let tokens = grids[0].tokens();
        if tokens * self.embed_dim > MAX_RESIDUAL {
            let text =
                format!("{tokens} tokens of {} channels are more than this program accepts", self.embed_dim);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        self.check_position(image, grids[0].size)?;
        for (stage, grid) in self.stages().iter().zip(&grids) {
            self.check_grid(stage, grid)?;
        }
        Ok(grids)
    }

    fn check_grid(&self, stage: &Stage, grid: &Grid) -> Result<(), ModelError> {
        if stage.depth == 0 {
            return Ok(());
        }
        let name = StageOutput::usual_name(stage.index);
        let smaller = grid.size.height < stage.window.height || grid.size.width < stage.window.width;
        let other = grid.window != stage.window;
        if smaller && (other || self.window_policy == WindowPolicy::Mmpretrain) {
            let text = format!(
                "the {} tokens of {name} are fewer than its window of {}; use a larger image, of {} or more",
                grid.size,
                stage.window,
                self.full_windows()
            );
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        if other {
            let text = format!(
                "{name} has parameters for windows of {}, and its {} tokens would have windows of {}; use a smaller \
                 image, or make a model for this size",
                stage.window, grid.size, grid.window
            );
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        if grid.is_padded() && self.window_policy.refuses_padding() {
            let also = match self.window_policy {
                WindowPolicy::Microsoft => {
                    "Microsoft's code refuses it too; timm, Hugging Face and torchvision pad"
                }
                _ => "the network's own code refuses it too; the network pads its images before",
            };
            let text = format!(
                "window {} does not divide the {} tokens of {name} ({also})",
                grid.window.short(),
                grid.size
            );
            return Err(ModelError::config(self.key("WINDOW_SIZE"), text));
        }
        if self.window_policy != WindowPolicy::Microsoft {
            return Ok(());
        }
        if stage.merge && grid.merged().map(|side| 2 * side) != grid.size {
            let text = format!("{name} ends with {} tokens; patch merging needs an even side", grid.size);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        Ok(())
    }
}

fn bound_both(field: &str, size: Size, max: usize) -> Result<(), ModelError> {
    bound(field, size.height, max)?;
    bound(field, size.width, max)
}

fn bound(field: &str, value: usize, max: usize) -> Result<(), ModelError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(ModelError::config(field, format!("{value} is outside 1..={max}")))
}
