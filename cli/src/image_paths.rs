//! The image files and folders that a command line names.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::args::Usage;

/// The paths on the command line. `-` stands for the lines of standard input.
///
/// # Errors
/// Standard input that cannot be read, or that names no path.
pub fn read(arguments: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for argument in arguments {
        if argument != Path::new("-") {
            paths.push(argument.clone());
            continue;
        }
        for line in std::io::stdin().lines() {
            let line = line.context("standard input")?;
            let path = line.trim_end_matches('\r');
            paths.extend(Some(path).filter(|path| !path.trim().is_empty()).map(PathBuf::from));
        }
    }
    if paths.is_empty() {
        bail!("standard input names no image; give one path per line");
    }
    Ok(paths)
}

/// Refuses a path that does not exist but begins with an existing one and a comma: a list of paths, or a line
/// of a CSV file.
pub fn check_commas(paths: &[PathBuf]) -> Result<(), Usage> {
    for path in paths.iter().filter(|path| !path.exists()) {
        let text = path.to_string_lossy();
        let Some((first, rest)) = text.split_once(',').filter(|(first, _)| Path::new(first).is_file()) else {
            continue;
        };
        return Err(Usage(format!(
            "{text}: no such file, but there is {first}; give paths apart from each other and without classes \
             (`{first}`, not `,{rest}`)"
        )));
    }
    Ok(())
}
