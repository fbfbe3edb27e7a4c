//! The section about training: curves, validations and the job.

use super::svg::{Anchor, Axis, Svg, grid};
use crate::results::{TrainingRun, ValidationPoint};

/// The section about a training.
pub struct TrainingSection {
    pub folder: String,
    pub job: String,
    /// From calibration to the last validation, in one sentence.
    pub summary: Option<String>,
    pub curves: Vec<String>,
    /// The score of validations.
    pub score: &'static str,
    pub validations: Vec<[String; 5]>,
}

/// Maximum number of validations in the table.
const SHOWN: usize = 12;

impl TrainingSection {
    /// The section about `run`.
    pub fn new(run: &TrainingRun) -> TrainingSection {
        let steps = |value: fn(&crate::results::StepPoint) -> Option<f64>| -> Vec<[f64; 2]> {
            run.steps.iter().filter_map(|point| Some([point.step as f64, value(point)?])).collect()
        };
        let validations = |value: fn(&ValidationPoint) -> Option<f64>| -> Vec<[f64; 2]> {
            run.validations.iter().filter_map(|p| Some([p.step as f64, value(p)?])).collect()
        };
        let backbone = run.validations.iter().any(|p| p.sqnr_db.is_some());
        let curves = [
            curve("loss", &steps(|p| p.loss), false),
            curve("validation top-1, %", &validations(|p| Some(100.0 * p.top1?)), true),
            curve("validation SQNR, dB", &validations(|p| p.sqnr_db), true),
            curve("agreement with the teacher, %", &validations(|p| Some(100.0 * p.agreement?)), true),
            curve("learning rate", &steps(|p| p.lr), false),
        ];
        let skip = run.validations.len().saturating_sub(SHOWN - 1);
        let listed = run.validations.iter().enumerate().filter(|(i, _)| *i == 0 || *i >= skip);
        TrainingSection {
            folder: run.folder.clone(),
            job: run.job.trim_end().to_owned(),
            summary: summary(&run.validations),
            curves: curves.into_iter().flatten().collect(),
            score: if backbone { "SQNR, dB" } else { "top-1, %" },
            validations: listed.map(|(_, point)| row(point)).collect(),
        }
    }
}

fn summary(validations: &[ValidationPoint]) -> Option<String> {
    let (first, last) = (validations.first()?, validations.last()?);
    if first.step == last.step {
        return None;
    }
    let start =
        if first.step == 0 { "after calibration".to_owned() } else { format!("at step {}", first.step) };
    let agreement = match (first.agreement, last.agreement) {
        (Some(a), Some(b)) => {
            format!("; agreement with the teacher {:.2} % to {:.2} %", 100.0 * a, 100.0 * b)
        }
        _ => String::new(),
    };
    let step = last.step;
    if let (Some(from), Some(to)) = (first.sqnr_db, last.sqnr_db) {
        return Some(format!(
            "The SQNR of the outputs went from {from:.2} dB {start} to {to:.2} dB at step {step} ({:+.2} dB).",
            to - from
        ));
    }
    let (from, to) = (100.0 * first.top1?, 100.0 * last.top1?);
    Some(format!(
        "Top-1 went from {from:.3} % {start} to {to:.3} % at step {step} ({:+.3} points){agreement}.",
        to - from
    ))
}

fn row(point: &ValidationPoint) -> [String; 5] {
    [
        point.step.to_string(),
        format!("{:.2}", point.epoch),
        match (point.top1, point.sqnr_db) {
            (Some(top1), _) => format!("{:.3}", 100.0 * top1),
            (None, db) => db.map_or(String::new(), |db| format!("{db:.2}")),
        },
        point.agreement.map_or(String::new(), |agreement| format!("{:.3}", 100.0 * agreement)),
        point.images.to_string(),
    ]
}

/// A curve over the iterations; `None` without points.
fn curve(name: &str, points: &[[f64; 2]], dots: bool) -> Option<String> {
    let points: Vec<[f64; 2]> = points.iter().copied().filter(|point| point[1].is_finite()).collect();
    let last = points.last()?;
    let (width, height) = (440.0, 190.0);
    let frame = [58.0, 24.0, width - 10.0, height - 22.0];
    let [left, top, right, bottom] = frame;
    let x = Axis::from_zero(last[0], left, right);
    let y = Axis::around(points.iter().map(|point| point[1]), bottom, top);
    let mut svg = Svg::default();
    grid(&mut svg, &x, &y, [5, 4], frame);
    let pixels: Vec<[f64; 2]> = points.iter().map(|&[step, value]| [x.at(step), y.at(value)]).collect();
    svg.polyline("curve", &pixels);
    if dots {
        pixels.iter().for_each(|&at| svg.circle("dot", at, 2.5));
    }
    svg.text("name", [left, 14.0], Anchor::Start, &format!("{name} (last: {})", figure(last[1])));
    Some(svg.finish(width, height, &format!("{name} over the iterations of the training")))
}

/// A number with four significant digits.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 1e-3 => format!("{value:.3e}"),
        size => {
            let decimals = (3.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.decimals$}")
        }
    }
}
