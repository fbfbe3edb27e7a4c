//! Helpers for the tests of whole networks and whole trainings.

use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_model::quantized::FloatModel;
use swinq_model::{Ptq, QuantizedModel, Recipe};
pub use swinq_testing::model::{
    StripedImages as Images, odd, padded, random, random_channels, second, second_padded, shifted,
};

/// `float`, calibrated on images of `source`. A shipped recipe leaves the float weights as they are, from which the tests
/// compute what they expect.
pub fn calibrated(float: &FloatModel, recipe: &str, source: &mut Images) -> QuantizedModel {
    let recipe = match Recipe::shipped(recipe) {
        Some(recipe) => recipe.with_ptq(Ptq::Basic),
        None => Recipe::from_yaml("test", recipe).unwrap(),
    };
    let mut progress = |_| ControlFlow::Continue(());
    calibrate(
        float,
        &recipe,
        source,
        CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress },
    )
    .unwrap()
    .model
}

/// The values of a tensor, row-major.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}
