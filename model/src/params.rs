//! The parameters of a configuration: their names in Microsoft's naming, and their shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::SwinConfig;
use crate::error::ModelError;
use crate::site::{BlockId, Linear};
use crate::tensor::HostTensor;

/// Bounds of the stages and blocks that names are read for.
const MAX_STAGES: usize = 64;
const MAX_BLOCKS: usize = 4096;

/// Name and shape of every parameter of `config`, in forward order.
pub fn parameters(config: &SwinConfig) -> Vec<(String, Vec<usize>)> {
    let mut list = Vec::new();
    let mut add = |name: String, shape: &[usize]| list.push((name, shape.to_vec()));
    let norm = |add: &mut dyn FnMut(String, &[usize]), name: &str, dim: usize| {
        add(format!("{name}.weight"), &[dim]);
        add(format!("{name}.bias"), &[dim]);
    };
    let (embed, patch) = (config.embed_dim, config.patch_size);
    add(Linear::PatchEmbed.weight_name(), &[embed, 3, patch, patch]);
    add(Linear::PatchEmbed.bias_name(), &[embed]);
    if config.patch_norm {
        norm(&mut add, "patch_embed.norm", embed);
    }
    if config.ape {
        add("absolute_pos_embed".to_owned(), &[1, config.grid() * config.grid(), embed]);
    }
    for stage in config.stages() {
        let (dim, hidden, table) = (stage.dim, stage.hidden, (2 * stage.window - 1).pow(2));
        for block in 0..stage.depth {
            let id = BlockId { stage: stage.index, block };
            norm(&mut add, &format!("{id}.norm1"), dim);
            add(format!("{id}.attn.relative_position_bias_table"), &[table, stage.heads]);
            add(Linear::Qkv(id).weight_name(), &[3 * dim, dim]);
            if config.qkv_bias {
                add(Linear::Qkv(id).bias_name(), &[3 * dim]);
            }
            add(Linear::Proj(id).weight_name(), &[dim, dim]);
            add(Linear::Proj(id).bias_name(), &[dim]);
            norm(&mut add, &format!("{id}.norm2"), dim);
            add(Linear::Fc1(id).weight_name(), &[hidden, dim]);
            add(Linear::Fc1(id).bias_name(), &[hidden]);
            add(Linear::Fc2(id).weight_name(), &[dim, hidden]);
            add(Linear::Fc2(id).bias_name(), &[dim]);
        }
        if stage.merge {
            norm(&mut add, &format!("layers.{}.downsample.norm", stage.index), 4 * dim);
            add(Linear::Reduction(stage.index).weight_name(), &[2 * dim, 4 * dim]);
        }
    }
    norm(&mut add, "norm", config.features());
    add(Linear::Head.weight_name(), &[config.num_classes, config.features()]);
    add(Linear::Head.bias_name(), &[config.num_classes]);
    list
}

/// The problem of a checkpoint that has every parameter but those of the classifier.
pub(crate) const HEADLESS: &str = "the classifier is missing: the checkpoint is a backbone without a head (timm's \
    num_classes=0, or a pretraining); swinq runs classifiers, so give the checkpoint of the whole model";

/// A parameter that [`check_parameters`] can check.
pub trait Parameter {
    /// Sizes.
    fn shape(&self) -> &[usize];
    /// The first value that is not finite, with its flat index.
    fn not_finite(&self) -> Option<(usize, f32)>;
}

impl Parameter for HostTensor {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn not_finite(&self) -> Option<(usize, f32)> {
        /// Values that are checked at a time: a check of all without an early end runs on vectors.
        const AT_ONCE: usize = 4096;
        let bad = |values: &[f32]| values.iter().fold(false, |bad, value| bad | !value.is_finite());
        let first = AT_ONCE * self.data.chunks(AT_ONCE).position(bad)?;
        let mut rest = self.data.iter().copied().enumerate().skip(first);
        rest.find(|(_, value)| !value.is_finite())
    }
}

/// Checks that `tensors` are exactly the parameters of `config`, have their shapes, and hold finite values only.
///
/// # Errors
/// [`ModelError::Tensor`] naming the missing, unexpected, mis-shaped or non-finite tensors.
pub fn check_parameters(
    config: &SwinConfig,
    tensors: &BTreeMap<String, impl Parameter>,
) -> Result<(), ModelError> {
    let expected = parameters(config);
    let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    let missing: Vec<&str> = known.iter().filter(|n| !tensors.contains_key(**n)).copied().collect();
    let extra: Vec<&str> = tensors.keys().map(String::as_str).filter(|n| !known.contains(n)).collect();
    if let Some(first) = missing.first().or(extra.first()) {
        if extra.is_empty() && missing == ["head.bias", "head.weight"] {
            return Err(ModelError::tensor(*first, HEADLESS));
        }
        if let Some(difference) = depth_difference(config, tensors.keys()) {
            let problem = format!(
                "the checkpoint does not fit the configuration {}: it has {difference} (MODEL.SWIN.DEPTHS)",
                config.name
            );
            return Err(ModelError::tensor(*first, problem));
        }
        let problem = format!(
            "the checkpoint does not fit the configuration {}: missing {}; unexpected {}. Is it the configuration \
             the checkpoint was trained with?",
            config.name,
            name_list(&missing),
            name_list(&extra)
        );
        return Err(ModelError::tensor(*first, problem));
    }
    for (name, shape) in &expected {
        check_tensor(config, name, shape, &tensors[name])?;
    }
    Ok(())
}

/// Blocks of each stage of the tensors with these names, in Microsoft's naming.
pub(crate) fn depths<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::new();
    for name in names {
        let mut parts = name.split('.');
        let (Some("layers"), Some(stage), Some("blocks"), Some(block)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (Ok(stage), Ok(block)) = (stage.parse::<usize>(), block.parse::<usize>()) else { continue };
        if stage < MAX_STAGES && block < MAX_BLOCKS {
            depths.resize(depths.len().max(stage + 1), 0);
            depths[stage] = depths[stage].max(block + 1);
        }
    }
    depths
}

/// The stages and blocks that tensors of these names have, where the configuration wants others.
fn depth_difference<'a>(config: &SwinConfig, names: impl IntoIterator<Item = &'a String>) -> Option<String> {
    let found = depths(names);
    if found.is_empty() {
        return None; // Not a Swin, or no tensors at all.
    }
    if found.len() != config.depths.len() {
        return Some(format!("{} stages, the configuration wants {}", found.len(), config.depths.len()));
    }
    let stages = found.iter().zip(&config.depths).enumerate().filter(|(_, (found, wanted))| found != wanted);
    let text = |(stage, (found, wanted)): (usize, (&usize, &usize))| {
        format!("{found} blocks in stage {stage}, the configuration wants {wanted}")
    };
    let differences: Vec<String> = stages.map(text).collect();
    (!differences.is_empty()).then(|| differences.join("; "))
}

fn check_tensor(
    config: &SwinConfig,
    name: &str,
    shape: &[usize],
    tensor: &impl Parameter,
) -> Result<(), ModelError> {
    if tensor.shape() != shape {
        let mut problem = format!("shape {:?}, but {} has {shape:?}", tensor.shape(), config.name);
        if let Some(classes) = tensor.shape().first().filter(|_| name.starts_with("head.")) {
            problem += &format!(
                "; the checkpoint has {classes} classes, the configuration {}; pass --opts MODEL.NUM_CLASSES {classes}",
                config.num_classes
            );
        }
        return Err(ModelError::tensor(name, problem));
    }
    if let Some((index, value)) = tensor.not_finite() {
        let problem = format!(
            "value {value} at flat index {index} is not finite: the file is damaged or the training diverged; use \
             another checkpoint"
        );
        return Err(ModelError::tensor(name, problem));
    }
    Ok(())
}

/// Lists up to eight names, and the number of further names.
pub(crate) fn name_list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names if names.len() <= 8 => names.join(", "),
        names => format!("{} and {} more", names[..8].join(", "), names.len() - 8),
    }
}
