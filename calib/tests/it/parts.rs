//! Parts of a calibration with tensors that are missing, of another shape, or impossible are refused by the
//! tensor's name.

use std::ops::ControlFlow;
use std::path::Path;

use candle_core::Device;
use serde_json::Value;
use swinq_calib::CalibrateOptions;
use swinq_calib::part::{Merge, observe};
use swinq_model::part::{PartDocument, PartFile, PartKind, PartTensor, PartTensors, Shard};
use swinq_model::quantized::FloatModel;
use swinq_model::{Ptq, Recipe};
use swinq_testing::model::{NoiseImages, random, small};

fn model() -> FloatModel {
    random(small(), 5)
}

fn observed(model: &FloatModel, recipe: &Recipe) -> PartTensors {
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let mut images = NoiseImages::of(&model.config, 2);
    observe(model, recipe, &mut images, 4, options).unwrap().tensors
}

/// The error of merging a part with these tensors, whose hash is right.
fn merge(model: &FloatModel, recipe: &Recipe, tensors: &PartTensors, path: &Path) -> Result<(), String> {
    let shard = Shard { index: 1, count: 1 };
    let document = PartDocument::new(PartKind::Calibration, shard, Value::Null, Value::Null);
    document.write(path, tensors).unwrap();
    let file = PartFile::read(path).unwrap();
    let mut merge = Merge::new(model, recipe).unwrap();
    assert_eq!(merge.add(&file.tensors()).map_err(|error| error.to_string())?, 4);
    merge.finish(&mut |_| ControlFlow::Continue(())).map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn every_tensor_is_needed_and_checked() {
    let (model, recipe) = (model(), Recipe::shipped("default").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part");
    let good = observed(&model, &recipe);
    merge(&model, &recipe, &good, &path).unwrap();
    // A layer of the first block and everything that is not of a layer: the others are alike.
    let chosen = |name: &&String| !name.contains("layers.") || name.contains("layers.0.blocks.0");
    for name in good.keys().filter(chosen) {
        let refused = |tensor: Option<PartTensor>| {
            let mut tensors = good.clone();
            tensors.remove(name);
            tensors.extend(tensor.map(|tensor| (name.clone(), tensor)));
            let error = merge(&model, &recipe, &tensors, &path).expect_err(name);
            for word in ["its tensor `", "run this shard again"] {
                assert!(error.contains(word), "{name}: {error}");
            }
        };
        refused(None);
        refused(Some(PartTensor::u8([0], Vec::new())));
        refused(Some(PartTensor::f32([1], &[f32::NAN])));
        refused(Some(PartTensor::f32([3], &[1.0, 2.0, 3.0])));
        refused(Some(PartTensor::u64([2], [u64::MAX, u64::MAX])));
        refused(Some(PartTensor::u64([1], [77])));
    }
}

#[test]
fn images_of_two_parts_are_refused() {
    let (model, recipe) = (model(), Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part");
    let tensors = observed(&model, &recipe);
    merge(&model, &recipe, &tensors, &path).unwrap();
    let file = PartFile::read(&path).unwrap();
    let mut twice = Merge::new(&model, &recipe).unwrap();
    twice.add(&file.tensors()).unwrap();
    let error = twice.add(&file.tensors()).unwrap_err().to_string();
    assert!(error.contains("`ids`") && error.contains("another part"), "{error}");
}

#[test]
fn reconstruction_is_refused() {
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Reconstruct);
    let error = Merge::new(&model(), &recipe).err().unwrap().to_string();
    for word in ["ptq: reconstruct", "without --shard", "--ptq refined"] {
        assert!(error.contains(word), "{error}");
    }
}
