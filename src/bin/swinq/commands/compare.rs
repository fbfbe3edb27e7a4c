//! `swinq compare`.

use crate::args::CompareArgs;
use crate::out::say;

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let first = swinq::eval::read_results(&args.first)?;
    let second = swinq::eval::read_results(&args.second)?;
    say!("{}", swinq::eval::compare(&first, &second));
    Ok(())
}
