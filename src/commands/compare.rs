//! `swinq compare`.

use crate::args::CompareArgs;
use crate::out::say;

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let first = swinq_eval::read_results(&args.first)?;
    let second = swinq_eval::read_results(&args.second)?;
    say!("{}", swinq_eval::compare(&first, &second));
    Ok(())
}
