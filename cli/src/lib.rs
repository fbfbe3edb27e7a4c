//! The program `swinq`: arguments and printing. The library of the same name does the work.
//!
//! [`run`] is the whole program. The binary `swinq` and the Python package call it.

mod args;
mod backend_arg;
mod commands;
mod float_device;
mod image_paths;
mod images_arg;
mod interrupt;
mod json_arg;
mod model_arg;
mod names;
mod out;
mod paths;
mod profile;
mod progress;
mod shell;
mod site_table;
mod steps;
mod tables;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};

/// Gives the loops of a calibration as many threads as its operations have, unless the environment states a
/// number.
fn use_default_threads() {
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // It fails if the loops have threads already, which then serve.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(swinq::float::default_threads()).build_global();
    }
}

/// Runs the program with the command line `arguments`, whose first is the program's name, and returns the
/// exit code of the process. Ends the process for a mistake in the command line, and after help.
pub fn run(arguments: Vec<OsString>) -> u8 {
    let start = std::time::Instant::now();
    swinq::kernels::memory::keep_freed_memory();
    let cli = parse(&arguments);
    out::set_level(cli.messages.level());
    if let Some(bytes) = cli.messages.decode_memory {
        swinq::data::set_decode_memory(bytes);
    }
    interrupt::install();
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let skip = skip_corrupt(&cli.command);
    if matches!(cli.command, Command::Calibrate(_) | Command::Sensitivity(_) | Command::Tune(_)) {
        use_default_threads();
    }
    let outcome = match cli.command {
        Command::Calibrate(args) => commands::calibrate::run(&args, &words),
        Command::Qat(args) => commands::qat::run(&args),
        Command::Eval(args) => commands::eval::run(&args, &words),
        Command::Merge(args) => commands::merge::run(&args, &words),
        Command::Bench(args) => match &args.ladder {
            Some(ladder) => commands::ladder::run(ladder),
            None => commands::bench::run(&args),
        },
        Command::Sensitivity(args) => commands::sensitivity::run(&args),
        Command::Tune(args) => commands::tune::run(&args, &words),
        Command::Features(args) => commands::features::run(&args),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Completions(args) => commands::manual::completions(&args),
        Command::Man(args) => commands::manual::man(&args),
    };
    let peak = swinq::eval::peak_memory_bytes()
        .map_or(String::new(), |bytes| format!(", peak memory {}", swinq::eval::mebibytes(bytes)));
    out::detail!("{:.3} s in all{peak}", start.elapsed().as_secs_f64());
    let code = match outcome.and_then(|()| out::check()) {
        Ok(()) => 0,
        Err(error) if is_closed_pipe(&error) => 0,
        Err(error) => {
            let remedy = skip.filter(|_| swinq::is_of_corrupt_images(error.as_ref()));
            out::error(format!("{}{}", message(&error), remedy.unwrap_or_default()));
            exit_code(&error)
        }
    };
    interrupt::exit_code().unwrap_or(code)
}

/// How `command` is told to leave out corrupt images; `None` for a command that cannot.
fn skip_corrupt(command: &Command) -> Option<&'static str> {
    match command {
        Command::Calibrate(_) | Command::Eval(_) | Command::Sensitivity(_) | Command::Tune(_) => {
            Some("; --skip-corrupt N leaves out up to N such images")
        }
        Command::Qat(_) => Some("; data.skip_corrupt in the job leaves out that many such images"),
        _ => None,
    }
}

/// Parses the command line. Ends the process for a mistake, and after help.
fn parse(words: &[OsString]) -> Cli {
    let color = args::color_of(words);
    match color {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    let mut command = Cli::command().color(color);
    let matches = command.try_get_matches_from_mut(words).unwrap_or_else(|error| args::exit(error, words));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| args::exit(error.format(&mut command), words))
}

/// 2 for a contradictory command line, 3 for a search that does not reach its goal, 4 for a
/// comparison that exceeds a limit, 1 for any other failure.
fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<args::Usage>() {
        2
    } else if error.is::<commands::tune::Unreached>() {
        3
    } else if error.is::<commands::compare::Exceeded>() {
        4
    } else {
        1
    }
}

/// The error and its causes in one line. A text that another part of the line already contains is left out.
///
/// With `-v`, every cause that says more has its own line.
fn message(error: &anyhow::Error) -> String {
    if out::prints(out::Level::Verbose) {
        let mut causes: Vec<String> = Vec::new();
        for cause in error.chain().map(ToString::to_string) {
            if causes.iter().all(|known| !known.contains(&cause)) {
                causes.push(cause);
            }
        }
        return causes.join("\n  caused by: ");
    }
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
