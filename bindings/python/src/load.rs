//! The load of the machine while a program is timed.

use pyo3::prelude::*;

/// Measures the load from its making on.
#[pyclass(frozen, module = "swinq._native")]
pub struct LoadMeter(swinq::eval::LoadMeter);

#[pymethods]
impl LoadMeter {
    #[new]
    fn new() -> LoadMeter {
        LoadMeter(swinq::eval::LoadMeter::start())
    }

    /// The mean number of cores that other processes kept busy since then, if they were so many that a time
    /// measured meanwhile is disturbed.
    fn disturbance(&self) -> Option<f64> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.0.finish().disturbance(cores)
    }
}
