//! The float forward as a [`Classifier`].

use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::error::FloatError;
use crate::{FakeQuant, Float, Sites, Swin};
use swinq_model::batch::{Batch, BoxError, Classifier, Logits, Transform};
use swinq_model::quantized::{FloatModel, QuantizedModel};
use swinq_model::{ModelError, Size};

/// A network that runs the float forward, a classifier or a backbone: of a float model, or of a quantized
/// model in simulation. Calls from several threads take turns.
pub struct FloatClassifier {
    swin: Swin,
    transform: Transform,
    sites: Mutex<Box<dyn Sites + Send>>,
}

impl FloatClassifier {
    /// Runs `model` in f32 on `device`.
    ///
    /// # Errors
    /// The errors of [`Swin::new`].
    pub fn new(model: &FloatModel, device: &Device) -> Result<FloatClassifier, FloatError> {
        Ok(FloatClassifier {
            swin: Swin::new(&model.config, &model.tensors, device)?,
            transform: model.transform.clone(),
            sites: Mutex::new(Box::new(Float)),
        })
    }

    /// Simulates the quantization of `model` in float arithmetic on `device` ([`FakeQuant`]).
    ///
    /// # Errors
    /// The errors of [`FakeQuant::new`] and [`Swin::new`].
    pub fn simulate(model: &QuantizedModel, device: &Device) -> Result<FloatClassifier, FloatError> {
        let sites = FakeQuant::new(model, device)?;
        Ok(FloatClassifier {
            swin: Swin::new(&model.config, &model.float_tensors(), device)?,
            transform: model.transform.clone(),
            sites: Mutex::new(Box::new(sites)),
        })
    }
}

impl FloatClassifier {
    /// Every output of the images of `batch`, f32 with the channels first: the logits `[n, classes]`, or the
    /// feature maps `[n, channels, height, width]` of a backbone.
    ///
    /// # Errors
    /// The errors of [`Swin::images`] and [`Swin::outputs`].
    pub fn outputs(&self, batch: &Batch) -> Result<Vec<Vec<f32>>, FloatError> {
        if batch.is_empty() {
            return Ok(vec![Vec::new(); self.swin.config().outputs.len().max(1)]);
        }
        let images = self.swin.images(batch, &self.transform)?;
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let channels_first = |output: Tensor| {
            let (rows, columns) = output.dims2()?;
            let by_image = output.reshape((batch.len(), rows / batch.len(), columns))?;
            by_image.transpose(1, 2)?.flatten_all()?.to_vec1()
        };
        let outputs = self.swin.outputs(&images, sites.as_mut())?;
        Ok(outputs.into_iter().map(channels_first).collect::<candle_core::Result<_>>()?)
    }
}

impl Classifier for FloatClassifier {
    fn classes(&self) -> usize {
        self.swin.config().num_classes
    }

    fn input_size(&self) -> Size {
        self.swin.config().image_size
    }

    fn channels(&self) -> usize {
        self.swin.config().in_chans
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        let classes = self.classes();
        if batch.is_empty() {
            return Ok(Logits { values: Vec::new(), classes });
        }
        let images = self.swin.images(batch, &self.transform)?;
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let logits = self.swin.forward(&images, sites.as_mut())?;
        let values: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let (image, class) = (index / classes, index % classes);
            let id = batch.ids[image];
            let problem = format!(
                "the logit of class {class} is not finite for image {id} of the data set, because a value overflowed; \
                 check the checkpoint and its preprocessing"
            );
            return Err(ModelError::tensor("head", problem).into());
        }
        Ok(Logits { values, classes })
    }
}
