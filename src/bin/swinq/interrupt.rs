//! Ctrl-C and SIGTERM: the first signal asks the work to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::out;

/// Two signals within this time count as one, because `timeout` and service managers signal a process and
/// then its group.
const TWICE: Duration = Duration::from_millis(500);

static STOP: AtomicBool = AtomicBool::new(false);

/// Installs the handler.
pub fn install() {
    let first = OnceLock::new();
    let handler = move || {
        let first: &Instant = first.get_or_init(Instant::now);
        if !STOP.swap(true, Ordering::SeqCst) {
            out::error_line(format_args!("\nstopping; press Ctrl-C again to end at once"));
        } else if first.elapsed() > TWICE {
            std::process::exit(1);
        }
    };
    // Without a handler the signals end the process at once. That also leaves no incomplete file, because
    // writes are atomic.
    let _ = ctrlc::set_handler(handler);
}

/// Whether the user has asked the work to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// [`requested`], as the return value of a progress callback.
pub fn check() -> ControlFlow<()> {
    if requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
