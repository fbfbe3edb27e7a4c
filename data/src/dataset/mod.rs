//! Data sets: an ordered list of images, with labels where the layout has them.

mod archive;
mod cursor;
mod folder;
mod list;
mod open;
mod sample;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::decode::{RgbImage, decode_image};
use crate::error::DataError;
use archive::Archive;

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train`
    Train,
    /// `val`
    Val,
}

impl Split {
    /// The split's name in folders and file names.
    pub fn as_str(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Val => "val",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a split; write `train` or `val`")]
pub struct ParseSplitError(String);

impl FromStr for Split {
    type Err = ParseSplitError;

    fn from_str(text: &str) -> Result<Split, ParseSplitError> {
        match text {
            "train" => Ok(Split::Train),
            "val" => Ok(Split::Val),
            other => Err(ParseSplitError(other.to_owned())),
        }
    }
}

/// How a data set is laid out on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The official Swin layout: an archive per split and a map of its members to classes.
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

/// An opened data set. Cloning it shares the list and the open archive; it can be read from many threads.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    /// What was opened, for descriptions.
    root: PathBuf,
    source: Source,
    /// Name of each image: a path relative to the source's folder, or a member of its archive.
    names: Vec<String>,
    /// Class of each image; empty where there are none.
    labels: Vec<u32>,
    class_names: Option<Vec<String>>,
    num_classes: Option<usize>,
}

/// Where the images' bytes are.
#[derive(Debug)]
enum Source {
    /// Files below this folder.
    Folder(PathBuf),
    /// Files wherever they are, named by their paths.
    Paths(Vec<PathBuf>),
    /// Members of an archive, by index.
    Archive { archive: Archive, members: Vec<usize> },
}

impl Dataset {
    /// Opens the data set at `path`, whichever layout it has:
    ///
    /// - a folder with `{split}.zip` and `{split}_map.txt` (lines `path<TAB>class`), the official Swin layout;
    /// - a folder with `{split}/<class>/…` or `<class>/…`, the classes numbered in sorted order (folders whose
    ///   names start with a dot are no classes);
    /// - a folder of images, or `{split}/` with images in it: no labels;
    /// - a `.txt` list, lines `path<TAB or spaces>class` or `path`, paths relative to the list's folder; beside a
    ///   `.zip` of the same stem less `_map`, paths inside that archive;
    /// - one image file.
    ///
    /// A `classes.txt` beside a map or a list, one class per line, names the classes; a folder per class names its
    /// own.
    ///
    /// # Errors
    /// No layout recognised, the split missing, a malformed list, listed images missing, a damaged archive; each
    /// says what was looked for.
    pub fn open(path: &Path, split: Split) -> Result<Dataset, DataError> {
        open::open(path, split)
    }

    /// The image files `paths`, in this order, without labels.
    ///
    /// # Errors
    /// A path that is not a readable file, or no path at all.
    pub fn from_files(paths: &[PathBuf]) -> Result<Dataset, DataError> {
        open::from_files(paths)
    }

    fn new(inner: Inner) -> Dataset {
        Dataset { inner: Arc::new(inner) }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.inner.names.len()
    }

    /// Whether there is no image; an opened data set has at least one.
    pub fn is_empty(&self) -> bool {
        self.inner.names.is_empty()
    }

    /// How the data set is laid out.
    pub fn layout(&self) -> Layout {
        self.inner.layout
    }

    /// Name of image `i`, the same on every machine: relative to the path opened, or `archive.zip@/member`. Images
    /// of [`Dataset::from_files`] have the paths given.
    ///
    /// # Panics
    /// Where `i` is not below [`Dataset::len`]; so do the other methods that take a position.
    pub fn name(&self, i: usize) -> String {
        match &self.inner.source {
            Source::Archive { archive, .. } => format!("{}@/{}", archive.file_name(), self.inner.names[i]),
            Source::Folder(_) | Source::Paths(_) => self.inner.names[i].clone(),
        }
    }

    /// Class of image `i`, where the data set has labels.
    pub fn label(&self, i: usize) -> Option<u32> {
        self.has_labels().then(|| self.inner.labels[i])
    }

    /// Whether the images have labels: all of them have, or none.
    pub fn has_labels(&self) -> bool {
        !self.inner.labels.is_empty()
    }

    /// Number of classes: of the class names where there are any, else the largest label and one.
    pub fn num_classes(&self) -> Option<usize> {
        self.inner.num_classes
    }

    /// Name of each class: the folders' names, or the lines of `classes.txt`.
    pub fn class_names(&self) -> Option<&[String]> {
        self.inner.class_names.as_deref()
    }

    /// One line for a log: path, layout, images, classes.
    pub fn describe(&self) -> String {
        let classes = match self.num_classes() {
            Some(classes) => format!("{classes} classes"),
            None => "no labels".to_owned(),
        };
        let Inner { root, layout, .. } = &*self.inner;
        format!("{} ({layout}): {} images, {classes}", root.display(), self.len())
    }

    /// The bytes of image `i`'s file.
    ///
    /// # Errors
    /// The file or archive member cannot be read, with its name and, in an archive, its offset.
    pub fn read(&self, i: usize) -> Result<Vec<u8>, DataError> {
        match &self.inner.source {
            Source::Archive { archive, members } => archive.read(members[i]),
            Source::Folder(_) | Source::Paths(_) => {
                let path = self.path(i);
                std::fs::read(&path).map_err(|error| DataError::io(path, error))
            }
        }
    }

    /// The pixels of image `i`.
    ///
    /// # Errors
    /// As [`Dataset::read`] and [`decode_image`], naming the file, or the archive member and its offset.
    pub fn decode(&self, i: usize) -> Result<RgbImage, DataError> {
        decode_image(&self.read(i)?).map_err(|source| match &self.inner.source {
            Source::Archive { archive, members } => DataError::Image {
                name: format!("{}@/{}", archive.path().display(), self.inner.names[i]),
                offset: archive.offset(members[i]),
                source,
            },
            Source::Folder(_) | Source::Paths(_) => {
                DataError::Image { name: self.path(i).display().to_string(), offset: None, source }
            }
        })
    }

    fn path(&self, i: usize) -> PathBuf {
        match &self.inner.source {
            Source::Folder(root) => root.join(&self.inner.names[i]),
            Source::Paths(paths) => paths[i].clone(),
            Source::Archive { archive, .. } => archive.path().join(&self.inner.names[i]),
        }
    }

    /// A sample of `limit` positions without replacement across the whole list, the same for the same seed.
    ///
    /// Every class gives the same number of images as far as it has them, the remainder falls on classes drawn at
    /// random, and the result is shuffled; without labels the draw is uniform. A limit beyond the data set gives
    /// every image, shuffled. `None` is every position in list order.
    pub fn sample(&self, limit: Option<usize>, seed: u64) -> Vec<usize> {
        match limit {
            Some(limit) => sample::stratified(&self.inner.labels, self.len(), limit, seed),
            None => (0..self.len()).collect(),
        }
    }
}
