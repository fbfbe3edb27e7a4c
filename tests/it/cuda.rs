//! The CUDA backend on a GPU, against the CPU engine. The tests need no file: models are random, and images
//! are noise. Without a GPU they print that they are skipped, or fail if `REQUIRE_IMPL` names `cuda`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::common::{gpu, with_channels};
use candle_core::Device;
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_int8_runtime::cuda::{Autotune, CudaOptions, Gemm, ResidualType};
use swinq_int8_runtime::{
    Backend, CpuOptions, Engine, Images, LOGITS, LaunchSteps, Launches, OutputMut, Plan, RuntimeError,
    Traced, TracedValues,
};
use swinq_model::quantized::FloatModel;
use swinq_model::{QuantizedModel, Recipe, Size, SwinConfig, SwinVersion, Transform, WindowPolicy};
use swinq_testing::model::{NoiseImages, random};
use swinq_testing::{XorShift, sqnr_db};

/// A small Swin with heads of 32 channels.
pub fn small() -> SwinConfig {
    SwinConfig {
        name: "small".to_owned(),
        image_size: Size::square(56),
        num_classes: 10,
        embed_dim: 64,
        depths: vec![2, 2],
        num_heads: vec![2, 4],
        window_size: Size::square(7).into(),
        ..SwinConfig::default()
    }
}

fn configs() -> Vec<SwinConfig> {
    let named = |name: &str, config: SwinConfig| SwinConfig { name: name.to_owned(), ..config };
    let padded = SwinConfig {
        image_size: Size::square(44),
        window_size: Size::square(4).into(),
        depths: vec![2, 1],
        window_policy: WindowPolicy::ShrinkAndPad,
        ..small()
    };
    let bare = SwinConfig {
        image_size: Size::square(64),
        window_size: Size::square(8).into(),
        ape: true,
        qkv_bias: false,
        patch_norm: false,
        qk_scale: Some(0.2),
        num_classes: 37,
        mlp_ratio: 3.0,
        ..small()
    };
    let wide = SwinConfig {
        image_size: Size::square(96),
        window_size: Size::square(12).into(),
        embed_dim: 96,
        depths: vec![2, 1],
        num_heads: vec![3, 6],
        ..small()
    };
    let large = SwinConfig {
        image_size: Size::square(128),
        window_size: Size::square(16).into(),
        depths: vec![2, 1],
        ..small()
    };
    let heads = |channels: usize| SwinConfig { embed_dim: 4 * channels, num_heads: vec![4, 8], ..small() };
    let second = |name: &str, config: SwinConfig| SwinConfig {
        name: format!("V2, {name}"),
        version: SwinVersion::V2,
        ..config
    };
    vec![
        small(),
        second("small", small()),
        second("padded windows and a mask of -200", SwinConfig { mask: -200.0, ..padded.clone() }),
        second("windows of 144 tokens", wide.clone()),
        second(
            "windows of 64 tokens",
            SwinConfig { image_size: Size::square(64), window_size: Size::square(8).into(), ..small() },
        ),
        named("padded windows and an odd merge", padded),
        named("APE, no QKV bias, custom scale, no patch norm, windows of 64", bare),
        named("windows of 144 tokens", wide),
        named("windows of 256 tokens", large),
        named("heads of 10 channels", heads(10)),
        named("heads of 24 channels", heads(24)),
        second("heads of 16 channels", heads(16)),
        second("heads of 30 channels", SwinConfig { mlp_ratio: 2.0, ..heads(30) }),
        named("heads of 64 channels", heads(64)),
        second("heads of 48 channels", SwinConfig { mlp_ratio: 2.0, ..heads(48) }),
    ]
}

pub fn float(config: SwinConfig) -> FloatModel {
    let transform = Transform::microsoft(config.image_size, config.in_chans, true);
    FloatModel { transform, ..random(config, 3) }
}

/// `model` with a shipped recipe; `float` quantizes nothing, and `channels` is the default recipe with scales
/// and zero points for the channels of every `mlp.fc2.input`.
pub fn quantized(model: &FloatModel, recipe: &str) -> QuantizedModel {
    match recipe {
        "float" => return QuantizedModel::from_float(model.clone()).unwrap(),
        "channels" => return with_channels(quantized(model, "default"), model, |_| true),
        _ => {}
    }
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let mut source = NoiseImages::of(&model.config, 4);
    calibrate(model, &Recipe::shipped(recipe).unwrap(), &mut source, options).unwrap().model
}

pub fn cpu(model: &QuantizedModel) -> Engine {
    Engine::new(model, Backend::Cpu(CpuOptions { max_batch: 8, ..CpuOptions::detect().unwrap() })).unwrap()
}

pub fn options(residual: ResidualType, gemm: Gemm) -> CudaOptions {
    CudaOptions {
        max_batch: 4,
        residual: Some(residual),
        gemm,
        autotune: Autotune::Off,
        ..CudaOptions::default()
    }
}

fn images(model: &QuantizedModel, count: usize) -> Vec<u8> {
    images_of(model, model.config.image_size, count)
}

pub fn images_of(model: &QuantizedModel, size: Size, count: usize) -> Vec<u8> {
    XorShift::new(99).bytes(count * size.area() * model.config.in_chans)
}

/// The scores of images of `size`.
fn scores(engine: &Engine, size: Size, pixels: &[u8]) -> Vec<f32> {
    let images = pixels.len() / (size.area() * engine.channels());
    let mut values = vec![0.0; images * engine.classes()];
    engine.run(Images::new(size, pixels), &mut [OutputMut::new(LOGITS, &mut values)]).unwrap();
    values
}

fn float_values(values: &TracedValues) -> Vec<f32> {
    match values {
        TracedValues::Codes(codes) => codes.iter().map(|&c| c.into()).collect(),
        TracedValues::Float(values) => values.clone(),
    }
}

/// The tensor that the CPU engine's launch of the same name wrote, or the last of those that one launch of
/// the GPU computes (the patch embedding, an MLP, QKV of Swin V2).
fn counterpart<'a>(cpu: &'a [Traced], launch: &Traced) -> &'a Traced {
    let embeds = |name: &str| name.starts_with("patch_embed") || name == "absolute_pos_embed";
    let part = |name: &str| name.strip_prefix(&launch.name).is_some_and(|rest| rest.starts_with('.'));
    // In Swin V2, QKV includes the normalisation, and an MLP the norm after it.
    let second = [(".qkv", ".normalize"), (".mlp", ".norm2")];
    let last = second.iter().find_map(|(end, of)| Some(format!("{}{of}", launch.name.strip_suffix(end)?)));
    let same = |t: &&Traced| {
        let embedding = launch.name == "patch_embed" && embeds(&t.name);
        t.name == launch.name || part(&t.name) || embedding || Some(&t.name) == last.as_ref()
    };
    cpu.iter().rfind(|t| same(t) && t.tensor == launch.tensor).unwrap_or_else(|| panic!("{}", launch.name))
}

/// Asserts that every launch wrote the same bits as the CPU engine; names the first launch that did not.
#[track_caller]
fn assert_same(cpu: &[Traced], gpu: &[Traced], what: &str) {
    for launch in gpu {
        let expected = float_values(&counterpart(cpu, launch).values);
        let got = float_values(&launch.values);
        assert_eq!(got.len(), expected.len(), "{what}: {}", launch.name);
        assert!(got.iter().any(|x| *x != got[0]) || got.len() < 2, "{what}: {} is constant", launch.name);
        let differ: Vec<usize> =
            (0..got.len()).filter(|&i| got[i].to_bits() != expected[i].to_bits()).collect();
        if let Some(&first) = differ.first() {
            panic!(
                "{what}: {}: {} of {} differ, first at {first}: {} where the CPU has {}",
                launch.name,
                differ.len(),
                got.len(),
                got[first],
                expected[first]
            );
        }
    }
}

#[test]
fn the_launches_of_a_plan_are_those_that_an_engine_makes() {
    if !gpu("the_launches_of_a_plan_are_those_that_an_engine_makes") {
        return;
    }
    for config in configs() {
        let float = float(config);
        for recipe in ["default", "mode1", "channels", "float"] {
            let model = quantized(&float, recipe);
            let plan = Plan::new(&model).unwrap();
            for (residual, gemm) in [
                (ResidualType::F16, Gemm::Own),
                (ResidualType::F32, Gemm::Own),
                (ResidualType::F16, Gemm::CublasLt),
            ] {
                let backend = Backend::Cuda(options(residual, gemm));
                let (engine, launches) =
                    (Engine::new(&model, backend).unwrap(), Launches::new(&backend).unwrap());
                for count in [1, 4] {
                    let what = format!("{}, {recipe}, {}, {count} images", float.config.name, backend.name());
                    let said = launches.of(&plan, count).unwrap();
                    let profile = engine.profile(engine.input_size(), &images(&model, count), 1).unwrap();
                    let names = |launch: &LaunchSteps| launch.name.clone();
                    let made: Vec<String> = profile.into_iter().map(|launch| launch.name).collect();
                    assert_eq!(said.iter().map(names).collect::<Vec<_>>(), made, "{what}");
                    let steps: Vec<usize> = said.into_iter().flat_map(|launch| launch.steps).collect();
                    // Padded windows have a launch for codes that another launch stores elsewhere.
                    let once: BTreeSet<usize> = steps.iter().copied().collect();
                    assert!(once.iter().copied().eq(0..plan.steps.len()), "{what}: {steps:?}");
                    assert!(
                        once.len() == steps.len() || float.config.name.contains("padded"),
                        "{what}: {steps:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_f32_residual_gives_the_bits_of_the_cpu() {
    if !gpu("an_f32_residual_gives_the_bits_of_the_cpu") {
        return;
    }
    for config in configs() {
        let float = float(config);
        for recipe in ["default", "mode1", "mode2", "channels"] {
            let model = quantized(&float, recipe);
            let pixels = images(&model, 3);
            let expected = cpu(&model).trace(&pixels).unwrap();
            for gemm in [Gemm::Own, Gemm::CublasLt] {
                let what = format!("{}, {recipe}, --gemm {gemm}", float.config.name);
                match Engine::new(&model, Backend::Cuda(options(ResidualType::F32, gemm))) {
                    Ok(engine) => assert_same(&expected, &engine.trace(&pixels).unwrap(), &what),
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
}

/// Networks for images of other sizes than their own: rectangles, one channel, grids with and without
/// padding.
fn of_any_size() -> Vec<SwinConfig> {
    let named = |name: &str, config: SwinConfig| SwinConfig { name: name.to_owned(), ..config };
    let rectangle =
        SwinConfig { image_size: Size::new(56, 112), window_policy: WindowPolicy::Detection, ..small() };
    let gray = SwinConfig { in_chans: 1, ..rectangle.clone() };
    let second = SwinConfig { version: SwinVersion::V2, ..gray.clone() };
    let padded = SwinConfig { image_size: Size::new(61, 50), ..second.clone() };
    vec![
        named("a rectangle", rectangle),
        named("one channel", gray),
        named("V2, one channel", second),
        named("V2, one channel, padding", padded),
    ]
}

#[test]
fn images_of_any_size_give_the_bits_of_the_cpu() {
    if !gpu("images_of_any_size_give_the_bits_of_the_cpu") {
        return;
    }
    // The windows of the first and the last size have padding. The last is larger than four images of any
    // network.
    let others = [Size::new(30, 45), Size::square(56), Size::new(112, 56), Size::new(131, 250)];
    for config in of_any_size() {
        let (own, model) = (config.image_size, quantized(&float(config), "default"));
        let (cpu, name) = (cpu(&model), &model.config.name);
        let traced = images(&model, 3);
        let traced = (cpu.trace(&traced).unwrap(), traced);
        for gemm in [Gemm::Own, Gemm::CublasLt] {
            let exact = Engine::new(&model, Backend::Cuda(options(ResidualType::F32, gemm))).unwrap();
            let half = Engine::new(&model, Backend::Cuda(options(ResidualType::F16, gemm))).unwrap();
            assert_same(&traced.0, &exact.trace(&traced.1).unwrap(), &format!("{name}, --gemm {gemm}"));
            for size in [others, others].concat().into_iter().flat_map(|size| [own, size]) {
                let pixels = images_of(&model, size, 5);
                let expected = scores(&cpu, size, &pixels);
                assert_eq!(scores(&exact, size, &pixels), expected, "{name}, {size}, --gemm {gemm}");
                let db = sqnr_db(&scores(&half, size, &pixels), &expected);
                assert!(db > 25.0, "{name}, {size}, --gemm {gemm}: {db} dB");
            }
        }
    }
}

#[test]
fn more_sizes_than_are_kept_give_the_bits_of_the_cpu() {
    if !gpu("more_sizes_than_are_kept_give_the_bits_of_the_cpu") {
        return;
    }
    let model = quantized(&float(of_any_size().remove(2)), "default");
    let (cpu, engine) =
        (cpu(&model), Engine::new(&model, Backend::Cuda(options(ResidualType::F32, Gemm::Own))).unwrap());
    for side in (0..2).flat_map(|_| (28..68).step_by(2)) {
        let size = Size::new(side, 96 - side);
        let pixels = images_of(&model, size, 2);
        assert_eq!(scores(&engine, size, &pixels), scores(&cpu, size, &pixels), "{size}");
    }
}

#[test]
fn an_image_that_needs_more_memory_than_allowed_is_refused() {
    if !gpu("an_image_that_needs_more_memory_than_allowed_is_refused") {
        return;
    }
    let model = quantized(&float(of_any_size().remove(0)), "default");
    let limited = CudaOptions { max_pixels: 80 * 112, ..options(ResidualType::F32, Gemm::Own) };
    let engine = Engine::new(&model, Backend::Cuda(limited)).unwrap();
    let run = |size: Size| {
        let (pixels, mut values) = (images_of(&model, size, 1), vec![0.0; 10]);
        engine.run(Images::new(size, &pixels[..]), &mut [OutputMut::new(LOGITS, &mut values)])
    };
    for size in [Size::new(56, 112), Size::new(80, 112), Size::square(28)] {
        run(size).unwrap();
    }
    let large = Size::new(81, 112);
    match run(large).unwrap_err() {
        RuntimeError::ImageTooLarge { size, needed, allowed } => {
            assert!(size == large && needed > allowed && allowed > 0, "{needed} of {allowed}");
        }
        error => panic!("{error}"),
    }
    run(Size::new(56, 112)).unwrap();
}

#[test]
fn half_precision_is_close() {
    if !gpu("half_precision_is_close") {
        return;
    }
    for config in configs() {
        let float = float(config);
        for (recipe, least) in [("float", 50.0), ("default", 25.0), ("channels", 25.0)] {
            let model = quantized(&float, recipe);
            let pixels = images(&model, 4);
            let mut expected = vec![0.0; 4 * model.config.num_classes];
            cpu(&model).infer_into(&pixels, &mut expected).unwrap();
            for gemm in [Gemm::Own, Gemm::CublasLt] {
                let mut got = vec![0.0; expected.len()];
                let engine = Engine::new(&model, Backend::Cuda(options(ResidualType::F16, gemm))).unwrap();
                engine.infer_into(&pixels, &mut got).unwrap();
                let db = sqnr_db(&got, &expected);
                eprintln!("{}, {recipe}, --gemm {gemm}: {db:.1} dB", float.config.name);
                assert!(db > least, "{}, {recipe}, --gemm {gemm}: {db} dB", float.config.name);
            }
        }
    }
}

#[test]
fn batches_are_split_and_replays_repeat() {
    if !gpu("batches_are_split_and_replays_repeat") {
        return;
    }
    let model = quantized(&float(small()), "default");
    let pixels = images(&model, 11);
    let mut expected = vec![0.0; 11 * 10];
    cpu(&model).infer_into(&pixels, &mut expected).unwrap();
    let engine = Engine::new(&model, Backend::Cuda(options(ResidualType::F32, Gemm::Own))).unwrap();
    for count in [1, 4, 11, 3, 8, 11] {
        let mut got = vec![0.0; count * 10];
        engine.infer_into(&pixels[..count * 56 * 56 * 3], &mut got).unwrap();
        assert_eq!(got, expected[..count * 10], "{count} images");
    }
}

#[test]
fn marks_for_a_profiler_change_no_score() {
    if !gpu("marks_for_a_profiler_change_no_score") {
        return;
    }
    let model = quantized(&float(small()), "default");
    let pixels = images(&model, 5);
    let marked = CudaOptions { nvtx: true, ..options(ResidualType::F16, Gemm::Own) };
    let mut scores = Vec::new();
    for options in [CudaOptions { nvtx: false, ..marked }, marked] {
        match Engine::new(&model, Backend::Cuda(options)) {
            Ok(engine) => {
                let mut got = vec![0.0; 50];
                engine.infer_into(&pixels, &mut got).unwrap();
                scores.push(got);
            }
            Err(error) if options.nvtx => return eprintln!("SKIPPED the marks: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(scores[0], scores[1]);
}

#[test]
fn engines_share_a_device() {
    if !gpu("engines_share_a_device") {
        return;
    }
    let model = quantized(&float(small()), "default");
    let pixels = images(&model, 6);
    let mut expected = vec![0.0; 60];
    cpu(&model).infer_into(&pixels, &mut expected).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let engine =
                    Engine::new(&model, Backend::Cuda(options(ResidualType::F32, Gemm::Auto))).unwrap();
                for _ in 0..20 {
                    let mut got = vec![0.0; 60];
                    engine.infer_into(&pixels, &mut got).unwrap();
                    assert_eq!(got, expected);
                }
            });
        }
    });
}

/// A value beyond the range of f16 becomes infinite in the residual. The NaNs that follow from it must not be
/// hidden by their quantized codes.
#[test]
fn an_overflow_of_the_f16_residual_is_an_error_that_names_the_launch_and_the_remedy() {
    if !gpu("an_overflow_of_the_f16_residual_is_an_error_that_names_the_launch_and_the_remedy") {
        return;
    }
    let mut float = float(small());
    float.tensors.get_mut("layers.0.blocks.1.mlp.fc2.bias").unwrap().data[5] = 1e6;
    let model = quantized(&float, "default");
    let pixels = images(&model, 3);
    let mut logits = vec![0.0; 30];
    for marks in [false, true] {
        let options = CudaOptions { nvtx: marks, ..options(ResidualType::F16, Gemm::Own) };
        let engine = match Engine::new(&model, Backend::Cuda(options)) {
            Ok(engine) => engine,
            Err(error) if marks => return eprintln!("SKIPPED the marks: {error}"),
            Err(error) => panic!("{error}"),
        };
        // The error clears the flag, and the next inference sets it again.
        for _ in 0..2 {
            let error = engine.infer_into(&pixels, &mut logits).unwrap_err().to_string();
            assert!(error.contains("layers.0.blocks.1.mlp") && error.contains("--residual f32"), "{error}");
        }
    }
    let exact = Engine::new(&model, Backend::Cuda(options(ResidualType::F32, Gemm::Own))).unwrap();
    exact.infer_into(&pixels, &mut logits).unwrap();
    let mut expected = vec![0.0; 30];
    cpu(&model).infer_into(&pixels, &mut expected).unwrap();
    assert_eq!(logits, expected);
}
