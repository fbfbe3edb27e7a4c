//! Calibration: makes a quantized model from a float model and images.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

use swinq_calib::{Histogram, Progress, Refinement, Trial, fold_factors};
use swinq_data::{Padding, Sizing};
use swinq_eval::{Distortion, RangeFile, RangeHistogram};
use swinq_model::checkpoint::import_ft_amax;
use swinq_model::quantized::{CalibrationRecord, FileRecord, FloatModel, Param};
use swinq_model::site::all_linears;
use swinq_model::text_file::{self, MAX_WRITTEN};
use swinq_model::{HostTensor, ModelError, QuantizedModel, Recipe, Rule, Site, SwinConfig};

use crate::class_order::ordered_names;
use crate::hex::sha256_of;
use crate::{Error, FloatDevice, ImageBatches, Images, Model, ReadOptions};

/// How a model is calibrated.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The sites to quantize, and how ([`load_recipe`]).
    pub recipe: Recipe,
    /// How the images are read.
    pub read: ReadOptions,
    /// The device that runs the float forward.
    pub device: FloatDevice,
    /// The size to which images are resized before a backbone. Images of a classifier have the size of its
    /// transform.
    pub sizing: Sizing,
    /// How images are padded after that, before a backbone.
    pub padding: Padding,
}

impl Default for CalibrateOptions {
    /// The recipe `default`, batches of 8, on the processor; before a backbone images keep their sizes,
    /// without padding.
    fn default() -> CalibrateOptions {
        let recipe = Recipe::shipped("default").expect("the recipe `default` is shipped");
        CalibrateOptions {
            recipe,
            read: ReadOptions::default(),
            device: FloatDevice::Cpu,
            sizing: Sizing::Keep,
            padding: Padding::default(),
        }
    }
}

/// A calibrated model.
#[derive(Debug)]
pub struct Calibrated {
    /// The quantized model. Its provenance records the images.
    pub model: Model,
    /// The error messages of the corrupt images that were left out.
    pub skipped: Vec<String>,
    /// The transforms that were tried at layers whose `ptq` is not `basic`.
    pub trials: Vec<Trial>,
    /// Histograms of the magnitudes at the observed sites.
    pub histograms: BTreeMap<Site, Histogram>,
    /// SQNR in dB of the codes of each quantized weight against the float weight that they were made of.
    pub weight_noise: BTreeMap<Site, f64>,
}

impl Calibrated {
    /// The histograms with few bins, as they are kept beside the checkpoint for reports; `None` if no site
    /// was observed. `command` is the command line that calibrated the model.
    pub fn range_file(&self, command: Option<String>) -> Option<RangeFile> {
        let model = self.model.as_quantized();
        // The histograms are those of the float model before refinement rewrote its activations.
        let rewritten = |site: Site| {
            self.trials.iter().filter(|trial| trial.kept()).any(|trial| {
                match (trial.transform, trial.layer) {
                    (Refinement::MigrateNorm, layer) => site == Site::Input(layer),
                    (Refinement::MigrateValues, layer) => {
                        site == Site::Input(layer)
                            || layer.block().is_some_and(|block| site == Site::V(block))
                    }
                    _ => false,
                }
            })
        };
        let record = model.provenance.calibration.as_ref().filter(|_| !self.histograms.is_empty())?;
        let coarse = |(&site, histogram): (&Site, &Histogram)| {
            let max = f64::from(histogram.max());
            let state = model.site(site);
            let comparable = state.channels.is_none() && !rewritten(site);
            let amax = state.amax.filter(|_| comparable).map(f64::from);
            let (counts, width) = (histogram.counts(), histogram.width());
            (site.to_string(), RangeHistogram::coarse(counts, width, histogram.zeros(), max, amax))
        };
        let sites = self.histograms.iter().map(coarse).collect();
        let weights = self.weight_noise.iter().map(|(site, db)| (site.to_string(), *db)).collect();
        Some(RangeFile::new(record.sha256.clone(), command, weights, sites))
    }
}

/// Finds the range of every site that the recipe quantizes, on `images`, and quantizes `model`.
///
/// Images of a backbone, and normalised images of any network, have any size that the network can process.
/// All other images have the size of the model's transform.
///
/// `progress` is called after every batch of images and every refined layer; `Break` stops the calibration.
/// The result depends only on the model, the recipe and the images in their order. The function takes the
/// model by value, so that it copies no weights if `model` is the only handle.
///
/// # Errors
/// [`Error::Argument`] for a model that is already quantized; the errors of [`Images::batches`];
/// [`Error::NothingQuantized`]; [`Error::Device`]; [`Error::Calib`] if an image cannot be read, an activation
/// is not finite, a site has no usable range, or `progress` stops the calibration.
pub fn calibrate(
    model: Model,
    options: &CalibrateOptions,
    images: &Images,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Calibrated, Error> {
    check_recipe(&model, &options.recipe)?;
    let device = options.device.open()?;
    let model = model.into_float()?;
    let how = (&options.read, options.sizing, options.padding);
    let mut batches = batches_for(&model, images, how)?;
    let settings = swinq_calib::CalibrateOptions { imported: None, device: &device, progress };
    let found = swinq_calib::calibrate(&model, &options.recipe, &mut batches, settings)?;
    let record = record(&model, images, how, &found);
    finished(&model, found, record, ClassNames::by(images, &model.source.dialect), batches.skipped().to_vec())
}

/// The calibrated model with its provenance, and what reports need.
pub(crate) fn finished(
    model: &FloatModel,
    found: swinq_calib::Calibrated,
    record: CalibrationRecord,
    named: ClassNames,
    skipped: Vec<String>,
) -> Result<Calibrated, Error> {
    let noise = weight_noise(&found.model, |name| found.refined.tensor(model, name))?;
    let (mut quantized, trials) = (found.model, found.trials);
    quantized.provenance.calibration = Some(record);
    named.give(&mut quantized);
    Ok(Calibrated {
        model: Model::from_quantized(quantized)?,
        skipped,
        trials,
        histograms: found.histograms,
        weight_noise: noise,
    })
}

/// The SQNR of every quantized weight of `model` against the weights `float`, by name.
fn weight_noise<'a>(
    model: &QuantizedModel,
    float: impl Fn(&str) -> Option<&'a HostTensor>,
) -> Result<BTreeMap<Site, f64>, Error> {
    let mut noise = BTreeMap::new();
    for linear in all_linears(&model.config) {
        let name = linear.weight_name();
        let (Some(Param::Int8(codes)), Some(exact)) = (model.params.get(&name), float(&name)) else {
            continue;
        };
        // The codes are those of the weight times the factors of its input channels.
        let exact = fold_factors(exact, model.weight_factors(linear).unwrap_or_default());
        let mut distortion = Distortion::default();
        distortion.update(&exact.data, &codes.dequantize().data)?;
        noise.insert(Site::Weight(linear), distortion.sqnr_db());
    }
    Ok(noise)
}

/// The class names of a data set.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassNames {
    /// By class number; `None` if the data set has none.
    names: Option<Vec<String>>,
    /// The data set, in words.
    by: String,
}

impl ClassNames {
    /// The class names of `images` in the order of the library whose naming convention `dialect` is.
    pub(crate) fn by(images: &Images, dialect: &str) -> ClassNames {
        let names = images.dataset().and_then(|data| ordered_names(data, dialect));
        ClassNames { names, by: images.describe() }
    }

    /// Gives a model without class names these, if there are as many as the model has classes.
    pub(crate) fn give(self, model: &mut QuantizedModel) {
        let fits = |names: &Vec<String>| model.labels.is_none() && names.len() == model.config.num_classes;
        if let Some(names) = self.names.filter(fits) {
            model.labels = Some(names);
            model.provenance.labels_from = Some(format!("the classes of {}", self.by));
        }
    }
}

/// The images as `model` reads them: of the size of its transform, or of any size for a backbone and for
/// normalised images.
pub(crate) fn batches_for(
    model: &FloatModel,
    images: &Images,
    (read, sizing, padding): (&ReadOptions, Sizing, Padding),
) -> Result<ImageBatches, Error> {
    match model.config.is_backbone() || images.is_normalised() {
        false => images.batches(&model.transform, read),
        true => images.batches_by_size(&model.config, &model.transform, read, sizing, padding),
    }
}

/// The record of the calibration of `model` that found `found`.
pub(crate) fn record(
    model: &FloatModel,
    images: &Images,
    (read, sizing, padding): (&ReadOptions, Sizing, Padding),
    found: &swinq_calib::Calibrated,
) -> CalibrationRecord {
    let is_backbone = model.config.is_backbone();
    CalibrationRecord {
        images: found.ids.iter().map(|&id| images.name_of(id)).collect(),
        sha256: found.pixels_sha256.clone(),
        seed: images.seed(),
        // The batches of a backbone are an implementation's choice, on which no byte of the result depends,
        // unless its images are padded to the largest of a batch.
        batch_size: if is_backbone && !padding.to_common { 1 } else { read.batch_size },
        sizing: is_backbone.then(|| format!("{sizing}{padding}")),
        residual: found.residual.clone(),
    }
}

/// Quantizes `model` with known ranges (the amax of each site) instead of calibrating it.
///
/// # Errors
/// [`Error::Argument`] for a model that is already quantized; [`Error::NothingQuantized`]; [`Error::Calib`]
/// for a site that needs a range but has none, and for an unusable range.
pub fn quantize_with_ranges(
    model: Model,
    recipe: &Recipe,
    ranges: &BTreeMap<Site, f32>,
) -> Result<Model, Error> {
    check_recipe(&model, recipe)?;
    let model = model.into_float()?;
    Model::from_quantized(swinq_calib::quantize(&model, recipe, ranges)?)
}

/// Quantizes `model` with the ranges of the FasterTransformer `*_calib.pth` in `file`, which the provenance
/// of the result records. Returns the model and the number of ranges in the file.
///
/// # Errors
/// The errors of [`load_ft_ranges`] and of [`quantize_with_ranges`]; [`Error::Io`].
pub fn quantize_with_ft_ranges(model: Model, recipe: &Recipe, file: &Path) -> Result<(Model, usize), Error> {
    let ranges = load_ft_ranges(file, &model)?;
    let sha256 = sha256_of(file).map_err(Error::io(file))?;
    let mut quantized = quantize_with_ranges(model, recipe, &ranges)?.into_quantized();
    quantized.provenance.imported_ranges = Some(FileRecord { file: file.display().to_string(), sha256 });
    Ok((Model::from_quantized(quantized)?, ranges.len()))
}

/// Reads the ranges (the amax of each site) of a FasterTransformer `*_calib.pth`, for `model`.
///
/// # Errors
/// [`Error::Model`] for a file that is damaged or of another architecture.
pub fn load_ft_ranges(file: &Path, model: &Model) -> Result<BTreeMap<Site, f32>, Error> {
    Ok(import_ft_amax(file, model.config())?)
}

/// The recipe `name`: `default`, `mode1`, `mode2`, or a YAML file.
///
/// # Errors
/// [`Error::NotFound`] for a YAML file that does not exist; [`Error::Model`] if it cannot be read or is not a
/// recipe.
pub fn load_recipe(name: &str) -> Result<Recipe, Error> {
    if let Some(recipe) = Recipe::shipped(name) {
        return Ok(recipe);
    }
    let path = Path::new(name);
    let text = text_file::read(path, MAX_WRITTEN).map_err(|error| {
        if error.kind() == ErrorKind::NotFound && is_yaml(path) {
            return Error::NotFound { path: path.to_owned() };
        }
        let problem = format!("not one of default, mode1, mode2, and no such file can be read: {error}");
        ModelError::recipe(name, problem).into()
    })?;
    Ok(Recipe::from_yaml(name, &text)?)
}

/// Whether `path` is meant as a file, not as the name of a recipe.
fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The recipe with `rules` added at its end. Its name says that it is changed, unless the rules have no
/// effect on a model with this configuration.
///
/// # Errors
/// [`Error::Model`] for a rule that matches no site or that its sites do not accept.
pub fn change_recipe(recipe: Recipe, rules: Vec<Rule>, config: &SwinConfig) -> Result<Recipe, Error> {
    let (name, before) = (recipe.name.clone(), recipe.resolve(config)?);
    let changed = rules.into_iter().fold(recipe, Recipe::with_rule);
    let name = if changed.resolve(config)? == before { name } else { changed.name.clone() };
    Ok(Recipe { name, ..changed })
}

/// Refuses a recipe that does not fit the model or leaves all of it in float, before any image is read.
///
/// # Errors
/// [`Error::Model`] for a rule that matches no site or that its sites do not accept;
/// [`Error::NothingQuantized`].
pub fn check_recipe(model: &Model, recipe: &Recipe) -> Result<(), Error> {
    if recipe.resolve(model.config())?.iter().any(|(_, spec)| spec.enabled) {
        return Ok(());
    }
    Err(Error::NothingQuantized { recipe: recipe.name.clone(), model: model.config().name.clone() })
}
