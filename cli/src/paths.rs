//! Output paths, checked before long work.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use swinq::model::atomic::check_writable;

use crate::args::Usage;

/// Refuses a path that an option names and that does not exist, so that the message names the option.
pub fn check_inputs<'a>(
    options: impl IntoIterator<Item = (&'a str, Option<&'a Path>)>,
) -> anyhow::Result<()> {
    for (option, path) in options {
        if let Some(path) = path {
            path.metadata().with_context(|| format!("{option} {}", path.display()))?;
        }
    }
    Ok(())
}

/// Refuses a name for a quantized checkpoint with the extension of another format: the file is a safetensors
/// file, and is found by this extension beside its float checkpoint.
pub fn check_checkpoint(output: &Path) -> Result<(), Usage> {
    match output.extension() {
        None => Ok(()),
        Some(extension) if extension == "safetensors" => Ok(()),
        Some(extension) => Err(Usage(format!(
            "--output {}: the checkpoint is a safetensors file, not a .{} file; name it {}",
            output.display(),
            extension.display(),
            output.with_extension("safetensors").display()
        ))),
    }
}

/// Refuses a name for a part with the extension of a checkpoint, which it is not.
pub fn check_part(output: &Path) -> Result<(), Usage> {
    if output.extension().is_none_or(|extension| extension != "safetensors") {
        return Ok(());
    }
    Err(Usage(format!(
        "--output {}: with --shard the file is a part for `swinq merge`, not a checkpoint; name it {}",
        output.display(),
        output.with_extension("part").display()
    )))
}

/// Refuses outputs that cannot be written, the name `-`, two outputs with the same path, and an output that
/// is one of the `inputs`, or a file that may have been read below one of them.
pub fn check_outputs<'a>(
    outputs: impl IntoIterator<Item = &'a PathBuf>,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    let inputs: Vec<(&Path, PathBuf)> =
        inputs.into_iter().filter_map(|path| Some((path, path.canonicalize().ok()?))).collect();
    let mut seen: Vec<PathBuf> = Vec::new();
    for output in outputs {
        if output == Path::new("-") {
            bail!("-: only --json writes to standard output; for a file of this name, write ./-");
        }
        check_writable(output)?;
        let resolved = resolve(output);
        if let Some((input, _)) = inputs.iter().find(|(_, input)| is_read(input, &resolved)) {
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

/// Whether a command that reads the file or folder `input` may read the file `output`. Below a folder these
/// are images, archives, lists, and the files of a model's folder.
fn is_read(input: &Path, output: &Path) -> bool {
    /// The files that a model's folder consists of.
    const OF_MODEL: [&str; 4] =
        ["config.json", "preprocessor_config.json", "model.safetensors", "pytorch_model.bin"];
    if input == output {
        return true;
    }
    let name = output.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let is_data = name.ends_with(".txt") || name.ends_with(".zip") || swinq::data::is_image_name(&name);
    output.is_file() && output.starts_with(input) && (is_data || OF_MODEL.contains(&name.as_str()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_no_file() {
        let error = check_outputs([&PathBuf::from("-")], []).unwrap_err();
        assert!(error.to_string().contains("standard output"), "{error}");
        check_outputs([&PathBuf::from("./-")], []).unwrap();
    }
}
