//! Ctrl-C and SIGTERM: the first asks the work to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Installs the handler.
pub fn install() {
    let handler = || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(1);
        }
        eprintln!("\nstopping (once more to end at once)");
    };
    // Without a handler the signals end the process as they always do, which leaves no half file either.
    let _ = ctrlc::set_handler(handler);
}

/// Whether the work should stop.
pub fn requested() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// [`requested`], as progress callbacks want it.
pub fn check() -> ControlFlow<()> {
    if requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
