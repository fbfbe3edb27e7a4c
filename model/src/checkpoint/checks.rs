//! Contradictions between the tensors of a checkpoint and its configuration.

use swinq_numerics::Size;

use crate::arch::{SwinConfig, SwinVersion, Windows};
use crate::error::ModelError;
use crate::params;
use crate::tensor::StateDict;

/// Refuses a checkpoint of another version of Swin than the configuration's.
pub(super) fn version(config: &SwinConfig, found: SwinVersion) -> Result<(), ModelError> {
    if config.version == found {
        return Ok(());
    }
    let [found, wanted] = [found, config.version].map(|version| match version {
        SwinVersion::V1 => ("Swin V1", "swin"),
        SwinVersion::V2 => ("Swin V2", "swinv2"),
    });
    let problem = format!(
        "the checkpoint is a {}, but the configuration {} is of a {} ({}); use a configuration of type `{}`",
        found.0, config.name, wanted.0, wanted.1, found.1
    );
    Err(ModelError::config("MODEL.TYPE", problem))
}

/// Refuses an absolute position embedding of other places than those of the tokens.
pub(super) fn places(config: &SwinConfig, places: Option<Size>) -> Result<(), ModelError> {
    let grid = config.own_grids()[0].size;
    let Some(places) = places.filter(|&places| config.ape && places != grid) else { return Ok(()) };
    let problem = format!(
        "has {places} places, but {} at input size {} has {grid} tokens; use the IMG_SIZE that the checkpoint was trained \
         with",
        config.name,
        config.image_size.short()
    );
    Err(ModelError::tensor("absolute_pos_embed", problem))
}

/// Refuses bias tables of another window size than the configuration's, because tables are not resized.
pub(super) fn tables(config: &SwinConfig, tensors: &StateDict) -> Result<(), ModelError> {
    for (name, shape) in params::parameters(config) {
        if !name.ends_with(".relative_position_bias_table") {
            continue;
        }
        let Some(rows) = tensors.get(&name).and_then(|table| table.shape.first().copied()) else { continue };
        if rows == shape[0] {
            continue;
        }
        if let Some(problem) = several_windows(tensors) {
            return Err(ModelError::tensor(name, problem));
        }
        let problem = format!(
            "has {rows} rows (window {}), but {} at input size {} uses window {} there ({} rows); a bias table is not \
             resized: use the WINDOW_SIZE and IMG_SIZE that the checkpoint was trained with",
            window(rows),
            config.name,
            config.image_size.short(),
            window(shape[0]),
            shape[0]
        );
        return Err(ModelError::tensor(name, problem));
    }
    Ok(())
}

/// The problem of a checkpoint whose stages have windows of their own, which its description does not state.
pub(super) fn several_windows(tensors: &StateDict) -> Option<String> {
    let windows = windows(tensors);
    // Late stages may have smaller windows than the first, because their grids are small.
    windows.windows(2).any(|pair| pair[0] < pair[1]).then(|| {
        let sizes = windows.iter().copied().map(Size::square).collect();
        let stated = Windows::of_stages(sizes).expect("there are two windows");
        format!(
            "the windows of the stages are {windows:?}: each has its own, as in a Swin-S3 (swin_s3); give timm's folder with its \
             config.json, or --cfg with MODEL.SWIN.WINDOW_SIZE \"{stated}\""
        )
    })
}

/// The window of a bias table with so many rows.
fn window(rows: usize) -> usize {
    rows.isqrt().div_ceil(2)
}

/// The window of each stage, from the bias table of its first block.
pub(super) fn windows(tensors: &StateDict) -> Vec<usize> {
    let table = |stage| tensors.get(&format!("layers.{stage}.blocks.0.attn.relative_position_bias_table"));
    (0..).map_while(table).filter_map(|table| table.shape.first().map(|&rows| window(rows))).collect()
}
