//! Pillow's antialiased resampling of 8-bit RGB images, bit for bit.
//!
//! The filter is widened by the downscale factor. Its weights are computed in f64, normalised, and rounded to
//! fixed point with 22 fraction bits. The first pass rounds its result to `u8`, and the second pass reads
//! those bytes (Pillow's `src/libImaging/Resample.c`). A pass that does not change the size is skipped. Only
//! the requested window of the result is computed; its pixels equal those of the full result.
//!
//! The order of the passes is that of Pillow 13 (see [`vertical_first`]). Pillow 12 and earlier always run
//! the horizontal pass first, which rounds differently where the aspect ratio changes much.

use std::ops::Range;

use swinq_model::Filter;

use crate::decode::RgbImage;

/// Fraction bits of a weight: 32, less 8 for the pixel and 2 for the sign and overshoot.
const PRECISION: u32 = 22;
/// One half in fixed point. Every sum starts with it, so that the final shift rounds to the nearest integer.
const HALF: i32 = 1 << (PRECISION - 1);

/// Resizes `image` to `width x height` and returns the part of the result in the window `columns` x `rows`.
///
/// # Panics
/// If a size is zero or the window reaches beyond the result.
pub(crate) fn resize_window(
    image: &RgbImage,
    (width, height): (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> RgbImage {
    assert!(image.width > 0 && image.height > 0 && width > 0 && height > 0, "sizes must not be zero");
    assert!(columns.end <= width && rows.end <= height, "the window must lie inside the result");
    let taps = |from, to, window, needed: bool| needed.then(|| Taps::new(from, to, window, filter));
    let horizontal = taps(image.width, width, columns.clone(), width != image.width);
    let vertical = taps(image.height, height, rows.clone(), height != image.height);
    match (horizontal, vertical) {
        (None, None) => copy_window(image, columns, rows),
        (Some(horizontal), None) => horizontal_pass(image, rows, &horizontal, 0),
        (None, Some(vertical)) => vertical_pass(image, columns, &vertical, 0),
        (Some(horizontal), Some(vertical)) if vertical_first(image, width, height) => {
            let columns = horizontal.span();
            let first = vertical_pass(image, columns.clone(), &vertical, 0);
            horizontal_pass(&first, 0..first.height, &horizontal, columns.start)
        }
        (Some(horizontal), Some(vertical)) => {
            let rows = vertical.span();
            let first = horizontal_pass(image, rows.clone(), &horizontal, 0);
            vertical_pass(&first, 0..first.width, &vertical, rows.start)
        }
    }
}

/// Whether Pillow 13 runs the vertical pass first, which it does if that pass removes more than twice as many
/// rows as the horizontal pass removes columns.
fn vertical_first(image: &RgbImage, width: usize, height: usize) -> bool {
    image.height.saturating_sub(height) > 2 * image.width.saturating_sub(width)
}

/// The filter weights of consecutive output positions along one axis.
struct Taps {
    /// First source position of each output.
    first: Vec<usize>,
    /// Number of source positions of each output; at most `stride`.
    count: Vec<usize>,
    /// `stride` fixed-point weights per output, zero beyond its count.
    weights: Vec<i32>,
    stride: usize,
}

impl Taps {
    /// Weights of the outputs `window` of an axis resized from `from` to `to` positions.
    fn new(from: usize, to: usize, window: Range<usize>, filter: Filter) -> Taps {
        let scale = from as f64 / to as f64;
        let widened = scale.max(1.0);
        let support = radius(filter) * widened;
        let stride = support.ceil() as usize * 2 + 1;
        let mut taps =
            Taps { first: Vec::new(), count: Vec::new(), weights: vec![0; stride * window.len()], stride };
        let mut exact = vec![0.0; stride];
        for (index, row) in window.zip(taps.weights.chunks_exact_mut(stride)) {
            let center = (index as f64 + 0.5) * scale;
            // `as` truncates and saturates at zero, which combines Pillow's conversion and clamp.
            let first = (center - support + 0.5) as usize;
            let count = ((center + support + 0.5) as usize).min(from) - first;
            for (tap, weight) in exact[..count].iter_mut().enumerate() {
                let distance = (tap as f64 + first as f64 - center + 0.5) * (1.0 / widened);
                *weight = filter_value(filter, distance);
            }
            let sum: f64 = exact[..count].iter().sum();
            for (fixed, weight) in row.iter_mut().zip(&exact[..count]) {
                *fixed = to_fixed(if sum == 0.0 { *weight } else { weight / sum });
            }
            taps.first.push(first);
            taps.count.push(count);
        }
        taps
    }

    fn len(&self) -> usize {
        self.first.len()
    }

    /// First source position and weights of output `index`.
    fn of(&self, index: usize) -> (usize, &[i32]) {
        let start = index * self.stride;
        (self.first[index], &self.weights[start..start + self.count[index]])
    }

    /// The range of source positions that the outputs read.
    fn span(&self) -> Range<usize> {
        let first = self.first.first().copied().unwrap_or(0);
        let end = self.first.iter().zip(&self.count).map(|(first, count)| first + count).max();
        first..end.unwrap_or(first)
    }
}

/// Half of the filter's width, in source positions, when it is not widened.
fn radius(filter: Filter) -> f64 {
    match filter {
        Filter::Bicubic => 2.0,
        Filter::Bilinear => 1.0,
    }
}

/// The filter's value at distance `x`: Keys' cubic (1981) with a = -0.5, or the triangle.
fn filter_value(filter: Filter, x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    match filter {
        Filter::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        Filter::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        Filter::Bilinear if x < 1.0 => 1.0 - x,
        _ => 0.0,
    }
}

/// Converts a weight to fixed point, rounding half away from zero.
fn to_fixed(weight: f64) -> i32 {
    let half = if weight < 0.0 { -0.5 } else { 0.5 };
    (half + weight * f64::from(1 << PRECISION)) as i32
}

/// Converts a sum that started with [`HALF`] to a byte: rounded and clamped.
fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Copies the window `columns` x `rows` of `image`.
pub(crate) fn copy_window(image: &RgbImage, columns: Range<usize>, rows: Range<usize>) -> RgbImage {
    let (width, height) = (columns.len(), rows.len());
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in rows {
        let row = y * image.width;
        pixels.extend_from_slice(&image.pixels[(row + columns.start) * 3..(row + columns.end) * 3]);
    }
    RgbImage { width, height, pixels }
}

/// Places `image` on a black image of `width x height`, with its top left corner at column `left` and row
/// `top`. The image must fit.
pub(crate) fn place_on_black(
    image: RgbImage,
    (width, height): (usize, usize),
    (left, top): (usize, usize),
) -> RgbImage {
    if (image.width, image.height) == (width, height) {
        return image;
    }
    let mut pixels = vec![0; width * height * 3];
    let rows = image.pixels.chunks_exact((image.width * 3).max(1));
    for (source, y) in rows.zip(top..) {
        let start = (y * width + left) * 3;
        pixels[start..start + source.len()].copy_from_slice(source);
    }
    RgbImage { width, height, pixels }
}

/// The horizontal pass over the source rows `rows`. Column 0 of `image` is position `origin` of the axis that
/// `taps` refers to.
fn horizontal_pass(image: &RgbImage, rows: Range<usize>, taps: &Taps, origin: usize) -> RgbImage {
    let (width, height) = (taps.len(), rows.len());
    let mut pixels = vec![0; width * height * 3];
    if pixels.is_empty() {
        return RgbImage { width, height, pixels };
    }
    let sources = image.pixels.chunks_exact(image.width * 3).skip(rows.start);
    for (source, out) in sources.zip(pixels.chunks_exact_mut(width * 3)) {
        let (source, _) = source.as_chunks::<3>();
        let (out, _) = out.as_chunks_mut::<3>();
        for (index, pixel) in out.iter_mut().enumerate() {
            let (first, weights) = taps.of(index);
            let first = first - origin;
            let mut sums = [HALF; 3];
            for (&[red, green, blue], &weight) in source[first..first + weights.len()].iter().zip(weights) {
                sums[0] += i32::from(red) * weight;
                sums[1] += i32::from(green) * weight;
                sums[2] += i32::from(blue) * weight;
            }
            *pixel = sums.map(to_byte);
        }
    }
    RgbImage { width, height, pixels }
}

/// The vertical pass over the source columns `columns`. Row 0 of `image` is position `origin` of the axis
/// that `taps` refers to.
fn vertical_pass(image: &RgbImage, columns: Range<usize>, taps: &Taps, origin: usize) -> RgbImage {
    let (width, height) = (columns.len(), taps.len());
    let mut pixels = vec![0; width * height * 3];
    if pixels.is_empty() {
        return RgbImage { width, height, pixels };
    }
    let mut sums = vec![HALF; width * 3];
    for (index, out) in pixels.chunks_exact_mut(width * 3).enumerate() {
        let (first, weights) = taps.of(index);
        sums.fill(HALF);
        for (row, &weight) in (first - origin..).zip(weights) {
            let start = (row * image.width + columns.start) * 3;
            for (sum, &byte) in sums.iter_mut().zip(&image.pixels[start..start + width * 3]) {
                *sum += i32::from(byte) * weight;
            }
        }
        for (byte, &sum) in out.iter_mut().zip(&sums) {
            *byte = to_byte(sum);
        }
    }
    RgbImage { width, height, pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(width: usize, height: usize) -> RgbImage {
        RgbImage::new(width, height, swinq_testing::Rng(1).bytes(width * height * 3))
    }

    #[test]
    fn a_window_equals_the_same_part_of_the_full_result() {
        let image = noise(61, 47);
        for (width, height) in [(29, 83), (60, 20), (61, 20), (100, 47), (61, 47), (7, 5)] {
            for filter in [Filter::Bicubic, Filter::Bilinear] {
                let whole = resize_window(&image, (width, height), 0..width, 0..height, filter);
                let (columns, rows) = (width / 3..width - 1, height / 4..height - 2);
                let part = resize_window(&image, (width, height), columns.clone(), rows.clone(), filter);
                assert_eq!(part, copy_window(&whole, columns, rows), "{width} x {height}");
                assert!(whole.pixels.iter().any(|&byte| byte != whole.pixels[0]));
            }
        }
    }

    #[test]
    fn a_constant_stays_constant() {
        for value in [0, 1, 127, 255] {
            let image = RgbImage::new(13, 9, vec![value; 13 * 9 * 3]);
            let resized = resize_window(&image, (40, 3), 0..40, 0..3, Filter::Bicubic);
            assert!(resized.pixels.iter().all(|&byte| byte == value), "{value}");
        }
    }

    #[test]
    fn weights_sum_to_one() {
        for (from, to) in [(1, 9), (500, 341), (375, 256), (7, 7000), (7000, 7)] {
            let taps = Taps::new(from, to, 0..to, Filter::Bicubic);
            for index in 0..to {
                let (first, weights) = taps.of(index);
                let error = (weights.iter().sum::<i32>() - (1 << PRECISION)).abs();
                assert!(error <= weights.len() as i32 && first + weights.len() <= from);
            }
        }
    }
}
