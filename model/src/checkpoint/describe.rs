//! The description of a bare file of weights: the configuration that was given, a quantized checkpoint that was made from
//! the file, or the shipped configuration whose parameters have the same shapes.

use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::safetensors::stated_document;
use super::{Description, LoadOptions, is_quantized_file};
use crate::arch::{SwinConfig, SwinVersion};
use crate::config::{LoadedConfig, load_config, shipped_configs};
use crate::error::ModelError;
use crate::params::{depths, parameters};
use crate::quantized::QuantizedModel;
use crate::tensor::StateDict;

/// The most files in the folder of the weights that are looked at.
const MAX_BESIDE: usize = 256;

/// A bare file of weights.
pub(super) struct Bare<'a> {
    pub path: &'a Path,
    pub dialect: Dialect,
    pub version: SwinVersion,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: &'a str,
    /// Its parameters under Microsoft's names.
    pub tensors: &'a StateDict,
    /// The windows that its buffers tell, by stage.
    pub windows: &'a [Option<usize>],
}

impl Bare<'_> {
    /// The description, and a remark on where it comes from if `options` do not give it.
    ///
    /// # Errors
    /// [`ModelError::File`] that says what the file does not tell.
    pub(super) fn describe(
        &self,
        options: &LoadOptions,
    ) -> Result<(Description, Option<String>), ModelError> {
        if let Some(cfg) = &options.cfg {
            return Ok((described(cfg), None));
        }
        let path = self.path.display();
        if let Some((model, file)) = self.quantized(options) {
            let note = format!(
                "{path}: the architecture and the preprocessing are those of {}, which was made from it",
                file.display()
            );
            let QuantizedModel { config, transform, labels, .. } = model;
            return Ok((Description { config, transform, labels }, Some(note)));
        }
        let fitting = self.shipped();
        let [cfg] = fitting.as_slice() else { return Err(self.unknown(&fitting)) };
        let note = format!(
            "{path}: no --cfg; its tensors are those of {} with {} classes, which is used; the input size, {} pixels, \
             and the preprocessing are not in the file",
            cfg.origin, cfg.config.num_classes, cfg.config.image_size
        );
        Ok((described(cfg), Some(note)))
    }

    /// A quantized checkpoint that was made from this file: one that was given, or one in the same folder.
    fn quantized(&self, options: &LoadOptions) -> Option<(QuantizedModel, PathBuf)> {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = folder.read_dir().into_iter().flatten().take(MAX_BESIDE).flatten();
        let mut beside: Vec<PathBuf> = beside.map(|entry| entry.path()).collect();
        beside.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        beside.sort();
        let made_from_this = |path: &&PathBuf| {
            let stated = |document: serde_json::Value| {
                let sha256 = document.pointer("/provenance/source/sha256")?.as_str()?;
                Some(sha256 == self.sha256)
            };
            path.is_file() && is_quantized_file(path) && stated_document(path).and_then(stated) == Some(true)
        };
        // A damaged file describes nothing.
        let load = |path: &PathBuf| Some((QuantizedModel::load(path).ok()?, path.clone()));
        options.described_by.iter().chain(&beside).filter(made_from_this).find_map(load)
    }

    /// The shipped configurations with exactly these parameters, but for the number of classes. Those that differ in
    /// their names only count once.
    fn shipped(&self) -> Vec<LoadedConfig> {
        let classes = self.tensors.get("head.weight").map_or(0, |head| head.shape[0]);
        let opts = [("MODEL.NUM_CLASSES".to_owned(), classes.to_string())];
        let fits = |config: &SwinConfig| {
            let expected = parameters(config);
            let same = |(name, shape): &(String, Vec<usize>)| {
                self.tensors.get(name).is_some_and(|tensor| tensor.shape == *shape)
            };
            let stages = config.stages();
            let windows = stages.iter().zip(self.windows).all(|(s, w)| w.is_none_or(|w| w == s.window));
            expected.len() == self.tensors.len() && expected.iter().all(same) && windows
        };
        let unnamed = |cfg: &LoadedConfig| {
            let config = SwinConfig { name: String::new(), ..cfg.config.clone() };
            (config, cfg.transform.clone())
        };
        let mut found: Vec<LoadedConfig> = Vec::new();
        for name in shipped_configs() {
            let Ok(mut cfg) = load_config(name, &opts) else { continue };
            if cfg.config.version != self.version {
                continue;
            }
            cfg.config.window_policy = self.dialect.window_policy();
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
                 --cfg FILE.yaml with all of these, or --cfg NAME (names: {}, …)",
                self.dialect,
                self.facts(),
                shipped_configs().next().unwrap_or_default()
            )
        } else {
            let names: Vec<&str> = fitting.iter().map(|cfg| cfg.origin.as_str()).collect();
            format!(
                "holds weights in {} names, but no architecture; its tensors fit {}, which differ in {} or the \
                 preprocessing: pass one of them as --cfg",
                self.dialect,
                names.join(" and "),
                if self.version == SwinVersion::V1 { "the input size" } else { "the input size, the window" }
            )
        };
        if self.path.parent().is_some_and(|folder| folder.join("config.json").is_file()) {
            problem += "; or pass its folder, which has a config.json, instead of the file";
        }
        ModelError::file(self.path, problem)
    }

    /// What the shapes tell about the architecture, in the keys of a configuration, and what they do not tell.
    fn facts(&self) -> String {
        let shape =
            |name: &str| self.tensors.get(name).map(|tensor| tensor.shape.clone()).unwrap_or_default();
        let depths = depths(self.tensors.keys());
        let of_block = |stage: usize, last: &str| shape(&format!("layers.{stage}.blocks.0.attn.{last}"));
        let table = |stage: usize| of_block(stage, "relative_position_bias_table");
        let heads = |stage: usize| match self.version {
            SwinVersion::V1 => table(stage).get(1).copied(),
            SwinVersion::V2 => of_block(stage, "logit_scale").first().copied(),
        };
        let heads: Vec<usize> = (0..depths.len()).filter_map(heads).collect();
        let window = match self.version {
            SwinVersion::V1 => table(0).first().map(|rows| rows.isqrt().div_ceil(2)),
            SwinVersion::V2 => self.windows.first().copied().flatten(),
        };
        let section = self.version.section();
        let mut facts = Vec::new();
        let mut add =
            |key: &str, value: Option<String>| facts.extend(value.map(|value| format!("{key} {value}")));
        let key = |key: &str| format!("{section}.{key}");
        let patch = shape("patch_embed.proj.weight");
        if self.version == SwinVersion::V2 {
            add("MODEL.TYPE", Some("swinv2".to_owned()));
        }
        add(&key("EMBED_DIM"), patch.first().map(usize::to_string));
        add(&key("PATCH_SIZE"), patch.last().map(usize::to_string));
        add(&key("DEPTHS"), (!depths.is_empty()).then(|| format!("{depths:?}")));
        add(&key("NUM_HEADS"), (!heads.is_empty()).then(|| format!("{heads:?}")));
        add(&key("WINDOW_SIZE"), window.map(|window| window.to_string()));
        let fc1 = shape("layers.0.blocks.0.mlp.fc1.weight");
        add(
            &key("MLP_RATIO"),
            fc1.first().zip(fc1.get(1)).map(|(h, c)| format!("{}", *h as f64 / *c as f64)),
        );
        add("MODEL.NUM_CLASSES", shape("head.weight").first().map(usize::to_string));
        let missing = match (self.version, window) {
            (SwinVersion::V2, None) => "DATA.IMG_SIZE, MODEL.SWINV2.WINDOW_SIZE",
            _ => "DATA.IMG_SIZE",
        };
        format!("The shapes give {}; they do not give {missing} and the preprocessing", facts.join(", "))
    }
}

fn described(cfg: &LoadedConfig) -> Description {
    Description { config: cfg.config.clone(), transform: cfg.transform.clone(), labels: None }
}
