//! `swinq compare`.

use swinq::eval::compare::{Limits, exceeded};

use crate::args::CompareArgs;
use crate::out::say;

/// The error for a change that exceeds a limit; the program ends with exit code 4.
#[derive(Debug)]
pub struct Exceeded(String);

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Exceeded {}

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let first = swinq::eval::read_results(&args.first)?;
    let second = swinq::eval::read_results(&args.second)?;
    say!("{}", swinq::eval::compare(&first, &second)?.trim_end());
    let limits = Limits {
        max_drop: args.max_drop,
        max_sqnr_drop: args.max_sqnr_drop,
        max_slowdown: args.max_slowdown,
    };
    let found = exceeded(&first, &second, &limits)?;
    if found.is_empty() {
        return Ok(());
    }
    Err(Exceeded(found.join("; ")).into())
}
