//! The program `swinq`: arguments and printing. The library of the same name does the work.

mod args;
mod backend_arg;
mod commands;
mod float_device;
mod interrupt;
mod model_arg;
mod names;
mod out;
mod paths;
mod profile;
mod progress;
mod shell;
mod site_table;
mod steps;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::install();
    let words: Vec<String> = std::env::args().collect();
    let outcome = match cli.command {
        Command::Calibrate(args) => commands::calibrate::run(&args, &words),
        Command::Qat(args) => commands::qat::run(&args),
        Command::Eval(args) => commands::eval::run(&args, &words),
        Command::Bench(args) => match &args.ladder {
            Some(ladder) => commands::ladder::run(ladder),
            None => commands::bench::run(&args),
        },
        Command::Sensitivity(args) => commands::sensitivity::run(&args),
        Command::Tune(args) => commands::tune::run(&args, &words),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Doctor => commands::doctor::run(),
        Command::Quickstart(args) => commands::quickstart::run(&args),
    };
    let code = match outcome.and_then(|()| out::check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", message(&error));
            ExitCode::from(exit_code(&error))
        }
    };
    interrupt::exit_code().unwrap_or(code)
}

/// 2 for a contradictory command line, 3 for a search that does not reach its goal, 1 for any other failure.
fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<args::Usage>() {
        2
    } else if error.is::<commands::tune::Unreached>() {
        3
    } else {
        1
    }
}

/// The error and its causes in one line. A text that another part of the line already contains is left out.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if cause.contains(&message) {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// Whether the error is that the reader of our output has ended (`swinq inspect M | head`). The program does
/// not treat that as a failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
