//! `swinq calibrate`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use candle_core::Device;
use swinq_calib::{CalibrateOptions, Calibrated, calibrate, quantize};
use swinq_model::checkpoint::import_ft_amax;
use swinq_model::quantized::{CalibrationRecord, FloatModel};
use swinq_model::{QuantizedModel, Recipe, Rule, Site};

use crate::args::CalibrateArgs;
use crate::data_arg::Sample;
use crate::float_device::FloatDevice;
use crate::out::say;
use crate::paths::check_outputs;
use crate::progress::Progress;
use crate::{interrupt, model_arg, site_table};

/// Activation sites, for rules that must leave weights alone.
const ACTIVATIONS: &str = r"re:.*\.(input|output|q|k|v|scores|probs|branch|shortcut)";

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> anyhow::Result<()> {
    let cfg = args.float.cfg.as_ref().map(Path::new);
    let inputs = [args.model.as_deref(), args.data_path.as_deref(), args.ft_amax.as_deref(), cfg];
    check_outputs([&args.output], inputs.into_iter().flatten().chain([Path::new(&args.recipe)]))?;
    let device = args.device.open("--device")?;
    let model = float_model(args)?;
    let recipe = recipe(args)?;
    // What the recipe gets wrong should not cost a calibration.
    if !recipe.resolve(&model.config)?.iter().any(|(_, spec)| spec.enabled) {
        bail!(
            "recipe {} with the rules of the command line quantizes no site of {}",
            recipe.name,
            model.config.name
        );
    }
    let quantized = match &args.ft_amax {
        Some(file) => from_ft_ranges(&model, &recipe, file)?,
        None => from_images(&model, &recipe, &device, args)?,
    };
    say!("{}", site_table::products(&quantized));
    say!("{}", site_table::summary(&quantized));
    quantized.save(&args.output)?;
    say!("wrote {}", args.output.display());
    Ok(())
}

fn float_model(args: &CalibrateArgs) -> anyhow::Result<FloatModel> {
    if let Some(seed) = args.random_weights {
        return model_arg::random_model(seed, &args.float);
    }
    let path = args.model.as_deref().context("MODEL is missing")?;
    model_arg::load_float_model(path, &args.float)
}

/// The recipe named, with the command line's rules at its end.
fn recipe(args: &CalibrateArgs) -> anyhow::Result<Recipe> {
    let name = args.int8_mode.map_or(args.recipe.clone(), |mode| format!("mode{mode}"));
    let mut recipe = match Recipe::shipped(&name) {
        Some(recipe) => recipe,
        None => {
            let text = std::fs::read_to_string(&name).with_context(|| {
                format!("recipe {name}: not one of default, mode1, mode2, and no such file can be read")
            })?;
            Recipe::from_yaml(&name, &text)?
        }
    };
    if let Some(calibrator) = args.calibrator {
        let pattern = ACTIVATIONS.to_owned();
        recipe = recipe.with_rule(Rule { pattern, calibrator: Some(calibrator), ..Rule::default() });
    }
    for pattern in &args.disable {
        recipe = recipe.with_rule(Rule { pattern: pattern.clone(), enable: Some(false), ..Rule::default() });
    }
    Ok(recipe)
}

fn from_ft_ranges(model: &FloatModel, recipe: &Recipe, file: &Path) -> anyhow::Result<QuantizedModel> {
    let ranges: BTreeMap<Site, f32> = import_ft_amax(file, &model.config)?;
    say!("{} ranges from {}", ranges.len(), file.display());
    Ok(quantize(model, recipe, &ranges)?)
}

fn from_images(
    model: &FloatModel,
    recipe: &Recipe,
    device: &Device,
    args: &CalibrateArgs,
) -> anyhow::Result<QuantizedModel> {
    let path = args.data_path.as_deref().context("--data-path is missing")?;
    let wanted = args.batches * args.batch_size;
    let sample = Sample::open(path, args.split, Some(wanted), args.seed)?;
    describe(model, recipe, args, &sample, wanted);
    let mut loader = sample.loader(&model.transform, args.batch_size, args.threads, args.skip_corrupt);
    let mut progress = Progress::new("calibrate", sample.ids.len());
    let mut seen = 0;
    let mut on_images = |done: usize, _total: usize| {
        seen = done;
        progress.set(done);
        interrupt::check()
    };
    let options = CalibrateOptions { imported: None, device, progress: &mut on_images };
    let calibrated = calibrate(model, recipe, &mut loader, options)?;
    progress.finish(seen);
    for skipped in loader.skipped() {
        eprintln!("warning: left out {skipped}");
    }
    Ok(with_record(calibrated, &sample, args))
}

/// Prints the effective settings, so that no flag is silently without effect.
fn describe(model: &FloatModel, recipe: &Recipe, args: &CalibrateArgs, sample: &Sample, wanted: usize) {
    let config = &model.config;
    say!("model      {} ({}, {} classes)", config.name, model.source.dialect, config.num_classes);
    say!("transform  {}", model.transform);
    say!("recipe     {}, {} rules", recipe.name, recipe.rules.len());
    let images = sample.ids.len();
    say!(
        "images     {images} of {}, seed {}, batches of {}",
        sample.dataset.describe(),
        args.seed,
        args.batch_size
    );
    if images < wanted {
        say!("           ({wanted} were asked for; the data set has no more)");
    }
    if args.device != FloatDevice::Cpu {
        say!("device     {}", args.device);
    }
}

fn with_record(calibrated: Calibrated, sample: &Sample, args: &CalibrateArgs) -> QuantizedModel {
    let mut model = calibrated.model;
    model.provenance.calibration = Some(CalibrationRecord {
        images: calibrated.ids.iter().map(|&id| sample.dataset.name(id)).collect(),
        sha256: calibrated.pixels_sha256,
        seed: args.seed,
        batch_size: args.batch_size,
    });
    model
}
