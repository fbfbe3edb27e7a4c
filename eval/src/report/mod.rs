//! The HTML report: one file that contains its style sheet and charts. It loads nothing, runs no script, follows the
//! reader's light or dark preference, and escapes every text from outside.

mod charts;
mod strip;
mod svg;

use std::collections::BTreeMap;

use askama::Template;

pub use svg::escape;

use crate::results::{ModelResult, Results};
use crate::text::{accuracy_columns, cells, mebibytes, speed_columns};

/// A histogram of the magnitudes that calibration observed at a site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeHistogram {
    /// Width of a bin. Bin `i` counts magnitudes `m` with `i * bin_width <= m < (i + 1) * bin_width`.
    pub bin_width: f64,
    /// Number of magnitudes in each bin.
    pub counts: Vec<u64>,
}

/// The content of a report in addition to the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportExtras {
    /// Title of the page; empty for the default title.
    pub title: String,
    /// Histograms of calibration, by site.
    pub histograms: BTreeMap<String, RangeHistogram>,
    /// Facts about the calibration, one per line.
    pub calibration: Vec<String>,
    /// Commands that reproduce the results.
    pub commands: Vec<String>,
}

/// Header and rows of a table.
struct Cells {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The section about the sites of a model.
struct SiteSection {
    label: String,
    enabled: usize,
    total: usize,
    precision: String,
    noise: Option<String>,
    not_quantized: Vec<(String, usize, String)>,
    listing: Vec<[String; 5]>,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    verdicts: Vec<String>,
    accuracy: Option<Cells>,
    speed: Option<Cells>,
    pareto: Option<(usize, String)>,
    latency: Vec<(usize, String)>,
    sections: Vec<SiteSection>,
    histograms: Vec<String>,
    environment: Vec<(&'static str, String)>,
    data: Vec<(&'static str, String)>,
    models: &'a [ModelResult],
    extras: &'a ReportExtras,
    notes: &'a [String],
}

/// Renders the report of `results` as one self-contained HTML file.
///
/// It contains the tables of accuracy and speed, a chart of accuracy against speed with the Pareto front, latency
/// with percentiles, the precision of every site (its scale, or the reason why it is not INT8), the noisiest
/// sites, histograms of ranges, and the data needed to reproduce the run. Figures that were not measured are left
/// out.
pub fn html(results: &Results, extras: &ReportExtras) -> String {
    let cells = |columns| {
        let (header, rows) = cells(results, columns);
        (header.len() > 1).then_some(Cells { header, rows })
    };
    let page = Page {
        title: if extras.title.is_empty() { "Accuracy and speed report" } else { &extras.title },
        verdicts: results.models.iter().skip(1).map(|model| verdict(&results.models[0], model)).collect(),
        accuracy: cells(accuracy_columns()),
        speed: cells(speed_columns(results)),
        pareto: charts::pareto(results),
        latency: charts::latency(results),
        sections: results.models.iter().filter(|m| !m.sites.is_empty()).map(section).collect(),
        histograms: histograms(results, extras),
        environment: environment(results),
        data: data(results),
        models: &results.models,
        extras,
        notes: &results.notes,
    };
    page.render().expect("rendering into a String cannot fail")
}

/// A sentence that compares a model with the baseline: accuracy, agreement, speed and size.
fn verdict(base: &ModelResult, model: &ModelResult) -> String {
    let mut parts = Vec::new();
    if let (Some(base), Some(own)) = (base.top1_percent(), model.top1_percent()) {
        let interval = model.top1_difference.map_or(String::new(), |i| {
            format!(" (95 % interval {:+.3} to {:+.3})", 100.0 * i.low, 100.0 * i.high)
        });
        parts.push(format!("{:+.3} points top-1{interval}", own - base));
        if base > 0.0 {
            parts.push(format!("{:.2} % of the baseline's accuracy", 100.0 * own / base));
        }
    }
    if let Some(share) = model.agreement {
        parts.push(format!("the same class on {:.2} % of the images", 100.0 * share));
    }
    for (batch, stats) in &model.latency_ms {
        if let Some(base) = base.latency_ms.get(batch).filter(|_| stats.median > 0.0) {
            parts.push(format!("{:.2}x the speed at batch {batch}", base.median / stats.median));
        }
    }
    if let (Some(base), Some(own)) = (base.size_bytes, model.size_bytes) {
        parts.push(format!("{} instead of {}", mebibytes(own), mebibytes(base)));
    }
    if parts.is_empty() {
        parts.push("no figure in common with the baseline".to_owned());
    }
    format!("{}: {}", model.label(), parts.join("; "))
}

/// The section about the sites of `model`.
fn section(model: &ModelResult) -> SiteSection {
    let listing = model.sites.iter().map(|site| {
        [
            site.site.clone(),
            if site.enabled { format!("INT8 ({:?})", site.kind).to_lowercase() } else { "float".to_owned() },
            site.scale.map_or(String::new(), |scale| format!("{scale:.6e}")),
            site.sqnr_db.map_or(String::new(), |db| format!("{db:.2}")),
            site.reason.clone().unwrap_or_default(),
        ]
    });
    SiteSection {
        label: model.label(),
        enabled: model.sites.iter().filter(|site| site.enabled).count(),
        total: model.sites.len(),
        precision: strip::precision(model),
        noise: strip::noise(model),
        not_quantized: strip::not_quantized(model),
        listing: listing.collect(),
    }
}

/// A chart for every site with a histogram. It marks the range of the last model that has a scale at this site.
fn histograms(results: &Results, extras: &ReportExtras) -> Vec<String> {
    let amax = |name: &str| {
        let sites = results.models.iter().rev().flat_map(|model| &model.sites);
        let mut scales = sites.filter(|site| site.site == name).filter_map(|site| site.scale);
        scales.next().map(|scale| 127.0 * f64::from(scale))
    };
    extras.histograms.iter().map(|(site, data)| strip::histogram(site, data, amax(site))).collect()
}

/// The pairs whose value is present.
fn facts(pairs: Vec<(&'static str, Option<String>)>) -> Vec<(&'static str, String)> {
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The rows about machine and software.
fn environment(results: &Results) -> Vec<(&'static str, String)> {
    let environment = &results.environment;
    let gpu = environment.gpu.as_ref().map(|gpu| {
        let parts = [Some(&gpu.name), gpu.arch.as_ref(), gpu.driver.as_ref()];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
    });
    let libraries = environment.libraries.iter().map(|(name, version)| format!("{name} {version}"));
    let libraries = libraries.collect::<Vec<_>>().join(", ");
    facts(vec![
        ("swinq", Some(environment.swinq.clone())),
        ("time", Some(environment.time.clone())),
        ("system", Some(format!("{} {}", environment.os, environment.arch))),
        ("processor", environment.cpu.clone()),
        ("instruction set", environment.isa.clone()),
        ("cores", environment.cores.map(|cores| cores.to_string())),
        ("threads", Some(environment.threads.to_string())),
        ("memory", environment.memory_bytes.map(mebibytes)),
        ("GPU", gpu),
        ("libraries", Some(libraries).filter(|text| !text.is_empty())),
    ])
}

/// The rows about the data set.
fn data(results: &Results) -> Vec<(&'static str, String)> {
    let Some(data) = &results.data else { return Vec::new() };
    let transform = data.transform.as_ref().map(|t| {
        format!(
            "{}: {:?}, {:?} to {}, mean {:?}, std {:?}",
            t.family, t.resize, t.filter, t.size, t.mean, t.std
        )
    });
    facts(vec![
        ("data set", Some(data.path.clone())),
        ("split", data.split.clone()),
        ("images in the list", data.total.map(|n| n.to_string())),
        ("limit", data.limit.map(|n| n.to_string())),
        ("seed", data.seed.map(|n| n.to_string())),
        ("list, SHA-256", data.sha256.clone()),
        ("corrupt, skipped", data.skipped.map(|n| n.to_string())),
        ("preprocessing", transform),
    ])
}
