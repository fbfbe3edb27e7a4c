//! Naming conventions of checkpoints: a table for each, in a file of its own.

mod hugging_face;
mod microsoft;
mod naming;
mod openmmlab;
mod pattern;
mod table;
mod timm;
mod torchvision;

use std::fmt;
use std::str::FromStr;

use crate::arch::{PositionSizes, SwinVersion, Task, WindowPolicy};
use crate::error::ModelError;
use crate::family::Family;
use crate::pixels::Orientation;
pub(super) use naming::{FoundNetwork, Naming, Target, networks, placed};
use table::Table;
pub use table::Values;

/// The naming convention of a checkpoint's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Microsoft's Swin Transformer repository: `layers.{s}.downsample`, `head`.
    Microsoft,
    /// timm 0.9 and later: the downsample belongs to the next stage, and the classifier is `head.fc`. Earlier
    /// versions of timm use Microsoft's names.
    Timm,
    /// Hugging Face transformers: separate tensors for q, k and v; the classifier is `classifier`.
    HuggingFace,
    /// torchvision: `features.*`.
    TorchVision,
    /// OpenMMLab's mmpretrain: `backbone.stages.*`, `attn.w_msa`, `ffn.layers`; the classifier is `head.fc`.
    OpenMmLab,
    /// FasterTransformer's calibrated checkpoints: Microsoft's names, and ranges in `*_quantizer._amax`.
    FasterTransformer,
    /// timm before 0.9 inside of MiDaS and Donut: Microsoft's names under `pretrained.model.` or
    /// `encoder.model.`. As backbones, these networks take images of the sizes that Microsoft's classifiers
    /// take.
    OldTimm,
}

/// A library's order of class folders, which is that of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassOrder {
    /// That of the names as texts: torchvision's `ImageFolder`, which Microsoft and transformers use.
    Text,
    /// That of timm's `natural_key`, which compares numbers in names by their values and ignores case: 10
    /// follows 2.
    Natural,
}

/// The tables. Of those with the same anchor, the first with a mark among the names is detected, else
/// Microsoft's.
static TABLES: [Table; 7] = [
    hugging_face::HUGGING_FACE,
    torchvision::TORCHVISION,
    openmmlab::OPENMMLAB,
    microsoft::FASTER_TRANSFORMER,
    microsoft::OLD_TIMM,
    microsoft::MICROSOFT,
    timm::TIMM,
];

/// The norm of the output of a stage, in our names.
const OUTPUT_NORM: &str = "norm{s}.{*}";

/// Last components of names that are buffers in every dialect. They are rebuilt.
const BUFFERS: [&str; 3] = ["relative_position_index", "relative_coords_table", "attn_mask"];

impl Dialect {
    fn table(self) -> &'static Table {
        TABLES.iter().find(|table| table.dialect == self).expect("every dialect has a table")
    }

    /// The names of all dialects, as the program prints them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLES.iter().map(|table| table.names[0])
    }

    /// The rule of the dialect's original code for windows of classifiers.
    pub fn window_policy(self, version: SwinVersion) -> WindowPolicy {
        self.table().window_policies[(version == SwinVersion::V2) as usize]
    }

    /// The rule of the library that reads images for networks of `task` with these names.
    pub fn orientation(self, task: Task) -> Orientation {
        self.table().orientations[(task == Task::Features) as usize]
    }

    /// The order of class folders in the dialect's library.
    pub fn class_order(self) -> ClassOrder {
        self.table().class_order
    }

    /// The family whose preprocessing the dialect's library has for its published models, if it is one of
    /// ours.
    pub fn preprocessing(self) -> Option<Family> {
        self.table().preprocessing
    }

    /// The image sizes that a learned absolute position embedding fits in the dialect's library, if its
    /// places are a square.
    pub(super) fn position_sizes(self, version: SwinVersion) -> PositionSizes {
        self.table().position_sizes[(version == SwinVersion::V2) as usize]
    }

    /// Added to the logits of masked tokens by the dialect's original code.
    pub(super) fn mask(self, version: SwinVersion) -> f64 {
        self.table().mask[(version == SwinVersion::V2) as usize]
    }
}

/// The stage whose output the parameter `ours` norms.
pub(super) fn output_norm(ours: &str) -> Option<usize> {
    pattern::matches(OUTPUT_NORM, ours, 0).map(|found| found.stage)
}

/// Whether the whole `name` follows `pattern` ([`pattern`]).
pub(super) fn follows(pattern: &str, name: &str) -> bool {
    pattern::matches(pattern, name, 0).is_some()
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.table().names[0])
    }
}

impl FromStr for Dialect {
    type Err = ModelError;

    /// Parses the names that [`Display`](fmt::Display) writes, and the full names.
    fn from_str(text: &str) -> Result<Dialect, ModelError> {
        let name = text.to_ascii_lowercase();
        let found = TABLES.iter().find(|table| table.names.contains(&name.as_str()));
        found.map(|table| table.dialect).ok_or_else(|| {
            let names: Vec<&str> = Dialect::names().collect();
            ModelError::config("dialect", format!("`{text}` is none of {}", names.join(", ")))
        })
    }
}
