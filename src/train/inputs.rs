//! Loads the models and images that a job names, and checks that they fit each other.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use swinq_data::{DataError, Sizing, Split};
use swinq_model::config::LoadedConfig;
use swinq_model::quantized::{FileInfo, FloatModel};
use swinq_model::{
    ChannelOrder, LoadOptions, Orientation, Ptq, QuantizedModel, Scores, SwinConfig, Task, Transform,
    load_config,
};
use swinq_qat::job::{Identity, Job, JobError};
use swinq_qat::{QatError, init};

use super::words::in_keys;
use crate::hex::hex;
use crate::{Error, Images, OpenOptions};

/// The models and images of a job.
pub struct Inputs {
    /// The model whose weights are trained: the job's float model or, if the calibration rewrote its
    /// parameters (`ptq`), the calibrated checkpoint in float.
    pub float: FloatModel,
    /// The calibrated checkpoint.
    pub quantized: Option<QuantizedModel>,
    /// The teacher.
    pub teacher: Option<FloatModel>,
    /// The images to train on.
    pub train: Images,
    /// The images to validate on.
    pub val: Images,
    /// Of a backbone, how validation images are resized.
    pub sizing: Sizing,
    /// Highest rate of DropPath.
    pub drop_path: f64,
    /// Warnings, one sentence each: findings that are suspicious but not errors.
    pub warnings: Vec<String>,
}

impl Inputs {
    /// Loads the models and images, and checks them.
    pub(super) fn load(job: &Job) -> Result<Inputs, Error> {
        let loaded = job.cfg.as_ref().map(|cfg| load_config(cfg, &job.config_overrides())).transpose();
        let loaded = loaded.map_err(|error| of_key(job, "cfg")(error.into()))?;
        let train = Images::open(&job.data.path, split(job.data.split), job.data.limit, job.seed)
            .map_err(of_data(job, ["data.path", "data.split"]))?;
        let val_split = split(job.data.val_split);
        let val = Images::open(job.data.validation_path(), val_split, job.data.val_limit, job.seed)
            .map_err(of_data(job, ["data.val_path", "data.val_split"]))?;
        let quantized =
            job.model.as_deref().filter(|_| job.quant).map(|path| calibrated(job, path)).transpose()?;
        let options =
            open_options(job, quantized.as_ref().map(|(model, _)| (&model.config, &model.transform)))?;
        let (mut float, mut warnings) = start(job, loaded.as_ref(), &options, &train)?;
        job.check_network(&float.config)?;
        let quantized = match (quantized, &job.model) {
            (Some((model, file)), Some(path)) => {
                check_architecture(path, &model, &float)?;
                warnings.extend(file.warning(path).into_iter().chain(other_source(path, &model, &float)));
                Some(model)
            }
            _ => None,
        };
        let (train, val) = match float.config.is_backbone() {
            true => {
                check_held_out(job, &train, &val)?;
                (train, val)
            }
            false => {
                let labels = quantized.as_ref().and_then(|model| model.labels.as_deref());
                let (images, remark) = numbered([train, val], &float, labels)?;
                warnings.extend(remark);
                images.into()
            }
        };
        let sizing = job.validate.size.parse();
        let sizing = sizing.map_err(|e: swinq_data::ParseSizingError| {
            JobError::key(&job.name, "validate.size", e.to_string())
        })?;
        if let Some(model) = quantized.as_ref().filter(|model| is_refined(model)) {
            float.tensors = model.float_tensors();
        }
        let teacher = job.teacher_path().map(|path| teacher(job, path, &options, &float)).transpose()?;
        let teacher = teacher.map(|(model, said)| {
            warnings.extend(said.into_iter().filter(|_| job.teacher.is_some()));
            model
        });
        let drop_path = job.drop_path.or(loaded.map(|loaded| loaded.drop_path)).unwrap_or(0.0);
        Ok(Inputs { float, quantized, teacher, train, val, sizing, drop_path, warnings })
    }

    /// The model that the job starts from, without what calibration rewrote.
    pub(super) fn start(&self, job: &Job) -> Result<QuantizedModel, Error> {
        if self.quantized.as_ref().is_some_and(is_refined)
            && let Some(path) = &job.float
        {
            let options = open_options(job, Some((&self.float.config, &self.float.transform)))?;
            return Ok(QuantizedModel::from_float(load(job, &options, "float", path)?.0)?);
        }
        Ok(QuantizedModel::from_float(self.float.clone())?)
    }

    /// The identity of the training run: everything that its result depends on.
    pub(super) fn identity(&self, job: &Job) -> Result<Identity, Error> {
        let mut contents = vec![("data.path", self.train.list_sha256().unwrap_or_default())];
        if job.float.is_some() {
            contents.push(("float", self.float.source.sha256.clone()));
        }
        if let Some(teacher) = &self.teacher {
            contents.push(("teacher", teacher.source.sha256.clone()));
        }
        if let Some(path) = &job.model {
            contents.push(("model", sha256(&std::fs::read(path).map_err(Error::io(path))?)));
        }
        if job.cfg.is_some() {
            let read = (&self.float.config, &self.float.transform);
            contents
                .push(("cfg", sha256(&serde_json::to_vec(&read).expect("a configuration is plain data"))));
        }
        contents.push(("drop_path", self.drop_path.to_string()));
        let Transform { orientation, channel_order, .. } = self.float.transform;
        if orientation != Orientation::default() {
            contents.push(("orientation", orientation.to_string()));
        }
        if channel_order != ChannelOrder::default() {
            contents.push(("channels", channel_order.to_string()));
        }
        Ok(job.identity(&contents))
    }
}

/// The error of the job's key `key`, with keys of jobs in the place of options.
fn of_key(job: &Job, key: &'static str) -> impl FnOnce(Error) -> Error {
    move |source| {
        let said = source.to_string();
        let problem = in_keys(&said);
        match problem == said {
            true => Error::JobInput { key, source: Box::new(source) },
            false => JobError::key(&job.name, key, problem).into(),
        }
    }
}

/// The error of a data set whose path and split are stated by the keys `path` and `split`.
fn of_data(job: &Job, [path, split]: [&'static str; 2]) -> impl FnOnce(Error) -> Error {
    move |error| match &error {
        Error::Data(DataError::MissingSplit { .. }) => of_key(job, split)(error),
        _ => of_key(job, path)(error),
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

fn split(split: swinq_qat::job::Split) -> Split {
    match split {
        swinq_qat::job::Split::Train => Split::Train,
        swinq_qat::job::Split::Val => Split::Val,
    }
}

/// The options for reading the job's float checkpoints: as the backbone that the calibrated checkpoint
/// `model` is, if it is one, and with its rules for orientation and channels.
fn open_options(job: &Job, model: Option<(&SwinConfig, &Transform)>) -> Result<OpenOptions, Error> {
    let backbone = model.map(|(config, _)| config).filter(|config| config.is_backbone());
    let orientation = stated(job, "orientation", &job.orientation)?;
    let channel_order = stated(job, "channels", &job.channels)?;
    let stages = |config: &SwinConfig| config.outputs.iter().map(|output| output.stage).collect();
    Ok(OpenOptions {
        cfg: job.cfg.clone(),
        reading: LoadOptions {
            opts: job.config_overrides(),
            prefix: job.prefix.clone(),
            weights: job.weights.clone(),
            task: backbone.map(|_| Task::Features),
            outputs: backbone.map(stages),
            described_by: job.model.iter().filter(|_| backbone.is_some()).cloned().collect(),
            ..LoadOptions::default()
        },
        transform: stated(job, "transform", &job.transform)?,
        orientation: orientation.or(model.map(|(_, transform)| transform.orientation)),
        channel_order: channel_order.or(model.and_then(|(_, transform)| own_order(transform))),
        ..OpenOptions::default()
    })
}

/// The value of the job's key `key`, if it is set.
fn stated<T: FromStr<Err = String>>(
    job: &Job,
    key: &'static str,
    value: &Option<String>,
) -> Result<Option<T>, Error> {
    let parsed = value.as_deref().map(str::parse).transpose();
    Ok(parsed.map_err(|problem: String| JobError::key(&job.name, key, problem))?)
}

/// The order of three channels; `None` for other numbers of channels.
fn own_order(transform: &Transform) -> Option<ChannelOrder> {
    (transform.channels() == 3).then_some(transform.channel_order)
}

/// Loads the float model that the job's key `key` names, with the warnings about it.
fn load(
    job: &Job,
    options: &OpenOptions,
    key: &'static str,
    path: &Path,
) -> Result<(FloatModel, Vec<String>), Error> {
    let (model, warnings) = options.load_float_with_warnings(path).map_err(of_key(job, key))?;
    Ok((model, warnings.iter().map(|warning| in_keys(warning)).collect()))
}

/// The model that the training starts from, with the warnings about it.
fn start(
    job: &Job,
    loaded: Option<&LoadedConfig>,
    options: &OpenOptions,
    train: &Images,
) -> Result<(FloatModel, Vec<String>), Error> {
    let Some(path) = &job.float else {
        let loaded = loaded.ok_or_else(|| Error::argument("job", "sets neither `float` nor `cfg`"))?;
        return Ok((init::untrained(loaded, job.seed), Vec::new()));
    };
    let (mut model, warnings) = load(job, options, "float", path)?;
    if job.new_head && !model.config.is_backbone() {
        let Some((data, classes)) = train.dataset().and_then(|data| Some((data, data.num_classes()?))) else {
            let problem = format!("new_head: {}; a head needs labels to learn", train.describe());
            return Err(Error::Labels { problem });
        };
        let labels = data.class_names().map(<[String]>::to_vec);
        init::replace_head(&mut model, classes, labels, job.seed);
    }
    Ok((model, warnings))
}

/// The images with their classes numbered as `float` numbers them; `labels` are the class names of the
/// calibrated checkpoint.
fn numbered(
    images: [Images; 2],
    float: &FloatModel,
    labels: Option<&[String]>,
) -> Result<([Images; 2], Option<String>), Error> {
    images.iter().try_for_each(|images| check_classes(images, float))?;
    let labels = float.labels.as_deref().or(labels);
    let [train, val] = images;
    let (train, remark) = train.numbered_for(&float.config, labels, &float.source.dialect)?;
    let (val, val_remark) = val.numbered_for(&float.config, labels, &float.source.dialect)?;
    Ok(([train, val], remark.or(val_remark)))
}

/// Refuses validation images of a backbone that are training images too: a folder without splits is the same
/// for both.
fn check_held_out(job: &Job, train: &Images, val: &Images) -> Result<(), Error> {
    let names =
        |images: &Images| -> HashSet<String> { images.ids().iter().map(|id| images.name_of(id)).collect() };
    let same = |a: &Path, b: &Path| {
        a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
    };
    if !same(&job.data.path, job.data.validation_path()) {
        return Ok(());
    }
    let both = names(train).intersection(&names(val)).count();
    if both == 0 {
        return Ok(());
    }
    let problem = format!(
        "{both} of the {} validation images are trained on; give other images, or images in {} in the folders train/ and val/",
        val.len(),
        job.data.path.display()
    );
    Err(JobError::key(&job.name, "data.val_path", problem).into())
}

/// Refuses images with another number of named classes than the model's, because training on them would make
/// the model forget its own classes.
fn check_classes(images: &Images, model: &FloatModel) -> Result<(), Error> {
    let config = &model.config;
    let named = images.dataset().and_then(|data| data.class_names()).map(<[String]>::len);
    // Another problem than one class an image is refused by its name.
    if named.is_none_or(|classes| classes == config.num_classes) || config.scores() != Scores::Softmax {
        return Ok(());
    }
    let problem = format!(
        "{}, but {} has {}; is it the data the model was trained on? (a float training with new_head: true adapts a \
         model to other classes)",
        images.describe(),
        config.name,
        config.num_classes
    );
    Err(Error::Labels { problem })
}

/// Loads the calibrated checkpoint.
fn calibrated(job: &Job, path: &Path) -> Result<(QuantizedModel, FileInfo), Error> {
    let loaded = QuantizedModel::load_with_info(path);
    let (model, file) = loaded.map_err(|error| of_key(job, "model")(Error::open(path)(error)))?;
    if !model.is_quantized() {
        let problem = "quantizes nothing; calibrate it first, or train in float with quant: off".to_owned();
        return Err(QatError::Mismatch { file: path.display().to_string(), problem }.into());
    }
    Ok((model, file))
}

/// A network in words: its name, and its classes or outputs.
fn what(config: &SwinConfig) -> String {
    let outputs: Vec<&str> = config.outputs.iter().map(|output| &output.name[..]).collect();
    match config.is_backbone() {
        true => format!("{} with {}", config.name, outputs.join(", ")),
        false => format!("{} with {} classes", config.name, config.num_classes),
    }
}

/// Refuses a calibrated checkpoint with another architecture or preprocessing than `float`.
fn check_architecture(path: &Path, model: &QuantizedModel, float: &FloatModel) -> Result<(), Error> {
    let mismatch =
        |problem: String| Err(QatError::Mismatch { file: path.display().to_string(), problem }.into());
    if !model.config.is_stated_like(&float.config) {
        return mismatch(format!(
            "has the architecture {}, but float has {}, or their sizes, windows or outputs differ; name the checkpoint that was \
             calibrated from `float`",
            what(&model.config),
            what(&float.config)
        ));
    }
    // Images of a backbone are neither resized nor cropped by its preprocessing.
    let same = match float.config.is_backbone() {
        true => {
            let values =
                |t: &Transform| (t.mean.clone(), t.std.clone(), t.filter, t.orientation, t.channel_order);
            values(&model.transform) == values(&float.transform)
        }
        false => model.transform == float.transform,
    };
    if !same {
        return mismatch(format!(
            "was calibrated with the preprocessing {}, and float has {}; give the same cfg and transform to both",
            model.transform, float.transform
        ));
    }
    Ok(())
}

/// Whether the calibration of `model` rewrote its parameters, so that its ranges are not those of the float
/// model.
fn is_refined(model: &QuantizedModel) -> bool {
    model.sites.values().any(|state| state.spec.enabled && state.spec.ptq != Ptq::Basic)
}

/// A warning if `model` was not made from the weights of `float`.
fn other_source(path: &Path, model: &QuantizedModel, float: &FloatModel) -> Option<String> {
    let (made_from, given) = (&model.provenance.source, &float.source);
    (made_from.sha256 != given.sha256).then(|| {
        format!(
            "{} was made from {} ({:.12}), not from {} ({:.12}); its ranges may not suit these weights",
            path.display(),
            made_from.file,
            made_from.sha256,
            given.file,
            given.sha256
        )
    })
}

/// The teacher, with the warnings about it.
fn teacher(
    job: &Job,
    path: &Path,
    options: &OpenOptions,
    student: &FloatModel,
) -> Result<(FloatModel, Vec<String>), Error> {
    let (model, warnings) = load(job, options, "teacher", path)?;
    let refuse =
        |problem: String| Err(QatError::Teacher { teacher: path.display().to_string(), problem }.into());
    let (its, ours) = (&model.config, &student.config);
    if its.num_classes != ours.num_classes {
        return refuse(format!("it has {} classes, but the model has {}", its.num_classes, ours.num_classes));
    }
    let maps = |config: &SwinConfig| -> Vec<(String, usize)> {
        config.outputs.iter().map(|output| (output.name.clone(), config.embed_dim << output.stage)).collect()
    };
    if maps(its) != maps(ours) || (ours.is_backbone() && its.patch_size != ours.patch_size) {
        return refuse("its feature maps have other names or shapes than the model's".to_owned());
    }
    if !ours.is_backbone() && its.image_size != ours.image_size {
        return refuse(format!(
            "its input size is {} pixels, but the model's is {}",
            its.image_size, ours.image_size
        ));
    }
    let blocks = |config: &SwinConfig| (config.depths.clone(), config.embed_dim, config.patch_size);
    if job.loss.features > 0.0 && blocks(its) != blocks(ours) {
        return refuse(
            "its blocks' sizes differ from the model's, so loss.features cannot compare them; set it to 0"
                .to_owned(),
        );
    }
    Ok((model, warnings))
}
