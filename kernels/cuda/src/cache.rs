//! Compiled kernels on disk, so that each kernel is compiled once per machine. If the cache cannot be read or
//! written, the program only loses time.
//!
//! An entry's name is a hash of everything that its content depends on. An entry is written to a temporary
//! file and then renamed, and its content carries its own hash. Processes can therefore share a directory
//! without locks, and a damaged file is compiled again.
//!
//! Machine code from another user must not run. Therefore the directory is created for its owner alone,
//! temporary files are created exclusively, and an entry is read only if the directory and the entry
//! belong to the user who runs the program (`private`).

mod private;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::nvrtc;
use super::{CudaError, Program, library, sources};

const MAGIC: &[u8; 8] = b"SWINQCU1";
const HEADER: usize = 8 + 8 + 32;

/// Folder of compiled kernels: `$SWINQ_CACHE`, else `swinq` in the user's folder for caches; `None` if that
/// is unknown, too.
///
/// | system | the user's folder for caches |
/// | --- | --- |
/// | Linux | `$XDG_CACHE_HOME`, else `~/.cache` |
/// | macOS | `~/Library/Caches` |
/// | Windows | `%LOCALAPPDATA%` |
pub fn cache_dir() -> Option<PathBuf> {
    cache_dir_of(std::env::consts::OS, |name| std::env::var_os(name))
}

/// [`cache_dir`] on the system `os` with the environment `var`.
fn cache_dir_of(os: &str, var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let var = |name| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let in_home = |path| Some(var("HOME")?.join(path));
    let caches = || match os {
        "windows" => var("LOCALAPPDATA"),
        "macos" => in_home("Library/Caches"),
        _ => var("XDG_CACHE_HOME").filter(|dir| dir.is_absolute()).or_else(|| in_home(".cache")),
    };
    var("SWINQ_CACHE").or_else(|| Some(caches()?.join("swinq")))
}

/// Returns the machine code of `program` for `arch` from the cache; compiles and stores it if it is not
/// there.
///
/// # Errors
/// As [`nvrtc::compile`].
pub(crate) fn cubin(program: &Program, arch: &str) -> Result<Vec<u8>, CudaError> {
    cubin_in(cache_dir().as_deref(), program, arch)
}

fn cubin_in(dir: Option<&Path>, program: &Program, arch: &str) -> Result<Vec<u8>, CudaError> {
    let name = format!("{}.cubin", key(program, arch));
    let path = dir.map(|dir| dir.join(name));
    if let Some(found) = path.as_deref().and_then(load) {
        return Ok(found);
    }
    let compiled = nvrtc::compile(program, arch)?;
    if let Some(path) = path {
        // A failure to store costs one more compilation next time.
        let _ = store(&path, &compiled.cubin);
    }
    Ok(compiled.cubin)
}

/// Hash of everything that the machine code depends on.
fn key(program: &Program, arch: &str) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(program.file);
    add(sources::source(program.file).unwrap_or_default());
    for (name, text) in sources::headers() {
        add(name);
        add(text);
    }
    program.flags().iter().for_each(|flag| add(flag));
    add(arch);
    add(&format!("{:?}", library::nvrtc_version()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a file in the cache, if it and its directory belong to this user.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    private::is_own(&fs::metadata(path.parent()?).ok()?).then_some(())?;
    let mut file = File::open(path).ok()?;
    private::is_own(&file.metadata().ok()?).then_some(())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Content of an entry, if it exists and is intact.
fn load(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = read(path)?;
    let (header, payload) = bytes.split_at_checked(HEADER)?;
    let whole = header == self::header(payload);
    whole.then(|| bytes.split_off(HEADER))
}

/// Writes an entry atomically.
fn store(path: &Path, payload: &[u8]) -> io::Result<()> {
    write(path, &[&header(payload), payload].concat())
}

/// Writes a file of the cache atomically. Creates its directory if there is none.
///
/// # Errors
/// The directory belongs to another user, other users may write to it, or the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let dir = path.parent().unwrap_or(Path::new("."));
    private::create_dir(dir)?;
    if !private::is_own(&fs::metadata(dir)?) {
        let what = format!("{} belongs to another user, or others may write to it", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}.{count}.tmp", std::process::id()));
    let written = create(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private::create_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Magic, length and hash of the content.
fn header(payload: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    header[16..].copy_from_slice(&Sha256::digest(payload));
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deeper/entry.cubin");
        (dir, path)
    }

    #[test]
    fn what_is_stored_is_loaded_and_leaves_no_other_file() {
        let (_dir, path) = entry();
        assert_eq!(load(&path), None);
        for payload in [&b""[..], b"machine code"] {
            store(&path, payload).unwrap();
            assert_eq!(load(&path).as_deref(), Some(payload));
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_or_altered_entry_is_not_loaded_and_is_replaced() {
        let (_dir, path) = entry();
        store(&path, b"machine code").unwrap();
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(load(&path), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            fs::write(&path, altered).unwrap();
            assert_eq!(load(&path), None, "byte {at}");
        }
        store(&path, b"machine code").unwrap();
        assert_eq!(load(&path).unwrap(), b"machine code");
    }

    #[test]
    fn the_folder_is_the_systems_for_caches() {
        let folder = |os: &str, set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
            cache_dir_of(os, value).map(|dir| dir.display().to_string().replace('\\', "/"))
        };
        let home = ("HOME", "/home/a");
        let root = if cfg!(windows) { "C:/x" } else { "/x" };
        assert_eq!(folder("linux", &[home]).unwrap(), "/home/a/.cache/swinq");
        assert_eq!(folder("linux", &[home, ("XDG_CACHE_HOME", root)]).unwrap(), format!("{root}/swinq"));
        assert_eq!(folder("linux", &[home, ("XDG_CACHE_HOME", "x")]).unwrap(), "/home/a/.cache/swinq");
        assert_eq!(
            folder("macos", &[home, ("XDG_CACHE_HOME", root)]).unwrap(),
            "/home/a/Library/Caches/swinq"
        );
        let local = ("LOCALAPPDATA", "C:/Users/a/AppData/Local");
        assert_eq!(folder("windows", &[local, home]).unwrap(), "C:/Users/a/AppData/Local/swinq");
        assert_eq!(folder("windows", &[local, ("SWINQ_CACHE", "D:/c")]).unwrap(), "D:/c");
        assert_eq!(folder("linux", &[("SWINQ_CACHE", ""), home]).unwrap(), "/home/a/.cache/swinq");
        for os in ["linux", "macos", "windows"] {
            assert_eq!(folder(os, &[("HOME", "")]), None);
        }
    }

    #[test]
    fn readers_among_writers_see_whole_entries() {
        let (_dir, path) = entry();
        let payloads: Vec<Vec<u8>> = (0..4).map(|i| vec![i; 100_000 + usize::from(i)]).collect();
        store(&path, &payloads[0]).unwrap();
        std::thread::scope(|scope| {
            for payload in &payloads {
                scope.spawn(|| (0..20).for_each(|_| store(&path, payload).unwrap()));
                scope.spawn(|| (0..50).for_each(|_| assert!(payloads.contains(&load(&path).unwrap()))));
            }
        });
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_of_the_store_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let path = file.join("entry.cubin");
        assert!(store(&path, b"machine code").is_err());
        assert_eq!(load(&path), None);
    }

    #[test]
    fn a_damaged_entry_is_compiled_again_and_no_directory_is_no_error() {
        if !library::present(library::Library::Nvrtc) {
            println!("SKIPPED: {}", library::require(library::Library::Nvrtc).unwrap_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = Program::new("prelude.cuh", "none").define("THREADS", 32);
        let first = cubin_in(Some(dir.path()), &program, "sm_80").unwrap();
        let path = dir.path().join(format!("{}.cubin", key(&program, "sm_80")));
        let entry = fs::read(&path).unwrap();
        assert_eq!(entry[HEADER..], first);
        fs::write(&path, &entry[..entry.len() - 1]).unwrap();
        assert_eq!(cubin_in(Some(dir.path()), &program, "sm_80").unwrap(), first);
        assert_eq!(fs::read(&path).unwrap(), entry);
        assert_eq!(cubin_in(Some(&path), &program, "sm_80").unwrap(), first);
        assert_eq!(cubin_in(None, &program, "sm_80").unwrap(), first);
    }

    #[test]
    fn the_name_depends_on_file_flags_and_architecture_but_not_on_the_entry() {
        let program = Program::new("prelude.cuh", "a");
        let name = key(&program, "sm_80");
        assert_eq!(name.len(), 64);
        assert_eq!(name, key(&Program::new("prelude.cuh", "b"), "sm_80"));
        let others = [
            (Program::new("device.cuh", "a"), "sm_80"),
            (program.clone(), "sm_86"),
            (program.clone().define("N", 1), "sm_80"),
            (Program { max_registers: Some(64), ..program }, "sm_80"),
        ];
        for (other, arch) in others {
            assert_ne!(name, key(&other, arch), "{other} {arch}");
        }
    }
}
