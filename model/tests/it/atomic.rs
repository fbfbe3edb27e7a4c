//! Writing files: what is refused, replaced and cleaned up.

#[cfg(unix)]
mod unix;

use std::fs::{File, read, read_dir, write};
use std::io::Read;
use std::path::Path;

use swinq_model::atomic::{AtomicFile, check_writable, write_atomic};
use swinq_system::files;

fn save(path: &Path, content: &[u8]) -> Result<(), String> {
    write_atomic(path, |out| out.write_all(content)).map_err(|error| error.to_string())
}

#[test]
fn folders_and_missing_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let message = save(folder.path(), b"x").unwrap_err();
    assert!(message.contains("is a folder"), "{message}");
    assert!(save(&folder.path().join("no/file"), b"x").unwrap_err().contains("does not exist"));
    assert_eq!(read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_a_reader_has_open_is_replaced_and_the_reader_reads_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    save(&path, b"first").unwrap();
    let mut reader = File::open(&path).unwrap();
    for content in [&b"second"[..], b"third"] {
        save(&path, content).unwrap();
        assert_eq!(read(&path).unwrap(), content);
    }
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first");
    assert_eq!(read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_not_committed_leaves_the_old_one_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    save(&path, b"old").unwrap();
    let mut file = AtomicFile::create(&path).unwrap();
    file.write(|file| std::io::Write::write_all(file, b"new")).unwrap();
    drop(file);
    assert_eq!(read(&path).unwrap(), b"old");
    assert_eq!(read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_read_only_file_is_refused_on_windows_and_replaced_on_unix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    save(&path, b"old").unwrap();
    let mut permissions = path.metadata().unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    let (checked, saved) = (check_writable(&path), save(&path, b"new"));
    if cfg!(windows) {
        assert!(checked.is_err());
        assert!(saved.unwrap_err().contains("is read-only"));
    } else {
        checked.unwrap();
        saved.unwrap();
        assert!(path.metadata().unwrap().permissions().readonly());
    }
}

#[test]
fn remains_of_a_killed_process_are_removed_and_files_being_written_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let [remains, busy, other] =
        [".swinq-killed.part", ".swinq-busy.part", ".other.part"].map(|name| folder.path().join(name));
    for path in [&remains, &other] {
        write(path, "half").unwrap();
    }
    let _held = files::create_held(&busy).unwrap();
    // A write inside a write: the inner one must not remove the outer one's file.
    let path = folder.path().join("file");
    write_atomic(&path, |out| {
        save(&folder.path().join("inner"), b"inner").map_err(std::io::Error::other)?;
        out.write_all(b"outer")
    })
    .unwrap();
    let mut left: Vec<String> =
        read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [".other.part", ".swinq-busy.part", "file", "inner"]);
    assert_eq!(read(&path).unwrap(), b"outer");
}
