//! Random variations of training images: crop, horizontal flip, colour jitter.
//!
//! [`Augment`] says what may vary, [`Augment::draw`] draws the variation of one sample, and [`Variation::apply`] makes the
//! network's input from the decoded image. The draws are a function of the sample's key alone, and the pixels are those
//! that torchvision's transforms give on a Pillow image for the same drawn numbers.

mod color;
mod crop;
mod settings;

use swinq_model::{Draws, Transform};

use crate::decode::RgbImage;
use crate::preprocess::preprocess;
use crate::resize::resize_window;

pub use color::Adjustment;
pub use crop::CropBox;
pub use settings::{Augment, CropKind};

/// The variation drawn for one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    /// The part of the image that is resized directly to the input size; `None` is the evaluation preprocessing.
    pub crop: Option<CropBox>,
    /// Whether left and right are exchanged.
    pub flip: bool,
    /// Colour adjustments, in the order they are made.
    pub adjustments: Vec<Adjustment>,
}

impl Augment {
    /// The variation of an image of `width x height` pixels, a function of the settings, the size and `key` alone.
    ///
    /// # Panics
    /// Where a side is zero, or settings that [`Augment::validate`] refuses let a range be empty.
    pub fn draw(&self, (width, height): (usize, usize), key: &[u64]) -> Variation {
        assert!(width > 0 && height > 0, "sizes must not be zero");
        let mut draws = Draws::keyed(key);
        let crop = match self.crop {
            CropKind::None => None,
            CropKind::RandomResized => {
                Some(crop::random_resized(&mut draws, (width, height), self.scale, self.ratio))
            }
            CropKind::Padded => Some(crop::padded(&mut draws, (width, height), self.padding)),
        };
        let flip = draws.unit() < self.flip;
        Variation { crop, flip, adjustments: self.adjustments(&mut draws) }
    }

    /// Every adjustment that is on, in random order.
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
    /// The network's input before normalisation, `u8` `[size, size, 3]`: the crop resized directly with the
    /// transform's filter, or [`preprocess`]; then the flip; then the adjustments.
    ///
    /// # Panics
    /// Where `transform.size`, a side of `image` or a side of the crop is zero.
    pub fn apply(&self, image: &RgbImage, transform: &Transform) -> Vec<u8> {
        let size = transform.size;
        let mut pixels = match self.crop {
            None => preprocess(image, transform),
            Some(crop) => {
                resize_window(&crop.of(image), (size, size), 0..size, 0..size, transform.filter).pixels
            }
        };
        if self.flip {
            mirror(&mut pixels, size);
        }
        for adjustment in &self.adjustments {
            adjustment.apply(&mut pixels);
        }
        pixels
    }
}

/// Exchanges left and right of `pixels`, `[any, width, 3]`.
fn mirror(pixels: &mut [u8], width: usize) {
    let (pixels, _) = pixels.as_chunks_mut::<3>();
    for row in pixels.chunks_exact_mut(width) {
        row.reverse();
    }
}
