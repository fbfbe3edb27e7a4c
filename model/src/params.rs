//! The parameters of a configuration: their names in Microsoft's naming, and their shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::SwinConfig;
use crate::error::ModelError;
use crate::site::{BlockId, Linear};
use crate::tensor::HostTensor;

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

fn check_tensor(
    config: &SwinConfig,
    name: &str,
    shape: &[usize],
    tensor: &impl Parameter,
) -> Result<(), ModelError> {
    if tensor.shape() != shape {
        let mut problem = format!("shape {:?}, but {} has {shape:?}", tensor.shape(), config.name);
        if name.starts_with("head.") {
            problem += &format!(
                "; the checkpoint has {} classes, the configuration {} (MODEL.NUM_CLASSES)",
                tensor.shape().first().unwrap_or(&0),
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
