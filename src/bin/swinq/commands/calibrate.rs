//! `swinq calibrate`.

use std::path::Path;

use anyhow::Context;
use swinq::model::Calibrator;
use swinq::{CalibrateOptions, FloatDevice, Images, Model, ReadOptions, Recipe, Rule};

use crate::args::CalibrateArgs;
use crate::out::say;
use crate::paths::check_outputs;
use crate::progress::Progress;
use crate::{float_device, interrupt, model_arg, site_table};

/// Pattern of all activation sites, for rules that must not change weights.
const ACTIVATIONS: &str = r"re:.*\.(input|output|q|k|v|scores|probs|branch|shortcut)";

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> anyhow::Result<()> {
    let cfg = args.float.cfg.as_ref().map(Path::new);
    let inputs = [args.model.as_deref(), args.data_path.as_deref(), args.ft_amax.as_deref(), cfg];
    check_outputs([&args.output], inputs.into_iter().flatten().chain([Path::new(&args.recipe)]))?;
    float_device::check(args.device, "--device")?;
    let model = float_model(args)?;
    let recipe = recipe(args)?;
    let quantized = match &args.ft_amax {
        Some(file) => from_ft_ranges(model, &recipe, file)?,
        None => from_images(model, recipe, args)?,
    };
    say!("{}", site_table::products(quantized.as_quantized()));
    say!("{}", site_table::summary(quantized.as_quantized()));
    quantized.save(&args.output)?;
    say!("wrote {}", args.output.display());
    Ok(())
}

fn float_model(args: &CalibrateArgs) -> anyhow::Result<Model> {
    if let Some(seed) = args.random_weights {
        return model_arg::random(seed, &args.float);
    }
    let path = args.model.as_deref().context("MODEL is missing")?;
    model_arg::open_float(path, &args.float)
}

/// The recipe named on the command line, followed by the rules that other options add.
fn recipe(args: &CalibrateArgs) -> anyhow::Result<Recipe> {
    let name = args.int8_mode.map_or(args.recipe.clone(), |mode| format!("mode{mode}"));
    let mut recipe = swinq::load_recipe(&name)?;
    if let Some(calibrator) = args.calibrator {
        recipe = recipe.with_rule(activations(calibrator));
    }
    for pattern in &args.disable {
        recipe = recipe.with_rule(Rule { pattern: pattern.clone(), enable: Some(false), ..Rule::default() });
    }
    Ok(recipe)
}

fn activations(calibrator: Calibrator) -> Rule {
    Rule { pattern: ACTIVATIONS.to_owned(), calibrator: Some(calibrator), ..Rule::default() }
}

fn from_ft_ranges(model: Model, recipe: &Recipe, file: &Path) -> anyhow::Result<Model> {
    let ranges = swinq::load_ft_ranges(file, &model)?;
    say!("{} ranges from {}", ranges.len(), file.display());
    Ok(swinq::quantize_with_ranges(model, recipe, &ranges)?)
}

fn from_images(model: Model, recipe: Recipe, args: &CalibrateArgs) -> anyhow::Result<Model> {
    let path = args.data_path.as_deref().context("--data-path is missing")?;
    let wanted = args.batches.saturating_mul(args.batch_size);
    let images = Images::open(path, args.split, Some(wanted), args.seed)?;
    describe(&model, &recipe, args, &images, wanted);
    let read =
        ReadOptions { batch_size: args.batch_size, threads: args.threads, skip_corrupt: args.skip_corrupt };
    let options = CalibrateOptions { recipe, read, device: args.device };
    let mut progress = Progress::new("calibrate", images.len());
    let mut seen = 0;
    let mut on_images = |done: usize, _total: usize| {
        seen = done;
        progress.set(done);
        interrupt::check()
    };
    let calibrated = swinq::calibrate(model, &options, &images, &mut on_images)?;
    progress.finish(seen);
    for skipped in &calibrated.skipped {
        eprintln!("warning: left out {skipped}");
    }
    Ok(calibrated.model)
}

/// Prints the effective settings, so that the user sees the effect of every option.
fn describe(model: &Model, recipe: &Recipe, args: &CalibrateArgs, images: &Images, wanted: usize) {
    let config = model.config();
    let dialect = &model.as_quantized().provenance.source.dialect;
    say!("model      {} ({dialect}, {} classes)", config.name, config.num_classes);
    say!("transform  {}", model.transform());
    say!("recipe     {}, {} rules", recipe.name, recipe.rules.len());
    let count = images.len();
    say!("images     {count} of {}, seed {}, batches of {}", images.describe(), args.seed, args.batch_size);
    if count < wanted {
        say!("           ({wanted} were asked for; the data set has no more)");
    }
    if args.device != FloatDevice::Cpu {
        say!("device     {}", args.device);
    }
}
