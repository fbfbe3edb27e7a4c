//! Images of f32 and f16, in both layouts: what the caller normalises is what the network reads, on every
//! instruction set.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use half::f16;
use swinq_calib::quantize;
use swinq_float::{FakeQuant, Swin};
use swinq_int8_runtime::{Engine, ImageLayout, Images, OutputLayout, Pixels, RuntimeError};
use swinq_kernels::Cpu;
use swinq_model::site::all_sites;
use swinq_model::{Ptq, QuantizedModel, Recipe, Rule, Site, Size, SwinConfig, Transform, WindowPolicy};
use swinq_testing::XorShift;
use swinq_testing::model::{maps, random, small};

use crate::backbones::{backbone, engine, outputs_of, pixels, run_images};

const IMAGES: usize = 3;

/// A classifier that pads images of any size.
fn classifier() -> SwinConfig {
    SwinConfig { window_policy: WindowPolicy::HuggingFace, ..small() }
}

/// A model whose patch embedding reads f32, or codes if `embedding` is true.
fn quantized(config: SwinConfig, embedding: bool) -> QuantizedModel {
    let float = random(config, 3);
    let ranges: BTreeMap<Site, f32> = all_sites(&float.config).into_iter().map(|site| (site, 3.0)).collect();
    let rule = Rule { pattern: "patch_embed.**".to_owned(), enable: Some(embedding), ..Rule::default() };
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic).with_rule(rule);
    quantize(&float, &recipe, &ranges).unwrap()
}

/// The bits of f32 that the engine computes of `bytes`, `[images, height, width, 3]`.
fn normalised(bytes: &[u8], transform: &Transform) -> Vec<f32> {
    let of =
        |(i, &byte): (usize, &u8)| (f32::from(byte) / 255.0 - transform.mean[i % 3]) / transform.std[i % 3];
    bytes.iter().enumerate().map(of).collect()
}

fn halves(values: &[f32]) -> Vec<f16> {
    values.iter().map(|&value| f16::from_f32(value)).collect()
}

fn run(engine: &Engine, images: Images<'_>) -> Vec<Vec<f32>> {
    run_images(engine, images, OutputLayout::Rows).unwrap()
}

/// The outputs of the simulation for `values`, `[images, height, width, 3]`.
fn simulated(model: &QuantizedModel, size: Size, values: &[f32]) -> Vec<Vec<f32>> {
    let swin = Swin::new(&model.config, &model.float_tensors(), &Device::Cpu).unwrap();
    let shape = (values.len() / (3 * size.area()), 3, size.height, size.width);
    let images = Tensor::from_vec(maps(values, size, 3), shape, &Device::Cpu).unwrap();
    outputs_of(&swin, &images, &mut FakeQuant::new(model, &Device::Cpu).unwrap())
}

/// Calls `check` for models of both kinds with embeddings of both kinds, and sizes that are padded or not.
fn for_each_model(check: impl Fn(&QuantizedModel, Size)) {
    for config in [classifier(), backbone()] {
        for embedding in [false, true] {
            let model = quantized(config.clone(), embedding);
            for size in [Size::new(32, 32), Size::new(65, 97), Size::new(30, 61)] {
                check(&model, size);
            }
        }
    }
}

#[test]
fn what_a_caller_normalises_as_the_engine_does_has_the_bits_of_bytes() {
    for_each_model(|model, size| {
        let bytes = pixels(size, IMAGES);
        let values = normalised(&bytes, &model.transform);
        let expected = simulated(model, size, &values);
        let first = (maps(&bytes, size, 3), maps(&values, size, 3));
        for cpu in Cpu::available() {
            let engine = engine(model, cpu, 2);
            for (pixels, layout) in [
                (Pixels::U8(&bytes), ImageLayout::ChannelsLast),
                (Pixels::U8(&first.0), ImageLayout::ChannelsFirst),
                (Pixels::F32(&values), ImageLayout::ChannelsLast),
                (Pixels::F32(&first.1), ImageLayout::ChannelsFirst),
            ] {
                let found = run(&engine, Images { size, pixels, layout });
                assert!(found == expected, "{cpu}, {size}, {layout:?}");
            }
        }
    });
}

#[test]
fn any_values_equal_the_simulation() {
    for_each_model(|model, size| {
        // Values that no byte has, beyond the range of the embedding's codes, and with a fraction that f16
        // does not hold.
        let bytes = XorShift::new(7).bytes(2 * IMAGES * size.area() * 3);
        let value = |pair: &[u8]| f32::from(u16::from_le_bytes([pair[0], pair[1]])) / 7300.0 - 4.5;
        let values: Vec<f32> = bytes.chunks_exact(2).map(value).collect();
        let halves = halves(&values);
        let of_halves: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        assert_ne!(values, of_halves);
        for (values, pixels) in [(&values, Pixels::F32(&values)), (&of_halves, Pixels::F16(&halves))] {
            let expected = simulated(model, size, values);
            for cpu in Cpu::available() {
                let engine = engine(model, cpu, 2);
                let found = run(&engine, Images::new(size, pixels));
                assert!(found == expected, "{cpu}, {size}");
            }
        }
        let first = maps(&halves, size, 3);
        let engine = engine(model, Cpu::available()[0], 3);
        let images = Images { layout: ImageLayout::ChannelsFirst, ..Images::new(size, &first[..]) };
        assert!(run(&engine, images) == simulated(model, size, &of_halves), "{size}, f16, channels first");
    });
}

/// The codes of the embedding would hide a value that is not finite, so the error is about the image.
#[test]
fn a_value_that_is_not_finite_is_named() {
    for_each_model(|model, size| {
        let engine = engine(model, *Cpu::available().last().unwrap(), 2);
        let mut values = vec![0.25_f32; IMAGES * size.area() * 3];
        let (image, row, column, channel) = (2, 11, 29, 1);
        let last = ((image * size.height + row) * size.width + column) * 3 + channel;
        let first = ((image * 3 + channel) * size.height + row) * size.width + column;
        for (layout, at) in [(ImageLayout::ChannelsLast, last), (ImageLayout::ChannelsFirst, first)] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[at] = bad;
                let halves = halves(&values);
                for pixels in [Pixels::F32(&values), Pixels::F16(&halves)] {
                    let error = run_images(&engine, Images { size, pixels, layout }, OutputLayout::Rows);
                    let Err(RuntimeError::InputNotFinite { value, image: i, row: r, column: c, channel: k }) =
                        error
                    else {
                        panic!("{size}, {layout:?}: {bad} is not refused as a value of an image")
                    };
                    assert_eq!((i, r, c, k), (image, row, column, channel), "{size}, {layout:?}");
                    assert!(value == bad || value.is_nan() && bad.is_nan());
                }
            }
            values[at] = 0.25;
        }
        run(&engine, Images::new(size, &values[..]));
    });
}

#[test]
fn floats_that_are_not_whole_images_are_refused() {
    let model = quantized(backbone(), false);
    let engine = engine(&model, Cpu::available()[0], 1);
    let (values, halves) = (vec![0.0_f32; 32 * 32 * 3 + 1], vec![f16::ZERO; 32 * 32 * 3 - 1]);
    for (pixels, count) in [(Pixels::F32(&values), 3073), (Pixels::F16(&halves), 3071)] {
        let error = engine.run(Images::new(Size::square(32), pixels), &mut []);
        assert!(matches!(error, Err(RuntimeError::PixelCount { values, .. }) if values == count));
    }
}
