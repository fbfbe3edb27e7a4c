//! Comparison of the sites of a model in two runs.

use super::shown;
use crate::results::SiteResult;
use crate::text::decibels;

/// Maximum number of differing sites listed by name; the others are only counted.
const LISTED: usize = 20;

/// The least change of an SQNR that is listed, in dB: what its text shows.
const LEAST_DB: f64 = 0.01;

/// The differing sites, at most [`LISTED`] of them by name.
pub(super) fn compare(a: &[SiteResult], b: &[SiteResult]) -> String {
    let find = |sites: &[SiteResult], name: &str| sites.iter().find(|site| site.site == name).cloned();
    let mut changes: Vec<String> = Vec::new();
    for site in a {
        let other = find(b, &site.site);
        changes.extend(
            other
                .map_or(Some("only in the first run".to_owned()), |other| change(site, &other))
                .map(|text| format!("  {}: {text}\n", site.site)),
        );
    }
    for site in b.iter().filter(|site| find(a, &site.site).is_none()) {
        changes.push(format!("  {}: only in the second run\n", site.site));
    }
    if changes.is_empty() {
        return String::new();
    }
    let mut text = match changes.len() {
        1 => "1 site differs:\n".to_owned(),
        count => format!("{count} sites differ:\n"),
    };
    text.extend(changes.iter().take(LISTED).map(String::as_str));
    if changes.len() > LISTED {
        text.push_str(&format!("  and {} more\n", changes.len() - LISTED));
    }
    text
}

/// The changes of a site as text; `None` if there are none.
fn change(a: &SiteResult, b: &SiteResult) -> Option<String> {
    let onoff = |site: &SiteResult| if site.enabled { "on" } else { "off" };
    let mut parts = Vec::new();
    if a.enabled != b.enabled {
        parts.push(format!("{} -> {}", onoff(a), onoff(b)));
    }
    if a.kind != b.kind {
        parts.push(format!("kind {:?} -> {:?}", a.kind, b.kind).to_lowercase());
    }
    if a.scale != b.scale {
        parts.push(format!("scale {} -> {}", shown(a.scale), shown(b.scale)));
    }
    if differs(a.sqnr_db, b.sqnr_db) {
        let db = |site: &SiteResult| site.sqnr_db.map_or("none".to_owned(), decibels);
        parts.push(format!("SQNR {} -> {}", db(a), db(b)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Whether two ratios in dB differ by more than rounding.
fn differs(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        // Two infinite ratios are equal; their difference is not a number.
        (Some(a), Some(b)) => a != b && (a - b).abs() >= LEAST_DB,
        (a, b) => a.is_some() != b.is_some(),
    }
}
