//! `calibrate` and `inspect` of a backbone, and the feature maps of the quantized one.

use crate::common::folder::waves;
use crate::common::{Folder, refused, sample_cfg, sample_model, stderr, stdout, swinq};
use swinq_model::QuantizedModel;
use swinq_testing::sqnr_db;

/// Height and width of the pictures, in turn.
const SIZES: [(usize, usize); 3] = [(64, 96), (44, 72), (60, 32)];

/// A folder with a backbone and pictures of several sizes.
pub fn folder() -> Folder {
    Folder::with_photos(9, &SIZES, waves)
}

#[test]
fn a_backbone_is_calibrated_on_images_of_several_sizes() {
    let folder = folder();
    let run = folder.calibrate("one.safetensors", &["--batch-size", "1", "--batches", "9"]).success();
    let text = stdout(&run);
    assert!(text.contains("a backbone with stage1, stage2") && text.contains("sizes      keep"), "{text}");
    // The batches have no effect on the file.
    folder.calibrate("three.safetensors", &["--batch-size", "3", "--batches", "3"]).success();
    let file = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(file("one.safetensors") == file("three.safetensors"));

    let model = QuantizedModel::load(&folder.path("one.safetensors")).unwrap();
    let record = model.provenance.calibration.unwrap();
    assert_eq!((record.images.len(), record.sizing.as_deref()), (9, Some("keep")));
    let shown = stdout(&swinq(["inspect"]).arg(folder.path("one.safetensors")).assert().success());
    assert!(shown.contains("outputs       stage1 (norm0), stage2"), "{shown}");
    assert!(shown.contains("sizes keep") && !shown.contains("classes"), "{shown}");

    // INT8 costs some noise, and not more.
    let (float, int8) = (folder.maps("backbone.safetensors", &[]), folder.maps("one.safetensors", &[]));
    assert_eq!(float.len(), 18);
    for ((name, (_, float)), (other, (_, int8))) in float.iter().zip(&int8) {
        assert_eq!(name, other);
        let db = sqnr_db(int8, float);
        assert!((20.0..80.0).contains(&db), "{name}: {db} dB");
    }
}

#[test]
fn sizes_are_recorded_and_wrong_ones_are_explained() {
    let folder = folder();
    folder.calibrate("q.safetensors", &["--size", "40x80", "--batches", "1"]).success();
    let model = QuantizedModel::load(&folder.path("q.safetensors")).unwrap();
    assert_eq!(model.provenance.calibration.unwrap().sizing.as_deref(), Some("40x80"));
    refused(folder.calibrate("q", &["--size", "80"]), 2, &["HEIGHTxWIDTH"]);
    refused(folder.calibrate("q.part", &["--shard", "1/2"]), 1, &["a backbone is calibrated as a whole"]);

    // A file that is no image is named, and may be left out.
    std::fs::write(folder.image(4), b"no image").unwrap();
    refused(folder.calibrate("q", &[]), 1, &["4.png"]);
    let run = folder.calibrate("q", &["--skip-corrupt", "1"]).success();
    assert!(stderr(&run).contains("4.png"), "{}", stderr(&run));

    let mut command = swinq(["calibrate", "--size", "keep", "--output"]);
    command.arg(folder.path("c")).arg(sample_model()).arg("--cfg").arg(sample_cfg());
    let run = command.arg("--data-path").arg(folder.path("photos")).assert();
    refused(run, 2, &["--size is for backbones", "--task features"]);
}
