//! Arguments of the commands that measure models: `eval`, `bench` and `compare`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use swinq::model::Size;
use swinq::{FileKind, FloatDevice, Shard, Sizing, Split};
use swinq_ladder::LadderCommand;
use swinq_ladder::parse::{at_least_one, batch, seconds, threads};

use super::search::points;
use super::shared::{file, multiple};
use super::{BackendArgs, DataArgs, FloatArgs, Threads};

/// Arguments of `eval`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("results").args(["report", "markdown", "json"]).multiple(true)))]
pub struct EvalArgs {
    /// Quantized checkpoints, float checkpoints or directories; the first is the baseline.
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Size of the images of backbones: their own (the default), this height and width, or in proportion so
    /// that the shorter side has 800 pixels and the longer one at most 1333.
    #[arg(long, value_name = "keep|HxW|short:800,long:1333")]
    pub size: Option<Sizing>,
    /// Part of the data set.
    #[arg(long, default_value = "val")]
    pub split: Split,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Also run each quantized model as float with fake quantization, or (`exact`) on the engine's scalar
    /// integer reference.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "fake", require_equals = true)]
    pub simulate: Option<Simulate>,
    /// Device of the fake quantization; cuda needs a build with candle's CUDA (`--features cuda`).
    #[arg(long, value_name = "cpu|cuda[:N]", requires = "simulate")]
    pub simulate_device: Option<FloatDevice>,
    /// Evaluate a seeded sample of this many images, spread over the classes.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub limit: Option<usize>,
    /// Seed of that sample.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Images per batch (default: 32, or 4 for each thread of the CPU engine if these are more; of backbones
    /// 8, and fewer large images).
    #[arg(long, value_parser = batch)]
    pub batch_size: Option<usize>,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly
    /// N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
    /// Batch sizes whose latency is measured after the accuracy (default: 1,8; for backbones 1). Backbones
    /// are timed at up to four sizes of the images.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = timed_batch)]
    pub latency: Option<Vec<usize>>,
    /// Seconds of latency measurement for each model and batch size, at most 3600.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Do not measure latency.
    #[arg(long, conflicts_with_all = ["latency", "seconds"])]
    pub no_latency: bool,
    /// Evaluate on the I-th of N parts of the images, without latency, and write what `swinq merge` makes the
    /// results of.
    #[arg(long, value_name = "I/N", requires = "output", conflicts_with_all = ["latency", "seconds", "json", "report", "markdown", "predictions", "sensitivity", "tuning", "training", "program"])]
    pub shard: Option<Shard>,
    /// Part to write, with --shard.
    #[arg(short, long, value_name = "FILE", requires = "shard")]
    pub output: Option<PathBuf>,
    /// Write the results as JSON; `-` is standard output, and other text then goes to standard error.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Json), help_heading = "Report options")]
    pub json: Option<PathBuf>,
    /// Write a report as one self-contained HTML page.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Html), help_heading = "Report options")]
    pub report: Option<PathBuf>,
    /// Write the report as Markdown.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Markdown), help_heading = "Report options")]
    pub markdown: Option<PathBuf>,
    /// Write the class that each model, a classifier, predicts for each image as CSV.
    #[arg(long, value_name = "FILE.csv", value_parser = file(FileKind::Csv), help_heading = "Report options")]
    pub predictions: Option<PathBuf>,
    /// Leave out the quantization noise of each site, which the files show.
    #[arg(long, help_heading = "Report options")]
    pub no_sites: bool,
    /// Name of a model in everything that is printed and written (default: that of its file); KEY is a letter
    /// (A for the first model) or the model's path.
    #[arg(long, value_name = "KEY=NAME", help_heading = "Report options")]
    pub name: Vec<String>,
    /// JSON of `swinq sensitivity`, to show the effect of each layer in the report.
    #[arg(long, value_name = "FILE", help_heading = "Report options")]
    pub sensitivity: Option<PathBuf>,
    /// JSON of `swinq tune`, to show the recipes that were tried in the report.
    #[arg(long, value_name = "FILE", help_heading = "Report options")]
    pub tuning: Option<PathBuf>,
    /// Output folder of a `swinq qat` run, to show its curves and job in the report.
    #[arg(long, value_name = "FOLDER", requires = "report", help_heading = "Report options")]
    pub training: Option<PathBuf>,
    /// JSON of `swinq.torch.measure_gain(...).save` in Python, to show a whole program in INT8 and in float
    /// in the report.
    #[arg(long, value_name = "FILE", requires = "results", help_heading = "Report options")]
    pub program: Option<PathBuf>,
}

/// How a quantized model is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Simulate {
    /// The float forward with quantize-dequantize at each site.
    Fake,
    /// The engine on its scalar reference.
    Exact,
}

/// Height and width: `320x480`.
fn size(text: &str) -> Result<Size, String> {
    let side = |text: &str| text.parse().ok().filter(|&side: &usize| side > 0);
    let sides = text.split_once('x').and_then(|(height, width)| Some((side(height)?, side(width)?)));
    sides
        .map(|(height, width)| Size::new(height, width))
        .ok_or_else(|| "must be HEIGHTxWIDTH, as in 320x480".to_owned())
}

/// Arguments of `bench`.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct BenchArgs {
    /// Time one op instead of models.
    #[command(subcommand)]
    pub ladder: Option<LadderCommand>,
    /// Quantized checkpoints, float checkpoints or directories; the first is the baseline.
    #[arg(required_unless_present = "random_weights", value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    /// Also time random weights of the shape that --cfg gives, in float.
    #[arg(long, value_name = "SEED", requires = "cfg")]
    pub random_weights: Option<u64>,
    /// Batch sizes.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8,32", value_parser = batch)]
    pub batch_size: Vec<usize>,
    /// Sizes of the images, height and width in pixels (320x480); each is a row (default: each model's own
    /// size).
    #[arg(long, value_name = "HxW,HxW", value_delimiter = ',', value_parser = size)]
    pub size: Vec<Size>,
    /// Round the sides of --size up to multiples of N pixels, as `features --pad-to` pads images.
    #[arg(long, value_name = "N", value_parser = multiple, requires = "size")]
    pub pad_to: Option<usize>,
    /// The most pixels, height times width, of an image (0: what half of the free memory holds).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_pixels: usize,
    /// Callers that share a CPU engine when images per second of a stream are measured (0: as many as keep
    /// all threads busy).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    pub streams: usize,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly
    /// N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Seconds of measurement for each model and batch size, at most 3600.
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,
    /// Also print the time of each launch.
    #[arg(long)]
    pub profile: bool,
    /// Write the results as JSON; `-` is standard output, and other text then goes to standard error.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Json))]
    pub json: Option<PathBuf>,
}

/// Arguments of `merge`.
#[derive(Clone, Debug, Args)]
pub struct MergeArgs {
    /// All parts of one run of `calibrate --shard` or `eval --shard`, in any order.
    #[arg(required = true, value_name = "PART")]
    pub parts: Vec<PathBuf>,
    /// File to write: the quantized checkpoint, or the results of the evaluation as JSON.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Also write a report of the evaluation as one self-contained HTML page, without pictures of images.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Html))]
    pub report: Option<PathBuf>,
    /// Also write the report as Markdown.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Markdown))]
    pub markdown: Option<PathBuf>,
    /// Also write the class that each model predicts for each image as CSV.
    #[arg(long, value_name = "FILE.csv", value_parser = file(FileKind::Csv))]
    pub predictions: Option<PathBuf>,
}

/// Arguments of `compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// JSON of the first run.
    pub first: PathBuf,
    /// JSON of the second run.
    pub second: PathBuf,
    /// Fail with exit code 4 if the top-1 accuracy of a model drops by more than this, in percentage points.
    #[arg(long, value_name = "POINTS", value_parser = points, allow_negative_numbers = true)]
    pub max_drop: Option<f64>,
    /// Fail with exit code 4 if the SQNR of an output of a backbone drops by more than this.
    #[arg(long, value_name = "DB", value_parser = points, allow_negative_numbers = true)]
    pub max_sqnr_drop: Option<f64>,
    /// Fail with exit code 4 if the median latency of a model at a batch size rises by more than this.
    #[arg(long, value_name = "PERCENT", value_parser = points, allow_negative_numbers = true)]
    pub max_slowdown: Option<f64>,
}

/// A batch size of `eval --latency`.
fn timed_batch(text: &str) -> Result<usize, String> {
    batch(text).map_err(|problem| match text {
        "no" | "none" | "off" | "false" | "0" => format!("{problem}; --no-latency measures none"),
        _ => problem,
    })
}
