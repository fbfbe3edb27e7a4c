//! The log of a training: JSON lines ([`JsonLines`]) and TensorBoard events ([`Events`]), written through one
//! [`Log`].
//!
//! `log.jsonl` has one record per line; `kind` says what the record is, and `step` counts iterations:
//!
//! ```json
//! {"kind":"step","step":10,"epoch":0.0128,"loss":0.41,"labels":0.3,"kl":0.11,"features":null,"lr":0.00005, ...}
//! {"kind":"validation","step":782,"epoch":1.0,"images":10000,"top1":0.9412,"top5":0.9991,"agreement":0.98, ...}
//! ```
//!
//! JSON has neither NaN nor infinity: such a value is `null`, and its key is listed in `non_finite`. A `null`
//! that is not listed is a value that was not computed.

mod events;
mod lines;
mod record;
mod wire;

use std::path::{Path, PathBuf};

pub use events::Events;
pub use lines::JsonLines;
pub use record::{IterationRecord, Record, ValidationRecord};

/// A log that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file could not be created, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A line of an existing file is not a record, and it is not the last line.
    #[error("{}: line {line} is not a record ({problem}); move the file away to start a new one", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why it is not a record.
        problem: String,
    },
}

impl LogError {
    fn io(path: &Path, source: std::io::Error) -> LogError {
        LogError::Io { path: path.to_owned(), source }
    }
}

/// The log of a run.
#[derive(Debug)]
pub struct Log {
    lines: JsonLines,
    events: Option<Events>,
}

impl Log {
    /// Starts the log of a run in the existing `folder`: `log.jsonl` and, with `tensorboard`, events in
    /// `tensorboard/`. It replaces the JSON lines of an earlier run, and TensorBoard no longer shows that
    /// run's events.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file.
    pub fn start(folder: &Path, tensorboard: bool) -> Result<Log, LogError> {
        Log::resume(folder, tensorboard, 0)
    }

    /// Continues the log of a run that resumes after `done` iterations. Later records are removed, because
    /// their iterations are repeated.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file; [`LogError::Line`] if the existing file is not a log.
    pub fn resume(folder: &Path, tensorboard: bool, done: u64) -> Result<Log, LogError> {
        let path = folder.join("log.jsonl");
        let lines = if done == 0 { JsonLines::create(&path)? } else { JsonLines::resume(&path, done)? };
        let events = tensorboard.then(|| Events::open(&folder.join("tensorboard"), done)).transpose()?;
        Ok(Log { lines, events })
    }

    /// Writes a record to the files, unbuffered.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file.
    pub fn write(&mut self, record: &Record) -> Result<(), LogError> {
        self.lines.write(record)?;
        match &mut self.events {
            Some(events) => events.scalars(record.iteration(), &record.scalars()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_writes_both_files_and_resumes_both() {
        let folder = tempfile::tempdir().unwrap();
        let record = |iteration| {
            Record::Iteration(IterationRecord { iteration, loss: 0.5, ..IterationRecord::default() })
        };
        let mut log = Log::start(folder.path(), true).unwrap();
        for iteration in 1..=3 {
            log.write(&record(iteration)).unwrap();
        }
        let mut log = Log::resume(folder.path(), true, 2).unwrap();
        log.write(&record(3)).unwrap();
        let text = std::fs::read_to_string(folder.path().join("log.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(std::fs::read_dir(folder.path().join("tensorboard")).unwrap().count(), 2);
        Log::start(folder.path(), false).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("log.jsonl")).unwrap(), "");
    }
}
