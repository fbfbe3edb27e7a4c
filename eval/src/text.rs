//! Results as text: summary lines and tables.

use comfy_table::{CellAlignment, Table, presets};

use crate::accuracy::Accuracy;
use crate::latency::Latency;
use crate::report::verdict::load_warning;
use crate::results::{ImageResult, ModelResult, OutputResult, Results};

/// The accuracy line in the format of Microsoft's evaluation script: ` * Acc@1 81.182 Acc@5 95.522`.
pub fn acc_line(accuracy: &Accuracy) -> String {
    format!(" * Acc@1 {:.3} Acc@5 {:.3}", accuracy.top1_percent(), accuracy.top5_percent())
}

/// A summary in the format of NVIDIA's `trtexec`: throughput in queries (batches of `batch` images) per
/// second, latency per batch, and images per second.
pub fn performance_summary(name: &str, batch: usize, latency: &Latency) -> String {
    let percentile = |p: u8| format!("percentile({p}%) = {:.6} ms", latency.percentile(f64::from(p)));
    format!(
        "=== Performance summary ===\n\
         Model: {name}, batch size {batch}, {} runs\n\
         Throughput: {:.4} qps\n\
         Latency: min = {:.6} ms, max = {:.6} ms, mean = {:.6} ms, median = {:.6} ms, {}, {}, {}\n\
         Total Host Walltime: {:.5} s\n\
         Images per second: {:.2}\n",
        latency.runs(),
        1000.0 / latency.mean(),
        latency.min(),
        latency.max(),
        latency.mean(),
        latency.median(),
        percentile(90),
        percentile(95),
        percentile(99),
        latency.total() / 1000.0,
        latency.images_per_second(batch),
    )
}

/// A column of a table: its header, and a function of the baseline and a model that gives the model's cell.
/// `None` means that the model lacks the figure.
pub(crate) type Column<'a> = (String, Box<dyn Fn(&ModelResult, &ModelResult) -> Option<String> + 'a>);

/// Width of a table in columns of text, beyond which models go to a further table.
const WIDTH: usize = 100;
/// Number of images that are named below the tables for each model.
const WORST: usize = 3;

/// A Markdown table of accuracy, speed and size, with a row per figure and a column per model. Models that
/// would make it wider than 100 columns of text stand in a further table.
///
/// The first model is the baseline. The others show their difference from it, as in `80.748(-0.434)`. A
/// figure that a model lacks is `-`, and one that no model has is left out. Below the table stands which
/// latencies were measured while other processes worked, if there are any, and the peak memory of the
/// process, if it is known.
pub fn table(results: &Results) -> String {
    let (accuracy, speed) = (accuracy_columns(results), speed_columns(results));
    let columns = accuracy.into_iter().chain(speed).chain(size_columns(results)).collect();
    let (figures, models) = cells(results, columns);
    let header = std::iter::once(String::new()).chain(models.iter().map(|model| model[0].clone())).collect();
    let row = |figure: usize| {
        let name = std::iter::once(figures[figure].clone());
        name.chain(models.iter().map(|model| model[figure].clone())).collect()
    };
    let rows: Vec<Vec<String>> = (1..figures.len()).map(row).collect();
    let mut text = String::new();
    if !rows.is_empty() && !models.is_empty() {
        let tables = split(header, rows).into_iter();
        text += &tables.map(|(header, rows)| markdown(header, rows)).collect::<Vec<_>>().join("\n");
    }
    for model in results.models.iter().filter(|model| !model.worst_images.is_empty()) {
        text += &format!("\nfarthest from the baseline, {}:\n", model.label());
        text.extend(model.worst_images.iter().take(WORST).map(|image| format!("  {}\n", worst_line(image))));
    }
    if let Some([height, width]) = results.timed_size() {
        text += &format!("\nlatency is that of images of {height}x{width} pixels where no size is stated\n");
    }
    let timed = results.models.iter().any(|model| !model.latency_ms.is_empty());
    if let Some(warning) = load_warning(results).filter(|_| timed) {
        text += &format!("\n{warning}\n");
    }
    if let Some(bytes) = results.peak_memory_bytes {
        text += &format!("\npeak memory of the process: {}\n", mebibytes(bytes));
    }
    text
}

/// An image with the SQNR of its outputs, as in `street.jpg (512x640): stage1 40.1 dB, stage2 31.0 dB`.
fn worst_line(image: &ImageResult) -> String {
    let [height, width] = image.size;
    let outputs: Vec<String> =
        image.outputs.iter().map(|output| format!("{} {}", output.name, decibels(output.sqnr_db))).collect();
    format!("{} ({height}x{width}): {}", image_name(image), outputs.join(", "))
}

/// The name of an image, or its number.
pub(crate) fn image_name(image: &ImageResult) -> String {
    image.image.clone().unwrap_or_else(|| format!("image {}", image.id))
}

/// Width of column `c` of a table, with one border.
fn column_width(header: &[String], rows: &[Vec<String>], c: usize) -> usize {
    let cells = rows.iter().map(|row| &row[c]).chain([&header[c]]);
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + 3
}

/// Header and rows of tables that are at most [`WIDTH`] wide, if a single column is not wider. Each has the
/// first column.
fn split(header: Vec<String>, rows: Vec<Vec<String>>) -> Vec<(Vec<String>, Vec<Vec<String>>)> {
    let width = |c| column_width(&header, &rows, c);
    let (mut tables, mut columns, mut used) = (Vec::new(), Vec::new(), 1 + width(0));
    let pick = |row: &[String], columns: &[usize]| -> Vec<String> {
        std::iter::once(&0).chain(columns).map(|&c| row[c].clone()).collect()
    };
    let table = |columns: &[usize]| {
        (pick(&header, columns), rows.iter().map(|row| pick(row, columns)).collect::<Vec<_>>())
    };
    for column in 1..header.len() {
        if used + width(column) > WIDTH && !columns.is_empty() {
            tables.push(table(&std::mem::take(&mut columns)));
            used = 1 + width(0);
        }
        used += width(column);
        columns.push(column);
    }
    tables.push(table(&columns));
    tables
}

/// A Markdown table with numbers aligned to the right.
fn markdown(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

/// Header and rows of the columns for which at least one model has a figure.
pub(crate) fn cells(results: &Results, columns: Vec<Column<'_>>) -> (Vec<String>, Vec<Vec<String>>) {
    let models = &results.models;
    let mut header = vec!["model".to_owned()];
    let mut rows: Vec<Vec<String>> = models.iter().map(|model| vec![model.label()]).collect();
    for (name, show) in columns {
        let column: Vec<Option<String>> =
            models.iter().map(|model| show(baseline(models, model), model)).collect();
        if column.iter().all(Option::is_none) {
            continue;
        }
        header.push(name);
        for (row, cell) in rows.iter_mut().zip(column) {
            row.push(cell.unwrap_or_else(|| "-".to_owned()));
        }
    }
    (header, rows)
}

/// The first model that was timed on images of the size of `model`.
fn baseline<'a>(models: &'a [ModelResult], model: &'a ModelResult) -> &'a ModelResult {
    models.iter().find(|other| other.input_size == model.input_size).unwrap_or(model)
}

fn column<'a>(name: &str, show: impl Fn(&ModelResult, &ModelResult) -> Option<String> + 'a) -> Column<'a> {
    (name.to_owned(), Box::new(show))
}

/// The columns of accuracy and of closeness to the baseline.
pub(crate) fn accuracy_columns<'a>(results: &Results) -> Vec<Column<'a>> {
    let mut columns = vec![
        column("Acc@1", |base, model| with_delta(base, model, ModelResult::top1_percent)),
        column("95 % interval", |_, model| {
            let interval = model.top1_difference?;
            Some(format!("[{:+.3}, {:+.3}]", 100.0 * interval.low, 100.0 * interval.high))
        }),
        column("Acc@5", |base, model| with_delta(base, model, ModelResult::top5_percent)),
        column("images", |_, model| model.images.map(|images| images.to_string())),
        column("agreement", |_, model| model.agreement.map(|share| format!("{:.3} %", 100.0 * share))),
        column("SQNR", |_, model| model.sqnr_db.filter(|_| model.outputs.is_empty()).map(decibels)),
        column("cosine", |_, model| model.cosine.filter(|_| model.outputs.is_empty()).map(cosine)),
    ];
    columns.extend(output_columns(results, "SQNR", |output| Some(decibels(output.sqnr_db))));
    columns.extend(output_columns(results, "cosine", |output| Some(cosine(output.cosine))));
    columns.extend(output_columns(results, "error", |output| output.relative_error.map(relative)));
    columns
}

/// A column for a figure of each output of backbones.
fn output_columns<'a>(
    results: &Results,
    figure: &str,
    show: impl Fn(&OutputResult) -> Option<String> + Copy + 'a,
) -> Vec<Column<'a>> {
    let of_output = |name: String| {
        column(&format!("{figure} {name}"), move |_, model| {
            model.outputs.iter().find(|output| output.name == name).and_then(show)
        })
    };
    results.outputs().into_iter().map(of_output).collect()
}

/// The columns of latency by image size and batch size, where several sizes were timed.
fn size_columns<'a>(results: &Results) -> Vec<Column<'a>> {
    let sizes = results.timed_sizes();
    let of_size = |[height, width]: [usize; 2], batch: usize| {
        column(&format!("median ms {height}x{width} @ {batch}"), move |base, model| {
            with_speedup(base, model, |model| {
                Some(model.at_size([height, width])?.latency_ms.get(&batch)?.median)
            })
        })
    };
    let several = sizes.iter().filter(|_| sizes.len() > 1);
    several
        .flat_map(|&size| results.batch_sizes().into_iter().map(move |batch| of_size(size, batch)))
        .collect()
}

/// The columns of latency with speed-up by batch size, best throughput, share of INT8, size and memory.
pub(crate) fn speed_columns<'a>(results: &Results) -> Vec<Column<'a>> {
    let mut columns = Vec::new();
    for batch in results.batch_sizes() {
        columns.push(column(&format!("median ms @ {batch}"), move |base, model| {
            with_speedup(base, model, |model| Some(model.latency_ms.get(&batch)?.median))
        }));
    }
    for batch in results.batch_sizes() {
        columns.push(column(&format!("GPU ms @ {batch}"), move |base, model| {
            with_speedup(base, model, |model| Some(model.compute_ms.get(&batch)?.median))
        }));
    }
    for batch in results.batch_sizes() {
        columns.push(column(&format!("stream images/s @ {batch}"), move |_, model| {
            Some(format!("{:.0}", model.stream_ips.get(&batch)?))
        }));
    }
    columns.push(column("best images/s", |_, model| {
        let best = model.throughput_ips.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some(format!("{:.1} @ {}", best.1, best.0))
    }));
    columns.extend([
        column("INT8 MACs", |_, model| model.int8_share.map(|share| format!("{:.1} %", 100.0 * share))),
        column("parameters", |_, model| model.size_bytes.map(mebibytes)),
        column("file", |_, model| model.file_bytes.map(mebibytes)),
    ]);
    columns
}

/// A time with the speed-up over the baseline, as in `11.000 (2.36x)`. The speed-up is left out for the
/// baseline itself, and if the baseline has no time.
fn with_speedup(
    base: &ModelResult,
    model: &ModelResult,
    median: impl Fn(&ModelResult) -> Option<f64>,
) -> Option<String> {
    let own = median(model)?;
    match median(base).filter(|_| !std::ptr::eq(base, model) && own > 0.0) {
        Some(base) => Some(format!("{own:.3} ({:.2}x)", base / own)),
        None => Some(format!("{own:.3}")),
    }
}

/// A figure with its difference from the baseline, as in `80.748(-0.434)`. The difference is left out for the
/// baseline itself, and if the baseline has no such figure.
fn with_delta(
    base: &ModelResult,
    model: &ModelResult,
    value: impl Fn(&ModelResult) -> Option<f64>,
) -> Option<String> {
    let own = value(model)?;
    match value(base).filter(|_| !std::ptr::eq(base, model)) {
        Some(base) => Some(format!("{own:.3}({:+.3})", own - base)),
        None => Some(format!("{own:.3}")),
    }
}

/// A count with commas between thousands, as in `3,925`.
pub(crate) fn thousands(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, as in `1 recipe` and `2 recipes`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// A number of minutes with its noun.
pub fn minutes(minutes: f64) -> String {
    format!("{minutes} {}", if minutes == 1.0 { "minute" } else { "minutes" })
}

/// A cosine, as in `0.999957`.
pub(crate) fn cosine(value: f64) -> String {
    format!("{value:.6}")
}

/// A relative error, as in `0.0123`.
pub(crate) fn relative(value: f64) -> String {
    format!("{value:.4}")
}

/// A ratio in dB, as in `43.21 dB` or `inf dB`.
pub(crate) fn decibels(value: f64) -> String {
    format!("{value:.2} dB")
}

/// A number of bytes in MiB, as in `29.0 MiB`.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
