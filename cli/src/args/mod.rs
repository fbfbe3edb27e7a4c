//! The command line.

mod examples;
mod explain;
mod export;
mod measure;
mod messages;
mod model;
mod quantize;
mod search;
mod shared;

use clap::{Parser, Subcommand};

pub use explain::exit;
pub use export::ExportArgs;
pub use measure::{BenchArgs, CompareArgs, EvalArgs, MergeArgs, Simulate};
pub use messages::{MessageArgs, color_of};
pub use model::{
    CompletionsArgs, DoctorArgs, FeaturesArgs, InspectArgs, ManArgs, PredictArgs, QuickstartArgs,
};
pub use quantize::{CalibrateArgs, Device, QatArgs};
pub use search::{SensitivityArgs, TuneArgs};
pub use shared::{
    Backend, BackendArgs, CalibrationArgs, DataArgs, Family, FloatArgs, NetworkTask, PaddingArgs, Residual,
    Threads, pairs,
};

/// INT8 quantization toolkit and engine for Swin Transformers: classifiers and backbones.
#[derive(Debug, Parser)]
#[command(name = "swinq", version, about, arg_required_else_help = true, max_term_width = 100, after_help = examples::SWINQ)]
pub struct Cli {
    #[command(flatten)]
    pub messages: MessageArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find activation ranges on real images and write an INT8 checkpoint.
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(CalibrateArgs),
    /// Train a calibrated checkpoint to regain the float model's accuracy, or train in float.
    #[command(after_help = examples::QAT)]
    Qat(QatArgs),
    /// Measure accuracy and speed of one or more models on images; the first is the baseline.
    #[command(after_help = examples::EVAL)]
    Eval(EvalArgs),
    /// Join the parts that `calibrate --shard` or `eval --shard` wrote, on any machines.
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),
    /// Measure latency and throughput of one or more models, in turn in one run.
    #[command(after_help = examples::BENCH)]
    Bench(BenchArgs),
    /// Measure which layers and sites cost accuracy when they are quantized.
    #[command(after_help = examples::SENSITIVITY)]
    Sensitivity(SensitivityArgs),
    /// Search the fastest recipe that loses at most a given accuracy, and write its checkpoint.
    #[command(after_help = examples::TUNE)]
    Tune(TuneArgs),
    /// Classify images.
    #[command(after_help = examples::PREDICT)]
    Predict(PredictArgs),
    /// Write the feature maps of images, of any size, by the backbone of a larger model.
    #[command(after_help = examples::FEATURES)]
    Features(FeaturesArgs),
    /// Write a model as an ONNX file for ONNX Runtime, OpenVINO or TensorRT.
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Show a model: its architecture, the rules of its recipe, and the precision and range of each site.
    #[command(after_help = examples::INSPECT)]
    Inspect(InspectArgs),
    /// Show the differences between the JSON files of two runs.
    #[command(after_help = examples::COMPARE)]
    Compare(CompareArgs),
    /// Show the processor features, CUDA libraries and GPUs, and which of them swinq will use.
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// Calibrate and evaluate the bundled sample, from start to report.
    #[command(after_help = examples::QUICKSTART)]
    Quickstart(QuickstartArgs),
    /// Print a completion script for a shell.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a folder.
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
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
    use clap::{Command, CommandFactory};

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The help of `command`, `-h` and `--help`.
    fn helps(mut command: Command) -> [String; 2] {
        [command.render_help().to_string(), command.render_long_help().to_string()]
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = command.get_name();
            let [help, _] = helps(command.clone());
            let (_, examples) =
                help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name} has no examples"));
            let joined = examples.replace("\\\n", " ");
            let lines: Vec<&str> =
                joined.lines().map(str::trim).filter(|l| l.starts_with("swinq ")).collect();
            assert!(!lines.is_empty(), "{name} has no example");
            for line in lines {
                let words = line.split(['>', '<', '|']).next().unwrap_or_default().split_whitespace();
                let words = words.map(|word| word.trim_matches('\''));
                let parsed = Cli::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn help_fits_100_columns_and_groups_the_cuda_options() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands().cloned() {
            let name = command.get_name().to_owned();
            let has_gemm = command.get_arguments().any(|a| a.get_long() == Some("gemm"));
            for help in helps(command) {
                assert_eq!(help.contains("CUDA options:\n"), has_gemm, "{name}");
                let long = help.lines().find(|line| line.chars().count() > 100);
                assert_eq!(long, None, "the help of {name} is too wide");
            }
        }
    }
}
