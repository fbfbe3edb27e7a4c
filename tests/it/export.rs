//! `swinq export`, with the sample.

use crate::common::{self, calibrate, files, refused, sample_cfg, sample_model, stderr, stdout, swinq};
use swinq::model::quantized::{CalibrationRecord, ResidualRange};
use swinq::model::{QuantizedModel, SwinConfig, SwinVersion, all_blocks};
use swinq::onnx::{ImageSize, ModelProto};
use swinq::{Model, export_onnx};
use swinq_testing::model::{random, second_stack, small, stack};

#[test]
fn export_writes_the_graph_of_a_quantized_and_of_a_float_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (quantized, onnx) = (path("q.safetensors"), path("q.onnx"));
    calibrate(&quantized, &["--batches", "1", "--ptq", "basic"]).success();
    let export = |more: &[&str]| {
        let mut command = swinq(["export", "--onnx"]);
        command.arg(&onnx).args(more);
        command
    };
    let text = stdout(&export(&[]).arg(&quantized).assert().success());
    assert!(text.contains("wrote ") && text.contains("q.onnx"), "{text}");
    let written = std::fs::read(&onnx).unwrap();
    let model = Model::open(&quantized).unwrap();
    let file = export_onnx(&model, &Default::default()).unwrap();
    assert_eq!(file.encode(), written, "the command and the library write the same");
    let hash = model.file_info().unwrap().hash.as_ref().unwrap().to_string();
    assert!(metadata(&file.model, "swinq.checkpoint_hash").contains(&hash));

    let text = stderr(&export(&["--target", "tensorrt", "--batch", "2"]).arg(&quantized).assert().success());
    assert!(text.contains("steps of 1/127"), "{text}");
    assert_ne!(std::fs::read(&onnx).unwrap(), written);

    export(&["--cfg"]).arg(sample_cfg()).arg(sample_model()).assert().success();
    assert!(
        std::fs::read(&onnx).unwrap().len() > 3 * written.len(),
        "float weights take four times the bytes"
    );
    assert_eq!(files(folder.path()), ["q.onnx", "q.ranges.json", "q.safetensors"]);
}

fn metadata(model: &ModelProto, key: &str) -> String {
    let entry = model.metadata_props.iter().find(|entry| entry.key() == key);
    entry.unwrap_or_else(|| panic!("no {key}")).value().to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminated_export_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = folder.path().join("m.onnx");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
    command.args(["export", "--cfg"]).arg(sample_cfg()).arg(sample_model()).arg("--onnx").arg(&onnx);
    common::terminated_before_it_writes(&mut command, &onnx);
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

#[test]
fn a_backbone_is_exported_for_one_size_and_for_any() {
    let folder = tempfile::tempdir().unwrap();
    let (backbone, onnx) = (folder.path().join("backbone.safetensors"), folder.path().join("b.onnx"));
    common::write_backbone(&backbone);
    let export = |more: &[&str]| {
        let mut command = swinq(["export", "--onnx"]);
        command.arg(&onnx).arg(&backbone).args(more).assert()
    };
    export(&["--size", "40x56"]).success();
    let size = ImageSize::Fixed(swinq::model::Size::new(40, 56));
    let options = swinq::onnx::ExportOptions { size, ..Default::default() };
    let file = export_onnx(&Model::open(&backbone).unwrap(), &options).unwrap();
    assert_eq!(file.encode(), std::fs::read(&onnx).unwrap());
    assert!(metadata(&file.model, "swinq.outputs").contains("stage2: float32 [batch, "));
    export(&["--size", "any"]).success();
    let options = swinq::onnx::ExportOptions { size: ImageSize::Any, ..Default::default() };
    let file = export_onnx(&Model::open(&backbone).unwrap(), &options).unwrap();
    assert_eq!(file.encode(), std::fs::read(&onnx).unwrap());
    assert!(metadata(&file.model, "swinq.sizes").contains("any height and width"));
    std::fs::remove_file(&onnx).unwrap();
    refused(export(&[]), 1, &["--size", "is a backbone", "800x1344"]);
    refused(export(&["--size", "short:800,long:1333"]), 2, &["HEIGHTxWIDTH"]);
    assert_eq!(files(folder.path()), ["backbone.safetensors"]);
}

#[test]
fn export_refuses_what_it_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = folder.path().join("m.onnx");
    let export = |more: &[&str]| {
        let mut command = swinq(["export", "--cfg"]);
        command.arg(sample_cfg()).arg(sample_model()).arg("--onnx").arg(&onnx).args(more).assert()
    };
    refused(export(&["--opset", "12"]), 2, &["--opset", "18 to 23"]);
    refused(export(&["--target", "tensorrt", "--probs", "exact"]), 2, &["--probs"]);
    refused(export(&["--batch", "none"]), 2, &["--batch"]);
    refused(export(&["--size", "30x32"]), 1, &["--size", "cannot process 30x32"]);
    for (output, code, words) in [
        (sample_cfg(), 1, "would replace the input"),
        (sample_model(), 2, "an ONNX file, not a .safetensors file"),
    ] {
        let mut command = swinq(["export", "--cfg"]);
        let command = command.arg(sample_cfg()).arg(sample_model()).arg("--onnx").arg(output);
        refused(command.assert(), code, &[words]);
    }
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

/// For a residual stream that leaves f16, `inspect` names the behaviour of `export --fp16`.
#[test]
fn inspect_says_what_becomes_of_a_residual_that_leaves_f16() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.safetensors");
    let second = SwinConfig { version: SwinVersion::V2, ..small() };
    let second_stack = second_stack();
    let cases = [
        (small(), "f32 on a GPU and in export --fp16", true),
        (second, "f32 on a GPU; export --fp16 is refused", false),
        (stack(), "f32 on a GPU and in export --fp16", true),
        (second_stack, "f32 on a GPU; export --fp16 is refused", false),
    ];
    for (config, words, is_exported) in cases {
        let blocks = all_blocks(&config).into_iter().map(|id| (id, 75_000.0)).collect();
        let size = format!("{}x{}", config.image_size.height, config.image_size.width);
        let mut model = QuantizedModel::from_float(random(config, 1)).unwrap();
        model.provenance.calibration = Some(CalibrationRecord {
            images: vec!["0".to_owned()],
            sha256: String::new(),
            seed: 0,
            batch_size: 1,
            sizing: None,
            residual: ResidualRange::of(&blocks),
        });
        model.save(&path).unwrap();
        let text = stdout(&swinq(["inspect"]).arg(&path).assert().success());
        let line = text.lines().find(|line| line.contains("  residual  ")).unwrap();
        assert!(line.ends_with(&format!("up to 75000 in layers.0.blocks.0, {words}")), "{line}");
        let mut export = swinq(["export", "--fp16", "--size", &size, "--input", "normalized", "--onnx"]);
        let exported = export.arg(folder.path().join("model.onnx")).arg(&path).assert();
        let code = exported.get_output().status.code();
        assert_eq!(code == Some(0), is_exported, "{words}: {}", common::stderr(&exported));
    }
}
