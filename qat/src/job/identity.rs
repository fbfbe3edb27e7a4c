//! The identity of a job, which decides whether a run may be resumed with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Job;
use super::error::JobError;
use super::values::Device;

/// The number of processes among the keys of an identity, if it is not 1.
const PROCESSES: &str = "processes";

/// Keys and sections that have no effect on the trained model: outputs, observation, and cost. The rules for
/// images of the model in use are contents.
const WITHOUT_INFLUENCE: [&str; 14] = [
    "orientation",
    "channels",
    "name",
    "output",
    "threads",
    "recompute",
    "data.cache_mb",
    "data.val_path",
    "data.val_split",
    "data.val_limit",
    "validate",
    "checkpoint",
    "log",
    "data.skip_corrupt",
];
/// Most differences that an error lists.
const MAX_NAMED: usize = 8;

/// Everything in a job that has an effect on the trained model: dotted keys and their effective values.
/// Checkpoints of the training store it as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(BTreeMap<String, Value>);

impl Job {
    /// The job's identity. `contents` replaces paths with hashes of their content, so that files may move but
    /// not change: pairs of a dotted key (`model`, `float`, `teacher`, `cfg`, `data.path`) and a hash. Call
    /// [`Job::augmentation`] first, so that the identity holds the effective augmentation with its defaults.
    pub fn identity(&self, contents: &[(&str, String)]) -> Identity {
        let mut keys = BTreeMap::new();
        flatten("", serde_json::to_value(self).expect("a job is plain data"), &mut keys);
        keys.retain(|key, _| !WITHOUT_INFLUENCE.iter().any(|other| is_below(key, other)));
        if matches!(self.device, Device::Cuda(_)) {
            keys.insert("device".to_owned(), Value::from("cuda")); // The number of the GPU has no effect.
        }
        keys.extend(contents.iter().map(|(key, hash)| ((*key).to_owned(), Value::String(hash.clone()))));
        Identity(keys)
    }
}

impl Identity {
    /// The identity of the job on several `processes`. On one process it is the job's.
    #[must_use]
    pub fn on(mut self, processes: usize) -> Identity {
        if processes > 1 {
            self.0.insert(PROCESSES.to_owned(), Value::from(processes));
        }
        self
    }

    /// The value of `key`, if it is a text.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// SHA-256 of the canonical JSON (keys sorted, no spaces), hexadecimal.
    pub fn sha256(&self) -> String {
        let text = serde_json::to_string(&self.0).expect("a map of plain values");
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Checks that a run that was started with the identity `started` may continue with this identity.
    ///
    /// # Errors
    /// [`JobError::OtherJob`] with the keys that differ, each with its value now and at the start.
    pub fn check_resumes(&self, started: &Identity) -> Result<(), JobError> {
        let mut keys: Vec<&String> = self.0.keys().chain(started.0.keys()).collect();
        keys.sort();
        keys.dedup();
        keys.retain(|key| self.0.get(*key) != started.0.get(*key));
        if keys.is_empty() {
            return Ok(());
        }
        let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
        let named = |key: &&String| match (self.0.get(*key), started.0.get(*key)) {
            (now, before) if *key == PROCESSES => {
                let count = |value: Option<&Value>| value.map_or("1".to_owned(), Value::to_string);
                format!(
                    "it ran on {} processes, and this is {} (--devices, or the launcher's WORLD_SIZE)",
                    count(before),
                    count(now)
                )
            }
            (now, before) => format!("{key} is {} and was {}", text(now), text(before)),
        };
        let mut differences = keys.iter().take(MAX_NAMED).map(named).collect::<Vec<_>>().join(", ");
        if keys.len() > MAX_NAMED {
            differences += &format!(", and {} more", keys.len() - MAX_NAMED);
        }
        Err(JobError::OtherJob { differences })
    }
}

fn is_below(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Inserts every value that is not a section into `keys`, under its dotted key.
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
