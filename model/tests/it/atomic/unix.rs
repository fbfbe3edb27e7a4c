//! Devices, links, descriptors and permissions of Unix.

use std::fs::{File, read, read_dir, write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use swinq_model::atomic::check_writable;

use super::save;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn only_regular_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("link");
    symlink(&socket, &link).unwrap();
    for path in [Path::new("/dev/null"), &socket, &link] {
        let message = save(path, b"x").unwrap_err();
        assert!(message.contains("regular file") && message.contains(path.to_str().unwrap()), "{message}");
        assert!(check_writable(path).is_err());
    }
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file() && !socket.metadata().unwrap().is_file());
}

#[cfg(target_os = "linux")]
#[test]
fn files_that_the_process_has_open_are_not_replaced() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let [log, link] = ["log.txt", "link"].map(|name| folder.path().join(name));
    write(&log, "earlier lines").unwrap();
    let open = File::options().append(true).open(&log).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    for number in [open.as_raw_fd(), writer.as_raw_fd()] {
        let paths = [format!("/dev/fd/{number}"), format!("/proc/self/fd/{number}")];
        let thread = format!("/proc/thread-self/fd/{number}");
        symlink(&paths[0], &link).unwrap();
        for path in [Path::new(&paths[0]), Path::new(&paths[1]), Path::new(&thread), &link] {
            let message = save(path, b"x").unwrap_err();
            assert!(message.contains("has open") && message.contains(path.to_str().unwrap()), "{message}");
            assert!(check_writable(path).is_err());
        }
        std::fs::remove_file(&link).unwrap();
    }
    assert_eq!(read(&log).unwrap(), b"earlier lines");
    assert_eq!(read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn symbolic_links_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let [target, new] = ["data/target", "data/new"].map(|name| folder.path().join(name));
    write(&target, "old").unwrap();
    for (name, to) in [("existing", "data/target"), ("dangling", "data/new"), ("second", "existing")] {
        let link = folder.path().join(name);
        symlink(to, &link).unwrap();
        save(&link, name.as_bytes()).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink(), "{name}");
    }
    assert_eq!((read(&target).unwrap(), read(&new).unwrap()), (b"second".to_vec(), b"dangling".to_vec()));
    let circle = folder.path().join("circle");
    symlink("circle", &circle).unwrap();
    assert!(save(&circle, b"x").unwrap_err().contains("symbolic links"));
}

#[test]
fn permissions_are_those_of_the_old_file_or_of_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, ordinary] = ["old", "new", "ordinary"].map(|name| folder.path().join(name));
    write(&old, "old").unwrap();
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o640)).unwrap();
    File::create(&ordinary).unwrap();
    save(&old, b"x").unwrap();
    save(&new, b"x").unwrap();
    assert_eq!((mode(&old), mode(&new)), (0o640, mode(&ordinary)));
}
