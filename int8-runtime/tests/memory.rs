//! Weights are packed once for any number of engines, and inferences after the first three allocate nothing. INT8
//! weights are not on the heap; those in f32, and what belongs to INT8 weights, show that they are shared.

#[path = "it/common.rs"]
#[allow(dead_code, unused_imports)] // It serves the other tests, too.
mod common;

use std::sync::Arc;

use common::{RECIPES, SIZE, model, pixels};
use dhat::HeapStats;
use swinq_int8_runtime::{Backend, CpuOptions, Engine, PackedModel};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const IMAGES: usize = 3;

fn backend() -> Backend {
    Backend::Cpu(CpuOptions { threads: 2, max_batch: 2, ..CpuOptions::detect().unwrap() })
}

fn blocks_of_100_inferences(engine: &Engine) -> u64 {
    let pixels = pixels(IMAGES);
    let mut logits = vec![0.0; IMAGES * engine.classes()];
    for _ in 0..3 {
        engine.infer_into(&pixels, &mut logits).unwrap();
    }
    // The allocator counts every thread, also the test harness's own, which allocates now and then. An inference that
    // allocates does so in every round.
    let mut round = || {
        let before = HeapStats::get().total_blocks;
        for _ in 0..100 {
            engine.infer_into(&pixels, &mut logits).unwrap();
        }
        HeapStats::get().total_blocks - before
    };
    (0..5).map(|_| round()).min().unwrap()
}

// All checks are in one test, because the allocator counts the allocations of all threads of the process.
#[test]
fn engines_share_weights_and_inferences_allocate_nothing() {
    let models = RECIPES.map(|recipe| (recipe, model(recipe)));
    assert_eq!(models[0].1.config.image_size, SIZE);
    let _profiler = dhat::Profiler::builder().testing().build();
    let held = || HeapStats::get().curr_bytes;
    for (recipe, model) in &models {
        let start = held();
        let packed = Arc::new(PackedModel::new(model, backend()).unwrap());
        let weights = held() - start;
        let first = Engine::from_packed(&packed, backend()).unwrap();
        let one = held() - start - weights;
        let second = first.another().unwrap();
        let two = held() - start - weights - one;
        eprintln!("{recipe}: {weights} bytes packed, {one} of one engine, {two} of a second");
        assert!(weights > 100_000, "{recipe}: weights of {weights} bytes show nothing");
        assert!(one < weights / 2 && two <= one + 4096, "{recipe}: {weights}, {one}, {two} bytes");
        for engine in [&first, &second] {
            assert_eq!(blocks_of_100_inferences(engine), 0, "{recipe}");
        }
    }
    let before = HeapStats::get().total_blocks;
    drop(std::hint::black_box(Box::new(1u8)));
    assert!(HeapStats::get().total_blocks > before, "the allocator does not count");
}
