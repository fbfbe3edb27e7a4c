//! A trained model with its images, for tests of quantization.

use std::path::Path;

use swinq::model::quantized::FloatModel;
use swinq::{Images, Model, OpenOptions, Split};

/// A model, the images to calibrate on, and those to measure on.
pub struct Subject {
    pub model: FloatModel,
    pub calibration: Images,
    pub validation: Images,
}

impl Subject {
    /// The bundled sample.
    pub fn sample() -> Subject {
        let images = |split, count| Images::open(super::sample_data(), split, Some(count), 0).unwrap();
        let (calibration, validation) = (images(Split::Train, 48), images(Split::Val, 120));
        Subject { model: super::float_model(), calibration, validation }
    }

    /// The float model in `folder`.
    pub fn open(folder: &Path) -> FloatModel {
        let cfg = Some(folder.join("cfg.yaml").to_str().unwrap().to_owned());
        let options = OpenOptions { cfg, ..OpenOptions::default() };
        let model = Model::open_with(folder.join("model.safetensors"), &options).unwrap();
        model.as_quantized().clone().into_float().unwrap()
    }

    /// A model of the folder of large data, calibrated on 80 images and measured on `count`, or on all.
    pub fn large(data: &Path, model: &str, images: &str, count: Option<usize>) -> Subject {
        let open = |split, count| Images::open(data.join("data").join(images), split, count, 0).unwrap();
        Subject {
            model: Subject::open(&data.join("models").join(model)),
            calibration: open(Split::Train, Some(80)),
            validation: open(Split::Val, count),
        }
    }
}
