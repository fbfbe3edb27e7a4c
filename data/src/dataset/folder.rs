//! Folders of images, with or without a subfolder per class.

use std::path::Path;

use rayon::prelude::*;

use super::labels::Labels;
use crate::error::DataError;

/// Extensions of image files: those of torchvision's `ImageFolder`. All of these formats decode.
const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// The direct entries of a folder in sorted order, without hidden ones.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) folders: Vec<String>,
    pub(super) images: Vec<String>,
    /// Number of files that are not images.
    pub(super) other_files: usize,
}

/// Whether a file name has the extension of an image file that decodes.
pub fn is_image_name(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Lists `folder`. Symbolic links are followed.
pub(super) fn entries(folder: &Path) -> Result<Entries, DataError> {
    let mut entries = Entries::default();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let entry = entry.map_err(|error| DataError::io(folder, error))?;
        let name = entry.file_name().into_string().map_err(|name| {
            DataError::layout(folder, format!("the name {} is not UTF-8; rename it", name.display()))
        })?;
        if name.starts_with('.') {
            continue;
        }
        let kind = entry.file_type().map_err(|error| DataError::io(entry.path(), error))?;
        let is_folder = if kind.is_symlink() { entry.path().is_dir() } else { kind.is_dir() };
        match (is_folder, is_image_name(&name)) {
            (true, _) => entries.folders.push(name),
            (false, true) => entries.images.push(name),
            (false, false) => entries.other_files += 1,
        }
    }
    entries.folders.sort_unstable();
    entries.images.sort_unstable();
    Ok(entries)
}

/// Lists the images in the folders `classes` of `root`, class by class. Images in subfolders of a class
/// folder belong to that class.
///
/// Returns the images' paths relative to `root`, with `prefix` before them, and their labels.
pub(super) fn class_images(
    root: &Path,
    prefix: &str,
    classes: &[String],
) -> Result<(Vec<String>, Labels), DataError> {
    let per_class: Vec<Vec<String>> = classes
        .par_iter()
        .map(|class| {
            let mut names = Vec::new();
            append_images(&root.join(class), &format!("{prefix}{class}/"), 0, &mut names)?;
            Ok(names)
        })
        .collect::<Result<_, DataError>>()?;
    let empty: Vec<&str> = classes
        .iter()
        .zip(&per_class)
        .filter(|(_, names)| names.is_empty())
        .map(|(c, _)| c.as_str())
        .collect();
    if !empty.is_empty() {
        let shown = empty.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        return Err(DataError::layout(
            root,
            format!(
                "{} of {} class folders contain no image ({}): {shown}; add images or remove these folders (each \
                 folder takes a class number)",
                empty.len(),
                classes.len(),
                extensions()
            ),
        ));
    }
    let labels =
        (0_u32..).zip(&per_class).flat_map(|(label, names)| names.iter().map(move |_| label)).collect();
    Ok((per_class.into_iter().flatten().collect(), labels))
}

/// Maximum nesting of folders inside a class. Deeper nesting is taken for a cycle of symbolic links.
const MAX_DEPTH: usize = 32;

/// Appends the images in `folder` and its subfolders to `names`, with `prefix` before each relative path.
fn append_images(
    folder: &Path,
    prefix: &str,
    depth: usize,
    names: &mut Vec<String>,
) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        return Err(DataError::layout(
            folder,
            format!("folders are nested deeper than {MAX_DEPTH} levels; remove a cycle of symbolic links"),
        ));
    }
    let Entries { folders, images, .. } = entries(folder)?;
    names.extend(images.into_iter().map(|image| format!("{prefix}{image}")));
    for inner in folders {
        append_images(&folder.join(&inner), &format!("{prefix}{inner}/"), depth + 1, names)?;
    }
    Ok(())
}

/// The extensions of image files, listed for messages.
pub(super) fn extensions() -> String {
    EXTENSIONS.join(", ")
}
