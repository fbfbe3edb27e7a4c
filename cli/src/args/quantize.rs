//! Arguments of the commands that write a checkpoint from images: `calibrate` and `qat`.

use std::path::PathBuf;

use clap::Args;
use swinq::model::{Calibrator, Ptq};
use swinq::{FloatDevice, Shard, Sizing, Split};
use swinq_ladder::parse::{at_least_one, batch, threads};

use super::{FloatArgs, PaddingArgs};

/// Arguments of `calibrate`.
#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// Float checkpoint (.pth, .pt, .bin, .pkl, .safetensors), or a Hugging Face or timm directory.
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
    /// Size of the images of a backbone: their own (the default), this height and width, or in proportion so
    /// that the shorter side has 800 pixels and the longer one at most 1333. Images of a classifier have the
    /// size that it was trained with.
    #[arg(long, value_name = "keep|HxW|short:800,long:1333")]
    pub size: Option<Sizing>,
    #[command(flatten)]
    pub padding: PaddingArgs,
    /// Recipe: default, mode1, mode2, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    pub recipe: String,
    /// FasterTransformer's INT8 mode; short for --recipe mode1 or mode2.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2), conflicts_with = "recipe")]
    pub int8_mode: Option<u8>,
    /// Calibrator of every activation; overrides the recipe: max, percentile, percentile:P, mse or entropy.
    #[arg(long)]
    pub calibrator: Option<Calibrator>,
    /// How the numbers of every layer are found; overrides the recipe: basic (calibrators choose the ranges),
    /// refined (layers are rewritten, and ranges searched, by the error of each layer's output), which the
    /// recipe `default` states, or reconstruct (refined, and the codes of each weight are chosen by that
    /// error; minutes).
    #[arg(long, value_name = "basic|refined|reconstruct", conflicts_with = "ft_amax")]
    pub ptq: Option<Ptq>,
    /// Sites to leave in float; overrides the recipe (a glob such as '**.fc2.*', 're:' and a regular
    /// expression, or the name of a layer or block as `sensitivity` prints it).
    #[arg(long, value_name = "PATTERN|NAME")]
    pub disable: Vec<String>,
    /// Take ranges from a FasterTransformer `*_calib.pth` instead of calibrating.
    #[arg(long, value_name = "FILE", conflicts_with = "data_path")]
    pub ft_amax: Option<PathBuf>,
    /// Batches to calibrate on.
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    pub batches: usize,
    /// Images per batch.
    #[arg(long, default_value_t = 8, value_parser = batch)]
    pub batch_size: usize,
    /// Seed of the sample of images.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of corrupt images to leave out; one more is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_corrupt: usize,
    /// Threads of the decoder (0: one per core).
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Device of the float forward; cuda needs a build with candle's CUDA (`--features cuda`).
    #[arg(long, value_name = "cpu|cuda[:N]", default_value_t, conflicts_with = "ft_amax")]
    pub device: FloatDevice,
    /// Calibrate on the I-th of N parts of the images, and write what `swinq merge` makes the checkpoint of.
    #[arg(long, value_name = "I/N", conflicts_with = "ft_amax")]
    pub shard: Option<Shard>,
    /// Quantized checkpoint to write; with --shard, the part.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Arguments of `qat`.
#[derive(Clone, Debug, Args)]
pub struct QatArgs {
    /// Job file, or a shipped job: default, mode1_kl, w4, finetune or backbone.
    pub job: String,
    /// Overrides of the job, as `KEY VALUE` pairs up to the next option (optimizer.lr 1e-4).
    #[arg(long, value_names = ["KEY", "VALUE"], num_args = 2.., allow_negative_numbers = true, action = clap::ArgAction::Append)]
    pub opts: Vec<String>,
    /// Continue from the latest checkpoint in the job's output folder.
    #[arg(long)]
    pub resume: bool,
    /// Start anew in an output folder that has checkpoints; they are removed.
    #[arg(long, conflicts_with = "resume")]
    pub restart: bool,
    /// Check everything, print the effective job and schedule, and stop before the first iteration.
    #[arg(long)]
    pub dry_run: bool,
    /// Train on several devices of this machine, with one process for each: numbers of GPUs (`0,1`), or `cpu`
    /// for each process (`cpu,cpu`). Every process trains on `batch_size` images.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<Device>,
    /// With several processes: seconds without a message after which a process is taken to hang.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// A device of `--devices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Cores of the CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(usize),
}

impl Device {
    /// The number of a GPU.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Device::Cpu => None,
            Device::Gpu(number) => Some(number),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Gpu(number) => write!(f, "{number}"),
        }
    }
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "cpu" => Ok(Device::Cpu),
            _ => text
                .parse()
                .map(Device::Gpu)
                .map_err(|_| "a device is `cpu` or the number of a GPU".to_owned()),
        }
    }
}
