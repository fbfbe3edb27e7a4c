//! The trained sample model on all images of CIFAR-10's validation set, against PyTorch's figures.

use crate::common::{large_data, swinq};
use safetensors::SafeTensors;

/// Number of images that PyTorch classifies correctly in f32, and the allowed difference in images.
const TORCH_TOP1: i64 = 8293;
const ALLOWED: i64 = 1;
/// SQNR of the logits in dB, and agreement with f32, of ONNX Runtime's static INT8 (percentile, per channel).
const PEER_SQNR_DB: f64 = 27.9;
const PEER_AGREEMENT: f64 = 0.9842;

#[test]
fn cifar10_top1_and_fidelity() {
    let Some(data) = large_data("cifar10_top1_and_fidelity") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (int8, json) = (folder.path().join("q.safetensors"), folder.path().join("r.json"));
    let model = data.join("models/swin_micro_cifar10");
    let images = data.join("data/cifar10");
    let mut command = swinq(["calibrate"]);
    command.arg(model.join("model.safetensors")).arg("--cfg").arg(model.join("cfg.yaml"));
    command.arg("--data-path").arg(&images).args(["--batches", "40", "--batch-size", "8", "-o"]).arg(&int8);
    command.assert().success();
    let mut command = swinq(["eval"]);
    command.arg(model.join("model.safetensors")).arg(&int8).arg("--cfg").arg(model.join("cfg.yaml"));
    command.arg("--data-path").arg(&images).args(["--no-latency", "--json"]).arg(&json);
    command.assert().success();
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let models = results["models"].as_array().unwrap();
    let top1 = models[0]["top1_correct"].as_i64().unwrap();
    assert_eq!(models[0]["images"], 10_000);
    assert!((top1 - TORCH_TOP1).abs() <= ALLOWED, "top-1 {top1}");
    let (sqnr, agreement) =
        (models[1]["sqnr_db"].as_f64().unwrap(), models[1]["agreement"].as_f64().unwrap());
    eprintln!("float {top1}, INT8 {}, {sqnr:.2} dB, agreement {agreement:.4}", models[1]["top1_correct"]);
    assert!(sqnr >= PEER_SQNR_DB + 4.0, "{sqnr} dB");
    assert!(agreement > PEER_AGREEMENT, "agreement {agreement}");
}

#[test]
fn logits_equal_pytorchs() {
    let Some(data) = large_data("logits_equal_pytorchs") else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = data.join("models/swin_micro_cifar10");
    let map = std::fs::read_to_string(data.join("data/cifar10/val_map.txt")).unwrap();
    let mut archive =
        zip::ZipArchive::new(std::fs::File::open(data.join("data/cifar10/val.zip")).unwrap()).unwrap();
    let mut command = swinq(["predict"]);
    command.arg(model.join("model.safetensors"));
    for (index, line) in map.lines().step_by(39).take(256).enumerate() {
        let path = folder.path().join(format!("{index:03}.jpg"));
        let mut file = archive.by_name(line.split('\t').next().unwrap()).unwrap();
        std::io::copy(&mut file, &mut std::fs::File::create(&path).unwrap()).unwrap();
        command.arg(path);
    }
    let logits = folder.path().join("logits.safetensors");
    command.arg("--cfg").arg(model.join("cfg.yaml")).arg("--logits").arg(&logits).assert().success();
    let (ours, theirs) = (read(&logits), read(&model.join("logits_every39.safetensors")));
    assert_eq!(ours.len(), theirs.len());
    let square = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let difference: Vec<f32> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
    let relative = (square(&difference) / square(&theirs)).sqrt();
    eprintln!("relative L2 to PyTorch on 256 images, JPEG decoding included: {relative:.2e}");
    assert!(relative < 1e-5, "{relative}");
}

fn read(path: &std::path::Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor("logits").unwrap();
    assert_eq!(view.shape(), [256, 10]);
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
