//! INT8 for Swin Transformers, classifiers and backbones: opens a model, runs it on a CPU or a GPU, calibrates and
//! evaluates it.
//!
//! ```no_run
//! use swinq::{EngineOptions, Images, Model, predict};
//!
//! let model = Model::open("swin_t.int8.safetensors")?;
//! let engine = model.engine(&EngineOptions::default())?;
//! for class in &predict(&engine, &Images::from_files(&["cat.jpg"])?, 5)?[0].classes {
//!     println!("{:.1} % {}", 100.0 * class.score, class.label.as_deref().unwrap_or("?"));
//! }
//! # Ok::<(), swinq::Error>(())
//! ```
//!
//! | type or function | what it does |
//! | --- | --- |
//! | [`Model`] | opens a quantized or float checkpoint, or a Hugging Face or timm directory |
//! | [`Engine`] | runs a model on preprocessed pixels, from any number of threads; [`Model::engine`] makes it |
//! | [`Images`] | a sample of a data set, image files, or pixels in memory |
//! | [`predict`], [`infer_images`], [`top_k`] | classify images: the best classes, the logits with progress, the best classes of logits |
//! | [`Features`] | the feature maps of image files of any size, by a backbone |
//! | `calibrate` | quantizes a float model (feature `float`) |
//! | `export_onnx` | writes a model as an ONNX file (feature `onnx`) |
//! | [`evaluate()`] | measures accuracy, agreement with a baseline, and latency |
//! | `calibrate_shard`, `evaluate_shard` | do the same in parts, which `merge_calibration` and `merge_evaluation` join (feature `float`) |
//! | `sensitivity` | measures the effect of each layer's quantization (feature `float`) |
//! | `tune` | searches the fastest recipe that keeps the accuracy (feature `float`) |
//! | `sensitivity_by_metric`, `tune_by_metric` | do the same for a program that contains the model, by its own metric (feature `float`) |
//! | `Training` | trains a quantized or float model (feature `float`) |
//!
//! [`Model`] and [`Engine`] are `Send + Sync`. The library never prints, reads the command line or ends the
//! process.
//!
//! # Features
//!
//! - `cli` (default): the program `swinq`. A dependency that needs only the library sets `default-features =
//!   false`.
//! - `float` (default): calibration, simulation and training. They run the float forward with candle.
//! - `onnx` (with `cli`): export to ONNX.
//! - `cuda`: the float forward on NVIDIA GPUs. The engine needs no feature to run there: it opens the CUDA libraries
//!   when a model is first prepared for a GPU.
//!
//! The crates of swinq are re-exported ([`model`], [`data`], [`eval`], [`int8_runtime`], [`numerics`], [`kernels`],
//! [`cuda`] and, with the features, `float`, `calib`, `qat` and `onnx`), so that a program depends on `swinq` alone.

mod backend;
mod batches;
#[cfg(feature = "float")]
mod calibration;
mod class_numbers;
mod class_order;
#[cfg(feature = "float")]
pub mod doctor;
mod engine;
mod error;
mod evaluate;
#[cfg(feature = "float")]
mod evaluation;
#[cfg(feature = "onnx")]
mod export;
mod features;
#[cfg(feature = "float")]
mod float_device;
mod hex;
mod images;
#[cfg(feature = "float")]
mod journal;
mod limits;
mod open;
mod prediction;
mod prepared;
mod preprocessing;
#[cfg(feature = "float")]
mod quantizer;
mod replicas;
mod sample;
#[cfg(feature = "float")]
mod sensitivity;
#[cfg(feature = "float")]
mod shards;
#[cfg(feature = "float")]
pub mod train;
#[cfg(feature = "float")]
mod trained;
#[cfg(feature = "float")]
mod tune;

pub use backend::{BackendChoice, CPU_BATCH, DEFAULT_BATCH, EngineOptions};
pub use batches::ImageBatches;
pub use error::Error;
pub use evaluate::{
    Candidate, EvaluateOptions, Observer, Predicted, ReportFiles, Runner, environment, evaluate,
    measure_latency, noise, write_predictions, write_report,
};
#[cfg(feature = "onnx")]
pub use export::export_onnx;
pub use features::{FeatureBatch, FeatureMap, FeatureOptions, Features, LeftOut};
pub use images::{Images, ReadOptions};
pub use open::{Model, OpenOptions};
pub use prediction::{ClassScore, Inferred, Prediction, infer_images, predict, top_k};
pub use preprocessing::Family;
pub use replicas::Replicas;
pub use sample::SAMPLE;

#[cfg(feature = "float")]
pub use calibration::{
    CalibrateOptions, Calibrated, calibrate, change_recipe, load_ft_ranges, load_recipe,
    quantize_with_ft_ranges, quantize_with_ranges,
};
#[cfg(feature = "float")]
pub use evaluation::{Evaluate, Evaluation};
#[cfg(feature = "float")]
pub use float_device::FloatDevice;
#[cfg(feature = "float")]
pub use journal::Found;
#[cfg(feature = "float")]
pub use sensitivity::{
    MetricSensitivity, PartKinds, PartSensitivity, PartsOf, SensitivityOptions, SensitivityProgress,
    sensitivity, sensitivity_by_metric,
};
#[cfg(feature = "float")]
pub use shards::{
    MergedCalibration, MergedEvaluation, Part, calibrate_shard, evaluate_shard, merge_calibration,
    merge_evaluation,
};
#[cfg(feature = "float")]
pub use swinq_calib::{Phase, Progress, Refinement, Trial};
#[cfg(feature = "float")]
pub use train::Training;
#[cfg(feature = "float")]
pub use trained::TrainedParameters;
#[cfg(feature = "float")]
pub use tune::{TuneOptions, TuneProgress, Tuned, tune, tune_by_metric};

pub use swinq_data::{Padding, RgbImage, Sizing, Split, decode_image, pad};
pub use swinq_int8_runtime::{CudaOptions, Engine, usable_gpu};
pub use swinq_model::part::{PartKind, PartSet, Shard};
pub use swinq_model::{
    Batch, BatchSource, Classifier, Dialect, Documents, ElementType, InMemory, LoadedConfig, Logits, Recipe,
    Rule, Site, SwinConfig, Task, TensorView, Transform, load_config, shipped_backbones, shipped_configs,
};

pub use swinq_cuda as cuda;
pub use swinq_data as data;
pub use swinq_eval as eval;
pub use swinq_int8_runtime as int8_runtime;
pub use swinq_kernels as kernels;
pub use swinq_model as model;
pub use swinq_numerics as numerics;
#[cfg(feature = "onnx")]
pub use swinq_onnx as onnx;
#[cfg(feature = "float")]
pub use {swinq_calib as calib, swinq_float as float, swinq_qat as qat};

/// The code of the README, compiled and run by `cargo test --doc`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The code of the page on backbones, compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/backbones.md")]
mod backbones {}
