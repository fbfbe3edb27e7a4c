//! What a job names: models and images, checked against each other.

use std::path::Path;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use swinq_data::Split;
use swinq_model::config::LoadedConfig;
use swinq_model::quantized::FloatModel;
use swinq_model::{QuantizedModel, SwinConfig, load_config};
use swinq_qat::job::{Identity, Job};
use swinq_qat::{QatError, init};

use crate::args::FloatArgs;
use crate::data_arg::Sample;
use crate::model_arg::load_float_model;

/// The models and images of a job.
pub struct Inputs {
    /// Whose weights are trained.
    pub float: FloatModel,
    /// The calibrated checkpoint.
    pub quantized: Option<QuantizedModel>,
    /// The teacher.
    pub teacher: Option<FloatModel>,
    /// The images to train on.
    pub train: Sample,
    /// The images to validate on.
    pub val: Sample,
    /// DropPath's highest rate.
    pub drop_path: f64,
}

impl Inputs {
    /// Loads everything.
    pub fn load(job: &Job) -> anyhow::Result<Inputs> {
        let loaded = job.cfg.as_ref().map(|cfg| load_config(cfg, &job.config_overrides())).transpose()?;
        let train = Sample::open(&job.data.path, split(job.data.split), job.data.limit, job.seed)?;
        let val = Sample::open(
            job.data.validation_path(),
            split(job.data.val_split),
            job.data.val_limit,
            job.seed,
        )?;
        let float = start(job, loaded.as_ref(), &train)?;
        check_classes(&train, &float.config)?;
        check_classes(&val, &float.config)?;
        let quantized = match job.model.as_deref().filter(|_| job.quant) {
            Some(path) => Some(calibrated(path, &float)?),
            None => None,
        };
        let teacher = job.teacher_path().map(|path| teacher(job, path, &float)).transpose()?;
        let drop_path = job.drop_path.or(loaded.map(|loaded| loaded.drop_path)).unwrap_or(0.0);
        Ok(Inputs { float, quantized, teacher, train, val, drop_path })
    }

    /// What the result depends on.
    pub fn identity(&self, job: &Job) -> anyhow::Result<Identity> {
        let mut contents = vec![("data.path", self.train.list_sha256())];
        if job.float.is_some() {
            contents.push(("float", self.float.source.sha256.clone()));
        }
        if let Some(teacher) = &self.teacher {
            contents.push(("teacher", teacher.source.sha256.clone()));
        }
        if let Some(path) = &job.model {
            contents.push(("model", file_sha256(path)?));
        }
        if job.cfg.is_some() {
            let read = serde_json::to_vec(&(&self.float.config, &self.float.transform))?;
            contents.push(("cfg", sha256(&read)));
        }
        contents.push(("drop_path", self.drop_path.to_string()));
        Ok(job.identity(&contents))
    }
}

fn file_sha256(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(sha256(&bytes))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn split(split: swinq_qat::job::Split) -> Split {
    match split {
        swinq_qat::job::Split::Train => Split::Train,
        swinq_qat::job::Split::Val => Split::Val,
    }
}

/// How the job's float checkpoints are to be read.
fn float_args(job: &Job) -> FloatArgs {
    let opts = job.config_overrides().into_iter().flat_map(|(key, value)| [key, value]).collect();
    FloatArgs { cfg: job.cfg.clone(), opts, ..FloatArgs::default() }
}

/// The model that the training starts from.
fn start(job: &Job, loaded: Option<&LoadedConfig>, train: &Sample) -> anyhow::Result<FloatModel> {
    let Some(path) = &job.float else {
        let loaded = loaded.context("float is not set, nor cfg")?;
        return Ok(init::untrained(loaded, job.seed));
    };
    let mut model = load_float_model(path, &float_args(job)).context("float")?;
    if job.new_head {
        let Some(classes) = train.dataset.num_classes() else {
            bail!("new_head: {}; a head needs labels to learn", train.dataset.describe());
        };
        let labels = train.dataset.class_names().map(<[String]>::to_vec);
        init::replace_head(&mut model, classes, labels, job.seed);
    }
    Ok(model)
}

/// Refuses images of other classes than the model's: training on them would unlearn the model's own.
fn check_classes(sample: &Sample, config: &SwinConfig) -> anyhow::Result<()> {
    sample.check_labels(config)?;
    let named = sample.dataset.class_names().map(<[String]>::len);
    if let Some(classes) = named.filter(|&classes| classes != config.num_classes) {
        bail!(
            "{} has {classes} classes and {} has {}; is it the data the model was trained on? (a float training with \
             new_head: true adapts a model to other classes)",
            sample.dataset.describe(),
            config.name,
            config.num_classes
        );
    }
    Ok(())
}

/// The calibrated checkpoint, of the network of `float`.
fn calibrated(path: &Path, float: &FloatModel) -> anyhow::Result<QuantizedModel> {
    let model = QuantizedModel::load(path).context("model")?;
    let mismatch = |problem: String| QatError::Mismatch { file: path.display().to_string(), problem };
    if !model.is_quantized() {
        let problem = "quantizes nothing; calibrate it first, or train in float with quant: off".to_owned();
        return Err(mismatch(problem).into());
    }
    let shape = |config: &SwinConfig| SwinConfig { name: String::new(), ..config.clone() };
    if shape(&model.config) != shape(&float.config) {
        let problem = format!(
            "is of the network {} with {} classes, and float of {} with {}, or their sizes differ; name the checkpoint \
             that was calibrated from `float`",
            model.config.name, model.config.num_classes, float.config.name, float.config.num_classes
        );
        return Err(mismatch(problem).into());
    }
    if model.transform != float.transform {
        let problem = format!(
            "was calibrated with the preprocessing {}, and float has {}; give the same cfg to both",
            model.transform, float.transform
        );
        return Err(mismatch(problem).into());
    }
    let (made_of, given) = (&model.provenance.source, &float.source);
    if made_of.sha256 != given.sha256 {
        eprintln!(
            "warning: {} was made of {} ({:.12}), not of {} ({:.12}); its ranges may not suit these weights",
            path.display(),
            made_of.file,
            made_of.sha256,
            given.file,
            given.sha256
        );
    }
    Ok(model)
}

fn teacher(job: &Job, path: &Path, student: &FloatModel) -> anyhow::Result<FloatModel> {
    let model =
        load_float_model(path, &float_args(job)).with_context(|| format!("teacher {}", path.display()))?;
    let refuse = |problem: String| QatError::Teacher { teacher: path.display().to_string(), problem };
    let (its, ours) = (&model.config, &student.config);
    if its.num_classes != ours.num_classes {
        return Err(refuse(format!(
            "it has {} classes, and the model {}",
            its.num_classes, ours.num_classes
        ))
        .into());
    }
    if its.image_size != ours.image_size {
        let problem =
            format!("it takes images of {} pixels, and the model of {}", its.image_size, ours.image_size);
        return Err(refuse(problem).into());
    }
    let blocks = |config: &SwinConfig| (config.depths.clone(), config.embed_dim, config.patch_size);
    if job.loss.features > 0.0 && blocks(its) != blocks(ours) {
        let problem =
            "its blocks have other sizes, so loss.features cannot compare them; set it to 0".to_owned();
        return Err(refuse(problem).into());
    }
    Ok(model)
}
