//! Backbones on a GPU, against the CPU engine. Without a GPU the tests print that they are skipped, or fail
//! if `REQUIRE_IMPL` names `cuda`.

use half::f16;
use swinq_int8_runtime::cuda::{CudaOptions, Gemm, ResidualType};
use swinq_int8_runtime::{Backend, Engine, ImageLayout, Images, OutputLayout, OutputMut, RuntimeError};
use swinq_model::quantized::Param;
use swinq_model::{QuantizedModel, Size, StageOutput, SwinConfig, SwinVersion, WindowPolicy};
use swinq_testing::sqnr_db;

use crate::common::gpu;
use crate::cuda::{cpu, float, images_of, options, quantized, small};

/// Sizes whose grids are whole windows, padded in every way, smaller than a window, and larger than a batch
/// of the own size.
const SIZES: [(usize, usize); 6] = [(56, 56), (65, 97), (130, 61), (20, 24), (256, 704), (800, 1333)];

/// Three stages under the rule of detectors, with outputs that have a norm and outputs that have none.
pub fn first() -> SwinConfig {
    let config = SwinConfig {
        depths: vec![2, 2, 1],
        num_heads: vec![2, 4, 8],
        window_policy: WindowPolicy::Detection,
        ..small()
    };
    let outputs = [(0, true), (1, false), (2, true)].map(|(stage, norm)| StageOutput::of_stage(stage, norm));
    SwinConfig { name: "V1".to_owned(), ..config.into_backbone(outputs.to_vec()) }
}

/// Stages of a Swin V2 of transformers, which end at the second, with and without norms.
pub fn second() -> SwinConfig {
    let config = SwinConfig {
        version: SwinVersion::V2,
        window_policy: WindowPolicy::HuggingFaceV2,
        mask: -200.0,
        ..small()
    };
    let outputs = vec![StageOutput::of_stage(0, false), StageOutput::of_stage(1, true)];
    SwinConfig { name: "V2".to_owned(), ..config.into_backbone(outputs) }
}

fn gpu_engine(model: &QuantizedModel, residual: ResidualType, gemm: Gemm) -> Engine {
    Engine::new(model, Backend::Cuda(options(residual, gemm))).unwrap()
}

/// Every output, in `layout`.
fn maps(engine: &Engine, size: Size, pixels: &[u8], layout: OutputLayout) -> Vec<Vec<f32>> {
    let mut values: Vec<Vec<f32>> =
        lengths(engine, size, pixels).map(|length| vec![f32::NAN; length]).collect();
    let named = engine.outputs().iter().zip(&mut values);
    let mut memory: Vec<OutputMut<'_>> =
        named.map(|(output, values)| OutputMut::new(&output.name, values).in_layout(layout)).collect();
    engine.run(Images::new(size, pixels), &mut memory).unwrap();
    values
}

/// Every output in f16, in `layout`.
fn half_maps(engine: &Engine, size: Size, pixels: &[u8], layout: OutputLayout) -> Vec<Vec<f16>> {
    let mut values: Vec<Vec<f16>> =
        lengths(engine, size, pixels).map(|length| vec![f16::NAN; length]).collect();
    let named = engine.outputs().iter().zip(&mut values);
    let mut memory: Vec<OutputMut<'_>> =
        named.map(|(output, values)| OutputMut::new(&output.name, values).in_layout(layout)).collect();
    engine.run(Images::new(size, pixels), &mut memory).unwrap();
    values
}

/// The number of values of each output.
fn lengths(engine: &Engine, size: Size, pixels: &[u8]) -> impl Iterator<Item = usize> {
    let images = pixels.len() / (size.area() * engine.channels());
    engine.outputs().iter().map(move |output| images * engine.output_shape(output, size).values())
}

#[test]
fn feature_maps_of_an_f32_residual_have_the_bits_of_the_cpu() {
    if !gpu("feature_maps_of_an_f32_residual_have_the_bits_of_the_cpu") {
        return;
    }
    for config in [first(), second()] {
        let (float, name) = (float(config.clone()), config.name.clone());
        for (recipe, gemm) in ["default", "mode1", "mode2", "channels"]
            .into_iter()
            .flat_map(|recipe| [Gemm::Own, Gemm::CublasLt].map(|gemm| (recipe, gemm)))
        {
            let model = quantized(&float, recipe);
            let (cpu, engine) = (cpu(&model), gpu_engine(&model, ResidualType::F32, gemm));
            for (height, width) in SIZES {
                let size = Size::new(height, width);
                if config.grids(size).is_err() {
                    continue;
                }
                // More images than run at a time.
                let pixels = images_of(&model, size, if size.area() > 1 << 18 { 1 } else { 5 });
                let place = format!("{name}, {recipe}, {gemm}, {size}");
                for layout in [OutputLayout::Rows, OutputLayout::ChannelsFirst] {
                    let expected = maps(&cpu, size, &pixels, layout);
                    assert!(maps(&engine, size, &pixels, layout) == expected, "{place}, {layout:?}");
                    let halves: Vec<Vec<f16>> = half_maps(&engine, size, &pixels, layout);
                    assert!(halves == half_maps(&cpu, size, &pixels, layout), "{place}, {layout:?}, f16");
                }
            }
        }
    }
}

#[test]
fn an_f16_residual_is_as_far_from_the_float_network_as_an_f32_residual() {
    if !gpu("an_f16_residual_is_as_far_from_the_float_network_as_an_f32_residual") {
        return;
    }
    for config in [first(), second()] {
        let float = float(config.clone());
        let exact = cpu(&quantized(&float, "float"));
        let model = quantized(&float, "default");
        let [half, full] =
            [ResidualType::F16, ResidualType::F32].map(|residual| gpu_engine(&model, residual, Gemm::Own));
        for (height, width) in SIZES {
            let size = Size::new(height, width);
            if config.grids(size).is_err() {
                continue;
            }
            let pixels = images_of(&model, size, 1);
            let of = |engine: &Engine| maps(engine, size, &pixels, OutputLayout::ChannelsFirst);
            let (exact, half, full) = (of(&exact), of(&half), of(&full));
            for ((exact, half), full) in exact.iter().zip(&half).zip(&full) {
                let [half, full] = [half, full].map(|map| sqnr_db(map, exact));
                println!("{}, {size}: f16 {half:.2} dB, f32 {full:.2} dB", config.name);
                assert!(half > full - 1.0, "{}, {size}: f16 {half} dB, f32 {full} dB", config.name);
            }
        }
    }
}

#[test]
fn some_outputs_alone_and_a_profiled_run_give_the_same_values() {
    if !gpu("some_outputs_alone_and_a_profiled_run_give_the_same_values") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let size = Size::new(65, 97);
    let pixels = images_of(&model, size, 3);
    let engine = gpu_engine(&model, ResidualType::F16, Gemm::Own);
    let all = maps(&engine, size, &pixels, OutputLayout::ChannelsFirst);
    for (output, expected) in engine.outputs().iter().zip(&all).rev() {
        let mut values = vec![0.0; expected.len()];
        let memory = OutputMut::new(&output.name, &mut values).in_layout(OutputLayout::ChannelsFirst);
        engine.run(Images::new(size, &pixels[..]), &mut [memory]).unwrap();
        assert!(values == *expected, "{} alone", output.name);
    }
    let marked = CudaOptions { nvtx: true, ..options(ResidualType::F16, Gemm::Own) };
    match Engine::new(&model, Backend::Cuda(marked)) {
        Ok(marked) => {
            assert!(maps(&marked, size, &pixels, OutputLayout::ChannelsFirst) == all, "with ranges");
        }
        Err(error) => eprintln!("SKIPPED the marks: {error}"),
    }
    let times = engine.compute_times(size, 1, 5).unwrap().unwrap();
    assert!(times.len() == 5 && times.iter().all(|time| !time.is_zero()));
    // More images than the engine's batch do not run at a time.
    assert!(matches!(engine.compute_times(size, 5, 5), Err(RuntimeError::Images { images: 5, .. })));
    let profile =
        engine.profile(engine.input_size(), &images_of(&model, model.config.image_size, 2), 1).unwrap();
    assert_eq!(profile.last().unwrap().name, "stage1, stage2, stage3", "one launch writes all maps");
}

#[test]
fn a_residual_that_overflows_names_its_launch_and_the_engine_goes_on() {
    if !gpu("a_stream_that_overflows_names_its_launch_and_the_engine_goes_on") {
        return;
    }
    let mut model = quantized(&float(first()), "float");
    let size = Size::new(65, 97);
    let pixels = images_of(&model, size, 2);
    let sound = gpu_engine(&model, ResidualType::F16, Gemm::Own);
    let expected = maps(&sound, size, &pixels, OutputLayout::Rows);
    // A later step reads the first, and only the output itself the second.
    for launch in ["layers.0.blocks.0.mlp", "layers.2.blocks.0.mlp"] {
        let bias = format!("{launch}.fc2.bias");
        let kept = model.params[&bias].clone();
        let mut huge = kept.to_float();
        huge.data.fill(1e5);
        model.params.insert(bias.clone(), Param::Float(huge));
        let engine = gpu_engine(&model, ResidualType::F16, Gemm::Own);
        let mut values = vec![0.0; expected[2].len()];
        for _ in 0..2 {
            let memory = OutputMut::new("stage3", &mut values);
            match engine.run(Images::new(size, &pixels[..]), &mut [memory]).unwrap_err() {
                RuntimeError::ResidualOverflow { launch: found } => {
                    assert!(found.starts_with(launch), "{found}")
                }
                error => panic!("{bias}: {error}"),
            }
        }
        model.params.insert(bias, kept);
    }
}

#[test]
fn an_image_that_overflows_the_residual_does_not_spoil_the_next_call() {
    if !gpu("an_image_that_overflows_the_residual_does_not_spoil_the_next_call") {
        return;
    }
    // Without a norm behind the patch embedding, large pixels overflow.
    let mut model = quantized(&float(SwinConfig { patch_norm: false, ..first() }), "float");
    let weight = "patch_embed.proj.weight";
    let mut larger = model.params[weight].to_float();
    larger.data.iter_mut().for_each(|value| *value *= 50.0);
    model.params.insert(weight.to_owned(), Param::Float(larger));
    let size = Size::new(65, 97);
    let engine = gpu_engine(&model, ResidualType::F16, Gemm::Own);
    let mut values = normalised(&model, size, 4);
    let image = values.len() / 4;
    let sound = outputs(&engine, Images::new(size, &values[..3 * image]), 3);
    values[3 * image..].fill(6e4);
    let mut map = vec![0.0; sound[1].len() / 3 * 4];
    let error = engine.run(Images::new(size, &values[..]), &mut [OutputMut::new("stage2", &mut map)]);
    assert!(matches!(error, Err(RuntimeError::ResidualOverflow { .. })), "{error:?}");
    assert!(outputs(&engine, Images::new(size, &values[..3 * image]), 3) == sound);
}

/// Normalised values; f16 rounds some of them.
fn normalised(model: &QuantizedModel, size: Size, images: usize) -> Vec<f32> {
    images_of(model, size, images).into_iter().map(|byte| f32::from(byte) / 61.7 - 2.1).collect()
}

#[test]
fn images_of_normalised_values_have_the_bits_of_the_cpu() {
    if !gpu("images_of_normalised_values_have_the_bits_of_the_cpu") {
        return;
    }
    // A classifier too, and an input that is not quantized.
    for (config, recipe) in
        [(first(), "default"), (second(), "mode2"), (small(), "default"), (first(), "float")]
    {
        let model = quantized(&float(config.clone()), recipe);
        let (cpu, engine) = (cpu(&model), gpu_engine(&model, ResidualType::F32, Gemm::Own));
        for (height, width) in SIZES {
            let size = Size::new(height, width);
            // Float layers are f16 on a GPU.
            if config.grids(size).is_err() || (recipe == "float" && size != Size::square(56)) {
                continue;
            }
            let count = if size.area() > 1 << 18 { 1 } else { 5 };
            let values = normalised(&model, size, count);
            let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
            for layout in [ImageLayout::ChannelsLast, ImageLayout::ChannelsFirst] {
                for images in [Images::new(size, &values[..]), Images::new(size, &halves[..])] {
                    let images = Images { layout, ..images };
                    let [expected, found] = [&cpu, &engine].map(|engine| outputs(engine, images, count));
                    let place = format!("{}, {recipe}, {size}, {layout:?}", config.name);
                    if recipe == "float" {
                        let pairs = expected.iter().zip(&found);
                        pairs.for_each(|(cpu, gpu)| assert!(sqnr_db(gpu, cpu) > 50.0, "{place}"));
                    } else {
                        assert!(found == expected, "{place}");
                    }
                }
            }
        }
    }
}

/// Every output of `count` images.
fn outputs(engine: &Engine, images: Images<'_>, count: usize) -> Vec<Vec<f32>> {
    let named = engine.outputs().iter();
    let length = |output| count * engine.output_shape(output, images.size).values();
    let mut values: Vec<Vec<f32>> = named.map(|output| vec![f32::NAN; length(output)]).collect();
    let named = engine.outputs().iter().zip(&mut values);
    let mut memory: Vec<OutputMut<'_>> =
        named.map(|(output, values)| OutputMut::new(&output.name, values)).collect();
    engine.run(images, &mut memory).unwrap();
    values
}

#[test]
fn a_value_of_an_image_that_is_not_finite_is_named_and_the_engine_goes_on() {
    if !gpu("a_value_of_an_image_that_is_not_finite_is_named_and_the_engine_goes_on") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let engine = gpu_engine(&model, ResidualType::F16, Gemm::Own);
    let size = Size::new(30, 45);
    let mut values = normalised(&model, size, 6);
    let sound = outputs(&engine, Images::new(size, &values[..]), 6);
    let at = ((4 * size.height + 7) * size.width + 11) * 3 + 2;
    let kept = std::mem::replace(&mut values[at], f32::NAN);
    let mut map = vec![0.0; sound[1].len()];
    let error = engine.run(Images::new(size, &values[..]), &mut [OutputMut::new("stage2", &mut map)]);
    match error.unwrap_err() {
        RuntimeError::InputNotFinite { image, row, column, channel, value } => {
            assert_eq!((image, row, column, channel), (4, 7, 11, 2));
            assert!(value.is_nan());
        }
        error => panic!("{error}"),
    }
    values[at] = kept;
    assert!(outputs(&engine, Images::new(size, &values[..]), 6) == sound);
    // Fewer images than the prepared batch has: the others are no longer those of an earlier call.
    let halves = vec![f16::from_f32(0.5); size.area() * 3];
    outputs(&engine, Images::new(size, &halves[..]), 1);
    assert!(
        outputs(&engine, Images::new(size, &values[..size.area() * 3]), 1)
            .iter()
            .zip(&sound)
            .all(|(one, all)| *one == all[..one.len()])
    );
}
