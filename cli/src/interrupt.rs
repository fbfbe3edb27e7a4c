//! Ctrl-C, SIGTERM and SIGHUP, and the console's events of Windows: the first asks the work to stop cleanly,
//! the second ends the process.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use crate::out;

/// The first signal that was received; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Two signals within this time count as one, because `timeout` and service managers signal a process and
/// then its group.
const TWICE: Duration = Duration::from_millis(500);

/// Installs the handler. If the system refuses it, signals end the process at once. That also leaves no
/// incomplete file, because writes are atomic.
pub fn install() {
    system::install();
}

/// The reaction to the next signal.
#[derive(Default)]
struct Watch {
    first: Option<Instant>,
}

impl Watch {
    /// Asks the work to stop, or ends the process for a second signal. `again` tells how to send one.
    fn receive(&mut self, signal: i32, again: &str) {
        match self.first {
            None => {
                self.first = Some(Instant::now());
                SIGNAL.store(signal, Ordering::SeqCst);
                out::error_line(format_args!("\nstopping; {again} to end at once"));
            }
            Some(at) if at.elapsed() > TWICE => std::process::exit(128 + signal),
            Some(_) => {}
        }
    }
}

/// Whether the user has asked the work to stop.
pub fn requested() -> bool {
    SIGNAL.load(Ordering::SeqCst) != 0
}

/// [`requested`], as the return value of a progress callback.
pub fn check() -> ControlFlow<()> {
    if requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Refuses to go on if the user has asked the work to stop: called before results are written by commands
/// whose work has no progress callback.
///
/// # Errors
/// [`swinq::Error::Interrupted`].
pub fn check_before_writing() -> Result<(), swinq::Error> {
    if requested() { Err(swinq::Error::Interrupted) } else { Ok(()) }
}

/// The exit code of a process that a signal has asked to stop, as shells give it: 130 after Ctrl-C, 143 after
/// SIGTERM.
pub fn exit_code() -> Option<u8> {
    let signal = SIGNAL.load(Ordering::SeqCst);
    (signal != 0).then_some(128 + signal as u8)
}
