//! Window policies: how each library finds the windows, the shift and the padding of a token grid.

use serde::{Deserialize, Serialize};
use swinq_numerics::{ImageEdge, Size};

use super::SwinVersion;

/// The rule of a library for windows, shift and padding. The names are those in files.
///
/// Libraries differ in four ways: which side of a grid decides whether one window covers it, whether such a
/// window shrinks, whether the grid is padded before the cyclic shift or after it, and whether the image or
/// the configuration's image size decides all that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowPolicy {
    /// Microsoft's rule. A stage whose shorter side is no larger than the window uses that side as the
    /// window, and is not shifted. Every other grid must be a multiple of the window, and every grid to merge
    /// must be even; other sizes are refused.
    Microsoft,
    /// The rule of Hugging Face's Swin V1. The window shrinks as under Microsoft's rule. Other grids are
    /// padded after the norm with zeros, up to a multiple of the window; odd grids are padded with zeros
    /// before merging.
    HuggingFace,
    /// As [`WindowPolicy::HuggingFace`], for the network's own image size only. Files of version 2 have this
    /// rule for Hugging Face, timm and mmpretrain wherever the three agree at the network's own image size.
    ShrinkAndPad,
    /// torchvision's rule. The window keeps its size and every grid is padded to a multiple of it. An axis
    /// that one window covers is not shifted. Pixels at the right and at the bottom that fill no patch are
    /// left out.
    Pad,
    /// timm's rule. The window shrinks on each axis to that of the grid, and an axis that one window covers
    /// is not shifted. The grid is shifted first and padded then. Odd grids are padded with zeros before
    /// merging.
    Timm,
    /// timm's rule with `strict_img_size=False`: as [`WindowPolicy::Timm`], but the configuration's image
    /// size decides window and shift for every image.
    TimmAnySize,
    /// timm's rule with `always_partition=True`: the window keeps its size and odd blocks are always shifted,
    /// whatever the image. The grid is shifted first and padded then.
    TimmAlwaysPartition,
    /// The rule of Hugging Face's Swin V2. The height of the configuration's image size, halved and rounded
    /// down from stage to stage, decides for both axes whether the window shrinks and the shift is left out.
    /// Grids are padded as under [`WindowPolicy::HuggingFace`], and odd ones are rounded up to merge.
    HuggingFaceV2,
    /// The rule of mmpretrain without `pad_small_map`. The window of a stage is no larger than its grid at
    /// the network's own image size. A grid whose shorter side is that of the window is not shifted, a
    /// smaller one is refused, every other one is padded.
    Mmpretrain,
    /// The rule of detectors: of Microsoft's detection repository, mmdetection, detectron2, Hugging Face's
    /// backbones, and mmpretrain with `pad_small_map`. The window keeps its size, odd blocks are always
    /// shifted, and every grid is padded.
    Detection,
    /// The rule of the networks of SwinIR and of Swin2SR in the code of its authors, whose image sizes are in
    /// tokens. The shorter side of the configuration's image size decides, as under Microsoft's rule, for
    /// every image. Every grid must be a multiple of the window.
    Restoration,
}

/// The decision of a policy for the grid of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowRule {
    /// The window.
    pub(super) window: Size,
    /// The cyclic shift of odd blocks; 0 for an axis that is not shifted.
    pub(super) shift: Size,
}

impl WindowPolicy {
    /// Window and shift for a grid of `grid` tokens, of a stage with windows of `window` tokens. At the
    /// network's own image size the grid is `own`.
    pub(super) fn rule(self, window: Size, own: Size, grid: Size) -> WindowRule {
        let grid = if self.is_as_built() { own } else { grid };
        let shift = window.map(|side| side / 2);
        let unless = |covered: bool, shift: usize| if covered { 0 } else { shift };
        // One side decides for both axes.
        let by_side = |side: usize| WindowRule {
            window: window.map(|window| window.min(side)),
            shift: window.zip(shift, |window, shift| unless(side <= window, shift)),
        };
        let by_axis = Size {
            height: unless(grid.height <= window.height, shift.height),
            width: unless(grid.width <= window.width, shift.width),
        };
        match self {
            WindowPolicy::Microsoft
            | WindowPolicy::HuggingFace
            | WindowPolicy::ShrinkAndPad
            | WindowPolicy::Restoration => by_side(grid.height.min(grid.width)),
            WindowPolicy::HuggingFaceV2 => by_side(grid.height),
            WindowPolicy::Timm | WindowPolicy::TimmAnySize => {
                WindowRule { window: window.zip(grid, usize::min), shift: by_axis }
            }
            WindowPolicy::Pad => WindowRule { window, shift: by_axis },
            WindowPolicy::Mmpretrain => {
                let window = window.map(|window| window.min(own.height).min(own.width));
                let covered = grid.height.min(grid.width) <= window.height;
                WindowRule { window, shift: window.map(|window| unless(covered, window / 2)) }
            }
            WindowPolicy::Detection | WindowPolicy::TimmAlwaysPartition => WindowRule { window, shift },
        }
    }

    /// The rule by which the library of a classifier with this rule reads it as a backbone; `None` if this
    /// rule does not tell the library.
    pub(crate) fn of_backbone(self, version: SwinVersion) -> Option<WindowPolicy> {
        match (self, version) {
            (WindowPolicy::ShrinkAndPad, _) => None,
            (WindowPolicy::Microsoft | WindowPolicy::HuggingFace, SwinVersion::V1) => {
                Some(WindowPolicy::Detection)
            }
            (policy, _) => Some(policy),
        }
    }

    /// Whether this is a rule of timm.
    fn is_timm(self) -> bool {
        use WindowPolicy::{Timm, TimmAlwaysPartition, TimmAnySize};
        matches!(self, Timm | TimmAnySize | TimmAlwaysPartition)
    }

    /// Whether the configuration's image size decides window and shift, whatever the image.
    fn is_as_built(self) -> bool {
        matches!(self, WindowPolicy::TimmAnySize | WindowPolicy::HuggingFaceV2 | WindowPolicy::Restoration)
    }

    /// Whether window and shift are found for grids that are rounded down from stage to stage.
    pub(super) fn rounds_down(self) -> bool {
        self == WindowPolicy::HuggingFaceV2
    }

    /// Whether a grid is shifted before it is padded.
    pub(super) fn shifts_first(self) -> bool {
        self.is_timm()
    }

    /// Whether a grid that is no multiple of the window is refused.
    pub(super) fn refuses_padding(self) -> bool {
        matches!(self, WindowPolicy::Microsoft | WindowPolicy::Restoration)
    }

    /// Whether the library takes images whose sides are no multiples of the patch.
    pub(super) fn takes_any_image(self) -> bool {
        !(self == WindowPolicy::Microsoft || self.is_timm())
    }

    /// The treatment of pixels that fill no whole patch. torchvision embeds patches by a convolution without
    /// padding.
    pub fn image_edge(self) -> ImageEdge {
        if self == WindowPolicy::Pad { ImageEdge::Cut } else { ImageEdge::Padded }
    }

    /// Whether files of version 2 may have [`WindowPolicy::ShrinkAndPad`] for this rule.
    pub(super) fn is_shrink_and_pad(self) -> bool {
        use WindowPolicy::{HuggingFace, HuggingFaceV2, Mmpretrain, Timm};
        matches!(self, HuggingFace | HuggingFaceV2 | Mmpretrain | Timm)
    }

    /// Whether the window must be square, because one side decides for both axes.
    pub(super) fn needs_square_windows(self) -> bool {
        !(self.is_timm() || matches!(self, WindowPolicy::Pad | WindowPolicy::Detection))
    }
}
