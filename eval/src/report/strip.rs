//! Charts of the sites of a model: precision, noise, and histograms of ranges.

use std::collections::BTreeMap;

use super::RangeHistogram;
use super::svg::{Anchor, Axis, Svg};
use crate::results::{ModelResult, SiteResult};
use crate::text::decibels;

/// Maximum number of sites in the noise chart.
const NOISIEST: usize = 32;
/// Maximum number of bars of a histogram; a bar combines several bins if there are more.
const BARS: usize = 64;

/// Splits a site's name into its module (a block, a patch merging, or the first part) and its place in the module.
fn split(site: &str) -> (String, String) {
    let parts: Vec<&str> = site.split('.').collect();
    match parts.as_slice() {
        ["layers", stage, "blocks", block, rest @ ..] if !rest.is_empty() => {
            (format!("{stage}.{block}"), rest.join("."))
        }
        ["layers", stage, "downsample", .., last] => (format!("merge {stage}"), (*last).to_owned()),
        ["patch_embed", .., last] => ("patches".to_owned(), (*last).to_owned()),
        [first, .., last] if parts.len() > 1 => ((*first).to_owned(), (*last).to_owned()),
        _ => (site.to_owned(), String::new()),
    }
}

/// A description of a site's precision, for tooltips.
pub fn describe(site: &SiteResult) -> String {
    if !site.enabled {
        return format!("{}: not quantized{}", site.site, reason(site));
    }
    let kind = format!("{:?}", site.kind).to_lowercase();
    let scale = site.scale.map_or(String::new(), |scale| format!(", scale {scale:.6e}"));
    let noise = site.sqnr_db.map_or(String::new(), |db| format!(", SQNR {}", decibels(db)));
    format!("{}: INT8 ({kind}){scale}{noise}", site.site)
}

/// The reason in parentheses, if there is one.
fn reason(site: &SiteResult) -> String {
    site.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"))
}

/// The precision chart, with a cell per site: columns are modules in forward order, rows are places in a module.
pub fn precision(model: &ModelResult) -> String {
    let cells: Vec<(String, String)> = model.sites.iter().map(|site| split(&site.site)).collect();
    let columns = in_order(cells.iter().map(|cell| &cell.0));
    let mut rows = in_order(cells.iter().map(|cell| &cell.1));
    // Places that only blocks have contain a dot. They follow the places that all modules share.
    rows.sort_by_key(|row| row.contains('.') || row.is_empty());
    let (left, top, row) = (118.0, 58.0, 15.0);
    let column = (900.0 / columns.len().max(1) as f64).clamp(12.0, 30.0);
    let mut svg = Svg::default();
    for (i, name) in columns.iter().enumerate() {
        let x = left + column * (i as f64 + 0.5) + 4.0;
        svg.vertical_text("tick", [x, top - 6.0], Anchor::Start, name);
    }
    for (i, name) in rows.iter().enumerate() {
        svg.text("tick", [left - 8.0, top + row * (i as f64 + 0.5) + 4.0], Anchor::End, name);
    }
    for (site, (module, place)) in model.sites.iter().zip(&cells) {
        let position = |names: &[&String], name| names.iter().position(|n| *n == name).unwrap_or(0) as f64;
        let x = left + column * position(&columns, module);
        let y = top + row * position(&rows, place);
        let class = if site.enabled { "int8" } else { "float" };
        svg.rect(class, [x + 1.0, y + 1.0, column - 2.0, row - 2.0], &describe(site));
    }
    let width = left + column * columns.len() as f64 + 8.0;
    let height = top + row * rows.len() as f64 + 8.0;
    svg.finish(width, height, &format!("Precision of each site of {}", model.label()))
}

/// The distinct names, in order of first appearance.
fn in_order<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The sites that are not INT8, grouped by reason: the reason, the number of sites, and their places. Equal places of
/// different blocks are counted together.
pub fn not_quantized(model: &ModelResult) -> Vec<(String, usize, String)> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for site in model.sites.iter().filter(|site| !site.enabled) {
        let (module, place) = split(&site.site);
        let of_block = module.starts_with(|c: char| c.is_ascii_digit());
        let place = if of_block { place } else { site.site.clone() };
        let reason = site.reason.clone().unwrap_or_else(|| "no reason recorded".to_owned());
        groups.entry(reason).or_default().push(place);
    }
    let group = |(reason, places): (String, Vec<String>)| (reason, places.len(), counted(&places));
    groups.into_iter().map(group).collect()
}

/// The distinct names in order of first appearance, each with its number if that is not 1: `a (12), b, c (2)`.
fn counted(names: &[String]) -> String {
    let shown = in_order(names.iter()).into_iter().map(|name| {
        match names.iter().filter(|other| *other == name).count() {
            1 => name.clone(),
            count => format!("{name} ({count})"),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A chart of the signal-to-noise ratios of the noisiest sites, lowest first; `None` if no site has a finite one.
pub fn noise(model: &ModelResult) -> Option<String> {
    let mut sites: Vec<(&SiteResult, f64)> = model
        .sites
        .iter()
        .filter_map(|site| Some((site, site.sqnr_db.filter(|db| db.is_finite())?)))
        .collect();
    sites.sort_by(|a, b| a.1.total_cmp(&b.1));
    sites.truncate(NOISIEST);
    let highest = sites.last()?.1;
    let (width, left, right, row) = (980.0, 280.0, 900.0, 17.0);
    let height = 8.0 + row * sites.len() as f64 + 22.0;
    let x = Axis::from_zero(highest.max(10.0), left, right);
    let mut svg = Svg::default();
    for (value, text) in x.ticks(6) {
        svg.line("grid", [x.at(value), 4.0], [x.at(value), height - 20.0]);
        svg.text("tick", [x.at(value), height - 6.0], Anchor::Middle, &text);
    }
    for (i, (site, db)) in sites.iter().enumerate() {
        let y = 6.0 + row * i as f64;
        let class = if *db < 20.0 { "noisy" } else { "int8" };
        svg.text("tick", [left - 8.0, y + 11.0], Anchor::End, &site.site);
        svg.rect(class, [left, y + 2.0, x.at(db.max(0.0)) - left, row - 4.0], &describe(site));
        svg.text("value", [x.at(db.max(0.0)) + 6.0, y + 12.0], Anchor::Start, &decibels(*db));
    }
    Some(svg.finish(width, height, &format!("Signal to noise of the noisiest sites of {}", model.label())))
}

/// A histogram of magnitudes with heights on a logarithmic scale. If `amax` is given, it is drawn as a line, and
/// the bars beyond it are marked as clipped.
pub fn histogram(site: &str, data: &RangeHistogram, amax: Option<f64>) -> String {
    let bins_per_bar = data.counts.len().div_ceil(BARS).max(1);
    let bars: Vec<u64> = data
        .counts
        .chunks(bins_per_bar)
        .map(|chunk| chunk.iter().fold(0u64, |sum, &n| sum.saturating_add(n)))
        .collect();
    let (width, height, left, right, bottom) = (280.0, 120.0, 8.0, 272.0, 92.0);
    let range = data.bin_width * data.counts.len() as f64;
    let x = Axis::from_zero(amax.map_or(range, |amax| range.max(1.02 * amax)), left, right);
    let tallest = bars.iter().copied().max().unwrap_or(0);
    let y = Axis::from_zero((tallest as f64).ln_1p(), bottom, 22.0);
    let mut svg = Svg::default();
    svg.text("name", [left, 14.0], Anchor::Start, &super::charts::shorten(site, 42));
    let bar_width = data.bin_width * bins_per_bar as f64;
    for (i, &count) in bars.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, to) = (bar_width * i as f64, bar_width * (i + 1) as f64);
        let clipped = amax.is_some_and(|amax| from >= amax);
        let class = if clipped { "noisy" } else { "int8" };
        let top = y.at((count as f64).ln_1p());
        let tip = format!("{from:.4} to {to:.4}: {count}");
        svg.rect(class, [x.at(from), top, (x.at(to) - x.at(from) - 0.4).max(0.6), bottom - top], &tip);
    }
    svg.line("axis", [left, bottom], [right, bottom]);
    for (value, text) in x.ticks(4) {
        svg.text("tick", [x.at(value), bottom + 14.0], Anchor::Middle, &text);
    }
    if let Some(amax) = amax {
        svg.line("clip", [x.at(amax), 22.0], [x.at(amax), bottom]);
        svg.text("tick", [right, bottom + 26.0], Anchor::End, &format!("range ±{amax:.4}"));
    }
    svg.finish(width, height, &format!("Histogram of magnitudes at {site}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_module_and_place() {
        let cases = [
            ("layers.2.blocks.11.mlp.fc1.input", ("2.11", "mlp.fc1.input")),
            ("layers.0.downsample.reduction.weight", ("merge 0", "weight")),
            ("patch_embed.proj.input", ("patches", "input")),
            ("head.output", ("head", "output")),
            ("odd", ("odd", "")),
            ("layers.0.blocks.1", ("layers", "1")),
        ];
        for (name, (module, place)) in cases {
            assert_eq!(split(name), (module.to_owned(), place.to_owned()), "{name}");
        }
    }

    #[test]
    fn extreme_counts_give_a_valid_histogram() {
        let cases = [
            (0.5, vec![], None),
            (0.5, vec![0, 0], Some(0.2)),
            (0.01, vec![u64::MAX; 1000], Some(0.005)),
            (0.0, vec![3], None),
        ];
        for (bin_width, counts, amax) in cases {
            let picture = histogram("a.b", &RangeHistogram { bin_width, counts }, amax);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }
}
