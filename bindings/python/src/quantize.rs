//! Calibration.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use swinq::{CalibrateOptions, FloatDevice, Phase, ReadOptions, Recipe, load_recipe};

use crate::error::raise;
use crate::images::Images;
use crate::model::Model;

/// Quantizes the float `model` on `images`. `recipe` is a name, a file, or the text of a recipe if `is_text`.
///
/// `progress` is called with the phase, the number of images or layers done, and the number of all. Returns the model
/// and the messages about the corrupt images that were left out.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn quantize(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: &str,
    is_text: bool,
    batch_size: usize,
    threads: usize,
    skip_corrupt: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Model, Vec<String>)> {
    let found = match is_text {
        true => Recipe::from_yaml("recipe", recipe).map_err(swinq::Error::from),
        false => load_recipe(recipe),
    };
    let recipe = found.map_err(|error| raise(py, &error))?;
    let read = ReadOptions { batch_size, threads, skip_corrupt };
    let options = CalibrateOptions { recipe, read, device: FloatDevice::Cpu };
    let mut observer = Observer::new(progress);
    let calibrated = py.detach(|| {
        let mut step = |step: swinq::Progress| {
            let phase = match step.phase {
                Phase::Observe => "observe",
                Phase::Refine => "refine",
                Phase::Reconstruct => "reconstruct",
            };
            observer.step(phase, step.done, step.total)
        };
        swinq::calibrate(model.model.clone(), &options, &images.images, &mut step)
    });
    observer.check()?;
    let calibrated = calibrated.map_err(|error| raise(py, &error))?;
    Ok((Model { model: calibrated.model }, calibrated.skipped))
}

/// Calls a Python function with the progress of work that runs without the interpreter's lock, and stops the work if
/// the function raises an exception or a signal came.
pub struct Observer {
    function: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Observer {
    /// An observer that calls `function`, if there is one.
    pub fn new(function: Option<Py<PyAny>>) -> Observer {
        Observer { function, raised: None }
    }

    /// Calls the function. `Break` if it raised an exception, or if Ctrl-C was pressed.
    pub fn step(&mut self, phase: &str, done: usize, total: usize) -> ControlFlow<()> {
        let called = Python::attach(|py| {
            py.check_signals()?;
            match &self.function {
                Some(function) => function.call1(py, (phase, done, total)).map(|_| ()),
                None => Ok(()),
            }
        });
        match called {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Raises the exception that stopped the work.
    ///
    /// # Errors
    /// The exception.
    pub fn check(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}
