//! The verdict: one sentence about the model that the report is about, and the limits of its validity.

use super::names::short_names;
use crate::environment::{Load, disturbed};
use crate::interval::Interval;
use crate::results::{ModelResult, Precision, Results};
use crate::text::{counted, decibels, thousands};

/// Loss of top-1, as a fraction, that the 95 % interval must exclude for "no measurable loss".
const MARGIN: f64 = 0.005;

/// The conclusion about a model's accuracy from the paired interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The interval lies below 0.
    Loss,
    /// The interval contains 0 and a loss of half a point or more.
    Open,
    /// The interval contains 0 and excludes a loss of half a point.
    NoLoss,
    /// The interval lies above 0.
    Gain,
}

impl Outcome {
    /// The outcome for an interval.
    pub fn of(interval: &Interval) -> Outcome {
        match interval {
            Interval { low, .. } if *low > 0.0 => Outcome::Gain,
            Interval { high, .. } if *high < 0.0 => Outcome::Loss,
            Interval { low, .. } if *low >= -MARGIN => Outcome::NoLoss,
            _ => Outcome::Open,
        }
    }
}

/// The verdict of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// One sentence; the title of the report.
    pub title: String,
    /// The limits of its validity, one sentence each.
    pub warnings: Vec<String>,
}

/// The model that the verdict and the detailed sections are about.
///
/// It is the fastest INT8 model without a measurable loss of accuracy. If there is none, it is the one whose
/// paired interval has the highest lower limit, or the fastest one if no accuracy was measured. Simulations
/// are not considered.
pub fn subject(results: &Results) -> Option<usize> {
    let models = &results.models;
    let int8 = |i: &usize| models[*i].precision == Precision::Int8;
    let others: Vec<usize> = (1..models.len()).filter(int8).collect();
    if others.is_empty() {
        return (0..models.len()).find(int8);
    }
    let batch = results.reference_batch();
    let ms = |i: usize| batch.and_then(|batch| Some(models[i].latency_ms.get(&batch)?.median));
    let fastest = |indices: Vec<usize>| {
        let time = |i: &usize| ms(*i).unwrap_or(f64::INFINITY);
        indices.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)))
    };
    let outcome = |i: &usize| models[*i].top1_difference.map(|interval| Outcome::of(&interval));
    let good = others.iter().copied().filter(|i| outcome(i) >= Some(Outcome::NoLoss)).collect();
    let low = |i: &usize| models[*i].top1_difference.map_or(f64::NEG_INFINITY, |interval| interval.low);
    let measured = others.iter().copied().filter(|i| outcome(i).is_some());
    // Of equal lower limits, the first model wins.
    let best = measured.rev().max_by(|a, b| low(a).total_cmp(&low(b)));
    fastest(good).or(best).or_else(|| fastest(others))
}

/// The verdict on `results`.
pub fn verdict(results: &Results) -> Verdict {
    let warnings = warnings(results);
    let count = results.models.len();
    let Some((base, own)) = pair(results) else {
        let title = match subject(results) {
            Some(own) => format!("{}: nothing to compare it with", display(&results.models[own])),
            None if count == 0 => "No model was measured".to_owned(),
            None => format!("Accuracy and speed of {count} model{}", if count == 1 { "" } else { "s" }),
        };
        return Verdict { title, warnings };
    };
    let mut parts = Vec::new();
    parts.extend(speed(results, base, own));
    parts.extend(size(base, own));
    parts.extend(accuracy(own));
    if parts.is_empty() {
        parts.push("no figure in common with the baseline".to_owned());
    }
    Verdict { title: format!("{}: {}", named(results, own), parts.join(", ")), warnings }
}

/// [`display`], with the short name in parentheses if other INT8 models are compared with the same baseline.
fn named(results: &Results, own: &ModelResult) -> String {
    let int8 = results.models.iter().skip(1).filter(|model| model.precision == Precision::Int8).count();
    let index = results.models.iter().position(|model| std::ptr::eq(model, own)).unwrap_or(0);
    match own.architecture {
        Some(_) if int8 > 1 => format!("{} ({})", display(own), short_names(&results.models)[index]),
        _ => display(own),
    }
}

/// The baseline and the subject, if they are two models.
fn pair(results: &Results) -> Option<(&ModelResult, &ModelResult)> {
    let own = subject(results).filter(|&own| own > 0)?;
    Some((&results.models[0], &results.models[own]))
}

/// `INT8 Swin-T`, or the model's name if its architecture is not known.
fn display(model: &ModelResult) -> String {
    let name =
        model.architecture.clone().unwrap_or_else(|| short_names(std::slice::from_ref(model)).remove(0));
    format!("{} {name}", model.precision.to_string().to_uppercase())
}

/// `3.3x faster`, from the medians at the reference batch, if the times of the two models are apart.
fn speed(results: &Results, base: &ModelResult, own: &ModelResult) -> Option<String> {
    let batch = results.reference_batch()?;
    let (base, own) = (base.latency_ms.get(&batch)?, own.latency_ms.get(&batch)?);
    let apart = own.p90 < base.min || base.p90 < own.min;
    if !apart && load_warning(results).is_some() {
        return Some("speed not concluded, because latency was disturbed".to_owned());
    }
    let (base, own) = (base.median, own.median);
    if own <= 0.0 || base <= 0.0 {
        return None;
    }
    Some(match base / own {
        ratio if ratio >= 1.05 => format!("{ratio:.1}x faster"),
        ratio if ratio > 0.95 => "no faster".to_owned(),
        ratio => format!("{:.1}x slower", 1.0 / ratio),
    })
}

/// `a quarter of the size`.
fn size(base: &ModelResult, own: &ModelResult) -> Option<String> {
    let ratio = own.size_bytes? as f64 / base.size_bytes.filter(|&bytes| bytes > 0)? as f64;
    let near = |value: f64| (ratio / value - 1.0).abs() <= 0.1;
    Some(match ratio {
        _ if near(0.25) => "a quarter of the size".to_owned(),
        _ if near(1.0 / 3.0) => "a third of the size".to_owned(),
        _ if near(0.5) => "half the size".to_owned(),
        ratio if near(1.0) || ratio > 1.0 => return None,
        ratio => format!("{:.0} % of the size", 100.0 * ratio),
    })
}

/// The knowledge about the accuracy, and on how many images it rests.
fn accuracy(own: &ModelResult) -> Option<String> {
    let images = own.images.map_or(String::new(), |images| format!(" on {}", counted(images, "image")));
    if let Some(output) = own.lowest_output() {
        return Some(match output.sqnr_db {
            f64::INFINITY => format!("equal feature maps{images}"),
            db => format!("the lowest SQNR of an output is {} ({}){images}", decibels(db), output.name),
        });
    }
    let Some(interval) = own.top1_difference else {
        let agreement = own.agreement?;
        return Some(format!("the same class on {:.1} % of the images", 100.0 * agreement));
    };
    let Interval { difference, low, high } = interval;
    let points = |value: f64| format!("{:.2}", 100.0 * value.abs());
    Some(match Outcome::of(&interval) {
        Outcome::NoLoss => format!("no measurable loss{images}"),
        Outcome::Gain => format!("{} points more accurate{images}", points(difference)),
        Outcome::Loss => format!("{} points of top-1 lost{images}", points(difference)),
        Outcome::Open => format!(
            "loss not concluded{images} (between {} points lost and {} gained)",
            points(low),
            points(high.max(0.0))
        ),
    })
}

/// Number of images with which the interval would exclude a loss of half a point, if the difference stayed 0:
/// its width falls with the square root of their number.
fn images_needed(interval: &Interval, images: usize) -> usize {
    let half = (interval.high - interval.low) / 2.0;
    let needed = images as f64 * (half / MARGIN).powi(2);
    // Two significant digits, rounded up.
    let unit = 10f64.powf(needed.max(10.0).log10().floor() - 1.0);
    ((needed / unit).ceil() * unit) as usize
}

fn warnings(results: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((_, own)) = pair(results) {
        warnings.extend(open_warning(own, results.data.as_ref().and_then(|data| data.total)));
    }
    if results.models.first().is_some_and(|base| base.precision == Precision::Int8)
        && results.models.len() > 1
    {
        warnings.push(
            "The baseline is itself quantized: differences are those between quantized models, not from float."
                .to_owned(),
        );
    }
    warnings.extend(load_warning(results));
    warnings
}

/// The warning that the accuracy decides nothing, of a data set that has `total` images.
fn open_warning(own: &ModelResult, total: Option<usize>) -> Option<String> {
    let interval = own.top1_difference.filter(|interval| Outcome::of(interval) == Outcome::Open)?;
    let images = own.images?;
    let needed = images_needed(&interval, images).max(images + 1);
    let more = total
        .filter(|&total| needed > total)
        .map_or(String::new(), |total| format!("; this data set has {}, which is fewer", thousands(total)));
    Some(format!(
        "The accuracy of {} does not decide whether there is a loss: the 95 % interval of the difference is \
         {:+.2} to {:+.2} points. About {} images would exclude a loss of {} points, if there is none{more}.",
        counted(images, "image"),
        100.0 * interval.low,
        100.0 * interval.high,
        thousands(needed),
        100.0 * MARGIN
    ))
}

/// The batch sizes whose latency was measured while other processes worked.
pub(crate) fn load_warning(results: &Results) -> Option<String> {
    let cores = results.environment.cores.unwrap_or(1);
    let busy = |(&batch, load): (&usize, &Load)| Some((batch, load.disturbance(cores)?));
    let found: Vec<(usize, f64)> = results.load.iter().filter_map(busy).collect();
    let worst = found.iter().map(|(_, other)| *other).fold(0.0, f64::max);
    let batches: Vec<String> = found.iter().map(|(batch, _)| batch.to_string()).collect();
    let sizes = match &batches[..] {
        [] => return None,
        [one] => format!("batch {one} was"),
        [before @ .., last] => format!("batches {} and {last} were", before.join(", ")),
    };
    Some(disturbed(worst, cores, &sizes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::latency::Latency;

    fn model(precision: Precision, ms: f64, difference: Option<[f64; 3]>) -> ModelResult {
        let mut model = ModelResult::new("m", precision, "cpu");
        model.set_latency(1, &Latency::from_samples(vec![ms; 9]).unwrap());
        model.top1_difference = difference.map(|[difference, low, high]| Interval { difference, low, high });
        model.images = Some(3925);
        model.size_bytes = Some(if precision == Precision::Int8 { 27 } else { 100 });
        model.architecture = Some("Swin-T".to_owned());
        model
    }

    fn results(models: Vec<ModelResult>) -> Results {
        let mut results = Results::new(Environment { cores: Some(2), ..Environment::default() });
        results.models = models;
        results
    }

    fn title(difference: Option<[f64; 3]>) -> String {
        verdict(&results(vec![model(Precision::Fp32, 33.0, None), model(Precision::Int8, 10.0, difference)]))
            .title
    }

    #[test]
    fn titles_say_what_the_interval_allows() {
        let start = "INT8 Swin-T: 3.3x faster, a quarter of the size";
        let cases = [
            (Some([0.0005, -0.001, 0.002]), ", no measurable loss on 3,925 images"),
            (Some([-0.0043, -0.006, -0.0026]), ", 0.43 points of top-1 lost on 3,925 images"),
            (Some([0.01, 0.002, 0.018]), ", 1.00 points more accurate on 3,925 images"),
            (
                Some([-0.005, -0.02, 0.01]),
                ", loss not concluded on 3,925 images (between 2.00 points lost and 1.00 gained)",
            ),
            (None, ""),
        ];
        for (difference, end) in cases {
            assert_eq!(title(difference), format!("{start}{end}"));
        }
    }

    #[test]
    fn a_wide_interval_warns_with_the_images_that_would_decide() {
        let mut all = results(vec![
            model(Precision::Fp32, 1.0, None),
            model(Precision::Int8, 1.0, Some([0.0, -0.02, 0.02])),
        ]);
        all.models[1].images = Some(100);
        let found = verdict(&all).warnings;
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("-2.00 to +2.00 points. About 1,600 images"), "{found:?}");
        assert_eq!(images_needed(&Interval { difference: 0.0, low: -0.02, high: 0.02 }, 123), 2000);
    }

    #[test]
    fn busy_machines_and_quantized_baselines_warn() {
        let mut all = results(vec![model(Precision::Int8, 1.0, None), model(Precision::Int8, 1.0, None)]);
        all.load.insert(1, Load { average: Some(3.0), other_cores: Some(0.1) });
        all.load.insert(8, Load { average: Some(3.0), other_cores: Some(1.25) });
        let found = verdict(&all).warnings;
        assert!(found[0].contains("baseline is itself quantized"), "{found:?}");
        assert!(found[1].contains("1.2 of 2 cores while batch 8 was"), "{found:?}");
        all.load.get_mut(&1).unwrap().other_cores = Some(1.0);
        assert!(verdict(&all).warnings[1].contains("while batches 1 and 8 were"));
    }

    #[test]
    fn the_subject_is_the_fastest_without_a_loss() {
        let (good, bad, open) =
            (Some([0.0, -0.003, 0.003]), Some([-0.02, -0.03, -0.01]), Some([0.0, -0.01, 0.01]));
        let float = || model(Precision::Fp32, 30.0, None);
        let int8 = |ms, difference| model(Precision::Int8, ms, difference);
        let cases = [
            (vec![float(), int8(10.0, good), int8(8.0, good), int8(5.0, bad)], Some(2)),
            (vec![float(), int8(5.0, bad), int8(9.0, open), int8(8.0, open)], Some(2)),
            (vec![float(), int8(5.0, None), int8(4.0, None)], Some(2)),
            (vec![int8(5.0, None)], Some(0)),
            (vec![float(), model(Precision::Simulated, 1.0, good)], None),
            (vec![], None),
        ];
        for (models, expected) in cases {
            assert_eq!(subject(&results(models)), expected);
        }
    }

    #[test]
    fn reports_without_a_pair_have_a_title() {
        assert_eq!(verdict(&results(vec![])).title, "No model was measured");
        let float = model(Precision::Fp32, 1.0, None);
        assert_eq!(verdict(&results(vec![float.clone()])).title, "Accuracy and speed of 1 model");
        let alone = verdict(&results(vec![model(Precision::Int8, 1.0, None)])).title;
        assert_eq!(alone, "INT8 Swin-T: nothing to compare it with");
        let mut bare = results(vec![float, ModelResult::new("/a/q.safetensors", Precision::Int8, "cpu")]);
        bare.models[0].size_bytes = None;
        assert_eq!(verdict(&bare).title, "INT8 q: no figure in common with the baseline");
    }

    #[test]
    fn more_images_than_the_data_set_has_are_said_to_be_more() {
        let mut all = results(vec![
            model(Precision::Fp32, 33.0, None),
            model(Precision::Int8, 10.0, Some([-0.002, -0.01, 0.006])),
        ]);
        let data = |total| Some(crate::results::DataInfo { total: Some(total), ..Default::default() });
        for (total, said) in [(1_000_000, false), (3925, true)] {
            all.data = data(total);
            let text = warnings(&all).join(" ");
            assert!(text.contains("The accuracy of 3,925 images does not decide"), "{text}");
            assert_eq!(text.contains("; this data set has 3,925, which is fewer."), said, "{text}");
        }
    }
}
