//! What can be wrong with a data set or an image in it.

use std::path::PathBuf;

use crate::dataset::Split;

/// Why bytes are not an image this crate decodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file starts like an image of a format that is not decoded.
    #[error("format not supported: {0}; convert the image to JPEG or PNG")]
    Unsupported(&'static str),
    /// The file starts like no known image format.
    #[error("not an image: {0}")]
    Unknown(String),
    /// The header claims more pixels than any photograph has.
    #[error(
        "the header claims {width} x {height} pixels, more than the limit of {limit}; the file is damaged or hostile"
    )]
    TooLarge {
        /// Claimed width.
        width: u64,
        /// Claimed height.
        height: u64,
        /// Pixels allowed.
        limit: u64,
    },
    /// The data ends before the image does.
    #[error("truncated: {0}")]
    Truncated(String),
    /// The data contradicts the format.
    #[error("corrupt: {0}")]
    Corrupt(String),
}

/// An error of this crate. Every message names the file (and the archive member) and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No data set of any known layout is at this path.
    #[error("{}: no data set found: {problem}", path.display())]
    Layout {
        /// The path opened.
        path: PathBuf,
        /// What was looked for and what was there instead.
        problem: String,
    },
    /// The data set has other splits but not the one asked for.
    #[error("{}: split `{split}` is missing; looked for {looked_for}", path.display())]
    MissingSplit {
        /// The data set's root.
        path: PathBuf,
        /// The split asked for.
        split: Split,
        /// Every form of it that was looked for.
        looked_for: String,
    },
    /// A list or map file is malformed.
    #[error("{}, line {line}: {problem}", path.display())]
    List {
        /// The list file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A list or map names images that do not exist.
    #[error("{}: {count} of {total} listed images are missing from {}; the first: {}", list.display(), place.display(), first.join(", "))]
    MissingImages {
        /// The list file.
        list: PathBuf,
        /// The archive or folder that should hold them.
        place: PathBuf,
        /// How many are missing.
        count: usize,
        /// How many are listed.
        total: usize,
        /// Up to five of the missing names.
        first: Vec<String>,
    },
    /// An archive is damaged or of another kind.
    #[error("{}: {problem}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it and what to do.
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
        /// What is wrong with it.
        problem: String,
    },
    /// An image cannot be decoded.
    #[error("{name}{}: {source}", offset.map(|o| format!(" (local header at byte {o})")).unwrap_or_default())]
    Image {
        /// The image's full name: its path, or `archive@/member`.
        name: String,
        /// Byte offset of the member's local header, for an image in an archive.
        offset: Option<u64>,
        /// The decoder's reason.
        source: DecodeError,
    },
    /// More images could not be decoded than [`LoaderOptions::skip_corrupt`](crate::LoaderOptions) tolerates.
    #[error(
        "{source}; {skipped} corrupt images were skipped before it (the limit): remove or repair the image, or allow more"
    )]
    TooManyCorrupt {
        /// Images skipped before this one.
        skipped: usize,
        /// The error of the first image over the limit.
        source: Box<DataError>,
    },
    /// A setting has a value that means nothing.
    #[error("setting `{field}`: {problem}")]
    Setting {
        /// The setting's name.
        field: &'static str,
        /// The value, and what it may be.
        problem: String,
    },
    /// Labels were asked of a data set that has none.
    #[error(
        "{data}: labels are needed, and this layout has none; use a folder per class, a Swin zip layout or a list \
         file with classes"
    )]
    NoLabels {
        /// The data set, as [`Dataset::describe`](crate::Dataset::describe) has it.
        data: String,
    },
    /// A decoding thread ended without a result.
    #[error("the thread that decoded image {id} panicked; its message is on standard error")]
    Worker {
        /// Position of the image in the data set's list.
        id: usize,
    },
}

impl DataError {
    /// Whether the error is about one image's content, so that going on without that image is possible.
    pub fn is_corrupt_image(&self) -> bool {
        matches!(self, DataError::Image { .. } | DataError::Member { .. })
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> DataError {
        DataError::Io { path: path.into(), source }
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
