//! The geometry of an image size: sizes in two dimensions, and the attention windows of a token grid.

use std::fmt;

use crate::rows::RowMap;

/// Height and width, in pixels or in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Number of rows.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
}

impl Size {
    /// A size of `height` rows and `width` columns.
    pub const fn new(height: usize, width: usize) -> Size {
        Size { height, width }
    }

    /// A square.
    pub const fn square(side: usize) -> Size {
        Size { height: side, width: side }
    }

    /// Height times width. Sizes of images and grids are bounded where they enter the program, so that this
    /// cannot overflow.
    pub const fn area(self) -> usize {
        self.height * self.width
    }

    /// The side of a square; `None` for other sizes.
    pub fn side(self) -> Option<usize> {
        (self.height == self.width).then_some(self.height)
    }

    /// `f` of the height and of the width.
    pub fn map(self, f: impl Fn(usize) -> usize) -> Size {
        Size { height: f(self.height), width: f(self.width) }
    }

    /// `f` of both heights and of both widths.
    pub fn zip(self, other: Size, f: impl Fn(usize, usize) -> usize) -> Size {
        Size { height: f(self.height, other.height), width: f(self.width, other.width) }
    }

    /// Bytes of `images` images of this size with `channels` channels of a byte each; `None` if the number
    /// overflows.
    pub fn image_bytes(self, channels: usize, images: usize) -> Option<usize> {
        [self.width, channels, images].iter().try_fold(self.height, |bytes, &size| bytes.checked_mul(size))
    }

    /// In a message: one number if it is square.
    pub fn short(self) -> String {
        self.side().map_or_else(|| self.to_string(), |side| side.to_string())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

/// Number of masks of a block's windows ([`AttentionSpec::regions`](crate::AttentionSpec::regions)). Mask 0
/// masks nothing.
pub const MASKS: usize = 4;

/// The attention windows of one image: the order of their tokens, and the mask of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    map: RowMap,
    masks: Vec<u8>,
}

impl Windows {
    /// Windows whose tokens `map` lists, window by window. `masks` has the number of the mask of each window.
    ///
    /// # Panics
    /// Without a window, if the rows of `map` are not divided evenly among the windows, or for a mask that is
    /// not below [`MASKS`].
    pub fn new(map: RowMap, masks: Vec<u8>) -> Windows {
        let (rows, windows) = (map.rows().len(), masks.len());
        assert!(windows > 0 && rows.is_multiple_of(windows), "{rows} rows in {windows} windows");
        assert!(
            masks.iter().all(|&mask| usize::from(mask) < MASKS),
            "a mask of {masks:?} is not below {MASKS}"
        );
        Windows { map, masks }
    }

    /// The token of each row in window order.
    #[inline]
    pub fn map(&self) -> &RowMap {
        &self.map
    }

    /// The number of the mask of each window.
    #[inline]
    pub fn masks(&self) -> &[u8] {
        &self.masks
    }

    /// Number of windows.
    pub fn count(&self) -> usize {
        self.masks.len()
    }

    /// Tokens of a window.
    pub fn tokens(&self) -> usize {
        self.map.rows().len() / self.masks.len()
    }
}
