//! The rule for the orientation of images and the order of channels: by the library of the checkpoint, by
//! option, in the INT8 file.

use std::path::{Path, PathBuf};

use crate::common::{
    float_model, refused, root, sample_cfg, sample_data, sample_model, stderr, stdout, swinq, write_backbone,
    write_png,
};
use safetensors::SafeTensors;
use swinq::model::quantized::FloatModel;
use swinq::{
    ChannelOrder, Dialect, Images, LoadOptions, Model, OpenOptions, Orientation, ReadOptions, Task,
    decode_image, decode_oriented,
};
use swinq_model::{BatchSource, QuantizedModel, Size, Transform};

fn checkpoint(name: &str) -> PathBuf {
    root().join("model/tests/checkpoints").join(name)
}

/// A photograph of 53 x 47 pixels that is turned by a quarter.
fn photograph() -> PathBuf {
    root().join("data/tests/fixtures/kind_turned.jpg")
}

fn open(path: &Path, options: &OpenOptions) -> Transform {
    Model::open_with(path, options).unwrap().transform().clone()
}

#[test]
fn the_library_of_the_checkpoint_decides() {
    let cfg = Some(sample_cfg().to_str().unwrap().to_owned());
    let sample = OpenOptions { cfg, ..OpenOptions::default() };
    let reading = LoadOptions { task: Some(Task::Features), ..LoadOptions::default() };
    let backbone = OpenOptions { reading, ..OpenOptions::default() };
    let rule = |path: &Path, options: &OpenOptions| open(path, options).orientation;
    let default = OpenOptions::default();
    assert_eq!(rule(&checkpoint("hf"), &default), Orientation::Exif);
    assert_eq!(rule(&checkpoint("timm"), &default), Orientation::Stored);
    assert_eq!(rule(&sample_model(), &sample), Orientation::Stored);
    // Backbones in Microsoft's names are those of detectors.
    assert_eq!(rule(&checkpoint("ms.pth"), &backbone), Orientation::Exif);
    assert_eq!(rule(&sample_model(), &backbone), Orientation::Stored);
    assert_eq!(rule(&checkpoint("timm"), &backbone), Orientation::Stored);
    assert_eq!(Dialect::OpenMmLab.orientation(Task::Classification), Orientation::Exif);
    assert_eq!(Dialect::TorchVision.orientation(Task::Features), Orientation::Stored);
    for (family, expected) in
        [("ms", Orientation::Stored), ("timm", Orientation::Stored), ("hf", Orientation::Exif)]
    {
        let transform = Some(family.parse().unwrap());
        let options = OpenOptions { transform, ..OpenOptions::default() };
        assert_eq!(rule(&checkpoint("hf"), &options), expected, "{family}");
    }
}

#[test]
fn options_decide_for_float_and_quantized_models() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("old.safetensors");
    Model::from_float(float_model()).unwrap().save(&old).unwrap();
    let options = OpenOptions {
        orientation: Some(Orientation::Exif),
        channel_order: Some(ChannelOrder::Bgr),
        ..OpenOptions::default()
    };
    for path in [checkpoint("hf"), checkpoint("timm"), old.clone()] {
        let transform = open(&path, &options);
        let found = (transform.orientation, transform.channel_order);
        assert_eq!(found, (Orientation::Exif, ChannelOrder::Bgr), "{}", path.display());
    }
    let stored = OpenOptions { orientation: Some(Orientation::Stored), ..OpenOptions::default() };
    assert_eq!(open(&checkpoint("hf"), &stored).orientation, Orientation::Stored);
}

/// A file states rules other than those of files without a statement, and only these.
#[test]
fn the_file_states_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let save = |orientation, channel_order| {
        let float = float_model();
        let transform = Transform { orientation, channel_order, ..float.transform.clone() };
        let model = QuantizedModel::from_float(FloatModel { transform: transform.clone(), ..float }).unwrap();
        model.save(&path).unwrap();
        assert_eq!(open(&path, &OpenOptions::default()), transform);
        String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()
    };
    let has = |text: &str, word: &str| text.contains(word);
    let usual = save(Orientation::Stored, ChannelOrder::Rgb);
    assert!(!has(&usual, "orientation") && !has(&usual, "channel_order"));
    let both = save(Orientation::Exif, ChannelOrder::Bgr);
    assert!(has(&both, r#"orientation\":\"exif"#) || has(&both, r#""orientation":"exif""#));
    assert!(has(&both, r#"channel_order\":\"bgr"#) || has(&both, r#""channel_order":"bgr""#));
}

#[test]
fn images_without_a_statement_keep_their_pixels() {
    let read = |orientation| {
        let transform = Transform { orientation, ..float_model().transform };
        let images = Images::from_files(&[root().join("tests/data/airplane.jpg"), photograph()]).unwrap();
        let mut batches = images.batches(&transform, &ReadOptions::default()).unwrap();
        let batch = batches.batch(0, 0).unwrap();
        (batch.pixels_of(0).to_vec(), batch.pixels_of(1).to_vec(), images.turned())
    };
    let (stored, turned) = (read(Orientation::Stored), read(Orientation::Exif));
    assert!(stored.0 == turned.0 && stored.1 != turned.1);
    assert_eq!(stored.2, None);
    let remark = turned.2.unwrap();
    assert!(remark.starts_with("1 image was turned") && remark.contains("kind_turned.jpg"), "{remark}");
}

/// The logits of `images` by `model`, and the text on standard error.
fn logits(model: &Path, images: &[&Path], more: &[&str]) -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logits.safetensors");
    let mut command = swinq(["predict", "--backend", "cpu", "--logits"]);
    let run = command.arg(&path).arg(model).args(images).args(more).assert().success();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    (file.tensor("logits").unwrap().data().to_vec(), stderr(&run))
}

#[test]
fn predict_turns_images_and_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let [turned, stored, swapped] =
        ["turned.png", "stored.png", "swapped.png"].map(|name| folder.path().join(name));
    let file = std::fs::read(photograph()).unwrap();
    let image = decode_oriented(&file, Orientation::Exif).unwrap();
    write_png(&turned, Size::new(image.height, image.width), &image.pixels);
    let plain = decode_image(&file).unwrap();
    write_png(&stored, Size::new(plain.height, plain.width), &plain.pixels);
    let bgr: Vec<u8> =
        plain.pixels.chunks_exact(3).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect();
    write_png(&swapped, Size::new(plain.height, plain.width), &bgr);

    let (own, said) = logits(&checkpoint("hf"), &[&photograph()], &[]);
    assert!(said.contains("1 image was turned") && said.contains("kind_turned.jpg"), "{said}");
    let of = |image: &Path, more: &[&str]| logits(&checkpoint("hf"), &[image], more);
    assert_eq!(own, of(&turned, &[]).0);
    let (kept, said) = of(&photograph(), &["--orientation", "stored"]);
    assert!(!said.contains("turned as"), "{said}");
    assert!(kept == of(&stored, &[]).0 && kept != own);
    assert_eq!(of(&stored, &["--channels", "bgr"]).0, of(&swapped, &[]).0);
    let (timm, _) = logits(&checkpoint("timm"), &[&photograph()], &[]);
    assert_eq!(timm, logits(&checkpoint("timm"), &[&stored], &[]).0);
    refused(
        swinq(["predict", "--orientation", "up", "m", "i"]).assert(),
        2,
        &["`up` is neither stored nor exif"],
    );
}

/// The INT8 file of a calibration has the rules of its float model, and gives its pixels.
#[test]
fn a_calibration_keeps_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (data, int8) = (folder.path().join("data"), folder.path().join("int8.safetensors"));
    std::fs::create_dir(&data).unwrap();
    std::fs::copy(photograph(), data.join("photograph.jpg")).unwrap();
    let mut command = swinq(["calibrate", "--ptq", "basic", "--channels", "bgr", "-o"]);
    let run = command.arg(&int8).arg(checkpoint("hf")).arg("--data-path").arg(&data).assert().success();
    assert!(stderr(&run).contains("photograph.jpg"), "{}", stderr(&run));
    let transform = open(&int8, &OpenOptions::default());
    assert_eq!((transform.orientation, transform.channel_order), (Orientation::Exif, ChannelOrder::Bgr));
    let shown = stdout(&swinq(["inspect"]).arg(&int8).assert().success());
    assert!(shown.contains("turned as EXIF states, channels in the order BGR"), "{shown}");
    let onnx = folder.path().join("model.onnx");
    swinq(["export", "--input", "pixels", "--onnx"]).arg(&onnx).arg(&int8).assert().success();
    let graph = String::from_utf8_lossy(&std::fs::read(&onnx).unwrap()).into_owned();
    assert!(graph.contains("BGR; the graph normalises") && graph.contains(r#""orientation":"exif""#));
}

#[test]
fn jobs_state_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = swinq([
        "qat",
        "finetune",
        "--dry-run",
        "--opts",
        "channels",
        "bgr",
        "orientation",
        "exif",
        "schedule.warmup_steps",
        "1",
    ]);
    command
        .args(["float"])
        .arg(sample_model())
        .arg("cfg")
        .arg(sample_cfg())
        .arg("data.path")
        .arg(sample_data());
    let run = command.arg("output").arg(folder.path().join("out")).assert().success();
    let said = stdout(&run) + &stderr(&run);
    assert!(said.contains("turned as EXIF states, channels in the order BGR"), "{said}");
}

/// Maps of a turned image have the sides of the turned image.
#[test]
fn feature_maps_are_those_of_turned_images() {
    let folder = tempfile::tempdir().unwrap();
    let [model, maps] = ["backbone.safetensors", "maps.safetensors"].map(|name| folder.path().join(name));
    write_backbone(&model);
    let shape = |more: &[&str]| {
        let mut command = swinq(["features", "--backend", "cpu", "--features"]);
        let run = command.arg(&maps).arg(&model).arg(photograph()).args(more).assert().success();
        let bytes = std::fs::read(&maps).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        (file.tensor("0.stage1").unwrap().shape()[1..].to_vec(), stderr(&run))
    };
    let (stored, said) = shape(&[]);
    assert!(!said.contains("turned as"), "{said}");
    let (turned, said) = shape(&["--orientation", "exif"]);
    assert!(said.contains("kind_turned.jpg"), "{said}");
    assert!(turned == [stored[1], stored[0]] && stored[0] != stored[1], "{turned:?}");
}
