//! Comparison of the results of two runs.

mod limits;
mod noise;
mod sites;

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

use crate::error::EvalError;
use crate::results::{ModelResult, OutputResult, Results, SizeResult, Stats};
use crate::text::{cosine, mebibytes, relative};

pub use limits::{Limits, exceeded};
use noise::Spread;

/// A figure that both runs have: its name, the two values and their change, as text.
type Row = [String; 4];

/// Describes the changes from run `a` to run `b` as text.
///
/// The text first lists differences of data and machine, and says which figures cannot be compared because of
/// them. Then it lists the models that both runs have (the same name, precision and backend), then the models
/// that only one run has. Changes of times and of memory that repeated runs show too are counted and not
/// listed.
///
/// # Errors
/// [`EvalError::Incomparable`] if the runs have no figure of a model in common.
pub fn compare(a: &Results, b: &Results) -> Result<String, EvalError> {
    if !pairs(a, b).any(|(a, b)| !figures(a, b).0.is_empty()) {
        let names = |run: &Results| run.models.iter().map(ModelResult::label).collect::<Vec<_>>().join(", ");
        let named_alike = a.models.iter().any(|model| b.models.iter().any(|other| other.name == model.name));
        return Err(EvalError::nothing_in_common(&names(a), &names(b), named_alike));
    }
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
    Ok(text)
}

/// The models that both runs have: those with the same label.
fn pairs<'a>(a: &'a Results, b: &'a Results) -> impl Iterator<Item = (&'a ModelResult, &'a ModelResult)> {
    a.models.iter().filter_map(|model| {
        let same = b.models.iter().find(|other| other.label() == model.label());
        same.map(|other| (model, other))
    })
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
    note("sizes", shown(x.sizing), shown(y.sizing), "; SQNRs cannot be compared");
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
    let (rows, noise) = figures(a, b);
    if rows.is_empty() && noise == 0 {
        text.push_str("the two runs have no figure in common\n");
    } else if !rows.is_empty() {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["figure", "first", "second", "change"]).add_rows(rows);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&format!("{table}\n"));
    }
    if noise > 0 {
        text.push_str(&format!("{noise} figures of time and memory differ no more than repeated runs do\n"));
    }
    text.push_str(&sites::compare(&a.sites, &b.sites));
    text.push('\n');
    text
}

/// The figures that both runs have of a model, and the number of those left out because they differ by noise.
fn figures(a: &ModelResult, b: &ModelResult) -> (Vec<Row>, usize) {
    let points = |value: f64| format!("{value:.3}");
    let percent = |share: Option<f64>| share.map(|share| 100.0 * share);
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let size = |bytes: f64| mebibytes(bytes as u64);
    let mut rows = Vec::new();
    let mut push = |name: &str, pair: (Option<f64>, Option<f64>), show: &dyn Fn(f64) -> String, relative| {
        rows.extend(figure(name, pair, show, relative));
    };
    push("images", (a.images.map(|n| n as f64), b.images.map(|n| n as f64)), &|n| format!("{n:.0}"), false);
    push("Acc@1", (a.top1_percent(), b.top1_percent()), &points, false);
    push("Acc@5", (a.top5_percent(), b.top5_percent()), &points, false);
    push("agreement %", (percent(a.agreement), percent(b.agreement)), &points, false);
    let logits = |model: &ModelResult| model.sqnr_db.filter(|_| model.outputs.is_empty());
    push("SQNR dB", (logits(a), logits(b)), &|db| format!("{db:.2}"), false);
    for output in &a.outputs {
        let Some(other) = b.outputs.iter().find(|other| other.name == output.name) else { continue };
        let name = |figure: &str| format!("{figure} {}", output.name);
        let both = |figure: fn(&OutputResult) -> Option<f64>| (figure(output), figure(other));
        push(&name("SQNR dB"), both(|o| Some(o.sqnr_db)), &|db| format!("{db:.2}"), false);
        push(&name("cosine"), both(|o| Some(o.cosine)), &cosine, false);
        push(&name("error"), both(|o| o.relative_error), &relative, false);
    }
    push("INT8 MACs %", (percent(a.int8_share), percent(b.int8_share)), &points, false);
    push("parameters", (bytes(a.size_bytes), bytes(b.size_bytes)), &size, true);
    push("file", (bytes(a.file_bytes), bytes(b.file_bytes)), &size, true);
    let measured = measured(a, b);
    let noise = measured.iter().filter(|figure| figure.spread.is_noise()).count();
    for Measured { name, spread: Spread { first, second, .. }, show } in
        measured.iter().filter(|figure| !figure.spread.is_noise())
    {
        rows.extend(figure(name, (Some(*first), Some(*second)), show, true));
    }
    (rows, noise)
}

/// A figure that differs between repeated runs.
struct Measured {
    name: String,
    spread: Spread,
    show: fn(f64) -> String,
}

/// The figures of time and memory that both runs have of a model.
fn measured(a: &ModelResult, b: &ModelResult) -> Vec<Measured> {
    let mut found = Vec::new();
    let show: fn(f64) -> String = |ms| format!("{ms:.3}");
    for (at, stats, other) in latencies(a, b) {
        let median = Spread::of_medians(stats, other);
        found.push(Measured { name: format!("median ms @ {at}"), spread: median, show });
        let tail = Spread::of_tails(stats.p99, other.p99);
        found.push(Measured { name: format!("p99 ms @ {at}"), spread: tail, show });
    }
    let alike = first_size(a) == first_size(b);
    for (batch, &ips) in a.throughput_ips.iter().filter(|_| alike) {
        let Some(&other) = b.throughput_ips.get(batch) else { continue };
        let name = format!("images/s @ {batch}");
        found.push(Measured { name, spread: Spread::new(ips, other), show: |ips| format!("{ips:.1}") });
    }
    found
}

/// The size to which the times of a backbone belong; `None` for a classifier.
fn first_size(model: &ModelResult) -> Option<[usize; 2]> {
    model.sizes.first().map(|of_size| of_size.size)
}

/// The latencies that both runs have of a model: the batch size, for a backbone with the size of the images,
/// and the figures.
fn latencies<'a>(a: &'a ModelResult, b: &'a ModelResult) -> Vec<(String, &'a Stats, &'a Stats)> {
    let common = |a: &'a BTreeMap<usize, Stats>, b: &'a BTreeMap<usize, Stats>| {
        a.iter().filter_map(|(batch, stats)| Some((batch, stats, b.get(batch)?)))
    };
    if a.sizes.is_empty() && b.sizes.is_empty() {
        let of_batch = |(batch, first, second): (&usize, _, _)| (batch.to_string(), first, second);
        return common(&a.latency_ms, &b.latency_ms).map(of_batch).collect();
    }
    let both = a.sizes.iter().filter_map(|own| Some((own, b.at_size(own.size)?)));
    let of_size = |(own, other): (&'a SizeResult, &'a SizeResult)| {
        let [height, width] = own.size;
        let name = move |batch: &usize| format!("{batch} of {height}x{width}");
        common(&own.latency_ms, &other.latency_ms)
            .map(move |(batch, first, second)| (name(batch), first, second))
    };
    both.flat_map(of_size).collect()
}

/// The row of a figure, if both runs have it. The change is in percent of the first value if `relative`, else
/// the difference.
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
