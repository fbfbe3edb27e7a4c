//! Files on Windows. The share mode of an open file says which accesses others may have at the same time.

use std::fs::{File, Metadata, OpenOptions, remove_file};
use std::io::{self, ErrorKind};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Hold;

/// `FILE_SHARE_READ` and `FILE_SHARE_DELETE`: others may read the file; others may also remove or rename it.
const SHARE_READ: u32 = 1;
const SHARE_DELETE: u32 = 4;
/// `ERROR_SHARING_VIOLATION`: the share mode of an open file forbids the access.
const SHARING_VIOLATION: i32 = 32;

fn is_held(error: &io::Error) -> bool {
    error.raw_os_error() == Some(SHARING_VIOLATION)
}

pub(super) fn hold(path: &Path) -> io::Result<Hold> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).share_mode(SHARE_READ);
    match options.open(path) {
        Ok(file) => Ok(Hold::Taken(file)),
        Err(error) if is_held(&error) => Ok(Hold::Busy),
        Err(error) => Err(error),
    }
}

/// A file whose share mode forbids removal is closed before. If another process has opened it since, it keeps
/// it.
pub(super) fn remove_held(path: &Path, file: File) -> io::Result<()> {
    drop(file);
    remove_file(path)
}

pub(super) fn create_held(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).share_mode(SHARE_READ | SHARE_DELETE).open(path)
}

/// A held file cannot be opened for writing.
pub(super) fn remove_abandoned(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(path) {
        Ok(_file) => remove_file(path),
        Err(error) if is_held(&error) => Err(ErrorKind::WouldBlock.into()),
        Err(error) => Err(error),
    }
}

pub(super) fn is_protected(file: &Metadata) -> bool {
    file.permissions().readonly()
}

pub(super) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(super) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    // Beyond the end Windows has an error of its own, which stands for no bytes.
    const HANDLE_EOF: i32 = 38;
    match file.seek_read(out, offset) {
        Err(error) if error.raw_os_error() == Some(HANDLE_EOF) => Ok(0),
        read => read,
    }
}
