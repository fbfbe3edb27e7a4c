//! Detection of a data set's layout, and opening it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rayon::prelude::*;

use super::archive::Archive;
use super::folder::{self, Entries};
use super::labels::Labels;
use super::list::{self, Listing};
use super::names::Names;
use super::{Dataset, Inner, Layout, Source, Split};
use crate::decode::sniff;
use crate::error::{DataError, DecodeError};

/// Opens the data set at `path`; see [`Dataset::open`].
pub(super) fn open(path: &Path, split: Split) -> Result<Dataset, DataError> {
    let kind = std::fs::metadata(path).map_err(|error| DataError::io(path, error))?;
    if kind.is_dir() {
        return open_folder(path, split);
    }
    // A pipe could be read only once, and might wait for ever.
    if !kind.is_file() {
        return Err(DataError::layout(path, "is neither a regular file nor a folder"));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("txt") => open_text(path),
        Some("zip") => {
            let map = path.with_file_name(format!("{}_map.txt", stem(path)));
            open_zip(path, path, &map)
        }
        _ if is_text(path)? => open_text(path),
        _ => from_files(&[path.to_owned()]),
    }
}

/// Whether the file begins like text and neither begins nor is named like an image.
fn is_text(path: &Path) -> Result<bool, DataError> {
    let (head, is_image) = head(path)?;
    let valid = match std::str::from_utf8(&head) {
        Ok(_) => true,
        // The last character may be cut.
        Err(error) => error.error_len().is_none() && error.valid_up_to() > 0,
    };
    Ok(valid && !is_image && !head.is_empty() && !head.contains(&0))
}

/// The first bytes of a file, and whether it begins or is named like an image.
fn head(path: &Path) -> Result<(Vec<u8>, bool), DataError> {
    use std::io::Read;
    let mut head = Vec::new();
    // A pipe would wait for its writer when it is opened.
    if !path.metadata().map_err(|error| DataError::io(path, error))?.is_file() {
        let kind = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
        return Err(DataError::io(path, kind));
    }
    let file = std::fs::File::open(path).map_err(|error| DataError::io(path, error))?;
    file.take(64).read_to_end(&mut head).map_err(|error| DataError::io(path, error))?;
    let named = path.file_name().is_some_and(|name| folder::is_image_name(&name.to_string_lossy()));
    let is_image = sniff(&head).is_some() || named;
    Ok((head, is_image))
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folder of `path`; the current folder if `path` names none.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Opens a folder: the split's archive in it, the split's folder in it, or the images directly in it.
fn open_folder(root: &Path, split: Split) -> Result<Dataset, DataError> {
    let (zip, map) = (root.join(format!("{split}.zip")), root.join(format!("{split}_map.txt")));
    if zip.is_file() {
        return open_zip(root, &zip, &map);
    }
    if map.is_file() {
        return Err(DataError::layout(
            root,
            format!("found {split}_map.txt but no {split}.zip; put the archive beside its map"),
        ));
    }
    let inside = root.join(split.as_str());
    if inside.is_dir() {
        return open_images(root, &inside, &format!("{split}/"));
    }
    if let Some(found) = other_splits(root, &split)? {
        return Err(DataError::MissingSplit {
            path: root.to_owned(),
            looked_for: format!("{split}.zip with {split}_map.txt, and a folder {split}/"),
            split,
            found,
        });
    }
    open_images(root, root, "")
}

/// Names that folders and archives of splits have.
const SPLITS: [&str; 8] = ["train", "training", "val", "valid", "validation", "test", "testing", "dev"];

/// The splits of `root`, if its folders and archives are those of splits: if `train` or `val` is among them,
/// or if all folders have names of splits. None of them if the folders are classes, but `split`, which is
/// missing, is neither `train` nor `val`. Splits for validation and tests come before those for training,
/// unless `split` is one of these.
fn other_splits(root: &Path, split: &Split) -> Result<Option<Vec<String>>, DataError> {
    let folders = folder::entries(root)?.folders;
    let is_split = |name: &String| SPLITS.contains(&name.to_ascii_lowercase().as_str());
    let common = [Split::Train, Split::Val];
    let has = |name: &&Split| root.join(format!("{name}.zip")).exists() || root.join(name.as_str()).is_dir();
    let mut found: Vec<String> = common.iter().filter(has).map(Split::to_string).collect();
    let splits = !found.is_empty() || (!folders.is_empty() && folders.iter().all(is_split));
    if !splits && common.contains(split) {
        return Ok(None);
    }
    let others = folders.into_iter().filter(|name| splits && is_split(name) && !found.contains(name));
    found.extend(others.collect::<Vec<_>>());
    let for_training = |name: &str| name.to_ascii_lowercase().starts_with("train");
    found.sort_by_key(|name| for_training(name) != for_training(split.as_str()));
    found.truncate(SHOWN);
    Ok(Some(found))
}

/// Opens a folder of class folders or of images. `prefix` is the path from `root` to `folder`.
fn open_images(root: &Path, folder: &Path, prefix: &str) -> Result<Dataset, DataError> {
    let Entries { folders, images, other_files } = folder::entries(folder)?;
    let mut inner = Inner {
        layout: Layout::ImageFolder,
        root: root.to_owned(),
        source: Source::Folder(root.to_owned()),
        list: None,
        names: Names::default(),
        labels: Labels::default(),
        class_names: None,
        num_classes: None,
        numbered_by_name: true,
        turned: Mutex::default(),
    };
    match (folders.is_empty(), images.is_empty()) {
        (false, true) => {
            let names;
            (names, inner.labels) = folder::class_images(folder, prefix, &folders)?;
            inner.names = names.into_iter().collect();
            inner.num_classes = Some(folders.len());
            inner.class_names = Some(folders);
        }
        (true, false) => {
            inner.layout = Layout::Flat;
            inner.names = images.into_iter().map(|image| format!("{prefix}{image}")).collect();
        }
        (true, true) => return Err(no_images(folder, other_files)),
        (false, false) => return Err(images_beside_folders(folder, images.len(), folders.len())),
    }
    Ok(Dataset::new(inner))
}

fn no_images(folder: &Path, other_files: usize) -> DataError {
    let problem = format!(
        "looked for train.zip or val.zip with its map, folders train/ or val/, a folder per class, and images ({}); \
         found {other_files} files of other kinds and no folder",
        folder::extensions()
    );
    DataError::layout(folder, problem)
}

fn images_beside_folders(folder: &Path, images: usize, folders: usize) -> DataError {
    let problem = format!(
        "{images} images lie beside {folders} folders, so this is neither a folder of class folders nor a folder of \
         images; move the images or the folders away"
    );
    DataError::layout(folder, problem)
}

/// Opens an archive with the map of its members. `root` is the path that the user gave.
fn open_zip(root: &Path, zip: &Path, map: &Path) -> Result<Dataset, DataError> {
    if !map.is_file() {
        let problem = format!(
            "found {} but not its map {}; write the map, with lines path<TAB>class",
            zip.display(),
            map.display()
        );
        return Err(DataError::layout(root, problem));
    }
    let listing = list::read(map)?;
    let archive = Archive::open(zip)?;
    let (mut members, mut first, mut missing) = (Vec::new(), Vec::new(), 0);
    listing.names.visit(|index, name| match archive.find(name) {
        Some(member) => members.push(member),
        None => {
            missing += 1;
            first.extend((missing <= SHOWN).then(|| (index, name.to_owned())));
        }
    });
    if missing > 0 {
        refuse_separators(map, &first, |name| archive.find(name).is_some())?;
        let mut first = names_of(first);
        if let Some(example) = archive.file_names().next() {
            first.push(format!("while the archive has, for example, {example}"));
        }
        return Err(DataError::MissingImages {
            list: map.to_owned(),
            place: zip.to_owned(),
            count: missing,
            total: listing.names.len(),
            first,
        });
    }
    from_listing(root, map, Layout::Zip, Source::Archive { archive, members }, listing)
}

/// Opens a list of files, or the archive whose map `path` is.
fn open_text(path: &Path) -> Result<Dataset, DataError> {
    if let Some(stem) = stem(path).strip_suffix("_map") {
        let zip = path.with_file_name(format!("{stem}.zip"));
        if zip.is_file() {
            return open_zip(path, &zip, path);
        }
    }
    let listing = list::read(path)?;
    let folder = parent(path);
    let (missing, first) = missing_files(&listing.names, folder, ALL_CHECKED);
    if missing > 0 {
        refuse_separators(path, &first, |name| folder.join(name).is_file())?;
        return Err(DataError::MissingImages {
            list: path.to_owned(),
            place: folder.to_owned(),
            count: missing,
            total: listing.names.len(),
            first: names_of(first),
        });
    }
    from_listing(path, path, Layout::List, Source::Folder(folder.to_owned()), listing)
}

fn names_of(images: Vec<(usize, String)>) -> Vec<String> {
    images.into_iter().map(|(_, name)| name).collect()
}

/// Refuses a list in which one of the `missing` names, by their positions, is that of an image and more, a
/// column that no tab separates, or that of an image with backslashes between its folders.
fn refuse_separators(
    list: &Path,
    missing: &[(usize, String)],
    exists: impl Fn(&str) -> bool,
) -> Result<(), DataError> {
    /// Blanks, commas and semicolons of a name that are looked at.
    const SEPARATORS: usize = 64;
    for (index, name) in missing {
        let slashed = name.replace('\\', "/");
        if slashed != *name && exists(&slashed) {
            let problem =
                format!("folders are separated by `/`, and this line has backslashes; write {slashed}");
            return Err(DataError::List {
                path: list.to_owned(),
                line: list::line_of(list, *index)?,
                problem,
            });
        }
        let mut separators = name.match_indices([' ', ',', ';']).take(SEPARATORS);
        let Some((at, separator)) = separators.find(|(at, _)| exists(&name[..*at])) else { continue };
        let what = match separator {
            "," => "a comma",
            ";" => "a semicolon",
            _ => "a blank",
        };
        let problem = format!(
            "columns are separated by tabs, and this line has {what} behind the image `{}`; write path<TAB>class",
            &name[..at]
        );
        let line = list::line_of(list, *index)?;
        return Err(DataError::List { path: list.to_owned(), line, problem });
    }
    Ok(())
}

/// Number of missing names that an error shows.
const SHOWN: usize = 5;

/// The longest list whose files are all looked for when it is opened.
const ALL_CHECKED: usize = 1 << 20;

/// Number of `names` that are no files in `folder`, and the first of them with their positions. Of a list
/// with more than `all` names only a part is looked for, spread over the list; another missing file is an
/// error when it is read.
fn missing_files(names: &Names, folder: &Path, all: usize) -> (usize, Vec<(usize, String)>) {
    let step = names.len().div_ceil(all).pow(2);
    let in_block = |block| {
        let (mut count, mut first) = (0, Vec::new());
        names.visit_block(block, |index, name| {
            if !folder.join(name).is_file() {
                count += 1;
                first.extend((count <= SHOWN).then(|| (index, name.to_owned())));
            }
        });
        (count, first)
    };
    let join = |(before, mut first): (usize, Vec<_>), (after, rest): (usize, Vec<_>)| {
        let room = SHOWN.saturating_sub(first.len());
        first.extend(rest.into_iter().take(room));
        (before + after, first)
    };
    (0..names.blocks()).into_par_iter().step_by(step).map(in_block).reduce(|| (0, Vec::new()), join)
}

/// The data set that `listing`, the contents of `list`, describes.
fn from_listing(
    root: &Path,
    list: &Path,
    layout: Layout,
    source: Source,
    listing: Listing,
) -> Result<Dataset, DataError> {
    let mut listing = listing;
    let mut class_names = None;
    if !listing.labels.is_empty() {
        class_names = list::class_names(parent(list))?;
    }
    if let Some(all) = &class_names {
        if listing.classes.is_none() {
            check_named(list, &listing, all.len())?;
        }
        let refuse = |problem: String| DataError::layout(root, problem);
        listing.number_by(all).map_err(refuse)?;
    }
    let Listing { names, labels, classes } = listing;
    let numbered_by_name = classes.is_some();
    let class_names = class_names.or(classes);
    let largest = labels.iter().max().map(|label| label as usize + 1);
    let num_classes = class_names.as_ref().map(Vec::len).or(largest);
    Ok(Dataset::new(Inner {
        layout,
        root: root.to_owned(),
        source,
        list: Some(list.to_owned()),
        names,
        labels,
        class_names,
        num_classes,
        numbered_by_name,
        turned: Mutex::default(),
    }))
}

/// Refuses a class number that is beyond the `count` names of a `classes.txt`.
fn check_named(list: &Path, listing: &Listing, count: usize) -> Result<(), DataError> {
    let Some(image) = listing.labels.iter().position(|label| label as usize >= count) else { return Ok(()) };
    let problem = format!(
        "{} has class {}, but classes.txt beside the list has {count} names, for the classes 0 to {}; add the missing \
         names, or mend the number",
        listing.names.get(image),
        listing.labels.get(image),
        count.saturating_sub(1)
    );
    Err(DataError::List { path: list.to_owned(), line: list::line_of(list, image)?, problem })
}

/// Opens individual image files; see [`Dataset::from_files`].
pub(super) fn from_files(paths: &[PathBuf]) -> Result<Dataset, DataError> {
    let Some(first) = paths.first() else {
        return Err(DataError::layout("", "no image file was given; give at least one"));
    };
    for path in paths {
        check_is_image(path)?;
    }
    let names = paths.iter().map(|path| path.display().to_string()).collect();
    Ok(Dataset::new(Inner {
        layout: Layout::Files,
        root: first.clone(),
        source: Source::Paths(paths.to_vec()),
        list: None,
        names,
        labels: Labels::default(),
        class_names: None,
        num_classes: None,
        numbered_by_name: false,
        turned: Mutex::default(),
    }))
}

/// The image files that `path` names: itself, or the images directly in a folder, in sorted order. In their
/// places stand errors: one for a path that cannot be read, a file that is no image, and a folder without
/// images, and one for each link in a folder whose target does not exist.
pub fn image_files(path: &Path) -> Vec<Result<PathBuf, DataError>> {
    match image_paths(path) {
        Ok(paths) => paths.into_iter().map(|path| DataError::dangling(&path).map_or(Ok(path), Err)).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// The same, with links whose targets do not exist.
fn image_paths(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let kind = std::fs::metadata(path).map_err(|error| DataError::io(path, error))?;
    if !kind.is_dir() {
        let (_, is_image) = head(path)?;
        let problem =
            "neither its name nor its first bytes are those of an image; a list or an archive is a data set";
        return if is_image { Ok(vec![path.to_owned()]) } else { Err(not_an_image(path, problem)) };
    }
    let images = folder::entries(path)?.images;
    if images.is_empty() {
        let problem = format!("the folder has no image ({}) directly in it", folder::extensions());
        return Err(not_an_image(path, &problem));
    }
    Ok(images.into_iter().map(|image| path.join(image)).collect())
}

fn not_an_image(path: &Path, problem: &str) -> DataError {
    let source = DecodeError::Unknown(problem.to_owned());
    DataError::Image { name: path.display().to_string(), offset: None, source }
}

/// Refuses a file that neither starts nor is named like an image, so that a wrong path is reported at once.
fn check_is_image(path: &Path) -> Result<(), DataError> {
    match head(path)? {
        (_, true) => Ok(()),
        _ => Err(DataError::layout(
            path,
            "the file is neither an image, nor a list of images, nor a .zip with a map",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_list_a_part_is_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let names: Names = (0..1000).map(|i| format!("{i}.png")).collect();
        assert_eq!(missing_files(&names, folder.path(), 1000).0, 1000);
        // Blocks 0, 4, ... of 32 blocks; the last block has 8 names.
        let (missing, first) = missing_files(&names, folder.path(), 500);
        assert_eq!((missing, first[0].clone()), (8 * 32, (0, "0.png".to_owned())));
    }
}
