//! Feature maps: the engine's equal those of the simulation bit for bit at every image size, in every layout.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use half::f16;
use swinq_calib::quantize;
use swinq_float::{FakeQuant, Float, Sites, Swin};
use swinq_int8_runtime::{
    Backend, CpuOptions, Engine, ImageLayout, Images, OutputLayout, OutputMut, RuntimeError, Start,
    VariantRunner,
};
use swinq_kernels::Cpu;
use swinq_model::quantized::{FloatModel, Param};
use swinq_model::site::all_sites;
use swinq_model::{
    Batch, PositionSizes, Ptq, QuantizedModel, Recipe, Site, Size, StageOutput, SwinConfig, SwinVersion,
    WindowPolicy,
};
use swinq_testing::model::{random, small};
use swinq_testing::{XorShift, relative_distance};

use crate::common::RECIPES;

/// Sizes whose grids are whole windows, padded in every way, or smaller than a window.
const SIZES: [(usize, usize); 5] = [(32, 32), (65, 97), (30, 61), (12, 9), (64, 176)];

/// Three stages under the rule of detectors, with outputs that have a norm and outputs that have none.
pub fn backbone() -> SwinConfig {
    let config = SwinConfig {
        depths: vec![2, 2, 1],
        num_heads: vec![2, 3, 4],
        window_policy: WindowPolicy::Detection,
        ..small()
    };
    config.into_backbone(vec![
        StageOutput::of_stage(0, true),
        StageOutput::of_stage(1, false),
        StageOutput::of_stage(2, true),
    ])
}

/// [`backbone`] with an absolute position embedding, which is interpolated for other sizes than its own.
fn with_positions() -> SwinConfig {
    SwinConfig { image_size: Size::new(32, 24), ape: true, ape_sizes: PositionSizes::Bicubic, ..backbone() }
}

/// Two stages of a Swin V2 of transformers without norms.
fn second() -> SwinConfig {
    let config = SwinConfig {
        version: SwinVersion::V2,
        window_policy: WindowPolicy::HuggingFaceV2,
        mask: -200.0,
        ..small()
    };
    config.into_backbone(vec![StageOutput::of_stage(1, false)])
}

/// Two stages under torchvision's rule, which leaves out pixels that fill no patch.
fn torchvision() -> SwinConfig {
    let config = SwinConfig { window_policy: WindowPolicy::Pad, ..small() };
    config.into_backbone(vec![StageOutput::of_stage(0, false), StageOutput::of_stage(1, false)])
}

pub fn quantized(float: &FloatModel, recipe: &str) -> QuantizedModel {
    if recipe == "float" {
        return QuantizedModel::from_float(float.clone()).unwrap();
    }
    let ranges: BTreeMap<Site, f32> = all_sites(&float.config).into_iter().map(|site| (site, 3.0)).collect();
    quantize(float, &Recipe::shipped(recipe).unwrap().with_ptq(Ptq::Basic), &ranges).unwrap()
}

pub fn engine(model: &QuantizedModel, cpu: Cpu, threads: usize) -> Engine {
    let options = CpuOptions { threads, max_batch: 2, image_threads: 0, max_memory: 0, max_pixels: 0, cpu };
    Engine::new(model, Backend::Cpu(options)).unwrap()
}

pub fn pixels(size: Size, images: usize) -> Vec<u8> {
    XorShift::new(size.area() as u64).bytes(images * size.area() * 3)
}

/// Every output of the float forward of images of bytes, `[images * rows, columns]`, with `sites`.
fn reference(model: &QuantizedModel, size: Size, pixels: &[u8], sites: &mut dyn Sites) -> Vec<Vec<f32>> {
    let swin = Swin::new(&model.config, &model.float_tensors(), &Device::Cpu).unwrap();
    let images = pixels.len() / size.image_bytes(3, 1).unwrap();
    let batch = Batch { pixels: pixels.to_vec(), ids: (0..images).collect(), ..Batch::empty(size, 3) };
    outputs_of(&swin, &swin.images(&batch, &model.transform).unwrap(), sites)
}

/// Every output of `swin` for normalised `images`, `[images * rows, columns]`, with `sites`.
pub fn outputs_of(swin: &Swin, images: &Tensor, sites: &mut dyn Sites) -> Vec<Vec<f32>> {
    let outputs = swin.outputs(images, sites).unwrap();
    outputs.iter().map(|output| output.flatten_all().unwrap().to_vec1().unwrap()).collect()
}

/// Every output of `engine` for images of bytes, in `layout`.
fn run(engine: &Engine, size: Size, pixels: &[u8], layout: OutputLayout) -> Vec<Vec<f32>> {
    run_images(engine, Images::new(size, pixels), layout).unwrap()
}

/// Every output of `engine`, in `layout`.
pub fn run_images(
    engine: &Engine,
    input: Images<'_>,
    layout: OutputLayout,
) -> Result<Vec<Vec<f32>>, RuntimeError> {
    let size = input.size;
    let images = input.pixels.len() / size.image_bytes(3, 1).unwrap();
    let outputs = engine.outputs().iter();
    let mut values: Vec<Vec<f32>> =
        outputs.map(|output| vec![f32::NAN; images * engine.output_shape(output, size).values()]).collect();
    let mut memory: Vec<OutputMut<'_>> = (engine.outputs().iter().zip(&mut values))
        .map(|(output, values)| OutputMut::new(&output.name, values).in_layout(layout))
        .collect();
    engine.run(input, &mut memory)?;
    Ok(values)
}

/// Of every size, from the image and from every place within the network; a run computes the outputs that are
/// still to come.
#[test]
fn variants_compute_the_engines_outputs_from_every_position() {
    for config in [backbone(), with_positions()] {
        check_variants(&random(config, 5));
    }
}

fn check_variants(float: &FloatModel) {
    let models = ["float", "default"].map(|recipe| quantized(float, recipe));
    let options = CpuOptions { threads: 2, max_batch: 2, ..CpuOptions::detect().unwrap() };
    let mut runner = VariantRunner::new(&models[0], options).unwrap();
    let variants = models.each_ref().map(|model| runner.prepare(model).unwrap());
    for (height, width) in SIZES {
        let (size, images) = (Size::new(height, width), 3);
        runner.set_size(size).unwrap();
        let pixels = pixels(size, images);
        for (model, variant) in models.iter().zip(&variants) {
            let expected = run(&engine(model, options.cpu, 2), size, &pixels, OutputLayout::Rows);
            let positions: Vec<usize> = runner.positions().iter().map(|position| position.values).collect();
            let mut firsts = Vec::new();
            for (at, values) in positions.iter().enumerate().take(positions.len() - 1) {
                let mut residual = vec![0.0; images * values];
                let start = match at {
                    0 => Start::Images(Images::new(size, &pixels[..])),
                    _ => {
                        runner.run(
                            variant,
                            images,
                            Start::Images(Images::new(size, &pixels[..])),
                            at,
                            &mut residual,
                        );
                        Start::Residual(at, &residual)
                    }
                };
                let computed = runner.outputs_from(at);
                let lengths = computed.clone().map(|output| images * runner.output_values(output));
                let mut found: Vec<Vec<f32>> = lengths.map(|length| vec![f32::NAN; length]).collect();
                let mut outputs: Vec<&mut [f32]> = found.iter_mut().map(|output| &mut output[..]).collect();
                runner.run_to_outputs(variant, images, start, &mut outputs);
                assert!(found == expected[computed.clone()], "{size} from position {at}");
                firsts.push(computed.start);
            }
            firsts.dedup();
            assert_eq!(firsts, [0, 1, 2], "every stage has positions");
            // Normalised images give the same, because the engine reads the values that it would have
            // computed.
            let values: Vec<f32> =
                pixels.chunks(size.area() * 3).flat_map(|image| model.transform.normalised(image)).collect();
            let floats = Images { layout: ImageLayout::ChannelsFirst, ..Images::new(size, &values[..]) };
            let mut found: Vec<Vec<f32>> = expected.iter().map(|map| vec![f32::NAN; map.len()]).collect();
            let mut outputs: Vec<&mut [f32]> = found.iter_mut().map(|output| &mut output[..]).collect();
            runner.run_to_outputs(variant, images, Start::Images(floats), &mut outputs);
            let expected = run_images(&engine(model, options.cpu, 2), floats, OutputLayout::Rows).unwrap();
            assert!(found == expected, "{size} from floats");
        }
    }
}

#[test]
fn feature_maps_equal_the_simulation() {
    for config in [backbone(), with_positions(), second(), torchvision()] {
        let float = random(config, 3);
        for recipe in RECIPES {
            let model = quantized(&float, recipe);
            for (height, width) in SIZES {
                let size = Size::new(height, width);
                if float.config.grids(size).is_err() {
                    continue;
                }
                let pixels = pixels(size, 3);
                let expected = match recipe {
                    "float" => reference(&model, size, &pixels, &mut Float),
                    _ => reference(&model, size, &pixels, &mut FakeQuant::new(&model, &Device::Cpu).unwrap()),
                };
                for cpu in Cpu::available() {
                    let found = run(&engine(&model, cpu, 2), size, &pixels, OutputLayout::Rows);
                    let place = format!("{}, {recipe}, {size}, {cpu}", model.config.version as u8);
                    match recipe {
                        "float" => close(&found, &expected, &place),
                        _ => assert!(found == expected, "{place}"),
                    }
                }
            }
        }
    }
}

/// Whether each output has a relative distance below 1e-5 from the expected one.
fn close(found: &[Vec<f32>], expected: &[Vec<f32>], place: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let distance = relative_distance(found, expected);
        assert!(distance <= 1e-5, "{place}: {distance}");
    }
}

#[test]
fn sizes_at_which_the_rule_of_detectors_runs_are_not_skipped() {
    let config = backbone();
    assert!(SIZES.iter().all(|&(height, width)| config.grids(Size::new(height, width)).is_ok()));
    assert!(second().grids(Size::new(65, 97)).is_ok());
    let grid = |size| torchvision().grids(size).map(|grids| grids[0].size);
    assert_eq!(grid(Size::new(65, 97)).unwrap(), Size::new(16, 24));
    assert_eq!(grid(Size::new(30, 61)).unwrap(), Size::new(7, 15));
    let error = grid(Size::new(3, 61)).unwrap_err().to_string();
    assert!(error.contains("images of 3x61") && error.contains("do not fill a patch"), "{error}");
}

#[test]
fn outputs_have_the_shape_of_the_stage_in_every_layout() {
    let model = quantized(&random(backbone(), 3), "default");
    let engine = engine(&model, Cpu::available()[0], 3);
    let size = Size::new(65, 97);
    let shapes: Vec<_> = engine.outputs().iter().map(|output| engine.output_shape(output, size)).collect();
    let grids: Vec<Size> = shapes.iter().map(|shape| shape.grid.unwrap()).collect();
    assert_eq!(grids, [Size::new(17, 25), Size::new(9, 13), Size::new(5, 7)]);
    assert_eq!(shapes.iter().map(|shape| shape.columns).collect::<Vec<_>>(), [24, 48, 96]);
    let names: Vec<&str> = engine.outputs().iter().map(|output| &output.name[..]).collect();
    assert_eq!(names, ["stage1", "stage2", "stage3"]);

    let pixels = pixels(size, 5);
    let rows = run(&engine, size, &pixels, OutputLayout::Rows);
    let channels = run(&engine, size, &pixels, OutputLayout::ChannelsFirst);
    for ((rows, channels), shape) in rows.iter().zip(&channels).zip(&shapes) {
        for (at, value) in rows.iter().enumerate() {
            let (image, row, column) =
                (at / shape.values(), at / shape.columns % shape.rows(), at % shape.columns);
            assert_eq!(channels[(image * shape.columns + column) * shape.rows() + row], *value);
        }
    }
    // An image does not see the others.
    let one = run(&engine, size, &pixels[3 * size.area() * 3..][..size.area() * 3], OutputLayout::Rows);
    for ((one, all), shape) in one.iter().zip(&rows).zip(&shapes) {
        assert!(one[..] == all[3 * shape.values()..][..shape.values()]);
    }
}

#[test]
fn a_damaged_backbone_is_named() {
    let mut float = random(backbone(), 3);
    float.tensors.get_mut("norm2.weight").unwrap().data.fill(f32::MAX);
    let engine = engine(&quantized(&float, "default"), Cpu::available()[0], 1);
    let size = engine.input_size();
    let pixels = pixels(size, 2);
    let mut values = vec![0.0; 2 * engine.output_shape(&engine.outputs()[2], size).values()];
    let error = engine.run(Images::new(size, &pixels[..]), &mut [OutputMut::new("stage3", &mut values)]);
    match error {
        Err(RuntimeError::MapNotFinite { name, image: 0, .. }) => assert_eq!(name, "stage3"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_that_half_precision_does_not_hold_is_an_error_of_the_output() {
    let mut model = quantized(&random(backbone(), 3), "float");
    // The second output has no norm.
    let bias = "layers.1.blocks.1.mlp.fc2.bias";
    let mut huge = model.params[bias].to_float();
    huge.data[5] = 7e4;
    model.params.insert(bias.to_owned(), Param::Float(huge));
    let (engine, size) = (engine(&model, Cpu::available()[0], 1), Size::new(30, 61));
    let pixels = pixels(size, 2);
    let maps = run(&engine, size, &pixels, OutputLayout::Rows);
    let mut halves = vec![f16::ZERO; maps[1].len()];
    let images = Images::new(size, &pixels[..]);
    match engine.run(images, &mut [OutputMut::new("stage2", &mut halves)]).unwrap_err() {
        RuntimeError::OutputOverflow { name, image } => assert_eq!((&name[..], image), ("stage2", 0)),
        error => panic!("{error}"),
    }
    let mut halves = vec![f16::ZERO; maps[0].len()];
    engine.run(images, &mut [OutputMut::new("stage1", &mut halves)]).unwrap();
    let rounded = maps[0].iter().map(|&value| f16::from_f32(value));
    assert!(rounded.eq(halves.iter().copied()), "the first output");
}
