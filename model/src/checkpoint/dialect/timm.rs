//! timm 0.9 and later: the merging of patches stands at the start of the next stage. Lists of features
//! (`features_only=True`) have the stages as attributes of their own, `layers_0`.

use super::table::{Group, NO_TRUNK, Place, SPLIT_BIAS, Table, reader, row, third};
use super::{ClassOrder, Dialect};
use crate::arch::{PositionSizes, SwinVersion, WindowPolicy};
use crate::family::Family;
use crate::pixels::Orientation;

pub(super) const TIMM: Table = Table {
    dialect: Dialect::Timm,
    names: &["timm"],
    within: &[],
    anchor: "patch_embed.proj",
    marks: &["layers.1.downsample.{*}", "head.fc.{*}", "layers_{s}.blocks.{b}.{*}"],
    trunks: NO_TRUNK,
    groups: &[
        SPLIT_BIAS,
        Group {
            place: Place::Trunk,
            version: None,
            ours: "",
            theirs: "",
            rows: &[
                row("layers.{s}.downsample.{*}", "layers.{s+1}.downsample.{*}"),
                row("head.{*}", "head.fc.{b}.{*}").alias(),
                row("head.{*}", "head.fc.{*}"),
                row("layers.{s}.downsample.{*}", "layers_{s+1}.downsample.{*}").alias(),
            ],
        },
        Group {
            place: Place::Trunk,
            version: Some(SwinVersion::V2),
            ours: "layers.{s}.blocks.{b}.attn.",
            theirs: "layers_{s}.blocks.{b}.attn.",
            rows: &[third(0, "qkv.bias", "q_bias").alias(), third(2, "qkv.bias", "v_bias").alias()],
        },
        Group {
            place: Place::Trunk,
            version: None,
            ours: "layers.{s}.blocks.{b}.",
            theirs: "layers_{s}.blocks.{b}.",
            rows: &[row("{*}", "{*}").alias()],
        },
    ],
    backbone: &[],
    dropped: &[],
    window_policies: [WindowPolicy::Timm, WindowPolicy::Timm],
    other_policies: &[WindowPolicy::TimmAnySize, WindowPolicy::TimmAlwaysPartition],
    readers: &[reader([WindowPolicy::Timm, WindowPolicy::Timm])],
    mask: [-100.0, -100.0],
    position_sizes: [PositionSizes::Own; 2],
    orientations: [Orientation::Stored; 2],
    class_order: ClassOrder::Natural,
    preprocessing: Some(Family::Timm),
};
