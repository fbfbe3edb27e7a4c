//! Random erasing (Zhong et al., "Random Erasing Data Augmentation", AAAI 2020), with the areas, the aspect
//! ratios and the noise of timm's mode `pixel`, which the training of Swin uses.

use std::f64::consts::TAU;

use swinq_model::{Draws, Size, Transform};

use super::crop::{ATTEMPTS, random_sides};

/// Least and greatest area, as a fraction of the image's.
const AREA: [f64; 2] = [0.02, 1.0 / 3.0];
/// Least and greatest height / width; it is log-uniform.
const ASPECT: [f64; 2] = [0.3, 1.0 / 0.3];

/// A rectangle of the network's input that is replaced by noise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erased {
    /// Column of its left edge.
    pub left: usize,
    /// Row of its upper edge.
    pub top: usize,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Seed of the noise.
    pub seed: u64,
}

impl Erased {
    /// A random rectangle of an image of `size` pixels; `None` if no attempt fits.
    pub(super) fn draw(draws: &mut Draws, size: Size) -> Option<Erased> {
        for _ in 0..ATTEMPTS {
            let (height, width) = random_sides(draws, (size.height, size.width), AREA, ASPECT);
            if (1..size.height).contains(&height) && (1..size.width).contains(&width) {
                let top = draws.below(size.height - height + 1);
                let left = draws.below(size.width - width + 1);
                return Some(Erased { left, top, width, height, seed: draws.next() });
            }
        }
        None
    }

    /// Replaces the rectangle in `pixels`, `[height, width, channels]`, by noise that is normally distributed
    /// after `transform`'s normalisation, as far as pixels can hold it.
    pub(super) fn apply(&self, pixels: &mut [u8], transform: &Transform) {
        let mut draws = Draws::new(self.seed);
        let channels = transform.channels();
        for row in pixels.chunks_exact_mut(transform.size.width * channels).skip(self.top).take(self.height) {
            for pixel in row.chunks_exact_mut(channels).skip(self.left).take(self.width) {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let (mean, deviation) = (transform.mean[channel], transform.std[channel]);
                    let x = f64::from(mean) + f64::from(deviation) * normal(&mut draws);
                    *value = (255.0 * x).round_ties_even().clamp(0.0, 255.0) as u8;
                }
            }
        }
    }
}

/// A normally distributed number (Box and Muller).
fn normal(draws: &mut Draws) -> f64 {
    // The first factor needs a number above 0.
    let (radius, angle) = (1.0 - draws.unit(), TAU * draws.unit());
    (-2.0 * libm::log(radius)).sqrt() * libm::cos(angle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_have_the_areas_and_ratios_and_lie_inside() {
        let mut areas = Vec::new();
        for seed in 0..2000 {
            let erased = Erased::draw(&mut Draws::new(seed), Size::square(224)).unwrap();
            assert!(erased.left + erased.width <= 224 && erased.top + erased.height <= 224, "{erased:?}");
            let aspect = erased.height as f64 / erased.width as f64;
            assert!((0.28..3.6).contains(&aspect), "{erased:?}");
            areas.push((erased.width * erased.height) as f64 / (224.0 * 224.0));
        }
        let mean = areas.iter().sum::<f64>() / areas.len() as f64;
        assert!(areas.iter().all(|area| (0.019..0.34).contains(area)), "{areas:?}");
        // Large rectangles of extreme ratios do not fit, so the mean is slightly below that of the areas
        // drawn.
        assert!((0.15..0.18).contains(&mean), "{mean}");
        assert_eq!(Erased::draw(&mut Draws::new(0), Size::square(1)), None);
    }

    #[test]
    fn the_rectangle_becomes_normal_noise_and_nothing_else_changes() {
        let transform = Transform::microsoft(Size::square(64), 3, true);
        let erased = Erased { left: 3, top: 10, width: 40, height: 50, seed: 9 };
        let mut pixels = vec![7; 64 * 64 * 3];
        erased.apply(&mut pixels, &transform);
        let (mut sum, mut square, mut count) = (0.0, 0.0, 0.0);
        for (i, &value) in pixels.iter().enumerate() {
            let (row, column, channel) = (i / 192, i / 3 % 64, i % 3);
            if !(10..60).contains(&row) || !(3..43).contains(&column) {
                assert_eq!(value, 7);
                continue;
            }
            let x = (f64::from(value) / 255.0 - f64::from(transform.mean[channel]))
                / f64::from(transform.std[channel]);
            (sum, square, count) = (sum + x, square + x * x, count + 1.0);
        }
        let (mean, deviation) = (sum / count, (square / count).sqrt());
        // Pixels clip the tails.
        assert!(mean.abs() < 0.1 && (0.9..1.02).contains(&deviation), "{mean} {deviation}");
        let mut again = vec![7; pixels.len()];
        erased.apply(&mut again, &transform);
        assert_eq!(again, pixels);
    }
}
