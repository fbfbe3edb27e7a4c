//! `calibrate` and `inspect` of a backbone, and the feature maps of the quantized one.

use std::path::Path;

use crate::common::{refused, sample_cfg, sample_model, stderr, stdout, swinq, write_backbone, write_png};
use assert_cmd::assert::Assert;
use safetensors::SafeTensors;
use swinq_model::{QuantizedModel, Size};
use swinq_testing::relative_distance;

/// Height and width of the pictures, in turn.
const SIZES: [(usize, usize); 3] = [(64, 96), (44, 72), (60, 32)];

/// A folder with a backbone and pictures of several sizes.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_backbone(&folder.path().join("backbone.safetensors"));
    let photos = folder.path().join("photos");
    std::fs::create_dir(&photos).unwrap();
    for index in 0..9 {
        let (height, width) = SIZES[index % SIZES.len()];
        write_png(
            &photos.join(format!("{index}.png")),
            Size::new(height, width),
            &waves(index, height, width),
        );
    }
    folder
}

/// A smooth picture: noise would have other activations than a photograph.
fn waves(index: usize, height: usize, width: usize) -> Vec<u8> {
    let value = |y: usize, x: usize, channel: usize| {
        let (y, x) = (y as f32 / 9.0, x as f32 / (5.0 + index as f32));
        (127.0 + 60.0 * (x + channel as f32).sin() + 60.0 * (y * x / 3.0).cos()) as u8
    };
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    pixels.flat_map(|(y, x)| (0..3).map(move |channel| value(y, x, channel))).collect()
}

pub fn calibrate(folder: &Path, output: &str, more: &[&str]) -> Assert {
    let mut command = swinq(["calibrate"]);
    command.arg(folder.join("backbone.safetensors")).arg("--data-path").arg(folder.join("photos"));
    command.arg("--output").arg(folder.join(output)).args(more).assert()
}

/// The feature maps of all pictures by the model `model`, by name.
pub fn maps(folder: &Path, model: &str) -> Vec<(String, Vec<f32>)> {
    let output = folder.join("maps.safetensors");
    let mut command = swinq(["features"]);
    command.arg(folder.join(model)).arg(folder.join("photos")).arg("--features").arg(&output);
    command.assert().success();
    let bytes = std::fs::read(&output).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    let mut maps: Vec<(String, Vec<f32>)> =
        file.tensors().into_iter().map(|(name, view)| (name, values(view.data()))).collect();
    maps.sort_by(|a, b| a.0.cmp(&b.0));
    maps
}

#[test]
fn a_backbone_is_calibrated_on_images_of_several_sizes() {
    let folder = folder();
    let run = calibrate(folder.path(), "one.safetensors", &["--batch-size", "1", "--batches", "9"]).success();
    let text = stdout(&run);
    assert!(text.contains("a backbone with stage1, stage2") && text.contains("sizes      keep"), "{text}");
    // The batches have no effect on the file.
    calibrate(folder.path(), "three.safetensors", &["--batch-size", "3", "--batches", "3"]).success();
    let file = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(file("one.safetensors") == file("three.safetensors"));

    let model = QuantizedModel::load(&folder.path().join("one.safetensors")).unwrap();
    let record = model.provenance.calibration.unwrap();
    assert_eq!((record.images.len(), record.sizing.as_deref()), (9, Some("keep")));
    let shown = stdout(&swinq(["inspect"]).arg(folder.path().join("one.safetensors")).assert().success());
    assert!(shown.contains("outputs       stage1 (norm0), stage2"), "{shown}");
    assert!(shown.contains("sizes keep") && !shown.contains("classes"), "{shown}");

    // INT8 costs some noise, and not more.
    let (float, int8) = (maps(folder.path(), "backbone.safetensors"), maps(folder.path(), "one.safetensors"));
    assert_eq!(float.len(), 18);
    for ((name, float), (other, int8)) in float.iter().zip(&int8) {
        assert_eq!(name, other);
        let db = -20.0 * relative_distance(int8, float).log10();
        assert!((20.0..80.0).contains(&db), "{name}: {db} dB");
    }
}

#[test]
fn sizes_are_recorded_and_wrong_ones_are_explained() {
    let folder = folder();
    calibrate(folder.path(), "q.safetensors", &["--size", "40x80", "--batches", "1"]).success();
    let model = QuantizedModel::load(&folder.path().join("q.safetensors")).unwrap();
    assert_eq!(model.provenance.calibration.unwrap().sizing.as_deref(), Some("40x80"));
    refused(calibrate(folder.path(), "q", &["--size", "80"]), 2, &["HEIGHTxWIDTH"]);
    refused(
        calibrate(folder.path(), "q.part", &["--shard", "1/2"]),
        1,
        &["a backbone is calibrated as a whole"],
    );

    // A file that is no image is named, and may be left out.
    std::fs::write(folder.path().join("photos/4.png"), b"no image").unwrap();
    refused(calibrate(folder.path(), "q", &[]), 1, &["4.png"]);
    let run = calibrate(folder.path(), "q", &["--skip-corrupt", "1"]).success();
    assert!(stderr(&run).contains("4.png"), "{}", stderr(&run));

    let mut command = swinq(["calibrate", "--size", "keep", "--output"]);
    command.arg(folder.path().join("c")).arg(sample_model()).arg("--cfg").arg(sample_cfg());
    let run = command.arg("--data-path").arg(folder.path().join("photos")).assert();
    refused(run, 2, &["--size is for backbones", "--task features"]);
}
