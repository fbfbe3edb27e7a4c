//! Opens the model that the MODEL argument names.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use swinq::{Error, Family, LoadOptions, Model, OpenOptions};

use crate::args::{self, FloatArgs, Usage};
use crate::out::{caution, detail};
use crate::paths::check_inputs;

/// The options for reading a float checkpoint that `args` state.
///
/// # Errors
/// [`Usage`] for `--opts` without pairs; a file of `--cfg` or `--labels` that does not exist.
pub fn open_options(args: &FloatArgs) -> anyhow::Result<OpenOptions> {
    let yaml = args.cfg.as_deref().map(Path::new);
    let yaml = yaml.filter(|cfg| cfg.extension().is_some_and(|e| e == "yaml" || e == "yml"));
    check_inputs([("--cfg", yaml), ("--labels", args.labels.as_deref())])?;
    let transform = args.transform.map(|family| match family {
        args::Family::Ms => Family::Microsoft,
        args::Family::Timm => Family::Timm,
        args::Family::Torchvision => Family::Torchvision,
        args::Family::Hf => Family::HuggingFace,
    });
    Ok(OpenOptions {
        cfg: args.cfg.clone(),
        reading: LoadOptions {
            opts: args::pairs(&args.opts)?,
            dialect: args.dialect,
            weights: args.weights.clone(),
            prefix: args.prefix.clone(),
            task: args.task.map(args::NetworkTask::task),
            outputs: args.outputs.as_ref().map(|outputs| outputs.iter().map(|output| output.0).collect()),
            described_by: args.described_by.clone(),
            ..LoadOptions::default()
        },
        transform,
        orientation: args.orientation,
        channel_order: args.channels,
        labels: args.labels.clone(),
    })
}

/// Opens the model at `path`, in any supported format.
pub fn open(path: &Path, args: &FloatArgs) -> anyhow::Result<Model> {
    let start = Instant::now();
    let model = Model::open_with(path, &open_options(args)?).map_err(usage)?;
    describe(path, &model, start);
    Ok(model)
}

/// [`open`] for a command that needs classes: refuses a backbone.
pub fn open_classifier(path: &Path, args: &FloatArgs) -> anyhow::Result<Model> {
    classifier(path, open(path, args)?)
}

/// Opens a float checkpoint or directory.
pub fn open_float(path: &Path, args: &FloatArgs) -> anyhow::Result<Model> {
    let start = Instant::now();
    let model = Model::open_float(path, &open_options(args)?).map_err(usage)?;
    describe(path, &model, start);
    Ok(model)
}

/// `model`, which was read from `path`, if it is a classifier.
fn classifier(path: &Path, model: Model) -> anyhow::Result<Model> {
    model.check_classifier().with_context(|| path.display().to_string())?;
    Ok(model)
}

/// The warnings that were printed. A command that opens a model twice says them once.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Prints the warnings about the model and, with `-v`, what was opened and how long that took.
fn describe(path: &Path, model: &Model, start: Instant) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for warning in model.warnings() {
        if said.insert(warning.clone()) {
            caution!("{warning}");
        }
    }
    let source = &model.as_quantized().provenance.source;
    detail!(
        "opened {}: {}, tensors named as by {}, {}, {:.3} s",
        path.display(),
        model.config().name,
        source.dialect,
        model.transform(),
        start.elapsed().as_secs_f64()
    );
}

/// Random weights of the shape that `--cfg` gives.
pub fn random(seed: u64, args: &FloatArgs) -> anyhow::Result<Model> {
    Model::random_with(&open_options(args)?, seed).map_err(usage)
}

/// Converts an error of the library. Errors about options become [`Usage`] errors.
fn usage(error: Error) -> anyhow::Error {
    match error {
        Error::OverridesWithoutConfig => {
            Usage("--opts overrides keys of the configuration in --cfg; give --cfg too".to_owned()).into()
        }
        error => error.into(),
    }
}
