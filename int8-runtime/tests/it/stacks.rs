//! Stacks of blocks, which take tokens: the engine's outputs equal those of the simulation bit for bit.

use candle_core::{Device, Tensor};
use half::f16;
use swinq_float::{FakeQuant, Float, Sites, Swin};
use swinq_int8_runtime::{
    CpuOptions, Engine, ImageLayout, Images, OutputLayout, OutputMut, Pixels, Start, VariantRunner,
};
use swinq_kernels::Cpu;
use swinq_model::site::all_sites;
use swinq_model::{Linear, QuantizedModel, Site, Size, SwinConfig};
use swinq_testing::model::{maps, random, second_stack, stack, stack_behind_merging, tokens};
use swinq_testing::relative_distance;

use crate::backbones::{engine, outputs_of, quantized};
use crate::common::RECIPES;

/// Grids of whole windows, and grids that are padded where the rule of the stack takes them.
const SIZES: [(usize, usize); 5] = [(8, 12), (4, 20), (16, 4), (13, 18), (9, 7)];

fn stacks() -> [SwinConfig; 3] {
    [stack(), second_stack(), stack_behind_merging()]
}

/// The sizes that `config` takes.
fn sizes(config: &SwinConfig) -> Vec<Size> {
    let sizes = SIZES.iter().map(|&(height, width)| Size::new(height, width));
    sizes.filter(|&size| config.grids(size).is_ok()).collect()
}

/// Every output of the float forward of `tokens` with `sites`.
fn reference(model: &QuantizedModel, size: Size, tokens: &[f32], sites: &mut dyn Sites) -> Vec<Vec<f32>> {
    let (config, Size { height, width }) = (&model.config, size);
    let swin = Swin::new(config, &model.float_tensors(), &Device::Cpu).unwrap();
    let images = tokens.len() / (size.area() * config.in_chans);
    let maps = maps(tokens, size, config.in_chans);
    let maps = Tensor::from_vec(maps, (images, config.in_chans, height, width), &Device::Cpu).unwrap();
    outputs_of(&swin, &maps, sites)
}

/// Every output of `engine` for images of any type and layout.
fn run<'a>(engine: &Engine, size: Size, pixels: impl Into<Pixels<'a>>, layout: ImageLayout) -> Vec<Vec<f32>> {
    let images = Images { layout, ..Images::new(size, pixels) };
    let count = images.pixels.len() / (size.area() * engine.channels());
    let shapes = engine.outputs().iter().map(|output| engine.output_shape(output, size).values());
    let mut found: Vec<Vec<f32>> = shapes.map(|values| vec![f32::NAN; count * values]).collect();
    let mut outputs: Vec<OutputMut<'_>> = (engine.outputs().iter().zip(&mut found))
        .map(|(output, values)| OutputMut::new(&output.name, values).in_layout(OutputLayout::Rows))
        .collect();
    engine.run(images, &mut outputs).unwrap();
    found
}

#[test]
fn outputs_equal_the_simulation_at_every_size() {
    for config in stacks() {
        let float = random(config, 3);
        for recipe in RECIPES {
            let model = quantized(&float, recipe);
            for size in sizes(&model.config) {
                let tokens = tokens(&model.config, size, 3);
                let expected = match recipe {
                    "float" => reference(&model, size, &tokens, &mut Float),
                    _ => reference(&model, size, &tokens, &mut FakeQuant::new(&model, &Device::Cpu).unwrap()),
                };
                for cpu in Cpu::available() {
                    let engine = engine(&model, cpu, 2);
                    let found = run(&engine, size, &tokens[..], ImageLayout::ChannelsLast);
                    let place = format!("{}, {recipe}, {size}, {cpu}", model.config.name);
                    for (found, expected) in found.iter().zip(&expected) {
                        match recipe {
                            "float" => assert!(relative_distance(found, expected) <= 1e-5, "{place}"),
                            _ => assert!(found == expected, "{place}"),
                        }
                    }
                    // The order of the values in memory does not count.
                    let maps = maps(&tokens, size, model.config.in_chans);
                    let of_maps = run(&engine, size, &maps[..], ImageLayout::ChannelsFirst);
                    assert!(of_maps == found, "{place}: maps");
                }
            }
        }
    }
}

#[test]
fn tokens_in_half_precision_are_read_exactly() {
    let model = quantized(&random(stack(), 3), "default");
    let (engine, size) = (engine(&model, Cpu::available()[0], 1), Size::new(8, 12));
    let halves: Vec<f16> = tokens(&model.config, size, 2).into_iter().map(f16::from_f32).collect();
    let values: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
    let found = run(&engine, size, &halves[..], ImageLayout::ChannelsLast);
    assert!(found == run(&engine, size, &values[..], ImageLayout::ChannelsLast));
}

#[test]
fn a_stack_has_the_sites_of_its_blocks_and_merging_alone() {
    for (config, first) in
        stacks().into_iter().zip(["layers.0.blocks.0", "layers.0.blocks.0", "layers.0.downsample"])
    {
        let sites = all_sites(&config);
        assert!(sites.iter().all(|site| site.to_string().starts_with("layers.")), "{}", config.name);
        assert!(!sites.contains(&Site::Input(Linear::PatchEmbed)));
        assert!(sites[0].to_string().starts_with(first), "{}", sites[0]);
    }
}

#[test]
fn a_stack_takes_tokens_of_its_width_and_sizes_only() {
    let model = quantized(&random(stack(), 3), "default");
    let engine = engine(&model, Cpu::available()[0], 1);
    let run = |images: Images<'_>| {
        let mut values = vec![0.0; images.size.area() * 20];
        engine.run(images, &mut [OutputMut::new("stage1", &mut values[..])]).unwrap_err().to_string()
    };
    let error = run(Images::new(Size::new(8, 12), &vec![0.0_f32; 8 * 12 * 3][..]));
    assert!(error.contains("8 x 12 x 20"), "{error}");
    // SwinIR's blocks fail for such grids, too; the network pads its images before.
    let error = run(Images::new(Size::new(8, 10), &vec![0.0_f32; 8 * 10 * 20][..]));
    assert!(error.contains("window 4 does not divide the 8x10 tokens"), "{error}");
    let mut tokens = vec![0.0_f32; 8 * 12 * 20];
    tokens[(12 + 5) * 20 + 7] = f32::NAN;
    let error = run(Images::new(Size::new(8, 12), &tokens[..]));
    assert!(error.contains("row 1, column 5 is NaN in channel 7"), "{error}");
}

#[test]
fn the_network_decides_the_shift_of_a_restoration_for_every_size() {
    let shift = |config: &SwinConfig, size| config.grids(size).unwrap()[0].shift;
    // One window covers a side, and blocks shift nevertheless, because the network's own grid has more.
    assert_eq!(shift(&stack(), Size::new(4, 20)), Size::square(2));
    let built = SwinConfig { image_size: Size::new(4, 12), ..stack() };
    assert_eq!(shift(&built, Size::new(16, 20)), Size::square(0));
    // A network whose grid is smaller than the window has windows of that side.
    let small = SwinConfig { image_size: Size::new(3, 12), ..stack() };
    assert_eq!(small.stages()[0].window, Size::square(3));
    assert!(small.grids(Size::new(8, 12)).is_err() && small.grids(Size::new(9, 6)).is_ok());
}

#[test]
fn variants_compute_the_engines_outputs_from_every_position() {
    for config in stacks() {
        let float = random(config, 5);
        let model = quantized(&float, "default");
        let options = CpuOptions { threads: 2, max_batch: 2, ..CpuOptions::detect().unwrap() };
        let mut runner = VariantRunner::new(&model, options).unwrap();
        let variant = runner.prepare(&model).unwrap();
        for size in sizes(&model.config) {
            runner.set_size(size).unwrap();
            let tokens = tokens(&model.config, size, 3);
            let expected = run(&engine(&model, options.cpu, 2), size, &tokens[..], ImageLayout::ChannelsLast);
            let positions: Vec<usize> = runner.positions().iter().map(|position| position.values).collect();
            for (at, values) in positions.iter().enumerate().take(positions.len() - 1).skip(1) {
                let mut residual = vec![0.0; 3 * values];
                runner.run(&variant, 3, Start::Images(Images::new(size, &tokens[..])), at, &mut residual);
                let computed = runner.outputs_from(at);
                let mut found: Vec<Vec<f32>> =
                    computed.clone().map(|output| vec![f32::NAN; 3 * runner.output_values(output)]).collect();
                let mut outputs: Vec<&mut [f32]> = found.iter_mut().map(|output| &mut output[..]).collect();
                runner.run_to_outputs(&variant, 3, Start::Residual(at, &residual), &mut outputs);
                assert!(found == expected[computed], "{}, {size}, position {at}", model.config.name);
            }
        }
    }
}
