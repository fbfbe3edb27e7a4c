//! Reading text files of a bounded size.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The most bytes of a file that a person writes: a configuration, a recipe or a job.
pub const MAX_WRITTEN: u64 = 1 << 20;
/// The most bytes of a file of results that this program wrote.
pub const MAX_RESULTS: u64 = 256 << 20;

/// The text of the regular file `path` of at most `most` bytes.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a folder, a device, a pipe or a socket, [`ErrorKind::FileTooLarge`],
/// [`ErrorKind::InvalidData`] if the text is not UTF-8, and the errors of the system.
pub fn read(path: &Path, most: u64) -> Result<String> {
    // A pipe would wait for its writer when it is opened.
    if !path.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut text = String::new();
    let read =
        File::open(path)?.take(most + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => {
                Error::new(ErrorKind::InvalidData, "not a text file (its bytes are not UTF-8)")
            }
            _ => error,
        })?;
    if read as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("the file has more than {most} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_and_sizes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        let binary = read(&path, 5).unwrap_err();
        assert_eq!((binary.kind(), &binary.to_string()[..15]), (ErrorKind::InvalidData, "not a text file"));
        assert_eq!(read(folder.path(), 5).unwrap_err().kind(), ErrorKind::InvalidInput);
        if cfg!(unix) {
            assert_eq!(read(Path::new("/dev/zero"), 5).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(read(&folder.path().join("no"), 5).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
