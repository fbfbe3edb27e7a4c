//! JSON lines that survive a killed process.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::LogError;
use super::record::Record;

/// A file with one record per line. Each line is written by one unbuffered call.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

/// The part of a line that is needed to decide whether it is kept.
#[derive(Deserialize)]
struct LinePosition {
    #[serde(rename = "step")]
    iteration: u64,
}

impl JsonLines {
    /// Creates an empty file at `path`; replaces an existing one.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn create(path: &Path) -> Result<JsonLines, LogError> {
        let file = File::create(path).map_err(|e| LogError::io(path, e))?;
        Ok(JsonLines { path: path.to_owned(), file })
    }

    /// Opens the file at `path`, or creates it, and removes the records after iteration `done`, because those
    /// iterations are repeated. An incomplete last line of a killed process is removed too.
    ///
    /// # Errors
    /// [`LogError::Io`]; [`LogError::Line`] for a line that is not a record, unless it is the last.
    pub fn resume(path: &Path, done: u64) -> Result<JsonLines, LogError> {
        let io_error = |e| LogError::io(path, e);
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(io_error)?;
        let text = std::fs::read(path).map_err(io_error)?;
        let kept = kept_bytes(path, &text, done)?;
        file.set_len(kept as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(io_error)?;
        Ok(JsonLines { path: path.to_owned(), file })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn write(&mut self, record: &Record) -> Result<(), LogError> {
        let line = record.to_line() + "\n";
        self.file.write_all(line.as_bytes()).map_err(|e| LogError::io(&self.path, e))
    }
}

/// Total length of the lines before the first line that is incomplete or belongs to a later iteration.
fn kept_bytes(path: &Path, text: &[u8], done: u64) -> Result<usize, LogError> {
    let mut kept = 0;
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        match serde_json::from_slice::<LinePosition>(line) {
            Ok(place) if place.iteration <= done && line.ends_with(b"\n") => kept += line.len(),
            Err(e) if lines.peek().is_some() => {
                return Err(LogError::Line {
                    path: path.to_owned(),
                    line: index + 1,
                    problem: e.to_string(),
                });
            }
            Ok(_) | Err(_) => break,
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::super::{IterationRecord, ValidationRecord};
    use swinq_model::quantized::Score;

    use super::*;

    fn record(iteration: u64) -> Record {
        Record::Iteration(IterationRecord { iteration, ..IterationRecord::default() })
    }

    fn iterations(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<LinePosition>(line).unwrap().iteration).collect()
    }

    /// A file with records 10 to 50 and a validation at 30.
    fn written(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("log.jsonl");
        let mut lines = JsonLines::create(&path).unwrap();
        for at in [10, 20, 30, 40, 50] {
            lines.write(&record(at)).unwrap();
            if at == 30 {
                let (top5, agreement, logit_mse, outputs) = (None, None, None, Vec::new());
                let (iteration, epoch, images, score, seconds) = (30, 1.0, 1, Score::Top1(0.5), 1.0);
                let validation = ValidationRecord {
                    iteration,
                    epoch,
                    images,
                    score,
                    top5,
                    agreement,
                    logit_mse,
                    outputs,
                    seconds,
                };
                lines.write(&Record::Validation(validation)).unwrap();
            }
        }
        path
    }

    #[test]
    fn a_resumed_file_has_no_duplicates() {
        let folder = tempfile::tempdir().unwrap();
        for (done, kept) in
            [(30, &[10, 20, 30, 30][..]), (35, &[10, 20, 30, 30]), (9, &[]), (99, &[10, 20, 30, 30, 40, 50])]
        {
            let path = written(&folder);
            let mut lines = JsonLines::resume(&path, done).unwrap();
            assert_eq!(iterations(&path), kept);
            lines.write(&record(1000)).unwrap();
            assert_eq!(iterations(&path), [kept, &[1000]].concat());
        }
    }

    #[test]
    fn an_incomplete_last_line_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let whole = std::fs::read(written(&folder)).unwrap();
        let path = folder.path().join("torn.jsonl");
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let complete = whole[..length].iter().filter(|&&byte| byte == b'\n').count();
            JsonLines::resume(&path, 99).unwrap();
            assert_eq!(iterations(&path).len(), complete, "{length}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_log_is_left_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        std::fs::write(&path, "{\"step\":1}\nmy notes\n{\"step\":2}\n").unwrap();
        let message = JsonLines::resume(&path, 5).unwrap_err().to_string();
        assert!(message.contains("log.jsonl") && message.contains("line 2"), "{message}");
        assert_eq!(std::fs::read(&path).unwrap().len(), 31);
        let absent = folder.path().join("new.jsonl");
        JsonLines::resume(&absent, 5).unwrap().write(&record(6)).unwrap();
        assert_eq!(iterations(&absent), [6]);
    }
}
