//! The lock of a run's output folder: two trainings in one folder would remove each other's checkpoints.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Error;

/// Name of the locked file in the output folder. It stays there if the training has written other files; the lock ends
/// with the process.
const NAME: &str = "run.lock";
/// The most bytes of its text that are shown.
const MOST_SHOWN: u64 = 256;

/// The lock, which is held until it is dropped.
#[derive(Debug)]
pub(super) struct RunLock {
    path: PathBuf,
    file: File,
}

impl Drop for RunLock {
    /// Removes the file if the training failed before it wrote anything else. The lock is still held: a process that
    /// opened the file before finds in [`RunLock::take`] that it is gone.
    fn drop(&mut self) {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let others =
            |entry: std::io::Result<std::fs::DirEntry>| entry.map_or(true, |e| e.file_name() != NAME);
        if folder.read_dir().is_ok_and(|mut entries| !entries.any(others)) {
            // Nothing depends on whether the file is there.
            let _ = std::fs::remove_file(&self.path);
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
        let io = |error| Error::io(&path)(error);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The message is useful without the name of the holder, too.
                let _ = file.take(MOST_SHOWN).read_to_string(&mut holder);
                return Err(Error::Busy { folder: folder.to_owned(), holder: holder.trim().to_owned() });
            }
            // File systems without locks are as good as any, but for this check.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        if !is_at(&file, &path) {
            let holder = "one that ends just now".to_owned();
            return Err(Error::Busy { folder: folder.to_owned(), holder });
        }
        // From here on, a failure removes the file again.
        let mut lock = RunLock { path: path.clone(), file };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { String::new() } else { format!(" on {}", host.trim()) };
        let since = swinq_eval::iso_utc(SystemTime::now());
        let holder = format!("process {}{host}, since {since}\n", std::process::id());
        let file = &mut lock.file;
        file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
        file.write_all(holder.as_bytes()).map_err(io)?;
        Ok(lock)
    }
}

/// Whether `path` still names the open `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |found: std::io::Result<std::fs::Metadata>| found.ok().map(|m| (m.dev(), m.ino()));
    let open = identity(file.metadata());
    open.is_some() && open == identity(path.metadata())
}

/// Other systems do not remove open files.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
