//! The architecture of a Swin: its configuration, its stages, and the token grids of an image.
//!
//! Papers: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV 2021,
//! and "Swin Transformer V2: Scaling Up Capacity and Resolution", CVPR 2022.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use swinq_numerics::Size;

use crate::site::{Linear, all_linears};

mod check;
mod grid;
mod official;
mod positions;
mod rules;
pub(crate) mod size;
mod stage;
mod task;
mod window;
mod windows;

pub(crate) use check::MAX_WINDOW;
pub use grid::Grid;
pub use positions::PositionSizes;
pub use rules::{GridRule, Lengths, Limit, Shifted, Side, SizeRules};
pub use stage::Stage;
pub use task::{Input, Problem, Scores, StageOutput, Task};
pub use window::WindowPolicy;
pub use windows::Windows;

/// Version of the Swin Transformer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwinVersion {
    /// Liu et al., ICCV 2021.
    #[default]
    V1,
    /// Liu et al., "Swin Transformer V2: Scaling Up Capacity and Resolution", CVPR 2022. It differs from V1
    /// in this:
    ///
    /// - The norms follow the branches: `x += norm1(proj(attention(x)))`, `x += norm2(mlp(x))`. The layers
    ///   `qkv` and `fc1` read the raw residual stream.
    /// - Queries and keys are normalised to length 1 in each head, and the factor of `QK^T` is learned for
    ///   each head ([`crate::position::AttentionParameters`]).
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

/// Added to the logits of tokens that must not attend to each other, except where [`SwinConfig::mask`] says
/// otherwise.
pub const MASK: f64 = -100.0;

/// Channels of an RGB image.
const RGB: usize = 3;

fn is_rgb(channels: &usize) -> bool {
    *channels == RGB
}

fn rgb() -> usize {
    RGB
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_common_mask(mask: &f64) -> bool {
    *mask == MASK
}

fn common_mask() -> f64 {
    MASK
}

/// A Swin's architecture, with every field resolved.
///
/// It comes from Microsoft's YAML, from a directory's `config.json`, or from [`SwinConfig::official`]. Call
/// [`SwinConfig::validate`] before use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SwinConfig {
    /// Name, for messages and reports.
    pub name: String,
    /// Version of the network. Files name it only where it is not V1.
    #[serde(default, skip_serializing_if = "SwinVersion::is_v1")]
    pub version: SwinVersion,
    /// The input of the network. Files state it only where it is not images.
    #[serde(default, skip_serializing_if = "Input::is_images")]
    pub input: Input,
    /// Image size for which the network was built, in pixels. Files have a number if it is square, else
    /// `[height, width]`.
    #[serde(with = "size")]
    pub image_size: Size,
    /// Channels of an image. Files state them only where they are not 3.
    #[serde(default = "rgb", skip_serializing_if = "is_rgb")]
    pub in_chans: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// The task of the network. Files state it only where it is not a classifier.
    #[serde(default, skip_serializing_if = "Task::is_classification")]
    pub task: Task,
    /// The feature maps of a backbone, in ascending order of their stages. The last is that of the last
    /// stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<StageOutput>,
    /// Number of classes; 0 for a backbone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub num_classes: usize,
    /// The meaning of a classifier's logits. Files state it only where an image is not of one class.
    #[serde(default, skip_serializing_if = "Problem::is_single_label")]
    pub problem: Problem,
    /// Channels of the first stage; each later stage doubles them.
    pub embed_dim: usize,
    /// Blocks per stage.
    pub depths: Vec<usize>,
    /// Attention heads per stage.
    pub num_heads: Vec<usize>,
    /// Attention windows in tokens. The window that a stage uses may be smaller ([`SwinConfig::stages`]).
    pub window_size: Windows,
    /// Hidden width of the MLP divided by the stage's channels.
    pub mlp_ratio: f64,
    /// Whether the QKV projection has a bias.
    pub qkv_bias: bool,
    /// Factor of `QK^T`; `None` means `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
    /// Whether a learned absolute position embedding is added after the patch embedding.
    pub ape: bool,
    /// The images that this embedding fits. Files state it only where they are not those of the network's own
    /// size alone.
    #[serde(default, skip_serializing_if = "PositionSizes::is_own")]
    pub ape_sizes: PositionSizes,
    /// Whether the patch embedding ends in a LayerNorm.
    pub patch_norm: bool,
    /// Epsilon of every LayerNorm.
    pub norm_eps: f64,
    /// The rule for grids that are not a multiple of the window.
    pub window_policy: WindowPolicy,
    /// Added to the logits of two tokens of one window that are not neighbours in the image
    /// ([`Stage::mask_regions`]): -100, or -200 for Swin V2 of transformers, which adds its mask twice.
    /// Logits of V2 may be lower than -100, so this is not minus infinity. Files state it only where it is
    /// not -100.
    #[serde(default = "common_mask", skip_serializing_if = "is_common_mask")]
    pub mask: f64,
    /// Swin V2: for each stage the window in tokens with which the model was first trained, by which relative
    /// positions are divided; 0 stands for the stage's own window. Empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pretrained_window_sizes: Vec<usize>,
}

impl SwinConfig {
    /// Hidden width of the MLP of a stage of `dim` channels.
    fn hidden(&self, dim: usize) -> usize {
        (dim as f64 * self.mlp_ratio) as usize
    }

    /// Channels of the last stage.
    pub fn features(&self) -> usize {
        self.embed_dim << (self.depths.len() - 1)
    }

    /// Swin V1: factor of `QK^T` in `stage`, `qk_scale` if set, else `head_dim^-0.5`. Swin V2 learns the
    /// factors ([`crate::position::AttentionParameters`]).
    pub fn attention_scale(&self, stage: &Stage) -> f32 {
        self.qk_scale.unwrap_or_else(|| libm::pow(stage.head_dim() as f64, -0.5)) as f32
    }

    /// Every stage. Its window is that of the network's own image size.
    pub fn stages(&self) -> Vec<Stage> {
        let of_stage = |(index, own): (usize, Size)| {
            let dim = self.embed_dim << index;
            let window = self.window_policy.rule(self.window_size.of(index), own, own).window;
            Stage {
                index,
                depth: self.depths[index],
                dim,
                heads: self.num_heads[index],
                hidden: self.hidden(dim),
                window,
                shift: window.map(|side| side / 2),
                merge: index + 1 < self.depths.len(),
            }
        };
        self.deciding_grids(self.image_size).into_iter().enumerate().map(of_stage).collect()
    }

    /// The token grid of every stage for the network's own image size.
    pub fn own_grids(&self) -> Vec<Grid> {
        self.grids_unchecked(self.image_size)
    }

    /// Tokens of an image of `image` pixels after the patch embedding.
    fn patches(&self, image: Size) -> Size {
        self.window_policy.image_edge().grid(image, self.patch_size)
    }

    /// The grid of the tokens of stage `stage` for an image of `image` pixels that the network can process.
    pub fn grid_size(&self, stage: usize, image: Size) -> Size {
        self.patches(image).map(|side| side.div_ceil(1 << stage))
    }

    /// The token grid of every stage for an image of `image` pixels.
    fn grids_unchecked(&self, image: Size) -> Vec<Grid> {
        let mut size = self.patches(image);
        let of_stage = |(stage, (own, deciding)): (usize, (Size, Size))| {
            let rule = self.window_policy.rule(self.window_size.of(stage), own, deciding);
            let grid = Grid {
                size,
                window: rule.window,
                shift: rule.shift,
                padded: size.zip(rule.window, |side, window| side.next_multiple_of(window.max(1))),
                shifts_first: self.window_policy.shifts_first(),
            };
            size = grid.merged();
            grid
        };
        self.deciding_grids(self.image_size)
            .into_iter()
            .zip(self.deciding_grids(image))
            .enumerate()
            .map(of_stage)
            .collect()
    }

    /// For every stage the grid of an image of `image` pixels by which the policy decides.
    fn deciding_grids(&self, image: Size) -> Vec<Size> {
        let of_stage = |stage| match self.window_policy.rounds_down() {
            true => image.map(|side| (side / self.patch_size) >> stage),
            false => self.grid_size(stage, image),
        };
        (0..self.depths.len()).map(of_stage).collect()
    }

    /// Whether the norms of a block follow its branches, and the norm of patch merging its reduction: true
    /// for Swin V2.
    pub fn post_norm(&self) -> bool {
        self.version == SwinVersion::V2
    }

    /// Swin V2: the window of `stage` with which relative positions are divided, if it is not the stage's
    /// own.
    pub fn pretrained_window(&self, stage: usize) -> Option<usize> {
        self.pretrained_window_sizes.get(stage).copied().filter(|&window| window > 0)
    }

    /// The name of a key in Microsoft's configuration of this version, such as `MODEL.SWIN.DEPTHS`.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.version.section())
    }

    /// Multiply-accumulates of the forward pass of one image of the network's own size, in the linear
    /// layers and in attention.
    pub fn macs(&self) -> u64 {
        let (stages, grids) = (self.stages(), self.own_grids());
        let attention = stages.iter().zip(&grids).map(|(stage, grid)| {
            (stage.depth * grid.window_rows() * 2 * stage.window_tokens() * stage.dim) as u64
        });
        attention.sum::<u64>() + self.linear_macs().into_iter().map(|(_, macs)| macs).sum::<u64>()
    }

    /// Every linear layer with its multiply-accumulates for an image of the network's own size.
    pub(crate) fn linear_macs(&self) -> Vec<(Linear, u64)> {
        let (grids, stages) = (self.own_grids(), self.stages());
        let macs = |linear: Linear| match linear {
            Linear::PatchEmbed => {
                grids[0].tokens() * self.embed_dim * self.in_chans * self.patch_size * self.patch_size
            }
            Linear::Head => self.features() * self.num_classes,
            Linear::Reduction(s) => grids[s].merged().area() * 8 * stages[s].dim * stages[s].dim,
            Linear::Qkv(b) => grids[b.stage].window_rows() * 3 * stages[b.stage].dim * stages[b.stage].dim,
            Linear::Proj(b) => grids[b.stage].window_rows() * stages[b.stage].dim * stages[b.stage].dim,
            Linear::Fc1(b) | Linear::Fc2(b) => {
                grids[b.stage].tokens() * stages[b.stage].dim * stages[b.stage].hidden
            }
        };
        all_linears(self).into_iter().map(|linear| (linear, macs(linear) as u64)).collect()
    }
}

impl SwinConfig {
    /// The policy in files. A rule that gives the network's own image size the geometry of
    /// [`WindowPolicy::ShrinkAndPad`] is stored as that in files of version 2.
    pub(crate) fn stored_policy(&self) -> WindowPolicy {
        let common = SwinConfig { window_policy: WindowPolicy::ShrinkAndPad, ..self.clone() };
        let same = self.window_policy.is_shrink_and_pad()
            && self.is_square_rgb()
            && common.stages() == self.stages()
            && common.own_grids().iter().zip(self.own_grids()).all(|(common, own)| common.reads_like(&own));
        if same { common.window_policy } else { self.window_policy }
    }

    /// Whether a file needs version 3 of the format, because version 2 cannot state this architecture.
    pub(crate) fn needs_version_3(&self) -> bool {
        use WindowPolicy::{Microsoft, Pad, ShrinkAndPad};
        self.is_backbone()
            || !self.ape_sizes.is_own()
            || !(self.is_square_rgb() && matches!(self.stored_policy(), Microsoft | Pad | ShrinkAndPad))
    }

    /// Whether files state both architectures alike, whatever their names. A file need not name the library
    /// whose window policy the network has.
    pub fn is_stated_like(&self, other: &SwinConfig) -> bool {
        let stated = |config: &SwinConfig| SwinConfig {
            name: String::new(),
            window_policy: config.stored_policy(),
            ..config.clone()
        };
        stated(self) == stated(other)
    }

    fn is_square_rgb(&self) -> bool {
        let square_windows = self.window_size.common().is_some_and(|window| window.side().is_some());
        self.image_size.side().is_some() && square_windows && self.in_chans == RGB
    }
}

impl Serialize for SwinConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = SwinConfig { window_policy: self.stored_policy(), ..self.clone() };
        SwinConfig::serialize(&stored, serializer)
    }
}

impl<'de> Deserialize<'de> for SwinConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SwinConfig, D::Error> {
        SwinConfig::deserialize(deserializer)
    }
}

impl Default for SwinConfig {
    /// Microsoft's defaults: Swin-T at 224 pixels.
    fn default() -> SwinConfig {
        SwinConfig {
            name: "swin_tiny_patch4_window7_224".to_owned(),
            version: SwinVersion::V1,
            input: Input::Images,
            image_size: Size::square(224),
            in_chans: RGB,
            patch_size: 4,
            task: Task::Classification,
            outputs: Vec::new(),
            num_classes: 1000,
            problem: Problem::default(),
            embed_dim: 96,
            depths: vec![2, 2, 6, 2],
            num_heads: vec![3, 6, 12, 24],
            window_size: Size::square(7).into(),
            mlp_ratio: 4.0,
            qkv_bias: true,
            qk_scale: None,
            ape: false,
            ape_sizes: PositionSizes::Own,
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
