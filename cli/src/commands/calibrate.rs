//! `swinq calibrate`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use swinq::eval::RangeFile;
use swinq::model::Ptq;
use swinq::{
    CalibrateOptions, Calibrated, FloatDevice, Images, Model, Padding, ReadOptions, Recipe, Refinement, Rule,
    Shard, SwinConfig, Trial,
};

use crate::args::{CalibrateArgs, Usage};
use crate::out::{caution, counted, info, note, say};
use crate::paths::{check_checkpoint, check_inputs, check_outputs, check_part};
use crate::progress::Stages;
use crate::{float_device, images_arg, interrupt, model_arg, shell, site_table};

/// The share of a site's values beyond its range above which there is a warning.
pub const MOST_CLIPPED: f64 = 0.01;

/// Runs the command; `words` is the command line, which is kept beside the checkpoint for reports.
pub fn run(args: &CalibrateArgs, words: &[String]) -> anyhow::Result<()> {
    let (data, ranges) = (args.data_path.as_deref(), args.ft_amax.as_deref());
    check_inputs([("--data-path", data), ("--ft-amax", ranges)])?;
    let ranges_path = RangeFile::beside(&args.output);
    let inputs = [args.model.as_deref(), args.data_path.as_deref(), args.ft_amax.as_deref()];
    let inputs = inputs.into_iter().flatten().chain(args.float.files());
    let outputs = [&args.output, &ranges_path].into_iter().take(if args.shard.is_some() { 1 } else { 2 });
    check_outputs(outputs, inputs.chain([Path::new(&args.recipe)]))?;
    match args.shard {
        Some(_) => check_part(&args.output)?,
        None => check_checkpoint(&args.output)?,
    }
    float_device::check(args.device, "--device")?;
    let model = float_model(args)?;
    check_size(args, &model)?;
    let recipe = recipe(args, model.config())?;
    if let Some(shard) = args.shard {
        return one_shard(model, recipe, args, shard, shell::join(words));
    }
    let (quantized, ranges) = match &args.ft_amax {
        Some(file) => (from_ft_ranges(model, &recipe, file)?, None),
        None => {
            let calibrated = from_images(model, recipe, args)?;
            let ranges = calibrated.range_file(Some(shell::join(words)));
            (calibrated.model, ranges)
        }
    };
    save(&quantized, ranges, &args.output)
}

/// Warns of sites whose range leaves out many of their values.
fn warn_of_clipping(ranges: &RangeFile) {
    let clipped = ranges.sites.iter().filter_map(|(site, histogram)| {
        let share = histogram.clipped? as f64 / histogram.total().max(1) as f64;
        (share > MOST_CLIPPED).then_some((site, share))
    });
    let clipped: Vec<(&String, f64)> = clipped.collect();
    let Some((site, share)) = clipped.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { return };
    caution!(
        "the ranges of {} leave out more than {:.0} % of their values, that of {site} {:.1} %; a calibrator that clips less, such \
         as `max` or a percentile near 100, usually keeps more accuracy",
        counted(clipped.len(), "site"),
        100.0 * MOST_CLIPPED,
        100.0 * share
    );
}

/// Prints a line on a quantized model, and writes it to `output`, with its histograms beside it.
pub fn save(model: &Model, ranges: Option<RangeFile>, output: &Path) -> anyhow::Result<()> {
    say!("{}", site_table::summary(model.as_quantized()));
    model.save(output)?;
    info!("wrote {}", output.display());
    if let Some(ranges) = ranges {
        warn_of_clipping(&ranges);
        let path = RangeFile::beside(output);
        ranges.write(&path)?;
        info!("wrote {} (histograms, for reports)", path.display());
    }
    Ok(())
}

/// Calibrates on one shard, and writes its part.
fn one_shard(
    model: Model,
    recipe: Recipe,
    args: &CalibrateArgs,
    shard: Shard,
    command: String,
) -> anyhow::Result<()> {
    let (images, options) = settings(&model, recipe, args)?;
    let mut stages = Stages::default();
    let part = swinq::calibrate_shard(model, &options, &images, shard, Some(command), &mut |step| {
        stages.calibration(step);
        interrupt::check()
    })?;
    stages.finish();
    left_out(&part.skipped);
    note_turned(&images);
    part.save(&args.output)?;
    info!("wrote {} (shard {shard}, {})", args.output.display(), counted(part.images, "image"));
    Ok(())
}

/// Warns of the corrupt images that were left out.
pub fn left_out(skipped: &[String]) {
    for skipped in skipped {
        caution!("left out {skipped}");
    }
}

/// Names the first of the images that were turned as their files state.
pub fn note_turned(images: &Images) {
    images.turned().iter().for_each(|remark| note!("{remark}"));
}

fn float_model(args: &CalibrateArgs) -> anyhow::Result<Model> {
    if let Some(seed) = args.random_weights {
        return model_arg::random(seed, &args.float);
    }
    let path = args.model.as_deref().context("MODEL is missing")?;
    model_arg::open_float(path, &args.float)
}

/// Refuses a size and a padding for images of a classifier.
fn check_size(args: &CalibrateArgs, model: &Model) -> anyhow::Result<()> {
    images_arg::check_size(args.size, model.config())?;
    if args.padding.padding() == Padding::default() || model.config().is_backbone() {
        return Ok(());
    }
    let problem = "--pad-to and --pad-batch are for backbones; a classifier's images have the size of its preprocessing (for a backbone, add \
                   --task features)";
    Err(Usage(problem.to_owned()).into())
}

/// The recipe named on the command line, followed by the rules that other options add.
fn recipe(args: &CalibrateArgs, config: &SwinConfig) -> anyhow::Result<Recipe> {
    let name = args.int8_mode.map_or(args.recipe.clone(), |mode| format!("mode{mode}"));
    let mut rules: Vec<Rule> = args.calibrator.map(Rule::of_activations).into_iter().collect();
    let ptq = args.ptq.or(args.ft_amax.as_ref().map(|_| Ptq::Basic));
    rules.extend(ptq.map(Rule::with_ptq));
    let disable = |name: &String| {
        let pattern = swinq::sites_of_part(name, config);
        Rule { pattern, enable: Some(false), ..Rule::default() }
    };
    rules.extend(args.disable.iter().map(disable));
    Ok(swinq::change_recipe(swinq::load_recipe(&name).context("--recipe")?, rules, config)?)
}

fn from_ft_ranges(model: Model, recipe: &Recipe, file: &Path) -> anyhow::Result<Model> {
    let (quantized, ranges) = swinq::quantize_with_ft_ranges(model, recipe, file)?;
    info!("recipe     {}, {}", recipe.name, counted(recipe.rules.len(), "rule"));
    info!("{ranges} ranges from {}", file.display());
    Ok(quantized)
}

fn from_images(model: Model, recipe: Recipe, args: &CalibrateArgs) -> anyhow::Result<Calibrated> {
    let (images, options) = settings(&model, recipe, args)?;
    let mut stages = Stages::default();
    let calibrated = swinq::calibrate(model, &options, &images, &mut |step| {
        stages.calibration(step);
        interrupt::check()
    })?;
    stages.finish();
    found(&calibrated);
    note_turned(&images);
    Ok(calibrated)
}

/// Prints what a calibration found, and warns of the images that it left out.
pub fn found(calibrated: &Calibrated) {
    for line in transforms(&calibrated.trials) {
        info!("{line}");
    }
    left_out(&calibrated.skipped);
}

/// The images of a calibration and its options, which are printed.
fn settings(
    model: &Model,
    recipe: Recipe,
    args: &CalibrateArgs,
) -> anyhow::Result<(Images, CalibrateOptions)> {
    let path = args.data_path.as_deref().context("--data-path is missing")?;
    let wanted = args.batches.saturating_mul(args.batch_size);
    let images = images_arg::open(path, &args.split, "--split", Some(wanted), args.seed)?;
    describe(model, &recipe, args, &images, wanted);
    let read =
        ReadOptions { batch_size: args.batch_size, threads: args.threads, skip_corrupt: args.skip_corrupt };
    let (sizing, padding) = (args.size.unwrap_or_default(), args.padding.padding());
    Ok((images, CalibrateOptions { recipe, read, device: args.device, sizing, padding }))
}

/// One line for each transform: in how many layers it was kept, and by how much it lowered their error.
fn transforms(trials: &[Trial]) -> Vec<String> {
    let mut by_transform: BTreeMap<Refinement, Vec<&Trial>> = BTreeMap::new();
    for trial in trials {
        by_transform.entry(trial.transform).or_default().push(trial);
    }
    let line = |(transform, trials): (Refinement, Vec<&Trial>)| {
        let gains: Vec<f64> = trials.iter().filter(|t| t.kept()).map(|t| t.gain_db()).collect();
        let (kept, all) = (gains.len(), trials.len());
        let mean = gains.iter().sum::<f64>() / kept.max(1) as f64;
        format!("refined    {transform}: kept in {kept} of {all} layers, mean gain {mean:.1} dB")
    };
    by_transform.into_iter().map(line).collect()
}

/// Prints the effective settings, so that the user sees the effect of every option.
fn describe(model: &Model, recipe: &Recipe, args: &CalibrateArgs, images: &Images, wanted: usize) {
    let config = model.config();
    let dialect = &model.as_quantized().provenance.source.dialect;
    if config.is_backbone() {
        let outputs: Vec<&str> = config.outputs.iter().map(|output| &output.name[..]).collect();
        info!("model      {} ({dialect}, a backbone with {})", config.name, outputs.join(", "));
        info!("sizes      {}{}", args.size.unwrap_or_default(), args.padding.padding());
    } else {
        info!("model      {} ({dialect}, {} classes)", config.name, config.num_classes);
        info!("transform  {}", model.transform());
    }
    info!("recipe     {}, {}", recipe.name, counted(recipe.rules.len(), "rule"));
    if let Ok(sites) = recipe.resolve(config) {
        let of = |ptq| sites.iter().filter(|(site, s)| site.is_weight() && s.enabled && s.ptq == ptq).count();
        let counts = Ptq::ALL.map(|ptq| (ptq, of(ptq))).into_iter().filter(|(_, layers)| *layers > 0);
        let text: Vec<String> =
            counts.map(|(ptq, layers)| format!("{ptq} in {}", counted(layers, "layer"))).collect();
        info!("ptq        {}", text.join(", "));
    }
    let count = images.len();
    info!("images     {count} of {}, seed {}, batches of {}", images.describe(), args.seed, args.batch_size);
    if count < wanted {
        caution!("the data set has {}, and {wanted} were asked for", counted(count, "image"));
    }
    if let Some(shard) = args.shard {
        info!("shard      {shard} of these images");
    }
    if let Some(names) = images.names_for(model) {
        let first: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
        info!(
            "classes    named by the data set, from class 0 on {}; --labels gives other names",
            first.join(", ")
        );
    }
    if args.device != FloatDevice::Cpu {
        info!("device     {}", args.device);
    }
}
