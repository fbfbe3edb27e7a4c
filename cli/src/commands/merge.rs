//! `swinq merge`.

use std::path::PathBuf;

use swinq::eval::{self, RangeFile, ReportExtras};
use swinq::{PartKind, PartSet, ReportFiles};

use super::calibrate::{found, left_out, save};
use super::eval::Accuracies;
use crate::args::{MergeArgs, Usage};
use crate::out::{counted, info, say};
use crate::paths::{check_checkpoint, check_outputs};
use crate::progress::Stages;
use crate::{interrupt, shell};

/// Runs the command; `words` is the command line, for reports.
pub fn run(args: &MergeArgs, words: &[String]) -> anyhow::Result<()> {
    let parts = PartSet::open(&args.parts)?;
    match parts.kind() {
        PartKind::Calibration => calibration(args, &parts, shell::join(words)),
        PartKind::Evaluation => evaluation(args, &parts, shell::join(words)),
    }
}

fn calibration(args: &MergeArgs, parts: &PartSet, command: String) -> anyhow::Result<()> {
    if args.report.is_some() || args.markdown.is_some() || args.predictions.is_some() {
        let text =
            "--report, --markdown and --predictions show an evaluation, and these are parts of a calibration";
        return Err(Usage(text.to_owned()).into());
    }
    check_checkpoint(&args.output)?;
    check_outputs([&args.output, &RangeFile::beside(&args.output)], inputs(args))?;
    let mut stages = Stages::default();
    let merged = swinq::merge_calibration(parts, &mut |step| {
        stages.merging(step);
        interrupt::check()
    })?;
    stages.finish();
    info!("merged {} of {}", counted(parts.count(), "shard"), counted(merged.images, "image"));
    found(&merged.calibrated);
    let commands: Vec<String> = merged.command.into_iter().chain([command]).collect();
    let ranges = merged.calibrated.range_file(Some(commands.join(" && ")));
    interrupt::check_before_writing()?;
    save(&merged.calibrated.model, ranges, &args.output)
}

fn evaluation(args: &MergeArgs, parts: &PartSet, command: String) -> anyhow::Result<()> {
    if args.output.extension().is_some_and(|extension| extension == "safetensors") {
        let output = args.output.display();
        let text = format!(
            "--output {output}: these are parts of an evaluation, whose results are JSON, not a checkpoint"
        );
        return Err(Usage(text).into());
    }
    let files = ReportFiles {
        html: args.report.clone(),
        markdown: args.markdown.clone(),
        json: Some(args.output.clone()),
    };
    check_outputs(files.paths().chain(&args.predictions), inputs(args))?;
    let merged = swinq::merge_evaluation(parts)?;
    interrupt::check_before_writing()?;
    if let Some(path) = &args.predictions {
        merged.write_predictions(path)?;
    }
    let mut results = merged.results;
    info!("merged {} of {}", counted(parts.count(), "shard"), counted(images(&results), "image"));
    left_out(&merged.skipped);
    let source = |model: &eval::ModelResult| {
        let quantized = model.origin.as_ref().map(|origin| origin.source_sha256.clone());
        quantized.or(model.sha256.clone()).unwrap_or_default()
    };
    let mut accuracies = Accuracies::new(merged.classes, results.models.iter().map(source).collect());
    for (model, accuracy) in results.models.iter().zip(&merged.accuracies) {
        accuracies.print(model, accuracy);
    }
    say!("\n{}", eval::table(&results));
    results.commands.push(command);
    swinq::write_report(&results, ReportExtras::default(), None, &files)?;
    for path in files.paths().chain(&args.predictions) {
        info!("wrote {}", path.display());
    }
    Ok(())
}

fn inputs(args: &MergeArgs) -> impl Iterator<Item = &std::path::Path> {
    args.parts.iter().map(PathBuf::as_path)
}

/// Number of images of the results.
fn images(results: &eval::Results) -> usize {
    results.models.first().and_then(|model| model.images).unwrap_or(0)
}
