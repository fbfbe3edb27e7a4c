//! Long calls. The work runs on a thread of its own, while the calling thread waits for Ctrl-C and calls
//! Python.

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
pub type Step = (&'static str, usize, usize);

/// The work's end of the connection to the thread that waits for it. It asks `Q`, and gets `A`.
pub struct Asker<Q, A> {
    questions: Sender<Q>,
    answers: Receiver<A>,
    stopped: Arc<AtomicBool>,
}

/// An [`Asker`] that reports progress.
pub type Reporter = Asker<Step, ()>;

impl Reporter {
    /// Reports progress, and waits until Python has seen it. `Break` if the work is to stop.
    pub fn step(&mut self, phase: &'static str, done: usize, total: usize) -> ControlFlow<()> {
        self.ask((phase, done, total))
    }
}

impl<Q, A> Asker<Q, A> {
    /// Asks Python, and waits for the answer. `Break` if the work is to stop.
    pub fn ask(&mut self, question: Q) -> ControlFlow<(), A> {
        let sent = self.questions.send(question).is_ok();
        match (sent.then(|| self.answers.recv()), self.is_stopped()) {
            (Some(Ok(answer)), false) => ControlFlow::Continue(answer),
            _ => ControlFlow::Break(()),
        }
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

/// Runs `work` and returns its result. The calling thread calls `function` with each step of the work, and
/// looks for signals.
///
/// # Errors
/// As [`converse`].
///
/// # Panics
/// If `work` panics.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    function: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&mut Reporter) -> T + Send + 'static,
) -> PyResult<T> {
    let answer = |step: Step| match function {
        Some(function) => function.call1(step).map(|_| ()),
        None => Ok(()),
    };
    converse(py, answer, work)
}

/// Runs `work` and returns its result. The calling thread answers the questions of the work by `answer`, and
/// looks for signals.
///
/// The call ends soon after Ctrl-C, even if `work` looks at its [`Reporter`] seldom. Work that has not ended
/// by then goes on in its thread up to its next look, so it must own what it uses, and must not use Python.
///
/// # Errors
/// The exception of a signal's handler (`KeyboardInterrupt`) or of `answer`; `OSError` if there can be no
/// thread.
///
/// # Panics
/// If `work` panics.
pub fn converse<Q: Send + 'static, A: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    mut answer: impl FnMut(Q) -> PyResult<A>,
    work: impl FnOnce(&mut Asker<Q, A>) -> T + Send + 'static,
) -> PyResult<T> {
    let (questions, mut asked) = mpsc::channel();
    let (answered, answers) = mpsc::channel();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut asker = Asker { questions, answers, stopped: Arc::clone(&stopped) };
    let thread = thread::Builder::new().name("swinq call".to_owned()).stack_size(STACK);
    let thread = thread.spawn(move || work(&mut asker))?;
    loop {
        // The receiver moves in and out, because it cannot be shared with the closure.
        let (question, receiver) = py.detach(move || (asked.recv_timeout(POLL), asked));
        asked = receiver;
        let seen = match question {
            Ok(question) => py.check_signals().and_then(|()| answer(question).map(Some)),
            Err(RecvTimeoutError::Timeout) => py.check_signals().map(|()| None),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match seen {
            Err(raised) => {
                stopped.store(true, Ordering::Relaxed);
                drop(answered);
                py.detach(move || wait(&asked));
                return Err(raised);
            }
            // The work has ended if nobody receives the answer.
            Ok(Some(answer)) => drop(answered.send(answer)),
            Ok(None) => {}
        }
    }
    match py.detach(|| thread.join()) {
        Ok(result) => Ok(result),
        Err(panic) => resume_unwind(panic),
    }
}

/// Waits for the end of work that was stopped, for [`PATIENCE`] at most.
fn wait<Q>(asked: &Receiver<Q>) {
    let end = Instant::now() + PATIENCE;
    while asked.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
}
