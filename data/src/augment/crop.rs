//! Random crops of a source image, as torchvision defines them.

use swinq_model::Draws;

use crate::decode::RgbImage;
use crate::resize::{copy_window, place_on_black};

/// Number of random rectangles that are tried.
pub(super) const ATTEMPTS: usize = 10;

/// A rectangle in pixels of a source image. It may reach beyond the image; pixels outside the image are
/// black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// Column of its left edge.
    pub left: isize,
    /// Row of its upper edge.
    pub top: isize,
    /// Width; not zero.
    pub width: usize,
    /// Height; not zero.
    pub height: usize,
}

impl CropBox {
    /// Copies the pixels of `image` inside the rectangle.
    pub(super) fn extract(self, image: &RgbImage) -> RgbImage {
        let (columns, left_padding) = overlap(self.left, self.width, image.width);
        let (rows, top_padding) = overlap(self.top, self.height, image.height);
        let inside = copy_window(image, columns, rows);
        place_on_black(inside, (self.width, self.height), (left_padding, top_padding))
    }
}

/// The part of `start..start + length` inside `0..limit`, and the number of its positions below 0.
fn overlap(start: isize, length: usize, limit: usize) -> (std::ops::Range<usize>, usize) {
    let before = start.min(0).unsigned_abs().min(length);
    let first = start.max(0).unsigned_abs().min(limit);
    let end = (first + length - before).min(limit);
    (first..end.max(first), before)
}

/// A rectangle of random area and aspect ratio, as in torchvision's `RandomResizedCrop` (Szegedy et al.,
/// "Going deeper with convolutions", 2015).
///
/// Its fraction of the image's area is uniform in `scale`, its width / height is log-uniform in `ratio`, and
/// its position is uniform. If none of [`ATTEMPTS`] rectangles fits into the image, the result is
/// [`central`].
pub(super) fn random_resized(
    draws: &mut Draws,
    (width, height): (usize, usize),
    scale: [f64; 2],
    ratio: [f64; 2],
) -> CropBox {
    for _ in 0..ATTEMPTS {
        let (w, h) = random_sides(draws, (width, height), scale, ratio);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = draws.below(height - h + 1) as isize;
            let left = draws.below(width - w + 1) as isize;
            return CropBox { left, top, width: w, height: h };
        }
    }
    central((width, height), ratio)
}

/// Two sides of a rectangle: its fraction of the area of an image of `size` is uniform in `scale`, and the
/// ratio of the first side to the second is log-uniform in `ratio`.
pub(super) fn random_sides(
    draws: &mut Draws,
    size: (usize, usize),
    scale: [f64; 2],
    ratio: [f64; 2],
) -> (usize, usize) {
    let area_fraction = draws.between(scale);
    // libm's functions, because the system's give different results on different platforms.
    let aspect = libm::exp(draws.between(ratio.map(libm::log)));
    sides(size, area_fraction, aspect)
}

/// Width and height, each rounded half to even, of the rectangle with `area_fraction` of the image's area and
/// the aspect ratio (width / height) `aspect`.
fn sides((width, height): (usize, usize), area_fraction: f64, aspect: f64) -> (usize, usize) {
    let area = (width * height) as f64 * area_fraction;
    let round = |side: f64| side.sqrt().round_ties_even() as usize;
    (round(area * aspect), round(area / aspect))
}

/// The largest central rectangle whose width / height lies within the range given.
fn central((width, height): (usize, usize), [low, high]: [f64; 2]) -> CropBox {
    let aspect = width as f64 / height as f64;
    let round = |side: f64| (side.round_ties_even() as usize).max(1);
    let (w, h) = if aspect < low {
        (width, round(width as f64 / low))
    } else if aspect > high {
        (round(height as f64 * high), height)
    } else {
        (width, height)
    };
    CropBox { left: ((width - w) / 2) as isize, top: ((height - h) / 2) as isize, width: w, height: h }
}

/// A rectangle of the image's own size, shifted along each axis by a uniform offset in `-padding..=padding`
/// (torchvision's `RandomCrop` with padding).
pub(super) fn padded(draws: &mut Draws, (width, height): (usize, usize), padding: usize) -> CropBox {
    let mut shift = || draws.below(2 * padding + 1) as isize - padding as isize;
    let top = shift();
    CropBox { left: shift(), top, width, height }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_cut_at_both_ends() {
        assert_eq!(overlap(2, 3, 10), (2..5, 0));
        assert_eq!(overlap(-2, 5, 10), (0..3, 2));
        assert_eq!(overlap(8, 5, 10), (8..10, 0));
        assert_eq!(overlap(-7, 5, 10), (0..0, 5));
        assert_eq!(overlap(12, 5, 10), (10..10, 0));
        assert_eq!(overlap(-1, 12, 10), (0..10, 1));
    }

    #[test]
    fn pixels_outside_the_image_are_black() {
        let image = RgbImage::new(2, 2, (1..=12).collect());
        let moved = CropBox { left: -1, top: 1, width: 2, height: 2 }.extract(&image);
        assert_eq!(moved.pixels, [0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0]);
        let gone = CropBox { left: 5, top: -9, width: 2, height: 1 }.extract(&image);
        assert_eq!(gone, RgbImage::new(2, 1, vec![0; 6]));
    }

    /// A line of the table holds `s` ([`sides`]) or `c` ([`central`]), the image's size, two parameters and
    /// the expected rectangle.
    #[test]
    fn rectangles_equal_torchvisions() {
        let table = include_str!("../../tests/fixtures/crops.tsv");
        for line in table.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |i: usize| fields[i].parse::<f64>().unwrap();
            let size = (number(1) as usize, number(2) as usize);
            let (a, b) = (number(3), number(4));
            let found = match fields[0] {
                "s" => {
                    let (width, height) = sides(size, a, b);
                    CropBox { left: 0, top: 0, width, height }
                }
                _ => central(size, [a, b]),
            };
            let expected: Vec<isize> = fields[5..].iter().map(|field| field.parse().unwrap()).collect();
            assert_eq!(
                [found.left, found.top, found.width as isize, found.height as isize],
                expected[..],
                "{line}"
            );
        }
        assert!(table.lines().count() > 100);
    }

    #[test]
    fn random_rectangles_cover_their_ranges_and_stay_inside() {
        let (size, scale, ratio) = ((400, 300), [0.08, 1.0], [0.75, 4.0 / 3.0]);
        let (mut areas, mut aspects, mut lefts) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..4000 {
            let b = random_resized(&mut Draws::keyed(&[1, index]), size, scale, ratio);
            assert!(b.left >= 0 && b.top >= 0, "{b:?}");
            assert!(b.left as usize + b.width <= 400 && b.top as usize + b.height <= 300, "{b:?}");
            areas.push((b.width * b.height) as f64 / 120_000.0);
            aspects.push((b.width as f64 / b.height as f64).ln());
            lefts.push(b.left as f64 / (400 - b.width).max(1) as f64);
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let range = |values: &[f64]| {
            (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(f64::MIN, f64::max))
        };
        let (low, high) = range(&areas);
        assert!((0.078..0.09).contains(&low) && (0.95..=1.0).contains(&high), "{low} {high}");
        let limit = (4.0_f64 / 3.0).ln();
        let (low, high) = range(&aspects);
        // Rounding the sides to whole pixels changes the ratio by less than 1 %.
        assert!((-limit - 0.01..-limit + 0.01).contains(&low), "{low}");
        assert!((limit - 0.01..limit + 0.01).contains(&high), "{high}");
        // The position is uniform in 0..1: the mean's standard deviation is 0.0046, and the bound is five of
        // them.
        assert!((mean(&lefts) - 0.5).abs() < 0.023, "{}", mean(&lefts));
    }

    #[test]
    fn padded_rectangles_take_every_position_equally_often() {
        let mut counts = [[0_u32; 5]; 5];
        for index in 0..5000 {
            let b = padded(&mut Draws::keyed(&[2, index]), (8, 6), 2);
            assert_eq!((b.width, b.height), (8, 6));
            counts[(b.left + 2) as usize][(b.top + 2) as usize] += 1;
        }
        // The expected count is 200 with a standard deviation of 13.9, and the bound is five of them.
        assert!(counts.as_flattened().iter().all(|count| (130..=270).contains(count)), "{counts:?}");
        let unmoved = padded(&mut Draws::new(0), (8, 6), 0);
        assert_eq!(unmoved, CropBox { left: 0, top: 0, width: 8, height: 6 });
    }
}
