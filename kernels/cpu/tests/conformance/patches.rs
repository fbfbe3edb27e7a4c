//! Conformance of patch cutting and of the position table.

use crate::support::{Rng, assert_sizes_leave_no_trace, assert_varied, step};
use swinq_kernels::{Patches, Pool, RowOut, add_table};
use swinq_numerics::{Images, RowStore, Size, code_stride};

/// The normalised value of each byte of each channel.
fn lookup(channels: usize) -> Vec<[f32; 256]> {
    let table = |channel| {
        let (std, mean) = (0.229 - 0.002 * channel as f32, 0.485 - 0.019 * channel as f32);
        std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std)
    };
    (0..channels).map(table).collect()
}

fn of_bytes(size: Size, pixels: &[u8]) -> Images<'_> {
    Images::new(size, pixels)
}

/// Images of one size, and how they are cut.
#[derive(Debug)]
struct Case {
    images: usize,
    image: Size,
    patch: usize,
    channels: usize,
}

impl Case {
    fn new(images: usize, (height, width): (usize, usize), patch: usize, channels: usize) -> Case {
        Case { images, image: Size::new(height, width), patch, channels }
    }

    fn columns(&self) -> usize {
        self.channels * self.patch * self.patch
    }

    fn pixels(&self) -> Vec<u8> {
        Rng(self.image.area() as u64).bytes(self.images * self.image.area() * self.channels)
    }

    /// Patches, computed element by element from the definition.
    fn cut(&self, pixels: &[u8]) -> Vec<f32> {
        let Case { images, image, patch, channels } = *self;
        let (grid, lookup) = (image.map(|pixels| pixels.div_ceil(patch)), lookup(channels));
        let value = |index: usize, y: usize, x: usize, channel: usize| {
            if y >= image.height || x >= image.width {
                return 0.0;
            }
            let byte = pixels[((index * image.height + y) * image.width + x) * channels + channel];
            lookup[channel][usize::from(byte)]
        };
        let mut out = Vec::new();
        for (index, i) in (0..images).flat_map(|index| (0..grid.area()).map(move |i| (index, i))) {
            let (top, left) = (i / grid.width * patch, i % grid.width * patch);
            for column in 0..self.columns() {
                let (channel, y, x) = (column / (patch * patch), column / patch % patch, column % patch);
                out.push(value(index, top + y, left + x, channel));
            }
        }
        out
    }

    /// Panics unless the patches, in each form and cut by `threads` threads, are those of the definition.
    fn check(&self, threads: usize) {
        let Case { images, image, patch, channels } = *self;
        let (pixels, quantizer, mut pool) = (self.pixels(), step(2.0 / 127.0), Pool::new(threads));
        let want = self.cut(&pixels);
        let op = |store| Patches::new(patch, &lookup(channels), store);
        let mut out = vec![f32::NAN; want.len()];
        op(RowStore::F32).run(&mut pool, images, of_bytes(image, &pixels), RowOut::F32(&mut out));
        assert_eq!(out, want, "{self:?}");
        assert_varied(&out, "patches");
        op(RowStore::Fake(quantizer)).run(&mut pool, images, of_bytes(image, &pixels), RowOut::F32(&mut out));
        assert_eq!(out, want.iter().map(|&x| quantizer.fake(x)).collect::<Vec<_>>(), "{self:?}");
        let (columns, stride) = (self.columns(), code_stride(self.columns()));
        let mut codes = vec![7; want.len() / columns * stride];
        op(RowStore::Codes(quantizer)).run(
            &mut pool,
            images,
            of_bytes(image, &pixels),
            RowOut::Codes(&mut codes),
        );
        for (got, want) in codes.chunks_exact(stride).zip(want.chunks_exact(columns)) {
            let want: Vec<u8> = want.iter().map(|&x| quantizer.code(x).cast_unsigned() ^ 0x80).collect();
            assert_eq!(got[..columns], want, "{self:?}");
        }
    }
}

#[test]
fn patches_are_rows_in_the_order_of_a_convolution_weight() {
    let squares = [
        Case::new(2, (8, 8), 4, 3),
        Case::new(1, (224, 224), 4, 3),
        Case::new(3, (6, 6), 2, 3),
        Case::new(1, (5, 5), 5, 3),
        Case::new(1, (9, 9), 3, 3),
        Case::new(1, (3, 3), 1, 3),
        Case::new(0, (8, 8), 4, 3),
    ];
    for case in &squares {
        [1, 2, 3].into_iter().for_each(|threads| case.check(threads));
    }
}

#[test]
fn images_have_any_size_and_number_of_channels() {
    let cases = [
        Case::new(2, (8, 20), 4, 3),
        Case::new(2, (10, 7), 4, 3),
        Case::new(1, (9, 4), 4, 3),
        Case::new(2, (3, 2), 4, 3),
        Case::new(1, (1, 1), 7, 3),
        Case::new(2, (30, 17), 8, 3),
        Case::new(2, (8, 8), 4, 1),
        Case::new(1, (9, 13), 4, 1),
        Case::new(1, (12, 5), 3, 2),
        Case::new(2, (7, 8), 4, 4),
        Case::new(2, (13, 6), 16, 6),
        Case::new(1, (5, 9), 2, 16),
    ];
    for case in &cases {
        [1, 2, 3].into_iter().for_each(|threads| case.check(threads));
    }
}

#[test]
fn one_op_runs_over_images_of_several_sizes() {
    let new = || Patches::new(4, &lookup(3), RowStore::F32);
    assert_sizes_leave_no_trace([(10, 7), (8, 16)], new, |op, pool, size| {
        let case = Case::new(2, size, 4, 3);
        let mut out = vec![f32::NAN; case.cut(&case.pixels()).len()];
        op.run(pool, 2, of_bytes(case.image, &case.pixels()), RowOut::F32(&mut out));
        out
    });
}

#[test]
fn numbers_of_channels_outside_of_1_to_16_are_refused() {
    for channels in [0, 17] {
        let new = || Patches::new(4, &lookup(channels), RowStore::F32);
        let payload = std::panic::catch_unwind(new).err().expect("a panic");
        let message = payload.downcast_ref::<String>().expect("a formatted message");
        assert_eq!(*message, format!("Patches: {channels} channels are not 1 to 16"));
    }
}

#[test]
#[should_panic(expected = "Patches: output of 12 elements is not [1, 2, 1, 12]")]
fn an_output_without_the_patches_of_the_edge_is_refused() {
    let op = Patches::new(2, &lookup(3), RowStore::F32);
    op.run(&mut Pool::new(1), 1, of_bytes(Size::new(3, 2), &[0; 18]), RowOut::F32(&mut [0.0; 12]));
}

#[test]
fn a_table_is_added_to_every_image() {
    let mut rng = Rng(5);
    for (len, images) in [(1, 3), (5000, 2), (4, 0)] {
        let table = rng.floats(len, 1.0);
        let before = rng.floats(len * images, 1.0);
        let want: Vec<f32> = before.iter().enumerate().map(|(i, x)| x + table[i % len]).collect();
        for threads in [1, 2, 3] {
            let mut x = before.clone();
            add_table(&mut Pool::new(threads), &mut x, &table);
            assert_eq!(x, want);
        }
    }
}

#[test]
#[should_panic(expected = "add_table: 3 does not divide 7")]
fn a_table_that_does_not_divide_is_refused() {
    add_table(&mut Pool::new(1), &mut [0.0; 7], &[1.0; 3]);
}
