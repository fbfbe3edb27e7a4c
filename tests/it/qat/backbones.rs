//! `swinq qat` of a backbone: on pictures of any size without labels, against the float backbone.

use std::process::Command;
use std::time::Duration;

use swinq_model::QuantizedModel;
use swinq_model::quantized::Score;

use super::{kill_after, wait_for_an_iteration};
use crate::common::folder::{waves, write_pictures};
use crate::common::{Folder, files, refused, sample_model, stderr, stdout, swinq, write_backbone};

/// The job: pictures have several sizes, and so have the inputs.
const JOB: &str = "loss: {labels: 0, kl: 0, outputs: 1000}\nbatch_size: 2\nthreads: 2\nlog: {every: 1}\n\
    augment: {crop: proportional, sizes: [32x32, 40x24, 28x44], scale: [0.4, 1], ratio: [0.9, 1.1]}\n\
    optimizer: {lr: 1e-4}\n";

impl Folder {
    /// A backbone, its calibrated checkpoint with 4-bit weights, pictures without labels, and a job; `more`
    /// holds additional lines of it.
    fn of_backbone(more: &str) -> Folder {
        let folder = Folder::new();
        write_backbone(&folder.path("float.safetensors"));
        for (name, indices) in [("photos", 0..8), ("others", 20..25)] {
            write_pictures(&folder.path(name), indices, &[(64, 96), (44, 72), (60, 32)], waves);
        }
        let recipe = "name: w4\nrules:\n  - {match: '**', enable: true, granularity: channel, calibrator: max}\n  \
            - {match: '**.weight', bits: 4}\n  - {match: '**.{scores,output}', enable: false}\n  \
            - {match: '**.add.*', enable: false}\n";
        std::fs::write(folder.path("w4.yaml"), recipe).unwrap();
        let mut calibrate = swinq(["calibrate", "--batches", "2", "--batch-size", "4", "--ptq", "basic"]);
        calibrate.arg(folder.path("float.safetensors")).arg("--data-path").arg(folder.path("photos"));
        calibrate.arg("--recipe").arg(folder.path("w4.yaml")).arg("-o").arg(folder.path("q.safetensors"));
        calibrate.assert().success();
        let [model, float, photos, others, out] =
            ["q.safetensors", "float.safetensors", "photos", "others", "out"]
                .map(|name| folder.path(name).display().to_string());
        let job = format!(
            "model: {model}\nfloat: {float}\ndata: {{path: {photos}, val_path: {others}}}\noutput: {out}\n{JOB}{more}"
        );
        std::fs::write(folder.path("job.yaml"), job).unwrap();
        folder
    }
}

#[test]
fn a_backbone_learns_from_pictures_without_labels() {
    let folder = Folder::of_backbone("steps: 36\nvalidate: {every: 18, limit: 3}\n");
    let run = folder.run(&[]).success();
    let (out, err) = (stdout(&run), stderr(&run));
    for word in [
        "a backbone with stage1, stage2",
        "sizes       keep",
        "proportional",
        "- 40x24",
        "iteration 0: SQNR ",
        " dB of 3 images (stage1 ",
        "on 5 validation images:",
        "SQNR dB",
    ] {
        assert!(out.contains(word), "`{word}` is not in: {out}");
    }
    assert!(err.contains("qat: 36/36 iterations, loss ") && err.contains(" (outputs "), "{err}");
    let model = QuantizedModel::load(&folder.path("out/model.safetensors")).unwrap();
    let record = model.provenance.training.unwrap();
    assert_eq!((record.loss.len(), record.loss["outputs"]), (1, 1000.0));
    let best = QuantizedModel::load(&folder.path("out/best.safetensors")).unwrap();
    let chosen = best.provenance.training.unwrap().chosen_by.unwrap();
    assert!(matches!(chosen.score, Score::Sqnr(_)) && chosen.images == 3, "{chosen:?}");

    let log = std::fs::read_to_string(folder.path("out/log.jsonl")).unwrap();
    let records: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let validations: Vec<f64> = records.iter().filter_map(|record| record["sqnr_db"].as_f64()).collect();
    assert_eq!(validations.len(), 3, "{log}");
    // The images that are validated on are not trained on.
    assert!(validations[2] > validations[0] + 1.0, "{validations:?}");
    let losses: Vec<f64> = records.iter().filter_map(|record| record["outputs"].as_f64()).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[24..]) < 0.8 * mean(&losses[..12]), "{losses:?}");
    assert!(!log.contains("\"top1\":0"), "{log}");

    // The other commands take the result.
    let mut features = swinq(["features"]);
    features.arg(folder.path("out/model.safetensors")).arg(folder.path("others"));
    features.arg("--features").arg(folder.path("maps.safetensors")).assert().success();
    let shown = stdout(&swinq(["inspect"]).arg(folder.path("out/best.safetensors")).assert().success());
    assert!(shown.contains("chose it, SQNR ") && shown.contains("loss 1000 outputs"), "{shown}");
}

#[test]
fn a_killed_training_of_a_backbone_gives_the_same_bytes() {
    let more = "steps: 6\naccumulate: 2\nquantization: {activation_scales: learned, weight_scales: learned}\n\
                checkpoint: {every: 1}\nvalidate: {every: 4, size: 40x40}\n";
    let [whole, killed] = [(), ()].map(|()| Folder::of_backbone(more));
    whole.run(&[]).success();
    for _ in 0..2 {
        // The checkpoint of an iteration is written before the next one ends.
        kill_after(killed.start(&["--resume"]), 2, Duration::from_millis(20));
    }
    let run = killed.run(&["--resume", "--opts", "threads", "1"]).success();
    assert!(stdout(&run).contains("continues after iteration "), "{}", stdout(&run));
    for file in ["model.safetensors", "checkpoints/step-000000006.safetensors"] {
        // The paths in the files differ, so the tensors are compared.
        let [a, b] = [&whole, &killed].map(|folder| {
            let bytes = std::fs::read(folder.path("out").join(file)).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let values = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
                (name.to_owned(), view.data().to_vec())
            };
            tensors.iter().map(values).collect::<std::collections::BTreeMap<_, _>>()
        });
        assert!(a == b && a.len() > 20, "{file} differs");
    }
}

#[test]
fn two_processes_train_a_backbone_as_one_does() {
    let scales = "quantization: {activation_scales: learned}\n";
    let one = Folder::of_backbone(&format!("steps: 4\naccumulate: 2\n{scales}"));
    let two = Folder::of_backbone(&format!("steps: 4\n{scales}"));
    one.run(&[]).success();
    two.run(&["--devices", "cpu,cpu"]).success();
    let [a, b] =
        [&one, &two].map(|folder| QuantizedModel::load(&folder.path("out/model.safetensors")).unwrap());
    assert!(a.params == b.params && a.sites == b.sites);
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_training_of_a_backbone_with_a_checkpoint() {
    let folder = Folder::of_backbone("steps: 10000\n");
    let mut child = folder.start(&[]);
    wait_for_an_iteration(&mut child);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert_eq!(files(&folder.path("out/checkpoints")).len(), 1);
}

#[test]
fn what_a_backbone_cannot_use_is_refused_by_its_key() {
    let folder = Folder::of_backbone("steps: 1\n");
    let path = |name: &str| folder.path(name).display().to_string();
    for (key, value, words) in [
        ("loss.labels", "1", &["loss.labels: is 1", "no labels and no classes", "`backbone`"][..]),
        ("loss.kl", "1", &["loss.kl: is 1", "no labels and no classes"]),
        ("loss.smoothing", "0.1", &["loss.smoothing: is 0.1"]),
        ("mixing.mixup", "0.8", &["mixing.mixup: is 0.8"]),
        ("loss.output_weights", "{stage4: 1}", &["loss.output_weights.stage4", "it has stage1, stage2"]),
        ("loss.output_weights.res2", "2", &["loss.output_weights.res2", "it has stage1, stage2"]),
        ("loss.outputs", "0", &["loss: is empty"]),
        ("augment.sizes", "[32]", &["augment", "HEIGHTxWIDTH"]),
        ("augment.sizes", "[32x60000]", &["augment.sizes: 32x60000"]),
        ("validate.size", "40", &["validate.size", "`short:800,long:1333`"]),
        (
            "data.val_path",
            &path("photos"),
            &["data.val_path: 8 of the 8 validation images are trained on", "train/ and val/"],
        ),
        ("data.val_path", "null", &["data.val_path: 8 of the 8"]),
        (
            "float",
            &sample_model().display().to_string(),
            &["q.safetensors: has the architecture", "stage1, stage2", "`float`"],
        ),
    ] {
        folder.refuses(key, value, 1, words);
    }
    // A float training would need labels.
    let run = folder.run(&["--opts", "quant", "off", "model", "null"]);
    refused(run, 1, &["quant: is off", "is a backbone"]);
}
