//! The geometry of one stage: window partition, shift, attention regions and patch merging as index lists.

/// The geometry of one stage. Sizes are in tokens; grids and windows are square.
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
    /// Side of the token grid.
    pub grid: usize,
    /// Side of the window that the stage uses.
    pub window: usize,
    /// Cyclic shift of the odd blocks; 0 if one window covers the grid.
    pub shift: usize,
    /// Side of the grid after padding to a multiple of the window.
    pub padded: usize,
    /// Whether patch merging follows the stage: true for every stage but the last.
    pub merge: bool,
}

impl Stage {
    /// Channels of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Cyclic shift of block `block`: [`Stage::shift`] for odd blocks, 0 for even ones.
    pub fn shift_of(&self, block: usize) -> usize {
        if block % 2 == 1 { self.shift } else { 0 }
    }

    /// Windows in one image.
    pub fn windows(&self) -> usize {
        (self.padded / self.window).pow(2)
    }

    /// Tokens in one window.
    pub fn window_tokens(&self) -> usize {
        self.window * self.window
    }

    /// Tokens of one image, without padding.
    pub fn tokens(&self) -> usize {
        self.grid * self.grid
    }

    /// Side of the token grid after patch merging.
    pub fn merged_grid(&self) -> usize {
        self.grid.div_ceil(2)
    }

    /// Relative position index of a window, `[n, n]`: for each query and key, the row of the bias table
    /// `[(2 window - 1)^2, heads]`.
    pub fn relative_position_index(&self) -> Vec<usize> {
        let w = self.window;
        let mut index = Vec::with_capacity(self.window_tokens().pow(2));
        for i in 0..w * w {
            for j in 0..w * w {
                let dy = i / w + w - 1 - j / w;
                let dx = i % w + w - 1 - j % w;
                index.push(dy * (2 * w - 1) + dx);
            }
        }
        index
    }

    /// Regions of the attention mask after a cyclic shift: the region of each token, `[windows, n]`. Two tokens of a
    /// window attend to each other only if their regions are equal. `None` if `shift` is 0: nothing is masked then.
    pub fn shift_regions(&self, shift: usize) -> Option<Vec<u8>> {
        if shift == 0 {
            return None;
        }
        let band = |i: usize| match i {
            i if i < self.padded - self.window => 0u8,
            i if i < self.padded - shift => 1,
            _ => 2,
        };
        Some(self.window_order().map(|(y, x)| band(y) * 3 + band(x)).collect())
    }

    /// Window partition of one image after padding and a cyclic shift by `shift`. Row `i` of `[windows * n]` holds the
    /// token at that place of the window order, or `None` for padding; window reverse writes row `i` back to that token.
    pub fn partition(&self, shift: usize) -> Vec<Option<usize>> {
        let token = |(y, x): (usize, usize)| {
            let (y, x) = ((y + shift) % self.padded, (x + shift) % self.padded);
            (y < self.grid && x < self.grid).then_some(y * self.grid + x)
        };
        self.window_order().map(token).collect()
    }

    /// Row and column of every token of the padded grid, window by window, row-major in each window.
    fn window_order(&self) -> impl Iterator<Item = (usize, usize)> {
        let (window, per_side) = (self.window, self.padded / self.window);
        let corners = (0..per_side).flat_map(move |y| (0..per_side).map(move |x| (y * window, x * window)));
        corners.flat_map(move |(top, left)| {
            (0..window * window).map(move |i| (top + i / window, left + i % window))
        })
    }

    /// Patch merging's gather of one image. Each merged token concatenates four tokens in Microsoft's order: top left,
    /// bottom left, top right, bottom right. `None` is the padding of an odd grid.
    pub fn merge_sources(&self) -> Vec<[Option<usize>; 4]> {
        let side = self.merged_grid();
        let at = |y: usize, x: usize| (y < self.grid && x < self.grid).then_some(y * self.grid + x);
        let mut sources = Vec::with_capacity(side * side);
        for y in 0..side {
            for x in 0..side {
                let (y, x) = (2 * y, 2 * x);
                sources.push([at(y, x), at(y + 1, x), at(y, x + 1), at(y + 1, x + 1)]);
            }
        }
        sources
    }
}
