//! Files for the tests of data sets and loaders, and hashes of pixels.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The content of a committed fixture.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The SHA-256 of `bytes` in hexadecimal digits.
pub fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file below `root`, and the folders that it needs.
pub fn put(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A folder of 23 images at the paths that `name` gives; images 5 and 11 are damaged.
pub fn damaged_folder(name: impl Fn(usize) -> String) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for i in 0..23 {
        let bytes = fixture(if i % 2 == 0 { "rgb.png" } else { "grey.png" });
        let bytes = if [5, 11].contains(&i) { &bytes[..50] } else { &bytes[..] };
        put(root.path(), &name(i), bytes);
    }
    root
}
