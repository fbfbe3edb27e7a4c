//! Calibration of backbones on images of several sizes.

use std::ops::ControlFlow;

use candle_core::Device;
use swinq_calib::{CalibrateOptions, Calibrated, Refinement, calibrate};
use swinq_float::{Float, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, BoxError, Ptq, Recipe, Size, StageOutput, SwinConfig, WindowPolicy};
use swinq_testing::model::{random, shifted};
use swinq_testing::{XorShift, relative_distance};

/// Sizes of the images in turn. Windows of the last two have padding.
const SIZES: [(usize, usize); 3] = [(32, 64), (36, 30), (45, 21)];

/// A backbone whose norms have outlier channels with a large mean, so that refinement wants to shift them.
fn backbone() -> FloatModel {
    let config = SwinConfig { window_policy: WindowPolicy::Detection, ..shifted() };
    let config = config.into_backbone(vec![StageOutput::of_stage(0, false), StageOutput::of_stage(1, true)]);
    let mut model = random(config, 11);
    for (name, tensor) in &mut model.tensors {
        if name.ends_with("norm1.bias") || name.ends_with("norm2.bias") {
            tensor.data[3] = 12.0;
            tensor.data[7] = -9.0;
        }
    }
    model
}

/// The image of this number.
fn image(id: usize) -> (Size, Vec<u8>) {
    let (height, width) = SIZES[id % SIZES.len()];
    let size = Size::new(height, width);
    (size, XorShift::new(1 + id as u64).bytes(3 * size.area()))
}

/// Batches of images, by their numbers. The images of a batch have one size.
struct Batches(Vec<Vec<usize>>);

impl BatchSource for Batches {
    fn batches(&self) -> usize {
        self.0.len()
    }

    fn images(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let ids = self.0[index].clone();
        let pixels = ids.iter().flat_map(|&id| image(id).1).collect();
        Ok(Batch { pixels, ids, ..Batch::empty(image(self.0[index][0]).0, 3) })
    }
}

fn calibrated(float: &FloatModel, ptq: Ptq, batches: Vec<Vec<usize>>) -> Calibrated {
    let recipe = Recipe::shipped("default").unwrap().with_ptq(ptq);
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    calibrate(float, &recipe, &mut Batches(batches), options).unwrap()
}

/// The feature maps of `model` for the image `id`.
fn maps(model: &FloatModel, id: usize) -> Vec<Vec<f32>> {
    let (size, pixels) = image(id);
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let batch = Batch { pixels, ids: vec![0], ..Batch::empty(size, 3) };
    let images = swin.images(&batch, &model.transform).unwrap();
    let outputs = swin.outputs(&images, &mut Float).unwrap();
    outputs.iter().map(|output| output.flatten_all().unwrap().to_vec1().unwrap()).collect()
}

#[test]
fn the_batches_of_a_calibration_have_no_effect() {
    let float = backbone();
    for ptq in [Ptq::Basic, Ptq::Refined, Ptq::Reconstruct] {
        let one = calibrated(&float, ptq, (0..9).map(|id| vec![id]).collect());
        let several = calibrated(&float, ptq, (0..3).map(|size| vec![size, size + 3, size + 6]).collect());
        assert_eq!(one.model, several.model, "{ptq:?}");
    }
}

/// Refinement leaves the function of the float model as it is, also where windows have padding.
#[test]
fn refinement_keeps_the_function_for_images_with_padding() {
    let float = backbone();
    let found = calibrated(&float, Ptq::Refined, (0..9).map(|id| vec![id]).collect());
    let moved = |trial: &&swinq_calib::Trial| trial.transform == Refinement::MigrateNorm && trial.kept();
    assert!(found.trials.iter().any(|trial| moved(&trial)), "no channel of a norm was migrated");
    let refined = found.refined.applied_to(&float);
    assert_ne!(refined.tensors, float.tensors);
    for id in 0..SIZES.len() {
        for (found, expected) in maps(&refined, id).iter().zip(maps(&float, id)) {
            let distance = relative_distance(found, &expected);
            assert!(distance <= 1e-4, "image {id}: {distance}");
        }
    }
}
