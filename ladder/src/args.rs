//! Arguments of the ladders.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::LadderError;
use crate::parse::{at_least_one, positive, threads};
use crate::shape::{self, Shape};

/// Upper limit on the main memory that a ladder may use, in bytes.
const MOST_BYTES: f64 = (16_u64 << 30) as f64;

/// The op to time, in place of models.
#[derive(Clone, Debug, Subcommand)]
pub enum LadderCommand {
    /// One matrix product on every rung, from a scalar loop to the tensor cores.
    Gemm(GemmArgs),
    /// Softmax of rows on every rung.
    Softmax(SoftmaxArgs),
    /// Elementwise ops: copy, scale and add, GELU, quantize, f16 add.
    Elementwise(ElementwiseArgs),
}

impl LadderCommand {
    /// The command's name.
    pub fn name(&self) -> &'static str {
        match self {
            LadderCommand::Gemm(_) => "gemm",
            LadderCommand::Softmax(_) => "softmax",
            LadderCommand::Elementwise(_) => "elementwise",
        }
    }

    /// The plot's title.
    pub fn title(&self) -> &'static str {
        match self {
            LadderCommand::Gemm(_) => "Matrix products",
            LadderCommand::Softmax(_) => "Softmax of rows",
            LadderCommand::Elementwise(_) => "Elementwise ops",
        }
    }

    /// The arguments that every ladder has.
    pub fn common(&self) -> &CommonArgs {
        match self {
            LadderCommand::Gemm(args) => &args.common,
            LadderCommand::Softmax(args) => &args.common,
            LadderCommand::Elementwise(args) => &args.common,
        }
    }

    /// Refuses sizes that exceed a limit of the kernels or of the memory.
    pub fn check_sizes(&self) -> Result<(), LadderError> {
        match self {
            LadderCommand::Gemm(args) => args.shapes(false).iter().try_for_each(|named| named.shape.check()),
            LadderCommand::Softmax(args) => {
                let (rows, columns) = (args.rows as f64, args.columns as f64);
                check_memory(&format!("{} rows of {}", args.rows, args.columns), 16.0 * rows * columns)
            }
            LadderCommand::Elementwise(args) => {
                check_memory(&format!("{} elements", args.elements), 20.0 * args.elements as f64)
            }
        }
    }
}

/// Refuses work that needs more main memory than the limit. `what` names the work in the message.
pub fn check_memory(what: &str, bytes: f64) -> Result<(), LadderError> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    Err(LadderError::Size(format!(
        "{what} take {:.1} GiB of memory; at most {:.0} GiB are used",
        gib(bytes),
        gib(MOST_BYTES)
    )))
}

/// The processors whose rungs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The CPU, and the GPU if there is one.
    Auto,
    /// The CPU.
    Cpu,
    /// The CPU and the GPU.
    Cuda,
}

/// Arguments of every ladder.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Processors whose rungs run. With auto, a GPU is used if there is one; with cuda, it must be there.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Ordinal of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Threads of the multithreaded CPU rungs (0: one per core).
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Seconds of measurement for each rung. At least 30 runs on a GPU, or 3 on a CPU, are timed.
    #[arg(long, default_value_t = 0.3, value_parser = positive)]
    pub seconds: f64,
    /// Compare the results of every rung, and time none.
    #[arg(long, conflicts_with_all = ["seconds", "plot"])]
    pub check: bool,
    /// Write the results as JSON; `-` is standard output, and other text then goes to standard error.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// A Swin whose matrix products are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SwinSize {
    /// Swin-T.
    Tiny,
    /// Swin-S.
    Small,
    /// Swin-B.
    Base,
    /// Swin-L.
    Large,
}

/// Arguments of `bench gemm`.
#[derive(Clone, Debug, Args)]
pub struct GemmArgs {
    /// Rows of the activations.
    #[arg(long, default_value_t = 1024, value_parser = at_least_one)]
    pub m: usize,
    /// Columns of the output.
    #[arg(long, default_value_t = 1024, value_parser = at_least_one)]
    pub n: usize,
    /// Columns of the activations.
    #[arg(long, default_value_t = 1024, value_parser = at_least_one)]
    pub k: usize,
    /// Run every distinct matrix product of a Swin for images of 224 x 224, one table row each.
    #[arg(long, value_enum, conflicts_with_all = ["m", "n", "k", "sweep", "plot"])]
    pub swin: Option<SwinSize>,
    /// Batch size of the Swin (default 32).
    #[arg(long, value_parser = at_least_one, requires = "swin")]
    pub batch: Option<usize>,
    /// Run square products; sizes start at 128 and double.
    #[arg(long, conflicts_with_all = ["m", "n", "k"])]
    pub sweep: bool,
    /// Largest size of the sweep (default 8192 with a GPU, 1024 without).
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "sweep")]
    pub largest: Option<usize>,
    /// Number of swinq's kernels to measure for each product, the most promising first (default all).
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub tiles: Option<usize>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl GemmArgs {
    /// The products to run, on a machine with or without a GPU.
    pub fn shapes(&self, gpu: bool) -> Vec<shape::NamedShape> {
        if let Some(swin) = self.swin {
            return shape::of_swin(swin, self.batch.unwrap_or(32));
        }
        if self.sweep {
            let most = self.largest.unwrap_or(if gpu { 8192 } else { 1024 });
            let sizes = (7..usize::BITS).map(|power| 1 << power);
            // The first size always runs.
            let sizes = sizes.take_while(|size| *size <= most.max(128));
            return sizes.map(|size| shape::NamedShape::plain(Shape { m: size, n: size, k: size })).collect();
        }
        vec![shape::NamedShape::plain(Shape { m: self.m, n: self.n, k: self.k })]
    }
}

/// Arguments of `bench softmax`.
#[derive(Clone, Debug, Args)]
pub struct SoftmaxArgs {
    /// Rows.
    #[arg(long, default_value_t = 524_288, value_parser = at_least_one)]
    pub rows: usize,
    /// Columns, which are the values of a row. A window of 7 x 7 has 49 keys.
    #[arg(long, default_value_t = 49, value_parser = at_least_one)]
    pub columns: usize,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Arguments of `bench elementwise`.
#[derive(Clone, Debug, Args)]
pub struct ElementwiseArgs {
    /// Elements.
    #[arg(long, default_value_t = 1 << 26, value_parser = at_least_one)]
    pub elements: usize,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        assert!(check_memory("3 rows", 1e9).is_ok());
        let error = check_memory("9 rows", 1e12).unwrap_err();
        assert_eq!(error.to_string(), "9 rows take 931.3 GiB of memory; at most 16 GiB are used");
    }
}
