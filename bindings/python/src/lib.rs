//! The extension module `swinq._native` of the Python package. It is private: `python/swinq` wraps it in the
//! public functions and classes, and `python/swinq/_native.pyi` lists it with its types.
//!
//! Every call that reads images or runs a model releases the interpreter's lock.

mod buffer;
mod contract;
mod device;
mod engine;
mod error;
mod evaluate;
mod export;
mod images;
mod load;
mod model;
mod quantize;
mod search;
mod training;
mod work;

use std::ffi::OsString;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::contract::{Contract, contract};
    #[pymodule_export]
    use super::device::{DeviceArray, check, prepare, prepare_on, run_on};
    #[pymodule_export]
    use super::engine::{ClassRow, Engine, check_engine, check_gpu};
    #[pymodule_export]
    use super::evaluate::{Evaluated, evaluate};
    #[pymodule_export]
    use super::export::export;
    #[pymodule_export]
    use super::images::{Collector, Images};
    #[pymodule_export]
    use super::load::LoadMeter;
    #[pymodule_export]
    use super::model::{Model, SiteRow};
    #[pymodule_export]
    use super::quantize::{Calibrated, check_recipe, quantize};
    #[pymodule_export]
    use super::search::{Measured, Tuned, check_sensitivity, check_tune, sensitivity, tune};
    #[pymodule_export]
    use super::training::{
        FloatTensor, Grid, QuantizedSite, Stage, StoredParameter, fingerprint, gelu_table, grids, parameters,
        quantized_sites, stages, stored_parameters, trained,
    };
    #[pymodule_export]
    use super::{family_transform, run_command, shipped_configs};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the program `swinq` with the command line `arguments`, whose first is the program's name. Returns the
/// exit code. Ends the process for a mistake in the command line, and after help.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| swinq_cli::run(arguments))
}

/// The names of the shipped configurations: of classifiers, then of backbones.
#[pyfunction]
fn shipped_configs() -> Vec<&'static str> {
    swinq::shipped_configs().chain(swinq::shipped_backbones()).collect()
}

/// torchvision's preprocessing for the model `name` (`swin_t`, ...), in JSON; `None` for other names.
#[pyfunction]
fn family_transform(name: &str) -> PyResult<Option<String>> {
    let transform = swinq::data::presets::torchvision(name);
    transform.map(|transform| error::json(&transform)).transpose()
}
