//! `swinq bench gemm`, `bench softmax` and `bench elementwise`.

use std::fmt::Arguments;

use swinq_ladder::{Host, LadderCommand, LadderError};

use crate::args::Usage;
use crate::interrupt;
use crate::json_arg::JsonArg;
use crate::out::{self, info};
use crate::paths::check_outputs;

/// Runs the command.
pub fn run(command: &LadderCommand) -> anyhow::Result<()> {
    JsonArg::new(command.common().json.as_deref());
    check_outputs(swinq_ladder::outputs(command), [])?;
    let info = |text: Arguments<'_>| info!("{text}");
    let host = Host { print: out::line, info, write: out::raw, stop: interrupt::requested };
    swinq_ladder::run(command, host).map_err(|error| match error {
        LadderError::Size(problem) => Usage(problem).into(),
        error => error.into(),
    })
}
