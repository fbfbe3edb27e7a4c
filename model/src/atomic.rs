//! Atomic file writes: a file has its complete content or does not exist.
//!
//! A file is written as `.swinq-*.part` in the folder of its target, then renamed. While it is written it is
//! held, so that a later write in this folder can tell the remains of a process that was killed, which it
//! removes, from files that another process is writing.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use swinq_system::files;
use tempfile::NamedTempFile;

use crate::error::ModelError;

const PREFIX: &str = ".swinq-";
const SUFFIX: &str = ".part";
/// The most symbolic links that a path may lead through, as Linux has it.
const MOST_LINKS: usize = 40;

/// Writes `path` through an [`AtomicFile`].
///
/// # Errors
/// Those of [`AtomicFile::create`] and [`AtomicFile::commit`].
pub fn write_atomic(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), ModelError> {
    let mut file = AtomicFile::create(path)?;
    file.write(|file| {
        let mut buffered = std::io::BufWriter::new(file);
        write(&mut buffered)?;
        buffered.flush()
    })?;
    file.commit()
}

/// A file that is written under another name in the folder of its path, and gets its path when it is
/// complete. Until then, and if it is dropped before, an existing file is unchanged; it leaves no other file
/// behind.
///
/// Symbolic links are followed. A file that exists keeps its permissions; a new one has those of the umask.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    target: PathBuf,
    temporary: NamedTempFile,
}

impl AtomicFile {
    /// An empty file that will be `path`.
    ///
    /// # Errors
    /// [`ModelError::Io`] naming `path`; [`ModelError::File`] if `path` is a folder, a device, a pipe, a
    /// socket, or a file that this process has open (`/dev/stdout`, `/dev/fd/N`).
    pub fn create(path: &Path) -> Result<AtomicFile, ModelError> {
        let target = target_of(path)?;
        let temporary = temporary_beside(path, &target)?;
        Ok(AtomicFile { path: path.to_owned(), target, temporary })
    }

    /// Writes to the file, at any of its places.
    ///
    /// # Errors
    /// [`ModelError::Io`] naming the path, with the error of `write`.
    pub fn write(&mut self, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), ModelError> {
        write(self.temporary.as_file_mut()).map_err(|e| ModelError::io(&self.path, e))
    }

    /// Gives the file its path: fsync, rename, fsync of the folder.
    ///
    /// # Errors
    /// [`ModelError::Io`] naming the path.
    pub fn commit(mut self) -> Result<(), ModelError> {
        let existing = self.target.metadata().ok();
        self.write(|file| {
            existing.map_or(Ok(()), |existing| file.set_permissions(existing.permissions()))?;
            file.sync_all()
        })?;
        let AtomicFile { path, target, mut temporary } = self;
        files::replace(temporary.path(), &target).map_err(|e| ModelError::io(&path, e))?;
        temporary.disable_cleanup(true);
        files::sync_folder(folder_of(&target)).map_err(|e| ModelError::io(&path, e))
    }
}

/// Checks that a file can be created at `path`, so that long work does not fail when it saves its result.
///
/// # Errors
/// Those of [`AtomicFile::create`].
pub fn check_writable(path: &Path) -> Result<(), ModelError> {
    let target = target_of(path)?;
    temporary_beside(path, &target).map(|_| ())
}

/// The file that `path` names after its symbolic links. It need not exist.
fn target_of(path: &Path) -> Result<PathBuf, ModelError> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        if is_descriptor(&target) {
            let problem = "is a file that the program has open, which would be replaced; name a file to write, or `-` for \
                           standard output where the option takes it";
            return Err(ModelError::file(path, problem));
        }
        match target.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                let link = target.read_link().map_err(|e| ModelError::io(path, e))?;
                target = folder_of(&target).join(link);
            }
            Ok(found) if found.is_file() && files::is_protected(&found) => {
                return Err(ModelError::file(
                    path,
                    "is read-only; remove the attribute, or name another file",
                ));
            }
            Ok(found) if found.is_file() => return Ok(target),
            Ok(found) if found.is_dir() => {
                return Err(ModelError::file(path, "is a folder; name a file to write"));
            }
            Ok(_) => {
                let problem = "is not a regular file but a device, a pipe or a socket; name a file to write";
                return Err(ModelError::file(path, problem));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(target),
            Err(error) => return Err(ModelError::io(path, error)),
        }
    }
    Err(ModelError::file(path, "leads through too many symbolic links"))
}

/// Whether `path` is an entry of `/proc/N/fd`, where `/dev/stdout` and `/dev/fd` lead. Such an entry is a
/// link to what the descriptor has open, which may be a regular file that others write too, such as a log.
fn is_descriptor(path: &Path) -> bool {
    let folder = folder_of(path).canonicalize();
    folder.is_ok_and(|folder| folder.starts_with("/proc") && folder.ends_with("fd"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A held temporary file in the folder of `target`. Errors name `path`.
fn temporary_beside(path: &Path, target: &Path) -> Result<NamedTempFile, ModelError> {
    let folder = folder_of(target);
    if !folder.is_dir() {
        let problem = format!("the folder {} does not exist; create it first", folder.display());
        return Err(ModelError::io(path, std::io::Error::new(ErrorKind::NotFound, problem)));
    }
    remove_remains(folder);
    let file = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).make_in(folder, files::create_held);
    // Only the kind of the error is kept: its text names the temporary file, which the user does not know.
    file.map_err(|e| ModelError::io(path, e.kind().into()))
}

/// Removes the temporary files in `folder` that no process is writing. What cannot be read or removed stays.
fn remove_remains(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        if ours && regular {
            // A file that another process removes first is gone all the same.
            let _ = files::remove_abandoned(&entry.path());
        }
    }
}
