//! Cuts images into patches: the input rows of the patch embedding's linear.

use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{RowStore, code_stride};

use crate::pool::{Parts, Pool};
use crate::rows::{RowOut, units_per_task};

/// Converts u8 NHWC RGB images to rows `[images * (size / patch)^2, 3 * patch * patch]`. Columns are in
/// (channel, y, x) order, as in a convolution's weight. A table per channel maps each pixel to its normalised
/// value, converted for the store.
///
/// Values come from tables, so every instruction set gives the same bits.
pub struct Patches {
    size: usize,
    patch: usize,
    tables: Tables,
}

/// The stored value of each byte of each channel.
enum Tables {
    F32(Box<[[f32; 256]; 3]>),
    Codes(Box<[[u8; 256]; 3]>),
}

impl Patches {
    /// The op for images of `size` by `size` pixels and patches of `patch` by `patch`;
    /// `lookup[channel][byte]` is the normalised value of a pixel.
    ///
    /// # Panics
    /// If `patch` is 0 or does not divide `size`, or if an image would be larger than a slice can be.
    pub fn new(size: usize, patch: usize, lookup: &[[f32; 256]; 3], store: RowStore) -> Patches {
        assert!(patch > 0 && size.is_multiple_of(patch), "Patches: {patch} does not divide the size {size}");
        elements("Patches", "image", &[size, size, 3]);
        elements("Patches", "patch", &[patch, patch, 3]);
        let tables = match store {
            RowStore::F32 => Tables::F32(Box::new(*lookup)),
            RowStore::Fake(q) => Tables::F32(Box::new(lookup.map(|table| table.map(|x| q.fake(x))))),
            RowStore::Codes(q) => {
                let code = |x| q.code(x).cast_unsigned() ^ 0x80;
                Tables::Codes(Box::new(lookup.map(|table| table.map(code))))
            }
        };
        Patches { size, patch, tables }
    }

    /// Reads `pixels`, u8 `[images, size, size, 3]`; writes `[images * (size / patch)^2, 3 * patch * patch]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, images: usize, pixels: &[u8], out: RowOut<'_>) {
        check_len("Patches", "pixels", pixels.len(), &[images, self.size, self.size, 3]);
        let columns = 3 * self.patch * self.patch;
        match (&self.tables, out) {
            (Tables::F32(tables), RowOut::F32(out)) => self.cut(pool, images, pixels, tables, columns, out),
            (Tables::Codes(tables), RowOut::Codes(out)) => {
                self.cut(pool, images, pixels, tables, code_stride(columns), out);
            }
            (Tables::F32(_), RowOut::Codes(_)) => {
                panic!("Patches: stores f32 and is given an output of codes")
            }
            (Tables::Codes(_), RowOut::F32(_)) => {
                panic!("Patches: stores codes and is given an output of f32")
            }
        }
    }

    /// Cuts all images, with one task for each row of patches of an image.
    fn cut<T: Copy + Send + Sync>(
        &self,
        pool: &mut Pool,
        images: usize,
        pixels: &[u8],
        tables: &[[T; 256]; 3],
        stride: usize,
        out: &mut [T],
    ) {
        let grid = self.size / self.patch;
        check_len("Patches", "output", out.len(), &[images, grid, grid, stride]);
        let bands = images * grid;
        let band_bytes = self.patch * self.size * 3;
        let each = units_per_task(bands, pool.threads(), 1);
        let out = Parts::new(out);
        pool.run(bands.div_ceil(each), &|task, _| {
            for band in task * each..bands.min((task + 1) * each) {
                // SAFETY: bands are distinct, and each is written by the one task that holds it.
                let out = unsafe { out.get(band * grid * stride, grid * stride) };
                let pixels = &pixels[band * band_bytes..][..band_bytes];
                // With a constant side of a patch, its loops are unrolled. All published models have patches of 4.
                match self.patch {
                    4 => self.band(4, pixels, tables, stride, out),
                    patch => self.band(patch, pixels, tables, stride, out),
                }
            }
        });
    }

    /// Cuts `patch` rows of pixels into `size / patch` patches.
    #[inline(always)]
    fn band<T: Copy>(
        &self,
        patch: usize,
        pixels: &[u8],
        tables: &[[T; 256]; 3],
        stride: usize,
        out: &mut [T],
    ) {
        for (x, out) in out.chunks_exact_mut(stride).enumerate() {
            for y in 0..patch {
                let line = &pixels[(y * self.size + x * patch) * 3..][..patch * 3];
                for (channel, table) in tables.iter().enumerate() {
                    let out = &mut out[(channel * patch + y) * patch..][..patch];
                    for (out, pixel) in out.iter_mut().zip(line.chunks_exact(3)) {
                        *out = table[usize::from(pixel[channel])];
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
