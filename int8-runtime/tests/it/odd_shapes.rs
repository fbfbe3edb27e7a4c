//! Architectures that differ from the sample: padded windows, odd grids, APE, no QKV bias, custom scales, odd
//! widths. The engine's logits equal the simulation's logits bit for bit. Without quantization they equal the
//! float forward's logits up to rounding.

use std::ops::ControlFlow;

use candle_core::Device;
use swinq_calib::{CalibrateOptions, calibrate, set_channel_codes};
use swinq_eval::{Collected, collect, fidelity};
use swinq_float::FloatClassifier;
use swinq_int8_runtime::{
    Backend, CpuOptions, Engine, Images, LOGITS, OutputMut, Pixels, RuntimeError, TracedValues,
};
use swinq_kernels::Cpu;
use swinq_model::quantized::FloatModel;
use swinq_model::{
    BatchSource, BlockId, Classifier, Linear, Ptq, QuantizedModel, Recipe, Site, Size, SwinConfig,
    SwinVersion, WindowPolicy,
};
use swinq_numerics::Gelu;
use swinq_testing::model::{NoiseImages, random, random_channels, small};

fn configs() -> Vec<SwinConfig> {
    let small = small();
    let named = |name: &str, config: SwinConfig| SwinConfig { name: name.to_owned(), ..config };
    vec![
        named(
            "padded windows and an odd merge",
            SwinConfig {
                image_size: Size::square(44),
                window_size: Size::square(4).into(),
                window_policy: WindowPolicy::ShrinkAndPad,
                ..small.clone()
            },
        ),
        named(
            "torchvision's padding of a grid smaller than the window",
            SwinConfig {
                image_size: Size::square(20),
                window_size: Size::square(4).into(),
                depths: vec![1, 2, 1],
                num_heads: vec![1, 2, 4],
                window_policy: WindowPolicy::Pad,
                ..small.clone()
            },
        ),
        named(
            "APE, no QKV bias, custom scale, no patch norm",
            SwinConfig {
                ape: true,
                qkv_bias: false,
                qk_scale: Some(0.37),
                patch_norm: false,
                ..small.clone()
            },
        ),
        named(
            "widths that no tile divides",
            SwinConfig {
                embed_dim: 18,
                num_heads: vec![3, 2],
                mlp_ratio: 2.5,
                patch_size: 2,
                image_size: Size::square(12),
                window_size: Size::square(3).into(),
                ..small.clone()
            },
        ),
        named(
            "one stage, one block, one window",
            SwinConfig {
                depths: vec![1],
                num_heads: vec![2],
                image_size: Size::square(28),
                window_size: Size::square(7).into(),
                num_classes: 1,
                ..small.clone()
            },
        ),
        named(
            "a rectangle that the patch does not divide",
            SwinConfig {
                image_size: Size::new(46, 31),
                window_policy: WindowPolicy::HuggingFace,
                ..small.clone()
            },
        ),
        named(
            "windows that shrink on one axis, shifted before they are padded",
            SwinConfig {
                image_size: Size::new(24, 76),
                window_size: Size::new(4, 6).into(),
                depths: vec![2, 2, 2],
                num_heads: vec![2, 3, 4],
                window_policy: WindowPolicy::Timm,
                ..small.clone()
            },
        ),
        named(
            "one window that is shifted, four channels",
            SwinConfig {
                image_size: Size::new(12, 20),
                in_chans: 4,
                window_policy: WindowPolicy::Detection,
                ..small.clone()
            },
        ),
        named("one channel", SwinConfig { in_chans: 1, ..small.clone() }),
        named(
            "window 12",
            SwinConfig {
                image_size: Size::square(96),
                window_size: Size::square(12).into(),
                depths: vec![2],
                num_heads: vec![3],
                ..small
            },
        ),
    ]
}

/// The architectures of [`configs`] that exist as Swin V2, and one with the mask of transformers.
fn second_configs() -> Vec<SwinConfig> {
    let second = |config: SwinConfig| SwinConfig {
        name: format!("V2, {}", config.name),
        version: SwinVersion::V2,
        qk_scale: None,
        ..config
    };
    let mut configs: Vec<SwinConfig> = configs().into_iter().map(second).collect();
    configs.push(SwinConfig { name: "V2, mask of -200".to_owned(), mask: -200.0, ..second(small()) });
    configs
}

/// Random weights. In a Swin V2 the last head of every block has a large factor of `QK^T`, the others a small
/// one.
fn model(config: SwinConfig) -> FloatModel {
    let mut model = random(config, 5);
    for (name, tensor) in &mut model.tensors {
        if name.ends_with(".logit_scale") {
            tensor.data.fill(5f32.ln());
            *tensor.data.last_mut().expect("there is a head") = 50f32.ln();
        }
    }
    model
}

fn run(classifier: &dyn Classifier) -> Collected {
    let mut progress = |_, _| ControlFlow::Continue(());
    let (size, channels) = (classifier.input_size(), classifier.channels());
    collect(classifier, &mut NoiseImages { size, channels, batches: 3 }, &mut progress).unwrap()
}

fn engine(model: &QuantizedModel, cpu: Cpu) -> Engine {
    Engine::new(
        model,
        Backend::Cpu(CpuOptions {
            threads: 2,
            max_batch: 3,
            image_threads: 0,
            max_memory: 0,
            max_pixels: 0,
            cpu,
        }),
    )
    .unwrap()
}

#[test]
fn the_engine_equals_the_simulation_and_the_float_forward() {
    compare(configs());
}

#[test]
fn the_engine_of_swin_v2_equals_the_simulation_and_the_float_forward() {
    compare(second_configs());
}

/// In a Swin V2 the heads with a large factor have hi and lo codes for each query and key, which lowers the
/// noise.
#[test]
fn heads_with_a_large_factor_have_hi_and_lo_codes() {
    let config = second_configs().remove(0);
    let float = model(config);
    let plan_of = |model: &QuantizedModel| {
        let plan = swinq_plan::Plan::new(model).unwrap();
        plan.steps
            .iter()
            .filter_map(|step| match &step.op {
                swinq_plan::Op::Attention(attention) => Some(attention.hi_lo.clone()),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let int8 = quantized(&float, Some("default"));
    let two = plan_of(&int8);
    assert!(two.iter().all(|heads| heads.last() == Some(&true) && !heads[0]), "{two:?}");
    let text = swinq_plan::Plan::new(&int8).unwrap().to_string();
    assert!(text.contains("2 codes in 1 of 2"), "{text}");
    let without = plan_of(&QuantizedModel::from_float(float.clone()).unwrap());
    assert!(without.iter().all(Vec::is_empty), "{without:?}");
    let found = run(&engine(&int8, Cpu::available()[0]));
    let exact = run(&FloatClassifier::new(&float, &Device::Cpu).unwrap());
    let sqnr = fidelity(&exact, &found).unwrap().sqnr_db;
    assert!(sqnr > 20.0, "{sqnr} dB");
}

fn compare(configs: Vec<SwinConfig>) {
    for config in configs {
        let name = config.name.clone();
        let float = model(config);
        let expected = run(&FloatClassifier::new(&float, &Device::Cpu).unwrap());
        assert!(
            expected.logits.values.iter().any(|v| *v != expected.logits.values[0]),
            "{name}: constant logits"
        );
        for cpu in Cpu::available() {
            let found = run(&engine(&QuantizedModel::from_float(float.clone()).unwrap(), cpu));
            let sqnr = fidelity(&expected, &found).unwrap().sqnr_db;
            assert!(sqnr >= 100.0, "{name}, float on {}: {sqnr} dB", cpu);
        }
        for recipe in ["default", "mode1", "channels"] {
            // These recipes also suit a model of one stage, which has no reduction: none of their rules
            // matches reductions only.
            let quantized = quantized(&float, Some(recipe));
            let simulated = run(&FloatClassifier::simulate(&quantized, &Device::Cpu).unwrap());
            assert!(simulated.logits != expected.logits, "{name}: {recipe} changed nothing");
            for cpu in Cpu::available() {
                let found = run(&engine(&quantized, cpu));
                assert_eq!(found.logits, simulated.logits, "{name}, {recipe} on {}", cpu);
            }
        }
    }
}

/// `model` under the recipe `name`, or in float for `None`. `channels` is the default recipe with scales and
/// zero points for the channels of every `mlp.fc2.input`. `mode1` has the GELU of files before version 4 of
/// the numbers.
fn quantized(model: &FloatModel, name: Option<&str>) -> QuantizedModel {
    let Some(name) = name else { return QuantizedModel::from_float(model.clone()).unwrap() };
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let mut noise = NoiseImages::of(&model.config, 2);
    // Refinement would rewrite the float weights, from which the codes of channels are made.
    let recipe = match name {
        "channels" => Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic),
        name => Recipe::shipped(name).unwrap(),
    };
    let mut quantized = calibrate(model, &recipe, &mut noise, options).unwrap().model;
    if name == "mode1" {
        quantized.gelu = Gelu::Erf;
    }
    if name == "channels" { with_channels(quantized, model) } else { quantized }
}

fn with_channels(mut quantized: QuantizedModel, model: &FloatModel) -> QuantizedModel {
    for stage in model.config.stages() {
        for block in (0..stage.depth).map(|block| BlockId { stage: stage.index, block }) {
            let amax = quantized.site(Site::Input(Linear::Fc2(block))).amax.expect("the recipe enables it");
            let channels = random_channels(stage.hidden, block.block as u64);
            set_channel_codes(&mut quantized, model, block, 0.6 * amax, channels).unwrap();
        }
    }
    quantized
}

#[test]
fn blocks_in_groups_of_windows_equal_their_launches_one_by_one() {
    let (mut fused, mut apart) = (0, 0);
    for config in configs() {
        let (name, classes) = (config.name.clone(), config.num_classes);
        let pixels = NoiseImages::of(&config, 3);
        let float = model(config);
        let pixels: Vec<u8> =
            (0..3).flat_map(|i| NoiseImages { ..pixels }.batch(0, i).unwrap().pixels).collect();
        for recipe in [None, Some("default"), Some("mode1"), Some("mode2"), Some("channels")] {
            let model = quantized(&float, recipe);
            for (threads, cpu) in (1..=3).zip(Cpu::available().into_iter().rev().cycle()) {
                let engine = Engine::new(
                    &model,
                    Backend::Cpu(CpuOptions {
                        threads,
                        max_batch: 5,
                        image_threads: 0,
                        max_memory: 0,
                        max_pixels: 0,
                        cpu,
                    }),
                )
                .unwrap();
                for images in [1, 2, 5] {
                    let pixels = &pixels[..images * engine.image_bytes()];
                    let trace = engine.trace(pixels).unwrap().pop().expect("a plan has launches");
                    let mut logits = vec![0.0; images * classes];
                    engine.infer_into(pixels, &mut logits).unwrap();
                    let what = format!("{name}, {recipe:?}, {images} images, {threads} threads");
                    assert_eq!(trace.values, TracedValues::Float(logits), "{what}");
                    let profile = engine.profile(engine.input_size(), pixels, 1).unwrap();
                    let count = profile.iter().filter(|launch| launch.detail == "fused").count();
                    (fused, apart) = (fused + count, apart + profile.len() - count);
                }
            }
        }
    }
    assert!(fused > 1000 && apart > 1000, "{fused} launches in groups, {apart} one by one");
}

/// An engine of a network that is built for one size computes at another size what an engine of the same
/// network that is built for the other computes.
#[test]
fn an_engine_takes_images_of_any_size() {
    let config = SwinConfig { window_policy: WindowPolicy::HuggingFace, depths: vec![2, 4], ..small() };
    let float = model(config.clone());
    let sizes = [(32, 32), (48, 40), (33, 70), (100, 36), (32, 32)].map(|(h, w)| Size::new(h, w));
    for recipe in [None, Some("default"), Some("channels")] {
        let model = quantized(&float, recipe);
        for cpu in Cpu::available() {
            let engine = engine(&model, cpu);
            for size in sizes {
                let config = SwinConfig { image_size: size, ..config.clone() };
                let built = QuantizedModel { config: config.clone(), ..model.clone() };
                let own = Engine::new(&built, *engine.backend()).unwrap();
                let batch = NoiseImages::of(&config, 3).batch(0, 1).unwrap();
                let (found, expected) = (engine.infer(&batch).unwrap(), own.infer(&batch).unwrap());
                assert_eq!(found, expected, "{recipe:?} at {size} on {cpu}");
            }
        }
    }
}

#[test]
fn an_image_that_needs_too_much_memory_is_refused() {
    let config = SwinConfig { window_policy: WindowPolicy::HuggingFace, ..small() };
    let model = QuantizedModel::from_float(model(config)).unwrap();
    let options = CpuOptions {
        threads: 1,
        max_batch: 2,
        image_threads: 0,
        max_memory: 0,
        max_pixels: 64 * 64,
        cpu: Cpu::available()[0],
    };
    let engine = Engine::new(&model, Backend::Cpu(options)).unwrap();
    let run = |height: usize, width: usize| {
        let (size, pixels) = (Size::new(height, width), vec![0; height * width * 3]);
        let mut logits = vec![0.0; engine.classes()];
        engine.run(Images::new(size, &pixels[..]), &mut [OutputMut::new(LOGITS, &mut logits)])
    };
    run(64, 64).unwrap();
    let error = run(64, 68).unwrap_err();
    let RuntimeError::ImageTooLarge { size, needed, allowed } = &error else { panic!("{error}") };
    assert!(*size == Size::new(64, 68) && needed > allowed, "{error}");
    // Smaller than a window.
    let message = run(32, 8).unwrap_err().to_string();
    assert!(message.contains("use a larger image"), "{message}");
}

#[test]
fn outputs_are_asked_for_by_name() {
    let model = QuantizedModel::from_float(model(small())).unwrap();
    let engine = engine(&model, Cpu::available()[0]);
    let pixels = vec![3; 2 * engine.image_bytes()];
    let images = Images::new(engine.input_size(), &pixels[..]);
    let [logits] = engine.outputs() else { panic!("{:?}", engine.outputs()) };
    let shape = engine.output_shape(logits, images.size);
    assert_eq!((shape.grid, shape.rows(), shape.values()), (None, 1, engine.classes()));
    engine.run(images, &mut []).unwrap();
    let (mut values, mut others) = (vec![0.0; 2 * engine.classes()], vec![0.0; 2 * engine.classes()]);
    let mut twice = [OutputMut::new(LOGITS, &mut values), OutputMut::new(LOGITS, &mut others)];
    let message = engine.run(images, &mut twice).unwrap_err().to_string();
    assert!(message.contains("outputs logits, each of which may be asked for once"), "{message}");
    let message = engine.run(images, &mut [OutputMut::new("stage1", &mut values)]);
    assert!(matches!(message, Err(RuntimeError::Output { .. })), "{message:?}");
    let short = engine.run(images, &mut [OutputMut::new(LOGITS, &mut values[1..])]);
    assert!(matches!(short, Err(RuntimeError::OutputLength { shape: [2, 1, _], .. })), "{short:?}");
    let part = Images { pixels: Pixels::U8(&pixels[1..]), ..images };
    assert!(matches!(engine.run(part, &mut []), Err(RuntimeError::PixelCount { .. })));
}
