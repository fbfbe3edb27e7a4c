//! The magnitude of the residual stream in files, and the rule for f16.

use std::collections::BTreeMap;

use swinq_model::quantized::{CalibrationRecord, F16_MARGIN, F16_MAX, F16Residual, ResidualRange};
use swinq_model::{BlockId, QuantizedModel};

use crate::quantized_file;

/// A model whose calibration has this record of the residual stream.
fn model_with(residual: Option<ResidualRange>) -> QuantizedModel {
    let mut model = quantized_file::model("default");
    model.provenance.calibration = Some(CalibrationRecord {
        images: vec!["a.png".to_owned()],
        sha256: "00".to_owned(),
        seed: 0,
        batch_size: 8,
        sizing: None,
        residual,
    });
    model
}

fn id(stage: usize, block: usize) -> BlockId {
    BlockId { stage, block }
}

/// A range of the model's two blocks.
fn range(most: f32) -> ResidualRange {
    ResidualRange::of(&BTreeMap::from([(id(0, 0), most / 2.0), (id(1, 0), most)])).unwrap()
}

#[test]
fn f16_holds_a_residual_with_a_margin() {
    let limit = F16_MAX / F16_MARGIN;
    for (residual, expected) in [
        (None, F16Residual::Unknown),
        (Some(range(limit)), F16Residual::Fits),
        (Some(range(limit + 1.0)), F16Residual::TooLarge { block: id(1, 0), largest: limit + 1.0 }),
    ] {
        assert_eq!(model_with(residual).f16_residual(), expected);
    }
    let mut without = model_with(None);
    without.provenance.calibration = None;
    assert_eq!(without.f16_residual(), F16Residual::Unknown);
}

#[test]
fn a_file_keeps_the_magnitudes_and_one_without_them_opens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for residual in [Some(range(74_878.1)), None] {
        let model = model_with(residual.clone());
        model.save(&path).unwrap();
        assert_eq!(QuantizedModel::load(&path).unwrap(), model);
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).contains("residual\\\":");
        assert_eq!(text, residual.is_some());
    }
    assert_eq!(
        model_with(Some(range(8.0))).fingerprint().unwrap(),
        model_with(None).fingerprint().unwrap(),
        "the magnitudes do not change what the model computes"
    );
}

#[test]
fn magnitudes_that_do_not_fit_the_model_are_refused() {
    for blocks in [
        vec![(id(0, 0), 1.0)],
        vec![(id(0, 0), 1.0), (id(0, 1), 1.0), (id(1, 0), 1.0)],
        vec![(id(0, 0), f32::INFINITY), (id(1, 0), 1.0)],
        vec![(id(0, 0), 1.0), (id(1, 0), -1.0)],
    ] {
        let residual = ResidualRange::of(&blocks.into_iter().collect());
        let error = model_with(residual).validate().unwrap_err().to_string();
        assert!(error.contains("calibration.residual") && error.contains("calibrate again"), "{error}");
    }
}
