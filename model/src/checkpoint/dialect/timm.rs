//! timm 0.9 and later: the merging of patches stands at the start of the next stage.

use super::Dialect;
use super::table::{Group, NO_TRUNK, Place, SPLIT_BIAS, Table, row};
use crate::arch::{Stage, SwinConfig, WindowPolicy};
use crate::error::ModelError;

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
    window_policy: WindowPolicy::ShrinkAndPad,
    mask: [-100.0, -100.0],
    check: no_shifted_padding,
};

/// Refuses grids that would be padded and shifted: timm shifts before it pads, so its shifted windows hold other tokens than
/// those of [`Stage::partition`].
fn no_shifted_padding(config: &SwinConfig) -> Result<(), ModelError> {
    let shifted_padding = |s: &&Stage| s.shift > 0 && s.depth > 1 && s.padded != s.grid;
    let stages = config.stages();
    let Some(stage) = stages.iter().find(shifted_padding) else { return Ok(()) };
    let problem = format!(
        "window {} does not divide the {}x{} tokens of stage {}; timm shifts before it pads, which is not supported; use \
         an input size whose token grids are multiples of the window",
        stage.window, stage.grid, stage.grid, stage.index
    );
    Err(ModelError::config(config.key("WINDOW_SIZE"), problem))
}
