//! Signals of Unix.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Watch;

pub(super) fn install() {
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
    let mut watch = Watch::default();
    for signal in signals.forever() {
        watch.receive(signal, again(signal));
    }
}
