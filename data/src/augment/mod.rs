//! Random augmentation of training images: crop, horizontal flip, colour jitter, random erasing.
//!
//! [`Augment`] holds the settings, [`Augment::draw`] draws the [`Variation`] of one sample, and
//! [`Variation::apply`] turns the decoded image into the network's input. The drawn numbers depend only on
//! the settings, the image's size and the sample's key. For the same numbers, the pixels equal those of
//! torchvision's transforms on a Pillow image.

mod color;
mod crop;
mod erase;
mod settings;

use std::borrow::Cow;

use swinq_model::{Draws, Size, Transform};

use crate::decode::RgbImage;
use crate::preprocess::{first_channel, luminance, order_channels, resize_and_crop};
use crate::resize::resize_window;

pub use color::Adjustment;
pub use crop::CropBox;
pub use erase::Erased;
pub use settings::{Augment, CropKind};

/// The variation drawn for one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    /// The part of the image that is resized to the input size. `None` selects the evaluation preprocessing
    /// instead.
    pub crop: Option<CropBox>,
    /// Whether the image is mirrored horizontally.
    pub flip: bool,
    /// Colour adjustments, in the order in which they are applied.
    pub adjustments: Vec<Adjustment>,
    /// The part of the network's input that is replaced by noise.
    pub erased: Option<Erased>,
}

impl Augment {
    /// Draws the variation of an image of `width x height` pixels, whose part becomes the network's input of
    /// `size`. It depends only on the settings, these sizes and `key`.
    ///
    /// # Panics
    /// If a side is zero, or if settings that [`Augment::validate`] refuses make a range empty.
    pub fn draw(&self, (width, height): (usize, usize), size: Size, key: &[u64]) -> Variation {
        assert!(width > 0 && height > 0, "sizes must not be zero");
        let mut draws = Draws::keyed(key);
        let crop = match self.crop {
            CropKind::None => None,
            CropKind::RandomResized => {
                Some(crop::random_resized(&mut draws, (width, height), self.scale, self.ratio))
            }
            CropKind::Proportional => {
                let ratio = self.ratio.map(|ratio| ratio * size.width as f64 / size.height as f64);
                Some(crop::random_resized(&mut draws, (width, height), self.scale, ratio))
            }
            CropKind::Padded => Some(crop::padded(&mut draws, (width, height), self.padding)),
        };
        let flip = draws.unit() < self.flip;
        let adjustments = self.adjustments(&mut draws);
        let erases = self.erasing > 0.0 && draws.unit() < self.erasing;
        let erased = if erases { Erased::draw(&mut draws, size) } else { None };
        Variation { crop, flip, adjustments, erased }
    }

    /// The enabled adjustments, in random order.
    fn adjustments(&self, draws: &mut Draws) -> Vec<Adjustment> {
        let mut factor = |strength: f64| draws.between([(1.0 - strength).max(0.0), 1.0 + strength]);
        let mut all = [
            (self.brightness, Adjustment::Brightness(factor(self.brightness))),
            (self.contrast, Adjustment::Contrast(factor(self.contrast))),
            (self.saturation, Adjustment::Saturation(factor(self.saturation))),
            (self.hue, Adjustment::Hue(draws.between([-self.hue, self.hue]))),
        ];
        draws.shuffle(&mut all);
        all.into_iter().filter(|&(strength, _)| strength > 0.0).map(|(_, adjustment)| adjustment).collect()
    }
}

impl Variation {
    /// Applies the variation to `image`: the crop and its resize with the transform's filter
    /// ([`preprocess`](crate::preprocess()) without a crop), then the flip, then the colour adjustments, then
    /// the erasing.
    ///
    /// Returns the network's input before normalisation, `u8` `[height, width, channels]`. With one channel,
    /// the image is converted to its luminance first; three have the order that the transform states.
    ///
    /// # Panics
    /// If a side of `transform.size`, a side of `image` or a side of the crop is zero.
    pub fn apply(&self, image: &RgbImage, transform: &Transform) -> Vec<u8> {
        let Size { height, width } = transform.size;
        let one_channel = transform.channels() == 1;
        let image = &if one_channel { Cow::Owned(luminance(image)) } else { Cow::Borrowed(image) };
        let mut pixels = match self.crop {
            None => resize_and_crop(image, transform),
            Some(crop) => {
                let (size, part) = ((width, height), crop.extract(image));
                resize_window(&part, size, 0..width, 0..height, transform.filter).pixels
            }
        };
        if self.flip {
            mirror(&mut pixels, width);
        }
        for adjustment in &self.adjustments {
            adjustment.apply(&mut pixels);
        }
        match one_channel {
            true => pixels = first_channel(&pixels),
            false => order_channels(&mut pixels, transform),
        }
        if let Some(erased) = &self.erased {
            erased.apply(&mut pixels, transform);
        }
        pixels
    }
}

/// Reverses every row of `pixels`, `[rows, width, 3]`.
fn mirror(pixels: &mut [u8], width: usize) {
    let (pixels, _) = pixels.as_chunks_mut::<3>();
    for row in pixels.chunks_exact_mut(width) {
        row.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proportional_part_has_the_proportions_of_the_input() {
        let augment = Augment {
            crop: CropKind::Proportional,
            scale: [0.2, 0.5],
            ratio: [0.9, 1.1],
            ..Augment::default()
        };
        for (size, proportion) in [(Size::new(200, 300), 1.5), (Size::new(300, 150), 0.5)] {
            let mut found = Vec::new();
            for index in 0..200 {
                let CropBox { left, top, width, height } =
                    augment.draw((900, 700), size, &[9, index]).crop.unwrap();
                assert!(
                    left >= 0 && top >= 0 && left as usize + width <= 900 && top as usize + height <= 700
                );
                found.push(width as f64 / height as f64 / proportion);
            }
            assert!(found.iter().all(|ratio| (0.89..1.11).contains(ratio)), "{found:?}");
            assert!(found.iter().any(|&ratio| ratio < 0.93) && found.iter().any(|&ratio| ratio > 1.07));
        }
    }
}
