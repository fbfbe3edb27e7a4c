//! Errors of data sets and of the images in them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::dataset::Split;

/// The reason why an image cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file has a known image format, or uses a part of one, that this crate does not decode.
    #[error("format not supported: {0}; convert the image to JPEG or PNG")]
    Unsupported(String),
    /// The first bytes of the file are of no known image format.
    #[error("not an image: {0}")]
    Unknown(String),
    /// The header claims more pixels than the limit.
    #[error(
        "the header claims {width} x {height} pixels, more than the limit of {limit}; the file is damaged or hostile"
    )]
    TooLarge {
        /// Claimed width in pixels.
        width: u64,
        /// Claimed height in pixels.
        height: u64,
        /// Maximum number of pixels.
        limit: u64,
    },
    /// The file ends before the image is complete.
    #[error("truncated: {0}")]
    Truncated(String),
    /// The file violates its format.
    #[error("corrupt: {0}")]
    Corrupt(String),
}

/// An error of this crate. The message names the file (and the archive member) and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path holds no data set of a known layout.
    #[error("{}: no data set found: {problem}", path.display())]
    Layout {
        /// The path that was opened.
        path: PathBuf,
        /// The layouts that were looked for, and the content that was found instead.
        problem: String,
    },
    /// The data set has other splits but not the requested one.
    #[error(
        "{}: split `{split}` is missing; looked for {looked_for}; the data set has {}",
        path.display(),
        if found.is_empty() { "no splits; leave the split out".to_owned() } else { format!("`{}`", found.join("`, `")) }
    )]
    MissingSplit {
        /// The data set's folder.
        path: PathBuf,
        /// The requested split.
        split: Split,
        /// The files and folders that would have held it.
        looked_for: String,
        /// The splits that the data set has, the nearest to the requested one first; none if its folders are
        /// classes.
        found: Vec<String>,
    },
    /// A list or map file is malformed.
    #[error("{}, line {line}: {problem}", path.display())]
    List {
        /// The list file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// The problem of the line, and the next step.
        problem: String,
    },
    /// A list or map names images that do not exist.
    #[error(
        "{}: {count} of {total} listed images are missing from {}; the first: {}",
        list.display(),
        place.display(),
        first.join(", ")
    )]
    MissingImages {
        /// The list file.
        list: PathBuf,
        /// The archive or folder that should hold them.
        place: PathBuf,
        /// Number of missing images.
        count: usize,
        /// Number of listed images.
        total: usize,
        /// Up to five missing names; for an archive, also an example of a name that it has.
        first: Vec<String>,
    },
    /// A file is not a zip archive that can be read.
    #[error("{}: {problem}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// The problem, and the next step.
        problem: String,
    },
    /// A member of an archive cannot be unpacked.
    #[error("{}@/{member} (local header at byte {offset}): {problem}", archive.display())]
    Member {
        /// The archive.
        archive: PathBuf,
        /// The member's name.
        member: String,
        /// Byte offset of the member's local header in the archive.
        offset: u64,
        /// The problem.
        problem: String,
    },
    /// An image cannot be decoded.
    #[error("{name}{}: {source}", offset.map(|o| format!(" (local header at byte {o})")).unwrap_or_default())]
    Image {
        /// The image's full name: its path, or `archive@/member`.
        name: String,
        /// Byte offset of the member's local header, for an image in an archive.
        offset: Option<u64>,
        /// The decoder's error.
        source: DecodeError,
    },
    /// The file of an image is a symbolic link to nothing.
    #[error(
        "{}: a symbolic link to {}, which does not exist; remove the link, or restore the file",
        path.display(),
        target.display()
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// The path in it.
        target: PathBuf,
    },
    /// More images are corrupt than [`LoaderOptions::skip_corrupt`](crate::LoaderOptions) allows.
    #[error(
        "{source}; the limit of corrupt images to leave out ({skipped}) was reached before it: remove or repair the image, or \
         allow more"
    )]
    TooManyCorrupt {
        /// Number of corrupt images skipped before this one.
        skipped: usize,
        /// The error of the first image over the limit.
        source: Box<DataError>,
    },
    /// A setting has a value outside its range.
    #[error("setting `{field}`: {problem}")]
    Setting {
        /// The setting's name.
        field: &'static str,
        /// The value and its allowed range.
        problem: String,
    },
    /// Labels are required, but the data set has none.
    #[error(
        "{data}: labels are required, but this layout has none; use a folder per class, a Swin zip layout or a list \
         file with classes"
    )]
    NoLabels {
        /// The data set's [description](crate::Dataset::describe).
        data: String,
    },
    /// A decoding thread panicked.
    #[error("the thread that decoded image {id} panicked; its message is on standard error")]
    Worker {
        /// Position of the image in the data set's list.
        id: usize,
    },
}

impl DataError {
    /// Whether the error concerns a single image, its content or a link to nothing in its place, so that a
    /// loader can leave that image out.
    pub fn is_corrupt_image(&self) -> bool {
        matches!(self, DataError::Image { .. } | DataError::Member { .. } | DataError::DanglingLink { .. })
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> DataError {
        DataError::Io { path: path.into(), source }
    }

    /// The error of an image file that could not be read.
    pub(crate) fn image_file(path: &Path, source: std::io::Error) -> DataError {
        let dangling = if source.kind() == ErrorKind::NotFound { DataError::dangling(path) } else { None };
        dangling.unwrap_or_else(|| DataError::io(path, source))
    }

    /// The error of an image file that is a symbolic link to nothing; `None` for any other.
    pub(crate) fn dangling(path: &Path) -> Option<DataError> {
        let target = path.read_link().ok().filter(|_| matches!(path.try_exists(), Ok(false)))?;
        Some(DataError::DanglingLink { path: path.to_owned(), target })
    }

    pub(crate) fn layout(path: impl Into<PathBuf>, problem: impl Into<String>) -> DataError {
        DataError::Layout { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn setting(field: &'static str, problem: impl Into<String>) -> DataError {
        DataError::Setting { field, problem: problem.into() }
    }

    pub(crate) fn archive(path: impl Into<PathBuf>, problem: impl Into<String>) -> DataError {
        DataError::Archive { path: path.into(), problem: problem.into() }
    }
}
