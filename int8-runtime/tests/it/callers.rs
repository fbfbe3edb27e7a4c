//! Images side by side: how a batch is divided among threads, and who calls at the same time, does not change
//! the logits.

use std::sync::{Arc, Barrier};

use swinq_int8_runtime::{Backend, CpuOptions, Engine, PackedModel};

use crate::common::{CLASSES, model, pixels};

fn engine(options: CpuOptions) -> Engine {
    Engine::new(&model("default"), Backend::Cpu(options)).unwrap()
}

fn default() -> CpuOptions {
    CpuOptions::detect().unwrap()
}

fn logits(engine: &Engine, pixels: &[u8], images: usize) -> Vec<f32> {
    let mut logits = vec![0.0; images * CLASSES];
    engine.infer_into(pixels, &mut logits).unwrap();
    logits
}

#[test]
fn no_division_changes_the_logits() {
    const IMAGES: usize = 13;
    let pixels = pixels(IMAGES);
    let expected =
        logits(&engine(CpuOptions { threads: 1, max_batch: IMAGES, ..default() }), &pixels, IMAGES);
    for threads in [1, 2, 3, 8] {
        for (max_batch, image_threads, max_memory) in [(1, 0, 0), (4, 1, 0), (2, threads, 0), (3, threads, 1)]
        {
            let options = CpuOptions { threads, image_threads, max_batch, max_memory, ..default() };
            let engine = engine(options);
            for images in [1, 2, 5, IMAGES] {
                let found = logits(&engine, &pixels[..images * (pixels.len() / IMAGES)], images);
                assert_eq!(found, expected[..images * CLASSES], "{images} images, {options:?}");
            }
        }
    }
}

#[test]
fn callers_at_the_same_time_get_their_own_logits() {
    const CALLERS: usize = 6;
    let pixels = pixels(CALLERS + 3);
    let image = pixels.len() / (CALLERS + 3);
    let engine = engine(CpuOptions { threads: 3, max_batch: 2, ..default() });
    // Caller `n` has images of its own, 1 to 3 of them.
    let part = |caller: usize| &pixels[caller * image..(caller + 1 + caller % 3) * image];
    let expected: Vec<Vec<f32>> =
        (0..CALLERS).map(|caller| logits(&engine, part(caller), 1 + caller % 3)).collect();
    let start = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        for (caller, expected) in expected.iter().enumerate() {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..30 {
                    assert_eq!(&logits(engine, part(caller), 1 + caller % 3), expected, "caller {caller}");
                }
            });
        }
    });
}

#[test]
fn memory_bounds_the_images_side_by_side() {
    let with = |max_memory| engine(CpuOptions { threads: 4, max_batch: 1, max_memory, ..default() }).lanes();
    assert_eq!((with(0), with(1), with(usize::MAX)), (4, 1, 4));
}

#[test]
fn a_stated_number_of_threads_works_on_one_image() {
    let with = |image_threads| engine(CpuOptions { threads: 3, image_threads, ..default() }).image_threads();
    assert_eq!((with(1), with(2), with(9)), (1, 2, 3));
    assert!((1..=3).contains(&with(0)));
}

#[test]
fn engines_beside_each_other_share_threads_and_give_their_own_bits() {
    let pixels = pixels(6);
    let options = CpuOptions { threads: 3, max_batch: 2, ..default() };
    let models = ["default", "mode1", "mode2"].map(model);
    let packed =
        models.each_ref().map(|model| Arc::new(PackedModel::new(model, Backend::Cpu(options)).unwrap()));
    let alone = packed.each_ref().map(|packed| Engine::from_packed(packed, Backend::Cpu(options)).unwrap());
    let expected = alone.each_ref().map(|engine| logits(engine, &pixels, 6));
    let first = Engine::from_packed(&packed[0], Backend::Cpu(options)).unwrap();
    let others = [1, 2].map(|index| first.beside(&packed[index], Backend::Cpu(options)).unwrap());
    // Another number of threads is an engine of its own.
    let own = first.beside(&packed[1], Backend::Cpu(CpuOptions { threads: 2, ..options })).unwrap();
    assert_eq!(own.threads(), 2);
    let engines = [&first, &others[0], &others[1]];
    let start = Barrier::new(engines.len());
    std::thread::scope(|scope| {
        for (engine, expected) in engines.iter().zip(&expected) {
            let (start, pixels) = (&start, &pixels);
            scope.spawn(move || {
                start.wait();
                for _ in 0..20 {
                    assert_eq!(&logits(engine, pixels, 6), expected);
                }
            });
        }
    });
    // The others go on when the first has ended.
    drop(first);
    assert_eq!(logits(&others[0], &pixels, 6), expected[1]);
}
