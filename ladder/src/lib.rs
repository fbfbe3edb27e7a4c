//! `swinq bench gemm`, `bench softmax` and `bench elementwise`. A ladder runs one op on several rungs, from a
//! scalar loop to the fastest kernel. Each rung is compared with a reference before it is timed.
//!
//! [`LadderCommand`] holds the arguments and [`run`] runs them. The caller provides a [`Host`].

mod args;
mod check;
mod clock;
mod elementwise;
mod error;
mod gemm;
mod look;
mod machine;
mod measure;
mod operands;
pub mod parse;
mod plot;
mod products;
mod reference;
pub mod roofline;
mod row;
mod rung;
mod shape;
mod softmax;
mod swin;
mod threads;

use std::fmt::Arguments;
use std::path::{Path, PathBuf};

use serde_json::json;
use swinq_model::atomic::write_atomic;

pub use args::{Backend, CommonArgs, ElementwiseArgs, GemmArgs, LadderCommand, SoftmaxArgs, SwinSize};
pub use error::LadderError;

use machine::Machine;
use row::Row;

/// Version of the JSON's fields.
const SCHEMA: u32 = 1;

/// The functions that the calling program provides.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Prints a line, or several lines with newlines between them.
    pub print: fn(Arguments<'_>),
    /// As `print`, for what the command works on or has written; the caller may drop it.
    pub info: fn(Arguments<'_>),
    /// Writes to standard output, for `--json -`. The caller sends what `print` prints elsewhere then.
    pub write: fn(&[u8]),
    /// Whether the user has asked to stop.
    pub stop: fn() -> bool,
}

/// Runs the command: prints the tables and writes the outputs.
///
/// # Errors
/// Sizes that are too large, a missing backend, an output that cannot be written, a request to stop, and
/// failed rungs.
pub fn run(command: &LadderCommand, host: Host) -> Result<(), LadderError> {
    let common = command.common();
    command.check_sizes()?;
    let mut machine = Machine::open(common, host)?;
    (host.info)(format_args!("{}", machine.describe()));
    let rows = match command {
        LadderCommand::Gemm(args) => gemm::run(args, &mut machine)?,
        LadderCommand::Softmax(args) => softmax::run(args, &mut machine)?,
        LadderCommand::Elementwise(args) => elementwise::run(args, &mut machine)?,
    };
    if let Some(path) = &common.json {
        let json = to_json(command.name(), &machine, &rows);
        match to_stdout(path) {
            true => (host.write)(json.as_bytes()),
            false => write(host, path, &json)?,
        }
    }
    if let Some(path) = &common.plot {
        write(host, path, &plot::draw(command.title(), &rows))?;
    }
    verdict(&rows)
}

/// The files that the command will write.
pub fn outputs(command: &LadderCommand) -> impl Iterator<Item = &PathBuf> {
    let common = command.common();
    common.json.iter().filter(|path| !to_stdout(path)).chain(&common.plot)
}

/// Whether the value of `--json` is standard output.
fn to_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// An error that names every rung that failed.
fn verdict(rows: &[Row]) -> Result<(), LadderError> {
    let failed: Vec<String> = rows.iter().filter(|row| row.failed()).map(Row::label).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(LadderError::Failed { failed: failed.len(), rungs: rows.len(), labels: failed.join("; ") })
}

fn to_json(bench: &str, machine: &Machine, rows: &[Row]) -> String {
    let document = json!({
        "schema": SCHEMA,
        "kind": "swinq-ladder",
        "bench": bench,
        "environment": machine.environment(),
        "no_gpu": machine.no_gpu,
        "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn write(host: Host, path: &Path, text: &str) -> Result<(), LadderError> {
    write_atomic(path, |file| file.write_all(text.as_bytes()))?;
    (host.info)(format_args!("wrote {}", path.display()));
    Ok(())
}
