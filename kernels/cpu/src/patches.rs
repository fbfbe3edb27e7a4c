//! Cuts images into patches: the input rows of the patch embedding's linear.

use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{RowStore, Size, code_stride};

use crate::pool::{Parts, Pool};
use crate::rows::{RowOut, units_per_task};

/// The most channels of an image.
const MAX_CHANNELS: usize = 16;

/// Converts u8 NHWC images to rows `[images * grid height * grid width, channels * patch * patch]`, where the grid has
/// `ceil(height / patch)` by `ceil(width / patch)` patches. Columns are in (channel, y, x) order, as in a convolution's
/// weight. A table per channel maps each pixel to its normalised value, converted for the store. What lies below or to the
/// right of an image has the normalised value 0.
///
/// Values come from tables, so every instruction set gives the same bits.
pub struct Patches {
    patch: usize,
    tables: Tables,
}

/// The stored value of each byte of each channel.
enum Tables {
    F32(Box<[[f32; 256]]>),
    Codes(Box<[[u8; 256]]>),
}

impl Tables {
    fn channels(&self) -> usize {
        match self {
            Tables::F32(tables) => tables.len(),
            Tables::Codes(tables) => tables.len(),
        }
    }
}

impl Patches {
    /// The op for patches of `patch` by `patch` pixels; `lookup[channel][byte]` is the normalised value of a pixel.
    ///
    /// # Panics
    /// If `patch` is 0, if there are no channels or more than 16, or if a patch would be larger than a slice can be.
    pub fn new(patch: usize, lookup: &[[f32; 256]], store: RowStore) -> Patches {
        let channels = lookup.len();
        assert!(patch > 0, "Patches: patches of 0 pixels");
        assert!(
            (1..=MAX_CHANNELS).contains(&channels),
            "Patches: {channels} channels are not 1 to {MAX_CHANNELS}"
        );
        elements("Patches", "patch", &[patch, patch, channels]);
        let tables = match store {
            RowStore::F32 => Tables::F32(lookup.into()),
            RowStore::Fake(q) => Tables::F32(lookup.iter().map(|table| table.map(|x| q.fake(x))).collect()),
            RowStore::Codes(q) => {
                let code = |x| q.code(x).cast_unsigned() ^ 0x80;
                Tables::Codes(lookup.iter().map(|table| table.map(code)).collect())
            }
        };
        Patches { patch, tables }
    }

    /// Reads `pixels`, u8 `[images, image.height, image.width, channels]`; writes
    /// `[images * grid height * grid width, channels * patch * patch]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, images: usize, image: Size, pixels: &[u8], out: RowOut<'_>) {
        let (patch, channels) = (self.patch, self.tables.channels());
        check_len("Patches", "pixels", pixels.len(), &[images, image.height, image.width, channels]);
        let columns = channels * patch * patch;
        match (&self.tables, out) {
            (Tables::F32(tables), RowOut::F32(out)) => {
                Cut { patch, image, tables, outside: 0.0, stride: columns }.run(pool, images, pixels, out);
            }
            (Tables::Codes(tables), RowOut::Codes(out)) => {
                let stride = code_stride(columns);
                Cut { patch, image, tables, outside: 128, stride }.run(pool, images, pixels, out);
            }
            (Tables::F32(_), RowOut::Codes(_)) => {
                panic!("Patches: stores f32 and is given an output of codes")
            }
            (Tables::Codes(_), RowOut::F32(_)) => {
                panic!("Patches: stores codes and is given an output of f32")
            }
        }
    }
}

/// How images of one size are cut into rows of one type.
struct Cut<'a, T> {
    patch: usize,
    image: Size,
    tables: &'a [[T; 256]],
    /// The value of what lies outside of the image.
    outside: T,
    /// Values from one row of the output to the next.
    stride: usize,
}

impl<T: Copy + Send + Sync> Cut<'_, T> {
    /// Cuts all images, with one task for some bands: a band is a row of patches of an image.
    fn run(&self, pool: &mut Pool, images: usize, pixels: &[u8], out: &mut [T]) {
        let Cut { patch, image, tables, stride, .. } = *self;
        let grid = image.map(|pixels| pixels.div_ceil(patch));
        check_len("Patches", "output", out.len(), &[images, grid.height, grid.width, stride]);
        let (bands, line) = (images * grid.height, image.width * tables.len());
        let each = units_per_task(bands, pool.threads(), 1);
        let out = Parts::new(out);
        pool.run(bands.div_ceil(each), &|task, _| {
            for band in task * each..bands.min((task + 1) * each) {
                // SAFETY: bands are distinct, and each is written by the one task that holds it.
                let out = unsafe { out.get(band * grid.width * stride, grid.width * stride) };
                let (number, y) = (band / grid.height, band % grid.height * patch);
                let lines = patch.min(image.height - y);
                let pixels = &pixels[(number * image.height + y) * line..][..lines * line];
                self.band(lines, pixels, out);
            }
        });
    }

    /// Cuts a band with `lines` lines of pixels in the image: first the patches that lie inside of it, then the others.
    fn band(&self, lines: usize, pixels: &[u8], out: &mut [T]) {
        let Cut { patch, image, tables, outside, stride } = *self;
        let inside = if lines == patch { image.width / patch } else { 0 };
        let (whole, parts) = out.split_at_mut(inside * stride);
        // With a constant side of a patch and number of channels, the loops are unrolled. All published models have these.
        match (patch, tables) {
            (4, [_, _, _]) => self.whole(4, &tables[..3], pixels, whole),
            _ => self.whole(patch, tables, pixels, whole),
        }
        for (x, out) in (inside..).zip(parts.chunks_exact_mut(stride)) {
            out.fill(outside);
            let part = Size::new(lines, patch.min(image.width - x * patch));
            self.part(patch, tables, x, part, pixels, out);
        }
    }

    /// Cuts patches that lie side by side inside of the image, from its left edge on.
    #[inline(always)]
    fn whole(&self, patch: usize, tables: &[[T; 256]], pixels: &[u8], out: &mut [T]) {
        for (x, out) in out.chunks_exact_mut(self.stride).enumerate() {
            self.part(patch, tables, x, Size::square(patch), pixels, out);
        }
    }

    /// Writes the part of patch `x` of a band that lies inside of the image.
    #[inline(always)]
    fn part(&self, patch: usize, tables: &[[T; 256]], x: usize, part: Size, pixels: &[u8], out: &mut [T]) {
        let channels = tables.len();
        for y in 0..part.height {
            let line = &pixels[(y * self.image.width + x * patch) * channels..][..part.width * channels];
            for (channel, table) in tables.iter().enumerate() {
                let out = &mut out[(channel * patch + y) * patch..][..part.width];
                for (out, pixel) in out.iter_mut().zip(line.chunks_exact(channels)) {
                    *out = table[usize::from(pixel[channel])];
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
