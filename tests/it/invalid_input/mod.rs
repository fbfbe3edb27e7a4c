//! Bad input is refused with exit code 1 or 2 and a message that names the file, key or site and the remedy.
//! No output file remains.

mod checkpoints;
mod classes;
#[cfg(target_os = "linux")]
mod disk;
mod inputs;
mod outputs;
mod usage;

use std::path::PathBuf;

use crate::common::{calibrate, files};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Asserts that the folder holds only the files that the test put there.
    #[track_caller]
    fn holds_only(&self, names: &[&str]) {
        assert_eq!(files(self.0.path()), names);
    }
}

/// A quantized checkpoint of the sample.
fn quantized(folder: &Folder) -> PathBuf {
    let path = folder.path("q.safetensors");
    calibrate(&path, &["--batches", "1"]).success();
    path
}
