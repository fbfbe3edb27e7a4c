//! The description of a bare file of weights: the configuration that was given, a quantized checkpoint that
//! was made from the file, or the shipped configuration whose parameters have the same shapes.

use std::path::{Path, PathBuf};

use swinq_numerics::Size;

use super::checks;
use super::coordinates::{self, Coordinates};
use super::dialect::Naming;
use super::safetensors::stated_document;
use super::shapes::Shapes;
use super::{Description, Labels, LoadOptions, is_quantized_file};
use crate::arch::{SwinConfig, SwinVersion, Task, WindowPolicy};
use crate::batch::Transform;
use crate::config::{LoadedConfig, load_config, override_config, shipped_configs};
use crate::error::ModelError;
use crate::params::{headless, parameters};
use crate::quantized::QuantizedModel;
use crate::tensor::StateDict;

/// The most files in the folder of the weights that are looked at.
const MAX_BESIDE: usize = 256;

/// A file of weights, whose tensors are not looked at.
pub(super) struct Bytes<'a> {
    /// The file, or the name of a model in memory.
    pub path: &'a Path,
    /// The folder whose quantized checkpoints may describe the file; `None` for a model in memory.
    pub folder: Option<&'a Path>,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
}

/// The tensors of a bare file of weights.
pub(super) struct Bare<'a> {
    pub path: &'a Path,
    pub folder: Option<&'a Path>,
    pub naming: &'a Naming,
    /// Its parameters under Microsoft's names.
    pub tensors: &'a StateDict,
    /// Its buffers of relative positions.
    pub coordinates: &'a [Coordinates],
    /// The places of its absolute position embedding, if it has one.
    pub places: Option<Size>,
}

impl Bare<'_> {
    /// The description that the shapes of the tensors give for `task`, with the overrides `opts`.
    ///
    /// # Errors
    /// [`ModelError::File`] that says what the file does not tell.
    pub(super) fn describe(&self, task: Task, opts: &[(String, String)]) -> Result<Description, ModelError> {
        match task {
            Task::Classification => self.classifier(opts),
            Task::Features => self.backbone(opts),
        }
    }

    fn backbone(&self, opts: &[(String, String)]) -> Result<Description, ModelError> {
        if let Some(problem) = checks::several_windows(self.tensors) {
            return Err(ModelError::file(self.path, problem));
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let shapes = Shapes::of(self.tensors, self.naming.version);
        let policy = self.naming.window_policy(WindowPolicy::Microsoft);
        let config = shapes.backbone(&stem, policy, self.places).ok_or_else(|| self.unknown(&[]))?;
        let transform = Transform::microsoft(config.image_size, config.in_chans, false);
        let (config, transform) = override_config(&config, &transform, opts)?;
        let note = format!(
            "{}: no --cfg; the architecture follows from the shapes of its tensors, and mean and deviation are those of \
             ImageNet",
            self.path.display()
        );
        let described = Description::new(config, transform);
        Ok(Description { note: Some(note), orientation_stated: false, ..described })
    }

    fn classifier(&self, opts: &[(String, String)]) -> Result<Description, ModelError> {
        if !self.tensors.contains_key("head.weight") && self.tensors.contains_key("patch_embed.proj.weight") {
            return Err(ModelError::tensor("head.weight", headless()));
        }
        if let Some(problem) = checks::several_windows(self.tensors) {
            return Err(ModelError::file(self.path, problem));
        }
        let fitting = self.shipped(opts);
        let [cfg] = fitting.as_slice() else { return Err(self.unknown(&fitting)) };
        let note = format!(
            "{}: no --cfg; its tensors are those of {} with {} classes, which is used; the input size, {} pixels, \
             and the preprocessing are not in the file",
            self.path.display(),
            cfg.origin,
            cfg.config.num_classes,
            cfg.config.image_size.short()
        );
        Ok(Description { note: Some(note), ..described(cfg) })
    }

    /// The shipped configurations with the overrides `opts` that have exactly these parameters, with any
    /// number of classes. Those that differ in their names only count once.
    fn shipped(&self, opts: &[(String, String)]) -> Vec<LoadedConfig> {
        let classes = self.tensors.get("head.weight").map_or(0, |head| head.shape[0]);
        let opts = [&[("MODEL.NUM_CLASSES".to_owned(), classes.to_string())], opts].concat();
        let fits = |config: &SwinConfig| {
            let expected = parameters(config);
            let same = |(name, shape): &(String, Vec<usize>)| {
                self.tensors.get(name).is_some_and(|tensor| tensor.shape == *shape)
            };
            expected.len() == self.tensors.len()
                && expected.iter().all(same)
                && coordinates::fit(config, self.coordinates)
        };
        let unnamed = |cfg: &LoadedConfig| {
            let config = SwinConfig { name: String::new(), ..cfg.config.clone() };
            (config, cfg.transform.clone())
        };
        let mut found: Vec<LoadedConfig> = Vec::new();
        for name in shipped_configs() {
            let Ok(mut cfg) = load_config(name, &opts) else { continue };
            if cfg.config.version != self.naming.version {
                continue;
            }
            cfg.config.window_policy = self.naming.dialect.window_policy(cfg.config.version);
            cfg.config = coordinates::decided(cfg.config, self.coordinates);
            if cfg.config.validate().is_ok()
                && fits(&cfg.config)
                && found.iter().all(|known| unnamed(known) != unnamed(&cfg))
            {
                found.push(cfg);
            }
        }
        found
    }

    fn unknown(&self, fitting: &[LoadedConfig]) -> ModelError {
        let mut problem = if fitting.is_empty() {
            format!(
                "holds weights in {} names, but no architecture, and no shipped configuration has their shapes. {}; pass \
                 --cfg FILE.yaml with all of these, or --cfg NAME and --opts for the values in which it differs",
                self.naming.dialect,
                Shapes::of(self.tensors, self.naming.version).facts(&coordinates::windows(self.coordinates))
            )
        } else {
            let names: Vec<&str> = fitting.iter().map(|cfg| cfg.origin.as_str()).collect();
            format!(
                "holds weights in {} names, but no architecture; its tensors fit {}, which differ in {} or the \
                 preprocessing: pass one of them as --cfg",
                self.naming.dialect,
                names.join(" and "),
                if self.naming.version == SwinVersion::V1 {
                    "the input size"
                } else {
                    "the input size, the window"
                }
            )
        };
        if self.folder.is_some_and(|folder| folder.join("config.json").is_file()) {
            problem += "; or pass its folder, which has a config.json, instead of the file";
        }
        ModelError::file(self.path, problem)
    }
}

impl Bytes<'_> {
    /// The description in the quantized checkpoints that were made from this file.
    ///
    /// # Errors
    /// [`ModelError::File`] if they describe it differently.
    pub(super) fn describe(&self, options: &LoadOptions) -> Result<Option<Description>, ModelError> {
        let Some((made, file, remark)) = self.quantized(options)? else { return Ok(None) };
        let (config, transform) = override_config(&made.config, &made.transform, &options.opts)?;
        let what = match options.any_transform {
            true => "the architecture is that",
            false => "the architecture and the preprocessing are those",
        };
        let path = self.path.display();
        let note = format!("{path}: {what} of {}, which was made from it{remark}", file.display());
        Ok(Some(Description { config, transform, note: Some(note), ..made }))
    }

    /// The description in the quantized checkpoints that were made from this file, the first of these
    /// checkpoints, and a remark on differences between them.
    ///
    /// # Errors
    /// [`ModelError::File`] if they describe it differently.
    fn quantized(
        &self,
        options: &LoadOptions,
    ) -> Result<Option<(Description, PathBuf, &'static str)>, ModelError> {
        let mut made = self.made_from_this(&options.described_by);
        if made.is_empty() {
            made = self.made_from_this(&self.beside());
        }
        // A file may be read as both a classifier and a backbone.
        let task = options.task.unwrap_or_default();
        let mut made = made.into_iter().filter(|(made, _)| made.config.task == task);
        let Some((mut first, file)) = made.next() else { return Ok(None) };
        let mut remark = "";
        for (other, other_file) in made {
            if let Some(problem) = first.difference(&other, options.any_transform) {
                let problem = format!(
                    "{} and {} were made from it, but with {problem} to decide, or move one of them to another folder",
                    file.display(),
                    other_file.display()
                );
                return Err(ModelError::file(self.path, problem));
            }
            match (&first.labels, other.labels) {
                (Some(own), Some(others)) if own.names != others.names => {
                    remark = "; other checkpoints that were made from it have other class names";
                }
                (None, others) => first.labels = others,
                _ => {}
            }
        }
        Ok(Some((first, file, remark)))
    }

    /// The safetensors files in the folder of this file, in sorted order.
    fn beside(&self) -> Vec<PathBuf> {
        let Some(folder) = self.folder else { return Vec::new() };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = folder.read_dir().into_iter().flatten().take(MAX_BESIDE).flatten();
        let mut beside: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        beside.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        beside.sort();
        beside
    }

    /// The descriptions in those of `paths` that are quantized checkpoints made from this file. Of
    /// checkpoints that state the same description, the first that is not damaged is read.
    fn made_from_this(&self, paths: &[PathBuf]) -> Vec<(Description, PathBuf)> {
        let mut found = Vec::new();
        let mut known: Vec<serde_json::Value> = Vec::new();
        for path in paths.iter().filter(|path| path.is_file() && is_quantized_file(path)) {
            let Some(document) = stated_document(path) else { continue };
            let sha256 = document.pointer("/provenance/source/sha256").and_then(|value| value.as_str());
            let stated = ["architecture", "transform", "labels"].map(|key| document[key].clone()).into();
            if sha256 != Some(&self.sha256) || known.contains(&stated) {
                continue;
            }
            // A damaged file describes nothing.
            if let Ok(QuantizedModel { config, transform, labels, provenance, .. }) =
                QuantizedModel::load(path)
            {
                let labels = labels.map(|names| Labels { names, from: provenance.labels_from });
                // The outputs of the checkpoint are not the only ones that the file can have.
                let described = Description { labels, ..Description::new(config, transform) };
                found.push((described, path.clone()));
                known.push(stated);
            }
        }
        found
    }
}

impl Description {
    /// In what `other` differs from this description, if it does, and the options that decide. Names of
    /// configurations do not count, nor do transforms if `any_transform`.
    fn difference(&self, other: &Description, any_transform: bool) -> Option<String> {
        if !self.config.is_stated_like(&other.config) {
            return Some("different architectures; pass --cfg NAME or --cfg FILE.yaml".to_owned());
        }
        (self.transform != other.transform && !any_transform).then(|| {
            format!(
                "different preprocessing ({}; {}); pass --transform ms, timm, torchvision or hf, or --cfg NAME or --cfg \
                 FILE.yaml",
                self.transform, other.transform
            )
        })
    }
}

/// The description that the user gives.
pub(super) fn described(cfg: &LoadedConfig) -> Description {
    let (config, transform, stages) = (cfg.config.clone(), cfg.transform.clone(), cfg.stages.clone());
    Description { stages, orientation_stated: false, ..Description::new(config, transform) }
}
