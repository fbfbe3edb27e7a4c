//! Folders of images, with a folder per class or without.

use std::path::Path;

use rayon::prelude::*;

use crate::error::DataError;

/// Extensions of image files, as torchvision's `ImageFolder` knows them. Those that cannot be decoded are listed
/// too, so that their presence is an error and not a smaller data set.
const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// What is directly in a folder, in sorted order, hidden entries left out.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) folders: Vec<String>,
    pub(super) images: Vec<String>,
    pub(super) other_files: usize,
}

/// Whether a file name is an image's.
pub(super) fn is_image_name(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Lists `folder`; links are followed.
pub(super) fn entries(folder: &Path) -> Result<Entries, DataError> {
    let mut entries = Entries::default();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let entry = entry.map_err(|error| DataError::io(folder, error))?;
        let name = entry.file_name().into_string().map_err(|name| {
            DataError::layout(folder, format!("{} is not a UTF-8 name; rename it", name.display()))
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

/// The images of every class folder of `root`, class by class, as paths with `prefix` before the class, and
/// their labels. Folders inside a class belong to it.
pub(super) fn classes(
    root: &Path,
    prefix: &str,
    classes: &[String],
) -> Result<(Vec<String>, Vec<u32>), DataError> {
    let per_class: Vec<Vec<String>> = classes
        .par_iter()
        .map(|class| {
            let mut names = Vec::new();
            collect(&root.join(class), &format!("{prefix}{class}/"), 0, &mut names)?;
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
                "{} of {} class folders hold no image ({}): {shown}; fill or remove them (classes are numbered \
                 by folder)",
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

/// Folders nested deeper than this are taken for a cycle of links.
const MAX_DEPTH: usize = 32;

fn collect(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        return Err(DataError::layout(
            folder,
            format!("nested deeper than {MAX_DEPTH} folders; a cycle of links?"),
        ));
    }
    let Entries { folders, images, .. } = entries(folder)?;
    names.extend(images.into_iter().map(|image| format!("{prefix}{image}")));
    for inner in folders {
        collect(&folder.join(&inner), &format!("{prefix}{inner}/"), depth + 1, names)?;
    }
    Ok(())
}

/// The extensions, for messages.
pub(super) fn extensions() -> String {
    EXTENSIONS.join(", ")
}
