//! Data sets: ordered lists of images, with labels if the layout provides them.

mod archive;
mod cursor;
mod folder;
mod ids;
mod labels;
mod list;
mod names;
mod numbering;
mod open;
mod sample;

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;
use swinq_model::{Orientation, Size};

use crate::decode::{DecodedImage, RgbImage, decode_held, oriented_size, size_of_start};
use crate::error::{DataError, DecodeError};
use archive::Archive;
use labels::Labels;
use names::Names;
use numbering::Numbering;

pub use folder::is_image_name;
pub use ids::Ids;
pub use numbering::NumberingError;
pub use open::image_files;

/// A split of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train`
    Train,
    /// `val`
    Val,
    /// The folder or archive of another name, such as `valid` or `test`.
    Named(String),
}

impl Split {
    /// The split's name in folders and file names.
    pub fn as_str(&self) -> &str {
        match self {
            Split::Train => "train",
            Split::Val => "val",
            Split::Named(name) => name,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not the name of a split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a split; write the name of its folder, such as `train`, `val` or `test`")]
pub struct ParseSplitError(String);

impl FromStr for Split {
    type Err = ParseSplitError;

    fn from_str(text: &str) -> Result<Split, ParseSplitError> {
        match text {
            "train" => Ok(Split::Train),
            "val" => Ok(Split::Val),
            "" | "." | ".." => Err(ParseSplitError(text.to_owned())),
            other if other.contains(['/', '\\', '\0']) => Err(ParseSplitError(text.to_owned())),
            other => Ok(Split::Named(other.to_owned())),
        }
    }
}

/// How a data set is laid out on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The official Swin layout: a zip archive per split, and a map of its members to classes.
    Zip,
    /// A folder per class; classes are numbered in the sorted order of their names.
    ImageFolder,
    /// A text file that lists images, with or without classes.
    List,
    /// Images in one folder, without classes.
    Flat,
    /// Image files given one by one, without classes.
    Files,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Zip => "zip archive with a map",
            Layout::ImageFolder => "folder per class",
            Layout::List => "list file",
            Layout::Flat => "folder of images",
            Layout::Files => "image files",
        })
    }
}

/// An opened data set. Clones share its list and its open archive. Many threads can read it at once.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
    /// The numbers of the classes, if [`Dataset::numbered_by`] gave others than the list's.
    numbering: Option<Arc<Numbering>>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    /// The path that was opened, for [`Dataset::describe`].
    root: PathBuf,
    source: Source,
    /// The list or map that was read.
    list: Option<PathBuf>,
    /// Name of each image: a path relative to the source's folder, a path as given, or a member of the
    /// archive.
    names: Names,
    /// Class of each image; empty if the data set has no labels.
    labels: Labels,
    class_names: Option<Vec<String>>,
    num_classes: Option<usize>,
    /// Whether the classes are numbered in the sorted order of their names.
    numbered_by_name: bool,
    /// The images that were turned when they were decoded.
    turned: Mutex<BTreeSet<usize>>,
}

/// The source of the images' bytes.
#[derive(Debug)]
enum Source {
    /// Files below this folder.
    Folder(PathBuf),
    /// Individual files, by path.
    Paths(Vec<PathBuf>),
    /// Members of an archive, by index.
    Archive { archive: Archive, members: Vec<usize> },
}

impl Dataset {
    /// Opens the data set at `path` and detects its layout:
    ///
    /// - a folder with `{split}.zip` and `{split}_map.txt` (lines `path<TAB>class`): the official Swin
    ///   layout;
    /// - `NAME.zip` with `NAME_map.txt` beside it, or that map: the same, for one archive;
    /// - a folder with `{split}/<class>/…` or `<class>/…`: the classes are numbered in sorted order, and
    ///   folders whose names start with a dot are ignored;
    /// - a folder with images in it or in `{split}/`: no labels;
    /// - a text file of any extension with lines `path<TAB>class`, `path<spaces>number` or `path`: the paths
    ///   are relative to its folder, and a class is a number or, in all lines, a name. Names are numbered by
    ///   `classes.txt`, else in sorted order;
    /// - an image file: no labels.
    ///
    /// Class names come from a `classes.txt` beside the map or list, one per line, or from the class folders.
    ///
    /// # Errors
    /// [`DataError`] if no layout is recognised, the split or a listed image is missing, a list is malformed,
    /// or an archive is damaged.
    pub fn open(path: &Path, split: Split) -> Result<Dataset, DataError> {
        open::open(path, split)
    }

    /// Opens image files as a data set in this order, without labels.
    ///
    /// # Errors
    /// If `paths` is empty, or if one of them is not a readable image file.
    pub fn from_files(paths: &[PathBuf]) -> Result<Dataset, DataError> {
        open::from_files(paths)
    }

    fn new(inner: Inner) -> Dataset {
        Dataset { inner: Arc::new(inner), numbering: None }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.inner.names.len()
    }

    /// Whether the data set has no image. Never true, because opening an empty data set is an error.
    pub fn is_empty(&self) -> bool {
        self.inner.names.is_empty()
    }

    /// The data set's layout.
    pub fn layout(&self) -> Layout {
        self.inner.layout
    }

    /// Name of image `i`: its path relative to the opened folder, or `archive.zip@/member`. It does not
    /// depend on where the data set is stored, except that images of [`Dataset::from_files`] keep the paths
    /// given.
    ///
    /// # Panics
    /// If `i` is not below [`Dataset::len`]. The same holds for the other methods that take a position.
    pub fn name(&self, i: usize) -> String {
        match &self.inner.source {
            Source::Archive { archive, .. } => {
                format!("{}@/{}", archive.file_name(), self.inner.names.get(i))
            }
            Source::Folder(_) | Source::Paths(_) => self.inner.names.get(i),
        }
    }

    /// Class of image `i`, or `None` if the data set has no labels.
    pub fn label(&self, i: usize) -> Option<u32> {
        let label = self.has_labels().then(|| self.inner.labels.get(i))?;
        Some(self.numbering.as_ref().map_or(label, |numbering| numbering.number(label)))
    }

    /// The first image whose class is not below `classes`, in words: the list and the line, or the class
    /// folder, the image and its class. `None` if there is no such image.
    pub fn beyond(&self, classes: usize) -> Option<String> {
        let image = (0..self.inner.labels.len())
            .find(|&i| self.label(i).is_some_and(|label| label as usize >= classes))?;
        let place = match &self.inner.list {
            // A list that cannot be read again has been read once.
            Some(list) => match list::line_of(list, image) {
                Ok(line) => format!("{}, line {line}: ", list.display()),
                Err(_) => format!("{}: ", list.display()),
            },
            None => String::new(),
        };
        Some(format!("{place}{} has class {}", self.name(image), self.label(image)?))
    }

    /// Whether the images have labels. Either all of them have one or none has.
    pub fn has_labels(&self) -> bool {
        !self.inner.labels.is_empty()
    }

    /// Number of classes: the number of class names if they are known, else the largest label plus one.
    /// `None` if the data set has no labels.
    pub fn num_classes(&self) -> Option<usize> {
        self.numbering.as_ref().map_or(self.inner.num_classes, |numbering| Some(numbering.names().len()))
    }

    /// Whether the classes are numbered in the sorted order of their names, so that a part of a model's
    /// classes gets other numbers than the model's.
    pub fn numbered_by_name(&self) -> bool {
        self.inner.numbered_by_name && self.numbering.is_none()
    }

    /// Name of each class: the folders' names, the names in the list, the lines of `classes.txt`, or the
    /// names that [`Dataset::numbered_by`] was given.
    pub fn class_names(&self) -> Option<&[String]> {
        match &self.numbering {
            Some(numbering) => Some(numbering.names()),
            None => self.inner.class_names.as_deref(),
        }
    }

    /// The same images, with their classes numbered by their places in `names` (a model's class names).
    ///
    /// # Errors
    /// [`NumberingError`] if the data set has no class names, or one that `names` does not have exactly once.
    pub fn numbered_by(&self, names: &[String]) -> Result<Dataset, NumberingError> {
        let own = self.inner.class_names.as_deref().unwrap_or_default();
        let numbering = Some(Arc::new(Numbering::new(own, names)?));
        Ok(Dataset { inner: Arc::clone(&self.inner), numbering })
    }

    /// A one-line description for logs: path, layout, number of images, number of classes.
    pub fn describe(&self) -> String {
        let classes = match self.num_classes() {
            Some(1) => "1 class".to_owned(),
            Some(classes) => format!("{classes} classes"),
            None => "no labels".to_owned(),
        };
        let images = if self.len() == 1 { "image" } else { "images" };
        let Inner { root, layout, .. } = &*self.inner;
        format!("{} ({layout}): {} {images}, {classes}", root.display(), self.len())
    }

    /// Reads the file or archive member of image `i`, not decoded.
    ///
    /// # Errors
    /// If the file or archive member cannot be read. The error names it and, in an archive, its offset.
    pub fn read(&self, i: usize) -> Result<Vec<u8>, DataError> {
        let read = |path: PathBuf| std::fs::read(&path).map_err(|error| DataError::image_file(&path, error));
        match &self.inner.source {
            Source::Folder(root) => read(root.join(self.inner.names.get(i))),
            Source::Paths(paths) => read(paths[i].clone()),
            Source::Archive { archive, members } => archive.read(members[i]),
        }
    }

    /// Height and width of image `i` after the turn that `orientation` allows, from the headers in its file.
    ///
    /// # Errors
    /// Those of [`Dataset::read`] and [`oriented_size`](crate::oriented_size), with the name of the file, or
    /// with the name and offset of the archive member.
    pub fn image_size(&self, i: usize, orientation: Orientation) -> Result<Size, DataError> {
        let start = self.read_start(i)?;
        if let Some(size) = start.and_then(|start| size_of_start(&start, orientation)) {
            return Ok(size);
        }
        // The headers may be longer, or lie behind the pixels.
        oriented_size(&self.read(i)?, orientation).map_err(|source| self.image_error(i, source))
    }

    /// [`Dataset::image_size`] of every image, in order.
    pub fn image_sizes(&self, orientation: Orientation) -> Vec<Result<Size, DataError>> {
        (0..self.len()).into_par_iter().map(|i| self.image_size(i, orientation)).collect()
    }

    /// The first bytes of the file of image `i`; `None` for a member of an archive.
    fn read_start(&self, i: usize) -> Result<Option<Vec<u8>>, DataError> {
        /// Enough for the header of a photograph with a preview and a colour profile.
        const START: u64 = 1 << 17;
        let path = match &self.inner.source {
            Source::Folder(root) => root.join(self.inner.names.get(i)),
            Source::Paths(paths) => paths[i].clone(),
            Source::Archive { .. } => return Ok(None),
        };
        let mut start = Vec::new();
        let read = std::fs::File::open(&path).and_then(|file| file.take(START).read_to_end(&mut start));
        read.map_err(|error| DataError::image_file(&path, error))?;
        Ok(Some(start))
    }

    /// Reads and decodes image `i`, as it is stored.
    ///
    /// # Errors
    /// Those of [`Dataset::decode_oriented`].
    pub fn decode(&self, i: usize) -> Result<RgbImage, DataError> {
        self.decode_oriented(i, Orientation::Stored)
    }

    /// Reads and decodes image `i`, and turns it by the rule `orientation`.
    ///
    /// # Errors
    /// Those of [`Dataset::read`] and [`decode_oriented`](crate::decode_oriented), with the name of the file,
    /// or with the name and offset of the archive member.
    pub fn decode_oriented(&self, i: usize, orientation: Orientation) -> Result<RgbImage, DataError> {
        self.decode_held(i, orientation).map(|held| held.image)
    }

    /// [`Dataset::decode_oriented`], with the share of memory kept until the image has been used.
    pub(crate) fn decode_held(&self, i: usize, orientation: Orientation) -> Result<DecodedImage, DataError> {
        let held = decode_held(&self.read(i)?, orientation).map_err(|source| self.image_error(i, source))?;
        if held.turned {
            self.inner.turned.lock().unwrap_or_else(PoisonError::into_inner).insert(i);
        }
        Ok(held)
    }

    /// The images that were turned so far when they were decoded, by this data set or a clone of it, in
    /// ascending order.
    pub fn turned(&self) -> Vec<usize> {
        self.inner.turned.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// The error for image `i`, which cannot be decoded.
    pub(crate) fn image_error(&self, i: usize, source: DecodeError) -> DataError {
        let (name, offset) = self.location(i);
        DataError::Image { name, offset, source }
    }

    /// Full name of image `i` for error messages and, in an archive, the offset of its local header.
    fn location(&self, i: usize) -> (String, Option<u64>) {
        let name = self.inner.names.get(i);
        match &self.inner.source {
            Source::Folder(root) => (root.join(name).display().to_string(), None),
            Source::Paths(paths) => (paths[i].display().to_string(), None),
            Source::Archive { archive, members } => {
                (format!("{}@/{name}", archive.path().display()), archive.offset(members[i]))
            }
        }
    }

    /// Draws `limit` positions from the whole list without replacement. Equal seeds give equal samples.
    ///
    /// The sample is stratified: every class contributes the same number of images, or all of them if it has
    /// fewer, and classes drawn at random contribute one more to reach `limit`. Without labels the draw is
    /// uniform. The result is shuffled. A limit beyond the data set gives every position, shuffled; `None`
    /// gives every position in list order.
    pub fn sample(&self, limit: Option<usize>, seed: u64) -> Ids {
        match limit {
            Some(limit) => sample::stratified(&self.inner.labels, self.len(), limit, seed).into(),
            None => Ids::all(self.len()),
        }
    }
}
