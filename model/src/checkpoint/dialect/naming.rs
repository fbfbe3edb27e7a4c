//! The names of one network's tensors, both ways, and the networks that the names of a file suggest.

use std::collections::BTreeSet;

use super::table::{Group, Place, Row, Table, Values};
use super::{BUFFERS, Dialect, TABLES, output_norm, pattern};
use crate::arch::{SwinVersion, Task, WindowPolicy};
use crate::params::{MAX_STAGES, name_list};

/// The most networks that are looked at; a file has one, or a few copies of it.
const MOST_NETWORKS: usize = 16;

/// Our names of tensors that dialects with another projection of patches do not have.
const OURS_ALONE: [&str; 2] = ["layers.{*}", "patch_embed.proj.{*}"];

/// How the tensors of a network are named: `{root}{trunk}LAYER`, and `{root}HEAD` for the classifier's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Naming {
    /// The convention.
    pub dialect: Dialect,
    /// The version of the Swin: V2 if a tensor is of cosine attention.
    pub version: SwinVersion,
    /// The common beginning of all names of the network: attributes of wrappers, such as `module.`, each with
    /// its point.
    pub root: String,
    /// The attribute of the layers in a classifier, with its point, where the dialect has one.
    pub trunk: &'static str,
    /// The task as which the network is read.
    task: Task,
    /// The rule for windows of the library that reads the file for this task.
    policy: WindowPolicy,
    /// Whether the norm of the last stage is that of a classifier, also if the file is read as a backbone.
    final_norm: bool,
    /// The last stage.
    last: usize,
}

/// A network that names suggest.
#[derive(Clone, Debug)]
pub(crate) struct FoundNetwork {
    /// Its names.
    pub naming: Naming,
    /// A name that no other dialect has. Without one, the names are taken for Microsoft's.
    pub mark: Option<String>,
}

/// The parameter that a stored tensor belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The values are this parameter's, or a part of them.
    Parameter(String, Values),
    /// The tensor is no parameter: buffers are rebuilt, and quantizer ranges are read by `ft`.
    Dropped,
}

impl Naming {
    /// The names of a classifier of `dialect` without a root, as far as `keys` tell more.
    pub(crate) fn of(dialect: Dialect, keys: &[&str]) -> Naming {
        let mut trunks = dialect.table().trunks.iter().map(|&(_, trunk)| trunk);
        let trunk = trunks.find(|trunk| keys.iter().any(|key| key.starts_with(trunk)));
        Naming::at(dialect, Task::Classification, "", trunk.unwrap_or_default(), keys)
    }

    fn at(dialect: Dialect, task: Task, root: &str, trunk: &'static str, keys: &[&str]) -> Naming {
        let prefix = format!("{root}{trunk}");
        let inner = || keys.iter().filter_map(|key| key.strip_prefix(prefix.as_str()));
        let groups = || dialect.table().groups.iter().filter(|group| group.ours.contains(".blocks."));
        let stages = groups().flat_map(|group| {
            let pattern = format!("{}{{*}}", group.theirs);
            inner().filter_map(move |name| pattern::matches(&pattern, name, 0)).map(|found| found.stage)
        });
        let last = stages.filter(|&stage| stage < MAX_STAGES).max().unwrap_or(0);
        let version = version(inner());
        let names: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix(root)).collect();
        let policy = match task {
            Task::Classification => dialect.window_policy(version),
            Task::Features => {
                dialect.table().reader(&names).window_policies[(version == SwinVersion::V2) as usize]
            }
        };
        let root = root.to_owned();
        let naming = Naming { dialect, version, root, trunk, task, policy, final_norm: false, last };
        Naming { final_norm: naming.is_of_classifier(&names), ..naming }
    }

    /// Whether the only norm of an output among `names`, which lack the root, is the final norm of a
    /// classifier: that of the last stage, in a file with a head.
    fn is_of_classifier(&self, names: &[&str]) -> bool {
        let classifier = Naming { final_norm: true, ..self.clone() };
        let head = |name: &&str| matches!(&classifier.renamed(name).0[..], "head.weight" | "head.bias");
        let norms: Vec<&str> =
            names.iter().copied().filter(|name| output_norm(&self.renamed(name).0).is_some()).collect();
        !norms.is_empty()
            && names.iter().any(head)
            && norms.iter().all(|name| classifier.renamed(name).0.starts_with("norm."))
    }

    /// The rule for windows of a network whose description has the rule `stated`, which counts if it is one
    /// of the dialect's.
    pub(crate) fn window_policy(&self, stated: WindowPolicy) -> WindowPolicy {
        if self.table().other_policies.contains(&stated) { stated } else { self.policy }
    }

    /// Whether one of `keys` is of a block of the network.
    pub(crate) fn has_blocks(&self, keys: &[&str]) -> bool {
        let block =
            |name: &str| pattern::matches("layers.{s}.blocks.{b}.{*}", &self.renamed(name).0, 0).is_some();
        keys.iter().filter_map(|key| key.strip_prefix(self.root.as_str())).any(block)
    }

    /// Whether the tensor `name`, which lacks the root, is of a classifier's final norm or head.
    pub(crate) fn is_of_head(&self, name: &str) -> bool {
        let (ours, _) = self.renamed(name);
        ["norm.", "head."].iter().any(|module| ours.starts_with(module))
    }

    /// The common beginning of the names of all layers.
    pub(crate) fn prefix(&self) -> String {
        format!("{}{}", self.root, self.trunk)
    }

    /// Whether the tensor `name`, which lacks the root, is of the layers, the head, or the norm of an output.
    pub(crate) fn is_inside(&self, name: &str) -> bool {
        name.starts_with(self.trunk) || self.renamed(name).0 != name
    }

    /// The parameter to which the tensor `name` belongs; `name` is without the root. A name that the dialect
    /// does not have is kept, so that [`check_parameters`](crate::params::check_parameters) reports it as
    /// unexpected.
    pub(crate) fn target(&self, name: &str) -> Target {
        let buffer = BUFFERS.contains(&name.rsplit('.').next().unwrap_or(name));
        if buffer || self.table().dropped.iter().any(|p| pattern::matches(p, name, self.last).is_some()) {
            return Target::Dropped;
        }
        let (ours, values) = self.renamed(name);
        Target::Parameter(ours, values)
    }

    /// Whether the tensor `name`, which lacks the root, has a name of the network's dialect that dialects
    /// with other names for the projection of patches do not have.
    pub(crate) fn has_own_name(&self, name: &str) -> bool {
        let inner = name.strip_prefix(self.trunk).unwrap_or(name);
        match self.known(name) {
            Some((ours, _)) => ours != inner,
            // Tables of dialects with our names have no rows for them.
            None => {
                self.table().anchor == "patch_embed.proj"
                    && OURS_ALONE.iter().any(|ours| pattern::matches(ours, inner, self.last).is_some())
            }
        }
    }

    /// Our name of the tensor `name`, a parameter or a buffer, and what its values are.
    pub(crate) fn renamed(&self, name: &str) -> (String, Values) {
        self.known(name).unwrap_or_else(|| (name.to_owned(), Values::Whole))
    }

    /// The same; `None` for a name that the dialect does not have.
    fn known(&self, name: &str) -> Option<(String, Values)> {
        self.rows().find_map(|(group, row)| {
            let stored = if group.place == Place::Trunk { name.strip_prefix(self.trunk)? } else { name };
            let captures = pattern::matches(&join(group.theirs, row.theirs), stored, self.last)?;
            Some((pattern::fill(&join(group.ours, row.ours), captures, self.last)?, row.values))
        })
    }

    /// The name of the parameter `ours` in the file, root included; `{query,key,value}` if it has several.
    /// `None` if it is `ours`.
    pub(crate) fn stored_name(&self, ours: &str) -> Option<String> {
        let stored = |(group, row): (&Group, &Row)| {
            let captures = pattern::matches(&join(group.ours, row.ours), ours, self.last)?;
            let name = pattern::fill(&join(group.theirs, row.theirs), captures, self.last)?;
            let trunk = if group.place == Place::Trunk { self.trunk } else { "" };
            Some((format!("{}{trunk}{name}", self.root), row.values))
        };
        let mut names = self.rows().filter(|(_, row)| !row.alias).filter_map(stored).peekable();
        let name = match names.peek() {
            None => format!("{}{ours}", self.root),
            Some((first, Values::Whole | Values::Unfolded | Values::Map)) => first.clone(),
            Some((_, Values::Third(_))) => {
                let thirds = names.take_while(|(_, values)| matches!(values, Values::Third(_)));
                joined(&thirds.map(|(name, _)| name).collect::<Vec<_>>())
            }
        };
        (name != ours).then_some(name)
    }

    fn table(&self) -> &'static Table {
        self.dialect.table()
    }

    /// The rows of this version, with their groups.
    fn rows(&self) -> impl Iterator<Item = (&'static Group, &'static Row)> + use<> {
        let version = self.version;
        let backbone = match self.task {
            Task::Features if !self.final_norm => self.table().backbone,
            _ => &[],
        };
        let groups = backbone.iter().chain(self.table().groups);
        let groups = groups.filter(move |group| group.version.is_none_or(|v| v == version));
        groups.flat_map(|group| group.rows.iter().map(move |row| (group, row)))
    }
}

/// The networks that the names `keys` suggest, which are read for `task`: those with a projection of patches.
///
/// # Errors
/// More than [`MOST_NETWORKS`] of them.
pub(crate) fn networks(task: Task, keys: &[&str]) -> Result<Vec<FoundNetwork>, String> {
    let mut places: BTreeSet<(&str, &str)> = BTreeSet::new();
    for key in keys {
        let module = key.strip_suffix(".weight").or_else(|| key.strip_suffix(".bias")).unwrap_or_default();
        let anchors =
            TABLES.iter().filter_map(|table| Some((module.strip_suffix(table.anchor)?, table.anchor)));
        places.extend(anchors.filter(|(prefix, _)| prefix.is_empty() || prefix.ends_with('.')));
    }
    if places.len() > MOST_NETWORKS {
        let prefixes: Vec<&str> = places.iter().map(|&(prefix, _)| prefix).collect();
        return Err(format!("has {} networks: {}", places.len(), name_list(&prefixes)));
    }
    Ok(places.into_iter().map(|(prefix, anchor)| network(task, prefix, anchor, keys)).collect())
}

/// The network whose projection of patches is `{prefix}{anchor}`.
fn network(task: Task, prefix: &str, anchor: &str, keys: &[&str]) -> FoundNetwork {
    let inner = || keys.iter().filter_map(|key| Some((*key, key.strip_prefix(prefix)?)));
    let within = |table: &&Table| {
        table.within.is_empty() || table.within.iter().any(|within| attributes(prefix, within).is_some())
    };
    let mut tables = TABLES.iter().filter(|table| table.anchor == anchor).filter(within);
    let marked = tables.find_map(|table| {
        let anchor = [table.anchor, ".{*}"].concat();
        let marks = if table.marks.is_empty() { &[anchor.as_str()][..] } else { table.marks };
        let is_mark = |name: &str| marks.iter().any(|mark| pattern::matches(mark, name, 0).is_some());
        Some((table.dialect, inner().find(|(_, name)| is_mark(name))?.0))
    });
    let dialect = marked.map_or(Dialect::Microsoft, |(dialect, _)| dialect);
    FoundNetwork { naming: placed(dialect, task, prefix, keys), mark: marked.map(|(_, key)| key.to_owned()) }
}

/// The names of a network of `dialect`, read for `task`, whose layers begin with `prefix`, which may end with
/// an attribute of the dialect.
pub(crate) fn placed(dialect: Dialect, task: Task, prefix: &str, keys: &[&str]) -> Naming {
    let mut trunks = dialect.table().trunks.iter().filter(|(_, trunk)| !trunk.is_empty());
    let trunk = trunks.find_map(|&(_, trunk)| attributes(prefix, trunk)).unwrap_or_default();
    Naming::at(dialect, task, &prefix[..prefix.len() - trunk.len()], trunk, keys)
}

/// `end`, if `prefix` ends with it and no attribute is cut in two.
fn attributes<'a>(prefix: &str, end: &'a str) -> Option<&'a str> {
    prefix.strip_suffix(end).is_some_and(|root| root.is_empty() || root.ends_with('.')).then_some(end)
}

/// The version of the Swin whose tensors have these names: V2 if one of them is of cosine attention.
fn version<'a>(keys: impl IntoIterator<Item = &'a str>) -> SwinVersion {
    const MARKS: [&str; 4] = ["cpb_mlp", "logit_scale", "continuous_position_bias", "relative_coords_table"];
    match keys.into_iter().any(|key| MARKS.iter().any(|mark| key.contains(mark))) {
        true => SwinVersion::V2,
        false => SwinVersion::V1,
    }
}

fn join(group: &str, row: &str) -> String {
    [group, row].concat()
}

/// Names that differ in one place as one: `a.{query,key}.bias`.
fn joined(names: &[String]) -> String {
    let Some((first, others)) = names.split_first() else { return String::new() };
    let common = |length: fn(&str, &str) -> usize| others.iter().map(|o| length(first, o)).min();
    let start = common(|a, b| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count());
    let end = common(|a, b| a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count());
    let (Some(start), Some(end)) = (start, end) else { return first.clone() };
    // Whole components of a name, or of a word such as `q_bias`.
    let part = |name: &'_ String| name[start..name.len() - end].to_owned();
    let parts: Vec<String> = names.iter().map(part).collect();
    format!("{}{{{}}}{}", &first[..start], parts.join(","), &first[first.len() - end..])
}

#[cfg(test)]
mod tests;
