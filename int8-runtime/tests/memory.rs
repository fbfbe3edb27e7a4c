//! Weights are packed once for any number of engines, and inferences after the first allocate nothing, also
//! of several image sizes in turn. INT8 weights are not on the heap; those in f32, and what belongs to INT8
//! weights, show that they are shared.

#[path = "it/common.rs"]
#[allow(dead_code, unused_imports)] // It serves the other tests, too.
mod common;

use std::sync::Arc;

use common::{RECIPES, SIZE, model, pixels};
use dhat::HeapStats;
use swinq_int8_runtime::{Backend, CpuOptions, Engine, ImageLayout, Images, LOGITS, OutputMut, PackedModel};
use swinq_model::{QuantizedModel, Size, SwinConfig, WindowPolicy};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const IMAGES: usize = 3;

fn backend() -> Backend {
    Backend::Cpu(CpuOptions { threads: 2, max_batch: 2, ..CpuOptions::detect().unwrap() })
}

fn blocks_of_100_inferences(engine: &Engine) -> u64 {
    let pixels = pixels(IMAGES);
    let mut logits = vec![0.0; IMAGES * engine.classes()];
    blocks_of_100(|_| engine.infer_into(&pixels, &mut logits).unwrap())
}

/// Allocations of 100 calls of `infer`, which gets their number, after the first twelve.
fn blocks_of_100(mut infer: impl FnMut(usize)) -> u64 {
    (0..12).for_each(&mut infer);
    // The allocator counts every thread, also the test harness's own, which allocates now and then. An
    // inference that allocates does so in every round, so the rounds end with one without allocations.
    let mut least = u64::MAX;
    for _ in 0..5 {
        let before = HeapStats::get().total_blocks;
        (0..100).for_each(&mut infer);
        least = least.min(HeapStats::get().total_blocks - before);
        if least == 0 {
            break;
        }
    }
    least
}

/// Allocations of 100 inferences of images of four sizes in turn, of bytes and of f32 in turn.
fn blocks_of_four_sizes(engine: &Engine) -> u64 {
    let sizes = [(SIZE, SIZE), (48, 32), (40, 72), (64, 64)].map(|(height, width)| Size::new(height, width));
    let (pixels, values) = (vec![7_u8; 64 * 64 * 3], vec![0.5_f32; 64 * 64 * 3]);
    let mut logits = vec![0.0; engine.classes()];
    blocks_of_100(|call| {
        let size = sizes[call % sizes.len()];
        let (pixels, values) = (&pixels[..size.area() * 3], &values[..size.area() * 3]);
        let first = Images { layout: ImageLayout::ChannelsFirst, ..Images::new(size, values) };
        let images = [Images::new(size, pixels), Images::new(size, values), first][call % 3];
        engine.run(images, &mut [OutputMut::new(LOGITS, &mut logits)]).unwrap();
    })
}

/// [`model`] of a library that pads images of any size.
fn padding(recipe: &str) -> QuantizedModel {
    let model = model(recipe);
    let config = SwinConfig { window_policy: WindowPolicy::HuggingFace, ..model.config.clone() };
    QuantizedModel { config, ..model }
}

// All checks are in one test, because the allocator counts the allocations of all threads of the process.
#[test]
fn engines_share_weights_and_inferences_allocate_nothing() {
    let models = RECIPES.map(|recipe| (recipe, padding(recipe)));
    assert_eq!(models[0].1.config.image_size, Size::square(SIZE));
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
            assert_eq!(blocks_of_four_sizes(engine), 0, "{recipe}, four sizes");
        }
    }
    let before = HeapStats::get().total_blocks;
    drop(std::hint::black_box(Box::new(1u8)));
    assert!(HeapStats::get().total_blocks > before, "the allocator does not count");
}
