//! The program `swinq`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(swinq_cli::run(std::env::args_os().collect()))
}
