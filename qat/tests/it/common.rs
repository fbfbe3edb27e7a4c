//! Helpers for the tests of whole networks and whole trainings.

use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, BoxError, Ptq, QuantizedModel, Recipe, Size};
pub use swinq_testing::model::{
    StripedImages as Images, odd, padded, random, random_channels, second, second_padded, shifted,
};

/// `float`, calibrated on images of `source`. A shipped recipe leaves the float weights as they are, from
/// which the tests compute what they expect.
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

/// Images whose size follows from the number of the batch and of the epoch.
pub struct OfSizes {
    pub images: Images,
    pub sizes: Vec<Size>,
}

impl BatchSource for OfSizes {
    fn batches(&self) -> usize {
        self.images.batches()
    }

    fn images(&self) -> usize {
        self.images.images()
    }

    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        let size = self.sizes[(epoch as usize + index) % self.sizes.len()];
        Images { size, ..self.images }.batch(epoch, index)
    }
}

/// The values of a tensor, row-major.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}
