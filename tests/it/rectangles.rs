//! Every command on models of images that are not square: of Swin V1 and V2, with windows of two sides, of
//! one channel.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{Folder, files, stdout, swinq, write_png};
use candle_core::Device;
use safetensors::SafeTensors;
use swinq::eval::results::sensitivity::read_sensitivity;
use swinq::eval::{collect, read_results};
use swinq::{Images, Model, ReadOptions, Split};
use swinq_float::FloatClassifier;
use swinq_model::{Classifier, QuantizedModel, Size, SwinConfig};
use swinq_testing::XorShift;
use swinq_testing::model::{gray_rectangle, random, rectangle, second_rectangle};

/// Height and width of the images of the data set, in turn.
const SHAPES: [(usize, usize); 4] = [(40, 100), (64, 64), (100, 30), (33, 65)];

/// Classes of the models.
const CLASSES: usize = 5;

/// A model, images of several shapes, and a folder for what commands write.
struct Case {
    folder: Folder,
    config: SwinConfig,
}

impl Case {
    /// Random weights of `config`, and an ImageFolder with one image for each of its classes in both splits.
    fn new(config: SwinConfig) -> Case {
        let case = Case { folder: Folder::new(), config };
        QuantizedModel::from_float(random(case.config.clone(), 3)).unwrap().save(&case.float()).unwrap();
        for (split, class) in
            ["train", "val"].iter().flat_map(|split| (0..CLASSES).map(move |class| (split, class)))
        {
            let path = case.data().join(split).join(format!("class{class}"));
            std::fs::create_dir_all(&path).unwrap();
            write_image(&path.join("image.png"), SHAPES[class % SHAPES.len()], class as u64);
        }
        case
    }

    fn data(&self) -> PathBuf {
        self.folder.path("data")
    }

    fn float(&self) -> PathBuf {
        self.folder.path("float.safetensors")
    }

    fn int8(&self) -> PathBuf {
        self.folder.path("int8.safetensors")
    }

    /// The output of `swinq COMMAND MODEL`, with more words.
    fn run(&self, command: &str, model: &Path, more: &[&str]) -> String {
        let mut process = swinq([command]);
        process.arg(model).args(more).current_dir(self.folder.as_path());
        stdout(&process.assert().success())
    }

    /// The logits of the images of the split `val` on the CPU engine, after they are compared with those of
    /// the simulation bit for bit.
    fn logits(&self, model: &Path) -> Vec<f32> {
        let model = Model::open(model).unwrap();
        assert_eq!(model.config(), &self.config);
        let images = Images::open(self.data(), Split::Val, None, 0).unwrap();
        let collected = |classifier: &dyn Classifier| {
            let mut batches = images.batches(model.transform(), &ReadOptions::default()).unwrap();
            collect(classifier, &mut batches, &mut |_, _| ControlFlow::Continue(())).unwrap().logits
        };
        let engine = collected(&model.engine(&swinq::EngineOptions::cpu(2)).unwrap());
        let simulated = collected(&FloatClassifier::simulate(model.as_quantized(), &Device::Cpu).unwrap());
        assert_eq!(engine, simulated, "engine and simulation of {}", self.config.name);
        engine.values
    }
}

/// Noise on a slope, with a colour for each seed.
fn write_image(path: &Path, (height, width): (usize, usize), seed: u64) {
    let mut rng = XorShift::new(seed + 1);
    let mut pixel = |i: usize| {
        let (channel, x, y) = (i % 3, i / 3 % width, i / 3 / width);
        let slope = (x * (channel + 1) + y * (3 - channel)) * 110 / (3 * width.max(height));
        (slope + (rng.next() >> 40) as usize % 80 + seed as usize * (1 + channel) * 3) as u8
    };
    let pixels: Vec<u8> = (0..height * width * 3).map(&mut pixel).collect();
    write_png(path, Size::new(height, width), &pixels);
}

#[test]
fn commands_run_a_rectangle() {
    check(rectangle(), "24x56 input");
}

#[test]
fn commands_run_a_rectangle_of_swin_v2() {
    check(second_rectangle(), "30x70 input");
}

#[test]
fn commands_run_a_rectangle_of_one_channel() {
    check(gray_rectangle(), "20x44x1 input");
}

/// Runs the commands on `config`, whose input `inspect` describes as `input`.
fn check(config: SwinConfig, input: &str) {
    let case = Case::new(config);
    case.run("calibrate", &case.float(), &["--data-path", "data", "-o", "int8.safetensors"]);
    let logits = case.logits(&case.int8());
    assert!(logits.iter().any(|&value| value != logits[0]), "constant logits");
    inspects(&case, input);
    evaluates(&case);
    predicts(&case, &logits);
    measures(&case);
    exports(&case);
    trains(&case, &logits);
}

fn inspects(case: &Case, input: &str) {
    let text = case.run("inspect", &case.int8(), &["--sites", "--plan", "--backend", "cpu"]);
    assert!(text.contains(input) && text.contains("format version 3"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&case.run("inspect", &case.int8(), &["--json"])).unwrap();
    let Size { height, width } = case.config.image_size;
    assert_eq!(json["config"]["image_size"], serde_json::json!([height, width]), "{json}");
}

/// The simulation has the engine's logits; the parts of a calibration give the bytes of one process.
fn evaluates(case: &Case) {
    let more = ["--data-path", "data", "--backend", "cpu", "--simulate", "--no-latency", "--threads", "2"];
    let reports = ["--json", "eval.json", "--report", "eval.html", "--predictions", "eval.csv"];
    case.run("eval", &case.int8(), &[&["float.safetensors"][..], &more, &reports].concat());
    let results = read_results(&case.folder.path("eval.json")).unwrap();
    let [engine, simulated, float] = &results.models[..] else { panic!("three models") };
    assert!(simulated.sqnr_db.unwrap().is_infinite(), "{simulated:?}");
    assert!((15.0..60.0).contains(&float.sqnr_db.unwrap()), "{float:?}");
    assert_eq!([engine, float].map(|model| model.images), [Some(CLASSES); 2]);
    let more = ["--data-path", "data", "--batch-size", "2", "--ptq", "basic"];
    let parts = ["part1", "part2"];
    for (part, shard) in parts.iter().zip(["1/2", "2/2"]) {
        case.run("calibrate", &case.float(), &[&more[..], &["--shard", shard, "-o", part]].concat());
    }
    case.run("merge", Path::new(parts[0]), &[parts[1], "-o", "merged.safetensors"]);
    case.run("calibrate", &case.float(), &[&more[..], &["-o", "whole.safetensors"]].concat());
    let [merged, whole] =
        ["merged", "whole"].map(|name| std::fs::read(case.folder.path(name).with_extension("safetensors")));
    assert!(merged.unwrap() == whole.unwrap(), "parts of a calibration");
}

fn predicts(case: &Case, logits: &[f32]) {
    let images: Vec<String> = (0..CLASSES).map(|class| format!("data/val/class{class}/image.png")).collect();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    case.run("predict", &case.int8(), &[&images[..], &["--backend", "cpu", "--logits", "logits"]].concat());
    let bytes = std::fs::read(case.folder.path("logits")).unwrap();
    let (words, _) =
        SafeTensors::deserialize(&bytes).unwrap().tensor("logits").unwrap().data().as_chunks::<4>();
    assert_eq!(words.iter().map(|&word| f32::from_le_bytes(word)).collect::<Vec<_>>(), logits);
}

fn measures(case: &Case) {
    let more = [
        "--data-path",
        "data",
        "--images",
        "2",
        "--calibration-images",
        "2",
        "--ptq",
        "basic",
        "-o",
        "s.json",
    ];
    case.run("sensitivity", &case.float(), &more);
    let results = read_sensitivity(&case.folder.path("s.json")).unwrap();
    // Four blocks of four linear layers and two products of attention, and one merge.
    assert_eq!(results.layers.len(), 4 * 6 + 1);
    assert!(results.blocks.last().unwrap().sqnr_db.is_finite());
}

/// The graph takes images of the model's size. `tests/onnx` compares the logits.
fn exports(case: &Case) {
    case.run("export", &case.int8(), &["--onnx", "int8.onnx", "--batch", "2"]);
    let file = swinq::export_onnx(
        &Model::open(case.int8()).unwrap(),
        &swinq::onnx::ExportOptions { batch: swinq::onnx::BatchSize::Fixed(2), ..Default::default() },
    )
    .unwrap();
    assert!(file.encode() == std::fs::read(case.folder.path("int8.onnx")).unwrap());
    let graph = file.model.graph.unwrap();
    let input = graph.input[0].r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref().unwrap();
    let Size { height, width } = case.config.image_size;
    let expected = [2, case.config.in_chans, height, width].map(|side| Some(side as i64));
    assert_eq!(input.dim.iter().map(|dim| dim.dim_value).collect::<Vec<_>>(), expected);
}

/// A quantized training with augmentation ends in a model that engine and simulation agree on; one that is
/// resumed from its first checkpoint ends in the same model.
fn trains(case: &Case, start: &[f32]) {
    let job = "float: float.safetensors\nmodel: int8.safetensors\noutput: out\ndata: {path: data}\nsteps: 3\nbatch_size: 4\n\
               threads: 2\nlog: {every: 1}\ncheckpoint: {every: 1, keep: 9}\noptimizer: {lr: 1e-3}\n\
               augment: {brightness: 0.2, saturation: 0.2, erasing: 0.5}\nmixing: {cutmix: 1, probability: 0.5}\n\
               loss: {features: 1}\n";
    std::fs::write(case.folder.path("job.yaml"), job).unwrap();
    case.run("qat", Path::new("job.yaml"), &[]);
    let trained = case.folder.path("out/model.safetensors");
    assert_ne!(case.logits(&trained), start);
    let whole = std::fs::read(&trained).unwrap();
    for name in files(&case.folder.path("out/checkpoints")).iter().filter(|name| !name.contains("000001")) {
        std::fs::remove_file(case.folder.path("out/checkpoints").join(name)).unwrap();
    }
    std::fs::remove_file(&trained).unwrap();
    let text = case.run("qat", Path::new("job.yaml"), &["--resume"]);
    assert!(text.contains("continues after iteration 1"), "{text}");
    assert!(std::fs::read(&trained).unwrap() == whole, "a resumed training");
}
