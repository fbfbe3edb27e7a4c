//! Limits on the changes from one run to another, for automatic checks.

use super::pairs;
use crate::error::EvalError;
use crate::results::{ModelResult, Results};

/// The largest changes for the worse that are accepted; `None` accepts any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Drop of top-1 accuracy in percentage points.
    pub max_drop: Option<f64>,
    /// Increase of the median latency at any batch size, in percent.
    pub max_slowdown: Option<f64>,
}

/// The changes from run `a` to run `b` that exceed `limits`, as text; none if all are within.
///
/// # Errors
/// [`EvalError::Incomparable`] if a limited figure cannot be compared: other images or another preprocessing (accuracy),
/// another processor, GPU or number of threads (latency), a model of `a` that `b` does not have, or no such figure.
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
    let key = |run: &Results| run.data.clone().map(|data| (data.sha256, data.limit, data.transform));
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
        let (first, second) =
            both.ok_or_else(|| EvalError::limit(format!("{} has no accuracy", a.label())))?;
        Ok((a.label(), first - second))
    };
    pairs(a, b).map(drop).collect()
}

/// The increase of each model's median latency at each batch size, in percent.
fn slowdowns(a: &Results, b: &Results) -> Result<Vec<(String, f64)>, EvalError> {
    let mut found = Vec::new();
    for (a, b) in pairs(a, b) {
        let before = found.len();
        for (batch, stats) in &a.latency_ms {
            if let Some(other) = b.latency_ms.get(batch) {
                let percent = 100.0 * (other.median / stats.median - 1.0);
                found.push((format!("{}: batch {batch}", a.label()), percent));
            }
        }
        if found.len() == before {
            let problem = match a.latency_ms.is_empty() || b.latency_ms.is_empty() {
                true => "a run has no latency; eval without --no-latency measures it",
                false => "the runs have no batch size in common",
            };
            return Err(EvalError::limit(format!("{}: {problem}", a.label())));
        }
    }
    Ok(found)
}
