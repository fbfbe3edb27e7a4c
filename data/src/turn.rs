//! The eight ways to turn an image that the tag Orientation of EXIF and TIFF states.

use swinq_model::Size;

use crate::decode::RgbImage;

/// How an image is turned before it is shown: one of the eight values of the tag Orientation (274).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Whether rows become columns.
    swaps: bool,
    /// Whether the columns of the stored image are read from right to left.
    from_right: bool,
    /// Whether the rows of the stored image are read from bottom to top.
    from_bottom: bool,
}

impl Turn {
    /// No turn, the value 1.
    pub const NONE: Turn = Turn { swaps: false, from_right: false, from_bottom: false };

    /// The turn of a value of the tag. Other values than 2 to 8 turn nothing, as in Pillow.
    pub fn of(value: u64) -> Turn {
        let (swaps, from_right, from_bottom) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => return Turn::NONE,
        };
        Turn { swaps, from_right, from_bottom }
    }

    /// Whether the image stays as it is.
    pub fn is_none(self) -> bool {
        self == Turn::NONE
    }

    /// The size of the turned image of a stored one, in pixels.
    pub fn size(self, stored: Size) -> Size {
        if self.swaps { Size::new(stored.width, stored.height) } else { stored }
    }

    /// Bytes for each pixel that [`Turn::apply`] allocates.
    pub(crate) fn bytes_per_pixel(self) -> u64 {
        if self.is_none() { 0 } else { 3 }
    }

    /// The turned image, with the pixels of Pillow's `ImageOps.exif_transpose`.
    pub fn apply(self, image: RgbImage) -> RgbImage {
        if self.is_none() {
            return image;
        }
        let RgbImage { width, height, ref pixels } = image;
        let size = self.size(Size::new(height, width));
        let (stored, _) = pixels.as_chunks::<3>();
        let mut turned = Vec::with_capacity(pixels.len());
        for y in 0..size.height {
            for x in 0..size.width {
                let (column, row) = if self.swaps { (y, x) } else { (x, y) };
                let column = if self.from_right { width - 1 - column } else { column };
                let row = if self.from_bottom { height - 1 - row } else { row };
                turned.extend(stored[row * width + column]);
            }
        }
        RgbImage::new(size.width, size.height, turned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The letters of an image of two rows and three columns, after the turn.
    fn turned(value: u64) -> String {
        let pixels = b"abcdef".iter().flat_map(|&letter| [letter; 3]).collect();
        let image = Turn::of(value).apply(RgbImage::new(3, 2, pixels));
        let letters: Vec<u8> = image.pixels.iter().step_by(3).copied().collect();
        let rows = letters.chunks(image.width).map(|row| String::from_utf8_lossy(row).into_owned());
        rows.collect::<Vec<_>>().join(" ")
    }

    /// The expected letters are those of Pillow's `exif_transpose`.
    #[test]
    fn each_value_turns_as_pillow_does() {
        let expected = [
            (1, "abc def"),
            (2, "cba fed"),
            (3, "fed cba"),
            (4, "def abc"),
            (5, "ad be cf"),
            (6, "da eb fc"),
            (7, "fc eb da"),
            (8, "cf be ad"),
        ];
        for (value, letters) in expected {
            assert_eq!(turned(value), letters, "{value}");
        }
        for value in [0, 9, 65535] {
            assert!(Turn::of(value).is_none() && turned(value) == "abc def", "{value}");
        }
    }

    #[test]
    fn sides_are_swapped_from_5_on() {
        for value in 1..=8 {
            let expected = if value < 5 { Size::new(2, 3) } else { Size::new(3, 2) };
            assert_eq!(Turn::of(value).size(Size::new(2, 3)), expected, "{value}");
        }
    }
}
