//! What a quantized Swin costs in accuracy and buys in speed: logits collected over a data set, top-1 and top-5,
//! agreement with the float model, latency, and the reports (text, JSON, one self-contained HTML file).
//!
//! The crate knows no engine and no data set: both come in as trait objects of `swinq-model`.
//!
//! | module | what it answers |
//! | --- | --- |
//! | [`collected`] | the logits of every image of an epoch |
//! | [`mod@accuracy`], [`interval`] | how many are right, and how sure a difference is |
//! | [`mod@fidelity`], [`distortion`] | how far two models, or two tensors, are apart |
//! | [`latency`] | how long a forward takes |
//! | [`environment`] | on which machine |
//! | [`results`] | the JSON of `eval` and `bench` |
//! | [`text`], [`mod@compare`], [`report`] | what people read |

pub mod accuracy;
pub mod collected;
pub mod compare;
pub mod distortion;
pub mod environment;
pub mod error;
pub mod fidelity;
pub mod interval;
pub mod latency;
pub mod report;
pub mod results;
pub mod text;

pub use accuracy::{Accuracy, accuracy};
pub use collected::{Collected, collect};
pub use compare::compare;
pub use distortion::Distortion;
pub use environment::{Environment, Gpu, peak_memory_bytes};
pub use error::EvalError;
pub use fidelity::{Fidelity, fidelity};
pub use interval::{Interval, top1_difference};
pub use latency::{Latency, LatencyOptions, Step, measure, measure_interleaved};
pub use report::{RangeHistogram, ReportExtras, html};
pub use results::{
    DataInfo, ModelResult, Precision, Results, SCHEMA, SiteResult, Stats, read_results, write_results,
};
pub use text::{acc_line, performance_summary, table};
