//! `swinq quickstart`: runs the commands that lead from the sample's trained float Swin to a report, and
//! prints them.

use std::path::{MAIN_SEPARATOR, Path};

use anyhow::Context;
use clap::Parser;

use crate::args::{Cli, Command, QuickstartArgs};
use crate::commands::{calibrate, eval};
use crate::out::info;
use crate::shell;

/// Runs the command.
pub fn run(args: &QuickstartArgs) -> anyhow::Result<()> {
    let sample = args.out.join("sample");
    std::fs::create_dir_all(&sample).with_context(|| sample.display().to_string())?;
    for (name, content) in swinq::SAMPLE {
        swinq::model::atomic::write_atomic(&sample.join(name), |out| out.write_all(content))?;
    }
    info!("A Swin trained on CIFAR-10 (0.93 M parameters), 256 training and 1,000 validation images are in");
    // Words of commands, which the results keep: the same on every system.
    let word = |path: &Path| path.display().to_string().replace(MAIN_SEPARATOR, "/");
    let at = |folder: &Path, name: &str| word(&folder.join(name));
    let (float, cfg, data) = (at(&sample, "model.safetensors"), at(&sample, "cfg.yaml"), word(&sample));
    info!("{data}.\n");
    let int8 = at(&args.out, "int8.safetensors");
    let (json, report) = (at(&args.out, "results.json"), at(&args.out, "report.html"));
    info!("1. Find the activation ranges on training images and write an INT8 checkpoint:\n");
    let batches = ["--batches", "32", "--batch-size", "8"];
    let command =
        [&["swinq", "calibrate", &float, "--cfg", &cfg, "--data-path", &data], &batches[..], &["-o", &int8]];
    execute(&command.concat())?;
    info!("\n2. Run both on the validation images: accuracy, agreement, speed, and a report:\n");
    execute(&[
        "swinq",
        "eval",
        &float,
        &int8,
        "--cfg",
        &cfg,
        "--data-path",
        &data,
        "--name",
        "A=float",
        "--name",
        "B=default",
        "--json",
        &json,
        "--report",
        &report,
    ])?;
    info!(
        "\nOpen {report} in a browser; `swinq inspect {int8}` lists the INT8 layers and the rules that decided them."
    );
    Ok(())
}

/// Prints a command and runs it.
fn execute(command: &[&str]) -> anyhow::Result<()> {
    info!("$ {}", shell::join(command));
    let words: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    match Cli::try_parse_from(command)?.command {
        Command::Calibrate(args) => calibrate::run(&args, &words),
        Command::Eval(args) => eval::run(&args, &words),
        other => unreachable!("the quickstart runs no {other:?}"),
    }
}
