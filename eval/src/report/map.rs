//! The map of a model's sites, coloured by the quantization error at each.

use std::collections::BTreeMap;

use super::places::{counted, in_order, split};
use super::svg::{Anchor, Svg};
use crate::results::{ModelResult, SiteResult};

/// Lower limits in dB of the colours `e1` to `e6`; `e0` is below the first.
pub const LIMITS: [f64; 6] = [15.0, 20.0, 25.0, 30.0, 35.0, 40.0];

/// The map of one model.
pub struct Map {
    pub name: String,
    pub enabled: usize,
    pub total: usize,
    pub picture: String,
    /// The sites that are not INT8, by reason: reason, number of sites, places.
    pub off: Vec<(String, usize, String)>,
}

impl Map {
    /// The map of `model`, which is called `name`; `None` if it has no sites.
    pub fn new(name: &str, model: &ModelResult) -> Option<Map> {
        (!model.sites.is_empty()).then(|| Map {
            name: name.to_owned(),
            enabled: model.sites.iter().filter(|site| site.enabled).count(),
            total: model.sites.len(),
            picture: picture(name, model),
            off: off(model),
        })
    }
}

/// CSS class of a site's colour.
pub fn error_class(site: &SiteResult) -> String {
    match (site.enabled, site.sqnr_db) {
        (false, _) => "off".to_owned(),
        (true, None) => "unmeasured".to_owned(),
        (true, Some(db)) => format!("e{}", LIMITS.iter().filter(|limit| db >= **limit).count()),
    }
}

/// A cell per site: columns are modules in forward order, rows are places in a module. A cell of a site that
/// is on shows its SQNR in whole dB.
fn picture(name: &str, model: &ModelResult) -> String {
    let cells: Vec<(String, String)> = model.sites.iter().map(|site| split(&site.site)).collect();
    let columns = in_order(cells.iter().map(|cell| &cell.0));
    let mut rows = in_order(cells.iter().map(|cell| &cell.1));
    // Places that only blocks have contain a dot. They follow the places that all modules share.
    rows.sort_by_key(|row| row.contains('.') || row.is_empty());
    let (left, top, row, column) = (106.0, 52.0, 16.0, 21.0);
    let mut svg = Svg::default();
    for (i, name) in columns.iter().enumerate() {
        let x = left + column * (i as f64 + 0.5) + 4.0;
        svg.vertical_text("tick", [x, top - 5.0], Anchor::Start, name);
    }
    for (i, name) in rows.iter().enumerate() {
        svg.text("tick", [left - 6.0, top + row * (i as f64 + 0.5) + 4.0], Anchor::End, name);
    }
    for (site, (module, place)) in model.sites.iter().zip(&cells) {
        let position = |names: &[&String], name| names.iter().position(|n| *n == name).unwrap_or(0) as f64;
        let x = left + column * position(&columns, module);
        let y = top + row * position(&rows, place);
        svg.rect(&error_class(site), [x + 0.5, y + 0.5, column - 1.0, row - 1.0]);
        if let Some(db) = site.sqnr_db.filter(|_| site.enabled) {
            let text = if db.is_finite() { format!("{db:.0}") } else { "∞".to_owned() };
            svg.text("cell", [x + column / 2.0, y + 11.5], Anchor::Middle, &text);
        }
    }
    let width = left + column * columns.len() as f64 + 4.0;
    let height = top + row * rows.len() as f64 + 4.0;
    svg.finish(width, height, &format!("Precision and quantization error of each site of {name}"))
}

/// The sites that are not INT8, grouped by reason: the reason, the number of sites, and their places. Equal
/// places of different blocks are counted together.
fn off(model: &ModelResult) -> Vec<(String, usize, String)> {
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

/// The colours and their meaning: CSS class and text.
pub fn legend() -> Vec<(String, String)> {
    let mut legend = vec![("e0".to_owned(), format!("below {} dB", LIMITS[0]))];
    for (i, pair) in LIMITS.windows(2).enumerate() {
        legend.push((format!("e{}", i + 1), format!("{} to {}", pair[0], pair[1])));
    }
    legend.push((format!("e{}", LIMITS.len()), format!("{} and more", LIMITS[LIMITS.len() - 1])));
    legend.push(("unmeasured".to_owned(), "INT8, error not measured".to_owned()));
    legend.push(("off".to_owned(), "not quantized".to_owned()));
    legend
}
