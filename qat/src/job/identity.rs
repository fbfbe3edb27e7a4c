//! What makes two jobs the same, so that a run is not resumed as another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Job;
use super::error::JobError;
use super::values::Device;

/// Keys and sections that a result does not depend on: where it goes, what is watched, what it costs.
const WITHOUT_INFLUENCE: [&str; 11] = [
    "name",
    "output",
    "threads",
    "data.cache_mb",
    "data.val_path",
    "data.val_split",
    "data.val_limit",
    "validate",
    "checkpoint",
    "log",
    "data.skip_corrupt",
];
/// Most differences that a message names.
const MAX_NAMED: usize = 8;

/// All of a job that influences its result: dotted keys and their effective values. A checkpoint of the training
/// keeps it, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(BTreeMap<String, Value>);

impl Job {
    /// The job's identity. `contents` replaces values by what they stand for: pairs of a dotted key (`model`, `float`,
    /// `teacher`, `cfg`, `data.path`) and the hash of what was found there, so that files may move but not change.
    /// [`Job::augmentation`] comes first, so that augmentation counts as it is and not as it was stated.
    pub fn identity(&self, contents: &[(&str, String)]) -> Identity {
        let mut keys = BTreeMap::new();
        flatten("", serde_json::to_value(self).expect("a job is plain data"), &mut keys);
        keys.retain(|key, _| !WITHOUT_INFLUENCE.iter().any(|other| is_below(key, other)));
        if matches!(self.device, Device::Cuda(_)) {
            keys.insert("device".to_owned(), Value::from("cuda")); // whichever it is
        }
        keys.extend(contents.iter().map(|(key, hash)| ((*key).to_owned(), Value::String(hash.clone()))));
        Identity(keys)
    }
}

impl Identity {
    /// SHA-256 of the canonical JSON (keys sorted, no spaces), hexadecimal.
    pub fn sha256(&self) -> String {
        let text = serde_json::to_string(&self.0).expect("a map of plain values");
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Checks that a run with identity `started` may go on with this one.
    ///
    /// # Errors
    /// [`JobError::OtherJob`] naming the keys that differ, each with the value now and the value then.
    pub fn check_resumes(&self, started: &Identity) -> Result<(), JobError> {
        let mut keys: Vec<&String> = self.0.keys().chain(started.0.keys()).collect();
        keys.sort();
        keys.dedup();
        keys.retain(|key| self.0.get(*key) != started.0.get(*key));
        if keys.is_empty() {
            return Ok(());
        }
        let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
        let named = keys
            .iter()
            .take(MAX_NAMED)
            .map(|key| format!("{key} is {} and was {}", text(self.0.get(*key)), text(started.0.get(*key))));
        let mut differences = named.collect::<Vec<_>>().join(", ");
        if keys.len() > MAX_NAMED {
            differences += &format!(", and {} more", keys.len() - MAX_NAMED);
        }
        Err(JobError::OtherJob { differences })
    }
}

fn is_below(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Puts every value that is no section into `keys`, under its dotted key.
fn flatten(prefix: &str, value: Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(inner) => {
            for (key, value) in inner {
                let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&key, value, keys);
            }
        }
        value => {
            keys.insert(prefix.to_owned(), value);
        }
    }
}
