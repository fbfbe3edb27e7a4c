//! `swinq tune`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use swinq::eval::results::tune::{SearchEnd, Verdict, write_tuning};
use swinq::eval::{Interval, ReportExtras, Tuning};
use swinq::model::atomic::write_atomic;
use swinq::{Images, ReadOptions, ReportFiles, TuneOptions};

use super::eval;
use crate::args::{Cli, Command, TuneArgs, Usage};
use crate::out::{counted, info, note, say};
use crate::paths::{check_checkpoint, check_inputs, check_outputs};
use crate::steps::{Steps, beside, stopped};
use crate::{backend_arg, images_arg, model_arg, shell};

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
    let model = model_arg::open_float_classifier(&args.subject.model, &args.subject.float)?;
    let (data, calibration) = (&args.subject.data.data_path, &args.subject.calibration);
    let images = images_arg::open(data, &args.subject.split, "--split", args.images, calibration.seed)?;
    let train = calibration.images(data)?;
    let (images, remark) = images.numbered_for(model.config(), model.labels(), model.dialect())?;
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
        engine: engine.clone(),
        batch_size: args.batch_size,
        max_drop: args.max_drop,
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
    info!("             and {verification} others on which the chosen recipe is verified");
    let mut steps = Steps::new(&cache);
    let found = swinq::tune(model, &options, &train, &images, &mut |progress| steps.show_tune(progress));
    let tuned = found.map_err(|error| stopped(error, &cache))?;
    steps.finish();
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
    (eval.threads, eval.latency) = (args.subject.threads, vec![args.batch_size]);
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
            "{mark} {:>8.3} ms  {:.2}x  {:>5.1} % INT8  {:>6.1} dB  top-1 {:+.2} points  {}",
            candidate.predicted_ms,
            candidate.speedup,
            100.0 * candidate.int8_share,
            candidate.effect.sqnr_db,
            100.0 * candidate.top1_difference.difference,
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
    let float = results.float_latency_ms.median;
    if let Some(latency) = &chosen.latency_ms {
        say!(
            "latency: predicted {:.3} ms, measured {:.3} ms; float {float:.3} ms, {:.2}x",
            chosen.predicted_ms,
            latency.median,
            float / latency.median
        );
    }
    let verification = &results.verification;
    let Interval { difference, low, high } = verification.top1_difference;
    say!(
        "verified on {} other images: top-1 {:+.2} points, 95 % interval {:+.2} to {:+.2}: {}",
        verification.images,
        100.0 * difference,
        100.0 * low,
        100.0 * high,
        verdict(results)
    );
}

/// The verdict in words.
fn verdict(results: &Tuning) -> String {
    let goal = results.goal.max_drop;
    match results.verification.verdict {
        Verdict::Holds => format!("a drop of at most {goal} points holds"),
        Verdict::Fails => format!("the drop is more than {goal} points"),
        Verdict::NotConcluded { images_needed: Some(images) } => {
            format!(
                "not concluded whether the drop is at most {goal} points; about {images} images would decide"
            )
        }
        Verdict::NotConcluded { images_needed: None } => {
            format!(
                "not concluded: the drop seen is exactly {goal} points, so that more images of this kind decide nothing"
            )
        }
    }
}

/// The error if the goal was not reached.
fn check_goal(results: &Tuning) -> anyhow::Result<()> {
    let (goal, chosen) = (&results.goal, &results.candidates[results.chosen]);
    let drop = -100.0 * chosen.top1_difference.difference;
    let problem = match results.end {
        SearchEnd::DropImpossible => format!(
            "no recipe that was tried keeps the drop within {} points on the search images, with a margin of one standard \
             error; the closest drops {drop:.2}",
            goal.max_drop
        ),
        SearchEnd::SpeedupImpossible => format!(
            "no recipe within the drop is {}x as fast as float; the fastest is {:.2}x",
            goal.min_speedup.unwrap_or_default(),
            chosen.speedup
        ),
        SearchEnd::OutOfTime if !results.kept => format!(
            "the budget of {} minutes was used up before a recipe kept the accuracy; the closest drops {drop:.2} points; \
             the same command continues",
            goal.budget_minutes.unwrap_or_default()
        ),
        SearchEnd::OutOfTime => {
            say!("the budget was used up; the same command looks for a faster recipe");
            return refuted(results);
        }
        SearchEnd::Reached => return refuted(results),
    };
    Err(Unreached(problem).into())
}

fn refuted(results: &Tuning) -> anyhow::Result<()> {
    match results.verification.verdict {
        Verdict::Fails => {
            let problem = "the verification refutes the goal that the search reached; give more images";
            Err(Unreached(problem.to_owned()).into())
        }
        _ => Ok(()),
    }
}
