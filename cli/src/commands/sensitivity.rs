//! `swinq sensitivity`.

use std::path::{Path, PathBuf};

use swinq::eval::Sensitivity;
use swinq::eval::results::sensitivity::{
    Effect, Element, ElementKind, few_images, ranking, write_sensitivity,
};
use swinq::{MeasuredParts, ReadOptions, SensitivityOptions, SensitivityProgress};

use super::calibrate::{MOST_CLIPPED, note_turned};
use crate::args::SensitivityArgs;
use crate::out::{counted, info, note, say};
use crate::paths::{check_inputs, check_outputs};
use crate::steps::{Steps, beside, stopped};
use crate::{images_arg, model_arg, shell, tables};

/// Runs the command.
pub fn run(args: &SensitivityArgs) -> anyhow::Result<()> {
    check_inputs([("--data-path", Some(args.subject.data.data_path.as_path()))])?;
    let inputs = [args.subject.model.as_path(), args.subject.data.data_path.as_path()];
    let inputs = inputs.into_iter().chain(args.subject.float.files());
    let cache = beside(&args.output, ".cache");
    let outputs: [&PathBuf; 2] = [&args.output, &cache];
    check_outputs(outputs, inputs.chain([Path::new(&args.subject.calibration.recipe)]))?;
    let model = model_arg::open_float(&args.subject.model, &args.subject.float)?;
    images_arg::check_size(args.subject.size, model.config())?;
    let (data, calibration) = (&args.subject.data.data_path, &args.subject.calibration);
    let images = images_arg::open(data, &args.subject.split, "--split", Some(args.images), calibration.seed)?;
    let train = calibration.images(data)?;
    let (images, remark) = match images.dataset() {
        Some(data) if data.has_labels() && !model.config().is_backbone() => {
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
        sizing: args.subject.size.unwrap_or_default(),
        sqnr_of: args.subject.sqnr_of.clone(),
        threads: args.subject.threads.most,
        cache: Some(cache.clone()),
    };
    let mut steps = Steps::new(&cache);
    let mut show = |progress: SensitivityProgress<'_>| {
        let next = steps.show(progress);
        if let SensitivityProgress::Stopped(known) = progress {
            print_known(known, args.top);
        }
        next
    };
    let results = swinq::sensitivity(model, &options, &args.parts(), &train, &images, &mut show)
        .map_err(|error| stopped(error, &cache))?;
    steps.finish();
    [&train, &images].into_iter().for_each(note_turned);
    print(&results, args.top);
    print_command(&results, args);
    write_sensitivity(&args.output, &results)?;
    info!("wrote {}", args.output.display());
    info!("wrote {} (finished measurements)", cache.display());
    Ok(())
}

/// Prints the parts that were measured when the run was stopped.
fn print_known(known: &MeasuredParts, top: usize) {
    let MeasuredParts { parts, all, whole, images } = known;
    if parts.is_empty() {
        return;
    }
    say!(
        "\n{} of {} on {}, until the run was stopped:",
        parts.len(),
        counted(*all, "part"),
        counted(*images, "image")
    );
    print_parts(parts, (whole, *images), top);
}

/// Prints the command that leaves the first part of the table in float.
fn print_command(results: &Sensitivity, args: &SensitivityArgs) {
    let (parts, whole, _) = main_parts(results);
    if let Some(first) = ranking(parts).first() {
        let doubt = if first.separates(whole) == Some(false) {
            " (its gain does not separate from none)"
        } else {
            ""
        };
        let checkpoint = args.output.with_extension("int8.safetensors");
        say!("\nto leave {} in float{doubt}:", first.name);
        say!("  {}", shell::join(&args.subject.calibrate_without(&first.name, &checkpoint)));
    }
}

/// The parts that the table is about, the whole recipe on their images, and the number of images: layers or
/// blocks, or sites if nothing else was measured.
fn main_parts(results: &Sensitivity) -> (&[Element], &Effect, usize) {
    match results.layers.is_empty() {
        true => (&results.sites, &results.site_whole, results.site_images),
        false => (&results.layers, &results.whole, results.images),
    }
}

/// Prints the parts with the greatest effect; `whole` is the whole recipe on `images` images.
fn print_parts(parts: &[Element], (whole, images): (&Effect, usize), top: usize) {
    let rows: Vec<Vec<String>> = ranking(parts).into_iter().take(top).map(|part| row(part, whole)).collect();
    let outputs = whole.outputs.iter().map(|output| format!("{} alone", output.name));
    let of_classes = ["KL", "top-1 changes"].map(str::to_owned);
    let middle: Vec<String> = if whole.outputs.is_empty() { of_classes.to_vec() } else { outputs.collect() };
    let first = match parts.first().map(|part| part.kind) {
        Some(ElementKind::Site) => "site",
        Some(ElementKind::Block) => "block",
        _ => "layer",
    };
    let header = [first, "alone: SQNR dB"].map(str::to_owned).into_iter().chain(middle);
    let header: Vec<String> = header.chain(["in float: SQNR dB", "gain dB"].map(str::to_owned)).collect();
    let columns = header.len();
    let mut table = tables::markdown(header);
    table.add_rows(rows);
    tables::align_numbers(&mut table, columns - 1);
    tables::keep_whole(&mut table, columns - 1);
    say!("\n{table}");
    say!(
        "alone: only this part is in INT8; in float: everything but this part; the gain is over the whole recipe"
    );
    say!("± is half of the 95 % interval over the images; ? marks a gain that does not separate from none");
    few_images(images).iter().for_each(|warning| say!("{warning}"));
}

/// Prints the parts with the greatest effect, and the error of the stream by block.
fn print(results: &Sensitivity, top: usize) {
    let (parts, whole_effect, images) = main_parts(results);
    print_parts(parts, (whole_effect, images), top);
    let mut blocks = tables::markdown(["residual stream after", "SQNR dB", "cosine"]);
    for block in &results.blocks {
        blocks.add_row([block.name.clone(), db(block.sqnr_db), format!("{:.6}", block.cosine)]);
    }
    tables::align_numbers(&mut blocks, 2);
    say!("\n{blocks}");
    say!("\nrecipe {}: {}", results.recipe.name, whole(results));
    let clipped: Vec<_> = results.ranges.iter().filter(|range| range.clipped > MOST_CLIPPED).collect();
    if !clipped.is_empty() {
        say!("\nranges that leave out more than {:.0} % of the values:", 100.0 * MOST_CLIPPED);
    }
    for range in clipped {
        let amax = range.amax.map_or(String::new(), |amax| format!(", range {amax:.3}"));
        let (site, share) = (&range.site, 100.0 * range.clipped);
        say!("  {site}: {share:.1} % ({}{amax}, largest magnitude {:.3})", range.calibrator, range.max);
    }
}

/// The effect of the whole recipe in words.
fn whole(results: &Sensitivity) -> String {
    let Effect { sqnr_db, kl, top1_changes, outputs, .. } = &results.whole;
    match (kl, top1_changes) {
        (Some(kl), Some(changes)) => format!(
            "{} dB, KL {kl:.2e}, {changes} of {} change their top-1 class",
            db(*sqnr_db),
            counted(results.images, "image")
        ),
        _ => {
            let outputs: Vec<String> =
                outputs.iter().map(|output| format!("{} {} dB", output.name, db(output.sqnr_db))).collect();
            format!("{} on {}", outputs.join(", "), counted(results.images, "image"))
        }
    }
}

/// The row of a layer: of a backbone with the SQNR of each output, of a classifier with what happens to
/// classes.
fn row(layer: &Element, whole: &Effect) -> Vec<String> {
    let (alone, without) = (&layer.alone, &layer.without);
    let spread = layer.alone_spread_db.map_or(String::new(), |spread| format!(" ± {spread:.1}"));
    let mut row = vec![layer.name.clone(), format!("{}{spread}", db(alone.sqnr_db))];
    row.extend(alone.outputs.iter().map(|output| db(output.sqnr_db)));
    row.extend(alone.kl.map(|kl| format!("{kl:.2e}")));
    row.extend(alone.top1_changes.map(|changes| changes.to_string()));
    row.push(db(without.sqnr_db));
    row.push(layer.gain_in_words(whole));
    row
}

/// Decibels in a table.
fn db(value: f64) -> String {
    if value.is_infinite() { "equal".to_owned() } else { format!("{value:.1}") }
}
