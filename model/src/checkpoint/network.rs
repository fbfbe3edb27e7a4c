//! The network among the tensors of a checkpoint.

use std::path::Path;

use super::dialect::{Dialect, Naming, networks, placed};
use super::raw::RawDict;
use crate::error::ModelError;
use crate::params::name_list;

/// A network in a checkpoint.
pub(super) struct Network<'a> {
    /// How its tensors are named.
    pub naming: Naming,
    /// Its tensors, whose names lack the root.
    pub tensors: RawDict<'a>,
    /// What was left out of names and tensors, one sentence each.
    pub remarks: Vec<String>,
}

impl<'a> Network<'a> {
    /// Finds the network in `tensors`, those of the file at `path`: under `prefix` if it is given, else under what all names
    /// begin with. `dialect` is what the user states.
    ///
    /// # Errors
    /// No name begins with `prefix`; names of no dialect or of another than `dialect`; other tensors beside the network,
    /// without a `prefix`; a ViT.
    pub(super) fn find(
        path: &Path,
        tensors: RawDict<'a>,
        dialect: Option<Dialect>,
        prefix: Option<&str>,
    ) -> Result<Network<'a>, ModelError> {
        let mut remarks = Vec::new();
        let prefix = prefix.map(|prefix| format!("{}.", prefix.trim_end_matches('.'))).unwrap_or_default();
        let tensors = under(path, tensors, &prefix, &mut remarks)?;
        let keys: Vec<&str> = tensors.keys().map(String::as_str).collect();
        refuse_vit(&keys)?;
        let mut naming = naming(path, &keys, dialect)?;
        if !naming.root.is_empty() {
            let remark = format!("the names of its tensors begin with `{}`, which is left out", naming.root);
            remarks.push(format!("{}: {remark}", path.display()));
        }
        let tensors = without(&naming.root, tensors);
        naming.root.insert_str(0, &prefix);
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
    if !others.is_empty() {
        let count = others.len();
        let text = format!("{count} tensors outside of `{prefix}` are left out: {}", name_list(&others));
        remarks.push(format!("{}: {text}", path.display()));
    }
    Ok(without(prefix, inside))
}

/// `tensors`, whose names all begin with `prefix`, without it.
fn without<'a>(prefix: &str, tensors: RawDict<'a>) -> RawDict<'a> {
    match prefix {
        "" => tensors,
        _ => tensors.into_iter().map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor)).collect(),
    }
}

/// The names of the network that all `keys` belong to.
fn naming(path: &Path, keys: &[&str], stated: Option<Dialect>) -> Result<Naming, ModelError> {
    let found = networks(keys).map_err(|problem| ModelError::file(path, problem))?;
    let of_all = |root: &str| keys.iter().all(|key| key.starts_with(root));
    let whole = found.iter().filter(|f| of_all(&f.naming.root)).min_by_key(|f| f.naming.root.len());
    match (whole, stated) {
        (Some(found), None) => Ok(found.naming.clone()),
        (Some(found), Some(stated)) => match &found.mark {
            Some(key) if found.naming.dialect != stated => {
                let other = found.naming.dialect;
                let problem = format!(
                    "its tensors are named as by {other} (`{key}`), not as by {stated}; pass --dialect {other}, or leave \
                     --dialect out"
                );
                Err(ModelError::file(path, problem))
            }
            _ => Ok(placed(stated, &format!("{}{}", found.naming.root, found.naming.trunk), keys)),
        },
        (None, _) if !found.is_empty() => {
            let roots: Vec<&str> = found.iter().map(|found| found.naming.root.as_str()).collect();
            Err(ModelError::file(path, among_others(keys, &roots)))
        }
        (None, Some(stated)) => Ok(Naming::of(stated, keys)),
        (None, None) => Err(unknown_dialect(path, keys)),
    }
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
    format!(
        "has a network under {}{beside}; pass --prefix {} to read {} alone",
        quoted.join(", "),
        roots.first().unwrap_or(&""),
        if roots.len() > 1 { "that one" } else { "it" }
    )
}

/// Refuses tensors of a ViT or DeiT, whose names resemble those of a Swin.
fn refuse_vit(keys: &[&str]) -> Result<(), ModelError> {
    let token = |key: &str| {
        let last = key.rsplit('.').next().unwrap_or(key);
        ["cls_token", "dist_token", "distillation_token"].contains(&last)
    };
    let tokens: Vec<&str> = keys.iter().copied().filter(|key| token(key)).collect();
    let Some(first) = tokens.first() else { return Ok(()) };
    let network = if tokens.len() > 1 { "a distilled DeiT" } else { "a ViT or DeiT" };
    let problem = format!("the checkpoint is {network}, not a Swin: Swins have no class token; use a Swin");
    Err(ModelError::tensor(*first, problem))
}

/// The error for tensor names that fit no dialect.
fn unknown_dialect(path: &Path, keys: &[&str]) -> ModelError {
    let problem = format!(
        "its tensors follow no known naming convention of a Swin ({}); if they do, name it with --dialect",
        name_list(keys)
    );
    ModelError::file(path, problem)
}

#[cfg(test)]
mod tests;
