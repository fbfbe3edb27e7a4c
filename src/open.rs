//! Models: they are opened from any format and shared by any number of engines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use swinq_model::checkpoint::{self, LoadOptions};
use swinq_model::quantized::{FileInfo, FloatModel};
use swinq_model::site::all_sites;
use swinq_model::text_file::{self, MAX_WRITTEN};
use swinq_model::{
    ChannelOrder, Dialect, Family, InMemory, LoadedConfig, Orientation, QuantizedModel, Site,
    StoredParameter, SwinConfig, Task, Transform, is_quantized_file, load_config, load_float_from_memory,
    load_float_with_remarks, shipped_configs,
};

use crate::engine::PackedWeights;
use crate::{Error, FileKind, preprocessing};

/// The most bytes of a file of class names; ImageNet-22k's have half of it.
const MAX_LABELS: u64 = MAX_WRITTEN;

/// How a checkpoint is read. Options have no effect on a quantized checkpoint, which contains its
/// configuration, unless they say so.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Configuration of a bare float checkpoint: a shipped name (`swin_tiny_patch4_window7_224`, see
    /// [`shipped_configs`](crate::shipped_configs)) or a YAML file in Microsoft's keys. A Hugging Face or
    /// timm directory needs none.
    pub cfg: Option<String>,
    /// The choice of a network in the checkpoint, and of its task. Its `opts` override keys of `cfg` above,
    /// such as `("MODEL.NUM_CLASSES", "10")`, and its own `cfg` counts if the one above is `None`. A
    /// quantized checkpoint must have the `task` and the `outputs` that are asked for.
    pub reading: LoadOptions,
    /// Preprocessing; `None` selects the preprocessing of the configuration or of the directory.
    pub transform: Option<Family>,
    /// Whether images are turned as their files state; `None` is the rule of the library that reads such a
    /// checkpoint, or of the quantized checkpoint. Applies to quantized checkpoints, too.
    pub orientation: Option<Orientation>,
    /// The order of three channels before the network; `None` is RGB, or that of the quantized checkpoint.
    /// Mean and deviation are in this order. Applies to quantized checkpoints, too.
    pub channel_order: Option<ChannelOrder>,
    /// File of class names, one per line, in the order of the classes. It also applies to quantized
    /// checkpoints.
    pub labels: Option<PathBuf>,
}

impl OpenOptions {
    /// The configuration that `cfg` and the overrides describe, else that of the reader; `None` if none is
    /// set.
    ///
    /// # Errors
    /// [`Error::OverridesWithoutConfig`]; an error for a configuration that cannot be read, or for an unknown
    /// key.
    pub fn configuration(&self) -> Result<Option<LoadedConfig>, Error> {
        let cfg = self.reading()?.cfg;
        if cfg.is_none() && !self.reading.opts.is_empty() {
            return Err(Error::OverridesWithoutConfig);
        }
        Ok(cfg)
    }

    /// The options of the reader of checkpoints.
    fn reading(&self) -> Result<LoadOptions, Error> {
        let mut reading = self.reading.clone();
        if let Some(name) = &self.cfg {
            reading.cfg = Some(load_config(name, &reading.opts)?);
        }
        reading.any_transform |= self.transform.is_some();
        Ok(reading)
    }

    /// Reads the float model at `path`, with the warnings about it.
    pub(crate) fn load_float_with_warnings(&self, path: &Path) -> Result<(FloatModel, Vec<String>), Error> {
        let reading = self.reading()?;
        let is_decided = reading.cfg.as_ref().is_some_and(|cfg| cfg.states_crop);
        let loaded = load_float_with_remarks(path, &reading).map_err(Error::open(path))?;
        let (mut model, mut warnings) = (loaded.model, loaded.remarks);
        match self.transform {
            Some(family) => {
                model.transform = preprocessing::transform(family, &model.config, &model.transform)?
            }
            // The preprocessing does not come from the model's own directory.
            None if reading.cfg.is_some() || loaded.description_found => {
                let other = other_preprocessing(path, &model).filter(|_| !is_decided);
                warnings.extend(other.or_else(|| replaced_preprocessing(path)));
            }
            None => {}
        }
        self.read_images(&mut model.transform)?;
        Ok((model, warnings))
    }

    /// Gives `transform` the orientation and the order of channels that are set.
    ///
    /// # Errors
    /// [`Error::Argument`] for an order of other than three channels.
    fn read_images(&self, transform: &mut Transform) -> Result<(), Error> {
        if let Some(orientation) = self.orientation {
            transform.orientation = orientation;
        }
        let Some(order) = self.channel_order else { return Ok(()) };
        if transform.channels() != 3 {
            let problem =
                format!("the model takes {} channels; an order is that of three", transform.channels());
            return Err(Error::argument("channels", problem));
        }
        transform.channel_order = order;
        Ok(())
    }

    /// Whether `model`, which states its task and its outputs, would have to be changed to be what is asked
    /// for.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is quantized, so that it cannot be changed.
    fn changes(&self, path: &Path, model: &QuantizedModel) -> Result<bool, Error> {
        let stated = model.config.task;
        let other_task = self.reading.task.is_some_and(|task| task != stated);
        if !model.is_quantized() || !(other_task || self.reading.outputs.is_some()) {
            return Ok(other_task || self.reading.outputs.is_some());
        }
        let own: Vec<usize> = model.config.outputs.iter().map(|output| output.stage).collect();
        if !other_task && self.reading.outputs.as_ref() == Some(&own) {
            return Ok(false);
        }
        let path = path.display();
        match stated {
            Task::Classification => {
                let problem = format!(
                    "{path} is a quantized classifier, which has no feature maps; make a backbone of its float checkpoint \
                     with `swinq calibrate MODEL --task features`, or give the float checkpoint itself"
                );
                Err(Error::argument("task", problem))
            }
            Task::Features if other_task => {
                let problem = format!("{path} is a quantized backbone, which has no classes");
                Err(Error::argument("task", problem))
            }
            Task::Features => {
                let names: Vec<&str> = model.config.outputs.iter().map(|output| &output.name[..]).collect();
                let problem = format!(
                    "{path} is quantized and has the outputs {}; leave --outputs out, or give the \
                     float checkpoint",
                    names.join(", ")
                );
                Err(Error::argument("outputs", problem))
            }
        }
    }

    /// Gives `model` the class names of `labels`, if set.
    fn name_classes(&self, model: &mut QuantizedModel) -> Result<(), Error> {
        if let Some(names) = self.class_names(model.config.num_classes)? {
            model.labels = Some(names);
            model.provenance.labels_from = self.labels.as_ref().map(|path| path.display().to_string());
        }
        Ok(())
    }

    /// The class names in the file of `labels`, for `classes` classes.
    fn class_names(&self, classes: usize) -> Result<Option<Vec<String>>, Error> {
        let Some(path) = &self.labels else { return Ok(None) };
        let text = text_file::read(path, MAX_LABELS).map_err(Error::io(path))?;
        let names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        let empty = names.iter().position(String::is_empty).map(|line| format!("line {} is empty", line + 1));
        let other = (names.len() != classes)
            .then(|| format!("has {} names, but the model has {classes} classes", names.len()));
        match other.or(empty) {
            Some(problem) => {
                let problem = format!("{} {problem}; write one name per line", path.display());
                Err(Error::argument("labels", problem))
            }
            None => Ok(Some(names)),
        }
    }
}

/// A Swin, classifier or backbone, float or quantized. A clone is another handle of the same model.
///
/// All engines of one model ([`Model::engine`]) share its packed weights.
///
/// ```no_run
/// use swinq::{EngineOptions, Model};
///
/// let model = Model::open("swin_t.int8.safetensors")?;
/// let engine = model.engine(&EngineOptions::default())?;
/// # Ok::<(), swinq::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: QuantizedModel,
    /// Whether the model was read from a checkpoint that contains its configuration.
    describes_itself: bool,
    /// The version and the hash of the file, if the model was read from one in swinq's format.
    file: Option<FileInfo>,
    /// Findings that are suspicious but not errors, one sentence each.
    warnings: Vec<String>,
    packed: PackedWeights,
}

impl Inner {
    /// A model that was not read from a file in swinq's format.
    fn new(model: QuantizedModel, describes_itself: bool) -> Inner {
        let packed = PackedWeights::default();
        Inner { model, describes_itself, file: None, warnings: Vec::new(), packed }
    }
}

/// Whether `config` has the shape and input size of an official Swin, with any number of classes.
fn is_official(config: &SwinConfig) -> bool {
    let shape = |config: &SwinConfig| {
        let SwinConfig { image_size, patch_size, embed_dim, window_size, depths, .. } = config;
        (*image_size, *patch_size, *embed_dim, window_size.clone(), depths.clone())
    };
    let shipped = shipped_configs().filter_map(|name| load_config(name, &[]).ok());
    shipped.into_iter().any(|official| shape(&official.config) == shape(config))
}

/// A warning if the preprocessing of `model` is not that of the family whose names its tensors have.
fn other_preprocessing(path: &Path, model: &FloatModel) -> Option<String> {
    let family = model.source.dialect.parse().ok().and_then(Dialect::preprocessing)?;
    // A model that the family does not have has no preprocessing of its own.
    if !is_official(&model.config) {
        return None;
    }
    let own = preprocessing::transform(family, &model.config, &model.transform).ok()?;
    let used = &model.transform;
    let same = match model.config.task {
        Task::Classification => {
            let Transform { family, orientation, channel_order, .. } = used.clone();
            Transform { family, orientation, channel_order, ..own.clone() } == *used
        }
        // Its images have any size.
        Task::Features => (&own.mean, &own.std) == (&used.mean, &used.std),
    };
    // Values that both have in common need not be said.
    let values = (&own.mean, &own.std) != (&used.mean, &used.std);
    let brief = |transform: &Transform| {
        let text = transform.to_string();
        let end = text.find(", mean").filter(|_| !values).unwrap_or(text.len());
        text[..end].to_owned()
    };
    (!same).then(|| {
        format!(
            "{} has the names of {}: {}. The configuration's is used: {}. State --transform {family} or --transform ms to decide",
            path.display(),
            model.source.dialect,
            brief(&own),
            brief(used)
        )
    })
}

/// A warning if the model at `path` is a directory that describes its own preprocessing, which the
/// configuration's replaces.
fn replaced_preprocessing(path: &Path) -> Option<String> {
    let name =
        ["preprocessor_config.json", "config.json"].into_iter().find(|name| path.join(name).is_file())?;
    Some(format!(
        "{}: the configuration given replaces the preprocessing that {name} describes; leave --cfg away to use the \
         directory's own, or state --transform",
        path.display()
    ))
}

impl Model {
    /// Opens the model at `path`: a quantized checkpoint, or a Hugging Face or timm directory. A bare float
    /// checkpoint needs [`Model::open_with`].
    ///
    /// # Errors
    /// The errors of [`Model::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, &OpenOptions::default())
    }

    /// Opens the model at `path`: a quantized checkpoint, a float checkpoint (`.pth`, `.pt`, `.bin`, `.pkl`,
    /// `.safetensors`) or a Hugging Face or timm directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Argument`] for a task or outputs that a quantized checkpoint does not
    /// have; [`Error::Open`] for a file that is damaged, of another kind, or does not fit its configuration;
    /// the errors of [`OpenOptions::configuration`]; an error if the family has no transform for the model.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, Error> {
        let path = path.as_ref();
        if !path.exists() {
            return Err(Error::NotFound { path: path.to_owned() });
        }
        if is_quantized_file(path) {
            let (mut model, file) = QuantizedModel::load_with_info(path).map_err(Error::open(path))?;
            if options.changes(path, &model)? {
                return Model::open_float(path, options);
            }
            options.name_classes(&mut model)?;
            options.read_images(&mut model.transform)?;
            let warnings = file.warning(path).into_iter().collect();
            return Ok(Model::of(Inner { file: Some(file), warnings, ..Inner::new(model, true) }));
        }
        Model::open_float(path, options)
    }

    /// Opens a float model, to calibrate or to train it. Refuses a quantized checkpoint.
    ///
    /// # Errors
    /// The errors of [`Model::open_with`].
    pub fn open_float(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, Error> {
        let (model, warnings) = options.load_float_with_warnings(path.as_ref())?;
        let mut model = QuantizedModel::from_float(model)?;
        options.name_classes(&mut model)?;
        Ok(Model::of(Inner { warnings, ..Inner::new(model, false) }))
    }

    /// A float model whose parameters another library holds in memory, such as a module of PyTorch.
    ///
    /// # Errors
    /// [`Error::Open`] for parameters that are missing, unexpected or damaged, or that do not fit the
    /// description; the errors of [`OpenOptions::configuration`]; an error if the family has no transform for
    /// the model.
    pub fn from_memory(model: &InMemory<'_>, options: &OpenOptions) -> Result<Model, Error> {
        Ok(Model::from_memory_with_names(model, options)?.0)
    }

    /// [`Model::from_memory`], with the tensors that are parameters, so that a training can read them from
    /// where they are.
    ///
    /// # Errors
    /// Those of [`Model::from_memory`].
    pub fn from_memory_with_names(
        model: &InMemory<'_>,
        options: &OpenOptions,
    ) -> Result<(Model, Vec<StoredParameter>), Error> {
        let path = Path::new(&model.name);
        let loaded = load_float_from_memory(model, &options.reading()?).map_err(Error::open(path))?;
        let mut float = loaded.model;
        if let Some(family) = options.transform {
            float.transform = preprocessing::transform(family, &float.config, &float.transform)?;
        }
        options.read_images(&mut float.transform)?;
        let mut quantized = QuantizedModel::from_float(float)?;
        options.name_classes(&mut quantized)?;
        let model = Model::of(Inner { warnings: loaded.remarks, ..Inner::new(quantized, false) });
        Ok((model, loaded.stored))
    }

    /// A float model with random weights, the architecture and preprocessing that `options` give, for
    /// measurements. Their dialect decides the rule for grids that windows do not divide, as it does for a
    /// checkpoint.
    ///
    /// # Errors
    /// [`Error::Argument`] without a `cfg`, and for a backbone; the errors of [`OpenOptions::configuration`];
    /// an architecture that is not valid, or for which the family has no transform.
    pub fn random_with(options: &OpenOptions, seed: u64) -> Result<Model, Error> {
        let missing =
            || Error::argument("cfg", "random weights need a configuration, which gives their shapes");
        let mut config = options.configuration()?.ok_or_else(missing)?;
        let reading = &options.reading;
        if reading.task.unwrap_or(config.task()) == Task::Features || reading.outputs.is_some() {
            return Err(Error::argument(
                "task",
                "random weights are those of a classifier, and a backbone is asked for",
            ));
        }
        if let Some(dialect) = reading.dialect {
            config.config.window_policy = dialect.window_policy(config.config.version);
        }
        config.config.validate()?;
        let mut model = checkpoint::random_model(&config, seed);
        if let Some(family) = options.transform {
            model.transform = preprocessing::transform(family, &model.config, &model.transform)?;
        }
        options.read_images(&mut model.transform)?;
        let mut model = QuantizedModel::from_float(model)?;
        options.name_classes(&mut model)?;
        Ok(Model::checked(model, false))
    }

    /// A float model with the architecture `config` and random weights, for measurements and tests.
    ///
    /// # Errors
    /// An error for a configuration that is not a valid architecture.
    pub fn random(config: &LoadedConfig, seed: u64) -> Result<Model, Error> {
        config.config.validate()?;
        Model::from_float(checkpoint::random_model(config, seed))
    }

    /// Wraps a float model; every site is off.
    ///
    /// # Errors
    /// An error for a parameter that does not fit the configuration or is not finite.
    pub fn from_float(model: FloatModel) -> Result<Model, Error> {
        Ok(Model::checked(QuantizedModel::from_float(model)?, false))
    }

    /// Wraps a model that was made in memory.
    ///
    /// # Errors
    /// The errors of [`QuantizedModel::validate`].
    pub fn from_quantized(model: QuantizedModel) -> Result<Model, Error> {
        model.validate()?;
        Ok(Model::checked(model, true))
    }

    /// `model`, which has passed its checks.
    fn checked(model: QuantizedModel, describes_itself: bool) -> Model {
        Model::of(Inner::new(model, describes_itself))
    }

    fn of(inner: Inner) -> Model {
        Model { inner: Arc::new(inner) }
    }

    /// Findings about the model's file that are suspicious but not errors, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The version and the hash of the file, if the model was read from a file in swinq's format.
    pub fn file_info(&self) -> Option<&FileInfo> {
        self.inner.file.as_ref()
    }

    /// Class names by class index; `None` if they are not known.
    pub fn labels(&self) -> Option<&[String]> {
        self.inner.model.labels.as_deref()
    }

    /// The naming convention of the float file that the model was made from.
    pub fn dialect(&self) -> &str {
        &self.inner.model.provenance.source.dialect
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.inner.model.config
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        &self.inner.model.transform
    }

    /// Refuses a backbone, which has no classes.
    ///
    /// # Errors
    /// [`Error::Backbone`].
    pub fn check_classifier(&self) -> Result<(), Error> {
        Error::check_classifier(self.config())
    }

    /// Every site of the model: the tensors that may be quantized.
    pub fn sites(&self) -> Vec<Site> {
        all_sites(self.config())
    }

    /// Whether any site is quantized.
    pub fn is_quantized(&self) -> bool {
        self.inner.model.is_quantized()
    }

    /// Whether the model's file contains its configuration, as checkpoints in swinq's format do. If so,
    /// [`OpenOptions`] had no effect, except those that apply to quantized checkpoints, too.
    pub fn describes_itself(&self) -> bool {
        self.inner.describes_itself
    }

    /// The complete model: recipe, sites, parameters, provenance.
    pub fn as_quantized(&self) -> &QuantizedModel {
        &self.inner.model
    }

    /// Writes the model as a checkpoint that contains its configuration, so that [`Model::open`] can read it.
    /// The file is written completely or not at all.
    ///
    /// # Errors
    /// [`Error::Argument`] for a name with the ending of another format, such as `.onnx`; an error if it
    /// cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        FileKind::Safetensors
            .check(path)
            .map_err(|problem| Error::argument("path", format!("{}: {problem}", path.display())))?;
        Ok(self.inner.model.save(path)?)
    }

    /// Whether `other` is a handle of the same model.
    pub fn is_same(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn packed(&self) -> &PackedWeights {
        &self.inner.packed
    }

    /// The complete model. Copies the weights only if other handles of the model exist.
    pub fn into_quantized(self) -> QuantizedModel {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner.model,
            Err(shared) => shared.model.clone(),
        }
    }

    /// The float model. Copies the weights only if other handles of the model exist.
    ///
    /// # Errors
    /// [`Error::Argument`] for a quantized model.
    #[cfg(feature = "float")]
    pub(crate) fn into_float(self) -> Result<FloatModel, Error> {
        let model = self.into_quantized();
        let name = model.config.name.clone();
        model.into_float().ok_or_else(|| {
            let problem = format!("{name} is quantized already; give the float model that it was made from");
            Error::argument("model", problem)
        })
    }
}
