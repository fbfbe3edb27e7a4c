//! Merges YAML files and overrides into one value per key. Later sources override earlier ones: the `BASE`
//! files, the file, the overrides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::keys::{self, KeyMeaning};
use super::value::Value;
use crate::error::ModelError;
use crate::text_file::{self, MAX_WRITTEN};
use crate::yaml;

/// Deepest nesting of `BASE` files.
const MAX_CHAIN: usize = 16;
/// Most files that one configuration may include.
const MAX_FILES: usize = 64;

/// The value of every key that is set, and its origin.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, (Value, String)>,
    files: usize,
}

impl Settings {
    /// The value of a key, and its origin.
    pub(super) fn get(&self, key: &'static str) -> Option<(&Value, &str)> {
        self.values.get(key).map(|(value, origin)| (value, origin.as_str()))
    }

    /// Reads the file at `path` and the `BASE` files it names, which are relative to it.
    pub(super) fn read_file(&mut self, path: &Path) -> Result<(), ModelError> {
        self.read_chained(path, &mut Vec::new())
    }

    fn read_chained(&mut self, path: &Path, chain: &mut Vec<PathBuf>) -> Result<(), ModelError> {
        let identity = path.canonicalize().map_err(|e| ModelError::io(path, e))?;
        if chain.contains(&identity) {
            return Err(ModelError::file(path, "includes itself through BASE; remove the cycle"));
        }
        self.files += 1;
        if chain.len() >= MAX_CHAIN || self.files > MAX_FILES {
            let problem = format!(
                "includes more than {MAX_CHAIN} levels or {MAX_FILES} files through BASE; flatten the configuration"
            );
            return Err(ModelError::file(path, problem));
        }
        chain.push(identity);
        let text = text_file::read(path, MAX_WRITTEN).map_err(|e| ModelError::io(path, e))?;
        let included = chain.len() > 1;
        let entries = parse(path, &text, included)?;
        for base in base_files(path, &entries)? {
            let folder = path.parent().unwrap_or(Path::new(""));
            self.read_chained(&folder.join(base), chain)?;
        }
        chain.pop();
        self.assign_section("", entries, path, included)
    }

    /// Reads YAML that is not in a file, so `BASE` must be empty or absent.
    pub(super) fn read_text(&mut self, origin: &Path, text: &str) -> Result<(), ModelError> {
        let entries = parse(origin, text, false)?;
        if !base_files(origin, &entries)?.is_empty() {
            return Err(ModelError::file(
                origin,
                "BASE is relative to a file, but this configuration is not in a file",
            ));
        }
        self.assign_section("", entries, origin, false)
    }

    /// Applies overrides, in order.
    pub(super) fn apply(&mut self, opts: &[(String, String)]) -> Result<(), ModelError> {
        for (key, text) in opts {
            match keys::look_up(key) {
                KeyMeaning::Leaf("BASE") => {
                    return Err(ModelError::config("BASE", "cannot be overridden; pass the file as --cfg"));
                }
                KeyMeaning::Leaf(key) => {
                    self.values.insert(key, (Value::from_text(text), "the override".to_owned()));
                }
                KeyMeaning::Section => {
                    return Err(ModelError::config(key, "is a section; override one of its keys"));
                }
                KeyMeaning::Unknown(near) => {
                    return Err(ModelError::config(key, format!("is not a known key; did you mean {near}?")));
                }
            }
        }
        Ok(())
    }

    /// `included` says that the file was named by another one. Errors do not show its content then: whoever
    /// wrote the configuration may not be allowed to read the file.
    fn assign_section(
        &mut self,
        prefix: &str,
        entries: Vec<(String, Value)>,
        origin: &Path,
        included: bool,
    ) -> Result<(), ModelError> {
        for (name, value) in entries {
            let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            match (keys::look_up(&name), value) {
                (KeyMeaning::Leaf(key), Value::Map(_)) => {
                    return Err(ModelError::file(
                        origin,
                        format!("{key} holds a section, but takes a single value"),
                    ));
                }
                (KeyMeaning::Leaf(key), value) => {
                    self.values.insert(key, (value, origin.display().to_string()));
                }
                (KeyMeaning::Section, Value::Map(entries)) => {
                    self.assign_section(&name, entries, origin, included)?;
                }
                // All keys of the section are commented out.
                (KeyMeaning::Section, Value::None) => {}
                (KeyMeaning::Section, _) if included => {
                    return Err(ModelError::file(origin, format!("{name} is a section, but holds a value")));
                }
                (KeyMeaning::Section, value) => {
                    return Err(ModelError::file(origin, format!("{name} is a section, but holds {value}")));
                }
                (KeyMeaning::Unknown(_), _) if included => {
                    let problem =
                        "has a key that no configuration has; is it a configuration? (BASE names it)";
                    return Err(ModelError::file(origin, problem));
                }
                (KeyMeaning::Unknown(near), _) => {
                    let name: String = name.chars().take(120).collect();
                    return Err(ModelError::file(
                        origin,
                        format!("unknown key {name}; did you mean {near}?"),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The entries of a file. `included` is as for [`Settings::assign_section`].
fn parse(origin: &Path, text: &str, included: bool) -> Result<Vec<(String, Value)>, ModelError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_events: 20_000,
            max_nodes: 20_000,
            max_aliases: 64,
            max_anchors: 64,
        },
    };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(Value::Map(entries)) => Ok(entries),
        Ok(Value::None) => Ok(Vec::new()),
        Ok(_) if included => {
            Err(ModelError::file(origin, "has no KEY: value lines; is it a configuration? (BASE names it)"))
        }
        Ok(other) => Err(ModelError::file(origin, format!("holds {other} instead of KEY: value lines"))),
        Err(error) => {
            let problem = if included { yaml::place(&error) } else { yaml::problem(&error) };
            Err(ModelError::file(origin, format!("is not readable YAML: {problem}")))
        }
    }
}

/// The names under `BASE` that are not empty.
fn base_files(origin: &Path, entries: &[(String, Value)]) -> Result<Vec<String>, ModelError> {
    let bad =
        || ModelError::file(origin, "BASE must be a list of file names, such as BASE: ['default.yaml']");
    let names: Vec<&str> = match entries.iter().find(|(name, _)| name == "BASE").map(|(_, value)| value) {
        None | Some(Value::None) => return Ok(Vec::new()),
        Some(Value::Text(name)) => vec![name],
        Some(Value::List(names)) => {
            names.iter().map(Value::as_text).collect::<Option<_>>().ok_or_else(bad)?
        }
        Some(_) => return Err(bad()),
    };
    Ok(names.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
