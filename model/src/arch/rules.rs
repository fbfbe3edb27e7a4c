//! The token grids of images whose size is not known yet, as rules: for exported graphs.

use std::fmt;

use swinq_numerics::{ImageEdge, Size};

use super::{PositionSizes, SwinConfig, WindowPolicy};
use crate::error::ModelError;

/// A side of an image or of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The height.
    Height,
    /// The width.
    Width,
    /// The shorter of both.
    Shorter,
}

impl Side {
    /// The length of this side.
    pub fn of(self, size: Size) -> usize {
        match self {
            Side::Height => size.height,
            Side::Width => size.width,
            Side::Shorter => size.height.min(size.width),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Height => "height",
            Side::Width => "width",
            Side::Shorter => "shorter_side",
        })
    }
}

/// The lengths of a side that a network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lengths {
    /// The multiples of a number.
    MultiplesOf(usize),
    /// This length and larger ones.
    AtLeast(usize),
    /// This length.
    Exactly(usize),
}

impl Lengths {
    /// Whether `length` is one of them.
    pub fn contain(self, length: usize) -> bool {
        match self {
            Lengths::MultiplesOf(number) => length.is_multiple_of(number),
            Lengths::AtLeast(least) => length >= least,
            Lengths::Exactly(only) => length == only,
        }
    }
}

/// A limit of the sizes that a network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// The side, of an image in pixels or of a grid in tokens.
    pub side: Side,
    /// Its lengths.
    pub lengths: Lengths,
}

/// The grids that odd blocks shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shifted {
    /// All.
    All,
    /// On each axis those that are longer than this window.
    AxesLongerThan(Size),
    /// Those whose shorter side has more tokens than this.
    ShorterSideLongerThan(usize),
}

/// The rule for the grid of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridRule {
    /// The window in tokens, that of the stage's parameters.
    pub window: Size,
    /// The cyclic shift of odd blocks where a grid is shifted; 0 for an axis that never is.
    pub shift: Size,
    /// The grids that are shifted.
    pub shifted: Shifted,
    /// Whether a grid is shifted before it is padded, as in timm.
    pub shifts_first: bool,
    /// The limits of the grid.
    pub limits: Vec<Limit>,
}

impl GridRule {
    /// Whether odd blocks shift some grid.
    pub fn is_shifted(&self) -> bool {
        self.shift != Size::square(0)
    }

    /// Whether the limits leave no grid that must be padded to whole windows.
    pub fn is_never_padded(&self) -> bool {
        let whole = |side, window| {
            let whole = Lengths::MultiplesOf(window);
            window == 1 || self.limits.contains(&Limit { side, lengths: whole })
        };
        whole(Side::Height, self.window.height) && whole(Side::Width, self.window.width)
    }

    /// Whether the limits leave no grid with an odd side.
    pub fn is_always_even(&self) -> bool {
        let even = |side| self.limits.contains(&Limit { side, lengths: Lengths::MultiplesOf(2) });
        even(Side::Height) && even(Side::Width)
    }

    /// The cyclic shift of odd blocks for a grid of `grid` tokens.
    pub fn shift_of(&self, grid: Size) -> Size {
        let unless = |still: bool, shift: usize| if still { 0 } else { shift };
        match self.shifted {
            Shifted::All => self.shift,
            Shifted::AxesLongerThan(window) => Size {
                height: unless(grid.height <= window.height, self.shift.height),
                width: unless(grid.width <= window.width, self.shift.width),
            },
            Shifted::ShorterSideLongerThan(side) => {
                self.shift.map(|shift| unless(grid.height.min(grid.width) <= side, shift))
            }
        }
    }
}

/// The rules of a network for images of any size that it takes. They agree with [`SwinConfig::grids`] for
/// one size, except for the largest image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeRules {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// The treatment of pixels that fill no whole patch.
    pub edge: ImageEdge,
    /// The limits of the image, in pixels.
    pub limits: Vec<Limit>,
    /// The rule of each stage. A merged grid has half the tokens on each side, rounded up.
    pub stages: Vec<GridRule>,
    /// The smallest image, in pixels: with a lower height, or this height and a lower width, it is refused.
    pub smallest: Size,
}

impl SizeRules {
    /// Whether the limits leave no image with pixels that fill no whole patch.
    pub fn takes_whole_patches_only(&self) -> bool {
        let whole = Lengths::MultiplesOf(self.patch);
        self.patch == 1 || self.limits.iter().any(|limit| limit.lengths == whole)
    }

    /// The limits in words, in pixels.
    pub fn in_words(&self) -> String {
        let sides = [Side::Height, Side::Width, Side::Shorter].map(|side| (side, self.lengths(side)));
        let mut parts = Vec::new();
        let [(_, height), (_, width), (_, shorter)] = &sides;
        if height == width {
            parts.extend(height.as_ref().map(|text| format!("height and width: {text}")));
        } else {
            parts.extend(height.as_ref().map(|text| format!("height: {text}")));
            parts.extend(width.as_ref().map(|text| format!("width: {text}")));
        }
        parts.extend(shorter.as_ref().map(|text| format!("the shorter side: {text}")));
        if parts.is_empty() { "any height and width".to_owned() } else { parts.join("; ") }
    }

    /// The lengths of a side in pixels; `None` if it may have any.
    fn lengths(&self, of: Side) -> Option<String> {
        let image = self.limits.iter().map(|limit| (1, *limit));
        let stages = self.stages.iter().enumerate();
        let grids = stages
            .flat_map(|(stage, rule)| rule.limits.iter().map(move |limit| (self.patch << stage, *limit)));
        let (mut multiple, mut least, mut most) = (1, 1, usize::MAX);
        for (pixels, Limit { lengths, .. }) in image.chain(grids).filter(|(_, limit)| limit.side == of) {
            // A grid has a token for each begun square of so many pixels.
            match lengths {
                Lengths::MultiplesOf(number) => multiple = common_multiple(multiple, pixels * number),
                Lengths::AtLeast(count) => least = least.max((count - 1) * pixels + 1),
                Lengths::Exactly(count) => {
                    least = least.max((count - 1) * pixels + 1);
                    most = most.min(count * pixels);
                }
            }
        }
        let (least, most) = (least.next_multiple_of(multiple), most / multiple * multiple);
        let range = match (least, most) {
            (least, most) if least == most => return Some(format!("{least} pixels")),
            (least, most) if most > usize::MAX / 2 => match least == multiple {
                true => String::new(),
                false => format!("at least {least} pixels"),
            },
            (least, most) => format!("{least} to {most} pixels"),
        };
        match (multiple, range.is_empty()) {
            (1, true) => None,
            (1, false) => Some(range),
            (_, true) => Some(format!("multiples of {multiple}")),
            (_, false) => Some(format!("multiples of {multiple}, {range}")),
        }
    }
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

impl SwinConfig {
    /// The rules for images of any size that the network takes.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a network that takes images of one size only: one with an absolute position
    /// embedding, and one whose file does not say which library's rule it follows.
    pub fn size_rules(&self) -> Result<SizeRules, ModelError> {
        let one_size = |reason: &str| {
            let problem = format!("{reason}; the network takes images of {} only", self.image_size);
            Err(ModelError::config("DATA.IMG_SIZE", problem))
        };
        if self.window_policy == WindowPolicy::ShrinkAndPad {
            return one_size("the file does not say which library's rule for windows the network follows");
        }
        if self.ape && self.ape_sizes == PositionSizes::Own {
            return one_size("absolute_pos_embed has an embedding for each token of one grid");
        }
        if self.ape {
            let problem = "absolute_pos_embed is interpolated for the size of the image, which these rules do not do; take one size";
            return Err(ModelError::config("DATA.IMG_SIZE", problem));
        }
        let own = self.deciding_grids(self.image_size);
        let stages = self.stages();
        let stages = stages.iter().zip(own).map(|(stage, own)| {
            let mut rule = self.window_policy.rules(self.window_size.of(stage.index), stage.window, own);
            if self.window_policy == WindowPolicy::Microsoft && stage.merge {
                rule.limits.extend(both(|_| Lengths::MultiplesOf(2)));
            }
            if stage.depth == 0 {
                rule.limits.clear();
            }
            rule
        });
        let edge = self.window_policy.image_edge();
        let limits = match edge {
            ImageEdge::Cut => both(|_| Lengths::AtLeast(self.patch_size)).to_vec(),
            _ if self.patch_size > 1 && !self.window_policy.takes_any_image() => {
                both(|_| Lengths::MultiplesOf(self.patch_size)).to_vec()
            }
            _ => Vec::new(),
        };
        let stages = stages.collect();
        Ok(SizeRules { patch: self.patch_size, edge, limits, stages, smallest: self.smallest_image() })
    }

    /// The least height that the network takes beside its own width, and the least width beside this height.
    fn smallest_image(&self) -> Size {
        let own = self.image_size;
        let takes = |size: Size| self.grids(size).is_ok();
        let least = |own: usize, size: &dyn Fn(usize) -> Size| {
            (1..own).find(|&side| takes(size(side))).unwrap_or(own)
        };
        let height = least(own.height, &|height| Size { height, width: own.width });
        Size { height, width: least(own.width, &|width| Size { height, width }) }
    }
}

/// A limit for each axis.
fn both(lengths: impl Fn(Side) -> Lengths) -> [Limit; 2] {
    [Side::Height, Side::Width].map(|side| Limit { side, lengths: lengths(side) })
}

impl WindowPolicy {
    /// The rule of a stage with windows of `window` tokens, whose parameters are for windows of `own_window`
    /// tokens. At the network's own image size the grid is `own`.
    fn rules(self, window: Size, own_window: Size, own: Size) -> GridRule {
        let at_least = both(|side| Lengths::AtLeast(side.of(own_window)));
        let shrunk = own_window.zip(window, |own, window| usize::from(own < window));
        let longer = Shifted::ShorterSideLongerThan(own_window.height);
        let shorter = |lengths| vec![Limit { side: Side::Shorter, lengths }];
        let (shifted, limits) = match self {
            WindowPolicy::Microsoft if shrunk.height == 0 => {
                (longer, both(|side| Lengths::MultiplesOf(side.of(own_window))).to_vec())
            }
            WindowPolicy::Microsoft => {
                let mut limits = shorter(Lengths::Exactly(own_window.height));
                limits.extend(both(|side| Lengths::MultiplesOf(side.of(own_window))));
                (longer, limits)
            }
            WindowPolicy::HuggingFace | WindowPolicy::ShrinkAndPad if shrunk.height == 0 => {
                (longer, shorter(Lengths::AtLeast(own_window.height)))
            }
            WindowPolicy::HuggingFace | WindowPolicy::ShrinkAndPad => {
                (longer, shorter(Lengths::Exactly(own_window.height)))
            }
            WindowPolicy::Timm => {
                let lengths = |side: Side| match side.of(shrunk) {
                    0 => Lengths::AtLeast(side.of(own_window)),
                    _ => Lengths::Exactly(side.of(own_window)),
                };
                (Shifted::AxesLongerThan(own_window), both(lengths).to_vec())
            }
            WindowPolicy::Mmpretrain => (longer, at_least.to_vec()),
            WindowPolicy::Pad => (Shifted::AxesLongerThan(own_window), Vec::new()),
            WindowPolicy::Restoration => {
                (Shifted::All, both(|side| Lengths::MultiplesOf(side.of(own_window))).to_vec())
            }
            WindowPolicy::TimmAnySize
            | WindowPolicy::TimmAlwaysPartition
            | WindowPolicy::HuggingFaceV2
            | WindowPolicy::Detection => (Shifted::All, Vec::new()),
        };
        let exact = |of| {
            limits
                .iter()
                .any(|limit: &Limit| limit.side == of && matches!(limit.lengths, Lengths::Exactly(_)))
        };
        let unless = |still: bool, side: usize| if still { 0 } else { side / 2 };
        let shift = match shifted {
            Shifted::All => self.rule(window, own, own).shift,
            // One window covers a grid that has its length.
            Shifted::ShorterSideLongerThan(_) => own_window.map(|side| unless(exact(Side::Shorter), side)),
            Shifted::AxesLongerThan(_) => Size {
                height: unless(exact(Side::Height), own_window.height),
                width: unless(exact(Side::Width), own_window.width),
            },
        };
        GridRule { window: own_window, shift, shifted, shifts_first: self.shifts_first(), limits }
    }
}
