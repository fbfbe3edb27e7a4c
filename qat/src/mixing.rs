//! Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018) and CutMix (Yun et al.,
//! "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019):
//! images of a batch are mixed in pairs, and so are their labels. As in timm's mode `batch`, with which Swin
//! is trained, there is one draw for a batch, image `i` is mixed with image `n - 1 - i`, and pixels are mixed
//! before the normalisation.

use swinq_model::{Batch, Draws, Size};

use crate::job::MixingKeys;

/// First word of the key that draws the mixing of a batch.
const MIXING_KEY: u64 = 3;

/// The labels of the images that are mixed into those of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Partners {
    /// The class of each image's partner; empty where the images have no labels.
    pub labels: Vec<u32>,
    /// The share of each image's own label, 0 to 1.
    pub share: f64,
}

/// Mixes the batches of a training.
#[derive(Clone, Debug)]
pub struct Mixing {
    keys: MixingKeys,
    seed: u64,
}

impl Mixing {
    /// `None` if `keys` are off.
    pub fn new(keys: &MixingKeys, seed: u64) -> Option<Mixing> {
        (!keys.is_off()).then(|| Mixing { keys: keys.clone(), seed })
    }

    /// Mixes the images of batch `number` of the run; `None` if this batch stays as it is. It depends only on
    /// the keys, the seed and `number`.
    pub fn mix(&self, batch: &mut Batch, number: u64) -> Option<Partners> {
        let mut draws = Draws::keyed(&[MIXING_KEY, self.seed, number]);
        if draws.unit() >= self.keys.probability {
            return None;
        }
        let cuts = draws.unit() < self.keys.switch;
        let cuts = self.keys.mixup == 0.0 || (cuts && self.keys.cutmix > 0.0);
        let share = if cuts {
            let area = beta(&mut draws, self.keys.cutmix);
            cut(batch, &Cut::draw(&mut draws, batch.size, area))
        } else {
            let share = beta(&mut draws, self.keys.mixup);
            blend(batch, share as f32);
            share
        };
        Some(Partners { labels: batch.labels.iter().rev().copied().collect(), share })
    }
}

/// A number of the Beta distribution with both parameters `alpha` (Joehnk, 1964).
fn beta(draws: &mut Draws, alpha: f64) -> f64 {
    loop {
        let (x, y) = (libm::pow(draws.unit(), 1.0 / alpha), libm::pow(draws.unit(), 1.0 / alpha));
        if x + y > 0.0 && x + y <= 1.0 {
            return x / (x + y);
        }
    }
}

/// Calls `mix` with the pixels of each pair of images. The middle image of an odd number stays as it is.
fn for_pairs(batch: &mut Batch, mut mix: impl FnMut(&mut [u8], &mut [u8])) {
    let (image, count) = (batch.image_bytes(), batch.len());
    let (first, rest) = batch.pixels.split_at_mut(count / 2 * image);
    let last = &mut rest[count % 2 * image..];
    first.chunks_exact_mut(image).zip(last.chunks_exact_mut(image).rev()).for_each(|(a, b)| mix(a, b));
}

/// Replaces every image by `share` of itself and the rest of its partner.
fn blend(batch: &mut Batch, share: f32) {
    let mixed = |own: u8, other: u8| {
        (f32::from(own) * share + f32::from(other) * (1.0 - share)).round_ties_even() as u8
    };
    for_pairs(batch, |a, b| {
        for (a, b) in a.iter_mut().zip(b) {
            (*a, *b) = (mixed(*a, *b), mixed(*b, *a));
        }
    });
}

/// A rectangle that images exchange: rows and columns.
struct Cut {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

impl Cut {
    /// A rectangle with the image's aspect ratio around a random point. It has `1 - area` of the image's area
    /// where it does not reach beyond the image.
    fn draw(draws: &mut Draws, size: Size, area: f64) -> Cut {
        let mut around = |side: usize| {
            let half = (side as f64 * (1.0 - area).sqrt()) as usize / 2;
            let centre = draws.below(side);
            centre.saturating_sub(half)..(centre + half).min(side)
        };
        Cut { rows: around(size.height), columns: around(size.width) }
    }
}

/// Exchanges a rectangle of every pair of images. Returns the share of the area that an image keeps.
fn cut(batch: &mut Batch, cut: &Cut) -> f64 {
    let (size, channels) = (batch.size, batch.channels);
    for_pairs(batch, |a, b| {
        for row in cut.rows.clone() {
            let first = channels * (row * size.width + cut.columns.start);
            let columns = first..first + channels * cut.columns.len();
            a[columns.clone()].swap_with_slice(&mut b[columns]);
        }
    });
    1.0 - (cut.rows.len() * cut.columns.len()) as f64 / size.area() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 16;

    /// Images of one value each, 10, 20, ...
    fn batch(images: usize) -> Batch {
        let pixels = (1..=images).flat_map(|i| vec![10 * i as u8; 3 * SIZE * SIZE]).collect();
        Batch {
            pixels,
            labels: (0..images as u32).collect(),
            ids: (0..images).collect(),
            ..Batch::empty(Size::square(SIZE), 3)
        }
    }

    fn mixing(mixup: f64, cutmix: f64) -> Mixing {
        let keys = MixingKeys { mixup, cutmix, ..MixingKeys::default() };
        Mixing::new(&keys, 7).unwrap()
    }

    #[test]
    fn mixup_blends_each_image_with_its_partner() {
        for number in 0..50 {
            let mut mixed = batch(5);
            let partners = mixing(0.8, 0.0).mix(&mut mixed, number).unwrap();
            assert_eq!(partners.labels, [4, 3, 2, 1, 0]);
            let images: Vec<_> = mixed.pixels.chunks_exact(3 * SIZE * SIZE).collect();
            for (i, image) in images.iter().enumerate() {
                let own = 10.0 * (i + 1) as f32;
                let want = own * partners.share as f32 + (60.0 - own) * (1.0 - partners.share as f32);
                assert!(image.iter().all(|&x| (f32::from(x) - want).abs() <= 0.5), "{i}: {partners:?}");
            }
        }
    }

    #[test]
    fn cutmix_exchanges_a_rectangle_and_the_share_is_what_is_left() {
        let mut shares = Vec::new();
        for number in 0..200 {
            let mut mixed = batch(4);
            let partners = mixing(0.0, 1.0).mix(&mut mixed, number).unwrap();
            for (i, image) in mixed.pixels.chunks_exact(3 * SIZE * SIZE).enumerate() {
                let own = image.iter().filter(|&&x| usize::from(x) == 10 * (i + 1)).count();
                let other = image.iter().filter(|&&x| usize::from(x) == 10 * (4 - i)).count();
                assert_eq!(own + other, image.len());
                assert!((own as f64 / image.len() as f64 - partners.share).abs() < 1e-12);
            }
            shares.push(partners.share);
        }
        assert!(shares.iter().any(|&s| s > 0.9) && shares.iter().any(|&s| s < 0.5), "{shares:?}");
    }

    #[test]
    fn a_batch_depends_on_its_number_alone_and_the_middle_image_stays() {
        let both = mixing(0.8, 1.0);
        let at = |number| {
            let mut mixed = batch(3);
            (both.mix(&mut mixed, number), mixed.pixels)
        };
        assert_eq!(at(3), at(3));
        assert_ne!(at(3).1, at(4).1);
        for number in 0..20 {
            let image = 3 * SIZE * SIZE;
            assert!(at(number).1[image..2 * image].iter().all(|&x| x == 20));
        }
    }

    #[test]
    fn probability_and_switch_are_fractions_of_the_batches() {
        let keys = MixingKeys { mixup: 0.8, cutmix: 1.0, probability: 0.6, switch: 0.25 };
        let mixing = Mixing::new(&keys, 1).unwrap();
        let (mut mixed, mut cut) = (0, 0);
        for number in 0..4000 {
            let mut images = batch(2);
            mixed += usize::from(mixing.mix(&mut images, number).is_some());
            // A rectangle leaves both values; a blend of 10 and 20 leaves one in each image.
            cut += usize::from(images.pixels[..3 * SIZE * SIZE].windows(2).any(|w| w[0] != w[1]));
        }
        assert!((2300..2500).contains(&mixed), "{mixed}");
        assert!((500..640).contains(&cut), "{cut}");
        assert!(Mixing::new(&MixingKeys::default(), 1).is_none());
    }

    /// Mean 1/2 and variance 1 / (4 (2 alpha + 1)).
    #[test]
    fn shares_have_the_moments_of_the_beta_distribution() {
        for alpha in [0.2, 0.8, 1.0, 2.0] {
            let mut draws = Draws::new(5);
            let shares: Vec<f64> = (0..20_000).map(|_| beta(&mut draws, alpha)).collect();
            let mean = shares.iter().sum::<f64>() / 20_000.0;
            let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 20_000.0;
            let want = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!(
                (mean - 0.5).abs() < 0.01 && (variance / want - 1.0).abs() < 0.05,
                "{alpha}: {mean} {variance}"
            );
        }
    }
}
