//! What every backend expands ahead of time.

use swinq_model::{HostTensor, Stage};

/// The bias table `[(2w-1)^2, heads]` as `[heads, n, n]`.
pub(crate) fn expand_bias(stage: &Stage, table: &HostTensor) -> Vec<f32> {
    let index = stage.relative_position_index();
    let of_head = |head| index.iter().map(move |&row| table.data[row * stage.heads + head]);
    (0..stage.heads).flat_map(of_head).collect()
}
