//! A file of finished measurements, from which an interrupted run continues.
//!
//! The first line names the run: a hash of everything that its measurements depend on. Each further line
//! holds one measurement. Every line begins with a checksum of its text, so that a damaged or incomplete line
//! is found; such a line is dropped, and its measurement is made again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use swinq_model::atomic::write_atomic;

use crate::Error;
use crate::hex::hex;

/// The contents of a cache's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheContents {
    /// Measurements of this run that need not be made again.
    pub kept: usize,
    /// Damaged lines, which were dropped.
    pub damaged: usize,
    /// Whether the file belonged to another run (another model, recipe, set of images or version), and was
    /// replaced.
    pub replaced: bool,
}

/// Finished measurements, by name.
pub(crate) struct Cache {
    entries: BTreeMap<String, Value>,
    file: Option<(PathBuf, File)>,
    found: CacheContents,
}

impl Cache {
    /// A cache in memory only.
    pub(crate) fn in_memory() -> Cache {
        Cache { entries: BTreeMap::new(), file: None, found: CacheContents::default() }
    }

    /// The cache of the run `key` in the file `path`, which is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Argument`] for a file that holds something else; [`Error::Io`] or [`Error::Model`] if it
    /// cannot be read or written.
    pub(crate) fn open(path: &Path, key: &str) -> Result<Cache, Error> {
        let (entries, found) = read(&content(path)?, key);
        write_atomic(path, |out| {
            out.write_all(line(&header(key)).as_bytes())?;
            entries.iter().try_for_each(|(name, value)| out.write_all(line(&entry(name, value)).as_bytes()))
        })?;
        let file = OpenOptions::new().append(true).open(path).map_err(Error::io(path))?;
        Ok(Cache { entries, file: Some((path.to_owned(), file)), found })
    }

    /// The contents of the file when it was opened.
    pub(crate) fn found(&self) -> CacheContents {
        self.found
    }

    /// The measurement `name`, if it is finished.
    pub(crate) fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        // A value of another form cannot occur under the same key; if it did, it would be measured again.
        self.entries.get(name).and_then(|value| T::deserialize(value).ok())
    }

    /// Adds a finished measurement.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub(crate) fn put(&mut self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let value = serde_json::to_value(value).expect("measurements are numbers, texts and lists");
        if let Some((path, file)) = &mut self.file {
            let line = line(&entry(name, &value));
            file.write_all(line.as_bytes()).and_then(|()| file.flush()).map_err(Error::io(path))?;
        }
        self.entries.insert(name.to_owned(), value);
        Ok(())
    }
}

/// The content of the cache's file at `path`; empty if there is none.
fn content(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(Error::io(path))?,
    };
    // A damaged header must not hide the measurement behind it.
    if bytes.is_empty() || bytes.split(|&byte| byte == b'\n').take(2).any(|line| checked(line).is_some()) {
        return Ok(bytes);
    }
    let problem = format!(
        "{} holds something else than finished measurements, and is left as it is; name another file, or remove it",
        path.display()
    );
    Err(Error::argument("cache", problem))
}

/// Refuses the file of a cache that cannot be one.
///
/// # Errors
/// [`Error::Argument`]; [`Error::Io`] if it cannot be read.
pub(crate) fn check_cache(path: Option<&Path>) -> Result<(), Error> {
    check_kept("cache", path)?;
    path.map_or(Ok(()), |path| content(path).map(drop))
}

/// Refuses a file of measurements whose folder does not exist, or that is a folder. `argument` names it.
///
/// # Errors
/// [`Error::Argument`].
pub(crate) fn check_kept(argument: &'static str, path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => {
            let problem = format!("{}: there is no folder {}", path.display(), folder.display());
            Err(Error::argument(argument, problem))
        }
        None if path.is_dir() => {
            Err(Error::argument(argument, format!("{} is a folder; name a file", path.display())))
        }
        None => Ok(()),
    }
}

/// The entries of the run `key` in a file with the content `bytes`.
fn read(bytes: &[u8], key: &str) -> (BTreeMap<String, Value>, CacheContents) {
    let mut found = CacheContents::default();
    let mut lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let first = lines.next().map(checked);
    match first {
        None => return (BTreeMap::new(), found),
        Some(Some(value)) if value == header(key) => {}
        Some(value) => {
            (found.damaged, found.replaced) = (usize::from(value.is_none()), value.is_some());
            return (BTreeMap::new(), found);
        }
    }
    let mut entries = BTreeMap::new();
    for line in lines {
        match checked(line).as_ref().and_then(Value::as_array).map(Vec::as_slice) {
            Some([Value::String(name), value]) => {
                entries.insert(name.clone(), value.clone());
            }
            _ => found.damaged += 1,
        }
    }
    found.kept = entries.len();
    (entries, found)
}

fn header(key: &str) -> Value {
    serde_json::json!({ "swinq measurements": env!("CARGO_PKG_VERSION"), "run": key })
}

fn entry(name: &str, value: &Value) -> Value {
    serde_json::json!([name, value])
}

/// The line of `value`: a checksum, a space, the JSON.
fn line(value: &Value) -> String {
    let text = value.to_string();
    format!("{} {text}\n", checksum(text.as_bytes()))
}

/// The value of a line, if its checksum is that of its text.
fn checked(line: &[u8]) -> Option<Value> {
    let (sum, text) = line.split_at_checked(16)?;
    let text = text.strip_prefix(b" ")?;
    if checksum(text).as_bytes() != sum {
        return None;
    }
    serde_json::from_slice(text).ok()
}

/// The first 64 bits of the SHA-256, hexadecimal.
fn checksum(text: &[u8]) -> String {
    hex(&Sha256::digest(text)[..8])
}

/// A hash of everything that measurements depend on.
pub(crate) struct RunKey(Sha256);

impl RunKey {
    /// Begins with the name of the command.
    pub(crate) fn new(command: &str) -> RunKey {
        RunKey(Sha256::new()).with(command.as_bytes())
    }

    /// Adds a part.
    pub(crate) fn with(mut self, part: &[u8]) -> RunKey {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// Adds a part in its JSON form.
    pub(crate) fn with_json(self, part: &impl Serialize) -> RunKey {
        let text = serde_json::to_string(part).expect("the part has a JSON form");
        self.with(text.as_bytes())
    }

    /// The hash, hexadecimal.
    pub(crate) fn finish(self) -> String {
        hex(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(cache: &Cache) -> [Option<f64>; 3] {
        ["a", "b", "c"].map(|name| cache.get(name))
    }

    #[test]
    fn a_second_run_continues_and_damage_costs_only_the_damaged_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.cache");
        let mut cache = Cache::open(&path, "key").unwrap();
        for (name, value) in [("a", 1.0), ("b", 0.1 + 0.2), ("c", 3.0)] {
            cache.put(name, &value).unwrap();
        }
        drop(cache);
        let cache = Cache::open(&path, "key").unwrap();
        assert_eq!(cache.found(), CacheContents { kept: 3, ..CacheContents::default() });
        assert_eq!(values(&cache), [Some(1.0), Some(0.1 + 0.2), Some(3.0)]);

        // One bit of the second measurement, and the end of the third.
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(3).position(|w| w == b"\"b\"").unwrap();
        bytes[at + 4] ^= 1;
        bytes.truncate(bytes.len() - 4);
        std::fs::write(&path, &bytes).unwrap();
        let mut cache = Cache::open(&path, "key").unwrap();
        assert_eq!(cache.found(), CacheContents { kept: 1, damaged: 2, replaced: false });
        assert_eq!(values(&cache), [Some(1.0), None, None]);
        cache.put("b", &2.0).unwrap();
        drop(cache);
        let cache = Cache::open(&path, "key").unwrap();
        assert_eq!(cache.found(), CacheContents { kept: 2, ..CacheContents::default() });
        assert_eq!(values(&cache), [Some(1.0), Some(2.0), None]);
    }

    #[test]
    fn the_file_of_another_run_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.cache");
        Cache::open(&path, "one").unwrap().put("a", &1.0).unwrap();
        let cache = Cache::open(&path, "two").unwrap();
        assert_eq!(cache.found(), CacheContents { kept: 0, damaged: 0, replaced: true });
        assert_eq!(values(&cache), [None; 3]);
        drop(cache);
        // A header that is damaged, before a measurement that is not.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("swinq", "qniws", 1) + &line(&entry("a", &1.0.into()))).unwrap();
        assert_eq!(Cache::open(&path, "two").unwrap().found().damaged, 1);
    }

    #[test]
    fn a_file_that_holds_something_else_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        for text in ["not a cache\n", "one line\nand another\n", "\n\nx"] {
            std::fs::write(&path, text).unwrap();
            for refused in [Cache::open(&path, "key").map(drop), check_cache(Some(&path))] {
                assert!(refused.unwrap_err().to_string().contains("name another file, or remove it"));
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, "").unwrap();
        check_cache(Some(&path)).unwrap();
    }

    #[test]
    fn the_parts_of_a_key_do_not_run_together() {
        let key = |parts: &[&str]| {
            parts.iter().fold(RunKey::new("test"), |key, part| key.with(part.as_bytes())).finish()
        };
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
    }
}
