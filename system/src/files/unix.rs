//! Files on Unix.

use std::fs::{File, Metadata, OpenOptions, TryLockError, remove_file};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::Hold;

pub(super) fn hold(path: &Path) -> io::Result<Hold> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(Hold::Busy),
        Ok(()) | Err(TryLockError::Error(_)) if is_at(&file, path) => Ok(Hold::Taken(file)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Hold::Removed),
    }
}

/// Whether `path` still names the open `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: io::Result<Metadata>| found.ok().map(|m| (m.dev(), m.ino()));
    let open = identity(file.metadata());
    open.is_some() && open == identity(path.metadata())
}

/// The file is still locked when it is removed.
pub(super) fn remove_held(path: &Path, file: File) -> io::Result<()> {
    let removed = remove_file(path);
    drop(file);
    removed
}

pub(super) fn create_held(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(path)?;
    match file.try_lock() {
        // Another process took the file for abandoned between its creation and its lock.
        Err(TryLockError::WouldBlock) => Err(ErrorKind::AlreadyExists.into()),
        Ok(()) if !is_at(&file, path) => Err(ErrorKind::AlreadyExists.into()),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// The lock is kept until the file is removed.
pub(super) fn remove_abandoned(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.try_lock()?;
    remove_held(path, file)
}

pub(super) fn is_protected(_: &Metadata) -> bool {
    false
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(super) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    FileExt::read_at(file, out, offset)
}
