//! Files that tests write.

use std::path::Path;

/// The names of the files and folders in `folder`, sorted.
///
/// # Panics
/// If `folder` cannot be read.
pub fn files(folder: &Path) -> Vec<String> {
    let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}
