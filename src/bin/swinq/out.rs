//! Standard output. A reader that goes away (`swinq eval ... | head`) ends the printing, not the work; any other
//! failure to print fails the command, after its files are written.

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
        // The first failure is the one that is told.
        let _ = FAILURE.set(error);
    }
}

/// The failure to print, if there was one that is the user's concern.
///
/// # Errors
/// What the system said.
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
