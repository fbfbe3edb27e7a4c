//! A zip archive that many threads can read at once. Its central directory is parsed only once.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::cursor::Cursor;
use crate::error::DataError;

/// Maximum unpacked size of a member in bytes. No image file is larger, so a header that claims more is
/// wrong.
const MAX_MEMBER: u64 = 1 << 30;
/// Maximum number of bytes reserved for a member before any of it is unpacked, because its header may be
/// wrong.
const MAX_RESERVE: u64 = 1 << 24;

/// An open archive. Reads take `&self`, so that threads can share it: each read clones the cursor and shares
/// the directory.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    zip: ZipArchive<Cursor>,
}

impl Archive {
    /// Opens `path` and parses its central directory.
    pub(super) fn open(path: &Path) -> Result<Archive, DataError> {
        let file = File::open(path).map_err(|error| DataError::io(path, error))?;
        let cursor = Cursor::new(file).map_err(|error| DataError::io(path, error))?;
        let length = cursor.length();
        let zip = ZipArchive::new(cursor).map_err(|error| {
            let problem = format!(
                "is a truncated or damaged zip archive ({error}; {length} bytes); copy or download it again"
            );
            DataError::archive(path, problem)
        })?;
        if zip.has_duplicate_names() {
            return Err(DataError::archive(
                path,
                "several members have the same name; repack the archive with unique names",
            ));
        }
        Ok(Archive { path: path.to_owned(), zip })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The archive's name without its folder.
    pub(super) fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Index of the member named `name`.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.zip.index_for_name_raw(name.as_bytes())
    }

    /// Names of the members that are files, in archive order. Names that are not UTF-8 are left out.
    pub(super) fn file_names(&self) -> impl Iterator<Item = &str> {
        self.zip
            .file_names_raw()
            .filter_map(|name| std::str::from_utf8(name).ok())
            .filter(|name| !name.ends_with('/'))
    }

    /// Byte offset of a member's local header.
    pub(super) fn offset(&self, member: usize) -> Option<u64> {
        self.zip.by_index_data(member).ok().map(|entry| entry.header_start())
    }

    /// Unpacks a member and verifies its checksum.
    pub(super) fn read(&self, member: usize) -> Result<Vec<u8>, DataError> {
        let mut zip = self.zip.clone();
        let mut file = zip.by_index(member).map_err(|error| self.bad_member(member, error.to_string()))?;
        let claimed = file.size();
        if claimed > MAX_MEMBER {
            let problem = format!("its header claims {claimed} bytes, more than the limit of {MAX_MEMBER}");
            return Err(self.bad_member(member, problem));
        }
        let mut bytes = Vec::with_capacity(claimed.min(MAX_RESERVE) as usize);
        let read = file.by_ref().take(claimed + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.bad_member(member, error.to_string()))?;
        if bytes.len() as u64 != claimed {
            let problem = format!(
                "its header claims {claimed} bytes, but it unpacks to another length; copy the archive again"
            );
            return Err(self.bad_member(member, problem));
        }
        Ok(bytes)
    }

    fn bad_member(&self, member: usize, problem: String) -> DataError {
        let name = self.zip.file_names_raw().nth(member).unwrap_or_default();
        DataError::Member {
            archive: self.path.clone(),
            member: String::from_utf8_lossy(name).into_owned(),
            offset: self.offset(member).unwrap_or_default(),
            problem,
        }
    }
}
