//! The lock of a run's output folder: two trainings in one folder would remove each other's checkpoints.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::SystemTime;

use crate::Error;

/// Name of the locked file in the output folder. It stays there; the lock ends with the process.
const NAME: &str = "run.lock";
/// The most bytes of its text that are shown.
const MOST_SHOWN: u64 = 256;

/// The lock, which is held until it is dropped.
#[derive(Debug)]
pub(super) struct RunLock {
    _file: File,
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
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
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
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { String::new() } else { format!(" on {}", host.trim()) };
        let since = swinq_eval::iso_utc(SystemTime::now());
        let holder = format!("process {}{host}, since {since}\n", std::process::id());
        file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
        file.write_all(holder.as_bytes()).map_err(io)?;
        Ok(RunLock { _file: file })
    }
}
