//! Limits on the changes from one run to another, for automatic checks.

use super::{latencies, pairs};
use crate::error::EvalError;
use crate::results::{ModelResult, Results};

/// The largest changes for the worse that are accepted; `None` accepts any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Drop of top-1 accuracy in percentage points.
    pub max_drop: Option<f64>,
    /// Drop of the SQNR of any output of a backbone in dB.
    pub max_sqnr_drop: Option<f64>,
    /// Increase of the median latency at any batch size, in percent.
    pub max_slowdown: Option<f64>,
}

/// The changes from run `a` to run `b` that exceed `limits`, as text; none if all are within.
///
/// # Errors
/// [`EvalError::Incomparable`] if a limited figure cannot be compared: other images or another preprocessing
/// (accuracy), another processor, GPU or number of threads (latency), a model of `a` that `b` does not have,
/// or no such figure.
pub fn exceeded(a: &Results, b: &Results, limits: &Limits) -> Result<Vec<String>, EvalError> {
    let mut found = Vec::new();
    if let Some(limit) = limits.max_drop {
        check(a, b, "accuracies", same_images(a, b))?;
        let drops = drops(a, b)?;
        let over = drops.into_iter().filter(|(_, drop)| *drop > limit);
        found.extend(
            over.map(|(model, drop)| {
                format!("{model}: top-1 drops by {drop:.3} points; the limit is {limit}")
            }),
        );
    }
    if let Some(limit) = limits.max_sqnr_drop {
        check(a, b, "SQNRs", same_images(a, b))?;
        let over = sqnr_drops(a, b)?.into_iter().filter(|(_, drop)| *drop > limit);
        found.extend(over.map(|(figure, drop)| {
            format!("the SQNR of {figure} drops by {drop:.2} dB; the limit is {limit} dB")
        }));
    }
    if let Some(limit) = limits.max_slowdown {
        check(a, b, "latencies", same_machine(a, b))?;
        let over = slowdowns(a, b)?.into_iter().filter(|(_, percent)| *percent > limit);
        found.extend(
            over.map(|(figure, percent)| {
                format!("{figure} is {percent:.1} % slower; the limit is {limit} %")
            }),
        );
    }
    Ok(found)
}

/// Refuses runs of other conditions, and a model that only the first run has.
fn check(a: &Results, b: &Results, what: &str, same: Result<(), &str>) -> Result<(), EvalError> {
    if let Err(difference) = same {
        return Err(EvalError::limit(format!(
            "{what} cannot be compared: {difference} (`swinq compare` lists it)"
        )));
    }
    match a.models.iter().find(|model| !pairs(a, b).any(|(known, _)| std::ptr::eq(known, *model))) {
        Some(model) => Err(EvalError::limit(format!("{} is in the first run only", model.label()))),
        None => Ok(()),
    }
}

fn same_images(a: &Results, b: &Results) -> Result<(), &'static str> {
    let key =
        |run: &Results| run.data.clone().map(|data| (data.sha256, data.limit, data.transform, data.sizing));
    if key(a) == key(b) { Ok(()) } else { Err("the runs differ in images or preprocessing") }
}

fn same_machine(a: &Results, b: &Results) -> Result<(), &'static str> {
    let key = |run: &Results| {
        let environment = &run.environment;
        let gpu = environment.gpu.as_ref().map(|gpu| gpu.name.clone());
        (environment.cpu.clone(), environment.threads, gpu)
    };
    if key(a) == key(b) { Ok(()) } else { Err("the runs differ in processor, GPU or threads") }
}

/// The drop of each model's top-1 accuracy in percentage points.
fn drops(a: &Results, b: &Results) -> Result<Vec<(String, f64)>, EvalError> {
    let drop = |(a, b): (&ModelResult, &ModelResult)| {
        let both = a.top1_percent().zip(b.top1_percent());
        let remedy = match a.outputs.is_empty() {
            true => "",
            false => ", because it is a backbone; --max-sqnr-drop limits its outputs",
        };
        let (first, second) =
            both.ok_or_else(|| EvalError::limit(format!("{} has no accuracy{remedy}", a.label())))?;
        Ok((a.label(), first - second))
    };
    pairs(a, b).map(drop).collect()
}

/// The drop of the SQNR of each output of each backbone in dB. The baselines of the runs have none.
fn sqnr_drops(a: &Results, b: &Results) -> Result<Vec<(String, f64)>, EvalError> {
    let mut found = Vec::new();
    for (a, b) in pairs(a, b) {
        for output in &a.outputs {
            let figure = format!("{}: {}", a.label(), output.name);
            let other = b.outputs.iter().find(|other| other.name == output.name);
            let other =
                other.ok_or_else(|| EvalError::limit(format!("{figure} is in the first run only")))?;
            // Two infinite ratios are equal; their difference is not a number.
            let drop = if output.sqnr_db == other.sqnr_db { 0.0 } else { output.sqnr_db - other.sqnr_db };
            found.push((figure, drop));
        }
    }
    if found.is_empty() {
        return Err(EvalError::limit(
            "no model of the first run is a backbone that was compared with another".to_owned(),
        ));
    }
    Ok(found)
}

/// The increase of each model's median latency at each batch size, in percent.
fn slowdowns(a: &Results, b: &Results) -> Result<Vec<(String, f64)>, EvalError> {
    let mut found = Vec::new();
    for (a, b) in pairs(a, b) {
        let before = found.len();
        for (at, stats, other) in latencies(a, b) {
            let percent = 100.0 * (other.median / stats.median - 1.0);
            found.push((format!("{}: batch {at}", a.label()), percent));
        }
        if found.len() == before {
            let problem = match a.latency_ms.is_empty() || b.latency_ms.is_empty() {
                true => "a run has no latency; eval without --no-latency measures it",
                false => "the runs have no batch size and size of images in common",
            };
            return Err(EvalError::limit(format!("{}: {problem}", a.label())));
        }
    }
    Ok(found)
}
