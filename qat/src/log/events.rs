//! TensorBoard event files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::LogError;
use super::wire::{Content, frame_of};

const PREFIX: &str = "events.out.tfevents.";

/// A TensorBoard event file. Each process of a run writes its own. TensorBoard reads the files of a folder in
/// the order of their names; where a later file starts, it drops the earlier files' events from that
/// iteration on.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// Creates a file in `folder`, and the folder if it does not exist, for a run that continues after `done`
    /// iterations.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn open(folder: &Path, done: u64) -> Result<Events, LogError> {
        let io_error = |e| LogError::io(folder, e);
        std::fs::create_dir_all(folder).map_err(io_error)?;
        let second = (wall_time() as u64).max(latest(folder).map_err(io_error)? + 1);
        let path = folder.join(format!("{PREFIX}{second:010}.swinq"));
        let file = File::create_new(&path).map_err(|e| LogError::io(&path, e))?;
        let mut events = Events { path, file };
        events.write(0, &Content::FileVersion)?;
        events.write(done + 1, &Content::SessionStart)?;
        Ok(events)
    }

    /// Appends an event with these tags and values.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn scalars(&mut self, iteration: u64, scalars: &[(String, f32)]) -> Result<(), LogError> {
        self.write(iteration, &Content::Scalars(scalars))
    }

    fn write(&mut self, iteration: u64, content: &Content) -> Result<(), LogError> {
        let frame = frame_of(wall_time(), iteration, content);
        self.file.write_all(&frame).map_err(|e| LogError::io(&self.path, e))
    }
}

/// Seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The second in the name of the latest event file in `folder`; 0 if there is none.
fn latest(folder: &Path) -> std::io::Result<u64> {
    let mut latest = 0;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let second =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        latest = latest.max(second.unwrap_or(0));
    }
    Ok(latest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_sort_in_the_order_of_creation() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<PathBuf> = (0..4).map(|_| Events::open(folder.path(), 0).unwrap().path).collect();
        assert!(names.is_sorted());
        let bytes = std::fs::read(&names[0]).unwrap();
        // The length of the first event, and the text in it.
        assert_eq!(bytes[..8], (bytes[0] as u64).to_le_bytes());
        assert!(bytes.windows(13).any(|window| window == b"brain.Event:2"));
    }
}
