//! A metric of the caller's own, of a program that contains the model.

use std::ops::ControlFlow;

use swinq_model::QuantizedModel;

use crate::cache::Cache;
use crate::quantizer::identity;
use crate::{Error, Model};

/// A function of the caller's that measures his program with a model in it: box AP of a detector with this
/// backbone, mean IoU of a segmenter.
pub struct Evaluation<'a> {
    /// The metric's name, in results.
    pub metric: String,
    /// Whatever else its values depend on, in words or as a hash: the rest of the program, the images that it
    /// is measured on. With the metric's name, the float model, the recipe and the images of the calibration
    /// it says which finished measurements in a file are those of this run.
    pub context: String,
    /// Measures the program with this model, or with the caller's own float model if there is none. A greater
    /// number is better. `Break` stops the run.
    pub evaluate: &'a mut Evaluate<'a>,
}

/// The function of an [`Evaluation`].
pub type Evaluate<'a> = dyn FnMut(Option<&Model>) -> ControlFlow<(), f64> + 'a;

impl Evaluation<'_> {
    /// The beginning of a run's key. A search and a measurement of sensitivity share their values.
    pub(crate) fn command(&self) -> String {
        format!("metric {}, {}", self.metric, self.context)
    }

    /// The value of `model`, or of the caller's float model; from the cache if it is there.
    ///
    /// # Errors
    /// [`Error::Argument`] for a value that is not finite; [`Error::Interrupted`]; an error if the cache
    /// cannot be written.
    pub(crate) fn of(&mut self, model: Option<&QuantizedModel>, cache: &mut Cache) -> Result<f64, Error> {
        let name = name_of(model);
        if let Some(value) = cache.get(&name) {
            return Ok(value);
        }
        let model = model.map(|model| Model::from_quantized(model.clone())).transpose()?;
        let ControlFlow::Continue(value) = (self.evaluate)(model.as_ref()) else {
            return Err(Error::Interrupted);
        };
        if !value.is_finite() {
            return Err(Error::argument(
                "evaluate",
                format!("returned {value}, which is not a finite number"),
            ));
        }
        cache.put(&name, &value)?;
        Ok(value)
    }

    /// Whether the cache has the value of `model`, or of the caller's float model.
    pub(crate) fn has(cache: &Cache, model: Option<&QuantizedModel>) -> bool {
        cache.get::<f64>(&name_of(model)).is_some()
    }
}

/// The name of a model's value in a cache.
fn name_of(model: Option<&QuantizedModel>) -> String {
    format!("value {}", model.map_or_else(|| "float".to_owned(), identity))
}
