//! A stage: the sizes that its parameters depend on.

use swinq_numerics::{MASKS, Size};

/// A stage, as far as its parameters depend on it. The grid of its tokens depends on the image:
/// [`Grid`](super::Grid).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Index of the stage.
    pub index: usize,
    /// Blocks in the stage.
    pub depth: usize,
    /// Channels.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden width of the MLP.
    pub hidden: usize,
    /// The window that the stage uses, in tokens.
    pub window: Size,
    /// The cyclic shift of odd blocks on an axis that is shifted, in tokens. The image decides which axes
    /// are.
    pub shift: Size,
    /// Whether patch merging follows the stage: true for every stage but the last.
    pub merge: bool,
}

impl Stage {
    /// Channels of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Tokens in one window.
    pub fn window_tokens(&self) -> usize {
        self.window.area()
    }

    /// Rows of the table of relative position biases: `(2 height - 1) (2 width - 1)` of the window.
    pub fn bias_rows(&self) -> usize {
        self.window.map(|side| 2 * side - 1).area()
    }

    /// Relative position index of a window, `[n, n]`: for each query and key, the row of the bias table
    /// `[bias_rows, heads]`.
    pub fn relative_position_index(&self) -> Vec<usize> {
        let Size { height, width } = self.window;
        let n = self.window_tokens();
        let mut index = Vec::with_capacity(n * n);
        for i in 0..n {
            for j in 0..n {
                let dy = i / width + height - 1 - j / width;
                let dx = i % width + width - 1 - j % width;
                index.push(dy * (2 * width - 1) + dx);
            }
        }
        index
    }

    /// The regions of the attention masks: the region of each token of a window under each mask,
    /// `[MASKS, n]`. Two tokens attend to each other only if their regions are equal.
    ///
    /// A cyclic shift joins tokens of opposite edges of the grid in its last row and last column of windows.
    /// Mask number `2 y + x` divides a window at `window - shift` on the axes whose `y` and `x` are 1, so
    /// mask 0 divides nothing.
    pub fn mask_regions(&self) -> Vec<u8> {
        let beyond = |at: usize, window: usize, shift: usize| u8::from(at >= window - shift);
        let (Size { height, width }, shift) = (self.window, self.shift);
        let mut regions = Vec::with_capacity(MASKS * self.window_tokens());
        for mask in 0..MASKS as u8 {
            for token in 0..self.window_tokens() {
                let y = (mask >> 1) * beyond(token / width, height, shift.height.min(height));
                let x = (mask & 1) * beyond(token % width, width, shift.width.min(width));
                regions.push(2 * y + x);
            }
        }
        regions
    }
}
