//! The report as Markdown: verdict, matrix, changed classes and images, conditions and commands.

use std::fmt::Write;

use super::{
    ReportExtras, classes, conditions, layers, matrix, names, outputs, program, sensitivity, steps, tuning,
    verdict,
};
use crate::results::Results;

/// Maximum number of classes whose accuracy is listed.
const MOST_CLASSES: usize = 100;

/// Renders the figures of [`html`](super::html) as Markdown, without charts and pictures.
pub fn markdown(results: &Results, extras: &ReportExtras) -> String {
    let names = names::short_names(&results.models);
    let mut out = format!("# {}\n\n", text(&extras.title(results)));
    for warning in &verdict::verdict(results).warnings {
        add(&mut out, format_args!("> **Warning.** {}\n\n", text(warning)));
    }
    add(&mut out, format_args!("{}\n\n", text(&super::subtitle(results))));
    comparison(&mut out, results, &names);
    if let Some(gain) = &results.program {
        whole_program(&mut out, &program::ProgramSection::new(gain));
    }
    if let Some(found) = &extras.tuning {
        search(&mut out, &tuning::TuningSection::new(found));
    }
    if let Some(found) = &extras.sensitivity {
        effects(&mut out, &sensitivity::SensitivitySection::new(found));
    }
    if let Some(subject) = verdict::subject(results) {
        details(&mut out, results, &names, subject);
    }
    conditions(&mut out, results, &names);
    let steps = steps::steps(results, &names);
    if !steps.is_empty() {
        out.push_str("## Steps to reproduce\n\n");
        for (i, step) in steps.iter().enumerate() {
            let fence = fence(&step.command);
            let text = text(&step.text);
            let command = step.command.replace('\n', "\n   ");
            add(&mut out, format_args!("{}. {text}\n\n   {fence}\n   {command}\n   {fence}\n\n", i + 1));
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn comparison(out: &mut String, results: &Results, names: &[String]) {
    let groups = matrix::groups(results);
    if groups.is_empty() {
        return;
    }
    out.push_str("## Comparison\n\n");
    let header: Vec<String> = std::iter::once(String::new()).chain(names.iter().cloned()).collect();
    let mut rows = Vec::new();
    for row in groups.into_iter().flat_map(|group| group.rows) {
        let cells = row.cells.into_iter().map(|cell| match cell.note.as_str() {
            "" => cell.value,
            note => format!("{} ({note})", cell.value),
        });
        rows.push(std::iter::once(row.name).chain(cells).collect());
    }
    table(out, &header, &rows);
}

fn whole_program(out: &mut String, section: &program::ProgramSection) {
    out.push_str("## Whole program\n\n");
    for sentence in section.summary.iter().chain([&section.conditions]) {
        add(out, format_args!("{}\n\n", text(sentence)));
    }
    let header = ["", "a call, ms", "its Swin, ms", "the rest, ms", "share of the Swin"].map(str::to_owned);
    let row = |t: &program::TimeRow| {
        let cells = [&t.program, &t.swin, &t.rest, &t.share].map(String::clone);
        std::iter::once(t.name.to_owned()).chain(cells).collect()
    };
    table(out, &header, &section.times.iter().map(row).collect::<Vec<_>>());
    if !section.outputs.is_empty() {
        let rows: Vec<Vec<String>> = section.outputs.iter().map(|row| row.to_vec()).collect();
        table(out, &["output", "INT8 against float"].map(str::to_owned), &rows);
    }
}

fn search(out: &mut String, section: &tuning::TuningSection) {
    out.push_str("## Tuning\n\n");
    for sentence in &section.summary {
        add(out, format_args!("{}\n\n", text(sentence)));
    }
    let times = ["recipe", "predicted ms", "measured ms", "speed-up", "INT8", "SQNR"];
    let header: Vec<String> =
        times.into_iter().chain([section.difference, "changes"]).map(str::to_owned).collect();
    let row = |c: &tuning::CandidateRow| {
        let cells =
            [&c.name, &c.predicted, &c.measured, &c.speedup, &c.int8, &c.sqnr, &c.difference, &c.changes];
        cells.map(String::clone).to_vec()
    };
    let rows: Vec<Vec<String>> = section.rows.iter().map(row).collect();
    let (header, rows) = filled_columns(&header, &rows);
    table(out, &header, &rows);
}

fn effects(out: &mut String, section: &sensitivity::SensitivitySection) {
    add(out, format_args!("## Sensitivity\n\n{}\n\n", text(&section.summary)));
    let header = ["layer", "SQNR alone", "KL alone", "class changes", "gain in float", "share of MACs"];
    let row = |layer: &sensitivity::ElementRow| {
        let cells = [&layer.name, &layer.sqnr, &layer.kl, &layer.changes, &layer.gain, &layer.share];
        cells.map(String::clone).to_vec()
    };
    let rows: Vec<Vec<String>> = section.layers.iter().map(row).collect();
    let (header, rows) = filled_columns(&header.map(str::to_owned), &rows);
    table(out, &header, &rows);
}

/// The columns that have a value in any row: without latency there are no times, and without a baseline no
/// speed-up.
fn filled_columns(header: &[String], rows: &[Vec<String>]) -> (Vec<String>, Vec<Vec<String>>) {
    let filled: Vec<usize> =
        (0..header.len()).filter(|&c| rows.iter().any(|row| !row[c].is_empty())).collect();
    let of = |cells: &[String]| filled.iter().map(|&c| cells[c].clone()).collect();
    (of(header), rows.iter().map(|row| of(row)).collect())
}

/// The sections about the model of the verdict.
fn details(out: &mut String, results: &Results, names: &[String], subject: usize) {
    let model = &results.models[subject];
    let base = results.models.first().filter(|_| subject != 0);
    if let Some(layers) = layers::Layers::new(model, base) {
        add(out, format_args!("## Layers of {}\n\n", text(&names[subject])));
        let header =
            ["module", "ms", "share", "speed-up", "INT8 layers", "lowest SQNR, dB"].map(str::to_owned);
        let row = |m: &layers::ModuleRow| {
            [&m.name, &m.ms, &m.share, &m.speedup, &m.int8, &m.noisiest].map(String::clone).to_vec()
        };
        let (header, rows) = filled_columns(&header, &layers.modules.iter().map(row).collect::<Vec<_>>());
        table(out, &header, &rows);
    }
    if let Some(classes) = classes::Classes::new(results, model) {
        out.push_str("## Classes and images\n\n");
        if let Some(summary) = &classes.summary {
            add(out, format_args!("{}\n\n", text(summary)));
        }
        if !classes.rows.is_empty() {
            let header = ["class", "images", "baseline", "model", "lost", "gained"].map(str::to_owned);
            let row = |c: &classes::ClassRow| {
                let counts = [c.images, c.lost, c.gained].map(|n| n.to_string());
                let [images, lost, gained] = counts;
                vec![c.name.clone(), images, c.before.clone(), c.after.clone(), lost, gained]
            };
            table(out, &header, &classes.rows.iter().map(row).collect::<Vec<_>>());
        }
        if (1..=MOST_CLASSES).contains(&classes.all.len()) {
            out.push_str("Top-1 accuracy by class:\n\n");
            table(out, &classes.header, &classes.all);
        }
    }
    if let Some(outputs) = outputs::Outputs::new(model, &ReportExtras::default()) {
        out.push_str("## Outputs and images\n\n");
        let row =
            |o: &outputs::OutputRow| [&o.name, &o.sqnr, &o.cosine, &o.error].map(String::clone).to_vec();
        let header = ["output", "SQNR", "cosine", "error"].map(str::to_owned);
        table(out, &header, &outputs.rows.iter().map(row).collect::<Vec<_>>());
        worst_images(out, &outputs);
    }
    let images = classes::images(results, model, &ReportExtras::default());
    if !images.is_empty() {
        let header = ["image", "label", "baseline", "model", "KL, nats"].map(str::to_owned);
        let row = |image: &classes::ImageCard| {
            let label = image.label.clone().unwrap_or_default();
            vec![image.name.clone(), label, image.before.clone(), image.after.clone(), image.kl.clone()]
        };
        table(out, &header, &images.iter().map(row).collect::<Vec<_>>());
    }
}

/// The images farthest from the baseline, with the SQNR of each output.
fn worst_images(out: &mut String, outputs: &outputs::Outputs) {
    if outputs.images.is_empty() {
        return;
    }
    let names = outputs.rows.iter().map(|output| format!("SQNR of {}", output.name));
    let header: Vec<String> = ["image", "size"].map(str::to_owned).into_iter().chain(names).collect();
    let row = |image: &outputs::OutputCard| {
        let outputs = image.outputs.iter().map(|[_, sqnr]| sqnr.clone());
        [image.name.clone(), image.size.clone()].into_iter().chain(outputs).collect()
    };
    table(out, &header, &outputs.images.iter().map(row).collect::<Vec<_>>());
}

fn conditions(out: &mut String, results: &Results, names: &[String]) {
    out.push_str("## Conditions\n\n");
    let header = [String::new(), String::new()];
    let rows = |facts: Vec<conditions::Fact>| -> Vec<Vec<String>> {
        facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
    };
    let machine = conditions::environment(results).into_iter().chain(conditions::data(results)).collect();
    table(out, &header, &rows(machine));
    for model in conditions::models(results, names) {
        add(out, format_args!("### {}\n\n", text(&model.name)));
        table(out, &header, &rows(model.facts));
        if !model.rules.is_empty() {
            let rules = model.rules.join("\n");
            let fence = fence(&rules);
            add(out, format_args!("{fence}yaml\n{rules}\n{fence}\n\n"));
        }
    }
    for note in &results.notes {
        add(out, format_args!("- {}\n", text(note)));
    }
    if !results.notes.is_empty() {
        out.push('\n');
    }
}

fn table(out: &mut String, header: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| text(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(header));
    out.push_str(&format!("|{}\n", " --- |".repeat(header.len())));
    rows.iter().for_each(|row| out.push_str(&line(row)));
    out.push('\n');
}

/// `value` as text that Markdown shows unchanged, on one line.
fn text(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '<' | '>' | '#' | '&' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A code fence that is longer than any row of backticks in `code`.
fn fence(code: &str) -> String {
    let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

fn add(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("writing to a String cannot fail");
}
