//! The documents against the program. `docs/examples/engine.py` implements `docs/inference.md` in numpy; its
//! logits equal those of `swinq predict` bit for bit. `docs/examples/weights.py` implements
//! `docs/calibration.md`; its quantized weights equal those of `swinq calibrate` bit for bit.
//!
//! These tests need Python (`SWINQ_PYTHON`, else `python3`) with numpy and safetensors. Without it they print
//! SKIPPED, or fail if `REQUIRE_IMPL` names `numpy`. The last tests look for the files that `ARCHITECTURE.md`
//! names, and count phrases of documents and comments.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{calibrate as calibrate_sample, float_model, root, swinq, with_channels, write_png};
use candle_core::Device;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_int8_runtime::{Backend, CpuOptions, Engine, ImageLayout, Images, OutputMut};
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Batch, BatchSource, BoxError, PositionSizes, QuantizedModel, Recipe, Size, SwinConfig, WindowPolicy,
    Windows,
};
use swinq_numerics::Gelu;
use swinq_testing::XorShift;
use swinq_testing::model::{NoiseImages, random, small, stack, stack_behind_merging};

/// Images per comparison.
const IMAGES: usize = 3;

/// Python with numpy and safetensors; `None` if there is none, after printing that `test` is skipped.
fn python(test: &str) -> Option<PathBuf> {
    python_with(test, "numpy, safetensors")
}

/// Python with `packages`.
fn python_with(test: &str, packages: &str) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("SWINQ_PYTHON").unwrap_or_else(|| "python3".into()));
    let found = Command::new(&python).args(["-c", &format!("import {packages}")]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name == "numpy"),
        "REQUIRE_IMPL names numpy, but {} lacks one of {packages}",
        python.display()
    );
    eprintln!("SKIPPED {test}: {} lacks one of {packages}", python.display());
    None
}

/// The command `python`, with one thread for the products of numpy: they are small, and its threads wait by
/// spinning.
fn on_one_thread(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.env("OPENBLAS_NUM_THREADS", "1");
    command
}

/// Images of a size and a number of channels, which is 1 or 3.
#[derive(Clone, Copy)]
struct Noise(Size, usize);

impl Noise {
    /// Images for `config`.
    fn of(config: &SwinConfig) -> Noise {
        Noise(config.image_size, config.in_chans)
    }

    /// Smooth noise, so that a network's activations differ from place to place: u8
    /// `[images, height, width, channels]`.
    fn pixels(self, images: usize, seed: usize) -> Vec<u8> {
        let Noise(Size { height, width }, channels) = self;
        let mut rng = XorShift::new(seed as u64);
        let mut noise = || (rng.next() >> 40) as usize % 96;
        let pixel = |i: usize| {
            let (channel, x, y) = (i % channels, i / channels % width, i / channels / width % height);
            let slope = (x * (channel + 1) + y * (3 - channel)) * 160 / (4 * width.max(height));
            (slope + noise()) as u8
        };
        (0..images * height * width * channels).map(pixel).collect()
    }

    /// Writes images as PNG files; returns their paths.
    fn write(self, folder: &Path, pixels: &[u8]) -> Vec<PathBuf> {
        let Noise(size, channels) = self;
        let write = |(index, image): (usize, &[u8])| {
            let path = folder.join(format!("{index}.png"));
            write_png(&path, size, image);
            path
        };
        pixels.chunks_exact(size.area() * channels).enumerate().map(write).collect()
    }
}

impl BatchSource for Noise {
    fn batches(&self) -> usize {
        2
    }

    fn images(&self) -> usize {
        4
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let ids = vec![2 * index, 2 * index + 1];
        Ok(Batch { pixels: self.pixels(2, index + 1), ids, ..Batch::empty(self.0, self.1) })
    }
}

/// The bits of the tensor `logits` of a file.
fn logits(path: &Path) -> Vec<u32> {
    tensor(path, "logits")
}

/// The bits of a tensor of a file.
fn tensor(path: &Path, name: &str) -> Vec<u32> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (values, _) = file.tensor(name).unwrap().data().as_chunks::<4>();
    values.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
}

fn succeeded(output: Output) -> Output {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs the numpy engine on `model` and the tensor `name` with these bytes; writes its outputs to `outputs`.
fn run_numpy(python: &Path, model: &Path, (name, tensor): (&str, TensorView<'_>), outputs: &Path) {
    let input = outputs.with_extension("input");
    std::fs::write(&input, safetensors::serialize([(name, tensor)], None).unwrap()).unwrap();
    let script = root().join("docs/examples/engine.py");
    succeeded(on_one_thread(python).arg(script).args([model, &input, outputs]).output().unwrap());
}

/// The tensor of `IMAGES` images that are as `noise`.
fn view_of(noise: Noise, pixels: &[u8]) -> TensorView<'_> {
    TensorView::new(Dtype::U8, vec![IMAGES, noise.0.height, noise.0.width, noise.1], pixels).unwrap()
}

/// `float` calibrated by `recipe` on `source`.
fn calibrated(float: &FloatModel, recipe: &Recipe, source: &mut dyn BatchSource) -> QuantizedModel {
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    calibrate(float, recipe, source, options).unwrap().model
}

/// Asserts that the numpy engine and `swinq predict` give the same bits on the quantized checkpoint `model`
/// in `folder`, for images that are as `noise`.
fn compare(python: &Path, folder: &Path, model: &Path, noise: Noise, what: &str) {
    let [own, numpy] = ["own", "numpy"].map(|n| folder.join(format!("{n}.safetensors")));
    let pixels = noise.pixels(IMAGES, 0);
    let images = noise.write(folder, &pixels);
    let mut predict = swinq(["predict", "--backend", "cpu", "--logits"]);
    predict.arg(&own).arg(model).args(images).assert().success();
    run_numpy(python, model, ("pixels", view_of(noise, &pixels)), &numpy);
    let (own, numpy) = (logits(&own), logits(&numpy));
    assert!(own.iter().any(|bits| *bits != own[0]), "{what}: constant logits");
    assert_eq!(own, numpy, "{what}");
}

/// Asserts that the numpy engine and the engine give the same bits for every output of the stack `config`, on
/// a grid of `size`.
fn compare_stack(python: &Path, config: SwinConfig, size: Size) {
    let folder = tempfile::tempdir().unwrap();
    let [model, found] = ["model", "found"].map(|n| folder.path().join(format!("{n}.safetensors")));
    let mut tokens = NoiseImages::of(&config, 2);
    let float = random(config, 11);
    calibrated(&float, &Recipe::shipped("default").unwrap(), &mut tokens).save(&model).unwrap();
    let channels = float.config.in_chans;
    let bytes = XorShift::new(7).bytes(2 * size.area() * channels);
    let tokens: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 64.0 - 2.0).collect();
    let data: Vec<u8> = tokens.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![2, size.height, size.width, channels], &data).unwrap();
    run_numpy(python, &model, ("tokens", view), &found);
    let engine = Engine::load(&model, Backend::Cpu(CpuOptions::detect().unwrap())).unwrap();
    for output in engine.outputs() {
        let mut own = vec![0.0_f32; 2 * engine.output_shape(output, size).values()];
        let images = Images { layout: ImageLayout::ChannelsLast, ..Images::new(size, &tokens[..]) };
        engine.run(images, &mut [OutputMut::new(&output.name, &mut own[..])]).unwrap();
        let own: Vec<u32> = own.iter().map(|value| value.to_bits()).collect();
        assert!(own.iter().any(|bits| *bits != own[0]));
        assert_eq!(own, tensor(&found, &output.name), "{}, {}", float.config.name, output.name);
    }
}

#[test]
fn the_numpy_engine_gives_the_outputs_of_stacks() {
    let Some(python) = python("the_numpy_engine_gives_the_outputs_of_stacks") else { return };
    compare_stack(&python, stack(), Size::new(8, 12));
    compare_stack(&python, stack(), Size::new(4, 16));
    compare_stack(&python, stack_behind_merging(), Size::new(13, 18));
}

/// A recipe with 4-bit weights and the sites of residual additions on.
const W4_ADD: &str = "
  - {match: '**', enable: true, calibrator: {percentile: 99.99}}
  - {match: '**.weight', bits: 4, calibrator: mse}
  - {match: '{patch_embed,head}.**', enable: false}
  - {match: '**.{scores,output}', enable: false}
";

/// A recipe with 7-bit weights, for processors whose sums of two products saturate.
const W7: &str = "
  - {match: '**', enable: true, calibrator: mse}
  - {match: '**.weight', bits: 7, ptq: refined}
  - {match: '{patch_embed,head}.**', enable: false}
  - {match: '**.{scores,output,branch,shortcut}', enable: false}
";

/// A recipe with every site on, and probabilities of both kinds.
const ALL: &str = "
  - {match: '**', enable: true, calibrator: entropy}
  - {match: '**.weight', calibrator: max, granularity: tensor}
  - {match: 'layers.0.**.probs', kind: s8, calibrator: max}
";

/// A recipe with every combination in which one operand of a product is on and the other is off.
const MIXED: &str = "
  - {match: '**', enable: true, calibrator: mse}
  - {match: '**.weight', calibrator: max}
  - {match: 'layers.*.blocks.0.**.{fc1,proj}.input', enable: false}
  - {match: 'layers.*.blocks.1.**.{fc1,proj}.weight', enable: false}
  - {match: 'layers.0.blocks.0.attn.q', enable: false}
  - {match: 'layers.0.blocks.1.attn.{k,v}', enable: false}
  - {match: 'layers.1.blocks.0.attn.v', enable: false}
  - {match: 'layers.1.blocks.0.attn.probs', kind: s8}
  - {match: 'layers.1.blocks.1.attn.{q,probs}', enable: false}
  - {match: '{layers.1.blocks.0.mlp.fc2,head}.weight', enable: false}
";

fn yaml(rules: &str) -> String {
    format!("name: test\nrules:{rules}")
}

fn recipe_of(rules: &str) -> Recipe {
    Recipe::from_yaml("test", &yaml(rules)).unwrap()
}

#[test]
fn the_numpy_engine_gives_the_bits_of_the_sample() {
    let Some(python) = python("the_numpy_engine_gives_the_bits_of_the_sample") else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("q.safetensors");
    let sample = Noise::of(&float_model().config);
    let recipes =
        [("default", ""), ("mode1", ""), ("w4", W4_ADD), ("w7", W7), ("all", ALL), ("mixed", MIXED)];
    for (name, rules) in recipes {
        let file = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, yaml(rules)).unwrap();
        let recipe = if rules.is_empty() { name } else { file.to_str().unwrap() };
        calibrate_sample(&model, &["--recipe", recipe, "--batches", "2"]).success();
        compare(&python, folder.path(), &model, sample, name);
        if name == "default" {
            let channels = QuantizedModel::load(&model).unwrap();
            with_channels(channels, &float_model(), |_| true).save(&model).unwrap();
            compare(&python, folder.path(), &model, sample, "scales of channels");
        }
    }
    let rules = ["--channels", "bgr", "--orientation", "exif", "--ptq", "basic", "--batches", "1"];
    calibrate_sample(&model, &rules).success();
    compare(&python, folder.path(), &model, sample, "channels in the order BGR");
}

fn odd_shapes() -> [SwinConfig; 3] {
    let small = SwinConfig { image_size: Size::square(44), ..small() };
    [
        SwinConfig {
            name: "padded windows, odd merge, no norm of patches".to_owned(),
            window_policy: WindowPolicy::ShrinkAndPad,
            patch_norm: false,
            ..small.clone()
        },
        SwinConfig {
            name: "windows larger than the grid, odd widths".to_owned(),
            window_policy: WindowPolicy::Pad,
            image_size: Size::square(10),
            patch_size: 2,
            embed_dim: 18,
            num_heads: vec![3, 2],
            mlp_ratio: 2.5,
            ..small.clone()
        },
        SwinConfig {
            name: "position embedding, no QKV bias, own scale".to_owned(),
            image_size: Size::square(32),
            ape: true,
            qkv_bias: false,
            qk_scale: Some(0.37),
            ..small
        },
    ]
}

#[test]
fn the_numpy_engine_gives_the_bits_of_odd_shapes() {
    let Some(python) = python("the_numpy_engine_gives_the_bits_of_odd_shapes") else { return };
    for (config, rules) in odd_shapes().into_iter().zip([ALL, W4_ADD, MIXED]) {
        check_shape(&python, config, rules);
    }
}

/// Images of another size than the network's own, whose absolute position embedding is interpolated.
#[test]
fn the_numpy_engine_interpolates_position_embeddings() {
    let Some(python) = python("the_numpy_engine_interpolates_position_embeddings") else { return };
    let config = |image_size, window_policy, ape_sizes| SwinConfig {
        name: format!("position embedding, {window_policy:?}"),
        image_size,
        ape: true,
        ape_sizes,
        window_policy,
        ..small()
    };
    let detector = config(Size::new(32, 24), WindowPolicy::Detection, PositionSizes::Bicubic);
    for size in [Size::new(57, 24), Size::new(20, 75), Size::new(9, 11)] {
        compare_images(&python, detector.clone(), ALL, size);
    }
    let whole = config(Size::square(32), WindowPolicy::HuggingFace, PositionSizes::BicubicWholePatches);
    compare_images(&python, whole, MIXED, Size::new(36, 60));
}

/// Asserts that the numpy engine and the engine give the same bits on images of `size`, without a resize, for
/// random weights of `config`, quantized by `rules`.
fn compare_images(python: &Path, config: SwinConfig, rules: &str, size: Size) {
    let folder = tempfile::tempdir().unwrap();
    let [file, found] = ["model", "found"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let mut noise = Noise(size, config.in_chans);
    let mut float = random(config, 5);
    // For other sizes than the network's own, the dialect tells the rule for windows.
    float.source.dialect = "hf".to_owned();
    let model = calibrated(&float, &recipe_of(rules), &mut noise);
    model.save(&file).unwrap();
    let pixels = noise.pixels(IMAGES, 0);
    run_numpy(python, &file, ("pixels", view_of(noise, &pixels)), &found);
    let engine = Engine::load(&file, Backend::Cpu(CpuOptions::detect().unwrap())).unwrap();
    let mut own = vec![0.0_f32; IMAGES * model.config.num_classes];
    engine.run(Images::new(size, &pixels[..]), &mut [OutputMut::new("logits", &mut own[..])]).unwrap();
    let own: Vec<u32> = own.iter().map(|value| value.to_bits()).collect();
    assert!(own.iter().any(|bits| *bits != own[0]), "{size}: constant logits");
    assert_eq!(own, logits(&found), "{}, {size}", model.config.name);
}

/// Compares the engines on random weights of `config`, quantized by `rules`.
fn check_shape(python: &Path, config: SwinConfig, rules: &str) {
    let mut noise = Noise::of(&config);
    let float = random(config, 5);
    let model = calibrated(&float, &recipe_of(rules), &mut noise);
    let mut model = with_channels(model, &float, |_| true);
    if rules == MIXED {
        model.gelu = Gelu::Erf;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q.safetensors");
    model.save(&file).unwrap();
    compare(python, folder.path(), &file, noise, &float.config.name);
}

/// Every window policy on a rectangle, which some shift or pad on one axis only; one channel, and windows of
/// two sides.
#[test]
fn the_numpy_engine_gives_the_bits_of_rectangles() {
    use WindowPolicy::{
        Detection, HuggingFace, HuggingFaceV2, Microsoft, Mmpretrain, Pad, Timm, TimmAlwaysPartition,
        TimmAnySize,
    };
    let Some(python) = python("the_numpy_engine_gives_the_bits_of_rectangles") else { return };
    let rectangles = [
        (Microsoft, 32, 64),
        (HuggingFace, 30, 57),
        (HuggingFaceV2, 57, 30),
        (Timm, 24, 56),
        (TimmAnySize, 56, 24),
        (TimmAlwaysPartition, 12, 56),
        (Pad, 20, 44),
        (Mmpretrain, 35, 50),
        (Detection, 10, 57),
    ];
    for (window_policy, height, width) in rectangles {
        let (name, image_size) = (format!("{window_policy:?}"), Size::new(height, width));
        check_shape(&python, SwinConfig { name, image_size, window_policy, ..small() }, ALL);
    }
    for window_policy in [Timm, Pad] {
        let name = format!("{window_policy:?}, one channel");
        let (image_size, window_size, in_chans) = (Size::new(20, 44), Size::new(2, 6).into(), 1);
        check_shape(
            &python,
            SwinConfig { name, image_size, window_size, in_chans, window_policy, ..small() },
            W4_ADD,
        );
    }
    for window_policy in [Timm, TimmAlwaysPartition, Detection] {
        let window_size = Windows::of_stages(vec![Size::new(3, 2), Size::square(4)]).unwrap();
        let (name, image_size) = (format!("{window_policy:?}, windows of stages"), Size::new(36, 44));
        check_shape(&python, SwinConfig { name, image_size, window_size, window_policy, ..small() }, ALL);
    }
}

/// A recipe whose weights have every calibrator, granularity and number of bits.
const WEIGHTS: &str = "
  - {match: '**.weight', enable: true, calibrator: max}
  - {match: '**.{fc1,qkv}.weight', calibrator: entropy, granularity: tensor}
  - {match: '**.proj.weight', calibrator: {percentile: 97.3}}
  - {match: 'layers.1.**.fc2.weight', calibrator: mse, granularity: tensor}
  - {match: 'layers.0.**.fc2.weight', calibrator: mse, bits: 4}
  - {match: 'layers.0.**.fc1.weight', bits: 7}
  - {match: 'layers.0.**.{input,q,k,v}', enable: true, amax: 3.5}
";

#[test]
fn the_numpy_calibrators_give_the_bits_of_the_weights() {
    let Some(python) = python("the_numpy_calibrators_give_the_bits_of_the_weights") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [float, model, numpy] = ["f", "q", "n"].map(|n| folder.path().join(format!("{n}.safetensors")));
    let recipe = folder.path().join("recipe.yaml");
    std::fs::write(&recipe, yaml(WEIGHTS)).unwrap();
    calibrate_sample(&model, &["--recipe", recipe.to_str().unwrap()]).success();
    let tensors = float_model().tensors;
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, t)| (name, &t.shape, t.data.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
    });
    std::fs::write(&float, safetensors::serialize(views, None).unwrap()).unwrap();
    let script = root().join("docs/examples/weights.py");
    succeeded(on_one_thread(&python).arg(script).args([&float, &model, &numpy]).output().unwrap());
    let [model, numpy] = [model, numpy].map(|path| std::fs::read(path).unwrap());
    let [model, numpy] = [&model, &numpy].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    // The linear layers of the sample: four in each of six blocks, patch embedding, reduction and head.
    assert_eq!(numpy.len(), 2 * (4 * 6 + 3));
    for (name, tensor) in numpy.tensors() {
        assert_eq!(tensor.data(), model.tensor(&name).unwrap().data(), "{name}");
    }
}

#[test]
fn the_examples_that_read_a_checkpoint_run() {
    let test = "the_examples_that_read_a_checkpoint_run";
    let Some(python) = python_with(test, "numpy, safetensors, xxhash") else { return };
    let folder = tempfile::tempdir().unwrap();
    calibrate_sample(&folder.path().join("model.safetensors"), &["--batches", "1"]).success();
    let page = std::fs::read_to_string(root().join("docs/quantized-checkpoint.md")).unwrap();
    let examples: Vec<&str> =
        page.split("```python\n").skip(1).map(|part| part.split_once("```").unwrap().0).collect();
    assert_eq!(examples.len(), 2);
    let run = || {
        let words = ["-c", &examples.concat()];
        on_one_thread(&python).current_dir(folder.path()).args(words).output().unwrap()
    };
    let text = String::from_utf8(succeeded(run()).stdout).unwrap();
    assert!(text.contains("layers.0.blocks.0.mlp.fc1.input {'percentile': 99.99}"), "{text}");
    // The last example finds damage.
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(String::from_utf8(run().stderr).unwrap().contains("the file is damaged"));
}

/// The tables of GELU's coefficients are in two places: on the page and in the program.
#[test]
fn the_page_and_the_program_have_the_same_coefficients() {
    let read = |name: &str| std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    let (page, program) = (read("inference.md"), read("examples/engine.py"));
    for (columns, intervals) in [(6, 16), (3, 32)] {
        let cells = page.lines().map(|line| line.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>());
        let numbers = |cells: &Vec<&str>| cells.iter().all(|cell| cell.parse::<f32>().is_ok());
        let rows: Vec<_> = cells.filter(|cells| cells.len() == 1 + columns && numbers(cells)).collect();
        assert_eq!(rows.len(), intervals);
        for number in rows.iter().flat_map(|row| &row[1..]) {
            assert!(program.contains(number), "{number}");
        }
    }
}

/// The endings of files of source code.
const SOURCES: [&str; 5] = [".rs", ".py", ".c", ".cu", ".cuh"];

/// A path in the walks of `ARCHITECTURE.md` begins at the root of the repository, or in a folder of the path
/// before it.
#[test]
fn the_walks_name_files_that_exist() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let walks = page.split("\n## ").find(|section| section.starts_with("Walks\n")).unwrap();
    let quoted = walks.split('`').skip(1).step_by(2);
    let mut paths = vec![PathBuf::new()];
    for name in quoted.filter(|text| SOURCES.iter().any(|ending| text.ends_with(ending))) {
        let before = &paths[paths.len() - 1];
        let folders = std::iter::once(Path::new("")).chain(before.ancestors().skip(1));
        let path = folders.map(|folder| folder.join(name)).find(|path| root().join(path).is_file());
        let path = path.unwrap_or_else(|| panic!("`{name}`, behind `{}`, is no file", before.display()));
        paths.push(path);
    }
    assert!(paths.len() > 80, "{paths:?}");
}

/// Prepositions before "which" in a relative clause.
const PREPOSITIONS: [&str; 11] =
    ["at", "behind", "by", "for", "from", "in", "of", "on", "to", "under", "with"];

/// The most relative clauses with a preposition ("of which"), and the most noun clauses, in documents and in
/// comments. A change that removes some lowers the numbers, and no change raises them.
const IN_DOCUMENTS: [usize; 2] = [1, 4];
const IN_COMMENTS: [usize; 2] = [332, 215];

/// The files below `folder` whose names end with one of `endings`, without hidden and built ones.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                found.extend(files(&path, endings));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found
}

/// `word` in lower case, without the punctuation around it.
fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_lowercase()
}

/// Whether a relative clause with a preposition begins with these two words.
fn is_relative(pair: &[&str]) -> bool {
    let first = pair[0].trim_start_matches('(').to_lowercase();
    PREPOSITIONS.contains(&first.as_str()) && bare(pair[1]) == "which"
}

/// Counts the relative clauses and the noun clauses of a text by their first words.
fn clauses(text: &str) -> [usize; 2] {
    let words: Vec<&str> = text.split_whitespace().collect();
    [
        words.windows(2).filter(|pair| is_relative(pair)).count(),
        words.iter().filter(|word| bare(word) == "what").count(),
    ]
}

/// A document without its blocks of code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect::<Vec<_>>().join(" ")
}

/// The comments of a source file.
fn comments(source: &str) -> String {
    let lines = source.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
    lines.map(|line| line.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join("\n")
}

/// The sum of the clauses of all files with `endings`, except histories and licences.
fn count(endings: &[&str], text: fn(&str) -> String) -> [usize; 2] {
    let mut sum = [0; 2];
    for path in files(&root(), endings) {
        if !path.ends_with("CHANGELOG.md") && !path.ends_with("THIRD-PARTY.md") {
            let [relative, noun] = clauses(&text(&std::fs::read_to_string(path).unwrap()));
            sum = [sum[0] + relative, sum[1] + noun];
        }
    }
    sum
}

#[test]
fn documents_and_comments_keep_to_plain_english() {
    let documents = count(&[".md"], prose);
    let comments = count(&[".rs", ".cu", ".cuh"], comments);
    for (place, found, most) in [("documents", documents, IN_DOCUMENTS), ("comments", comments, IN_COMMENTS)]
    {
        assert!(
            found[0] <= most[0] && found[1] <= most[1],
            "{place} have {found:?} relative clauses with a preposition and noun clauses, at most {most:?} are allowed: \
             write subject, verb, object (CONTRIBUTING.md)"
        );
    }
}
