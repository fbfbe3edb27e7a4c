//! The lock of a run's output folder: two trainings in one folder would remove each other's checkpoints.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use swinq_system::files::{self, Hold};
use swinq_system::machine;

use crate::Error;

/// Name of the locked file in the output folder. It stays there if the training has written other files; the
/// lock ends with the process.
const NAME: &str = "run.lock";
/// The most bytes of its text that are shown.
const MOST_SHOWN: u64 = 256;

/// The lock, which is held until it is dropped.
#[derive(Debug)]
pub(super) struct RunLock {
    path: PathBuf,
    /// There until the lock is dropped.
    file: Option<File>,
}

impl Drop for RunLock {
    /// Removes the file if the training failed before it wrote anything else.
    fn drop(&mut self) {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let others =
            |entry: std::io::Result<std::fs::DirEntry>| entry.map_or(true, |e| e.file_name() != NAME);
        if folder.read_dir().is_ok_and(|mut entries| !entries.any(others))
            && let Some(file) = self.file.take()
        {
            // Nothing depends on whether the file is there.
            let _ = files::remove_held(&self.path, file);
        }
    }
}

impl RunLock {
    /// Locks the existing `folder`.
    ///
    /// # Errors
    /// [`Error::Busy`] naming the process that holds the lock; [`Error::Io`].
    pub(super) fn take(folder: &Path) -> Result<RunLock, Error> {
        let path = folder.join(NAME);
        let busy = |holder: String| Error::Busy { folder: folder.to_owned(), holder };
        let mut file = match files::hold(&path).map_err(|error| Error::io(&path)(error))? {
            Hold::Taken(file) => file,
            Hold::Busy => return Err(busy(holder(&path))),
            Hold::Removed => return Err(busy("one that ends just now".to_owned())),
        };
        let written = write_holder(&mut file);
        // A failure to write removes the file again.
        let lock = RunLock { path, file: Some(file) };
        written.map_err(|error| Error::io(&lock.path)(error))?;
        Ok(lock)
    }
}

/// The text of [`write_holder`] in the file at `path`, which another process holds. The message is useful
/// without it, too.
fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_SHOWN).read_to_string(&mut text));
    read.map_or(String::new(), |_| text.trim().to_owned())
}

/// Writes who holds the file.
fn write_holder(file: &mut File) -> std::io::Result<()> {
    let host = machine::host().map_or(String::new(), |host| format!(" on {host}"));
    let since = swinq_eval::iso_utc(SystemTime::now());
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("process {}{host}, since {since}\n", std::process::id()).as_bytes())
}
