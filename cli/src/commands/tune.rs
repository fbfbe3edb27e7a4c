//! `swinq tune`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use swinq::eval::results::tune::{SearchEnd, Verdict, write_tuning};
use swinq::eval::{Interval, ReportExtras, Tuning};
use swinq::model::SwinConfig;
use swinq::model::atomic::write_atomic;
use swinq::{Images, ReadOptions, ReportFiles, TuneOptions};

use super::calibrate::note_turned;
use super::eval;
use crate::args::{Cli, Command, TuneArgs, Usage};
use crate::out::{caution, counted, info, note, say};
use crate::paths::{check_checkpoint, check_inputs, check_outputs};
use crate::steps::{Steps, beside, stopped};
use crate::{backend_arg, images_arg, model_arg, shell};

/// The largest drop of top-1 accuracy in percentage points where none is stated.
const MAX_DROP: f64 = 0.2;

/// Refuses the limit of the other kind of network, and a backbone without one.
fn check_limit(args: &TuneArgs, config: &SwinConfig) -> Result<(), Usage> {
    let text = match (config.is_backbone(), args.max_drop, args.min_sqnr) {
        (true, Some(_), _) => {
            "--max-drop is for classifiers; a backbone has --min-sqnr DB, the least SQNR of its outputs"
        }
        (true, None, None) => {
            "a backbone has no accuracy: add --min-sqnr DB, the least SQNR of its outputs against float, such as 30"
        }
        (false, _, Some(_)) => "--min-sqnr is for backbones; a classifier has --max-drop POINTS",
        _ => return Ok(()),
    };
    Err(Usage(text.to_owned()))
}

/// The error for a search that does not reach its goal; the program ends with exit code 3.
#[derive(Debug)]
pub struct Unreached(String);

impl std::fmt::Display for Unreached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreached {}

/// Runs the command; `words` is the command line, for the report.
pub fn run(args: &TuneArgs, words: &[String]) -> anyhow::Result<()> {
    let cache = beside(&args.output, ".cache");
    let table = args.latencies.clone().unwrap_or_else(|| beside(&args.output, ".latencies.json"));
    let [yaml, json] = [".yaml", ".json"].map(|suffix| beside(&args.output, suffix));
    check_inputs([("--data-path", Some(args.subject.data.data_path.as_path()))])?;
    let inputs = [args.subject.model.as_path(), args.subject.data.data_path.as_path()];
    let inputs = inputs.into_iter().chain(args.subject.float.files());
    let outputs = [&args.output, &yaml, &json, &table, &cache];
    check_outputs(
        outputs.into_iter().chain(&args.report),
        inputs.chain([Path::new(&args.subject.calibration.recipe)]),
    )?;
    check_checkpoint(&args.output)?;
    let model = model_arg::open_float(&args.subject.model, &args.subject.float)?;
    images_arg::check_size(args.subject.size, model.config())?;
    check_limit(args, model.config())?;
    let (data, calibration) = (&args.subject.data.data_path, &args.subject.calibration);
    let images = images_arg::open(data, &args.subject.split, "--split", args.images, calibration.seed)?;
    let train = calibration.images(data)?;
    let (images, remark) = match model.config().is_backbone() {
        true => (images, None),
        false => images.numbered_for(model.config(), model.labels(), model.dialect())?,
    };
    remark.iter().for_each(|remark| note!("{remark}"));
    backend_arg::one_device(&args.backend)?;
    let engines = backend_arg::engines(&args.backend, args.subject.threads, args.batch_size)?;
    let [engine] = &engines[..] else {
        return Err(Usage("`tune` takes one --gemm".to_owned()).into());
    };
    let options = TuneOptions {
        recipe: calibration.recipe()?,
        read: ReadOptions {
            batch_size: 8,
            threads: args.subject.threads.most,
            skip_corrupt: args.subject.data.skip_corrupt,
        },
        sizing: args.subject.size.unwrap_or_default(),
        sqnr_of: args.subject.sqnr_of.clone(),
        engine: engine.clone(),
        batch_size: args.batch_size,
        max_drop: args.max_drop.unwrap_or(MAX_DROP),
        min_sqnr: args.min_sqnr,
        min_speedup: args.min_speedup,
        budget: args.budget.map(|minutes| Duration::from_secs_f64(60.0 * minutes)),
        cache: Some(cache.clone()),
        latencies: Some(table.clone()),
    };
    info!("recipe       {}, {}", options.recipe.name, counted(options.recipe.rules.len(), "rule"));
    info!("engine       {}, batch {}", engine.describe()?, args.batch_size);
    info!("calibration  {} of {}, which give the ranges", train.len(), train.describe());
    let (search, verification) = (images.len().div_ceil(2), images.len() / 2);
    info!("images       {} of {}: {search} on which recipes are compared,", images.len(), images.describe());
    info!("             and {} on which the chosen recipe is verified", counted(verification, "other"));
    if let Some(minutes) = args.budget {
        info!(
            "budget       {} for the timing of launches and the search; the calibrations before and behind",
            swinq::eval::text::minutes(minutes)
        );
        info!("             them and the verification are not counted");
    }
    let mut steps = Steps::new(&cache);
    let found = swinq::tune(model, &options, &train, &images, &mut |progress| steps.show_tune(progress));
    let tuned = found.map_err(|error| stopped(error, &cache))?;
    steps.finish();
    [&train, &images].into_iter().for_each(note_turned);
    tuned.model.save(&args.output)?;
    let text = tuned.model.as_quantized().recipe.to_yaml();
    write_atomic(&yaml, |out| out.write_all(text.as_bytes()))?;
    write_tuning(&json, &tuned.results)?;
    print(&tuned.results);
    let whats = ["", " (recipe)", " (all candidates)", " (table of latencies)", " (finished measurements)"];
    for (path, what) in outputs.into_iter().zip(whats) {
        info!("wrote {}{what}", path.display());
    }
    let goal = check_goal(&tuned.results);
    if let Some(file) = &args.report {
        let [_, verification] = images.halves();
        report(args, words, file, &verification, tuned.results)?;
    }
    goal
}

/// Evaluates float and the tuned model on the verification images, and writes the report.
fn report(
    args: &TuneArgs,
    words: &[String],
    file: &Path,
    verification: &Images,
    tuning: Tuning,
) -> anyhow::Result<()> {
    let path = |path: &Path| path.as_os_str().to_owned();
    let fixed =
        ["swinq", "eval", "--name", "A=float", "--name", "B=tuned", "--data-path"].map(OsString::from);
    let paths = [path(&args.subject.data.data_path), path(&args.subject.model), path(&args.output)];
    let Command::Eval(mut eval) = Cli::try_parse_from(fixed.into_iter().chain(paths))?.command else {
        unreachable!("the words are those of eval")
    };
    (eval.float, eval.data, eval.backend) =
        (args.subject.float.clone(), args.subject.data.clone(), args.backend.clone());
    eval.size = args.subject.size;
    (eval.threads, eval.latency) = (args.subject.threads, Some(vec![args.batch_size]));
    say!("");
    let mut results = eval::evaluate(&eval, verification, true)?;
    results.commands = vec![shell::join(words)];
    let extras = ReportExtras { tuning: Some(tuning), ..ReportExtras::default() };
    let files = ReportFiles { html: Some(file.to_owned()), ..ReportFiles::default() };
    swinq::write_report(&results, extras, Some(verification), &files)?;
    info!("wrote {}", file.display());
    Ok(())
}

fn print(results: &Tuning) {
    let chosen = &results.candidates[results.chosen];
    say!("\n{} tried; {} on the front:", counted(results.candidates.len(), "recipe"), results.front.len());
    for &index in &results.front {
        let candidate = &results.candidates[index];
        let mark = if index == results.chosen { "*" } else { " " };
        say!(
            "{mark} {:>8.3} ms  {:.2}x  {:>5.1} % INT8  {:>6.1} dB{}  {}",
            candidate.predicted_ms,
            candidate.speedup,
            100.0 * candidate.int8_share,
            candidate.effect.sqnr_db,
            candidate.top1_difference.map_or(String::new(), |interval| points(interval.difference)),
            counted(candidate.changes.len(), "change")
        );
    }
    say!("\nchanges of {}:", results.start_recipe);
    for change in &chosen.changes {
        say!("  {change}");
    }
    if chosen.changes.is_empty() {
        say!("  none");
    }
    results.warnings().iter().for_each(|warning| say!("{warning}"));
    say!("{}", results.ending());
    let float = results.float_latency_ms.median;
    if let Some(latency) = &chosen.latency_ms {
        say!(
            "latency: predicted {:.3} ms, measured {:.3} ms; float {float:.3} ms, {:.2}x",
            chosen.predicted_ms,
            latency.median,
            float / latency.median
        );
    }
    let Some(verification) = &results.verification else { return };
    let found = match verification.top1_difference {
        None => format!("SQNR {:.1} dB", verification.effect.sqnr_db),
        Some(Interval { difference, low, high }) => format!(
            "top-1 {:+.2} points, 95 % interval {:+.2} to {:+.2}",
            100.0 * difference,
            100.0 * low,
            100.0 * high
        ),
    };
    say!(
        "verified on {}: {found}: {}",
        counted(verification.images, "other image"),
        verdict(results, verification.verdict)
    );
    if let (Some(max_drop), Some(measured), Verdict::NotConcluded { .. }) =
        (results.goal.max_drop, verification.top1_difference, verification.verdict)
        && -100.0 * measured.difference > max_drop
    {
        caution!(
            "the drop measured on these images is beyond the goal: do not take the model as one that keeps it"
        );
    }
}

/// A difference of top-1 accuracy in a line.
fn points(difference: f64) -> String {
    format!("  top-1 {:+.2} points", 100.0 * difference)
}

/// The verdict in words.
fn verdict(results: &Tuning, verdict: Verdict) -> String {
    let goal = &results.goal;
    let Some(max_drop) = goal.max_drop else {
        let outcome = if verdict == Verdict::Holds { "holds" } else { "does not hold" };
        return format!("{} {outcome}", goal.limit());
    };
    match verdict {
        Verdict::Holds => format!("a drop of at most {max_drop} points holds"),
        Verdict::Fails => format!("the drop is more than {max_drop} points"),
        Verdict::NotConcluded { .. } => match results.deciding_images() {
            Some(images) => format!("not concluded whether the drop is at most {max_drop} points; {images}"),
            None => format!(
                "not concluded: the drop seen is exactly {max_drop} points, so that more images of this kind decide nothing"
            ),
        },
    }
}

/// The error if the goal was not reached.
fn check_goal(results: &Tuning) -> anyhow::Result<()> {
    let (goal, chosen) = (&results.goal, &results.candidates[results.chosen]);
    let closest = match chosen.top1_difference {
        None => format!("has {:.1} dB", chosen.effect.sqnr_db),
        Some(interval) if interval.difference > 0.0 => {
            format!("gains {:.2} points", 100.0 * interval.difference)
        }
        Some(interval) => format!("drops {:.2} points", -100.0 * interval.difference),
    };
    let margin = if goal.max_drop.is_some() { ", with a margin of one standard error" } else { "" };
    let problem = match results.end {
        SearchEnd::DropImpossible => format!(
            "no recipe that was tried keeps {} on the search images{margin}; the closest {closest}",
            goal.limit()
        ),
        SearchEnd::SpeedupImpossible => format!(
            "no recipe within the limit is {}x as fast as float; the fastest is {:.2}x",
            goal.min_speedup.unwrap_or_default(),
            chosen.speedup
        ),
        SearchEnd::OutOfTime if !results.kept => format!(
            "the budget was used up before a recipe kept the limit; the closest {closest}; the same command continues"
        ),
        SearchEnd::OutOfTime => {
            say!("the same command looks for a faster recipe");
            return refuted(results);
        }
        SearchEnd::Reached => return refuted(results),
    };
    Err(Unreached(problem).into())
}

fn refuted(results: &Tuning) -> anyhow::Result<()> {
    match results.verification.as_ref().map(|verification| verification.verdict) {
        Some(Verdict::Fails) => {
            let problem = "the verification refutes the goal that the search reached; give more images";
            Err(Unreached(problem.to_owned()).into())
        }
        _ => Ok(()),
    }
}
