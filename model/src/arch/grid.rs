//! The token grid of a stage for one image: window partition, shift and patch merging as index lists.

use swinq_numerics::{PAD, Size};

/// The token grid of one stage for one image. Sizes are in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The tokens.
    pub size: Size,
    /// The window.
    pub window: Size,
    /// The cyclic shift of odd blocks; 0 for an axis that is not shifted.
    pub shift: Size,
    /// The grid after padding to a multiple of the window.
    pub padded: Size,
    /// Whether the grid is shifted before it is padded, as in timm.
    pub shifts_first: bool,
}

impl Grid {
    /// Tokens, without padding.
    pub fn tokens(&self) -> usize {
        self.size.area()
    }

    /// Rows and columns of windows.
    pub fn window_grid(&self) -> Size {
        self.padded.zip(self.window, |padded, window| padded / window)
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.window_grid().area()
    }

    /// Whether some windows hold padding.
    pub fn is_padded(&self) -> bool {
        self.padded != self.size
    }

    /// Rows in window order, padding included.
    pub fn window_rows(&self) -> usize {
        self.padded.area()
    }

    /// The grid after patch merging.
    pub fn merged(&self) -> Size {
        self.size.map(|side| side.div_ceil(2))
    }

    /// Whether both grids have the same windows, with the same tokens and masks.
    pub(super) fn reads_like(&self, other: &Grid) -> bool {
        let Grid { shifts_first, .. } = *other;
        let no_order = !self.is_padded() || self.shift == Size::square(0);
        *other == Grid { shifts_first, ..self.clone() } && (no_order || shifts_first == self.shifts_first)
    }

    /// Cyclic shift of a block: none for even blocks.
    pub fn shift_of(&self, shifted: bool) -> Size {
        if shifted { self.shift } else { Size::square(0) }
    }

    /// [`Grid::partition_rows`], with `None` for padding.
    pub fn partition(&self, shifted: bool) -> Vec<Option<usize>> {
        tokens(self.partition_rows(shifted))
    }

    /// Window partition of the image after padding and, for odd blocks, a cyclic shift. Row `i` of
    /// `[windows * n]` holds the token at that place of the window order, or [`PAD`]; window reverse writes
    /// row `i` back to that token.
    pub fn partition_rows(&self, shifted: bool) -> Vec<u32> {
        let (shift, size) = (self.shift_of(shifted), self.size);
        let source = |at: usize, shift: usize, padded: usize, side: usize| {
            let source = match self.shifts_first {
                true if at < side => (at + shift) % side,
                true => return PAD,
                false => (at + shift) % padded,
            };
            if source < side { source as u32 } else { PAD }
        };
        let axis =
            |shift, padded, side| (0..padded).map(|at| source(at, shift, padded, side)).collect::<Vec<u32>>();
        let rows = axis(shift.height, self.padded.height, size.height);
        let columns = axis(shift.width, self.padded.width, size.width);
        let mut tokens = Vec::with_capacity(self.window_rows());
        for rows in rows.chunks_exact(self.window.height) {
            for columns in columns.chunks_exact(self.window.width) {
                for &y in rows {
                    let first = y.wrapping_mul(size.width as u32);
                    let token = |&x: &u32| if x == PAD || y == PAD { PAD } else { first + x };
                    tokens.extend(columns.iter().map(token));
                }
            }
        }
        tokens
    }

    /// The number of the mask of each window ([`Stage::mask_regions`](super::Stage::mask_regions)): 0 in even
    /// blocks.
    pub fn masks(&self, shifted: bool) -> Vec<u8> {
        let (shift, windows) = (self.shift_of(shifted), self.window_grid());
        let divided = |at: usize, windows: usize, shift: usize| u8::from(shift > 0 && at + 1 == windows);
        let mask = |window: usize| {
            let y = divided(window / windows.width, windows.height, shift.height);
            2 * y + divided(window % windows.width, windows.width, shift.width)
        };
        (0..windows.area()).map(mask).collect()
    }

    /// [`Grid::merge_rows`], with `None` for padding.
    pub fn merge_sources(&self) -> Vec<Option<usize>> {
        tokens(self.merge_rows())
    }

    /// Patch merging's gather of the image: four rows for each merged token, in Microsoft's order: top left,
    /// bottom left, top right, bottom right. [`PAD`] is the padding of an odd grid.
    pub fn merge_rows(&self) -> Vec<u32> {
        let (size, merged) = (self.size, self.merged());
        let at = |y: usize, x: usize| {
            if y < size.height && x < size.width { (y * size.width + x) as u32 } else { PAD }
        };
        let mut sources = Vec::with_capacity(4 * merged.area());
        for y in (0..2 * merged.height).step_by(2) {
            for x in (0..2 * merged.width).step_by(2) {
                sources.extend([at(y, x), at(y + 1, x), at(y, x + 1), at(y + 1, x + 1)]);
            }
        }
        sources
    }
}

fn tokens(rows: Vec<u32>) -> Vec<Option<usize>> {
    rows.into_iter().map(|token| (token != PAD).then_some(token as usize)).collect()
}
