//! Naming conventions of checkpoints.

use std::fmt;
use std::str::FromStr;

use crate::arch::{SwinConfig, SwinVersion, WindowPolicy};
use crate::error::ModelError;
use crate::params::name_list;

/// The naming convention of a checkpoint's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Microsoft's Swin Transformer repository: `layers.{s}.downsample`, `head`.
    Microsoft,
    /// timm 0.9 and later: the downsample belongs to the next stage, and the classifier is `head.fc`. Earlier versions
    /// of timm use Microsoft's names.
    Timm,
    /// Hugging Face transformers: separate tensors for q, k and v; the classifier is `classifier`.
    HuggingFace,
    /// torchvision: `features.*`.
    TorchVision,
    /// FasterTransformer's calibrated checkpoints: Microsoft's names, and ranges in `*_quantizer._amax`.
    FasterTransformer,
}

impl Dialect {
    /// Detects the dialect from a checkpoint's tensor names; `None` if no name is typical of a dialect.
    pub fn detect<'a>(keys: impl IntoIterator<Item = &'a str>) -> Option<Dialect> {
        let keys: Vec<&str> = keys.into_iter().collect();
        let typical = typical(&keys).map(|(dialect, _)| dialect);
        let patches = || keys.iter().any(|key| key.starts_with("patch_embed.proj."));
        typical.or_else(|| patches().then_some(Dialect::Microsoft))
    }

    /// The rule of the dialect's original code for grids that are not a multiple of the window.
    pub fn window_policy(self) -> WindowPolicy {
        match self {
            Dialect::Microsoft | Dialect::FasterTransformer => WindowPolicy::Microsoft,
            Dialect::Timm | Dialect::HuggingFace => WindowPolicy::ShrinkAndPad,
            Dialect::TorchVision => WindowPolicy::Pad,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dialect::Microsoft => "microsoft",
            Dialect::Timm => "timm",
            Dialect::HuggingFace => "hf",
            Dialect::TorchVision => "torchvision",
            Dialect::FasterTransformer => "ft",
        })
    }
}

impl FromStr for Dialect {
    type Err = ModelError;

    /// Parses the names that [`Display`](fmt::Display) writes, and the full names.
    fn from_str(text: &str) -> Result<Dialect, ModelError> {
        match text.to_ascii_lowercase().as_str() {
            "microsoft" | "ms" => Ok(Dialect::Microsoft),
            "timm" => Ok(Dialect::Timm),
            "hf" | "huggingface" | "transformers" => Ok(Dialect::HuggingFace),
            "torchvision" => Ok(Dialect::TorchVision),
            "ft" | "fastertransformer" => Ok(Dialect::FasterTransformer),
            _ => Err(ModelError::config(
                "dialect",
                format!("`{text}` is none of microsoft, timm, hf, torchvision, ft"),
            )),
        }
    }
}

/// The only dialect that has a name like one of `keys`, and that name.
fn typical<'a>(keys: &[&'a str]) -> Option<(Dialect, &'a str)> {
    let find = |dialect: Dialect, test: &dyn Fn(&str) -> bool| {
        keys.iter().find(|key| test(key)).map(|key| (dialect, *key))
    };
    let embedded = keys.iter().any(|key| key.starts_with("patch_embed.proj."));
    find(Dialect::HuggingFace, &|key| key.contains("embeddings.patch_embeddings."))
        .or_else(|| find(Dialect::TorchVision, &|key| key.starts_with("features.0.0.")))
        .or_else(|| find(Dialect::FasterTransformer, &|key| key.ends_with("_quantizer._amax")))
        .or_else(|| {
            find(Dialect::Microsoft, &|key| key.starts_with("layers.0.downsample.")).filter(|_| embedded)
        })
        .or_else(|| {
            let timm = |key: &str| key.starts_with("layers.1.downsample.") || key.starts_with("head.fc.");
            find(Dialect::Timm, &timm).filter(|_| embedded)
        })
}

/// Refuses `given`, a dialect that the user states, if `keys` have names that only another dialect has.
pub(super) fn refuse_other<'a>(
    path: &std::path::Path,
    given: Dialect,
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<(), ModelError> {
    match typical(&keys.into_iter().collect::<Vec<_>>()) {
        Some((dialect, key)) if dialect != given => {
            let problem = format!(
                "its tensors are named as by {dialect} (`{key}`), not as by {given}; pass --dialect {dialect}, or leave \
                 --dialect out"
            );
            Err(ModelError::file(path, problem))
        }
        _ => Ok(()),
    }
}

/// The version of the Swin whose tensors have these names: V2 if one of them is of cosine attention.
pub(super) fn version<'a>(keys: impl IntoIterator<Item = &'a str>) -> SwinVersion {
    const MARKS: [&str; 4] = ["cpb_mlp", "logit_scale", "continuous_position_bias", "relative_coords_table"];
    match keys.into_iter().any(|key| MARKS.iter().any(|mark| key.contains(mark))) {
        true => SwinVersion::V2,
        false => SwinVersion::V1,
    }
}

/// Added to the logits of masked tokens by the dialect's own code. The code of transformers for Swin V2 adds its mask
/// twice.
pub(super) fn mask(dialect: Dialect, version: SwinVersion) -> f64 {
    match (dialect, version) {
        (Dialect::HuggingFace, SwinVersion::V2) => -200.0,
        _ => SwinConfig::default().mask,
    }
}

/// Refuses tensors of a ViT or DeiT, whose names resemble those of a Swin.
pub(super) fn refuse_vit<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<(), ModelError> {
    let ends = |key: &&str, ends: &[&str]| ends.iter().any(|end| key.rsplit('.').next() == Some(end));
    let tokens: Vec<&str> = keys
        .into_iter()
        .filter(|key| ends(key, &["cls_token", "dist_token", "distillation_token"]))
        .collect();
    let Some(first) = tokens.first() else { return Ok(()) };
    let network = if tokens.len() > 1 { "a distilled DeiT" } else { "a ViT or DeiT" };
    let problem = format!("the checkpoint is {network}, not a Swin: Swins have no class token; use a Swin");
    Err(ModelError::tensor(*first, problem))
}

/// The error for tensor names that fit no dialect.
pub(super) fn unknown_dialect(path: &std::path::Path, keys: &[&str]) -> ModelError {
    let problem = format!(
        "its tensors follow no known naming convention of a Swin ({}); if they do, name it with --dialect",
        name_list(keys)
    );
    ModelError::file(path, problem)
}
