//! Arguments of the commands that run or show one model, the machine or the program itself.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use swinq::{DEFAULT_BATCH, FileKind, Sizing};
use swinq_ladder::parse::{at_least_one, batch};

use super::shared::file;
use super::{BackendArgs, FloatArgs, PaddingArgs, Threads};

/// Arguments of `predict`.
#[derive(Clone, Debug, Args)]
pub struct PredictArgs {
    /// Quantized checkpoint, float checkpoint or directory.
    pub model: PathBuf,
    /// Image files, folders for the images directly in them, or `-` for a list of paths on standard input.
    /// The command goes on after an image that cannot be read, and fails at the end.
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    #[command(flatten)]
    pub float: FloatArgs,
    /// Classes to list for each image.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub topk: usize,
    /// List all classes with at least this score, 0 to 1, in the place of --topk; for multi-label
    /// classifiers, whose classes have a sigmoid each.
    #[arg(long, value_name = "P", value_parser = share, conflicts_with = "topk")]
    pub threshold: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the logits, f32 `[images, classes]`, under the key `logits`.
    #[arg(long, value_name = "FILE.safetensors", value_parser = file(FileKind::Safetensors))]
    pub logits: Option<PathBuf>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly
    /// N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Arguments of `features`.
#[derive(Clone, Debug, Args)]
pub struct FeaturesArgs {
    /// Backbone: quantized checkpoint, float checkpoint or directory.
    pub model: PathBuf,
    /// Image files, folders for the images directly in them, or `-` for a list of paths on standard input.
    /// The command goes on after an image that cannot be read, and fails at the end.
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// File to write: the tensors `I.stageK` of image I, counted from 0, and stage K, f32
    /// `[channels, height, width]`.
    #[arg(short = 'o', long, visible_alias = "output", value_name = "FILE.safetensors", value_parser = file(FileKind::Safetensors))]
    pub features: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    /// Size of the images: their own, this height and width, or in proportion so that the shorter side has
    /// 800 pixels and the longer one at most 1333.
    #[arg(long, value_name = "keep|HxW|short:800,long:1333", default_value = "keep")]
    pub size: Sizing,
    #[command(flatten)]
    pub padding: PaddingArgs,
    /// The most images of one size that run together; it changes no value but with --pad-batch.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_BATCH, value_parser = batch)]
    pub batch_size: usize,
    /// The most pixels, height times width, of an image (0: what half of the free memory holds). Images up to
    /// the size for which the network was built are always taken.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_pixels: usize,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly
    /// N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
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
    /// The batch size whose plan is listed.
    #[arg(long, default_value_t = 32, value_parser = batch, help_heading = "CUDA options")]
    pub batch_size: usize,
    /// List every site, one per line, as the recipe resolves it.
    #[arg(long)]
    pub sites: bool,
    /// Print everything as JSON: architecture, preprocessing, origin, recipe and sites; with --plan also the
    /// launches.
    #[arg(long, conflicts_with = "sites")]
    pub json: bool,
}

/// Arguments of `quickstart`.
#[derive(Clone, Debug, Args)]
pub struct QuickstartArgs {
    /// Folder to write the sample, the checkpoint and the report to.
    #[arg(long, value_name = "FOLDER", default_value = "swinq-quickstart")]
    pub out: PathBuf,
}

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `completions`.
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages `swinq.1`, `swinq-eval.1` and so on.
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}
