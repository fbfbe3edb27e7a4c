//! Damaged checkpoints, and checkpoints that do not fit.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::{Folder, quantized};
use crate::common::{self, refused, sample_cfg, sample_data, sample_model, swinq};

/// A tensor taken out of a safetensors file, to be changed.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// Rewrites a safetensors file with `change` applied to its tensors and metadata. A quantized checkpoint
/// becomes one of version 1, which has no hash, so that what is changed is found by itself.
fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<Entry>, &mut serde_json::Value)) {
    let bytes = std::fs::read(from).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = header.metadata().clone().unwrap_or_default();
    let text = metadata.get("swinq").cloned();
    let mut json = text.map_or(serde_json::Value::Null, |t| serde_json::from_str(&t).unwrap());
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut entries: Vec<Entry> = tensors
        .iter()
        .map(|(name, view)| Entry {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        })
        .collect();
    if let Some(document) = json.as_object_mut() {
        document.insert("format_version".to_owned(), 1.into());
        document.remove("hash");
    }
    change(&mut entries, &mut json);
    if !json.is_null() {
        metadata.insert("swinq".to_owned(), json.to_string());
    }
    let views =
        entries.iter().map(|e| (e.name.clone(), TensorView::new(e.dtype, e.shape.clone(), &e.data).unwrap()));
    std::fs::write(to, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

fn entry<'a>(entries: &'a mut [Entry], name: &str) -> &'a mut Entry {
    entries.iter_mut().find(|e| e.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
}

fn predict(model: &Path) -> assert_cmd::assert::Assert {
    let image = common::root().join("tests/data/airplane.jpg");
    swinq(["predict"]).arg(model).arg(image).assert()
}

const SITE: &str = "layers.0.blocks.0.mlp.fc1.input";

#[test]
fn an_uncalibrated_checkpoint() {
    let message = ["--cfg"];
    refused(predict(&sample_model()), 1, &message);
}

#[test]
fn damage_that_leaves_a_consistent_file() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    let mut bytes = std::fs::read(&good).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&bad, bytes).unwrap();
    refused(predict(&bad), 1, &["bad.safetensors", "is damaged", "hash xxh3-128:", "calibrate again"]);
    // Version 1 has no hash, and says so.
    rewrite(&good, &bad, |_, _| ());
    let warning = common::stderr(&predict(&bad).success());
    assert!(warning.contains("bad.safetensors has format version 1, which has no hash"), "{warning}");
    let good = common::stderr(&predict(&good).success());
    assert!(!good.contains("warning"), "{good}");
}

#[test]
fn a_half_calibrated_checkpoint() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    rewrite(&good, &bad, |entries, _| entries.retain(|e| e.name != format!("{SITE}.scale")));
    refused(predict(&bad), 1, &["bad.safetensors", SITE, "calibrate"]);
}

#[test]
fn a_bad_scale() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    for value in [-1.0f32, 0.0, f32::NAN, f32::INFINITY, 1e-45] {
        rewrite(&good, &bad, |entries, _| {
            entry(entries, &format!("{SITE}.scale")).data = value.to_le_bytes().to_vec();
        });
        refused(predict(&bad), 1, &["bad.safetensors", SITE]);
    }
}

#[test]
fn tensors_missing_extra_misshapen_or_not_finite() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    let name = "layers.1.blocks.2.norm1.weight";
    rewrite(&good, &bad, |entries, _| entries.retain(|e| e.name != name));
    refused(predict(&bad), 1, &["bad.safetensors", name]);
    rewrite(&good, &bad, |entries, _| {
        let data = vec![0; 4];
        entries.push(Entry { name: "stray".to_owned(), dtype: Dtype::F32, shape: vec![1], data });
    });
    refused(predict(&bad), 1, &["bad.safetensors", "stray"]);
    rewrite(&good, &bad, |entries, _| entry(entries, name).shape = vec![64, 2]);
    refused(predict(&bad), 1, &["bad.safetensors", name, "shape"]);
    rewrite(&good, &bad, |entries, _| {
        entry(entries, name).data[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    });
    refused(predict(&bad), 1, &["bad.safetensors", name, "NaN"]);
}

#[test]
fn the_same_in_a_float_checkpoint() {
    let folder = Folder::new();
    let (bad, out) = (folder.path("bad.safetensors"), folder.path("out.safetensors"));
    let run = || {
        let mut command = swinq(["calibrate"]);
        command.arg(&bad).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
        command.arg("-o").arg(&out).assert()
    };
    let name = "layers.0.blocks.1.mlp.fc2.weight";
    rewrite(&sample_model(), &bad, |entries, _| entries.retain(|e| e.name != name));
    refused(run(), 1, &["bad.safetensors", name]);
    rewrite(&sample_model(), &bad, |entries, _| {
        entries.push(Entry { name: "stray".to_owned(), dtype: Dtype::F16, shape: vec![1], data: vec![0; 2] });
    });
    refused(run(), 1, &["bad.safetensors", "stray"]);
    rewrite(&sample_model(), &bad, |entries, _| entry(entries, name).shape.reverse());
    refused(run(), 1, &["bad.safetensors", name, "shape"]);
    rewrite(&sample_model(), &bad, |entries, _| {
        entry(entries, name).data[..2].copy_from_slice(&[0x00, 0x7e])
    });
    refused(run(), 1, &["bad.safetensors", name, "NaN"]);
    folder.holds_only(&["bad.safetensors"]);
}

#[test]
fn truncated_files() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let bytes = std::fs::read(&good).unwrap();
    for len in [0, 4, 8, 1000, bytes.len() / 2, bytes.len() - 1] {
        let bad = folder.write("cut.safetensors", &bytes[..len]);
        let problem = if len < 1000 { "cut" } else { "is a truncated or damaged safetensors file (" };
        refused(predict(&bad), 1, &["cut.safetensors", problem]);
    }
    let zip = std::fs::read(sample_data().join("val.zip")).unwrap();
    folder.write("data/val.zip", &zip[..zip.len() / 2]);
    folder.write("data/val_map.txt", std::fs::read(sample_data().join("val_map.txt")).unwrap());
    let mut command = swinq(["eval"]);
    command.arg(&good).arg("--data-path").arg(folder.path("data"));
    refused(
        command.assert(),
        1,
        &["val.zip: is a truncated or damaged zip archive (", "; copy or download it again"],
    );
}

#[test]
fn a_pickle_that_tries_to_execute_something() {
    let folder = Folder::new();
    // A pickle that calls `os.system("touch owned")`, without the frames of newer protocols.
    let bad = folder.write("evil.pth", b"\x80\x02cos\nsystem\nX\x0b\x00\x00\x00touch owned\x85R.");
    let mut command = swinq(["calibrate"]);
    command.current_dir(folder.as_path()).arg(&bad).arg("--cfg").arg(sample_cfg());
    command.arg("--data-path").arg(sample_data()).args(["-o", "out.safetensors"]);
    refused(command.assert(), 1, &["evil.pth", "os", "system"]);
    folder.holds_only(&["evil.pth"]);
}
