//! Arguments of the commands that show or run one model: `predict`, `inspect` and `quickstart`.

use std::path::PathBuf;

use clap::Args;
use swinq_ladder::parse::at_least_one;

use super::{BackendArgs, FloatArgs};

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

/// Arguments of `quickstart`.
#[derive(Clone, Debug, Args)]
pub struct QuickstartArgs {
    /// Folder to write the sample, the checkpoint and the report to.
    #[arg(long, value_name = "FOLDER", default_value = "swinq-quickstart")]
    pub out: PathBuf,
}
