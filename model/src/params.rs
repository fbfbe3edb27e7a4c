//! The parameters of a configuration: their names in Microsoft's naming, and their shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::{Stage, StageOutput, SwinConfig, SwinVersion};
use crate::error::ModelError;
use crate::position::HIDDEN;
use crate::site::{BlockId, Linear};
use crate::tensor::HostTensor;

/// Bounds of the stages and blocks that names are read for.
pub(crate) const MAX_STAGES: usize = 64;
const MAX_BLOCKS: usize = 4096;

/// Name and shape of every parameter of `config`, in forward order.
///
/// The bias of `attn.qkv` has a row for every row of its weight, in both versions. The keys of a Swin V2 have
/// no bias: their part of it is zeros in every float model that was not quantized.
pub fn parameters(config: &SwinConfig) -> Vec<(String, Vec<usize>)> {
    let mut list = List(Vec::new());
    let (embed, patch) = (config.embed_dim, config.patch_size);
    if !config.takes_tokens() {
        list.add(Linear::PatchEmbed.weight_name(), &[embed, config.in_chans, patch, patch]);
        list.add(Linear::PatchEmbed.bias_name(), &[embed]);
    }
    if config.patch_norm {
        list.norm("patch_embed.norm", embed);
    }
    if config.ape {
        list.add("absolute_pos_embed".to_owned(), &[1, config.own_grids()[0].tokens(), embed]);
    }
    for stage in config.stages() {
        for block in 0..stage.depth {
            list.block(config, &stage, BlockId { stage: stage.index, block });
        }
        if let Some(norm) = config.output_of(stage.index).and_then(StageOutput::norm_name) {
            list.norm(&norm, stage.dim);
        }
        if stage.merge {
            let name = format!("layers.{}.downsample.norm", stage.index);
            let weight = (Linear::Reduction(stage.index).weight_name(), [2 * stage.dim, 4 * stage.dim]);
            if config.post_norm() {
                list.add(weight.0, &weight.1);
                list.norm(&name, 2 * stage.dim);
            } else {
                list.norm(&name, 4 * stage.dim);
                list.add(weight.0, &weight.1);
            }
        }
    }
    if !config.is_backbone() {
        list.norm("norm", config.features());
        list.add(Linear::Head.weight_name(), &[config.num_classes, config.features()]);
        list.add(Linear::Head.bias_name(), &[config.num_classes]);
    }
    list.0
}

/// Names and shapes of parameters.
struct List(Vec<(String, Vec<usize>)>);

impl List {
    fn add(&mut self, name: String, shape: &[usize]) {
        self.0.push((name, shape.to_vec()));
    }

    fn norm(&mut self, name: &str, dim: usize) {
        self.add(format!("{name}.weight"), &[dim]);
        self.add(format!("{name}.bias"), &[dim]);
    }

    fn block(&mut self, config: &SwinConfig, stage: &Stage, id: BlockId) {
        let (dim, hidden, heads) = (stage.dim, stage.hidden, stage.heads);
        let norms = |list: &mut List, name: &str, here: bool| {
            if here {
                list.norm(&format!("{id}.{name}"), dim);
            }
        };
        norms(self, "norm1", !config.post_norm());
        match config.version {
            SwinVersion::V1 => {
                self.add(format!("{id}.attn.relative_position_bias_table"), &[stage.bias_rows(), heads]);
            }
            SwinVersion::V2 => {
                self.add(format!("{id}.attn.logit_scale"), &[heads, 1, 1]);
                self.add(format!("{id}.attn.cpb_mlp.0.weight"), &[HIDDEN, 2]);
                self.add(format!("{id}.attn.cpb_mlp.0.bias"), &[HIDDEN]);
                self.add(format!("{id}.attn.cpb_mlp.2.weight"), &[heads, HIDDEN]);
            }
        }
        self.add(Linear::Qkv(id).weight_name(), &[3 * dim, dim]);
        if config.qkv_bias {
            self.add(Linear::Qkv(id).bias_name(), &[3 * dim]);
        }
        self.add(Linear::Proj(id).weight_name(), &[dim, dim]);
        self.add(Linear::Proj(id).bias_name(), &[dim]);
        norms(self, "norm1", config.post_norm());
        norms(self, "norm2", !config.post_norm());
        self.add(Linear::Fc1(id).weight_name(), &[hidden, dim]);
        self.add(Linear::Fc1(id).bias_name(), &[hidden]);
        self.add(Linear::Fc2(id).weight_name(), &[dim, hidden]);
        self.add(Linear::Fc2(id).bias_name(), &[dim]);
        norms(self, "norm2", config.post_norm());
    }
}

/// The problem of a checkpoint that has every parameter but those of the classifier.
pub(crate) fn headless() -> String {
    let what =
        "the checkpoint is a backbone without a head (timm's num_classes=0, a detector's, or a pretraining)";
    format!("the classifier is missing: {what}; {HEADLESS_REMEDY}")
}

/// The remedy for a checkpoint without a classifier.
pub(crate) const HEADLESS_REMEDY: &str = "give the checkpoint of the whole model, or compute its feature maps with `swinq \
    features` (other commands: --task features)";

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

/// Checks that `tensors` are exactly the parameters of `config`, have their shapes, and hold finite values
/// only.
///
/// # Errors
/// [`ModelError::Mismatch`] for missing and unexpected tensors and for another number of classes, and
/// [`ModelError::Tensor`] for a mis-shaped or non-finite tensor.
pub fn check_parameters(
    config: &SwinConfig,
    tensors: &BTreeMap<String, impl Parameter>,
) -> Result<(), ModelError> {
    let expected = parameters(config);
    let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    let missing: Vec<&str> = known.iter().filter(|n| !tensors.contains_key(**n)).copied().collect();
    let extra: Vec<&str> = tensors.keys().map(String::as_str).filter(|n| !known.contains(n)).collect();
    if let Some(first) = missing.first().or(extra.first()) {
        if is_headless(&missing, &extra) {
            return Err(ModelError::tensor("head.weight", headless()));
        }
        let name = &config.name;
        let problem = match depth_difference(config, tensors.keys()) {
            Some(difference) => format!("the checkpoint has {difference} ({})", config.key("DEPTHS")),
            None => {
                format!("the checkpoint does not fit the configuration {name}: {}", unlike(&missing, &extra))
            }
        };
        return Err(ModelError::mismatch(first, problem));
    }
    for (name, shape) in &expected {
        check_tensor(config, name, shape, &tensors[name])?;
    }
    Ok(())
}

/// Parameters that a checkpoint lacks, parameters that its configuration lacks, and the remedy.
fn unlike(missing: &[&str], extra: &[&str]) -> String {
    let own = "give the configuration that the checkpoint was trained with";
    match (missing, extra) {
        (missing, []) => format!("it lacks {}; {own}, or a whole checkpoint", name_list(missing)),
        ([], extra) => {
            format!(
                "no Swin of this configuration has {}; {own}, or a checkpoint without these",
                name_list(extra)
            )
        }
        (missing, extra) => {
            format!("it lacks {}, and has {} instead; {own}", name_list(missing), name_list(extra))
        }
    }
}

/// Whether only the classifier is missing, with or without its norm, and only norms of outputs are
/// unexpected.
fn is_headless(missing: &[&str], extra: &[&str]) -> bool {
    let of_classifier = |name: &&str| name.starts_with("head.") || name.starts_with("norm.");
    let of_output = |name: &&str| {
        let module = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias"));
        let stage = module.and_then(|module| module.strip_prefix("norm"));
        stage.is_some_and(|stage| stage.parse::<usize>().is_ok())
    };
    ["head.bias", "head.weight"].iter().all(|name| missing.contains(name))
        && missing.iter().all(of_classifier)
        && extra.iter().all(of_output)
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

/// The stages and blocks that tensors of these names have, where the configuration has others.
fn depth_difference<'a>(config: &SwinConfig, names: impl IntoIterator<Item = &'a String>) -> Option<String> {
    let found = depths(names);
    if found.is_empty() {
        return None; // Not a Swin, or no tensors at all.
    }
    let (name, counted) =
        (&config.name, |count: usize, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" }));
    if found.len() != config.depths.len() {
        let stages = counted(found.len(), "stage");
        return Some(format!("{stages}, but the configuration {name} has {}", config.depths.len()));
    }
    let stages = found.iter().zip(&config.depths).enumerate().filter(|(_, (found, wanted))| found != wanted);
    let text = |(stage, (found, wanted)): (usize, (&usize, &usize))| {
        let (stage, blocks) = (StageOutput::usual_name(stage), counted(*found, "block"));
        format!("{blocks} in {stage}, but the configuration {name} has {wanted}")
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
        return Err(misshapen(config, name, shape, tensor.shape()));
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

/// The error for a tensor of the shape `found` instead of `shape`. A head of another number of classes has a
/// cause of its own.
fn misshapen(config: &SwinConfig, name: &str, shape: &[usize], found: &[usize]) -> ModelError {
    match (found, shape) {
        (&[classes, ref found @ ..], &[_, ref wanted @ ..])
            if name.starts_with("head.") && found == wanted =>
        {
            let problem = format!(
                "the checkpoint has {classes} classes, but the configuration {} has {}; pass --opts MODEL.NUM_CLASSES \
                 {classes}",
                config.name, config.num_classes
            );
            ModelError::mismatch(name, problem)
        }
        _ => ModelError::tensor(
            name,
            format!("shape {found:?}, but the configuration {} gives {shape:?}", config.name),
        ),
    }
}

/// Lists up to eight names, and the number of further names.
pub(crate) fn name_list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names if names.len() <= 8 => names.join(", "),
        names => format!("{} and {} more", names[..8].join(", "), names.len() - 8),
    }
}
