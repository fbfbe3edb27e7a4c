//! The command line.

mod measure;
mod model;
mod quantize;
mod search;
mod shared;

use clap::{Parser, Subcommand};

pub use measure::{BenchArgs, CompareArgs, EvalArgs, Simulate};
pub use model::{InspectArgs, PredictArgs, QuickstartArgs};
pub use quantize::{CalibrateArgs, QatArgs};
pub use search::{SensitivityArgs, TuneArgs};
pub use shared::{Backend, BackendArgs, CalibrationArgs, DataArgs, Family, FloatArgs, Residual, pairs};

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
