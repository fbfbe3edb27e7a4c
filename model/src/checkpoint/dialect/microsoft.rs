//! Microsoft's Swin Transformer repository, and FasterTransformer's calibrated checkpoints, which have the same names.

use super::Dialect;
use super::table::{NO_TRUNK, SPLIT_BIAS, Table};
use crate::arch::WindowPolicy;

pub(super) const MICROSOFT: Table = Table {
    dialect: Dialect::Microsoft,
    names: &["microsoft", "ms"],
    anchor: "patch_embed.proj",
    marks: &["layers.0.downsample.{*}"],
    trunks: NO_TRUNK,
    groups: &[SPLIT_BIAS],
    dropped: &[],
    window_policies: [WindowPolicy::Microsoft; 2],
    other_policies: &[],
    mask: [-100.0, -100.0],
};

/// Ranges (`_amax`) stand among the parameters; [`import_ft_amax`](crate::import_ft_amax) reads them.
pub(super) const FASTER_TRANSFORMER: Table = Table {
    dialect: Dialect::FasterTransformer,
    names: &["ft", "fastertransformer"],
    marks: &["{*}_quantizer._amax"],
    dropped: &["{*}_quantizer.{*}"],
    ..MICROSOFT
};
