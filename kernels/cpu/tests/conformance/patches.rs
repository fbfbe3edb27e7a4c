//! Conformance of patch cutting and of the position table.

use crate::support::{Rng, assert_varied, for_each_cpu, step};
use swinq_kernels::{Patches, Pool, RowOut, add_table};
use swinq_numerics::{RowStore, code_stride};

fn lookup() -> [[f32; 256]; 3] {
    [(0.229, 0.485), (0.224, 0.456), (0.225, 0.406)]
        .map(|(std, mean)| std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std))
}

/// Patches, computed element by element from the definition.
fn cut(size: usize, patch: usize, images: usize, pixels: &[u8]) -> Vec<f32> {
    let (grid, lookup) = (size / patch, lookup());
    let mut out = Vec::new();
    for image in 0..images {
        for (py, px) in (0..grid * grid).map(|i| (i / grid, i % grid)) {
            for channel in 0..3 {
                for (y, x) in (0..patch * patch).map(|i| (py * patch + i / patch, px * patch + i % patch)) {
                    let byte = pixels[((image * size + y) * size + x) * 3 + channel];
                    out.push(lookup[channel][usize::from(byte)]);
                }
            }
        }
    }
    out
}

#[test]
fn patches_are_rows_in_the_order_of_a_convolution_weight() {
    for_each_cpu(|cpu| {
        for (size, patch, images) in
            [(8, 4, 2), (224, 4, 1), (6, 2, 3), (5, 5, 1), (9, 3, 1), (3, 1, 1), (8, 4, 0)]
        {
            let pixels = Rng(size as u64).bytes(images * size * size * 3);
            let want = cut(size, patch, images, &pixels);
            let columns = 3 * patch * patch;
            let quantizer = step(2.0 / 127.0);
            for threads in [1, 2, 3] {
                let mut pool = Pool::new(threads);
                let mut out = vec![f32::NAN; want.len()];
                let op = |store| Patches::new(size, patch, &lookup(), store);
                op(RowStore::F32).run(&mut pool, images, &pixels, RowOut::F32(&mut out));
                assert_eq!(out, want, "{cpu:?} {size}/{patch}");
                assert_varied(&out, "patches");
                op(RowStore::Fake(quantizer)).run(&mut pool, images, &pixels, RowOut::F32(&mut out));
                let fake: Vec<f32> = want.iter().map(|&x| quantizer.fake(x)).collect();
                assert_eq!(out, fake, "{cpu:?} {size}/{patch}");
                let stride = code_stride(columns);
                let mut codes = vec![7; want.len() / columns * stride];
                op(RowStore::Codes(quantizer)).run(&mut pool, images, &pixels, RowOut::Codes(&mut codes));
                for (got, want) in codes.chunks_exact(stride).zip(want.chunks_exact(columns)) {
                    let want: Vec<u8> =
                        want.iter().map(|&x| quantizer.code(x).cast_unsigned() ^ 0x80).collect();
                    assert_eq!(got[..columns], want, "{cpu:?} {size}/{patch}");
                }
            }
        }
    });
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
