//! Parses the text of a job and its overrides into a tree of values, and refuses unknown keys.

use serde_json::{Map, Value};

use super::error::JobError;
use swinq_model::yaml;

/// Sections whose keys are not checked here: `augment` belongs to the data loader, `opts` to model
/// configurations, and the names of outputs to the network.
const OPEN: [&str; 3] = ["augment", "opts", "loss.output_weights"];

/// A tree of values, and the schema that it must fit.
pub(super) struct Tree<'a> {
    job: &'a str,
    /// A job with every key set, as JSON: an object for each section, a value of the right type for each key.
    schema: &'a Value,
    values: Map<String, Value>,
}

impl<'a> Tree<'a> {
    /// Parses YAML; errors name `job`, the job's file or name.
    pub(super) fn parse(job: &'a str, schema: &'a Value, text: &str) -> Result<Tree<'a>, JobError> {
        let yaml_error = |problem: String| JobError::Yaml { job: job.to_owned(), problem };
        let budget = serde_saphyr::budget! {
            max_depth: 32,
            max_events: 20_000,
            max_nodes: 20_000,
            max_aliases: 64,
            max_anchors: 64,
        };
        let options = serde_saphyr::options! { budget: budget };
        let values = match serde_saphyr::from_str_with_options(text, options) {
            Ok(Value::Object(values)) => values,
            Ok(Value::Null) => Map::new(),
            Ok(_) => return Err(yaml_error("is not a job; write lines of the form `key: value`".to_owned())),
            Err(error) => return Err(yaml_error(format!("is not readable YAML: {}", yaml::problem(&error)))),
        };
        let mut tree = Tree { job, schema, values };
        let mut values = std::mem::take(&mut tree.values);
        tree.check_section("", schema, &mut values)?;
        tree.values = values;
        Ok(tree)
    }

    /// Checks the keys of a section, and removes sections whose keys are all commented out.
    fn check_section(
        &self,
        prefix: &str,
        schema: &Value,
        values: &mut Map<String, Value>,
    ) -> Result<(), JobError> {
        values.retain(|key, value| !(value.is_null() && schema.get(key).is_some_and(Value::is_object)));
        for (key, value) in values {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match (schema.get(key), value) {
                (None, _) => return Err(self.unknown(&name)),
                (Some(_), _) if OPEN.contains(&name.as_str()) => {}
                (Some(inner @ Value::Object(_)), Value::Object(values)) => {
                    self.check_section(&name, inner, values)?;
                }
                (Some(Value::Object(_)), value) => {
                    return Err(JobError::key(self.job, name, format!("is a section, but holds {value}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets a key from an override, as a later line of the file would. `epochs` and `steps` both give the
    /// length of the run, so setting one removes the other.
    pub(super) fn set(&mut self, key: &str, text: &str) -> Result<(), JobError> {
        let path = self.path_of(key)?;
        let value = self.typed(key, &path, text)?;
        let (last, sections) = path.split_last().expect("a key has a part");
        let mut values = &mut self.values;
        for section in sections {
            let inner = values.entry(*section).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            values = inner.as_object_mut().expect("made one above");
        }
        values.insert((*last).to_owned(), value);
        if let Some(other) = [("epochs", "steps"), ("steps", "epochs")].iter().find(|(this, _)| *this == key)
        {
            self.values.remove(other.1);
        }
        Ok(())
    }

    /// Splits a dotted key into its parts; the key must exist.
    fn path_of<'k>(&self, key: &'k str) -> Result<Vec<&'k str>, JobError> {
        if let Some(inner) = key.strip_prefix("opts.").filter(|inner| !inner.is_empty()) {
            return Ok(vec!["opts", inner]);
        }
        let parts: Vec<&str> = key.split('.').collect();
        let below = |open: &str| key == open || key.starts_with(&format!("{open}."));
        if OPEN.into_iter().any(below) && parts.iter().all(|part| !part.is_empty()) {
            return Ok(parts);
        }
        match parts.iter().try_fold(self.schema, |schema, part| schema.get(part)) {
            None => Err(self.unknown(key)),
            Some(Value::Object(_)) => {
                Err(JobError::key(self.job, key, "is a section; override one of its keys"))
            }
            Some(_) => Ok(parts),
        }
    }

    /// The value of an override: the text itself if the key takes a text, else the value that the text has in
    /// YAML.
    fn typed(&self, key: &str, path: &[&str], text: &str) -> Result<Value, JobError> {
        let known = path.iter().try_fold(self.schema, |schema, part| schema.get(part));
        match known {
            Some(Value::String(_)) if !matches!(text, "null" | "~") => Ok(Value::String(text.to_owned())),
            _ => serde_saphyr::from_str(text).map_err(|_| {
                JobError::key(self.job, key, format!("`{text}` is not readable as YAML; quote it"))
            }),
        }
    }

    /// Converts the tree to a job.
    pub(super) fn into_job<T: serde::de::DeserializeOwned>(self) -> Result<T, JobError> {
        from_value(self.job, "", Value::Object(self.values))
    }

    fn unknown(&self, key: &str) -> JobError {
        let key: String = key.chars().take(120).collect();
        let nearest = nearest_key(&key, self.schema);
        JobError::UnknownKey { job: self.job.to_owned(), key, nearest }
    }
}

/// Deserializes `value`, which lies under `prefix`; errors name the key.
pub(super) fn from_value<T: serde::de::DeserializeOwned>(
    job: &str,
    prefix: &str,
    value: Value,
) -> Result<T, JobError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let key = if path == "." { prefix.to_owned() } else { format!("{prefix}{path}") };
        JobError::key(job, key, with_plain_types(&error.into_inner().to_string()))
    })
}

/// Serde's message with plain words instead of Rust's number types.
fn with_plain_types(message: &str) -> String {
    ["f64", "u64", "usize"].iter().fold(message.to_owned(), |text, kind| {
        let plain = if *kind == "f64" { "a number" } else { "a whole number of at least 0" };
        text.replace(&format!("expected {kind}"), &format!("expected {plain}"))
    })
}

/// Every key of `schema` as a dotted path, including sections.
pub(super) fn keys(schema: &Value) -> Vec<String> {
    keys_below("", schema)
}

fn keys_below(prefix: &str, schema: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        let name = format!("{prefix}{key}");
        let inner = if OPEN.contains(&&*name) { Vec::new() } else { keys_below(&format!("{name}."), value) };
        names.push(name);
        names.extend(inner);
    }
    names
}

/// What other training programs call a key of a job.
pub(super) const SYNONYMS: [(&str, &str); 15] = [
    ("learning_rate", "optimizer.lr"),
    ("base_lr", "optimizer.lr"),
    ("clip_grad", "optimizer.clip_norm"),
    ("grad_clip", "optimizer.clip_norm"),
    ("max_grad_norm", "optimizer.clip_norm"),
    ("ema_decay", "optimizer.ema"),
    ("model_ema", "optimizer.ema"),
    ("warmup", "schedule.warmup_steps"),
    ("warmup_epochs", "schedule.warmup_steps"),
    ("label_smoothing", "loss.smoothing"),
    ("reprob", "augment.erasing"),
    ("amp", "precision"),
    ("workers", "threads"),
    ("accumulation_steps", "accumulate"),
    ("use_checkpoint", "recompute"),
];

/// The known key most similar to the unknown `key`: the part of `key` that is a known value if there is one;
/// else the key that others call so; else the key with the most similar last part, then the most similar
/// path.
fn nearest_key(key: &str, schema: &Value) -> String {
    let known = keys(schema);
    let above = key.match_indices('.').map(|(at, _)| &key[..at]);
    let is_leaf =
        |name: &str| !schema.pointer(&format!("/{}", name.replace('.', "/"))).is_none_or(Value::is_object);
    if let Some(leaf) = above.into_iter().find(|name| is_leaf(name)) {
        return leaf.to_owned();
    }
    // A key of a configuration is one below `opts`.
    if key.split_once('.').is_some_and(|(section, _)| section.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return format!("opts.{key}");
    }
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let name = last(key).to_lowercase();
    if let Some((_, ours)) = SYNONYMS.iter().find(|(theirs, _)| *theirs == name) {
        return (*ours).to_owned();
    }
    swinq_model::nearest_key(key, known.iter().map(String::as_str)).expect("a job has keys").to_owned()
}
