//! Files that several processes use at the same time.
//!
//! A *held* file belongs to the process that opened it until that process closes it or ends. Unix holds files
//! by advisory locks (`flock`). Windows holds them by share modes, because its locks would keep readers from
//! a file that has just got its final name.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// The answer to [`hold`].
#[derive(Debug)]
pub enum Hold {
    /// The file is open for reading and writing, and held.
    Taken(File),
    /// Another process, or another part of this one, holds it.
    Busy,
    /// Its holder removed it at the same time.
    Removed,
}

/// Opens the file at `path` for reading and writing, creates it if there is none, and holds it. Others may
/// read it. A file system without locks is as good as any, but holds nothing.
///
/// # Errors
/// The file cannot be opened.
pub fn hold(path: &Path) -> io::Result<Hold> {
    system::hold(path)
}

/// Removes the file at `path`, which [`hold`] gave as `file`, and closes it. Whoever opened it meanwhile
/// finds in [`hold`] that it is gone.
///
/// # Errors
/// The file cannot be removed. It is closed all the same.
pub fn remove_held(path: &Path, file: File) -> io::Result<()> {
    system::remove_held(path, file)
}

/// Creates a file at `path`, open for reading and writing, and holds it. It may be renamed while it is held.
/// On Unix it has the permissions of the umask, on Windows those of its folder.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if there is such a file, or if [`remove_abandoned`] of another process
/// removes it at the same time; other errors of the system.
pub fn create_held(path: &Path) -> io::Result<File> {
    system::create_held(path)
}

/// Removes the file at `path` unless a process holds it by [`create_held`].
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if it is held; the file cannot be opened or removed.
pub fn remove_abandoned(path: &Path) -> io::Result<()> {
    system::remove_abandoned(path)
}

/// Gives the file `from` the name `to`, on the same file system, and replaces the file of this name. Whoever
/// has that file open goes on reading what it was. No moment is without a file `to`.
///
/// # Errors
/// The system's.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    // On Windows this asks for the semantics of POSIX: a file that a reader has open loses its name at once.
    std::fs::rename(from, to)
}

/// Whether [`replace`] leaves a file of these properties as it is: on Windows, one with the attribute
/// read-only. Unix asks for the permission of the folder alone.
pub fn is_protected(file: &Metadata) -> bool {
    system::is_protected(file)
}

/// Makes the names in `folder` as durable as the content of its files is after [`File::sync_all`]. Windows
/// has no such request; NTFS writes names to its journal.
///
/// # Errors
/// The system's.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    system::sync_folder(folder)
}

/// Reads from `offset` on, independently of other reads by this function. Returns the number of bytes.
///
/// # Errors
/// The system's.
pub fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    system::read_at(file, out, offset)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Seek, Write};

    use super::*;

    #[test]
    fn a_file_is_held_by_one_and_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let Hold::Taken(mut file) = hold(&path).unwrap() else { panic!("nobody holds it") };
        file.write_all(b"holder").unwrap();
        assert!(matches!(hold(&path).unwrap(), Hold::Busy));
        assert_eq!(std::fs::read(&path).unwrap(), b"holder");
        drop(file);
        let Hold::Taken(mut file) = hold(&path).unwrap() else { panic!("nobody holds it any more") };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "holder", "a file that exists is not emptied");
        remove_held(&path, file).unwrap();
        assert!(!path.exists());
        assert!(matches!(hold(&path).unwrap(), Hold::Taken(_)));
    }

    #[test]
    fn holders_that_remove_the_file_never_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let holders = std::sync::atomic::AtomicUsize::new(0);
        let taken = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    use std::sync::atomic::Ordering::SeqCst;
                    for _ in 0..200 {
                        // A file that is being removed may be refused for a moment on Windows.
                        if let Ok(Hold::Taken(file)) = hold(&path) {
                            assert_eq!(holders.fetch_add(1, SeqCst), 0);
                            taken.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            holders.fetch_sub(1, SeqCst);
                            // On Windows the next holder may have it already.
                            let _ = remove_held(&path, file);
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
    }

    #[test]
    fn only_abandoned_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let mut file = create_held(&path).unwrap();
        assert_eq!(create_held(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(remove_abandoned(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        file.write_all(b"content").unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"content");
        drop(file);
        remove_abandoned(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(remove_abandoned(&path).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_held_file_replaces_one_that_a_reader_has_open() {
        let folder = tempfile::tempdir().unwrap();
        let (part, target) = (folder.path().join("part"), folder.path().join("target"));
        std::fs::write(&target, b"before").unwrap();
        let mut reader = File::open(&target).unwrap();
        let mut file = create_held(&part).unwrap();
        file.write_all(b"after").unwrap();
        replace(&part, &target).unwrap();
        assert!(!part.exists());
        // The new file is read by its name while its writer still has it open.
        assert_eq!(std::fs::read(&target).unwrap(), b"after");
        drop(file);
        assert_eq!(std::fs::read(&target).unwrap(), b"after");
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"before");
        sync_folder(folder.path()).unwrap();
    }

    #[test]
    fn readers_among_writers_see_whole_files() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let contents: Vec<Vec<u8>> = (0..3_u8).map(|i| vec![i; 50_000 + usize::from(i)]).collect();
        std::fs::write(&target, &contents[0]).unwrap();
        std::thread::scope(|scope| {
            for (number, content) in contents.iter().enumerate() {
                let (target, contents) = (&target, &contents);
                let part = folder.path().join(format!("part{number}"));
                scope.spawn(move || {
                    for _ in 0..30 {
                        let mut file = create_held(&part).unwrap();
                        file.write_all(content).unwrap();
                        replace(&part, target).unwrap();
                    }
                });
                scope.spawn(move || {
                    (0..60).for_each(|_| assert!(contents.contains(&std::fs::read(target).unwrap())));
                });
            }
        });
    }

    #[test]
    fn reads_at_offsets_do_not_depend_on_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let mut out = [0; 3];
        for (offset, expected) in [(7, &b"789"[..]), (0, b"012"), (9, b"9"), (10, b"")] {
            let count = read_at(&file, &mut out, offset).unwrap();
            assert_eq!(&out[..count], expected);
        }
    }

    #[test]
    fn a_read_only_file_is_protected_on_windows_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"").unwrap();
        assert!(!is_protected(&path.metadata().unwrap()));
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions).unwrap();
        assert_eq!(is_protected(&path.metadata().unwrap()), cfg!(windows));
    }
}
