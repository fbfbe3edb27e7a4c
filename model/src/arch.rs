//! The architecture of a Swin: its configuration, and the geometry of each stage that follows from it.
//!
//! Papers: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV 2021, and "Swin
//! Transformer V2: Scaling Up Capacity and Resolution", CVPR 2022.

use serde::{Deserialize, Serialize};

mod check;
mod official;
mod stage;

pub use stage::Stage;

/// The rule for a stage whose token grid is not a multiple of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowPolicy {
    /// Microsoft's rule. A stage no larger than the window uses its own side as the window. Every other grid must be a
    /// multiple of the window, and every grid to merge must be even; other sizes are refused.
    Microsoft,
    /// The rule of timm and Hugging Face. The window shrinks as under Microsoft's rule. Other grids are padded after the
    /// norm with zeros, up to a multiple of the window; odd grids are padded with zeros before merging.
    ShrinkAndPad,
    /// torchvision's rule. The window keeps its size and every grid is padded to a multiple of it. A stage that one
    /// window covers is not shifted.
    Pad,
}

/// Version of the Swin Transformer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwinVersion {
    /// Liu et al., ICCV 2021.
    #[default]
    V1,
    /// Liu et al., "Swin Transformer V2: Scaling Up Capacity and Resolution", CVPR 2022. It differs from V1 in this:
    ///
    /// - The norms follow the branches: `x += norm1(proj(attention(x)))`, `x += norm2(mlp(x))`. The layers `qkv` and
    ///   `fc1` read the raw residual stream.
    /// - Queries and keys are normalised to length 1 in each head, and the factor of `QK^T` is learned for each head
    ///   ([`crate::position::AttentionParameters`]).
    /// - The relative position bias is computed from the positions by an MLP ([`crate::position`]).
    /// - Patch merging reduces the gathered channels, and then normalises the result.
    V2,
}

impl SwinVersion {
    fn is_v1(&self) -> bool {
        *self == SwinVersion::V1
    }

    /// The section of Microsoft's configuration with the keys of this version.
    pub(crate) fn section(self) -> &'static str {
        match self {
            SwinVersion::V1 => "MODEL.SWIN",
            SwinVersion::V2 => "MODEL.SWINV2",
        }
    }
}

/// Added to the logits of tokens that must not attend to each other, except where [`SwinConfig::mask`] says otherwise.
const MASK: f64 = -100.0;

fn is_common_mask(mask: &f64) -> bool {
    *mask == MASK
}

fn common_mask() -> f64 {
    MASK
}

/// A Swin classifier's architecture, with every field resolved.
///
/// It comes from Microsoft's YAML, from a directory's `config.json`, or from [`SwinConfig::official`]. Call
/// [`SwinConfig::validate`] before use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwinConfig {
    /// Name, for messages and reports.
    pub name: String,
    /// Version of the network. Files name it only where it is not V1.
    #[serde(default, skip_serializing_if = "SwinVersion::is_v1")]
    pub version: SwinVersion,
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
    /// Hidden width of the MLP divided by the stage's channels.
    pub mlp_ratio: f64,
    /// Whether the QKV projection has a bias.
    pub qkv_bias: bool,
    /// Factor of `QK^T`; `None` means `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
    /// Whether a learned absolute position embedding is added after the patch embedding.
    pub ape: bool,
    /// Whether the patch embedding ends in a LayerNorm.
    pub patch_norm: bool,
    /// Epsilon of every LayerNorm.
    pub norm_eps: f64,
    /// The rule for grids that are not a multiple of the window.
    pub window_policy: WindowPolicy,
    /// Added to the logits of two tokens of one window that are not neighbours in the image
    /// ([`Stage::shift_regions`]): -100, or -200 for Swin V2 of transformers, which adds its mask twice. Logits of V2 may
    /// be lower than -100, so this is not minus infinity. Files state it only where it is not -100.
    #[serde(default = "common_mask", skip_serializing_if = "is_common_mask")]
    pub mask: f64,
    /// Swin V2: for each stage the window in tokens with which the model was first trained, by which relative positions
    /// are divided; 0 stands for the stage's own window. Empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pretrained_window_sizes: Vec<usize>,
}

impl SwinConfig {
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

    /// Swin V1: factor of `QK^T` in `stage`, `qk_scale` if set, else `head_dim^-0.5`. Swin V2 learns the factors
    /// ([`crate::position::AttentionParameters`]).
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

    /// Whether the norms of a block follow its branches, and the norm of patch merging its reduction: true for Swin V2.
    pub fn post_norm(&self) -> bool {
        self.version == SwinVersion::V2
    }

    /// Swin V2: the window of `stage` with which relative positions are divided, if it is not the stage's own.
    pub fn pretrained_window(&self, stage: usize) -> Option<usize> {
        self.pretrained_window_sizes.get(stage).copied().filter(|&window| window > 0)
    }

    /// The name of a key in Microsoft's configuration of this version, such as `MODEL.SWIN.DEPTHS`.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.version.section())
    }

    /// Multiply-accumulates of one image's forward pass, in the linear layers and in attention.
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
    /// Microsoft's defaults: Swin-T at 224 pixels.
    fn default() -> SwinConfig {
        SwinConfig {
            name: "swin_tiny_patch4_window7_224".to_owned(),
            version: SwinVersion::V1,
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
            mask: MASK,
            pretrained_window_sizes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
