//! Calibrations and runs on a few images of the bundled data set.

use std::ops::ControlFlow;

use candle_core::Device;
use swinq_calib::{CalibrateOptions, Calibrated, calibrate};
use swinq_data::{Dataset, Loader, LoaderOptions, Split};
use swinq_eval::{Collected, collect};
use swinq_model::quantized::FloatModel;
use swinq_model::{Classifier, Recipe};

fn loader(model: &FloatModel, split: Split, images: usize) -> Loader {
    let dataset = Dataset::open(&super::sample_data(), split).unwrap();
    let ids = dataset.sample(Some(images), 7);
    let options = LoaderOptions { batch_size: 16, threads: 1, prefetch: 1, skip_corrupt: 0 };
    Loader::new(dataset, ids, model.transform.clone(), options).unwrap()
}

/// `model`, calibrated on 32 training images.
pub fn calibrated(model: &FloatModel, recipe: &Recipe, device: &Device) -> Calibrated {
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device, progress: &mut progress };
    calibrate(model, recipe, &mut loader(model, Split::Train, 32), options).unwrap()
}

/// The results of `classifier`, which stands for `model`, on `images` validation images.
pub fn run(classifier: &dyn Classifier, model: &FloatModel, images: usize) -> Collected {
    let mut progress = |_, _| ControlFlow::Continue(());
    collect(classifier, &mut loader(model, Split::Val, images), &mut progress).unwrap()
}
