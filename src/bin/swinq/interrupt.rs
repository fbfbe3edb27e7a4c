//! Ctrl-C, SIGTERM and SIGHUP: the first signal asks the work to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI32, Ordering};

/// The first signal that was received; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Installs the handler. Without one, as on systems other than Unix, the signals end the process at once. That also
/// leaves no incomplete file, because writes are atomic.
pub fn install() {
    #[cfg(unix)]
    unix::install();
}

#[cfg(unix)]
mod unix {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    use super::SIGNAL;
    use crate::out;

    /// Two signals within this time count as one, because `timeout` and service managers signal a process and
    /// then its group.
    const TWICE: Duration = Duration::from_millis(500);

    pub fn install() {
        if let Ok(signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) {
            std::thread::spawn(|| watch(signals));
        }
    }

    /// How to end the process, in the way in which `signal` came.
    fn again(signal: i32) -> &'static str {
        match signal {
            SIGINT => "press Ctrl-C again",
            SIGTERM => "send SIGTERM again",
            _ => "send a second signal",
        }
    }

    fn watch(mut signals: Signals) {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    SIGNAL.store(signal, Ordering::SeqCst);
                    out::error_line(format_args!("\nstopping; {} to end at once", again(signal)));
                }
                Some(at) if at.elapsed() > TWICE => std::process::exit(128 + signal),
                Some(_) => {}
            }
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

/// Refuses to go on if the user has asked the work to stop: called before results are written by commands whose work has no
/// progress callback.
///
/// # Errors
/// [`swinq::Error::Interrupted`].
pub fn check_before_writing() -> Result<(), swinq::Error> {
    if requested() { Err(swinq::Error::Interrupted) } else { Ok(()) }
}

/// The exit code of a process that a signal has asked to stop, as shells give it: 130 after Ctrl-C, 143 after SIGTERM.
pub fn exit_code() -> Option<u8> {
    let signal = SIGNAL.load(Ordering::SeqCst);
    (signal != 0).then_some(128 + signal as u8)
}
