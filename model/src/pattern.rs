//! Patterns over site names, as the rules of recipes and job files use them.
//!
//! `*` stays within one dot-separated part of a name, `**` crosses parts, `re:` introduces a regular expression that
//! must match the whole name.

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

/// Names of the three `sites` most similar to `pattern`, for the error about a pattern that matches no site.
pub fn nearest_sites(pattern: &str, sites: impl IntoIterator<Item = Site>) -> String {
    let mut names: Vec<String> = sites.into_iter().map(|site| site.to_string()).collect();
    // Common parts say most about the intended site; then the length of the common prefix; then the edit distance.
    let wanted: Vec<&str> = pattern.split('.').collect();
    let parts = |name: &str| name.split('.').filter(|part| wanted.contains(part)).count();
    let common_prefix = |name: &str| pattern.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    names.sort_by_cached_key(|name| {
        (std::cmp::Reverse((parts(name), common_prefix(name))), strsim::levenshtein(pattern, name))
    });
    names.truncate(3);
    names.join(", ")
}
