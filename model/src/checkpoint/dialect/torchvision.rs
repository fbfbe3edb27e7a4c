//! torchvision: modules of one sequence, where blocks and merging of patches alternate.

use super::table::{Group, NO_TRUNK, Place, SEQUENTIAL_HEAD, Table, reader, row, same};
use super::{ClassOrder, Dialect};
use crate::arch::{PositionSizes, WindowPolicy};
use crate::family::Family;
use crate::pixels::Orientation;

pub(super) const TORCHVISION: Table = Table {
    dialect: Dialect::TorchVision,
    names: &["torchvision"],
    within: &[],
    anchor: "features.0.0",
    marks: &[],
    trunks: NO_TRUNK,
    groups: &[
        SEQUENTIAL_HEAD,
        Group {
            place: Place::Trunk,
            version: None,
            ours: "",
            theirs: "features.",
            rows: &[
                row("patch_embed.proj.{*}", "0.0.{*}"),
                row("patch_embed.norm.{*}", "0.2.{*}"),
                row("layers.{s}.downsample.{*}", "{2s+2}.{*}"),
            ],
        },
        Group {
            place: Place::Trunk,
            version: None,
            ours: "layers.{s}.blocks.{b}.",
            theirs: "features.{2s+1}.{b}.",
            rows: &[
                row("mlp.fc1.{*}", "mlp.0.{*}"),
                row("mlp.fc2.{*}", "mlp.3.{*}"),
                same("norm1.{*}"),
                same("attn.{*}"),
                same("norm2.{*}"),
            ],
        },
    ],
    backbone: &[],
    dropped: &[],
    window_policies: [WindowPolicy::Pad, WindowPolicy::Pad],
    other_policies: &[],
    readers: &[reader([WindowPolicy::Pad, WindowPolicy::Pad])],
    mask: [-100.0, -100.0],
    position_sizes: [PositionSizes::Own; 2],
    orientations: [Orientation::Stored; 2],
    class_order: ClassOrder::Text,
    preprocessing: Some(Family::Torchvision),
};
