//! Comparison of the results of two runs.

use comfy_table::{CellAlignment, Table, presets};

use crate::results::{ModelResult, Results, SiteResult};
use crate::text::{decibels, mebibytes};

/// Maximum number of differing sites listed by name; the others are only counted.
const LISTED_SITES: usize = 20;

/// A figure that both runs have: its name, the two values and their change, as text.
type Row = [String; 4];

/// Describes the changes from run `a` to run `b` as text.
///
/// The text first lists differences of data and machine, and says which figures cannot be compared because of
/// them. Then it lists the models that both runs have (the same name, precision and backend), then the models
/// that only one run has.
pub fn compare(a: &Results, b: &Results) -> String {
    let mut text = compare_conditions(a, b);
    let mut unmatched: Vec<&ModelResult> = b.models.iter().collect();
    for model in &a.models {
        let same = |other: &&ModelResult| other.label() == model.label();
        match unmatched.iter().position(same) {
            Some(position) => text.push_str(&compare_models(model, unmatched.remove(position))),
            None => text.push_str(&format!("{}: only in the first run\n\n", model.label())),
        }
    }
    for model in unmatched {
        text.push_str(&format!("{}: only in the second run\n\n", model.label()));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The differences of data, machine and software.
fn compare_conditions(a: &Results, b: &Results) -> String {
    let mut text = String::new();
    let mut note = |what: &str, a: String, b: String, consequence: &str| {
        if a != b {
            text.push_str(&format!("{what} differs: {a} -> {b}{consequence}\n"));
        }
    };
    let accuracy = "; accuracies cannot be compared";
    let speed = "; latencies cannot be compared";
    let (x, y) = (a.data.clone().unwrap_or_default(), b.data.clone().unwrap_or_default());
    let path = |data: &str| if data.is_empty() { "none".to_owned() } else { data.to_owned() };
    note("data set", path(&x.path), path(&y.path), "");
    note("image list (sha256)", shown(x.sha256), shown(y.sha256), accuracy);
    note("limit", shown(x.limit), shown(y.limit), accuracy);
    note("seed", shown(x.seed), shown(y.seed), "");
    let transform = |t: Option<swinq_model::Transform>| t.map_or("none".to_owned(), |t| t.to_string());
    note("transform", transform(x.transform), transform(y.transform), accuracy);
    let (x, y) = (&a.environment, &b.environment);
    note("swinq", x.swinq.clone(), y.swinq.clone(), "");
    note("processor", shown(x.cpu.clone()), shown(y.cpu.clone()), speed);
    note("instruction set", shown(x.isa.clone()), shown(y.isa.clone()), "");
    note("threads", x.threads.to_string(), y.threads.to_string(), speed);
    let gpu = |gpu: &Option<crate::Gpu>| gpu.as_ref().map_or("none".to_owned(), |gpu| gpu.name.clone());
    note("GPU", gpu(&x.gpu), gpu(&y.gpu), speed);
    note("libraries", format!("{:?}", x.libraries), format!("{:?}", y.libraries), "");
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// An optional value as text.
fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

fn compare_models(a: &ModelResult, b: &ModelResult) -> String {
    let mut text = format!("{}\n", a.label());
    if a.sha256 != b.sha256 {
        text.push_str("the model files differ\n");
    }
    let rows = figures(a, b);
    if rows.is_empty() {
        text.push_str("the two runs have no figure in common\n");
    } else {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["figure", "first", "second", "change"]).add_rows(rows);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&format!("{table}\n"));
    }
    text.push_str(&compare_sites(&a.sites, &b.sites));
    text.push('\n');
    text
}

/// The figures that both runs have of a model.
fn figures(a: &ModelResult, b: &ModelResult) -> Vec<Row> {
    let points = |value: f64| format!("{value:.3}");
    let mut rows = Vec::new();
    let mut push =
        |name: &str, pair: (Option<f64>, Option<f64>), show: &dyn Fn(f64) -> String, relative: bool| {
            if let Some(row) = figure(name, pair, show, relative) {
                rows.push(row);
            }
        };
    push("images", (a.images.map(|n| n as f64), b.images.map(|n| n as f64)), &|n| format!("{n:.0}"), false);
    push("Acc@1", (a.top1_percent(), b.top1_percent()), &points, false);
    push("Acc@5", (a.top5_percent(), b.top5_percent()), &points, false);
    let percent = |share: Option<f64>| share.map(|share| 100.0 * share);
    push("agreement %", (percent(a.agreement), percent(b.agreement)), &points, false);
    push("SQNR dB", (a.sqnr_db, b.sqnr_db), &|db| format!("{db:.2}"), false);
    push("INT8 MACs %", (percent(a.int8_share), percent(b.int8_share)), &points, false);
    for (batch, stats) in &a.latency_ms {
        let other = b.latency_ms.get(batch);
        push(&format!("median ms @ {batch}"), (Some(stats.median), other.map(|s| s.median)), &points, true);
        push(&format!("p99 ms @ {batch}"), (Some(stats.p99), other.map(|s| s.p99)), &points, true);
    }
    for (batch, &ips) in &a.throughput_ips {
        let other = b.throughput_ips.get(batch).copied();
        push(&format!("images/s @ {batch}"), (Some(ips), other), &|ips| format!("{ips:.1}"), true);
    }
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let size = |bytes: f64| mebibytes(bytes as u64);
    push("peak memory", (bytes(a.peak_memory_bytes), bytes(b.peak_memory_bytes)), &size, true);
    push("parameters", (bytes(a.size_bytes), bytes(b.size_bytes)), &size, true);
    push("file", (bytes(a.file_bytes), bytes(b.file_bytes)), &size, true);
    rows
}

/// The row of a figure, if both runs have it. The change is in percent of the first value if `relative`, else the
/// difference.
fn figure(
    name: &str,
    pair: (Option<f64>, Option<f64>),
    show: &dyn Fn(f64) -> String,
    relative: bool,
) -> Option<Row> {
    let (a, b) = (pair.0?, pair.1?);
    let change = match relative {
        _ if a == b => "0".to_owned(),
        true if a > 0.0 => format!("{:+.1} %", 100.0 * (b / a - 1.0)),
        _ => {
            let difference = show((b - a).abs());
            format!("{}{difference}", if b > a { '+' } else { '-' })
        }
    };
    Some([name.to_owned(), show(a), show(b), change])
}

/// The differing sites, at most [`LISTED_SITES`] of them by name.
fn compare_sites(a: &[SiteResult], b: &[SiteResult]) -> String {
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
    let mut text = format!("{} sites differ:\n", changes.len());
    text.extend(changes.iter().take(LISTED_SITES).map(String::as_str));
    if changes.len() > LISTED_SITES {
        text.push_str(&format!("  and {} more\n", changes.len() - LISTED_SITES));
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
    if a.sqnr_db != b.sqnr_db {
        let db = |site: &SiteResult| site.sqnr_db.map_or("none".to_owned(), decibels);
        parts.push(format!("SQNR {} -> {}", db(a), db(b)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}
