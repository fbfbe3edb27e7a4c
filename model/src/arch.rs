//! Swin V1's shape: the configuration, and the geometry of each stage that follows from it.
//!
//! Paper: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV 2021.

use serde::{Deserialize, Serialize};

use crate::error::ModelError;

/// What happens where the windows do not divide a stage's token grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowPolicy {
    /// Microsoft: a stage no larger than the window takes its own size as the window; anything else that the
    /// window does not divide is refused, and so is merging an odd grid.
    Microsoft,
    /// timm and Hugging Face: the same shrinking of the window; other grids are padded with zeros (after the
    /// norm) to a multiple of the window, odd grids with zeros before merging.
    ShrinkAndPad,
    /// torchvision: the window keeps its size, every grid is padded to a multiple of it, and a stage that one
    /// window covers is not shifted.
    Pad,
}

/// A Swin V1 classifier's architecture, with every field resolved.
///
/// Build one from Microsoft's YAML, from a directory's `config.json`, or by [`SwinConfig::official`]; call
/// [`SwinConfig::validate`] before trusting the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwinConfig {
    /// Name, for messages and reports.
    pub name: String,
    /// Input side in pixels; inputs are square.
    pub image_size: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Number of classes.
    pub num_classes: usize,
    /// Channels of the first stage; each later stage doubles them.
    pub embed_dim: usize,
    /// Blocks per stage.
    pub depths: Vec<usize>,
    /// Attention heads per stage.
    pub num_heads: Vec<usize>,
    /// Side of an attention window in tokens.
    pub window_size: usize,
    /// Hidden width of the MLP, as a multiple of the channels.
    pub mlp_ratio: f64,
    /// Whether the QKV projection has a bias.
    pub qkv_bias: bool,
    /// Scale of the attention scores; `None` means `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
    /// Whether a learned absolute position embedding is added after the patch embedding.
    pub ape: bool,
    /// Whether the patch embedding ends in a LayerNorm.
    pub patch_norm: bool,
    /// Epsilon of every LayerNorm.
    pub norm_eps: f64,
    /// What happens where windows do not divide the grid.
    pub window_policy: WindowPolicy,
}

/// The resolved geometry of one stage. Sizes are in tokens; grids are square.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Index of the stage.
    pub index: usize,
    /// Blocks in the stage.
    pub depth: usize,
    /// Channels.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden width of the MLP.
    pub hidden: usize,
    /// Side of the token grid.
    pub grid: usize,
    /// Side of the window in use.
    pub window: usize,
    /// Shift of the odd blocks; 0 where one window covers the grid.
    pub shift: usize,
    /// Side of the grid after padding to whole windows.
    pub padded: usize,
    /// Whether a patch merging follows (all stages but the last).
    pub merge: bool,
}

impl Stage {
    /// Channels of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Shift of block `block`: odd blocks are shifted.
    pub fn shift_of(&self, block: usize) -> usize {
        if block % 2 == 1 { self.shift } else { 0 }
    }

    /// Windows in one image.
    pub fn windows(&self) -> usize {
        (self.padded / self.window).pow(2)
    }

    /// Tokens in one window.
    pub fn window_tokens(&self) -> usize {
        self.window * self.window
    }

    /// Tokens of one image, without padding.
    pub fn tokens(&self) -> usize {
        self.grid * self.grid
    }

    /// Side of the token grid after the merge.
    pub fn merged_grid(&self) -> usize {
        self.grid.div_ceil(2)
    }

    /// Relative position index of a window: `[n, n]` rows into the bias table of `(2 window - 1)^2` rows.
    pub fn relative_position_index(&self) -> Vec<usize> {
        let w = self.window;
        let mut index = Vec::with_capacity(self.window_tokens().pow(2));
        for i in 0..w * w {
            for j in 0..w * w {
                let dy = i / w + w - 1 - j / w;
                let dx = i % w + w - 1 - j % w;
                index.push(dy * (2 * w - 1) + dx);
            }
        }
        index
    }

    /// Region of each token of the padded, shifted grid: `[windows, n]`. Tokens of one window may attend to each
    /// other only where their regions are equal. `None` where `shift` is 0 (nothing is masked).
    pub fn shift_regions(&self, shift: usize) -> Option<Vec<u8>> {
        if shift == 0 {
            return None;
        }
        let band = |i: usize| match i {
            i if i < self.padded - self.window => 0u8,
            i if i < self.padded - shift => 1,
            _ => 2,
        };
        let per_side = self.padded / self.window;
        let mut regions = Vec::with_capacity(self.padded * self.padded);
        for wy in 0..per_side {
            for wx in 0..per_side {
                for y in 0..self.window {
                    for x in 0..self.window {
                        regions.push(band(wy * self.window + y) * 3 + band(wx * self.window + x));
                    }
                }
            }
        }
        Some(regions)
    }

    /// Window partition of the shifted, padded grid of one image: for each row `[windows * n]` in window order the
    /// token index it comes from (and goes back to), or `None` for a padded token.
    pub fn partition(&self, shift: usize) -> Vec<Option<usize>> {
        let per_side = self.padded / self.window;
        let mut rows = Vec::with_capacity(self.padded * self.padded);
        for wy in 0..per_side {
            for wx in 0..per_side {
                for y in 0..self.window {
                    for x in 0..self.window {
                        let ty = (wy * self.window + y + shift) % self.padded;
                        let tx = (wx * self.window + x + shift) % self.padded;
                        rows.push((ty < self.grid && tx < self.grid).then_some(ty * self.grid + tx));
                    }
                }
            }
        }
        rows
    }

    /// Patch merging's gather of one image: for each merged token its four source tokens in Microsoft's order
    /// (top left, bottom left, top right, bottom right), `None` where an odd grid is padded.
    pub fn merge_sources(&self) -> Vec<[Option<usize>; 4]> {
        let side = self.merged_grid();
        let at = |y: usize, x: usize| (y < self.grid && x < self.grid).then_some(y * self.grid + x);
        let mut sources = Vec::with_capacity(side * side);
        for y in 0..side {
            for x in 0..side {
                let (y, x) = (2 * y, 2 * x);
                sources.push([at(y, x), at(y + 1, x), at(y, x + 1), at(y + 1, x + 1)]);
            }
        }
        sources
    }
}

/// Largest sizes accepted from a configuration, so that a hostile file cannot ask for absurd memory.
const MAX_IMAGE: usize = 4096;
const MAX_DIM: usize = 16384;
const MAX_DEPTH: usize = 256;
const MAX_CLASSES: usize = 1 << 20;
const MAX_WINDOW: usize = 64;
const MAX_STREAM: usize = 1 << 26;

impl SwinConfig {
    /// An official Swin V1 by its name, such as `swin_tiny_patch4_window7_224` (224 window 7 and 384 window 12;
    /// a suffix `_22k`, `_22kto1k` or `_22kto1k_finetune` is accepted). `None` for other names.
    pub fn official(name: &str) -> Option<SwinConfig> {
        let (base, classes) = match name.strip_suffix("_22k") {
            Some(base) => (base, 21841),
            None => (name.trim_end_matches("_finetune").trim_end_matches("_22kto1k"), 1000),
        };
        let (size, rest) = base.strip_prefix("swin_")?.split_once("_patch4_window")?;
        let (embed_dim, middle, heads) = match size {
            "tiny" => (96, 6, 3),
            "small" => (96, 18, 3),
            "base" => (128, 18, 4),
            "large" => (192, 18, 6),
            _ => return None,
        };
        let (window_size, image_size) = match rest {
            "7_224" => (7, 224),
            "12_384" => (12, 384),
            _ => return None,
        };
        Some(SwinConfig {
            name: name.to_owned(),
            image_size,
            num_classes: classes,
            embed_dim,
            depths: vec![2, 2, middle, 2],
            num_heads: vec![heads, heads * 2, heads * 4, heads * 8],
            window_size,
            ..SwinConfig::default()
        })
    }

    /// Checks every field and every size that follows from them.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), ModelError> {
        let bound = |field: &str, value: usize, max: usize| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(ModelError::config(field, format!("{value} is outside 1..={max}")))
        };
        bound("DATA.IMG_SIZE", self.image_size, MAX_IMAGE)?;
        bound("MODEL.SWIN.PATCH_SIZE", self.patch_size, 64)?;
        bound("MODEL.NUM_CLASSES", self.num_classes, MAX_CLASSES)?;
        bound("MODEL.SWIN.EMBED_DIM", self.embed_dim, MAX_DIM)?;
        bound("MODEL.SWIN.WINDOW_SIZE", self.window_size, MAX_WINDOW)?;
        bound("MODEL.SWIN.DEPTHS (its length)", self.depths.len(), 8)?;
        if self.num_heads.len() != self.depths.len() {
            let text = format!("{} entries, but DEPTHS has {}", self.num_heads.len(), self.depths.len());
            return Err(ModelError::config("MODEL.SWIN.NUM_HEADS", text));
        }
        if !(self.mlp_ratio.is_finite() && self.mlp_ratio > 0.0 && self.mlp_ratio <= 64.0) {
            return Err(ModelError::config(
                "MODEL.SWIN.MLP_RATIO",
                format!("{} is outside (0, 64]", self.mlp_ratio),
            ));
        }
        if self.qk_scale.is_some_and(|s| !s.is_finite() || s == 0.0) {
            return Err(ModelError::config("MODEL.SWIN.QK_SCALE", "must be finite and not 0".to_owned()));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Err(ModelError::config(
                "norm_eps",
                format!("{} is not a positive number", self.norm_eps),
            ));
        }
        if !self.image_size.is_multiple_of(self.patch_size) {
            let text = format!("{} is not a multiple of PATCH_SIZE {}", self.image_size, self.patch_size);
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        for (stage, (&depth, &heads)) in self.depths.iter().zip(&self.num_heads).enumerate() {
            bound(&format!("MODEL.SWIN.DEPTHS[{stage}]"), depth, MAX_DEPTH)?;
            let dim = self.embed_dim << stage;
            bound(&format!("channels of stage {stage}"), dim, MAX_DIM)?;
            bound(&format!("MODEL.SWIN.NUM_HEADS[{stage}]"), heads, dim)?;
            if !dim.is_multiple_of(heads) {
                let text = format!("{heads} does not divide the stage's {dim} channels");
                return Err(ModelError::config(format!("MODEL.SWIN.NUM_HEADS[{stage}]"), text));
            }
            bound(&format!("MLP width of stage {stage}"), self.hidden(dim), 4 * MAX_DIM)?;
        }
        let stream = self.grid().pow(2) * self.embed_dim;
        if stream > MAX_STREAM {
            let text = format!(
                "{} tokens of {} channels are more than this program accepts",
                self.grid().pow(2),
                self.embed_dim
            );
            return Err(ModelError::config("DATA.IMG_SIZE", text));
        }
        self.validate_windows()
    }

    fn validate_windows(&self) -> Result<(), ModelError> {
        if self.window_policy != WindowPolicy::Microsoft {
            return Ok(());
        }
        for stage in self.stages() {
            if stage.padded != stage.grid {
                let text = format!(
                    "window {} does not divide the {}x{} tokens of stage {} (Microsoft's code refuses it too; timm, \
                     Hugging Face and torchvision pad)",
                    stage.window, stage.grid, stage.grid, stage.index
                );
                return Err(ModelError::config("MODEL.SWIN.WINDOW_SIZE", text));
            }
            if stage.merge && !stage.grid.is_multiple_of(2) {
                let text = format!("stage {} ends with an odd grid of {} tokens", stage.index, stage.grid);
                return Err(ModelError::config("DATA.IMG_SIZE", text));
            }
        }
        Ok(())
    }

    /// Hidden width of the MLP of a stage of `dim` channels.
    fn hidden(&self, dim: usize) -> usize {
        (dim as f64 * self.mlp_ratio) as usize
    }

    /// Side of the token grid after the patch embedding.
    pub fn grid(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Channels of the last stage.
    pub fn features(&self) -> usize {
        self.embed_dim << (self.depths.len() - 1)
    }

    /// Factor of `QK^T` in a stage: `qk_scale`, or `head_dim^-0.5`.
    pub fn attention_scale(&self, stage: &Stage) -> f32 {
        self.qk_scale.unwrap_or_else(|| (stage.head_dim() as f64).powf(-0.5)) as f32
    }

    /// The geometry of every stage.
    pub fn stages(&self) -> Vec<Stage> {
        let mut grid = self.grid();
        let mut stages = Vec::with_capacity(self.depths.len());
        for (index, (&depth, &heads)) in self.depths.iter().zip(&self.num_heads).enumerate() {
            let dim = self.embed_dim << index;
            let covered = grid <= self.window_size;
            let window = match self.window_policy {
                WindowPolicy::Pad => self.window_size,
                _ => self.window_size.min(grid),
            };
            let stage = Stage {
                index,
                depth,
                dim,
                heads,
                hidden: self.hidden(dim),
                grid,
                window,
                shift: if covered { 0 } else { self.window_size / 2 },
                padded: grid.next_multiple_of(window),
                merge: index + 1 < self.depths.len(),
            };
            grid = stage.merged_grid();
            stages.push(stage);
        }
        stages
    }

    /// Multiply-accumulates of one forward of one image (weighted products and attention).
    pub fn macs(&self) -> u64 {
        let patches = self.grid().pow(2) * self.embed_dim * 3 * self.patch_size.pow(2);
        let mut macs = (patches + self.features() * self.num_classes) as u64;
        for stage in self.stages() {
            let rows = stage.padded * stage.padded;
            let attention = rows * (4 * stage.dim * stage.dim + 2 * stage.window_tokens() * stage.dim);
            let mlp = stage.tokens() * 2 * stage.dim * stage.hidden;
            macs += (stage.depth * (attention + mlp)) as u64;
            if stage.merge {
                macs += (stage.merged_grid().pow(2) * 8 * stage.dim * stage.dim) as u64;
            }
        }
        macs
    }
}

impl Default for SwinConfig {
    /// Microsoft's defaults: Swin-T at 224.
    fn default() -> SwinConfig {
        SwinConfig {
            name: "swin_tiny_patch4_window7_224".to_owned(),
            image_size: 224,
            patch_size: 4,
            num_classes: 1000,
            embed_dim: 96,
            depths: vec![2, 2, 6, 2],
            num_heads: vec![3, 6, 12, 24],
            window_size: 7,
            mlp_ratio: 4.0,
            qkv_bias: true,
            qk_scale: None,
            ape: false,
            patch_norm: true,
            norm_eps: 1e-5,
            window_policy: WindowPolicy::Microsoft,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_has_the_published_work() {
        let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
        config.validate().unwrap();
        assert_eq!((config.macs() as f64 / 1e7).round(), 449.0); // 4.49 GMAC
        let grids: Vec<_> = config.stages().iter().map(|s| (s.grid, s.window, s.shift)).collect();
        assert_eq!(grids, [(56, 7, 3), (28, 7, 3), (14, 7, 3), (7, 7, 0)]);
    }

    #[test]
    fn partition_of_a_padded_grid_covers_each_token_once() {
        let config = SwinConfig {
            image_size: 40,
            window_size: 4,
            depths: vec![2, 2],
            num_heads: vec![3, 6],
            window_policy: WindowPolicy::ShrinkAndPad,
            ..SwinConfig::default()
        };
        let stage = &config.stages()[0];
        assert_eq!((stage.grid, stage.padded, stage.shift), (10, 12, 2));
        let rows = stage.partition(stage.shift);
        let mut seen: Vec<_> = rows.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(rows.len(), 144);
        assert_eq!(stage.shift_regions(stage.shift).unwrap().len(), 144);
    }

    #[test]
    fn absurd_and_contradicting_sizes_are_named() {
        let bad = [
            ("IMG_SIZE", SwinConfig { image_size: 1 << 40, ..SwinConfig::default() }),
            ("EMBED_DIM", SwinConfig { embed_dim: 0, ..SwinConfig::default() }),
            ("NUM_HEADS", SwinConfig { num_heads: vec![5, 6, 12, 24], ..SwinConfig::default() }),
            ("WINDOW_SIZE", SwinConfig { window_size: 5, ..SwinConfig::default() }),
            ("DEPTHS", SwinConfig { depths: vec![], num_heads: vec![], ..SwinConfig::default() }),
            ("MLP_RATIO", SwinConfig { mlp_ratio: f64::NAN, ..SwinConfig::default() }),
        ];
        for (field, config) in bad {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(field), "{field}: {message}");
        }
    }
}
