//! Standard output. If the reader of the output ends (`swinq eval ... | head`), printing stops but the work
//! continues. Any other failure to print fails the command, after its files are written.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

static FAILURE: OnceLock<std::io::Error> = OnceLock::new();

/// Prints one line.
pub fn line(text: Arguments<'_>) {
    if FAILURE.get().is_some() {
        return;
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        // Only the first failure is reported.
        let _ = FAILURE.set(error);
    }
}

/// Returns the failure to print, if there was one. A reader that has ended is not a failure.
///
/// # Errors
/// The system's error.
pub fn check() -> anyhow::Result<()> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => anyhow::bail!("standard output: {error}"),
        _ => Ok(()),
    }
}

/// Prints one line to standard output, like `println!` but without a panic.
macro_rules! say {
    () => { $crate::out::line(format_args!("")) };
    ($($argument:tt)*) => { $crate::out::line(format_args!($($argument)*)) };
}
pub(crate) use say;
