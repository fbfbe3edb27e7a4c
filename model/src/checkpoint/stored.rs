//! The model that stored tensors are, in three steps: the facts before the network is found, the network, and
//! its description.

use swinq_numerics::Size;

use super::coordinates::{self, Coordinates};
use super::describe::{self, Bare, Bytes};
use super::dialect::Naming;
use super::network::Network;
use super::raw::RawDict;
use super::{Description, LoadOptions, Loaded, backbone, checks, masks, parameters, shown};
use crate::arch::{PositionSizes, SwinConfig, Task, WindowPolicy};
use crate::config::check_sizes;
use crate::error::ModelError;
use crate::params::check_parameters;
use crate::quantized::{FloatModel, Source};
use crate::tensor::StateDict;

/// The tensors of a checkpoint, and where they come from.
pub(super) struct Stored<'a> {
    pub file: Bytes<'a>,
    pub tensors: RawDict<'a>,
}

impl Stored<'_> {
    /// The model with these tensors. `described` is the description in the files of its directory.
    pub(super) fn model(
        self,
        described: Option<Description>,
        options: &LoadOptions,
    ) -> Result<Loaded, ModelError> {
        let Stored { file, tensors } = self;
        let known = Known::before_network(&file, described, options)?;
        let found = Found::among(&file, tensors, known.task, options)?;
        let description = known.description(&file, &found, options)?;
        found.model(file, description, options)
    }
}

/// The facts about a model before its network is found.
struct Known {
    /// The description in its directory, else that of the caller, else that of a quantized checkpoint that
    /// was made from the file.
    description: Option<Description>,
    /// The task as which the network is read.
    task: Task,
}

impl Known {
    fn before_network(
        file: &Bytes<'_>,
        described: Option<Description>,
        options: &LoadOptions,
    ) -> Result<Known, ModelError> {
        let given = described.or_else(|| options.cfg.as_ref().map(describe::described));
        let description = match given {
            // Most backbones are described by their shapes.
            None if options.task != Some(Task::Features) => file.describe(options)?,
            given => given,
        };
        let stated = description.as_ref().map(Description::task);
        let task = options.task.or(stated).unwrap_or_default();
        options.check_outputs(task)?;
        Ok(Known { description, task })
    }

    /// The description of the network `found`: the one that is known, else that of the shapes of its tensors,
    /// else, for a backbone, that of a quantized checkpoint that was made from the file.
    fn description(
        self,
        file: &Bytes<'_>,
        found: &Found<'_>,
        options: &LoadOptions,
    ) -> Result<Description, ModelError> {
        if let Some(known) = self.description {
            return Ok(known);
        }
        match (found.bare(file).describe(self.task, &options.opts), self.task) {
            (Err(error), Task::Features) => file.describe(options)?.ok_or(error),
            (described, _) => described,
        }
    }
}

/// The network that was found among the tensors of a checkpoint, and their values.
struct Found<'a> {
    network: Network<'a>,
    /// The task as which the network is read.
    task: Task,
    /// Its parameters under Microsoft's names.
    tensors: StateDict,
    /// Its buffers of relative positions.
    coordinates: Vec<Coordinates>,
    /// The places of its absolute position embedding, if it has one with places in rows and columns.
    places: Option<Size>,
}

impl<'a> Found<'a> {
    fn among(
        file: &Bytes<'_>,
        tensors: RawDict<'a>,
        task: Task,
        options: &LoadOptions,
    ) -> Result<Found<'a>, ModelError> {
        let network = Network::find(file.path, tensors, task, options.dialect, options.prefix.as_deref())?;
        let tensors = parameters::read(&network)?;
        let coordinates = coordinates::read(&network)?;
        let places = parameters::stored_places(&network);
        Ok(Found { network, task, tensors, coordinates, places })
    }

    /// The network as that of `file`, which does not describe it.
    fn bare<'b>(&'b self, file: &'b Bytes<'_>) -> Bare<'b> {
        Bare {
            path: file.path,
            folder: file.folder,
            naming: &self.network.naming,
            tensors: &self.tensors,
            coordinates: &self.coordinates,
            places: self.places,
        }
    }

    /// The model that `description` makes of the network.
    fn model(
        mut self,
        file: Bytes<'_>,
        description: Description,
        options: &LoadOptions,
    ) -> Result<Loaded, ModelError> {
        let Description { config, mut transform, labels, stages, remark, note, orientation_stated } =
            description;
        let (dialect, task) = (self.network.naming.dialect, self.task);
        if !orientation_stated && !config.takes_tokens() {
            transform.orientation = dialect.orientation(task);
        }
        let (config, left_out) = self.with_outputs(config, stages.as_deref(), options)?;
        let (config, divided) = self.decided(config, options.window_policy)?;
        self.check(&config).map_err(|error| self.network.with_stored_name(error))?;
        let masked = masks::remark(&self.network, &config).filter(|_| task == Task::Classification);
        let mut stored = parameters::stored(&self.network);
        stored.retain(|stored| self.tensors.contains_key(&stored.parameter));
        let description_found = note.is_some();
        let own = left_out.into_iter().chain(remark).chain(divided).chain(masked);
        let own = own.map(|remark| format!("{}: {remark}", file.path.display()));
        let remarks = note.into_iter().chain(self.network.remarks).chain(own).collect();
        let labels = labels.filter(|_| task == Task::Classification);
        let (labels, labels_from) = labels.map_or((None, None), |labels| (Some(labels.names), labels.from));
        let source = Source { file: shown(file.path), sha256: file.sha256, dialect: dialect.to_string() };
        let model = FloatModel { config, transform, labels, labels_from, tensors: self.tensors, source };
        Ok(Loaded { model, description_found, remarks, stored })
    }

    /// `config` with the outputs of a backbone, and remarks on left out tensors: parameters of no output are
    /// removed. `stages` are the outputs that its description states.
    fn with_outputs(
        &mut self,
        config: SwinConfig,
        stages: Option<&[usize]>,
        options: &LoadOptions,
    ) -> Result<(SwinConfig, Vec<String>), ModelError> {
        checks::version(&config, self.network.naming.version)?;
        match self.task {
            Task::Classification => Ok((config, Vec::new())),
            Task::Features => backbone::of(config, options.outputs.as_deref(), stages, &mut self.tensors),
        }
    }

    /// `config` as the dialect and the buffers decide it, and a remark on the buffers. `policy` is the rule
    /// for windows, if it is known.
    fn decided(
        &self,
        config: SwinConfig,
        policy: Option<WindowPolicy>,
    ) -> Result<(SwinConfig, Option<String>), ModelError> {
        let naming = &self.network.naming;
        let silent = apply_dialect(config, naming, policy)?;
        let config = coordinates::decided(silent.clone(), &self.coordinates);
        let divided = coordinates::remark(&silent, &config);
        let ape_sizes = position_sizes(&config, naming, self.places);
        Ok((SwinConfig { ape_sizes, ..config }, divided))
    }

    /// Refuses tensors that contradict `config`.
    fn check(&self, config: &SwinConfig) -> Result<(), ModelError> {
        checks::tables(config, &self.tensors)?;
        coordinates::check(config, &self.coordinates)?;
        checks::places(config, self.places)?;
        check_parameters(config, &self.tensors)
    }
}

/// Sets the window policy, `known` or the dialect's, and the dialect's mask, and checks the configuration.
fn apply_dialect(
    mut config: SwinConfig,
    naming: &Naming,
    known: Option<WindowPolicy>,
) -> Result<SwinConfig, ModelError> {
    let dialect = naming.dialect;
    config.window_policy = known.unwrap_or_else(|| naming.window_policy(config.window_policy));
    config.mask = dialect.mask(config.version);
    check_sizes(&config)?;
    config.validate()?;
    if config.qk_scale.is_some()
        && !matches!(config.window_policy, WindowPolicy::Microsoft | WindowPolicy::Restoration)
    {
        let problem = format!("models in {dialect} naming have no such setting; remove it");
        return Err(ModelError::config("MODEL.SWIN.QK_SCALE", problem));
    }
    Ok(config)
}

/// The image sizes that the absolute position embedding of `config` fits. Detectors store the `places` as a
/// map, and resize it.
fn position_sizes(config: &SwinConfig, naming: &Naming, places: Option<Size>) -> PositionSizes {
    match (config.ape, places) {
        (true, Some(_)) => PositionSizes::Bicubic,
        (true, None) if config.own_patches().side().is_some() => {
            naming.dialect.position_sizes(config.version)
        }
        _ => PositionSizes::Own,
    }
}
