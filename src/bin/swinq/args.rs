//! The command line.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use swinq::int8_runtime::cuda::{Autotune, Gemm};
use swinq::model::{Calibrator, Ptq};
use swinq::{Dialect, FloatDevice, Images, Recipe, Split};
use swinq_ladder::LadderCommand;
use swinq_ladder::parse::{at_least_one, positive};

/// INT8 quantization toolkit and engine for Swin Transformer classifiers.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find activation ranges on real images and write an INT8 checkpoint.
    Calibrate(CalibrateArgs),
    /// Train a calibrated checkpoint to regain the float model's accuracy, or train in float.
    Qat(QatArgs),
    /// Measure accuracy and speed of one or more models on labelled images; the first is the baseline.
    Eval(EvalArgs),
    /// Measure latency and throughput of one or more models, in turn in one run.
    Bench(BenchArgs),
    /// Measure which layers and sites cost accuracy when they are quantized.
    Sensitivity(SensitivityArgs),
    /// Search the fastest recipe that loses at most a given accuracy, and write its checkpoint.
    Tune(TuneArgs),
    /// Classify images.
    Predict(PredictArgs),
    /// Show the precision and scale of each site, and the rule that decided it.
    Inspect(InspectArgs),
    /// Show the differences between the JSON files of two runs.
    Compare(CompareArgs),
    /// Show the processor features, CUDA libraries and GPUs, and which of them swinq will use.
    Doctor,
    /// Calibrate and evaluate the bundled sample, from start to report.
    Quickstart(QuickstartArgs),
}

/// The error for a command line that parses but is contradictory; the program ends with exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Arguments for reading a float checkpoint.
#[derive(Clone, Debug, Default, Args)]
pub struct FloatArgs {
    /// Configuration of a bare float checkpoint: a shipped name (swin_tiny_patch4_window7_224) or a YAML file in
    /// Microsoft's keys.
    #[arg(long, value_name = "NAME|FILE")]
    pub cfg: Option<String>,
    /// Overrides of the configuration, as `KEY VALUE` pairs (MODEL.NUM_CLASSES 10).
    #[arg(long, value_names = ["KEY", "VALUE"], num_args = 2, action = clap::ArgAction::Append)]
    pub opts: Vec<String>,
    /// Naming convention of the tensors (default: detected).
    #[arg(long, value_name = "microsoft|timm|hf|torchvision|ft")]
    pub dialect: Option<Dialect>,
    /// Preprocessing (default: from the configuration or directory).
    #[arg(long, value_enum)]
    pub transform: Option<Family>,
}

/// The family whose evaluation preprocessing is used.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Family {
    /// Microsoft: shorter side to int(256 / 224 * size), center crop (direct with TEST.CROP False).
    Ms,
    /// timm: shorter side to floor(size / crop_pct), center crop.
    Timm,
    /// torchvision: the weights' own resize, center crop.
    Torchvision,
    /// Hugging Face: direct resize.
    Hf,
}

impl FloatArgs {
    /// Refuses arguments for reading a float checkpoint if no model is one: a quantized checkpoint contains
    /// its own configuration.
    pub fn check_used(&self, any_float: bool) -> Result<(), Usage> {
        let given =
            self.cfg.is_some() || !self.opts.is_empty() || self.dialect.is_some() || self.transform.is_some();
        if given && !any_float {
            let text = "--cfg, --opts, --dialect and --transform apply to float checkpoints only, and every model \
                        given is quantized; leave these options out";
            return Err(Usage(text.to_owned()));
        }
        Ok(())
    }
}

/// Arguments that select the images.
#[derive(Clone, Debug, Args)]
pub struct DataArgs {
    /// ImageFolder root, Swin zip layout root, list file, or folder of images.
    #[arg(long, value_name = "PATH")]
    pub data_path: PathBuf,
    /// Number of corrupt images to leave out; one more is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_corrupt: usize,
}

/// Arguments of `calibrate`.
#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// Float checkpoint (.pth, .pt, .bin, .safetensors), or a Hugging Face or timm directory.
    #[arg(required_unless_present = "random_weights")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    /// Random weights of the shape that --cfg gives, instead of a checkpoint.
    #[arg(long, value_name = "SEED", requires = "cfg", conflicts_with = "model")]
    pub random_weights: Option<u64>,
    /// Images to calibrate on: ImageFolder root, Swin zip layout root, list file, or folder of images.
    #[arg(long, value_name = "PATH", required_unless_present = "ft_amax")]
    pub data_path: Option<PathBuf>,
    /// Part of the data set to draw from.
    #[arg(long, default_value = "train")]
    pub split: Split,
    /// Recipe: default, mode1, mode2, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    pub recipe: String,
    /// FasterTransformer's INT8 mode; short for --recipe mode1 or mode2.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2), conflicts_with = "recipe")]
    pub int8_mode: Option<u8>,
    /// Calibrator of every activation; overrides the recipe: max, percentile, percentile:P, mse or entropy.
    #[arg(long)]
    pub calibrator: Option<Calibrator>,
    /// How the numbers of every layer are found; overrides the recipe: basic (calibrators choose the ranges), refined
    /// (layers are rewritten, and ranges searched, by the error of each layer's output), which the recipe `default`
    /// states, or reconstruct (refined, and the codes of each weight are chosen by that error; minutes).
    #[arg(long, value_name = "basic|refined|reconstruct", conflicts_with = "ft_amax")]
    pub ptq: Option<Ptq>,
    /// Sites to leave in float; overrides the recipe (a glob such as '**.fc2.*', or 're:' and a regular expression).
    #[arg(long, value_name = "PATTERN")]
    pub disable: Vec<String>,
    /// Take ranges from a FasterTransformer `*_calib.pth` instead of calibrating.
    #[arg(long, value_name = "FILE", conflicts_with = "data_path")]
    pub ft_amax: Option<PathBuf>,
    /// Batches to calibrate on.
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    pub batches: usize,
    /// Images per batch.
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Seed of the sample of images.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of corrupt images to leave out; one more is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_corrupt: usize,
    /// Threads of the decoder (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Device of the float forward; cuda needs a build with candle's CUDA (`--features cuda`).
    #[arg(long, value_name = "cpu|cuda[:N]", default_value_t, conflicts_with = "ft_amax")]
    pub device: FloatDevice,
    /// Quantized checkpoint to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Arguments of `qat`.
#[derive(Clone, Debug, Args)]
pub struct QatArgs {
    /// Job file, or a shipped job: default, mode1_kl, w4 or finetune.
    pub job: String,
    /// Overrides of the job, as `KEY VALUE` pairs (optimizer.lr 1e-4).
    #[arg(long, value_names = ["KEY", "VALUE"], num_args = 2, action = clap::ArgAction::Append)]
    pub opts: Vec<String>,
    /// Continue from the latest checkpoint in the job's output folder.
    #[arg(long)]
    pub resume: bool,
    /// Check everything, print the effective job and schedule, and stop before the first iteration.
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `eval`.
#[derive(Clone, Debug, Args)]
pub struct EvalArgs {
    /// Quantized checkpoints, float checkpoints or directories; the first is the baseline.
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Part of the data set.
    #[arg(long, default_value = "val")]
    pub split: Split,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Run quantized models as float with fake quantization, or (`exact`) on the engine's scalar integer reference.
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
    /// Images per batch.
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Threads (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Batch sizes whose latency is measured after the accuracy.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8", value_parser = at_least_one)]
    pub latency: Vec<usize>,
    /// Do not measure latency.
    #[arg(long, conflicts_with = "latency")]
    pub no_latency: bool,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report as one self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the report as Markdown.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Short name of a model in tables and reports; KEY is a letter (A for the first model) or the model's path.
    #[arg(long, value_name = "KEY=NAME")]
    pub name: Vec<String>,
    /// JSON of `swinq sensitivity`, to show the effect of each layer in the report.
    #[arg(long, value_name = "FILE")]
    pub sensitivity: Option<PathBuf>,
    /// JSON of `swinq tune`, to show the recipes that were tried in the report.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Output folder of a `swinq qat` run, to show its curves and job in the report.
    #[arg(long, value_name = "FOLDER")]
    pub training: Option<PathBuf>,
}

/// Arguments that select the backend and its options.
#[derive(Clone, Debug, Args)]
pub struct BackendArgs {
    /// Backend of the models: the GPU if there is one, the CPU engine, or the CUDA engine.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// CUDA: ordinal of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// CUDA: type of the residual stream; with f32, INT8 layers give the same bits as on the CPU.
    #[arg(long, value_enum, default_value_t = Residual::F16)]
    pub residual: Residual,
    /// CUDA: implementation of the GEMMs (own, cublaslt, or the faster of the two); several values give one row each.
    #[arg(long, value_name = "own|cublaslt|auto", value_delimiter = ',', default_value = "auto")]
    pub gemm: Vec<Gemm>,
    /// CUDA: how kernels are chosen: by the program's tables, by a performance model of the GPU, or by measuring a
    /// few or all candidates.
    #[arg(long, value_name = "table|off|quick|full", default_value = "table")]
    pub autotune: Autotune,
    /// CUDA: mark inferences and launches for a profiler (NVTX). Launches are then issued one by one, which is slower.
    #[arg(long)]
    pub nvtx: bool,
}

/// The backend that runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The GPU if one can be used, else the CPU.
    Auto,
    /// The CPU engine.
    Cpu,
    /// The CUDA engine.
    Cuda,
}

/// Elements of the residual stream on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Residual {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// How a quantized model is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Simulate {
    /// The float forward with quantize-dequantize at each site.
    Fake,
    /// The engine on its scalar reference.
    Exact,
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
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8,32", value_parser = at_least_one)]
    pub batch_size: Vec<usize>,
    /// Threads (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Seconds of measurement for each model and batch size.
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    pub seconds: f64,
    /// Also print the time of each launch.
    #[arg(long)]
    pub profile: bool,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `sensitivity`.
#[derive(Clone, Debug, Args)]
#[command(after_help = SENSITIVITY_EXAMPLES)]
pub struct SensitivityArgs {
    /// Float checkpoint (.pth, .pt, .bin, .safetensors), or a Hugging Face or timm directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Part of the data set on which effects are measured.
    #[arg(long, default_value = "val")]
    pub split: Split,
    /// Number of images on which effects are measured: a seeded sample, spread over the classes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub images: usize,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Threads (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Layers to print, from the most sensitive.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// File to write: the results as JSON. Finished measurements are kept beside it, in FILE.cache.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

const SENSITIVITY_EXAMPLES: &str = "\
Examples:
  swinq sensitivity swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet -o sensitivity.json
  swinq sensitivity swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet --recipe mode1 \\
      --images 256 -o mode1.json

A run that was interrupted continues if it is started again with the same arguments.";

/// Arguments of `tune`.
#[derive(Clone, Debug, Args)]
#[command(after_help = TUNE_EXAMPLES)]
pub struct TuneArgs {
    /// Float checkpoint (.pth, .pt, .bin, .safetensors), or a Hugging Face or timm directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Part of the data set for search and verification.
    #[arg(long, default_value = "val")]
    pub split: Split,
    /// Number of images for search and verification, one half each: a seeded sample, spread over the classes
    /// (default: all).
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub images: Option<usize>,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// The largest drop of top-1 accuracy, in percentage points.
    #[arg(long, value_name = "POINTS", default_value_t = 0.2, value_parser = points)]
    pub max_drop: f64,
    /// The least speedup over the float model on the same engine.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub min_speedup: Option<f64>,
    /// Minutes that the search may take, without calibration and verification.
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    pub budget: Option<f64>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Images per inference whose latency counts; at most 8 on the CPU.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Threads (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Table of measured latencies: read if it exists, and extended (default: OUTPUT.latencies.json).
    #[arg(long, value_name = "FILE")]
    pub latencies: Option<PathBuf>,
    /// Write a report of the search, and of float and the tuned model on the verification images, as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Quantized checkpoint to write. Beside it are written OUTPUT.yaml (the recipe), OUTPUT.json (all candidates and
    /// the front) and OUTPUT.cache (finished measurements).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

const TUNE_EXAMPLES: &str = "\
Examples:
  swinq tune swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet --max-drop 0.2 -o tuned.safetensors
  swinq tune swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet --recipe mode1 --images 4000 \\
      --min-speedup 2 --budget 30 -o tuned.safetensors

A run that was interrupted continues if it is started again with the same arguments. The exit code is 3 if the goal
is not reached, or is refuted by the verification.";

/// Arguments of a calibration by `sensitivity` and `tune`.
#[derive(Clone, Debug, Args)]
pub struct CalibrationArgs {
    /// Recipe to measure, or to start the search from: default, mode1, mode2, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    pub recipe: String,
    /// How the numbers of every layer are found; overrides the recipe: basic or refined.
    #[arg(long, value_name = "basic|refined")]
    pub ptq: Option<Ptq>,
    /// Part of the data set on which ranges are calibrated.
    #[arg(long, default_value = "train")]
    pub calibration_split: Split,
    /// Number of images on which ranges are calibrated.
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = at_least_one)]
    pub calibration_images: usize,
    /// Seed of the samples of images.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl CalibrationArgs {
    /// The recipe.
    pub fn recipe(&self) -> Result<Recipe, swinq::Error> {
        let recipe = swinq::load_recipe(&self.recipe)?;
        Ok(self.ptq.into_iter().fold(recipe, Recipe::with_ptq))
    }

    /// The images of the data set `data` on which ranges are calibrated.
    pub fn images(&self, data: &Path) -> Result<Images, swinq::Error> {
        Images::open(data, self.calibration_split, Some(self.calibration_images), self.seed)
    }
}

/// Arguments of `predict`.
#[derive(Clone, Debug, Args)]
pub struct PredictArgs {
    /// Quantized checkpoint, float checkpoint or directory.
    pub model: PathBuf,
    /// Images.
    #[arg(required = true)]
    pub images: Vec<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    /// Classes to list for each image.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub topk: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the logits, f32 `[images, classes]`, under the key `logits`.
    #[arg(long, value_name = "FILE.safetensors")]
    pub logits: Option<PathBuf>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Threads (0: one per core).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

/// Arguments of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Quantized checkpoint, float checkpoint or directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    /// List the launches of the engine.
    #[arg(long)]
    pub plan: bool,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// CUDA: the batch size whose plan is listed.
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub batch_size: usize,
    /// List every site, one per line, as the recipe resolves it.
    #[arg(long)]
    pub sites: bool,
}

/// Arguments of `compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// JSON of the first run.
    pub first: PathBuf,
    /// JSON of the second run.
    pub second: PathBuf,
}

/// Arguments of `quickstart`.
#[derive(Clone, Debug, Args)]
pub struct QuickstartArgs {
    /// Folder to write the sample, the checkpoint and the report to.
    #[arg(long, value_name = "FOLDER", default_value = "swinq-quickstart")]
    pub out: PathBuf,
}

/// Percentage points: 0 or more.
fn points(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x >= 0.0 && f64::is_finite(x) => Ok(x),
        _ => Err("must be 0 or a positive number".to_owned()),
    }
}

/// The words after `--opts` as pairs of key and value. Their number is even, because clap takes two at a
/// time.
pub fn pairs(words: &[String]) -> Vec<(String, String)> {
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
