//! Calibration in shards.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use swinq_calib::part::{Merge, observe};
use swinq_calib::{CalibError, Progress};
use swinq_model::params::parameters;
use swinq_model::part::{PartFile, PartKind, PartSet, PartTensor, PartTensors, Shard, StoredTensors};
use swinq_model::quantized::{CalibrationRecord, FloatModel, Source};
use swinq_model::{HostTensor, ModelError, QuantizedModel, Recipe, SwinConfig, Transform};

use super::{ImageSet, Part, check_names, version};
use crate::calibration::{ClassNames, check_recipe, finished};
use crate::{CalibrateOptions, Calibrated, Error, FloatDevice, Images, Model};

/// The facts that all parts of a calibration share.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    swinq: String,
    /// Name of the float model's configuration.
    architecture: String,
    /// Preprocessing, in words.
    transform: String,
    /// Hash of the float model.
    model: String,
    recipe: Recipe,
    images: ImageSet,
    /// The kind of device of the float forward: results of GPUs differ from those of CPUs in the last bits.
    device: String,
}

/// The facts of one part alone.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Names of the images, in the order of use.
    images: Vec<String>,
    skipped: Vec<String>,
    named: ClassNames,
    /// The command line, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    /// The float model, in the first part; its parameters are tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    float: Option<Float>,
}

/// A float model without its parameters.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Float {
    config: SwinConfig,
    transform: Transform,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels_from: Option<String>,
    source: Source,
}

/// A calibration that was merged from parts.
#[derive(Debug)]
pub struct MergedCalibration {
    /// The result of [`calibrate`](crate::calibrate()) for all images.
    pub calibrated: Calibrated,
    /// The command line of the first shard, if there was one.
    pub command: Option<String>,
    /// Number of images.
    pub images: usize,
}

/// Does what [`calibrate`](crate::calibrate()) does with the images of one shard of `images`.
/// [`merge_calibration`] makes the model of the parts. `command` is the command line, which the merged
/// calibration keeps for reports.
///
/// # Errors
/// Those of [`calibrate`](crate::calibrate()), without those of ranges; those of [`Images::shard`];
/// [`Error::Calib`] for a recipe with reconstructed layers.
pub fn calibrate_shard(
    model: Model,
    options: &CalibrateOptions,
    images: &Images,
    shard: Shard,
    command: Option<String>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Part, Error> {
    check_recipe(&model, &options.recipe)?;
    if model.config().is_backbone() {
        let problem = "a backbone is calibrated as a whole, because shards divide batches of images of one size; leave \
             --shard out";
        return Err(Error::argument("shard", problem));
    }
    let own_images = images.shard(shard, options.read.batch_size)?;
    let device = options.device.open()?;
    let run = Run {
        swinq: version(),
        architecture: model.config().name.clone(),
        transform: model.transform().to_string(),
        model: model.as_quantized().fingerprint()?,
        recipe: options.recipe.clone(),
        images: ImageSet::of(images, &options.read),
        device: kind_of(options.device).to_owned(),
    };
    let model = model.into_float()?;
    let mut batches = own_images.batches(&model.transform, &options.read)?;
    let settings = swinq_calib::CalibrateOptions { imported: None, device: &device, progress };
    let found = observe(&model, &options.recipe, &mut batches, images.len(), settings)?;
    let mut tensors = found.tensors;
    let own = Own {
        images: found.ids.iter().map(|&id| images.name_of(id)).collect(),
        skipped: batches.skipped().to_vec(),
        named: ClassNames::by(images, &model.source.dialect),
        command,
        float: (shard.index == 1).then(|| store_float(&model, &mut tensors)),
    };
    let part = Part::new(PartKind::Calibration, shard, &run, &own, tensors)?;
    Ok(Part { images: found.ids.len(), skipped: own.skipped, ..part })
}

fn kind_of(device: FloatDevice) -> &'static str {
    if device == FloatDevice::Cpu { "cpu" } else { "cuda" }
}

/// Merges the parts of a calibration. The model is that of [`calibrate`](crate::calibrate()) on all images,
/// bit for bit. `progress` is called after every refined layer.
///
/// # Errors
/// [`Error::Argument`] for parts of an evaluation, and for more corrupt images than allowed; [`Error::Model`]
/// for a part that cannot be read or is damaged; [`Error::Calib`] as in [`calibrate`](crate::calibrate()).
pub fn merge_calibration(
    parts: &PartSet,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<MergedCalibration, Error> {
    if parts.kind() != PartKind::Calibration {
        return Err(Error::argument("parts", format!("are parts of {}, not of a calibration", parts.kind())));
    }
    let mut files = parts.files();
    let first = files.next().expect("a set has a part")?;
    let (run, first_own): (Run, Own) = (first.run()?, first.own()?);
    let float = stored_float(&first, &run, first_own.float.as_ref())?;
    let mut merge = Merge::new(&float, &run.recipe)?;
    let (mut names, mut skipped) = (Vec::new(), Vec::new());
    let mut add = |file: PartFile| -> Result<(), Error> {
        let own: Own = file.own()?;
        let images = merge.add(&file.tensors()).map_err(Error::Calib)?;
        check_names(&file, &own.images, images)?;
        names.extend(own.images);
        skipped.extend(own.skipped);
        if progress(Progress {
            phase: swinq_calib::Phase::Observe,
            done: names.len(),
            total: run.images.count,
        })
        .is_break()
        {
            return Err(CalibError::Stopped.into());
        }
        Ok(())
    };
    add(first)?;
    files.try_for_each(|file| add(file?))?;
    run.images.check_skipped(&skipped)?;
    let found = merge.finish(progress)?;
    let record = CalibrationRecord {
        sizing: None,
        images: names,
        sha256: found.pixels_sha256.clone(),
        seed: run.images.seed,
        batch_size: run.images.batch_size,
        residual: found.residual.clone(),
    };
    let images = record.images.len();
    let calibrated = finished(&float, found, record, first_own.named, skipped)?;
    Ok(MergedCalibration { calibrated, command: first_own.command, images })
}

/// Stores the parameters of `model`, and returns the rest.
fn store_float(model: &FloatModel, tensors: &mut PartTensors) -> Float {
    for (name, tensor) in &model.tensors {
        tensors.insert(tensor_name(name), PartTensor::f32(tensor.shape.clone(), &tensor.data));
    }
    Float {
        config: model.config.clone(),
        transform: model.transform.clone(),
        labels: model.labels.clone(),
        labels_from: model.labels_from.clone(),
        source: model.source.clone(),
    }
}

/// The float model of the first part.
fn stored_float(file: &PartFile, run: &Run, float: Option<&Float>) -> Result<FloatModel, Error> {
    let refuse = |problem: &str| ModelError::file(file.path(), format!("{problem}; run this shard again"));
    let Float { config, transform, labels, labels_from, source } =
        float.ok_or_else(|| refuse("lacks the float model, which the first shard has"))?;
    config.validate()?;
    let tensors: StoredTensors = file.tensors();
    let mut stored = std::collections::BTreeMap::new();
    for (name, shape) in parameters(config) {
        let key = tensor_name(&name);
        let (found, data) = tensors.f32(&key, shape.len())?;
        if found != shape {
            return Err(tensors
                .problem(&key, &format!("has the shape {found:?} instead of {shape:?}"))
                .into());
        }
        stored.insert(name, HostTensor { shape, data });
    }
    let model = FloatModel {
        config: config.clone(),
        transform: transform.clone(),
        labels: labels.clone(),
        labels_from: labels_from.clone(),
        tensors: stored,
        source: source.clone(),
    };
    let model = QuantizedModel::from_float(model)?;
    if model.fingerprint()? != run.model {
        return Err(refuse("has another float model than the shards were calibrated on").into());
    }
    Ok(model.into_float().expect("every site is off"))
}

fn tensor_name(parameter: &str) -> String {
    format!("model.{parameter}")
}
