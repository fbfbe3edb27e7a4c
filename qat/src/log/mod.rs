//! What a training leaves to read: JSON lines ([`JsonLines`]) and TensorBoard events ([`Events`]), through one [`Log`].
//!
//! `log.jsonl` has one record a line, with its `kind`:
//!
//! ```json
//! {"kind":"step","step":10,"epoch":0.0128,"loss":0.41,"labels":0.3,"kl":0.11,"features":null,"lr":0.00005, ...}
//! {"kind":"validation","step":782,"epoch":1.0,"images":10000,"top1":0.9412,"top5":0.9991,"agreement":0.98, ...}
//! ```
//!
//! JSON has no NaN and no infinity: such a value is `null`, and the record then says so in `non_finite`, a list of its
//! keys. A `null` not named there is a value that was not computed.

mod events;
mod lines;
mod record;
mod wire;

use std::path::{Path, PathBuf};

pub use events::Events;
pub use lines::JsonLines;
pub use record::{Record, StepRecord, ValidationRecord};

/// A record could not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file could not be made, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line before the last of an existing file is no record.
    #[error("{}: line {line} is no record ({problem}); move the file away to start a new one", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why it is none.
        problem: String,
    },
}

impl LogError {
    fn io(path: &Path, source: std::io::Error) -> LogError {
        LogError::Io { path: path.to_owned(), source }
    }
}

/// The records of a run.
#[derive(Debug)]
pub struct Log {
    lines: JsonLines,
    events: Option<Events>,
}

impl Log {
    /// Begins the records of a run in `folder`, which exists: `log.jsonl` and, with `tensorboard`, events in
    /// `tensorboard/`. Records of an earlier run in the same place are replaced, respectively purged from view.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file.
    pub fn start(folder: &Path, tensorboard: bool) -> Result<Log, LogError> {
        Log::resume(folder, tensorboard, 0)
    }

    /// Goes on with the records of a run of which `done` steps are kept: later ones are removed, as they come again.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file; [`LogError::Line`] where the existing file is no log.
    pub fn resume(folder: &Path, tensorboard: bool, done: u64) -> Result<Log, LogError> {
        let path = folder.join("log.jsonl");
        let lines = if done == 0 { JsonLines::create(&path)? } else { JsonLines::resume(&path, done)? };
        let events = tensorboard.then(|| Events::open(&folder.join("tensorboard"), done)).transpose()?;
        Ok(Log { lines, events })
    }

    /// Writes a record; it is in the files when this returns.
    ///
    /// # Errors
    /// [`LogError::Io`] naming the file.
    pub fn write(&mut self, record: &Record) -> Result<(), LogError> {
        self.lines.write(record)?;
        match &mut self.events {
            Some(events) => events.scalars(record.step(), &record.scalars()),
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
        let record = |step| Record::Step(StepRecord { step, loss: 0.5, ..StepRecord::default() });
        let mut log = Log::start(folder.path(), true).unwrap();
        for step in 1..=3 {
            log.write(&record(step)).unwrap();
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
