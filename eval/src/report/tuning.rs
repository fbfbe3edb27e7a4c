//! The section about tuning: the recipes that were tried, and the one that was chosen.

use super::front::{Chart, Point, chart, series};
use crate::interval::Interval;
use crate::results::tune::{TuneCandidate, Tuning, Verdict, Verification};
use crate::text::{counted, decibels, thousands};

/// The section about tuning.
pub struct TuningSection {
    pub summary: Vec<String>,
    /// SQNR against latency, for wide and for narrow pages.
    pub wide: Option<String>,
    pub narrow: Option<String>,
    /// The head of the column of differences from float.
    pub difference: &'static str,
    pub rows: Vec<CandidateRow>,
    pub tried: usize,
    /// The chosen recipe as lines of a file.
    pub rules: Vec<String>,
}

/// A candidate of the front.
pub struct CandidateRow {
    pub name: String,
    pub changes: String,
    pub predicted: String,
    pub measured: String,
    pub speedup: String,
    pub int8: String,
    pub sqnr: String,
    pub difference: String,
    pub chosen: bool,
}

impl TuningSection {
    /// The section about `tuning`.
    pub fn new(tuning: &Tuning) -> TuningSection {
        let mut shown = tuning.front.clone();
        shown.extend([0, tuning.chosen].into_iter().filter(|&i| i < tuning.candidates.len()));
        shown.sort_unstable();
        shown.dedup();
        let draw = |size| front_chart(tuning, &shown, size);
        TuningSection {
            summary: summary(tuning),
            wide: draw([880.0, 380.0]),
            narrow: draw([340.0, 330.0]),
            difference: match tuning.goal.metric {
                None => "top-1 difference, points",
                Some(_) => "difference from float",
            },
            rows: std::iter::once(float_row(tuning))
                .chain(shown.iter().filter_map(|&i| Some(row(tuning, i, tuning.candidates.get(i)?))))
                .collect(),
            tried: tuning.candidates.len(),
            rules: tuning.candidates.get(tuning.chosen).map_or(Vec::new(), |chosen| {
                super::conditions::recipe(Some(&chosen.recipe.name), &chosen.recipe.rules)
            }),
        }
    }
}

/// The result of `tuning` in one sentence, for a report without a comparison of models.
pub fn title(tuning: &Tuning) -> String {
    let speedup = tuning.candidates.get(tuning.chosen).map_or(0.0, |chosen| chosen.speedup);
    let limit = tuning.goal.limit();
    let outcome = match &tuning.verification {
        None if tuning.kept => format!("{limit} holds"),
        None => format!("{limit} does not hold"),
        Some(check) => {
            let holds = match check.verdict {
                Verdict::Holds => "holds",
                Verdict::Fails => "does not hold",
                Verdict::NotConcluded { .. } => "is not concluded",
            };
            format!("{limit} {holds} on {}", counted(check.images, "image"))
        }
    };
    format!("Tuned {}: {speedup:.1}x faster than float, {outcome}", tuning.model.architecture)
}

fn name(tuning: &Tuning, index: usize) -> String {
    match index {
        0 if tuning.chosen == 0 => format!("{} (chosen)", tuning.start_recipe),
        0 => tuning.start_recipe.clone(),
        _ if index == tuning.chosen => format!("#{index} (chosen)"),
        _ => format!("#{index}"),
    }
}

fn float_row(tuning: &Tuning) -> CandidateRow {
    CandidateRow {
        name: "float".to_owned(),
        changes: String::new(),
        predicted: format!("{:.3}", tuning.float_ms),
        measured: format!("{:.3}", tuning.float_latency_ms.median),
        speedup: String::new(),
        int8: String::new(),
        sqnr: String::new(),
        difference: String::new(),
        chosen: false,
    }
}

fn row(tuning: &Tuning, index: usize, candidate: &TuneCandidate) -> CandidateRow {
    CandidateRow {
        name: name(tuning, index),
        changes: candidate.changes.join("; "),
        predicted: format!("{:.3}", candidate.predicted_ms),
        measured: candidate.latency_ms.as_ref().map_or(String::new(), |stats| format!("{:.3}", stats.median)),
        speedup: format!("{:.2}x", candidate.speedup),
        int8: format!("{:.1} %", 100.0 * candidate.int8_share),
        sqnr: decibels(candidate.effect.sqnr_db),
        difference: difference(tuning, candidate),
        chosen: index == tuning.chosen,
    }
}

/// The difference from the float model: of the user's metric, or of top-1 in points, with its interval.
fn difference(tuning: &Tuning, candidate: &TuneCandidate) -> String {
    if let (Some(metric), Some(value)) = (&tuning.goal.metric, candidate.value) {
        return format!("{:+.4}", value - metric.float);
    }
    candidate.top1_difference.map_or(String::new(), |difference| {
        let Interval { difference, low, high } = difference;
        format!("{:+.2} ({:+.2} to {:+.2})", 100.0 * difference, 100.0 * low, 100.0 * high)
    })
}

/// All candidates with a finite SQNR; those in `named` have a name.
fn front_chart(tuning: &Tuning, named: &[usize], size: [f64; 2]) -> Option<String> {
    let point = |(i, candidate): (usize, &TuneCandidate)| {
        let (ms, db) = (candidate.predicted_ms, candidate.effect.sqnr_db);
        let color = if i == tuning.chosen { 2 } else { usize::from(tuning.front.contains(&i)) };
        let point = Point {
            class: series(color),
            name: name(tuning, i),
            ms,
            ms_interval: [ms; 2],
            top1: db,
            top1_interval: [db; 2],
        };
        (db.is_finite() && ms.is_finite()).then_some((i, point))
    };
    let (indices, points): (Vec<usize>, Vec<Point>) =
        tuning.candidates.iter().enumerate().filter_map(point).unzip();
    let is_classifier = tuning.candidates.iter().all(|candidate| candidate.effect.kl.is_some());
    let (y, label) = match is_classifier {
        true => (
            "SQNR of the logits, dB",
            "Signal to noise of the logits against predicted latency, one point per recipe",
        ),
        false => (
            "SQNR of the worst output, dB",
            "Signal to noise of the worst output against predicted latency, one point per recipe",
        ),
    };
    let text = Chart { x: "predicted latency, ms (left is faster)", y, highest: f64::INFINITY, label };
    (!points.is_empty()).then(|| chart(&points, size, &text, |i| named.contains(&indices[i])))
}

fn summary(tuning: &Tuning) -> Vec<String> {
    let (goal, images) = (&tuning.goal, &tuning.images);
    let mut limits = vec![goal.limit()];
    limits.extend(goal.min_speedup.map(|speedup| format!("a speed-up of at least {speedup}")));
    limits.extend(goal.budget_minutes.map(|minutes| format!("{minutes} minutes of search")));
    vec![
        verdict(tuning),
        format!("Goal: {}. {}", limits.join(", "), tuning.ending()),
        format!(
            "Calibrated on {}, searched on {}; latency of {} on {} at batch {}.",
            counted(images.calibration, "image"),
            thousands(images.search),
            tuning.cost.backend,
            tuning.cost.hardware,
            tuning.cost.batch_size
        ),
    ]
    .into_iter()
    .chain(tuning.warnings())
    .collect()
}

/// Whether the goal holds, in a sentence.
fn verdict(tuning: &Tuning) -> String {
    match (&tuning.verification, &tuning.goal.metric) {
        (Some(check), _) => verified(tuning, check),
        (None, Some(metric)) => {
            let value = tuning.candidates.get(tuning.chosen).and_then(|chosen| chosen.value);
            let outcome = if tuning.kept { "holds" } else { "fails" };
            let value = value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
            format!("The goal {outcome}: {} is {value}, and {} in float.", metric.name, metric.float)
        }
        (None, None) => "The goal was not verified.".to_owned(),
    }
}

/// The result on images that the search did not see, in a sentence.
fn verified(tuning: &Tuning, check: &Verification) -> String {
    let of_images = format!("on {} that the search did not see", counted(check.images, "image"));
    let interval = match check.top1_difference {
        None => format!("an SQNR of {} {of_images}", decibels(check.effect.sqnr_db)),
        Some(Interval { difference, low, high }) => format!(
            "{:+.2} points (95 % interval {:+.2} to {:+.2}) {of_images}",
            100.0 * difference,
            100.0 * low,
            100.0 * high
        ),
    };
    match check.verdict {
        Verdict::Holds => format!("The goal holds: {interval}."),
        Verdict::Fails => format!("The goal fails: {interval}."),
        Verdict::NotConcluded { .. } => match tuning.deciding_images() {
            Some(images) => format!("Not concluded: {interval}; {images}."),
            None => format!("Not concluded: {interval}."),
        },
    }
}
