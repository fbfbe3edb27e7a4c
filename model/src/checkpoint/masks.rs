//! The sizes of images that buffers `attn_mask` state. Microsoft's code, and timm before 0.9, store the mask
//! of shifted windows for the images of the training.

use super::network::Network;
use crate::arch::{StageOutput, SwinConfig};

/// A sentence on a mask in `network` of another number of windows, or of their tokens, than images of the
/// size of `config` have in its stage.
pub(super) fn remark(network: &Network<'_>, config: &SwinConfig) -> Option<String> {
    let grids = config.own_grids();
    let masks = network.tensors.iter().filter(|(name, _)| name.ends_with(".attn_mask"));
    masks.into_iter().find_map(|(name, mask)| {
        let (ours, _) = network.naming.renamed(name);
        let stage: usize = ours.strip_prefix("layers.")?.split('.').next()?.parse().ok()?;
        let (grid, &[windows, tokens, _]) = (grids.get(stage)?, mask.shape()) else { return None };
        if tokens != grid.window.area() {
            return Some(format!(
                "its buffer `{name}`, which is not read, is of windows of {tokens} tokens, and those of the model have {}",
                grid.window.area()
            ));
        }
        if windows == grid.windows() {
            return None;
        }
        let patches = |side: usize| (windows.isqrt() * side * config.patch_size) << stage;
        let size = grid.window.map(patches);
        let size = if windows.isqrt().pow(2) == windows { size.to_string() } else { "another size".to_owned() };
        Some(format!(
            "its buffer `{name}` is of {windows} windows, and images of {} have {} in {}: it was saved for images of {size} \
             (DATA.IMG_SIZE)",
            config.image_size,
            grid.windows(),
            StageOutput::usual_name(stage)
        ))
    })
}
