//! Microsoft's Swin Transformer repository, and what has the same names: the backbones of detectors
//! (Microsoft's own, detectron2's, Mask2Former, Grounding DINO, BiRefNet), FasterTransformer's calibrated
//! checkpoints, timm before 0.9.

use super::table::{Group, NO_TRUNK, Place, Reader, SEQUENTIAL_HEAD, SPLIT_BIAS, Table, reader, same};
use super::{ClassOrder, Dialect};
use crate::arch::{PositionSizes, WindowPolicy};
use crate::pixels::Orientation;

pub(super) const MICROSOFT: Table = Table {
    dialect: Dialect::Microsoft,
    names: &["microsoft", "ms"],
    within: &[],
    anchor: "patch_embed.proj",
    marks: &["layers.0.downsample.{*}"],
    trunks: NO_TRUNK,
    groups: &[SPLIT_BIAS, SEQUENTIAL_HEAD],
    backbone: &[Group {
        place: Place::Trunk,
        version: None,
        ours: "",
        theirs: "",
        rows: &[same("norm{s}.{*}"), same("absolute_pos_embed").map()],
    }],
    dropped: &[],
    window_policies: [WindowPolicy::Microsoft; 2],
    other_policies: &[],
    readers: &[
        Reader { marks: &["norm{s}.{*}"], window_policies: [WindowPolicy::Detection; 2] },
        // Detectors start with Microsoft's classifiers of the first version. No detector reads those of the
        // second.
        reader([WindowPolicy::Detection, WindowPolicy::Microsoft]),
    ],
    mask: [-100.0, -100.0],
    position_sizes: [PositionSizes::Own; 2],
    // Backbones are those of mmdetection, mmsegmentation and detectron2.
    orientations: [Orientation::Stored, Orientation::Exif],
    class_order: ClassOrder::Text,
    preprocessing: None,
};

/// timm before 0.9, inside of the models that depend on it: those of MiDaS and of Donut's authors.
pub(super) const OLD_TIMM: Table = Table {
    dialect: Dialect::OldTimm,
    names: &["old-timm", "timm-0.8"],
    within: &["pretrained.model.", "encoder.model."],
    backbone: &[],
    readers: &[reader([WindowPolicy::Microsoft; 2])],
    orientations: [Orientation::Stored; 2],
    class_order: ClassOrder::Natural,
    ..MICROSOFT
};

/// Ranges (`_amax`) stand among the parameters; [`import_ft_amax`](crate::import_ft_amax) reads them.
pub(super) const FASTER_TRANSFORMER: Table = Table {
    dialect: Dialect::FasterTransformer,
    names: &["ft", "fastertransformer"],
    marks: &["{*}_quantizer._amax"],
    dropped: &["{*}_quantizer.{*}"],
    ..MICROSOFT
};
