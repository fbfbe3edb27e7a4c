//! timm 0.9 and later: the merging of patches stands at the start of the next stage.

use super::Dialect;
use super::table::{Group, NO_TRUNK, Place, SPLIT_BIAS, Table, row};
use crate::arch::WindowPolicy;

pub(super) const TIMM: Table = Table {
    dialect: Dialect::Timm,
    names: &["timm"],
    anchor: "patch_embed.proj",
    marks: &["layers.1.downsample.{*}", "head.fc.{*}"],
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
                row("head.{*}", "head.fc.{*}"),
            ],
        },
    ],
    dropped: &[],
    window_policies: [WindowPolicy::Timm, WindowPolicy::Timm],
    other_policies: &[WindowPolicy::TimmAnySize],
    mask: [-100.0, -100.0],
};
