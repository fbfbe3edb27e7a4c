//! Atomic file writes: a file has its complete content or does not exist.

use std::io::Write;
use std::path::Path;

use crate::error::ModelError;

/// Writes `path` through a temporary file in the same folder: flush, fsync, rename, fsync of the folder. A failure at
/// any point leaves an existing `path` unchanged and leaves no other file behind.
///
/// # Errors
/// [`ModelError::Io`] naming `path`.
pub fn write_atomic(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), ModelError> {
    let mut file = temporary_beside(path)?;
    let attempt = |file: &mut std::fs::File| {
        let mut buffered = std::io::BufWriter::new(&mut *file);
        write(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        file.sync_all()?;
        set_ordinary_permissions(file)
    };
    attempt(file.as_file_mut()).map_err(|e| ModelError::io(path, e))?;
    file.persist(path).map_err(|e| ModelError::io(path, e.error))?;
    let folder = std::fs::File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    folder.map_err(|e| ModelError::io(path, e))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile, ModelError> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(ModelError::file(
            path,
            format!("the folder {} does not exist; create it first", folder.display()),
        ));
    }
    let file = tempfile::Builder::new().prefix(".swinq-").suffix(".part").tempfile_in(folder);
    // Only the kind of the error is kept: its text names the temporary file, which the user does not know.
    file.map_err(|e| ModelError::io(path, e.kind().into()))
}

/// Checks that a file can be created at `path`, so that long work does not fail when it saves its result.
///
/// # Errors
/// [`ModelError::Io`] or [`ModelError::File`] naming `path`.
pub fn check_writable(path: &Path) -> Result<(), ModelError> {
    temporary_beside(path)?;
    if path.is_dir() {
        return Err(ModelError::file(path, "is a folder; name a file to write"));
    }
    Ok(())
}

#[cfg(unix)]
fn set_ordinary_permissions(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_ordinary_permissions(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}
