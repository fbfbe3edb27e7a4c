//! The network among the tensors of a checkpoint.

use std::path::Path;

use super::dialect::{Dialect, FoundNetwork, Naming, networks, placed};
use super::foreign;
use super::raw::RawDict;
use crate::arch::Task;
use crate::error::ModelError;
use crate::params::{HEADLESS_REMEDY, name_list};

/// A network in a checkpoint.
pub(super) struct Network<'a> {
    /// How its tensors are named.
    pub naming: Naming,
    /// Its tensors, whose names lack the root.
    pub tensors: RawDict<'a>,
    /// Remarks on names and tensors that were left out, one sentence each.
    pub remarks: Vec<String>,
}

impl<'a> Network<'a> {
    /// Finds the network for `task` in `tensors`, those of the file at `path`. `dialect` is what the user
    /// states.
    ///
    /// A classifier stands under `prefix` if it is given, else under what all names begin with. A backbone is
    /// found among other tensors too; `prefix` chooses one of several.
    ///
    /// # Errors
    /// No network under `prefix`; names of no dialect or of another than `dialect`; other tensors beside a
    /// classifier, without a `prefix`; several backbones; another network than a Swin.
    pub(super) fn find(
        path: &Path,
        tensors: RawDict<'a>,
        task: Task,
        dialect: Option<Dialect>,
        prefix: Option<&str>,
    ) -> Result<Network<'a>, ModelError> {
        let prefix = prefix.map(|prefix| match prefix.trim_end_matches('.') {
            "" => String::new(),
            attributes => format!("{attributes}."),
        });
        let (tensors, counters) = without_counters(path, tensors);
        let mut network = match task {
            Task::Classification => {
                Network::classifier(path, tensors, dialect, prefix.as_deref().unwrap_or_default())?
            }
            Task::Features => Network::backbone(path, tensors, dialect, prefix.as_deref())?,
        };
        network.remarks.extend(counters);
        Ok(network)
    }

    fn classifier(
        path: &Path,
        tensors: RawDict<'a>,
        dialect: Option<Dialect>,
        prefix: &str,
    ) -> Result<Network<'a>, ModelError> {
        let mut remarks = Vec::new();
        let tensors = under(path, tensors, prefix, &mut remarks)?;
        foreign::refuse(&tensors)?;
        foreign::refuse_pretraining(&tensors)?;
        let keys: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let mut naming = naming(path, &keys, dialect)?;
        if !naming.root.is_empty() {
            let remark = format!("the names of its tensors begin with `{}`, which is left out", naming.root);
            remarks.push(format!("{}: {remark}", path.display()));
        }
        let tensors = without(&naming.root, tensors);
        naming.root.insert_str(0, prefix);
        Ok(Network { naming, tensors, remarks })
    }

    fn backbone(
        path: &Path,
        mut tensors: RawDict<'a>,
        dialect: Option<Dialect>,
        prefix: Option<&str>,
    ) -> Result<Network<'a>, ModelError> {
        let keys: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let mut found = networks(Task::Features, &keys).map_err(|problem| ModelError::file(path, problem))?;
        found.retain(|found| found.naming.has_blocks(&keys));
        let prefixes: Vec<String> = found.iter().map(|found| found.naming.prefix()).collect();
        if let Some(prefix) = prefix {
            // The prefix of one backbone may be the beginning of another's.
            let exact = found.iter().any(|found| found.naming.prefix() == prefix);
            found.retain(|found| match exact {
                true => found.naming.prefix() == prefix,
                false => found.naming.prefix().starts_with(prefix),
            });
        }
        let all = found.clone();
        of_dialect(&mut found, dialect);
        let naming = match found.as_slice() {
            [only] => stated(path, only, Task::Features, dialect, &keys)?,
            // Networks are found by their projection of patches, and a stack of blocks has none.
            [] if dialect.is_some_and(|dialect| Naming::of(dialect, &keys).has_blocks(&keys)) => {
                let dialect = dialect.expect("it has blocks");
                placed(dialect, Task::Features, prefix.unwrap_or_default(), &keys)
            }
            [] => {
                foreign::refuse(&tensors)?;
                return Err(no_backbone(path, prefix.unwrap_or_default(), &keys));
            }
            several => return Err(ModelError::file(path, several_backbones(several))),
        };
        let own = naming.prefix();
        let nested: Vec<&String> =
            prefixes.iter().filter(|prefix| **prefix != own && prefix.starts_with(&own)).collect();
        // Another network of the same prefix has names of another dialect.
        let is_twin = |other: &&Naming| other.prefix() == own && other.dialect != naming.dialect;
        let twins: Vec<&Naming> = all.iter().map(|found| &found.naming).filter(is_twin).collect();
        let has = |its: &Naming, name: &str| {
            name.strip_prefix(&its.root).is_some_and(|name| its.has_own_name(name))
        };
        let of_twin = |name: &str| twins.iter().any(|twin| has(twin, name)) && !has(&naming, name);
        let inside = |name: &str| {
            let own = name.strip_prefix(&naming.root).is_some_and(|name| naming.is_inside(name));
            own && !nested.iter().any(|prefix| name.starts_with(prefix.as_str())) && !of_twin(name)
        };
        let others =
            tensors.extract_if(.., |name, _| !inside(name)).map(|(name, _)| name).collect::<Vec<_>>();
        let outside = format!("outside of the backbone under `{}`", naming.prefix());
        let mut remarks: Vec<String> = left_out(path, &others, &outside).into_iter().collect();
        foreign::refuse(&tensors)?;
        let mut tensors = without(&naming.root, tensors);
        let of_head = tensors.extract_if(.., |name, _| naming.is_of_head(name)).map(|(name, _)| name);
        let of_head: Vec<String> = of_head.collect();
        remarks.extend(left_out(path, &of_head, "of a classifier's final norm and head"));
        let of_masks = tensors.extract_if(.., |name, _| last_component(name) == "mask_token");
        let of_masks: Vec<String> = of_masks.map(|(name, _)| name).collect();
        remarks.extend(left_out(path, &of_masks, "of a pretraining by masked images"));
        Ok(Network { naming, tensors, remarks })
    }

    /// `error` with the name that its tensor has in the file, if that is another name.
    pub(super) fn with_stored_name(&self, error: ModelError) -> ModelError {
        let stored = |name: &str| Some((self.naming.stored_name(name)?, self.naming.dialect));
        match error {
            ModelError::Tensor { tensor, problem } => {
                let also = stored(&tensor)
                    .map_or(String::new(), |(name, dialect)| format!("`{name}` in the names of {dialect}; "));
                ModelError::Tensor { problem: also + &problem, tensor }
            }
            ModelError::Mismatch { problem, first } => {
                let also = stored(first.trim_matches('`')).map_or(String::new(), |(name, dialect)| {
                    format!(" (`{name}` in the names of {dialect})")
                });
                ModelError::Mismatch { problem, first: first + &also }
            }
            other => other,
        }
    }
}

/// Last components of the names of numbers that tools keep beside parameters: thop's counts, and that of an
/// average.
const COUNTERS: [&str; 3] = ["total_ops", "total_params", "n_averaged"];

/// The last component of the name of a tensor.
fn last_component(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// `tensors` without counters and without the copies of parameters that mmcv's averaging keeps in buffers,
/// such as `ema_backbone_norm3_weight`, and a remark that names them.
fn without_counters<'a>(path: &Path, mut tensors: RawDict<'a>) -> (RawDict<'a>, Option<String>) {
    let is_counter = |name: &str| COUNTERS.contains(&last_component(name));
    let is_copy = |name: &str| name.starts_with("ema_") && !name.contains('.');
    let found = tensors.extract_if(.., |name, _| is_counter(name) || is_copy(name));
    let found: Vec<String> = found.map(|(name, _)| name).collect();
    let remark = left_out(path, &found, "that are no part of the network");
    (tensors, remark)
}

/// The remark on tensors of `path` with these `names` that are not read; none if there are no names.
fn left_out(path: &Path, names: &[impl AsRef<str>], what: &str) -> Option<String> {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let (path, count) = (path.display(), names.len());
    (count > 0).then(|| format!("{path}: {count} tensors {what} are left out: {}", name_list(&names)))
}

/// The tensors whose names begin with `prefix`, without it. A remark counts the others.
fn under<'a>(
    path: &Path,
    tensors: RawDict<'a>,
    prefix: &str,
    remarks: &mut Vec<String>,
) -> Result<RawDict<'a>, ModelError> {
    let (inside, others): (RawDict<'a>, RawDict<'a>) =
        tensors.into_iter().partition(|(name, _)| name.starts_with(prefix));
    let others: Vec<&str> = others.keys().map(String::as_str).collect();
    if inside.is_empty() && !prefix.is_empty() {
        let problem =
            format!("has no tensor whose name begins with `{prefix}`; its tensors: {}", name_list(&others));
        return Err(ModelError::file(path, problem));
    }
    remarks.extend(left_out(path, &others, &format!("outside of `{prefix}`")));
    Ok(without(prefix, inside))
}

/// `tensors`, whose names all begin with `prefix`, without it.
fn without<'a>(prefix: &str, tensors: RawDict<'a>) -> RawDict<'a> {
    match prefix {
        "" => tensors,
        _ => tensors.into_iter().map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor)).collect(),
    }
}

/// Leaves those of `found` that are of `dialect`, if there are any.
fn of_dialect(found: &mut Vec<FoundNetwork>, dialect: Option<Dialect>) {
    let is = |found: &FoundNetwork| Some(found.naming.dialect) == dialect;
    if found.iter().any(is) {
        found.retain(is);
    }
}

/// The names of the classifier that all `keys` belong to.
fn naming(path: &Path, keys: &[&str], dialect: Option<Dialect>) -> Result<Naming, ModelError> {
    let task = Task::Classification;
    let found = networks(task, keys).map_err(|problem| ModelError::file(path, problem))?;
    let of_all = |root: &str| keys.iter().all(|key| key.starts_with(root));
    let whole = found.iter().filter(|f| of_all(&f.naming.root)).min_by_key(|f| f.naming.root.len());
    match (whole, dialect) {
        (Some(found), dialect) => stated(path, found, task, dialect, keys),
        (None, _) if !found.is_empty() => {
            let roots: Vec<&str> = found.iter().map(|found| found.naming.root.as_str()).collect();
            Err(ModelError::file(path, among_others(keys, &roots)))
        }
        (None, Some(dialect)) => Ok(Naming::of(dialect, keys)),
        (None, None) => Err(unknown_dialect(path, keys)),
    }
}

/// The names of the network `found`, which the user states to be of `dialect`.
///
/// # Errors
/// A name that no file of `dialect` has.
fn stated(
    path: &Path,
    found: &FoundNetwork,
    task: Task,
    dialect: Option<Dialect>,
    keys: &[&str],
) -> Result<Naming, ModelError> {
    match (dialect, &found.mark) {
        (None, _) => Ok(found.naming.clone()),
        (Some(stated), Some(key)) if found.naming.dialect != stated => {
            let other = found.naming.dialect;
            let problem = format!(
                "its tensors are named as by {other} (`{key}`), not as by {stated}; pass --dialect {other}, or leave \
                 --dialect out"
            );
            Err(ModelError::file(path, problem))
        }
        (Some(stated), _) => Ok(placed(stated, task, &found.naming.prefix(), keys)),
    }
}

/// The problem of several backbones in a file.
fn several_backbones(found: &[FoundNetwork]) -> String {
    let mut prefixes: Vec<String> = found.iter().map(|found| found.naming.prefix()).collect();
    prefixes.dedup();
    let quoted: Vec<String> = prefixes.iter().map(|prefix| format!("`{prefix}`")).collect();
    if let [prefix] = quoted.as_slice() {
        let dialects: Vec<String> = found.iter().map(|found| found.naming.dialect.to_string()).collect();
        return format!(
            "has {} backbones under {prefix}, in the names of {}; pass --dialect {} or another of them",
            found.len(),
            dialects.join(" and "),
            dialects[0]
        );
    }
    let named = prefixes.iter().find(|prefix| !prefix.is_empty());
    let unnamed = if prefixes.iter().any(String::is_empty) {
        " (--prefix '' for the one without a prefix)"
    } else {
        ""
    };
    format!(
        "has {} backbones, under {}; pass --prefix {} or another of them{unnamed}",
        found.len(),
        quoted.join(" and "),
        named.map_or("''", |prefix| prefix)
    )
}

/// The error for a file without a backbone under `prefix`.
fn no_backbone(path: &Path, prefix: &str, keys: &[&str]) -> ModelError {
    let place = if prefix.is_empty() { String::new() } else { format!(" under `{prefix}`") };
    let problem = format!(
        "has no backbone{place} whose tensors follow a known naming convention of a Swin; its tensors: {}",
        name_list(keys)
    );
    ModelError::file(path, problem)
}

/// The problem of a network among other tensors.
fn among_others(keys: &[&str], roots: &[&str]) -> String {
    let others: Vec<&str> =
        keys.iter().filter(|key| !roots.iter().any(|root| key.starts_with(root))).copied().collect();
    let quoted: Vec<String> = roots.iter().map(|root| format!("`{root}`")).collect();
    let beside = match others.as_slice() {
        [] => String::new(),
        others => format!(" among {} other tensors ({})", others.len(), name_list(others)),
    };
    let of_classifier = |key: &&str| key.split('.').any(|part| part == "head" || part == "classifier");
    if !keys.iter().any(of_classifier) {
        return format!(
            "has a backbone under {}{beside}, and no classifier; {HEADLESS_REMEDY}",
            quoted.join(", ")
        );
    }
    format!(
        "has a network under {}{beside}; pass --prefix {} to read {} alone; `swinq features` (or --task \
         features) reads a backbone",
        quoted.join(", "),
        roots.first().unwrap_or(&""),
        if roots.len() > 1 { "that one" } else { "it" }
    )
}

/// The error for tensor names that fit no dialect.
fn unknown_dialect(path: &Path, keys: &[&str]) -> ModelError {
    let problem = format!(
        "its tensors follow no known naming convention of a Swin ({}); give the checkpoint of a Swin",
        name_list(keys)
    );
    ModelError::file(path, problem)
}

#[cfg(test)]
mod tests;
