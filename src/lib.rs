//! INT8 for Swin Transformers, classifiers and backbones: opens a trained model, quantizes it on images, runs
//! it on a CPU or an NVIDIA GPU, and measures what the quantization costs.
//!
//! # Run a quantized model
//!
//! A [`Model`] is a checkpoint in memory, and an [`Engine`] runs it. [`predict`] classifies images:
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
//! The default engine is the CPU with one thread per core. [`EngineOptions`] chooses a GPU, a number of
//! threads, and a limit of memory. [`Images`] are files, a sample of a data set, or pixels in memory, and are
//! prepared as the model's own library prepares them. [`infer_images`] returns logits and reports progress;
//! [`Engine::infer`] takes pixels that are already prepared, of any height and width that the network can
//! process.
//!
//! # Quantize a float model
//!
//! `calibrate` runs the float model on images, chooses the ranges of activations, and rounds the weights
//! (feature `float`). A bare checkpoint needs the name of its configuration, or a file with it; the
//! directories of transformers and timm need none.
//!
//! ```no_run
//! # #[cfg(feature = "float")] {
//! use std::ops::ControlFlow;
//! use swinq::{CalibrateOptions, Images, Model, OpenOptions, Split, calibrate};
//!
//! let cfg = Some("swin_tiny_patch4_window7_224".to_owned());
//! let float = Model::open_with("swin_t.pth", &OpenOptions { cfg, ..OpenOptions::default() })?;
//! let images = Images::open("imagenet", Split::Train, Some(128), 0)?;
//! let int8 = calibrate(float, &CalibrateOptions::default(), &images, &mut |_| ControlFlow::Continue(()))?.model;
//! int8.save("swin_t.int8.safetensors")?;
//! # }
//! # Ok::<(), swinq::Error>(())
//! ```
//!
//! `CalibrateOptions::recipe` says which [`Site`]s are quantized, and how. Long calls take a closure for
//! their progress; `ControlFlow::Break` stops them with an error, and nothing is left half written.
//!
//! # Measure the difference
//!
//! [`evaluate()`] compares candidates with the first of them, on the same images: accuracy with intervals,
//! agreement, signal to noise of the outputs, and latency. [`write_report`] writes the results as HTML,
//! Markdown and JSON.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use swinq::{Candidate, EngineOptions, EvaluateOptions, Images, Model, Split, evaluate};
//!
//! let cpu = EngineOptions::default();
//! let mut candidates = [
//!     Candidate::engine("float", &Model::open("swin_t_hf/")?, &cpu)?,
//!     Candidate::engine("int8", &Model::open("swin_t.int8.safetensors")?, &cpu)?,
//! ];
//! let images = Images::open("imagenet", Split::Val, Some(1000), 0)?;
//! let options = EvaluateOptions { latency: vec![1], ..EvaluateOptions::default() };
//! let results = evaluate(&mut candidates, &images, &options, &mut |_, _| ControlFlow::Continue(()))?;
//! for model in &results.models {
//!     println!("{}: {:?} of {:?} right", model.name, model.top1_correct, model.images);
//! }
//! # Ok::<(), swinq::Error>(())
//! ```
//!
//! Where the accuracy falls, `sensitivity` finds the layers that cause it, `tune` searches the fastest recipe
//! that keeps it, and `Training` refines the model with simulated quantization. `sensitivity_by_metric` and
//! `tune_by_metric` do the same for a program that contains the model, by a metric of its own.
//!
//! # Backbones
//!
//! A backbone has feature maps in place of logits. Its file may be that of a detector: [`OpenOptions`]
//! chooses the task and the outputs. [`Features`] has an example.
//!
//! # Servers
//!
//! [`Model`] and [`Engine`] are `Send + Sync`. Calls of one engine run at the same time and share its
//! threads; engines of one model share its weights. The library never prints, reads the command line or ends
//! the process. Every [`Error`] names the file, site or argument at fault, and the next step.
//!
//! # Many machines
//!
//! `calibrate_shard` and `evaluate_shard` do a part of the images; `merge_calibration` and `merge_evaluation`
//! join the parts, with the bits of one run. [`Replicas`] runs one model on several GPUs.
//!
//! # Features
//!
//! - `float` (default): calibration, simulation and training. They run the float forward with candle. A
//!   dependency that only runs quantized models sets `default-features = false`.
//! - `onnx` (default): `export_onnx`, which writes a model as an ONNX file.
//! - `cuda`: the float forward on NVIDIA GPUs. The engine needs no feature to run there: it opens the CUDA
//!   libraries when a model is first prepared for a GPU.
//!
//! The crates of swinq are re-exported ([`model`], [`data`], [`eval`], [`int8_runtime`], [`numerics`],
//! [`kernels`], [`cuda`] and, with the features, `float`, `calib`, `qat` and `onnx`), so that a program
//! depends on `swinq` alone. Their interfaces may change with every minor version; that of this crate follows
//! Semantic Versioning.

mod backend;
mod batches;
#[cfg(feature = "float")]
mod cache;
#[cfg(feature = "float")]
mod calibration;
mod class_numbers;
mod class_order;
#[cfg(feature = "float")]
pub mod doctor;
mod ending;
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
pub use ending::FileKind;
pub use error::{Error, is_of_corrupt_images};
pub use evaluate::{
    Candidate, CandidateRunner, EvaluateOptions, Observer, Predicted, ReportFiles, environment, evaluate,
    measure_latency, noise, write_predictions, write_report,
};
#[cfg(feature = "onnx")]
pub use export::export_onnx;
pub use features::{FeatureBatch, FeatureMap, FeatureOptions, Features, LeftOut};
pub use images::{Images, ReadOptions, turned};
pub use open::{Model, OpenOptions};
pub use prediction::{ClassScore, Inferred, Prediction, infer_images, predict, top_k};
pub use replicas::Replicas;
pub use sample::SAMPLE;

#[cfg(feature = "float")]
pub use cache::CacheContents;
#[cfg(feature = "float")]
pub use calibration::{
    CalibrateOptions, Calibrated, calibrate, change_recipe, check_recipe, load_ft_ranges, load_recipe,
    quantize_with_ft_ranges, quantize_with_ranges,
};
#[cfg(feature = "float")]
pub use evaluation::{Evaluate, Evaluation};
#[cfg(feature = "float")]
pub use float_device::FloatDevice;
#[cfg(feature = "float")]
pub use sensitivity::{
    Cost, MeasuredParts, MetricSensitivity, PartKinds, PartSensitivity, PartsOf, SensitivityOptions,
    SensitivityProgress, sensitivity, sensitivity_by_metric, sites_of_part,
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

pub use swinq_data::{Padding, RgbImage, Sizing, Split, decode_image, decode_oriented, pad};
pub use swinq_int8_runtime::{CudaOptions, Engine, usable_gpu};
pub use swinq_model::part::{PartKind, PartSet, Shard};
pub use swinq_model::{
    Batch, BatchSource, ChannelOrder, Classifier, Dialect, Documents, ElementType, Family, InMemory,
    LoadOptions, LoadedConfig, Logits, Orientation, Recipe, Rule, Site, SwinConfig, Task, TensorView,
    Transform, load_config, shipped_backbones, shipped_configs,
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
