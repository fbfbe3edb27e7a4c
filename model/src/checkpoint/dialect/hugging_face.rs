//! Hugging Face transformers: query, key and value stand apart. Saved files and the modules of transformers 5
//! have different names; both are read. Backbones have the norms of their outputs in `hidden_states_norms`,
//! by the names of the stages or, in MaskFormer's, by their numbers.

use super::table::{Group, Place, Reader, Row, Table, reader, row, same, third};
use super::{ClassOrder, Dialect};
use crate::arch::{PositionSizes, SwinVersion, WindowPolicy};
use crate::family::Family;
use crate::pixels::Orientation;

pub(super) const HUGGING_FACE: Table = Table {
    dialect: Dialect::HuggingFace,
    names: &["hf", "huggingface", "transformers"],
    within: &[],
    anchor: "embeddings.patch_embeddings.projection",
    marks: &[],
    trunks: &[(SwinVersion::V1, "swin."), (SwinVersion::V2, "swinv2."), (SwinVersion::V1, "model.")],
    groups: &[
        Group {
            place: Place::Trunk,
            version: None,
            ours: "",
            theirs: "",
            rows: &[
                row("patch_embed.proj.{*}", "embeddings.patch_embeddings.projection.{*}"),
                row("patch_embed.norm.{*}", "embeddings.norm.{*}"),
                row("absolute_pos_embed", "embeddings.position_embeddings"),
                row("layers.{s}.downsample.{*}", "encoder.layers.{s}.downsample.{*}"),
                row("norm.{*}", "layernorm.{*}"),
            ],
        },
        Group {
            place: Place::Root,
            version: None,
            ours: "",
            theirs: "",
            rows: &[row("head.{*}", "classifier.{b}.{*}").alias(), row("head.{*}", "classifier.{*}")],
        },
        Group {
            place: Place::Trunk,
            version: None,
            ours: "layers.{s}.blocks.{b}.",
            theirs: "encoder.layers.{s}.blocks.{b}.",
            rows: BLOCK,
        },
    ],
    backbone: &[
        Group { place: Place::Root, version: None, ours: "", theirs: "", rows: OUTPUTS },
        Group { place: Place::Trunk, version: None, ours: "", theirs: "", rows: OUTPUTS },
    ],
    dropped: &[],
    window_policies: [WindowPolicy::HuggingFace, WindowPolicy::HuggingFaceV2],
    other_policies: &[],
    readers: &[
        // Donut's networks end without a norm.
        Reader {
            marks: &[
                "hidden_states_norms.{*}",
                "layernorm.{*}",
                "swin.layernorm.{*}",
                "model.hidden_states_norms.{*}",
                "model.layernorm.{*}",
            ],
            window_policies: [WindowPolicy::Detection, WindowPolicy::HuggingFaceV2],
        },
        reader([WindowPolicy::HuggingFace, WindowPolicy::HuggingFaceV2]),
    ],
    // The code for Swin V2 adds its mask twice.
    mask: [-100.0, -200.0],
    position_sizes: [PositionSizes::BicubicWholePatches, PositionSizes::Own],
    orientations: [Orientation::Exif; 2],
    class_order: ClassOrder::Text,
    preprocessing: Some(Family::HuggingFace),
};

/// Norms of outputs. Backbones of transformers 5 save a final norm, which they do not use, under the name
/// that it has in classifiers.
const OUTPUTS: &[Row] = &[
    row("norm{s}.{*}", "hidden_states_norms.stage{s+1}.{*}"),
    row("norm{s}.{*}", "hidden_states_norms.{s}.{*}").alias(),
    row("norm.{*}", "swin.layernorm.{*}").alias(),
];

const BLOCK: &[Row] = &[
    row("norm1.{*}", "layernorm_before.{*}"),
    row("norm2.{*}", "layernorm_after.{*}"),
    third(0, "attn.qkv.{*}", "attention.self.query.{*}"),
    third(1, "attn.qkv.{*}", "attention.self.key.{*}"),
    third(2, "attn.qkv.{*}", "attention.self.value.{*}"),
    row("attn.proj.{*}", "attention.output.dense.{*}"),
    row("attn.relative_position_bias_table", "attention.self.relative_position_bias_table"),
    row("attn.logit_scale", "attention.self.logit_scale"),
    row("attn.cpb_mlp.{*}", "attention.self.continuous_position_bias_mlp.{*}"),
    row("mlp.fc1.{*}", "intermediate.dense.{*}"),
    row("mlp.fc2.{*}", "output.dense.{*}"),
    third(0, "attn.qkv.{*}", "attention.q_proj.{*}").alias(),
    third(1, "attn.qkv.{*}", "attention.k_proj.{*}").alias(),
    third(2, "attn.qkv.{*}", "attention.v_proj.{*}").alias(),
    row("attn.proj.{*}", "attention.o_proj.{*}").alias(),
    row("attn.relative_position_bias_table", "attention.relative_position_bias.relative_position_bias_table")
        .alias(),
    same("mlp.fc1.{*}").alias(),
    same("mlp.fc2.{*}").alias(),
];
