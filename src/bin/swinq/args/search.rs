//! Arguments of the commands that measure or search recipes: `sensitivity` and `tune`.

use std::path::PathBuf;

use clap::Args;
use swinq::{Sizing, Split};
use swinq_ladder::parse::{at_least_one, batch, positive};

use super::{BackendArgs, CalibrationArgs, DataArgs, FloatArgs, Threads};

/// The model and the images of `sensitivity` and `tune`.
#[derive(Clone, Debug, Args)]
pub struct SubjectArgs {
    /// Float checkpoint (.pth, .pt, .bin, .pkl, .safetensors), or a Hugging Face or timm directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Size of the images of a backbone: their own (the default), this height and width, or in proportion so that the shorter
    /// side has 800 pixels and the longer one at most 1333.
    #[arg(long, value_name = "keep|HxW|short:800,long:1333")]
    pub size: Option<Sizing>,
    /// Outputs of a backbone whose SQNR counts; the worst of them does (default: all).
    #[arg(long, value_name = "stageK,stageK", value_delimiter = ',')]
    pub sqnr_of: Vec<String>,
    /// Part of the data set on which models are measured.
    #[arg(long, default_value = "val")]
    pub split: Split,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
}

/// Arguments of `sensitivity`.
#[derive(Clone, Debug, Args)]
pub struct SensitivityArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Number of images on which effects are measured: a seeded sample, spread over the classes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub images: usize,
    /// Layers to print, from the most sensitive.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// File to write: the results as JSON. Finished measurements are kept beside it, in FILE.cache.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Arguments of `tune`.
#[derive(Clone, Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Number of images for search and verification, one half each: a seeded sample, spread over the classes
    /// (default: all).
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub images: Option<usize>,
    /// The largest drop of top-1 accuracy of a classifier, in percentage points (default: 0.2).
    #[arg(long, value_name = "POINTS", value_parser = points, allow_negative_numbers = true)]
    pub max_drop: Option<f64>,
    /// The least SQNR of the outputs of a backbone against float, in dB.
    #[arg(long, value_name = "DB", value_parser = points, allow_negative_numbers = true)]
    pub min_sqnr: Option<f64>,
    /// The least speedup over the float model on the same engine.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub min_speedup: Option<f64>,
    /// Minutes that the timing of launches and the search may take together; calibration and verification are not counted. The
    /// start recipe is always tried.
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    pub budget: Option<f64>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Images per inference whose latency counts. Before a backbone they have the size that most images have; on a GPU the
    /// network's own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = batch)]
    pub batch_size: usize,
    /// Table of measured latencies: read if it exists, and extended (default: OUTPUT.latencies.json).
    #[arg(long, value_name = "FILE")]
    pub latencies: Option<PathBuf>,
    /// Write a report of the search, and of float and the tuned model on the verification images, as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Quantized checkpoint to write. Beside it are written OUTPUT.yaml (the recipe), OUTPUT.json (all candidates and
    /// the front), OUTPUT.latencies.json (the table of latencies) and OUTPUT.cache (finished measurements).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Percentage points or percent: 0 or more.
pub fn points(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x >= 0.0 && f64::is_finite(x) => Ok(x),
        _ => Err("must be 0 or a positive number".to_owned()),
    }
}
