//! Evaluation of quantized models: accuracy, agreement with the float model, latency, and reports (text,
//! JSON, and one self-contained HTML file).
//!
//! The crate depends on no engine and no data set. Both are passed in as trait objects of `swinq-model`
//! ([`Classifier`](swinq_model::Classifier) and [`BatchSource`](swinq_model::BatchSource)).
//!
//! | module | content |
//! | --- | --- |
//! | [`collected`] | the logits of a model over a data set |
//! | [`mod@accuracy`], [`interval`] | top-1 and top-5, and the confidence interval of a difference |
//! | [`mod@fidelity`], [`effect`], [`distortion`] | distance between two models, and between two tensors |
//! | [`mod@maps`] | distance between the feature maps of two backbones |
//! | [`disagreement`] | classes and images on which two models differ |
//! | [`part`] | the logits of a part of the images, as they are stored |
//! | [`latency`] | latency measurement |
//! | [`environment`] | the machine and software of a run |
//! | [`results`] | the JSON of `eval` and `bench`, of `sensitivity` and of `tune` |
//! | [`text`], [`mod@compare`], [`report`] | text tables, comparison of two runs, the HTML report |

pub mod accuracy;
pub mod collected;
pub mod compare;
pub mod disagreement;
pub mod distortion;
pub mod effect;
pub mod environment;
pub mod error;
pub mod fidelity;
mod figures;
pub mod inspection;
pub mod interval;
pub mod latency;
pub mod maps;
pub mod part;
pub mod report;
pub mod results;
mod spread;
pub mod text;

pub use accuracy::{Accuracy, accuracy, is_above_chance, near_chance, near_chance_beside};
pub use collected::{Collected, collect, collect_any};
pub use compare::compare;
pub use distortion::Distortion;
pub use effect::EffectSums;
pub use environment::{Environment, Gpu, Load, LoadMeter, LoadSum, iso_utc, peak_memory_bytes};
pub use error::EvalError;
pub use fidelity::{Fidelity, fidelity};
pub use inspection::{Inspection, site_results};
pub use interval::{Interval, top1_difference};
pub use latency::{Latency, LatencyOptions, Step, measure, measure_interleaved, median};
pub use maps::{ImageErrors, MapErrors};
pub use report::{ReportExtras, Thumbnail, file_names, html, markdown};
pub use results::{
    CalibrationSet, ClassResult, DataInfo, Disagreement, Flips, GainEnvironment, GainMetric, GainTimes,
    Guess, ImageResult, LaunchResult, ModelResult, Origin, OutputResult, PROGRAM_GAIN, Precision, Profile,
    ProgramGain, ProgramTimes, RangeFile, RangeHistogram, Results, SCHEMA, SiteResult, SizeResult, Stats,
    StepPoint, TrainingRun, ValidationPoint, read_program_gain, read_results, read_training, results_json,
    write_results,
};
pub use results::{sensitivity::Sensitivity, tune::Tuning};
pub use spread::ImageNoise;
pub use text::{acc_line, counted, mebibytes, performance_summary, table};
