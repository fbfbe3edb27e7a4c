//! `swinq bench gemm`, `bench softmax` and `bench elementwise`: one op on every rung from a scalar loop to the fastest
//! kernel there is, each rung checked against a reference before it is timed.

mod args;
mod check;
mod clock;
mod elementwise;
mod gemm;
mod machine;
mod measure;
mod operands;
mod plot;
mod products;
mod reference;
mod row;
mod rung;
mod shape;
mod softmax;
mod svg;
mod swin;
mod threads;

pub use args::LadderCommand;

use std::path::Path;

use serde_json::json;
use swinq_model::atomic::write_atomic;

use machine::Machine;
use row::Row;

use crate::out::say;
use crate::paths::check_outputs;

/// Version of the JSON's fields.
const SCHEMA: u32 = 1;

/// Runs the command.
pub fn run(command: &LadderCommand) -> anyhow::Result<()> {
    let common = command.common();
    check_outputs(common.json.iter().chain(&common.plot), [])?;
    command.check_sizes()?;
    let mut machine = Machine::open(common)?;
    say!("{}", machine.describe());
    let rows = match command {
        LadderCommand::Gemm(args) => gemm::run(args, &mut machine)?,
        LadderCommand::Softmax(args) => softmax::run(args, &mut machine)?,
        LadderCommand::Elementwise(args) => elementwise::run(args, &mut machine)?,
    };
    if let Some(path) = &common.json {
        write(path, &to_json(command.name(), &machine, &rows))?;
    }
    if let Some(path) = &common.plot {
        write(path, &plot::draw(command.title(), &rows))?;
    }
    verdict(&rows)
}

/// An error that names every rung that failed.
fn verdict(rows: &[Row]) -> anyhow::Result<()> {
    let failed: Vec<String> = rows.iter().filter(|row| row.failed()).map(Row::label).collect();
    anyhow::ensure!(
        failed.is_empty(),
        "{} of {} rungs FAILED: {}",
        failed.len(),
        rows.len(),
        failed.join("; ")
    );
    Ok(())
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

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    write_atomic(path, |file| file.write_all(text.as_bytes()))?;
    say!("wrote {}", path.display());
    Ok(())
}

/// Fails where the user has asked to stop.
fn check_interrupt() -> anyhow::Result<()> {
    anyhow::ensure!(!crate::interrupt::requested(), "interrupted; nothing was written");
    Ok(())
}
