//! Conformance of patch cutting and of the position table.

use half::f16;

use crate::support::{Rng, assert_sizes_leave_no_trace, assert_varied, step};
use swinq_kernels::{Patches, Pool, RowOut, add_table};
use swinq_numerics::{ImageEdge, ImageLayout, Images, Pixels, RowStore, Size, code_stride};

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
    edge: ImageEdge,
}

impl Case {
    fn new(images: usize, (height, width): (usize, usize), patch: usize, channels: usize) -> Case {
        let (image, edge) = (Size::new(height, width), ImageEdge::Padded);
        Case { images, image, patch, channels, edge }
    }

    fn columns(&self) -> usize {
        self.channels * self.patch * self.patch
    }

    fn pixels(&self) -> Vec<u8> {
        Rng(self.image.area() as u64).bytes(self.images * self.image.area() * self.channels)
    }

    /// The values of `pixels`, normalised.
    fn normalised(&self, pixels: &[u8]) -> Vec<f32> {
        let lookup = lookup(self.channels);
        (pixels.iter().enumerate()).map(|(i, &byte)| lookup[i % self.channels][usize::from(byte)]).collect()
    }

    /// `values`, `[images, height, width, channels]`, with the channels first.
    fn channels_first<T: Copy>(&self, values: &[T]) -> Vec<T> {
        let (area, channels) = (self.image.area(), self.channels);
        let order = |i: usize| {
            let (image, channel, pixel) = (i / (area * channels), i / area % channels, i % area);
            (image * area + pixel) * channels + channel
        };
        (0..values.len()).map(|i| values[order(i)]).collect()
    }

    /// Patches of `values`, f32 `[images, height, width, channels]`, computed element by element from the
    /// definition.
    fn cut(&self, values: &[f32]) -> Vec<f32> {
        let Case { images, image, patch, channels, edge } = *self;
        let grid = image.map(|pixels| match edge {
            ImageEdge::Padded => pixels.div_ceil(patch),
            ImageEdge::Cut => pixels / patch,
        });
        let value = |index: usize, y: usize, x: usize, channel: usize| {
            if y >= image.height || x >= image.width {
                return 0.0;
            }
            values[((index * image.height + y) * image.width + x) * channels + channel]
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

    /// Panics unless the patches of images of every type and layout, in each form and cut by `threads`
    /// threads, are those of the definition.
    fn check(&self, threads: usize) {
        let pixels = self.pixels();
        let values = self.normalised(&pixels);
        let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
        let of_halves: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        let first =
            (self.channels_first(&pixels), self.channels_first(&values), self.channels_first(&halves));
        for (pixels, layout, values) in [
            (Pixels::U8(&pixels), ImageLayout::ChannelsLast, &values),
            (Pixels::F32(&values), ImageLayout::ChannelsLast, &values),
            (Pixels::F16(&halves), ImageLayout::ChannelsLast, &of_halves),
            (Pixels::U8(&first.0), ImageLayout::ChannelsFirst, &values),
            (Pixels::F32(&first.1), ImageLayout::ChannelsFirst, &values),
            (Pixels::F16(&first.2), ImageLayout::ChannelsFirst, &of_halves),
        ] {
            self.check_stores(Images { size: self.image, pixels, layout }, &self.cut(values), threads);
        }
    }

    /// Panics unless the patches of `images`, in each form, are `want`.
    fn check_stores(&self, images: Images<'_>, want: &[f32], threads: usize) {
        let (quantizer, mut pool) = (step(2.0 / 127.0), Pool::new(threads));
        let mut run = |store, out: RowOut<'_>| {
            let op = Patches::new(self.patch, self.edge, &lookup(self.channels), store);
            assert!(op.run(&mut pool, self.images, images, out), "{self:?}: all values are finite");
        };
        let mut out = vec![f32::NAN; want.len()];
        run(RowStore::F32, RowOut::F32(&mut out));
        assert_eq!(out, want, "{self:?}");
        assert_varied(&out, "patches");
        run(RowStore::Fake(quantizer), RowOut::F32(&mut out));
        assert_eq!(out, want.iter().map(|&x| quantizer.fake(x)).collect::<Vec<_>>(), "{self:?}");
        let (columns, stride) = (self.columns(), code_stride(self.columns()));
        let mut codes = vec![7; want.len() / columns * stride];
        run(RowStore::Codes(quantizer), RowOut::Codes(&mut codes));
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
        Case { edge: ImageEdge::Cut, ..Case::new(2, (10, 23), 4, 3) },
        Case { edge: ImageEdge::Cut, ..Case::new(1, (9, 4), 4, 3) },
        Case { edge: ImageEdge::Cut, ..Case::new(2, (8, 13), 3, 2) },
    ];
    for case in &cases {
        [1, 2, 3].into_iter().for_each(|threads| case.check(threads));
    }
}

#[test]
fn one_op_runs_over_images_of_several_sizes() {
    let new = || Patches::new(4, ImageEdge::Padded, &lookup(3), RowStore::F32);
    assert_sizes_leave_no_trace([(10, 7), (8, 16)], new, |op, pool, size| {
        let case = Case::new(2, size, 4, 3);
        let mut out = vec![f32::NAN; case.cut(&case.normalised(&case.pixels())).len()];
        op.run(pool, 2, of_bytes(case.image, &case.pixels()), RowOut::F32(&mut out));
        out
    });
}

/// Quantizers give a code to every value, so the op looks at the values that it reads.
#[test]
fn values_that_are_not_finite_are_found_in_every_part_of_an_image() {
    let case = Case::new(2, (10, 9), 4, 3);
    let op = Patches::new(4, ImageEdge::Padded, &lookup(3), RowStore::Codes(step(2.0 / 127.0)));
    let (mut pool, mut codes) = (Pool::new(2), vec![0; 2 * 9 * code_stride(48)]);
    let mut finite = |pixels: Pixels<'_>, layout| {
        let images = Images { size: case.image, pixels, layout };
        op.run(&mut pool, 2, images, RowOut::Codes(&mut codes))
    };
    for layout in [ImageLayout::ChannelsLast, ImageLayout::ChannelsFirst] {
        let (mut values, mut halves) = (vec![0.5_f32; 2 * 10 * 9 * 3], vec![f16::ONE; 2 * 10 * 9 * 3]);
        assert!(finite(Pixels::F32(&values), layout) && finite(Pixels::F16(&halves), layout));
        for at in 0..values.len() {
            values[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][at % 3];
            halves[at] = [f16::NAN, f16::INFINITY, f16::NEG_INFINITY][at % 3];
            assert!(!finite(Pixels::F32(&values), layout), "{layout:?}: value {at}");
            assert!(!finite(Pixels::F16(&halves), layout), "{layout:?}: value {at}");
            (values[at], halves[at]) = (f32::MAX, f16::MAX);
        }
        assert!(finite(Pixels::F32(&values), layout) && finite(Pixels::F16(&halves), layout));
    }
}

#[test]
#[should_panic(expected = "Patches: images without channels")]
fn images_without_channels_are_refused() {
    Patches::new(4, ImageEdge::Padded, &lookup(0), RowStore::F32);
}

#[test]
#[should_panic(expected = "Patches: output of 12 elements is not [1, 2, 1, 12]")]
fn an_output_without_the_patches_of_the_edge_is_refused() {
    let op = Patches::new(2, ImageEdge::Padded, &lookup(3), RowStore::F32);
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
