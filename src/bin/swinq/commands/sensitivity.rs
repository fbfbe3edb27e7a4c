//! `swinq sensitivity`.

use std::path::{Path, PathBuf};

use swinq::eval::Sensitivity;
use swinq::eval::results::sensitivity::{Effect, Element, write_sensitivity};
use swinq::{ReadOptions, SensitivityOptions};

use crate::args::SensitivityArgs;
use crate::out::{counted, info, note, say};
use crate::paths::{check_inputs, check_outputs};
use crate::steps::{Steps, beside, stopped};
use crate::{images_arg, model_arg, tables};

/// Runs the command.
pub fn run(args: &SensitivityArgs) -> anyhow::Result<()> {
    check_inputs([("--data-path", Some(args.subject.data.data_path.as_path()))])?;
    let inputs = [args.subject.model.as_path(), args.subject.data.data_path.as_path()];
    let inputs = inputs.into_iter().chain(args.subject.float.files());
    let cache = beside(&args.output, ".cache");
    let outputs: [&PathBuf; 2] = [&args.output, &cache];
    check_outputs(outputs, inputs.chain([Path::new(&args.subject.calibration.recipe)]))?;
    let model = model_arg::open_float_classifier(&args.subject.model, &args.subject.float)?;
    let (data, calibration) = (&args.subject.data.data_path, &args.subject.calibration);
    let images = images_arg::open(data, &args.subject.split, "--split", Some(args.images), calibration.seed)?;
    let train = calibration.images(data)?;
    let (images, remark) = match images.dataset() {
        Some(data) if data.has_labels() => {
            images.numbered_for(model.config(), model.labels(), model.dialect())?
        }
        _ => (images, None),
    };
    remark.iter().for_each(|remark| note!("{remark}"));
    let recipe = args.subject.calibration.recipe()?;
    info!("recipe       {}, {}", recipe.name, counted(recipe.rules.len(), "rule"));
    info!("calibration  {} of {}", train.len(), train.describe());
    info!("images       {} of {}", images.len(), images.describe());
    let options = SensitivityOptions {
        recipe,
        read: ReadOptions {
            batch_size: 8,
            threads: args.subject.threads.most,
            skip_corrupt: args.subject.data.skip_corrupt,
        },
        threads: args.subject.threads.most,
        cache: Some(cache.clone()),
    };
    let mut steps = Steps::new(&cache);
    let results = swinq::sensitivity(model, &options, &train, &images, &mut |progress| steps.show(progress))
        .map_err(|error| stopped(error, &cache))?;
    steps.finish();
    print(&results, args.top);
    write_sensitivity(&args.output, &results)?;
    info!("wrote {}", args.output.display());
    info!("wrote {} (finished measurements)", cache.display());
    Ok(())
}

/// Prints the layers with the greatest effect, and the error of the stream by block.
fn print(results: &Sensitivity, top: usize) {
    let mut table = tables::markdown([
        "layer",
        "quantized alone: SQNR dB",
        "KL",
        "top-1 changes",
        "left in float: SQNR dB",
        "gain dB",
    ]);
    for layer in results.ranking().into_iter().take(top) {
        table.add_row(row(layer, &results.whole));
    }
    tables::align_numbers(&mut table, 5);
    say!("\n{table}");
    let mut blocks = tables::markdown(["residual stream after", "SQNR dB", "cosine"]);
    for block in &results.blocks {
        blocks.add_row([block.name.clone(), db(block.sqnr_db), format!("{:.6}", block.cosine)]);
    }
    tables::align_numbers(&mut blocks, 2);
    say!("\n{blocks}");
    let Effect { sqnr_db, kl, top1_changes, .. } = results.whole;
    say!(
        "\nrecipe {}: {} dB, KL {kl:.2e}, {top1_changes} of {} images change their top-1 class",
        results.recipe.name,
        db(sqnr_db),
        results.images
    );
}

fn row(layer: &Element, whole: &Effect) -> [String; 6] {
    let (alone, without) = (&layer.alone, &layer.without);
    [
        layer.name.clone(),
        db(alone.sqnr_db),
        format!("{:.2e}", alone.kl),
        alone.top1_changes.to_string(),
        db(without.sqnr_db),
        format!("{:+.2}", without.sqnr_db - whole.sqnr_db),
    ]
}

/// Decibels in a table.
fn db(value: f64) -> String {
    if value.is_infinite() { "equal".to_owned() } else { format!("{value:.1}") }
}
