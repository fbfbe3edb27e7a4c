//! The engine's promises to its callers: shared weights and shared engines give the same bits, and invalid
//! arguments are errors.

use std::sync::Arc;

use crate::common::{CLASSES, IMAGE, RECIPES, SIZE, model, pixels};
use swinq_int8_runtime::{Backend, CpuOptions, Engine, MAX_BATCH, MAX_THREADS, PackedModel, RuntimeError};
use swinq_kernels::Cpu;
use swinq_model::{Batch, Size};

fn cpu(threads: usize, max_batch: usize) -> Backend {
    Backend::Cpu(CpuOptions { threads, max_batch, ..CpuOptions::detect().unwrap() })
}

fn logits(engine: &Engine, pixels: &[u8]) -> Vec<f32> {
    let mut logits = vec![0.0; pixels.len() / IMAGE * CLASSES];
    engine.infer_into(pixels, &mut logits).unwrap();
    logits
}

#[test]
fn eight_engines_on_one_packed_model_give_the_bits_of_one() {
    let pixels = pixels(9);
    for recipe in RECIPES {
        let packed = Arc::new(PackedModel::new(&model(recipe), cpu(1, 4)).unwrap());
        let expected = logits(&Engine::from_packed(&packed, cpu(1, 4)).unwrap(), &pixels);
        assert!(expected.iter().any(|&x| x != expected[0]), "{recipe}: constant logits");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (packed, pixels, expected) = (&packed, &pixels, &expected);
                scope.spawn(move || {
                    let engine = Engine::from_packed(packed, cpu(1, 1 + thread % 4)).unwrap();
                    for _ in 0..5 {
                        assert_eq!(&logits(&engine, pixels), expected, "{recipe}");
                    }
                });
            }
        });
    }
}

#[test]
fn one_engine_called_from_eight_threads_gives_each_its_own_scores() {
    let engine = Engine::new(&model("default"), cpu(2, 4)).unwrap();
    let pixels = pixels(8);
    let expected = logits(&engine, &pixels);
    std::thread::scope(|scope| {
        for image in 0..8 {
            let (engine, pixels, expected) = (&engine, &pixels, &expected);
            scope.spawn(move || {
                for images in 1..=8 - image {
                    let found = logits(engine, &pixels[image * IMAGE..][..images * IMAGE]);
                    assert_eq!(found, expected[image * CLASSES..][..images * CLASSES]);
                }
            });
        }
    });
}

#[test]
fn another_engine_has_the_weights_of_the_first() {
    let first = Engine::new(&model("default"), cpu(2, 3)).unwrap();
    let second = first.another().unwrap();
    assert!(Arc::ptr_eq(first.packed(), second.packed()));
    assert_eq!((second.threads(), second.max_batch()), (2, 6));
    let pixels = pixels(4);
    let expected = logits(&first, &pixels);
    drop(first);
    assert_eq!(logits(&second, &pixels), expected);
}

#[test]
fn engines_and_packed_models_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Engine>();
    shared::<PackedModel>();
}

#[test]
fn options_that_no_machine_has_are_refused() {
    let model = model("default");
    let refused = |backend| Engine::new(&model, backend).err().unwrap();
    for threads in [MAX_THREADS + 1, usize::MAX] {
        let error = refused(cpu(threads, 1));
        assert!(matches!(error, RuntimeError::Threads { threads: t } if t == threads), "{error}");
    }
    for max_batch in [0, MAX_BATCH + 1, usize::MAX] {
        let error = refused(cpu(1, max_batch));
        assert!(matches!(error, RuntimeError::MaxBatch { max_batch: m } if m == max_batch), "{error}");
    }
}

#[test]
fn weights_packed_for_another_instruction_set_are_refused() {
    let scalar = CpuOptions { cpu: Cpu::scalar(), ..CpuOptions::detect().unwrap() };
    let packed = Arc::new(PackedModel::new(&model("default"), Backend::Cpu(scalar)).unwrap());
    for cpu in Cpu::available().into_iter().filter(|cpu| cpu.name() != "scalar") {
        let other = Backend::Cpu(CpuOptions { cpu, ..scalar });
        assert!(!packed.suits(&other));
        let error = Engine::from_packed(&packed, other).err().unwrap();
        assert!(matches!(error, RuntimeError::OtherPacking { .. }), "{error}");
        assert!(error.to_string().contains("scalar"), "{error}");
    }
}

#[test]
fn pixels_and_scores_that_do_not_fit_are_refused() {
    let engine = Engine::new(&model("default"), cpu(1, 2)).unwrap();
    let pixels = pixels(3);
    let infer = |bytes: usize, scores: usize| engine.infer_into(&pixels[..bytes], &mut vec![0.0; scores]);
    for (bytes, images) in [(0, 1), (IMAGE, 2), (IMAGE - 1, 1), (IMAGE + 1, 1), (1, 0), (2 * IMAGE, 0)] {
        let error = infer(bytes, images * CLASSES).unwrap_err();
        assert!(matches!(error, RuntimeError::PixelCount { .. }), "{bytes} bytes, {images} images: {error}");
    }
    for scores in [1, CLASSES - 1, CLASSES + 1] {
        let error = infer(IMAGE, scores).unwrap_err();
        assert!(matches!(error, RuntimeError::LogitCount { .. }), "{scores} scores: {error}");
    }
    infer(0, 0).unwrap();
    for bytes in [0, 1, IMAGE - 1, IMAGE + 1] {
        assert!(matches!(
            engine.profile(engine.input_size(), &pixels[..bytes], 1),
            Err(RuntimeError::PixelCount { .. })
        ));
        assert!(matches!(engine.trace(&pixels[..bytes]), Err(RuntimeError::PixelCount { .. })));
    }
    for images in [0, 3, usize::MAX] {
        assert!(
            matches!(engine.prepare(engine.input_size(), images), Err(RuntimeError::Images { .. })),
            "{images}"
        );
        assert!(matches!(engine.launches(images), Err(RuntimeError::Images { .. })), "{images}");
        assert!(
            matches!(engine.compute_times(engine.input_size(), images, 1), Err(RuntimeError::Images { .. })),
            "{images}"
        );
    }
}

#[test]
fn batches_that_contradict_themselves_are_refused() {
    let engine = Engine::new(&model("default"), cpu(1, 2)).unwrap();
    let batch = |images: usize| Batch {
        pixels: pixels(images),
        ids: (0..images).collect(),
        ..Batch::empty(Size::square(SIZE), 3)
    };
    let other_size = Batch { size: Size::square(SIZE / 2), ..batch(1) };
    let error = engine.infer(&other_size).unwrap_err();
    assert!(matches!(error, RuntimeError::PixelCount { images: 1, .. }), "{error}");
    let other_channels = Batch { channels: 1, ..batch(1) };
    let error = engine.infer(&other_channels).unwrap_err();
    assert!(matches!(error, RuntimeError::Channels { got: 1, expected: 3 }), "{error}");
    let other_count = Batch { ids: vec![0, 1], ..batch(1) };
    let error = engine.infer(&other_count).unwrap_err();
    assert!(matches!(error, RuntimeError::PixelCount { images: 2, .. }), "{error}");
    assert!(engine.infer(&batch(0)).unwrap().values.is_empty());
    assert_eq!(engine.infer(&batch(3)).unwrap().values, logits(&engine, &pixels(3)));
}

#[test]
fn profiles_and_listings_have_a_line_for_each_step_of_the_plan() {
    let engine = Engine::new(&model("default"), cpu(1, 4)).unwrap();
    let names: Vec<&str> = engine.plan().steps.iter().map(|step| step.name.as_str()).collect();
    for images in [1, 4] {
        engine.prepare(engine.input_size(), images).unwrap();
        let profile = engine.profile(engine.input_size(), &pixels(images), 0).unwrap();
        assert_eq!(profile.iter().map(|launch| launch.name.as_str()).collect::<Vec<_>>(), names);
        let lines = engine.launches(images).unwrap();
        assert_eq!(lines.len(), names.len());
        for (line, launch) in lines.iter().zip(&profile) {
            let fused = launch.detail == "fused";
            assert!(line.contains(&launch.name) && line.ends_with("fused") == fused, "{line}: {launch:?}");
        }
        let fused = profile.iter().filter(|launch| launch.detail == "fused").count();
        assert!(fused > 0 && fused < names.len(), "{fused} launches are fused");
    }
    assert!(engine.compute_times(engine.input_size(), 1, 3).unwrap().is_none() && engine.device().is_none());
}
