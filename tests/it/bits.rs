//! Models that hold the bits: small models of random weights, one for each kind of network and recipe. The
//! table `tests/data/bits.txt` has hashes of the tensors and ranges of each, of its file, and of the outputs
//! of its engine on every instruction set. `UPDATE_BITS=1` writes the table, after a change that was meant to
//! change results; `SWINQ_BITS` names a folder for the files.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::Device;
use sha2::{Digest, Sha256};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_int8_runtime::{Backend, CpuOptions, Engine, Images, OutputMut};
use swinq_kernels::Cpu;
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Batch, BatchSource, BoxError, QuantizedModel, Recipe, Size, StageOutput, SwinConfig, SwinVersion,
    WindowPolicy,
};
use swinq_testing::XorShift;
use swinq_testing::model::{
    gray_rectangle, odd, padded, random, rectangle, second, second_padded, second_rectangle, shifted, small,
};

use crate::common::{root, with_channels};

/// Images of a calibration.
const IMAGES: usize = 8;

/// A recipe by its name, with the calibrator `max`, so that the result does not depend on the bins of a
/// histogram, and without a second pass unless it is named.
fn recipe(name: &str) -> Recipe {
    let rules = |rules: &str| Recipe::from_yaml(name, &format!("name: {name}\nrules:\n{rules}")).unwrap();
    match name {
        "4 bits" => rules(
            "  - {match: \"**\", enable: true, granularity: channel, calibrator: max}\n  \
               - {match: \"**.weight\", bits: 4, calibrator: mse}\n  \
               - {match: \"{patch_embed,head}.**\", enable: false}\n  \
               - {match: \"**.{scores,output}\", enable: false}\n  - {match: \"**.add.*\", enable: false}\n",
        ),
        "everything" => rules("  - {match: \"**\", enable: true, granularity: tensor, calibrator: max}\n"),
        "float" => rules("  - {match: \"**\", enable: false}\n"),
        shipped => Recipe::shipped(shipped).unwrap(),
    }
}

/// Four heads of 32 channels and two stages, as GPUs run them.
fn wide(config: SwinConfig) -> SwinConfig {
    SwinConfig { name: "heads of 32 channels".to_owned(), embed_dim: 32, num_heads: vec![1, 2], ..config }
}

/// A backbone with the maps of both stages, the second with a norm, under a rule for windows.
fn backbone(window_policy: WindowPolicy) -> SwinConfig {
    let version = match window_policy {
        WindowPolicy::HuggingFaceV2 => SwinVersion::V2,
        _ => SwinVersion::V1,
    };
    let outputs = vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)];
    SwinConfig { version, window_policy, image_size: Size::square(44), ..shifted() }.into_backbone(outputs)
}

/// The models: name, architecture and recipe.
fn models() -> Vec<(&'static str, SwinConfig, &'static str)> {
    vec![
        ("v1", shifted(), "default"),
        ("v1-mode1", small(), "mode1"),
        ("v1-mode2", small(), "mode2"),
        ("v1-4-bits", small(), "4 bits"),
        ("v1-every-site", shifted(), "everything"),
        ("v1-float", shifted(), "float"),
        ("v1-channels", small(), "channels"),
        ("v1-wide-heads", wide(shifted()), "default"),
        ("v1-padded", padded(), "default"),
        ("v1-odd", odd(), "mode1"),
        ("v1-rectangle", rectangle(), "default"),
        ("v1-gray-rectangle", gray_rectangle(), "mode2"),
        ("v2", second(), "default"),
        ("v2-wide-heads", wide(second()), "mode1"),
        ("v2-padded", second_padded(), "mode1"),
        ("v2-rectangle", second_rectangle(), "default"),
        ("backbone-detectors", backbone(WindowPolicy::Detection), "default"),
        ("backbone-timm", backbone(WindowPolicy::TimmAnySize), "default"),
        ("backbone-torchvision", backbone(WindowPolicy::Pad), "mode1"),
        ("backbone-transformers", backbone(WindowPolicy::HuggingFace), "4 bits"),
        ("backbone-transformers-v2", backbone(WindowPolicy::HuggingFaceV2), "default"),
        ("backbone-mmpretrain", backbone(WindowPolicy::Mmpretrain), "mode2"),
    ]
}

/// Smooth images with some noise, the same in every epoch.
struct Waves {
    size: Size,
    channels: usize,
}

impl Waves {
    fn pixels(&self, image: usize) -> Vec<u8> {
        let noise = XorShift::new(image as u64 + 1).bytes(self.size.area() * self.channels);
        let value = |(index, noise): (usize, u8)| {
            let (pixel, channel) = (index / self.channels, index % self.channels);
            let (y, x) = (pixel / self.size.width, pixel % self.size.width);
            // A triangle of integers along a direction of the image's own.
            let phase = ((3 + image) * x + (5 + 2 * image) * y + 40 * channel) % 256;
            (phase.min(256 - phase) + usize::from(noise) / 3 + 20 * channel) as u8
        };
        noise.into_iter().enumerate().map(value).collect()
    }
}

impl BatchSource for Waves {
    fn batches(&self) -> usize {
        IMAGES / 2
    }

    fn images(&self) -> usize {
        IMAGES
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let ids = vec![2 * index, 2 * index + 1];
        let pixels = ids.iter().flat_map(|&id| self.pixels(id)).collect();
        Ok(Batch { pixels, ids, ..Batch::empty(self.size, self.channels) })
    }
}

fn quantized(float: &FloatModel, name: &str) -> QuantizedModel {
    let mut images = Waves { size: float.config.image_size, channels: float.config.in_chans };
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let shipped = if name == "channels" { "mode1" } else { name };
    let model = calibrate(float, &recipe(shipped), &mut images, options).unwrap().model;
    if name == "channels" { with_channels(model, float, |_| true) } else { model }
}

/// The outputs of an engine for four images, and for a larger one where the network runs any size.
fn outputs(model: &QuantizedModel, cpu: Cpu) -> Vec<u8> {
    let (threads, max_batch) = (2, 4);
    let options = CpuOptions { threads, max_batch, image_threads: 0, max_memory: 0, max_pixels: 0, cpu };
    let engine = Engine::new(model, Backend::Cpu(options)).unwrap();
    let (own, channels) = (model.config.image_size, model.config.in_chans);
    let larger = Size::new(own.height + 17, own.width + 9);
    let sizes = [own, larger].into_iter().filter(|&size| size == own || engine.check_size(size).is_ok());
    let run = |size: Size| {
        let images = Waves { size, channels };
        let pixels: Vec<u8> = (0..4).flat_map(|image| images.pixels(100 + image)).collect();
        let lengths = engine.outputs().iter().map(|output| 4 * engine.output_shape(output, size).values());
        let mut values: Vec<Vec<f32>> = lengths.map(|length| vec![f32::NAN; length]).collect();
        let named = engine.outputs().iter().zip(&mut values);
        let mut memory: Vec<OutputMut<'_>> =
            named.map(|(output, values)| OutputMut::new(&output.name, values)).collect();
        engine.run(Images::new(size, &pixels[..]), &mut memory).unwrap();
        values.concat().into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    sizes.flat_map(run).collect()
}

/// Sixteen hexadecimal digits of the hash of `bytes`.
fn hash(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in &Sha256::digest(bytes)[..8] {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// Tensors and ranges, the result of a calibration. A key that a new version adds to files is not part of it.
fn content(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let document = header["__metadata__"]["swinq"].as_str().expect("the document of the model");
    let document: serde_json::Value = serde_json::from_str(document).unwrap();
    let ranges = document["sites"].as_object().expect("the table of sites").iter();
    let ranges: String = ranges.map(|(site, state)| format!("{site} {}\n", state["amax"])).collect();
    [ranges.as_bytes(), &file[8 + length..]].concat()
}

/// A line of the table for each model.
fn table(folder: &Path) -> String {
    let mut table = String::new();
    for (seed, (name, config, recipe)) in models().into_iter().enumerate() {
        let float = random(config, seed as u64 + 1);
        let model = quantized(&float, recipe);
        let path = folder.join(name).with_extension("safetensors");
        model.save(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        writeln!(table, "{name:<26} {} {} {}", hash(&content(&file)), hash(&file), of_outputs(name, &path))
            .unwrap();
    }
    for older in ["numbers-1", "numbers-2", "numbers-3"] {
        let path = root().join("tests/data/older").join(older).with_extension("safetensors");
        let file = std::fs::read(&path).unwrap();
        writeln!(table, "{older:<26} - {} {}", hash(&file), of_outputs(older, &path)).unwrap();
    }
    table
}

/// The hash of the outputs of the file's model, which every instruction set computes.
fn of_outputs(name: &str, path: &Path) -> String {
    let model = QuantizedModel::load(path).unwrap();
    let mut found = Cpu::available().into_iter().map(|cpu| (cpu, hash(&outputs(&model, cpu))));
    let (_, first) = found.next().expect("a processor");
    found.for_each(|(cpu, other)| assert_eq!(other, first, "{name} on {cpu}"));
    first
}

#[test]
fn models_hold_the_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("SWINQ_BITS").map_or(temporary.path().to_owned(), PathBuf::from);
    std::fs::create_dir_all(&folder).unwrap();
    let (path, found) = (root().join("tests/data/bits.txt"), table(&folder));
    println!("{found}");
    if std::env::var_os("UPDATE_BITS").is_some() {
        return std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "name, tensors and ranges, file, outputs");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
