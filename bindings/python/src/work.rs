//! Long calls. The work runs on a thread of its own, while the calling thread waits for Ctrl-C and calls Python.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Time between two looks for signals.
const POLL: Duration = Duration::from_millis(50);
/// Longest time that a call waits for the end of work that was stopped.
const PATIENCE: Duration = Duration::from_millis(250);
/// Stack of the thread, as large as that of a process's first thread.
const STACK: usize = 8 << 20;

/// A phase, and the numbers of things done and of all.
type Step = (&'static str, usize, usize);

/// The work's end of the connection to the thread that waits for it.
pub struct Reporter {
    steps: Sender<Step>,
    answers: Receiver<()>,
    stopped: Arc<AtomicBool>,
}

impl Reporter {
    /// Reports progress, and waits until Python has seen it. `Break` if the work is to stop.
    pub fn step(&mut self, phase: &'static str, done: usize, total: usize) -> ControlFlow<()> {
        let seen = self.steps.send((phase, done, total)).is_ok() && self.answers.recv().is_ok();
        if seen { self.check() } else { ControlFlow::Break(()) }
    }

    /// `Break` if the work is to stop.
    pub fn check(&self) -> ControlFlow<()> {
        if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the work is to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Runs `work` and returns its result. The calling thread calls `function` with each step of the work, and looks for
/// signals.
///
/// The call ends soon after Ctrl-C, even if `work` looks at its [`Reporter`] seldom. Work that has not ended by then
/// goes on in its thread up to its next look, so it must own what it uses, and must not use Python.
///
/// # Errors
/// The exception of a signal's handler (`KeyboardInterrupt`) or of `function`; `OSError` if there can be no thread.
///
/// # Panics
/// If `work` panics.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    function: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&mut Reporter) -> T + Send + 'static,
) -> PyResult<T> {
    let (steps, mut reported) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut reporter = Reporter { steps, answers, stopped: Arc::clone(&stopped) };
    let thread = thread::Builder::new().name("swinq call".to_owned()).stack_size(STACK);
    let thread = thread.spawn(move || work(&mut reporter))?;
    loop {
        // The receiver moves in and out, because it cannot be shared with the closure.
        let (step, receiver) = py.detach(move || (reported.recv_timeout(POLL), reported));
        reported = receiver;
        let seen = match step {
            Ok(step) => py.check_signals().and_then(|()| match function {
                Some(function) => function.call1(step).map(|_| ()),
                None => Ok(()),
            }),
            Err(RecvTimeoutError::Timeout) => py.check_signals(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Err(raised) = seen {
            stopped.store(true, Ordering::Relaxed);
            drop(answer);
            py.detach(move || wait(&reported));
            return Err(raised);
        }
        if step.is_ok() {
            // The work has ended if nobody receives the answer.
            let _ = answer.send(());
        }
    }
    match py.detach(|| thread.join()) {
        Ok(result) => Ok(result),
        Err(panic) => resume_unwind(panic),
    }
}

/// Waits for the end of work that was stopped, for [`PATIENCE`] at most.
fn wait(reported: &Receiver<Step>) {
    let end = Instant::now() + PATIENCE;
    while reported.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
}
