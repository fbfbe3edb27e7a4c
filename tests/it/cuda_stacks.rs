//! Stacks of blocks on a GPU, against the CPU engine. Without a GPU the tests print that they are skipped, or
//! fail if `REQUIRE_IMPL` names `cuda`.

use half::f16;
use swinq_int8_runtime::cuda::{Gemm, ResidualType};
use swinq_int8_runtime::{Backend, Engine, ImageLayout, Images, OutputLayout, OutputMut, Pixels};
use swinq_model::{Size, StageOutput, SwinConfig};
use swinq_testing::model::{maps, second_stack, stack, stack_behind_merging, tokens};
use swinq_testing::sqnr_db;

use crate::common::gpu;
use crate::cuda::{cpu, float, options, quantized};

/// Grids of whole windows, and grids that are padded where the rule of the stack takes them.
const SIZES: [(usize, usize); 6] = [(8, 12), (4, 20), (16, 4), (13, 18), (9, 7), (64, 120)];

/// Every output of `engine`.
fn run<'a>(engine: &Engine, size: Size, tokens: impl Into<Pixels<'a>>, layout: ImageLayout) -> Vec<Vec<f32>> {
    let images = Images { layout, ..Images::new(size, tokens) };
    let count = images.pixels.len() / (size.area() * engine.channels());
    let lengths = engine.outputs().iter().map(|output| count * engine.output_shape(output, size).values());
    let mut found: Vec<Vec<f32>> = lengths.map(|length| vec![f32::NAN; length]).collect();
    let named = engine.outputs().iter().zip(&mut found);
    let mut outputs: Vec<OutputMut<'_>> = named
        .map(|(output, values)| OutputMut::new(&output.name, values).in_layout(OutputLayout::Rows))
        .collect();
    engine.run(images, &mut outputs).unwrap();
    found
}

#[test]
fn an_f32_residual_has_the_bits_of_the_cpu_at_every_size() {
    if !gpu("an_f32_residual_has_the_bits_of_the_cpu_at_every_size") {
        return;
    }
    for config in [stack(), second_stack(), stack_behind_merging()] {
        let float = float(config);
        for recipe in ["default", "mode1", "mode2", "channels"] {
            let model = quantized(&float, recipe);
            let (cpu, config) = (cpu(&model), &model.config);
            for gemm in [Gemm::Own, Gemm::CublasLt] {
                let engine = Engine::new(&model, Backend::Cuda(options(ResidualType::F32, gemm))).unwrap();
                for size in SIZES.map(|(height, width)| Size::new(height, width)) {
                    if config.grids(size).is_err() {
                        continue;
                    }
                    let (tokens, place) =
                        (tokens(config, size, 5), format!("{}, {recipe}, {gemm}, {size}", config.name));
                    let expected = run(&cpu, size, &tokens[..], ImageLayout::ChannelsLast);
                    assert!(
                        run(&engine, size, &tokens[..], ImageLayout::ChannelsLast) == expected,
                        "{place}"
                    );
                    let maps = maps(&tokens, size, config.in_chans);
                    assert!(
                        run(&engine, size, &maps[..], ImageLayout::ChannelsFirst) == expected,
                        "{place}: maps"
                    );
                }
            }
        }
    }
}

/// A stack of 48 channels, which are whole groups for an f16 residual.
fn of_whole_groups(config: SwinConfig) -> SwinConfig {
    let outputs = vec![StageOutput::of_stage(0, false)];
    let config = SwinConfig { in_chans: 48, embed_dim: 48, depths: vec![2], num_heads: vec![2], ..config };
    config.into_backbone(outputs)
}

#[test]
fn an_f16_residual_is_near_the_cpu() {
    if !gpu("an_f16_residual_is_near_the_cpu") {
        return;
    }
    for config in [of_whole_groups(stack()), of_whole_groups(second_stack())] {
        let model = quantized(&float(config), "default");
        let (cpu, size) = (cpu(&model), Size::new(16, 12));
        let engine = Engine::new(&model, Backend::Cuda(options(ResidualType::F16, Gemm::Own))).unwrap();
        let halves: Vec<f16> = tokens(&model.config, size, 3).into_iter().map(f16::from_f32).collect();
        let expected = run(&cpu, size, &halves[..], ImageLayout::ChannelsLast);
        let found = run(&engine, size, &halves[..], ImageLayout::ChannelsLast);
        let near = sqnr_db(&found[0], &expected[0]);
        assert!(near > 35.0, "{}: {near:.1} dB", model.config.name);
    }
}

#[test]
fn an_f16_residual_of_odd_groups_is_refused_with_the_way() {
    if !gpu("an_f16_residual_of_odd_groups_is_refused_with_the_way") {
        return;
    }
    let model = quantized(&float(stack()), "default");
    let error = Engine::new(&model, Backend::Cuda(options(ResidualType::F16, Gemm::Own))).err().unwrap();
    assert!(
        error.to_string().contains("20 channels") && error.to_string().contains("--residual f32"),
        "{error}"
    );
    let chosen = swinq_int8_runtime::CudaOptions { residual: None, ..options(ResidualType::F16, Gemm::Own) };
    assert!(Engine::new(&model, Backend::Cuda(chosen)).is_ok());
}
