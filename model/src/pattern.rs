//! Patterns over site names, as the rules of recipes and job files use them.
//!
//! `*` stays within one dot-separated part of a name, `**` crosses parts, `re:` introduces a regular
//! expression that must match the whole name.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use crate::site::Site;

/// A pattern over site names.
///
/// ```
/// let pattern = swinq_model::SitePattern::new("layers.*.blocks.**.weight").unwrap();
/// assert!(pattern.matches("layers.0.blocks.1.mlp.fc1.weight"));
/// assert!(!pattern.matches("head.weight"));
/// ```
#[derive(Clone, Debug)]
pub struct SitePattern(Matcher);

#[derive(Clone, Debug)]
enum Matcher {
    Glob(GlobMatcher),
    Regex(Regex),
}

impl SitePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The reason why `pattern` is malformed.
    pub fn new(pattern: &str) -> Result<SitePattern, String> {
        if let Some(pattern) = pattern.strip_prefix("re:") {
            let regex = Regex::new(&format!("^(?:{pattern})$")).map_err(|e| e.to_string())?;
            return Ok(SitePattern(Matcher::Regex(regex)));
        }
        let glob = GlobBuilder::new(&pattern.replace('.', "/")).literal_separator(true).build();
        Ok(SitePattern(Matcher::Glob(glob.map_err(|e| e.to_string())?.compile_matcher())))
    }

    /// Whether the pattern matches a site's name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.0 {
            Matcher::Glob(glob) => glob.is_match(name.replace('.', "/")),
            Matcher::Regex(regex) => regex.is_match(name),
        }
    }
}

/// Patterns that match some of `names` and resemble `pattern`, which matches none: the same with `**` for `*`
/// (a regular expression within a name instead of for all of it), else those with one part of the name
/// replaced by the most similar parts of the names, at most three. Empty if there is no such pattern.
pub fn nearest_patterns(pattern: &str, names: impl IntoIterator<Item: ToString>) -> Vec<String> {
    /// The most edits of a part that count as a mistake.
    const EDITS: usize = 2;
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let parts: BTreeSet<&str> = names.iter().flat_map(|name| name.split('.')).collect();
    let wanted: Vec<&str> = pattern.split('.').collect();
    let matches = |pattern: SitePattern| names.iter().any(|name| pattern.matches(name));
    if let Some(wider) = wider(pattern).into_iter().find(|wider| SitePattern::new(wider).is_ok_and(matches)) {
        return vec![wider];
    }
    let mut found: Vec<(usize, String)> = Vec::new();
    for (place, part) in wanted.iter().enumerate().filter(|(_, part)| is_literal(part)) {
        for other in &parts {
            let edits = strsim::levenshtein(part, other);
            let changed = [&wanted[..place], &[*other], &wanted[place + 1..]].concat().join(".");
            if (1..=EDITS.min(part.len() - 1)).contains(&edits)
                && SitePattern::new(&changed).is_ok_and(matches)
            {
                found.push((edits, changed));
            }
        }
    }
    found.sort();
    let fewest = found.first().map(|(edits, _)| *edits);
    found
        .into_iter()
        .filter(|(edits, _)| Some(*edits) == fewest)
        .map(|(_, pattern)| pattern)
        .take(3)
        .collect()
}

/// Patterns that match more names than `pattern`, from the most similar one.
fn wider(pattern: &str) -> Vec<String> {
    if let Some(regex) = pattern.strip_prefix("re:") {
        return vec![format!("re:.*({regex}).*")];
    }
    let parts: Vec<&str> = pattern.split('.').map(|part| if part == "*" { "**" } else { part }).collect();
    let crossing = parts.join(".");
    let below = format!("{crossing}.**");
    vec![crossing, below, format!("**.{pattern}"), format!("**.{pattern}.**")]
}

/// Whether a part of a pattern is a name and no number, which would match other blocks.
fn is_literal(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && part.parse::<usize>().is_err()
        && part.len() > 1
}

/// Names of the three `sites` most similar to `pattern`, for the error about a pattern that matches no site.
pub fn nearest_sites(pattern: &str, sites: impl IntoIterator<Item = Site>) -> String {
    let mut names: Vec<String> = sites.into_iter().map(|site| site.to_string()).collect();
    // Common parts say most about the intended site; then the length of the common prefix; then the edit
    // distance.
    let wanted: Vec<&str> = pattern.split('.').collect();
    let parts = |name: &str| name.split('.').filter(|part| wanted.contains(part)).count();
    let common_prefix = |name: &str| pattern.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    names.sort_by_cached_key(|name| {
        (std::cmp::Reverse((parts(name), common_prefix(name))), strsim::levenshtein(pattern, name))
    });
    names.truncate(3);
    names.join(", ")
}
