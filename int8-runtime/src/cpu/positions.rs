//! The absolute position embedding, interpolated for the sizes of images that were used last.

use std::sync::{Arc, Mutex};

use swinq_model::Size;
use swinq_numerics::reference::resize_bicubic;

use super::lanes::lock;

/// Number of grids beside the network's own whose embedding is kept.
const SIZES: usize = 16;

/// The absolute position embedding of a network, a row of values for each token.
pub(super) struct PositionTable {
    /// The grid of the network's own image size.
    own: Size,
    values: Arc<[f32]>,
    /// For other grids, the last used first.
    resized: Mutex<Vec<(Size, Arc<[f32]>)>>,
}

impl PositionTable {
    /// The embedding `values` of the grid `own`.
    pub(super) fn new(own: Size, values: &[f32]) -> PositionTable {
        PositionTable { own, values: values.into(), resized: Mutex::default() }
    }

    /// The embedding for the tokens of `grid`.
    pub(super) fn of(&self, grid: Size) -> Arc<[f32]> {
        if grid == self.own {
            return Arc::clone(&self.values);
        }
        let mut resized = lock(&self.resized);
        match resized.iter().position(|(size, _)| *size == grid) {
            Some(at) => resized[..=at].rotate_right(1),
            None => {
                resized.insert(0, (grid, resize_bicubic(&self.values, self.own, grid).into()));
                resized.truncate(SIZES);
            }
        }
        Arc::clone(&resized[0].1)
    }
}
