//! The absolute position embedding, interpolated for the sizes of images that were used last.

use std::sync::{Arc, Mutex};

use swinq_model::Size;
use swinq_numerics::reference::resize_bicubic;

use super::lanes::lock;

/// The most values that are kept of embeddings for other grids than the network's own; that of the last grid
/// is kept in any case. Interpolation takes some percent of the time of an image.
const MOST_VALUES: usize = 1 << 24;

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
                let mut total = 0;
                resized.retain(|(size, values)| {
                    total += values.len();
                    *size == grid || total <= MOST_VALUES
                });
            }
        }
        Arc::clone(&resized[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_of_the_last_grids_are_kept_within_a_bound() {
        let own = Size::new(2, 3);
        let table = PositionTable::new(own, &[1.0; 2 * 3 * 64]);
        assert!(Arc::ptr_eq(&table.of(own), &table.values));
        let (small, large) = (Size::new(4, 4), Size::square(512));
        let first = table.of(small);
        assert!(Arc::ptr_eq(&table.of(small), &first) && first.len() == 16 * 64);
        // 512 x 512 x 64 values are the bound, and leave no room for the other.
        let kept = table.of(large);
        assert!(Arc::ptr_eq(&table.of(large), &kept));
        assert!(!Arc::ptr_eq(&table.of(small), &first));
        assert_eq!(lock(&table.resized).len(), 1);
    }
}
