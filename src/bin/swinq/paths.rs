//! Output paths, checked before long work.

use std::path::{Path, PathBuf};

use anyhow::bail;
use swinq::model::atomic::check_writable;

/// Refuses outputs that cannot be written, two outputs with the same path, and an output that is one of the
/// `inputs`.
pub fn check_outputs<'a>(
    outputs: impl IntoIterator<Item = &'a PathBuf>,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    let inputs: Vec<(&Path, PathBuf)> =
        inputs.into_iter().filter_map(|path| Some((path, path.canonicalize().ok()?))).collect();
    let mut seen: Vec<PathBuf> = Vec::new();
    for output in outputs {
        check_writable(output)?;
        let resolved = resolve(output);
        if let Some((input, _)) = inputs.iter().find(|(_, input)| *input == resolved) {
            bail!(
                "{}: writing it would replace the input {}; name another file",
                output.display(),
                input.display()
            );
        }
        if seen.contains(&resolved) {
            bail!("{}: two outputs have this path; give each its own", output.display());
        }
        seen.push(resolved);
    }
    Ok(())
}

/// The path with the symbolic links of its folder resolved. The file itself need not exist.
fn resolve(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (folder.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}
