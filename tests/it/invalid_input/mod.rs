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

use crate::common::{Folder, calibrate};

/// A quantized checkpoint of the sample.
fn quantized(folder: &Folder) -> PathBuf {
    let path = folder.path("q.safetensors");
    calibrate(&path, &["--batches", "1"]).success();
    path
}
