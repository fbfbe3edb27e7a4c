//! Evaluation preprocessing: the resize and crop that make the network's input from a decoded image.

use std::ops::Range;

use swinq_model::{ChannelOrder, Resize, Size, Transform};

use crate::decode::RgbImage;
use crate::resize::{place_on_black, resize_window};

/// Resizes and crops `image`. Returns the network's input before normalisation, `u8`
/// `[height, width, channels]`, with one or three channels; three have the order that the transform states.
/// One channel is Pillow's `convert("L")` before the resize. The orientation of `transform` has no effect,
/// because `image` is decoded.
///
/// The bytes equal those of torchvision's or transformers' resize and center crop on a PIL image
/// ([`Resize::ShorterSide`]), of timm's `ResizeKeepRatio` and `CenterCrop` ([`Resize::Cover`]) or of Pillow's
/// `resize` ([`Resize::Direct`]), all with antialiasing. If the resized image is smaller than the crop, it is
/// centred on black. Only the pixels inside the crop are computed, so that elongated images cost no more than
/// others.
///
/// # Panics
/// If a side of `transform.size`, of its resize, or of `image` is zero, or for another number of channels
/// than 1 and 3.
pub fn preprocess(image: &RgbImage, transform: &Transform) -> Vec<u8> {
    match transform.channels() {
        3 => {
            let mut pixels = resize_and_crop(image, transform);
            order_channels(&mut pixels, transform);
            pixels
        }
        1 => first_channel(&resize_and_crop(&luminance(image), transform)),
        channels => panic!("{channels} channels of an image file"),
    }
}

/// Gives RGB pixels the order that `transform` states.
pub(crate) fn order_channels(pixels: &mut [u8], transform: &Transform) {
    if transform.channel_order == ChannelOrder::Bgr {
        pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| pixel.reverse());
    }
}

/// The resize and the crop of all three channels, as RGB.
pub(crate) fn resize_and_crop(image: &RgbImage, transform: &Transform) -> Vec<u8> {
    let size = transform.size;
    let (width, height) = resized_size(image, transform);
    let crop = |length, size| center_crop(transform, length, size);
    let (columns, rows) = (crop(width, size.width), crop(height, size.height));
    let inner =
        resize_window(image, (width, height), columns.source.clone(), rows.source.clone(), transform.filter);
    place_on_black(inner, (size.width, size.height), (columns.start, rows.start)).pixels
}

/// Pillow's luminance of `image` (ITU-R 601-2, in 16 bits), in all three channels.
pub(crate) fn luminance(image: &RgbImage) -> RgbImage {
    let (pixels, _) = image.pixels.as_chunks::<3>();
    let of_pixel = |&[r, g, b]: &[u8; 3]| {
        let sum = 19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b);
        [((sum + 0x8000) >> 16) as u8; 3]
    };
    RgbImage::new(image.width, image.height, pixels.iter().flat_map(of_pixel).collect())
}

/// The first channel of RGB pixels.
pub(crate) fn first_channel(pixels: &[u8]) -> Vec<u8> {
    pixels.iter().step_by(3).copied().collect()
}

/// Width and height of the whole image after the resize, as torchvision computes them.
fn resized_size(image: &RgbImage, transform: &Transform) -> (usize, usize) {
    let long_side =
        |shorter: usize, long: usize, short: usize| ((shorter as f64 * long as f64) / short as f64) as usize;
    match transform.resize {
        Resize::Direct => (transform.size.width, transform.size.height),
        Resize::Cover(covered) => covering(image, covered),
        Resize::ShorterSide(side) if image.width <= image.height => {
            (side, long_side(side, image.height, image.width))
        }
        Resize::ShorterSide(side) => (long_side(side, image.width, image.height), side),
    }
}

/// Width and height of `image` in proportion, so that it covers `covered`, as timm computes them.
fn covering(image: &RgbImage, covered: Size) -> (usize, usize) {
    let ratio = |side: usize, covered: usize| side as f64 / covered as f64;
    let ratio = ratio(image.width, covered.width).min(ratio(image.height, covered.height));
    let resized = |side: usize| ((side as f64 / ratio).round_ties_even() as usize).max(1);
    (resized(image.width), resized(image.height))
}

/// A center crop along one axis.
#[derive(Debug, PartialEq)]
struct Span {
    /// Source positions that are kept.
    source: Range<usize>,
    /// Position in the result of the first of them; positions before it are padding.
    start: usize,
}

/// The center crop along one axis ([`Transform::crop_start`]). An axis shorter than `size` gets
/// `(size - length) // 2` positions of padding before and the rest after.
fn center_crop(transform: &Transform, length: usize, size: usize) -> Span {
    if length < size {
        return Span { source: 0..length, start: (size - length) / 2 };
    }
    let start = transform.crop_start(length, size);
    Span { source: start..start + size, start: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::Filter;

    fn microsoft(side: usize) -> Transform {
        Transform::microsoft(Size::square(side), 3, true)
    }

    fn transform(side: usize, resize: Resize) -> Transform {
        Transform { resize, filter: Filter::Bilinear, ..microsoft(side) }
    }

    #[test]
    fn crop_offsets_round_halves_to_even_or_down_in_transformers() {
        for (family, starts) in [("ms", [0, 0, 1, 2, 2, 2]), ("hf", [0, 0, 1, 1, 2, 2])] {
            let transform = Transform { family: family.to_owned(), ..microsoft(224) };
            let start = |length| center_crop(&transform, length, 224).source.start;
            assert_eq!([224, 225, 226, 227, 228, 229].map(start), starts, "{family}");
            assert_eq!(center_crop(&transform, 221, 224), Span { source: 0..221, start: 1 });
        }
    }

    #[test]
    fn the_longer_side_is_rounded_down() {
        let size = |width, height| {
            resized_size(&RgbImage::new(width, height, vec![0; width * height * 3]), &microsoft(224))
        };
        assert_eq!(size(500, 375), (341, 256));
        assert_eq!(size(375, 500), (256, 341));
        assert_eq!(size(3, 3), (256, 256));
        assert_eq!(size(1, 3), (256, 768));
    }

    #[test]
    fn a_crop_larger_than_the_image_is_padded_with_black() {
        let image = RgbImage::new(2, 2, vec![9; 12]);
        let pixels = preprocess(&image, &transform(5, Resize::ShorterSide(2)));
        for (index, pixel) in pixels.chunks_exact(3).enumerate() {
            let inside = (1..3).contains(&(index / 5)) && (1..3).contains(&(index % 5));
            assert_eq!(pixel, if inside { [9; 3] } else { [0; 3] }, "{index}");
        }
    }

    #[test]
    fn a_line_of_pixels_costs_no_more_than_its_crop() {
        let image = RgbImage::new(1_000_000, 1, vec![7; 3_000_000]);
        let pixels = preprocess(&image, &microsoft(224));
        assert_eq!(pixels, vec![7; 224 * 224 * 3]);
    }
}
