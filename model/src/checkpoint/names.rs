//! Renaming tensors from a dialect's names to Microsoft's.

use std::collections::BTreeMap;

use super::dialect::Dialect;
use super::raw::RawDict;
use crate::arch::SwinVersion;
use crate::error::ModelError;
use crate::tensor::{HostTensor, StateDict};

/// The parameter that a stored tensor belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The tensor is this parameter.
    Whole(String),
    /// The tensor is one third of this parameter's rows: the query (0), key (1) or value (2).
    Third(String, usize),
    /// The tensor is no parameter: buffers are rebuilt, and quantizer ranges are read by `ft`.
    Dropped,
}

/// The target of the tensor `name`. A name that the dialect does not know is kept, so that
/// [`check_parameters`](crate::params::check_parameters) reports it as unexpected.
pub(super) fn target(dialect: Dialect, name: &str) -> Target {
    let last = name.rsplit('.').next().unwrap_or(name);
    if matches!(last, "relative_position_index" | "relative_coords_table" | "attn_mask") {
        return Target::Dropped;
    }
    // Swin V2 of Microsoft and timm: the keys have no bias.
    for (suffix, third) in [(".attn.q_bias", 0), (".attn.v_bias", 2)] {
        if let Some(block) = name.strip_suffix(suffix) {
            return Target::Third(format!("{block}.attn.qkv.bias"), third);
        }
    }
    let renamed = match dialect {
        Dialect::Microsoft => None,
        Dialect::FasterTransformer if name.contains("_quantizer.") => return Target::Dropped,
        Dialect::FasterTransformer => None,
        Dialect::Timm => timm(name),
        Dialect::TorchVision => torchvision(name),
        Dialect::HuggingFace => return hugging_face(name),
    };
    Target::Whole(renamed.unwrap_or_else(|| name.to_owned()))
}

fn timm(name: &str) -> Option<String> {
    if let Some(last) = name.strip_prefix("head.fc.") {
        return Some(format!("head.{last}"));
    }
    let (stage, rest) = name.strip_prefix("layers.")?.split_once(".downsample.")?;
    let stage: usize = stage.parse().ok()?;
    Some(format!("layers.{}.downsample.{rest}", stage.checked_sub(1)?))
}

fn torchvision(name: &str) -> Option<String> {
    let rest = name.strip_prefix("features.")?;
    let (part, rest) = rest.split_once('.')?;
    match part.parse::<usize>().ok()? {
        0 => {
            let (inner, last) = rest.split_once('.')?;
            let module = match inner {
                "0" => "proj",
                "2" => "norm",
                _ => return None,
            };
            Some(format!("patch_embed.{module}.{last}"))
        }
        part if part % 2 == 1 => {
            let (block, rest) = rest.split_once('.')?;
            let rest = match rest.split_once("mlp.") {
                Some(("", inner)) => match inner.split_once('.')? {
                    ("0", last) => format!("mlp.fc1.{last}"),
                    ("3", last) => format!("mlp.fc2.{last}"),
                    _ => return None,
                },
                _ => rest.to_owned(),
            };
            Some(format!("layers.{}.blocks.{block}.{rest}", part / 2))
        }
        part => Some(format!("layers.{}.downsample.{rest}", part / 2 - 1)),
    }
}

/// Modules of a Hugging Face block and Microsoft's names for them. Saved files and transformers 5 use different names;
/// both are listed. A digit is the third of `attn.qkv`.
const HF_BLOCK: [(&str, &str); 16] = [
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("attention.output.dense", "attn.proj"),
    ("attention.o_proj", "attn.proj"),
    ("intermediate.dense", "mlp.fc1"),
    ("mlp.fc1", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
    ("mlp.fc2", "mlp.fc2"),
    ("attention.self.query", "0"),
    ("attention.q_proj", "0"),
    ("attention.self.key", "1"),
    ("attention.k_proj", "1"),
    ("attention.self.value", "2"),
    ("attention.v_proj", "2"),
    ("attention.self.continuous_position_bias_mlp.0", "attn.cpb_mlp.0"),
    ("attention.self.continuous_position_bias_mlp.2", "attn.cpb_mlp.2"),
];

fn hugging_face(name: &str) -> Target {
    let unknown = || Target::Whole(name.to_owned());
    let inner = name.strip_prefix("swin.").or_else(|| name.strip_prefix("swinv2.")).unwrap_or(name);
    let whole =
        |prefix: &str, to: &str| inner.strip_prefix(prefix).map(|last| Target::Whole(format!("{to}{last}")));
    if inner == "embeddings.position_embeddings" {
        return Target::Whole("absolute_pos_embed".to_owned());
    }
    let top = whole("embeddings.patch_embeddings.projection.", "patch_embed.proj.")
        .or_else(|| whole("embeddings.norm.", "patch_embed.norm."))
        .or_else(|| whole("layernorm.", "norm."))
        .or_else(|| whole("classifier.", "head."));
    if let Some(target) = top {
        return target;
    }
    let Some(rest) = inner.strip_prefix("encoder.") else { return unknown() };
    match rest.split_once(".blocks.").and_then(|(layer, rest)| Some((layer, rest.split_once('.')?))) {
        Some((layer, (block, rest))) => {
            hugging_face_block(&format!("{layer}.blocks.{block}"), rest).unwrap_or_else(unknown)
        }
        None => Target::Whole(rest.to_owned()),
    }
}

fn hugging_face_block(block: &str, rest: &str) -> Option<Target> {
    let (module, last) = rest.rsplit_once('.')?;
    if matches!(last, "relative_position_bias_table" | "logit_scale") {
        return Some(Target::Whole(format!("{block}.attn.{last}")));
    }
    let (_, ours) = HF_BLOCK.iter().find(|(theirs, _)| *theirs == module)?;
    Some(match ours.parse() {
        Ok(third) => Target::Third(format!("{block}.attn.qkv.{last}"), third),
        Err(_) => Target::Whole(format!("{block}.{ours}.{last}")),
    })
}

/// Renames the tensors, converts them to f32 and joins the q, k and v thirds. The bias of the keys of a Swin V2 becomes
/// zeros: most files have none, and torchvision does not use the one that it stores.
///
/// # Errors
/// [`ModelError::Tensor`] for a parameter that is not a float tensor, occurs twice, or lacks a third.
pub(super) fn to_microsoft(
    dialect: Dialect,
    version: SwinVersion,
    raw: &RawDict<'_>,
) -> Result<StateDict, ModelError> {
    let is_bias = |name: &str| version == SwinVersion::V2 && name.ends_with(".attn.qkv.bias");
    let mut whole = StateDict::new();
    let mut thirds: BTreeMap<String, [Option<HostTensor>; 3]> = BTreeMap::new();
    for (name, tensor) in raw {
        let read = || tensor.to_f32().map_err(|problem| ModelError::tensor(name, problem));
        let twice =
            || ModelError::tensor(name, "is in the checkpoint twice: two of its names are one parameter");
        match target(dialect, name) {
            Target::Dropped => {}
            Target::Whole(ours) => {
                let mut tensor = read()?;
                if is_bias(&ours) && tensor.shape.len() == 1 {
                    let third = tensor.data.len() / 3;
                    tensor.data[third..2 * third].fill(0.0);
                }
                if whole.insert(ours, tensor).is_some() {
                    return Err(twice());
                }
            }
            Target::Third(ours, index) => {
                if thirds.entry(ours).or_default()[index].replace(read()?).is_some() {
                    return Err(twice());
                }
            }
        }
    }
    for (name, mut parts) in thirds {
        if let ([Some(q), None, _], true) = (&parts, is_bias(&name)) {
            parts[1] = Some(HostTensor::new(q.shape.clone(), vec![0.0; q.data.len()]));
        }
        let joined = concatenate(&name, parts)?;
        if whole.insert(name.clone(), joined).is_some() {
            return Err(ModelError::tensor(
                name,
                "is in the checkpoint twice: once whole and once split into q, k and v",
            ));
        }
    }
    Ok(whole)
}

/// The window of each stage of a Swin V2, where the file has the buffer `relative_coords_table`
/// `[1, 2 window - 1, 2 window - 1, 2]`.
pub(super) fn stored_windows(raw: &RawDict<'_>) -> Vec<Option<usize>> {
    /// The most stages that are looked at.
    const STAGES: usize = 8;
    let mut windows = vec![None; STAGES];
    for (name, tensor) in raw.iter().filter(|(name, _)| name.ends_with(".relative_coords_table")) {
        let ours = torchvision(name).unwrap_or_else(|| name.clone());
        let stage =
            ours.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        if let (Some(stage @ 0..STAGES), &[1, rows, columns, 2]) = (stage, tensor.shape())
            && rows == columns
        {
            windows[stage] = Some(rows.div_ceil(2));
        }
    }
    windows
}

/// Query, key and value rows, one under the other.
fn concatenate(name: &str, parts: [Option<HostTensor>; 3]) -> Result<HostTensor, ModelError> {
    let [Some(q), Some(k), Some(v)] = parts else {
        return Err(ModelError::tensor(name, "lacks its query, key or value part in the checkpoint"));
    };
    if q.shape.is_empty() || q.shape != k.shape || q.shape != v.shape {
        let problem =
            format!("its query, key and value have shapes {:?}, {:?}, {:?}", q.shape, k.shape, v.shape);
        return Err(ModelError::tensor(name, problem));
    }
    let mut shape = q.shape;
    shape[0] *= 3;
    Ok(HostTensor::new(shape, [q.data, k.data, v.data].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(dialect: Dialect, name: &str) -> String {
        match target(dialect, name) {
            Target::Whole(name) => name,
            Target::Third(name, index) => format!("{name}[{index}]"),
            Target::Dropped => "dropped".to_owned(),
        }
    }

    #[test]
    fn names_of_each_dialect() {
        let cases = [
            (Dialect::Timm, "layers.1.downsample.norm.bias", "layers.0.downsample.norm.bias"),
            (Dialect::Timm, "head.fc.weight", "head.weight"),
            (Dialect::Timm, "layers.0.downsample.norm.bias", "layers.0.downsample.norm.bias"),
            (Dialect::TorchVision, "features.0.2.bias", "patch_embed.norm.bias"),
            (Dialect::TorchVision, "features.5.4.mlp.3.weight", "layers.2.blocks.4.mlp.fc2.weight"),
            (Dialect::TorchVision, "features.6.norm.weight", "layers.2.downsample.norm.weight"),
            (Dialect::TorchVision, "features.1.0.attn.relative_position_index", "dropped"),
            (Dialect::TorchVision, "features.1.0.mlp.1.weight", "features.1.0.mlp.1.weight"),
            (Dialect::HuggingFace, "encoder.layers.0.downsample.norm.bias", "layers.0.downsample.norm.bias"),
            (
                Dialect::HuggingFace,
                "swin.encoder.layers.3.blocks.1.attention.self.key.weight",
                "layers.3.blocks.1.attn.qkv.weight[1]",
            ),
            (
                Dialect::HuggingFace,
                "swin.encoder.layers.3.blocks.1.attention.v_proj.bias",
                "layers.3.blocks.1.attn.qkv.bias[2]",
            ),
            (Dialect::HuggingFace, "swin.pooler.weight", "swin.pooler.weight"),
            (Dialect::FasterTransformer, "layers.0.blocks.0.mlp.fc1._input_quantizer._amax", "dropped"),
            (Dialect::Microsoft, "layers.0.blocks.1.attn_mask", "dropped"),
        ];
        for (dialect, theirs, ours) in cases {
            assert_eq!(renamed(dialect, theirs), ours);
        }
    }

    #[test]
    fn split_parameters_need_their_three_parts() {
        let part = |v: f32| Some(HostTensor::new([1, 2], vec![v, v]));
        let joined = concatenate("w", [part(1.0), part(2.0), part(3.0)]).unwrap();
        assert_eq!((joined.shape, joined.data), (vec![3, 2], vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0]));
        assert!(concatenate("w", [part(1.0), None, part(3.0)]).is_err());
        let odd = Some(HostTensor::new([2], vec![0.0; 2]));
        assert!(concatenate("w", [part(1.0), odd, part(3.0)]).is_err());
    }
}
