//! Padding of normalised images with zeros.

use std::fmt;

use swinq_model::Size;

use crate::error::DataError;

/// The largest multiple that images may be padded to, in pixels.
const MAX_MULTIPLE: usize = 4096;

/// How images of any size are padded before a network: at the right and at the bottom, with zeros, after they
/// are resized and normalised. A zero is then the mean pixel, not black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// The sides of padded images are multiples of this number of pixels, 1 to 4096; 1 is no padding.
    /// Detectors call it `size_divisor` (OpenMMLab) or `SIZE_DIVISIBILITY` (detectron2).
    pub multiple: usize,
    /// Whether the images of a batch get a common size, which holds the highest and the widest of them. The
    /// images of a batch then follow each other; else they have one size of their own.
    pub to_common: bool,
}

impl Default for Padding {
    /// No padding.
    fn default() -> Padding {
        Padding { multiple: 1, to_common: false }
    }
}

impl Padding {
    /// Checks the multiple.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming `padding` for a multiple that is not in 1..=4096.
    pub fn check(self) -> Result<(), DataError> {
        if (1..=MAX_MULTIPLE).contains(&self.multiple) {
            return Ok(());
        }
        let problem = format!("a multiple of {} pixels is not in 1..={MAX_MULTIPLE}", self.multiple);
        Err(DataError::setting("padding", problem))
    }

    /// The smallest size that holds all of `images` and whose sides are multiples.
    ///
    /// # Panics
    /// If the multiple is 0.
    pub fn size_of(self, images: impl IntoIterator<Item = Size>) -> Size {
        let largest =
            images.into_iter().fold(Size::square(1), |size, image| size.zip(image, |a, b| a.max(b)));
        largest.map(|side| side.next_multiple_of(self.multiple))
    }
}

/// In words, as the end of a description of sizes; empty without padding.
impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.multiple > 1 {
            write!(f, ", padded to multiples of {}", self.multiple)?;
        }
        if self.to_common { f.write_str(", padded to the size of the batch") } else { Ok(()) }
    }
}

/// An image in the top left corner of `size`, with zeros at its right and at its bottom: f32
/// `[channels, height, width]`. `values` is the image before that, of the size `valid`, with as many channels
/// as fit.
///
/// # Panics
/// If the image is larger than `size`, or `values` are not whole channels of it.
pub fn pad(values: &[f32], valid: Size, size: Size) -> Vec<f32> {
    assert!(valid.height <= size.height && valid.width <= size.width, "an image of {valid} in {size}");
    assert!(values.len().is_multiple_of(valid.area()), "{} values of an image of {valid}", values.len());
    let channels = values.len() / valid.area();
    let mut padded = vec![0.0; channels * size.area()];
    for (to, from) in padded.chunks_exact_mut(size.area()).zip(values.chunks_exact(valid.area())) {
        for (to, from) in to.chunks_exact_mut(size.width).zip(from.chunks_exact(valid.width)) {
            to[..valid.width].copy_from_slice(from);
        }
    }
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_all_images_and_are_multiples() {
        let sizes = [Size::new(33, 70), Size::new(64, 5)];
        let of =
            |multiple, sizes: &[Size]| Padding { multiple, to_common: true }.size_of(sizes.iter().copied());
        assert_eq!(of(32, &sizes), Size::new(64, 96));
        assert_eq!(of(1, &sizes), Size::new(64, 70));
        assert_eq!(of(32, &sizes[..1]), Size::new(64, 96));
        assert_eq!(Padding::default().size_of([sizes[0]]), sizes[0]);
    }

    #[test]
    fn zeros_are_added_at_the_right_and_at_the_bottom() {
        let image: Vec<f32> = (1..=12).map(|value| value as f32).collect();
        let padded = pad(&image, Size::new(2, 3), Size::new(3, 5));
        let rows = |a: f32| {
            [a, a + 1.0, a + 2.0, 0.0, 0.0, a + 3.0, a + 4.0, a + 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        };
        assert_eq!(padded, [rows(1.0), rows(7.0)].concat());
        assert_eq!(pad(&image, Size::new(3, 4), Size::new(3, 4)), image);
    }

    #[test]
    fn multiples_are_checked() {
        let check = |multiple| Padding { multiple, to_common: false }.check();
        assert!(check(1).is_ok() && check(4096).is_ok());
        for multiple in [0, 4097, usize::MAX] {
            assert!(check(multiple).unwrap_err().to_string().contains("padding"), "{multiple}");
        }
    }

    #[test]
    fn padding_is_described() {
        assert_eq!(Padding::default().to_string(), "");
        assert_eq!(Padding { multiple: 32, to_common: false }.to_string(), ", padded to multiples of 32");
        let both = Padding { multiple: 32, to_common: true }.to_string();
        assert_eq!(both, ", padded to multiples of 32, padded to the size of the batch");
    }
}
