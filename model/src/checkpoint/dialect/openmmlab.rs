//! OpenMMLab (mmpretrain, and the detectors of mmdetection, mmsegmentation and BEVFusion): attention in
//! `attn.w_msa`, the MLP in `ffn.layers`, norms numbered by their stages. Patches are merged by
//! `torch.nn.Unfold`, so that the columns of merging have another order than in all other dialects. Nothing
//! but the names tells these files apart.

use super::table::{Group, Place, Reader, Table, reader, row, same, third};
use super::{ClassOrder, Dialect};
use crate::arch::{PositionSizes, SwinVersion, WindowPolicy};
use crate::pixels::Orientation;

pub(super) const OPENMMLAB: Table = Table {
    dialect: Dialect::OpenMmLab,
    names: &["openmmlab", "mmpretrain", "mmlab"],
    within: &[],
    anchor: "patch_embed.projection",
    marks: &[],
    trunks: &[(SwinVersion::V1, "backbone."), (SwinVersion::V2, "backbone.")],
    groups: &[
        Group {
            place: Place::Trunk,
            version: None,
            ours: "",
            theirs: "",
            rows: &[
                row("patch_embed.proj.{*}", "patch_embed.projection.{*}"),
                same("patch_embed.norm.{*}"),
                same("absolute_pos_embed"),
                row("norm.{*}", "norm{last}.{*}"),
            ],
        },
        Group {
            place: Place::Root,
            version: None,
            ours: "",
            theirs: "",
            rows: &[row("head.{*}", "head.fc.{b}.{*}").alias(), row("head.{*}", "head.fc.{*}")],
        },
        Group {
            place: Place::Trunk,
            version: Some(SwinVersion::V1),
            ours: "layers.{s}.downsample.",
            theirs: "stages.{s}.downsample.",
            rows: &[same("reduction.{*}").unfolded(), same("norm.{*}").unfolded()],
        },
        // The norm follows the reduction, whose rows have no order.
        Group {
            place: Place::Trunk,
            version: Some(SwinVersion::V2),
            ours: "layers.{s}.downsample.",
            theirs: "stages.{s+1}.downsample.",
            rows: &[same("reduction.{*}").unfolded(), same("norm.{*}")],
        },
        Group {
            place: Place::Trunk,
            version: Some(SwinVersion::V2),
            ours: "layers.{s}.blocks.{b}.attn.",
            theirs: "stages.{s}.blocks.{b}.attn.w_msa.",
            rows: &[third(0, "qkv.bias", "q_bias"), third(2, "qkv.bias", "v_bias")],
        },
        Group {
            place: Place::Trunk,
            version: None,
            ours: "layers.{s}.blocks.{b}.",
            theirs: "stages.{s}.blocks.{b}.",
            rows: &[
                same("norm1.{*}"),
                row("attn.{*}", "attn.w_msa.{*}"),
                same("norm2.{*}"),
                row("mlp.fc1.{*}", "ffn.layers.0.0.{*}"),
                row("mlp.fc2.{*}", "ffn.layers.1.{*}"),
            ],
        },
    ],
    backbone: &[Group {
        place: Place::Trunk,
        version: None,
        ours: "",
        theirs: "",
        rows: &[same("norm{s}.{*}")],
    }],
    dropped: &[],
    window_policies: [WindowPolicy::Mmpretrain, WindowPolicy::Mmpretrain],
    other_policies: &[WindowPolicy::Detection],
    readers: &[
        Reader { marks: &["head.fc.{*}"], window_policies: [WindowPolicy::Mmpretrain; 2] },
        Reader {
            marks: &["norm{s}.{*}", "backbone.norm{s}.{*}"],
            window_policies: [WindowPolicy::Detection, WindowPolicy::Mmpretrain],
        },
        reader([WindowPolicy::Mmpretrain; 2]),
    ],
    mask: [-100.0, -100.0],
    position_sizes: [PositionSizes::Own; 2],
    orientations: [Orientation::Exif; 2],
    class_order: ClassOrder::Text,
    preprocessing: None,
};
