//! Directories and files that no other user can have written.
//!
//! Unix has owners and permissions for that. On Windows they are as private as their folder: the default,
//! `%LOCALAPPDATA%`, is open to the user, the administrators and the system alone, and whoever sets
//! `SWINQ_CACHE` names a folder with such permissions.

#[cfg(unix)]
pub(super) use unix::{create_dir, create_file, is_own};
#[cfg(windows)]
pub(super) use windows::{create_dir, create_file, is_own};

#[cfg(unix)]
mod unix {
    use std::fs::{DirBuilder, File, Metadata, OpenOptions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    use std::path::Path;

    /// Creates `dir` and the directories above it that are missing, for this user alone.
    pub(crate) fn create_dir(dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    /// Creates a file that does not exist, for writing by this user alone.
    pub(crate) fn create_file(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    /// Whether only this user can have written the file or directory of `metadata`.
    pub(crate) fn is_own(metadata: &Metadata) -> bool {
        is_of(metadata, user())
    }

    /// User ID of this process.
    pub(super) fn user() -> u32 {
        unsafe extern "C" {
            // POSIX: `geteuid` takes no arguments and always succeeds.
            safe fn geteuid() -> u32;
        }
        geteuid()
    }

    /// Whether `user` owns it, and nobody else may write to it.
    pub(super) fn is_of(metadata: &Metadata, user: u32) -> bool {
        metadata.uid() == user && metadata.mode() & 0o022 == 0
    }
}

#[cfg(windows)]
mod windows {
    use std::fs::{File, Metadata, OpenOptions, create_dir_all};
    use std::io;
    use std::path::Path;

    pub(crate) fn create_dir(dir: &Path) -> io::Result<()> {
        create_dir_all(dir)
    }

    pub(crate) fn create_file(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    /// The permissions of the folder decide.
    pub(crate) fn is_own(_: &Metadata) -> bool {
        true
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::super::{load, store};
    use super::unix::{is_of, user};

    #[test]
    fn an_entry_that_another_user_may_have_written_is_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deeper/entry.cubin");
        store(&path, b"machine code").unwrap();
        let parent = path.parent().unwrap();
        assert_eq!(metadata(parent).unwrap().mode() & 0o777, 0o700);
        for at in [&path, parent] {
            let set = |mode| set_permissions(at, Permissions::from_mode(mode)).unwrap();
            assert!(is_of(&metadata(at).unwrap(), user()));
            assert!(!is_of(&metadata(at).unwrap(), user() + 1));
            set(0o777);
            assert_eq!(load(&path), None);
            set(0o700);
            assert!(load(&path).is_some());
        }
        set_permissions(parent, Permissions::from_mode(0o777)).unwrap();
        assert!(store(&path, b"machine code").is_err());
    }
}
