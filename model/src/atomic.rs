//! Files that exist whole or not at all.

use std::io::Write;
use std::path::Path;

use crate::error::ModelError;

/// Writes `path` through a temporary file beside it: flush, fsync, rename, fsync of the folder. A failure at any
/// point leaves an existing `path` as it was and no other file behind.
///
/// # Errors
/// [`ModelError::Io`] naming `path`.
pub fn write_atomic(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), ModelError> {
    let attempt = || {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut file = tempfile::Builder::new().prefix(".swinq-").suffix(".part").tempfile_in(folder)?;
        {
            let mut buffered = std::io::BufWriter::new(file.as_file_mut());
            write(&mut buffered)?;
            buffered.flush()?;
        }
        file.as_file().sync_all()?;
        set_ordinary_permissions(file.as_file())?;
        file.persist(path).map_err(|e| e.error)?;
        std::fs::File::open(folder)?.sync_all()
    };
    attempt().map_err(|e| ModelError::io(path, e))
}

/// Checks that a file can be made at `path`, so that long work does not end in a refusal.
///
/// # Errors
/// [`ModelError::Io`] naming `path`.
pub fn check_writable(path: &Path) -> Result<(), ModelError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let probe = tempfile::Builder::new().prefix(".swinq-").suffix(".part").tempfile_in(folder);
    probe.map_err(|e| ModelError::io(path, e))?;
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
