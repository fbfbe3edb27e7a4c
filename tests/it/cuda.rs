//! The CUDA backend on a GPU, against the CPU engine. The tests need no file: models are random, and images
//! are noise. Without a GPU they print that they are skipped, or fail if `REQUIRE_IMPL` names `cuda`.

use std::ops::ControlFlow;

use crate::common::{gpu, with_channels};
use candle_core::Device;
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_int8_runtime::cuda::{Autotune, CudaOptions, Gemm, StreamType};
use swinq_int8_runtime::{Backend, CpuOptions, Engine, Traced, TracedValues};
use swinq_model::checkpoint::random_model;
use swinq_model::config::LoadedConfig;
use swinq_model::quantized::FloatModel;
use swinq_model::{QuantizedModel, Recipe, SwinConfig, SwinVersion, Transform, WindowPolicy};
use swinq_testing::XorShift;
use swinq_testing::model::NoiseImages;

/// A small Swin with heads of 32 channels.
fn small() -> SwinConfig {
    SwinConfig {
        name: "small".to_owned(),
        image_size: 56,
        num_classes: 10,
        embed_dim: 64,
        depths: vec![2, 2],
        num_heads: vec![2, 4],
        window_size: 7,
        ..SwinConfig::default()
    }
}

fn configs() -> Vec<SwinConfig> {
    let named = |name: &str, config: SwinConfig| SwinConfig { name: name.to_owned(), ..config };
    let padded = SwinConfig {
        image_size: 44,
        window_size: 4,
        depths: vec![2, 1],
        window_policy: WindowPolicy::ShrinkAndPad,
        ..small()
    };
    let bare = SwinConfig {
        image_size: 64,
        window_size: 8,
        ape: true,
        qkv_bias: false,
        patch_norm: false,
        qk_scale: Some(0.2),
        num_classes: 37,
        mlp_ratio: 3.0,
        ..small()
    };
    let wide = SwinConfig {
        image_size: 96,
        window_size: 12,
        embed_dim: 96,
        depths: vec![2, 1],
        num_heads: vec![3, 6],
        ..small()
    };
    let large = SwinConfig { image_size: 128, window_size: 16, depths: vec![2, 1], ..small() };
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
        second("windows of 64 tokens", SwinConfig { image_size: 64, window_size: 8, ..small() }),
        named("padded windows and an odd merge", padded),
        named("APE, no QKV bias, custom scale, no patch norm, windows of 64", bare),
        named("windows of 144 tokens", wide),
        named("windows of 256 tokens", large),
    ]
}

fn float(config: SwinConfig) -> FloatModel {
    let transform = Transform::microsoft(config.image_size, true);
    random_model(&LoadedConfig { config, transform, drop_path: 0.0, origin: "test".to_owned() }, 3)
}

/// `model` with a shipped recipe; `float` quantizes nothing, and `channels` is the default recipe with scales and
/// zero points for the channels of every `mlp.fc2.input`.
fn quantized(model: &FloatModel, recipe: &str) -> QuantizedModel {
    match recipe {
        "float" => return QuantizedModel::from_float(model.clone()).unwrap(),
        "channels" => return with_channels(quantized(model, "default"), model, |_| true),
        _ => {}
    }
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let mut source = NoiseImages { size: model.config.image_size, batches: 4 };
    calibrate(model, &Recipe::shipped(recipe).unwrap(), &mut source, options).unwrap().model
}

fn cpu(model: &QuantizedModel) -> Engine {
    Engine::new(model, Backend::Cpu(CpuOptions { max_batch: 8, ..CpuOptions::detect().unwrap() })).unwrap()
}

fn options(residual: StreamType, gemm: Gemm) -> CudaOptions {
    CudaOptions { max_batch: 4, residual, gemm, autotune: Autotune::Off, ..CudaOptions::default() }
}

fn images(model: &QuantizedModel, count: usize) -> Vec<u8> {
    XorShift::new(99).bytes(count * model.config.image_size.pow(2) * 3)
}

fn float_values(values: &TracedValues) -> Vec<f32> {
    match values {
        TracedValues::Codes(codes) => codes.iter().map(|&c| c.into()).collect(),
        TracedValues::Float(values) => values.clone(),
    }
}

/// The tensor that the CPU engine's launch of the same name wrote, or the last of those that one launch of the
/// GPU computes (the patch embedding, an MLP, QKV of Swin V2).
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

fn sqnr_db(exact: &[f32], got: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let signal: f64 = exact.iter().map(|&x| square(x)).sum();
    let noise: f64 = exact.iter().zip(got).map(|(&a, &b)| square(a - b)).sum();
    10.0 * (signal / noise).log10()
}

#[test]
fn an_f32_stream_gives_the_bits_of_the_cpu() {
    if !gpu("an_f32_stream_gives_the_bits_of_the_cpu") {
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
                match Engine::new(&model, Backend::Cuda(options(StreamType::F32, gemm))) {
                    Ok(engine) => assert_same(&expected, &engine.trace(&pixels).unwrap(), &what),
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
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
                let engine = Engine::new(&model, Backend::Cuda(options(StreamType::F16, gemm))).unwrap();
                engine.infer_into(&pixels, &mut got).unwrap();
                let db = sqnr_db(&expected, &got);
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
    let engine = Engine::new(&model, Backend::Cuda(options(StreamType::F32, Gemm::Own))).unwrap();
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
    let marked = CudaOptions { nvtx: true, ..options(StreamType::F16, Gemm::Own) };
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
                    Engine::new(&model, Backend::Cuda(options(StreamType::F32, Gemm::Auto))).unwrap();
                for _ in 0..20 {
                    let mut got = vec![0.0; 60];
                    engine.infer_into(&pixels, &mut got).unwrap();
                    assert_eq!(got, expected);
                }
            });
        }
    });
}

/// A value beyond the range of f16 becomes infinite in the stream. The NaNs that follow from it must not be
/// hidden by their quantized codes.
#[test]
fn an_overflow_of_the_f16_stream_is_an_error_that_names_the_launch_and_the_remedy() {
    if !gpu("an_overflow_of_the_f16_stream_is_an_error_that_names_the_launch_and_the_remedy") {
        return;
    }
    let mut float = float(small());
    float.tensors.get_mut("layers.0.blocks.1.mlp.fc2.bias").unwrap().data[5] = 1e6;
    let model = quantized(&float, "default");
    let pixels = images(&model, 3);
    let mut logits = vec![0.0; 30];
    for marks in [false, true] {
        let options = CudaOptions { nvtx: marks, ..options(StreamType::F16, Gemm::Own) };
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
    let exact = Engine::new(&model, Backend::Cuda(options(StreamType::F32, Gemm::Own))).unwrap();
    exact.infer_into(&pixels, &mut logits).unwrap();
    let mut expected = vec![0.0; 30];
    cpu(&model).infer_into(&pixels, &mut expected).unwrap();
    assert_eq!(logits, expected);
}
