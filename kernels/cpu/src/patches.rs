//! Cuts images into patches: the input rows of the patch embedding's linear.

use std::sync::atomic::{AtomicBool, Ordering};

use half::f16;
use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{ImageEdge, ImageLayout, Images, Pixels, Quantizer, RowStore, Size, code_stride};

use crate::pool::{Parts, Pool};
use crate::rows::{RowOut, units_per_task};

/// Converts images to rows `[images * grid height * grid width, channels * patch * patch]`, where the grid of
/// patches is that of [`ImageEdge::grid`]. Columns are in (channel, y, x) order, as in a convolution's
/// weight. A table per channel maps each 8-bit pixel to its normalised value, converted for the store; values
/// that are normalised already are converted for the store one by one. What lies below or to the right of an
/// image has the normalised value 0.
///
/// Values come from tables or from the scalar [`Quantizer`], so every instruction set gives the same bits.
pub struct Patches {
    patch: usize,
    edge: ImageEdge,
    tables: Tables,
}

/// The stored value of each byte of each channel, and how other values are stored.
enum Tables {
    F32(Box<[[f32; 256]]>),
    Fake(Box<[[f32; 256]]>, Quantizer),
    Codes(Box<[[u8; 256]]>, Quantizer),
}

impl Tables {
    fn channels(&self) -> usize {
        match self {
            Tables::F32(tables) | Tables::Fake(tables, _) => tables.len(),
            Tables::Codes(tables, _) => tables.len(),
        }
    }
}

/// The stored code of the value `x`.
fn stored_code(quantizer: Quantizer, x: f32) -> u8 {
    quantizer.code(x).cast_unsigned() ^ 0x80
}

impl Patches {
    /// The op for patches of `patch` by `patch` pixels, at the right and at the bottom by `edge`;
    /// `lookup[channel][byte]` is the normalised value of a pixel.
    ///
    /// # Panics
    /// If `patch` is 0, if there are no channels, or if a patch would be larger than a slice can be.
    pub fn new(patch: usize, edge: ImageEdge, lookup: &[[f32; 256]], store: RowStore) -> Patches {
        let channels = lookup.len();
        assert!(patch > 0, "Patches: patches of 0 pixels");
        assert!(channels > 0, "Patches: images without channels");
        elements("Patches", "patch", &[patch, patch, channels]);
        let tables = match store {
            RowStore::F32 => Tables::F32(lookup.into()),
            RowStore::Fake(q) => {
                Tables::Fake(lookup.iter().map(|table| table.map(|x| q.fake(x))).collect(), q)
            }
            RowStore::Codes(q) => {
                Tables::Codes(lookup.iter().map(|table| table.map(|x| stored_code(q, x))).collect(), q)
            }
        };
        Patches { patch, edge, tables }
    }

    /// Reads `count` images and writes `[count * grid height * grid width, channels * patch * patch]`.
    /// Returns whether all values of the images are finite; otherwise the output is arbitrary.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, count: usize, images: Images<'_>, out: RowOut<'_>) -> bool {
        let Images { size: image, pixels, layout } = images;
        let (patch, channels) = (self.patch, self.tables.channels());
        let grid = self.edge.grid(image, patch);
        check_len("Patches", "pixels", pixels.len(), &[count, image.height, image.width, channels]);
        let columns = channels * patch * patch;
        let cut = |stride| Cut { patch, count, image, grid, channels, layout, stride };
        match (&self.tables, out) {
            (Tables::F32(tables), RowOut::F32(out)) => cut(columns).run(pool, pixels, tables, |x| x, out),
            (Tables::Fake(tables, q), RowOut::F32(out)) => {
                cut(columns).run(pool, pixels, tables, |x| q.fake(x), out)
            }
            (Tables::Codes(tables, q), RowOut::Codes(out)) => {
                cut(code_stride(columns)).run(pool, pixels, tables, |x| stored_code(*q, x), out)
            }
            (Tables::F32(_) | Tables::Fake(..), RowOut::Codes(_)) => {
                panic!("Patches: stores f32 and is given an output of codes")
            }
            (Tables::Codes(..), RowOut::F32(_)) => {
                panic!("Patches: stores codes and is given an output of f32")
            }
        }
    }
}

/// How values of the type `V` are stored.
trait Read<V>: Sync {
    /// The stored type.
    type To: Copy + Send + Sync;
    /// The conversion of the values of `channel`.
    fn of_channel(&self, channel: usize) -> impl Fn(V) -> Self::To;
    /// Whether all `values` are finite.
    fn finite(&self, values: &[V]) -> bool;
}

/// Reads bytes, by the table of their channel.
struct Lookup<'a, T>(&'a [[T; 256]]);

impl<T: Copy + Send + Sync> Read<u8> for Lookup<'_, T> {
    type To = T;

    #[inline(always)]
    fn of_channel(&self, channel: usize) -> impl Fn(u8) -> T {
        let table = &self.0[channel];
        |byte| table[usize::from(byte)]
    }

    fn finite(&self, _: &[u8]) -> bool {
        true
    }
}

/// Reads normalised values, which the function stores.
struct Normalised<F>(F);

impl<T: Copy + Send + Sync, F: Fn(f32) -> T + Sync> Read<f32> for Normalised<F> {
    type To = T;

    #[inline(always)]
    fn of_channel(&self, _: usize) -> impl Fn(f32) -> T {
        &self.0
    }

    fn finite(&self, values: &[f32]) -> bool {
        values.iter().fold(true, |finite, value| finite & value.is_finite())
    }
}

impl<T: Copy + Send + Sync, F: Fn(f32) -> T + Sync> Read<f16> for Normalised<F> {
    type To = T;

    #[inline(always)]
    fn of_channel(&self, _: usize) -> impl Fn(f16) -> T {
        |value| (self.0)(finite_to_f32(value))
    }

    fn finite(&self, values: &[f16]) -> bool {
        values.iter().fold(true, |finite, value| finite & value.is_finite())
    }
}

/// The f32 of a finite `value`, exactly: without a branch, so that loops over values are vectorised. The
/// exponent and the fraction, moved to their places in an f32, are the value times `2^-112`, also of
/// subnormal numbers.
#[inline(always)]
fn finite_to_f32(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// How images of one size are cut into rows.
struct Cut {
    patch: usize,
    count: usize,
    image: Size,
    /// Rows and columns of patches of an image.
    grid: Size,
    channels: usize,
    layout: ImageLayout,
    /// Values from one row of the output to the next.
    stride: usize,
}

impl Cut {
    /// Cuts all images: bytes are read from `tables`, normalised values are converted by `store`. Returns
    /// whether all are finite.
    fn run<T: Copy + Send + Sync>(
        &self,
        pool: &mut Pool,
        pixels: Pixels<'_>,
        tables: &[[T; 256]],
        store: impl Fn(f32) -> T + Sync,
        out: &mut [T],
    ) -> bool {
        let outside = store(0.0);
        match pixels {
            Pixels::U8(pixels) => self.bands(pool, pixels, &Lookup(tables), outside, out),
            Pixels::F32(pixels) => self.bands(pool, pixels, &Normalised(store), outside, out),
            Pixels::F16(pixels) => self.bands(pool, pixels, &Normalised(store), outside, out),
        }
    }

    /// Cuts all images, with one task for some bands: a band is a row of patches of an image. `outside` is
    /// stored for what lies outside of an image. Returns whether all values are finite.
    fn bands<V: Copy + Sync, R: Read<V>>(
        &self,
        pool: &mut Pool,
        pixels: &[V],
        read: &R,
        outside: R::To,
        out: &mut [R::To],
    ) -> bool {
        let Cut { patch, count, image, grid, channels, stride, .. } = *self;
        check_len("Patches", "output", out.len(), &[count, grid.height, grid.width, stride]);
        let (bands, values) = (count * grid.height, image.area() * channels);
        let each = units_per_task(bands, pool.threads(), 1);
        let (out, finite) = (Parts::new(out), AtomicBool::new(true));
        pool.run(bands.div_ceil(each), &|task, _| {
            for band in task * each..bands.min((task + 1) * each) {
                // SAFETY: bands are distinct, and each is written by the one task that holds it.
                let out = unsafe { out.get(band * grid.width * stride, grid.width * stride) };
                let (number, top) = (band / grid.height, band % grid.height * patch);
                let pixels = &pixels[number * values..][..values];
                if !self.band(top, pixels, read, outside, out) {
                    finite.store(false, Ordering::Relaxed);
                }
            }
        });
        finite.into_inner()
    }

    /// Cuts the band of the image `pixels` whose first line is `top`: first the patches that lie inside of
    /// the image, then the others. Returns whether all values of the band are finite.
    fn band<V: Copy, R: Read<V>>(
        &self,
        top: usize,
        pixels: &[V],
        read: &R,
        outside: R::To,
        out: &mut [R::To],
    ) -> bool {
        let Cut { patch, image, grid, channels, layout, stride, .. } = *self;
        let lines = patch.min(image.height - top);
        let inside = if lines == patch { grid.width.min(image.width / patch) } else { 0 };
        let (whole, parts) = out.split_at_mut(inside * stride);
        // With constants for the side of a patch and the number of channels, the loops are unrolled. All
        // published models have these.
        match (patch, channels, layout) {
            (4, 3, ImageLayout::ChannelsLast) => {
                self.whole((4, 3, ImageLayout::ChannelsLast), top, pixels, read, whole)
            }
            (4, 3, ImageLayout::ChannelsFirst) => {
                self.whole((4, 3, ImageLayout::ChannelsFirst), top, pixels, read, whole)
            }
            (1, _, ImageLayout::ChannelsLast) => self.pixels(top, pixels, read, whole),
            form => self.whole(form, top, pixels, read, whole),
        }
        for (x, out) in (inside..).zip(parts.chunks_exact_mut(stride)) {
            out.fill(outside);
            let part = Size::new(lines, patch.min(image.width - x * patch));
            self.part((patch, channels, layout), (top, x * patch), part, pixels, read, out);
        }
        self.runs(top, lines).all(|(start, len)| read.finite(&pixels[start..][..len]))
    }

    /// Start and length of each run of values of `lines` lines from `top` on.
    fn runs(&self, top: usize, lines: usize) -> impl Iterator<Item = (usize, usize)> {
        let Cut { image: Size { height, width }, channels, layout, .. } = *self;
        let (planes, line) = match layout {
            ImageLayout::ChannelsLast => (1, width * channels),
            ImageLayout::ChannelsFirst => (channels, width),
        };
        (0..planes).map(move |plane| ((plane * height + top) * line, lines * line))
    }

    /// Cuts patches that lie side by side inside of the image, from its left edge on.
    #[inline(always)]
    fn whole<V: Copy, R: Read<V>>(
        &self,
        form: (usize, usize, ImageLayout),
        top: usize,
        pixels: &[V],
        read: &R,
        out: &mut [R::To],
    ) {
        for (x, out) in out.chunks_exact_mut(self.stride).enumerate() {
            self.part(form, (top, x * form.0), Size::square(form.0), pixels, read, out);
        }
    }

    /// Writes the patches of a line, which are its pixels, channel by channel as they lie.
    fn pixels<V: Copy, R: Read<V>>(&self, line: usize, pixels: &[V], read: &R, out: &mut [R::To]) {
        let values = self.image.width * self.channels;
        let pixels = pixels[line * values..][..values].chunks_exact(self.channels);
        for (out, pixel) in out.chunks_exact_mut(self.stride).zip(pixels) {
            for (channel, (out, value)) in out.iter_mut().zip(pixel).enumerate() {
                *out = read.of_channel(channel)(*value);
            }
        }
    }

    /// Writes the part of a patch that lies inside of the image, from the pixel at `top`, `left` on. `form`
    /// is the side of a patch, the number of channels and the layout.
    #[inline(always)]
    fn part<V: Copy, R: Read<V>>(
        &self,
        (patch, channels, layout): (usize, usize, ImageLayout),
        (top, left): (usize, usize),
        part: Size,
        pixels: &[V],
        read: &R,
        out: &mut [R::To],
    ) {
        let Size { height, width } = self.image;
        for y in 0..part.height {
            for channel in 0..channels {
                let out = &mut out[(channel * patch + y) * patch..][..part.width];
                let stored = read.of_channel(channel);
                match layout {
                    ImageLayout::ChannelsLast => {
                        let line = &pixels[((top + y) * width + left) * channels..][..part.width * channels];
                        for (out, pixel) in out.iter_mut().zip(line.chunks_exact(channels)) {
                            *out = stored(pixel[channel]);
                        }
                    }
                    ImageLayout::ChannelsFirst => {
                        let line = &pixels[(channel * height + top + y) * width + left..][..part.width];
                        for (out, value) in out.iter_mut().zip(line) {
                            *out = stored(*value);
                        }
                    }
                }
            }
        }
    }
}

/// Adds `table` to each of the rows of `x`: `x[image, i] += table[i]` (absolute position embedding).
///
/// # Panics
/// Unless the length of `table` divides that of `x`.
pub fn add_table(pool: &mut Pool, x: &mut [f32], table: &[f32]) {
    if x.is_empty() {
        return;
    }
    let len = table.len();
    assert!(x.len().is_multiple_of(len), "add_table: {len} does not divide {}", x.len());
    let images = x.len() / len;
    let each = units_per_task(len, pool.threads(), 1024);
    let tasks = len.div_ceil(each);
    let parts = Parts::new(x);
    pool.run(images * tasks, &|task, _| {
        let (image, from) = (task / tasks, task % tasks * each);
        let table = &table[from..len.min(from + each)];
        // SAFETY: a task's part is the run `from..` of one image, which no other task has.
        let x = unsafe { parts.get(image * len + from, table.len()) };
        x.iter_mut().zip(table).for_each(|(x, t)| *x += t);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_f16_is_converted_exactly() {
        let finite = (0..=u16::MAX).map(f16::from_bits).filter(|value| value.is_finite());
        for value in finite {
            assert_eq!(finite_to_f32(value).to_bits(), value.to_f32().to_bits(), "{value:?}");
        }
    }
}
