//! A dialect's names of parameters, for messages: the inverse of [`super::names`].

use super::dialect::Dialect;
use crate::arch::SwinVersion;
use crate::error::ModelError;

/// `error` with the name that its tensor has in checkpoints of `dialect`, if that is another name.
pub(super) fn with_stored_name(error: ModelError, dialect: Dialect, version: SwinVersion) -> ModelError {
    match error {
        ModelError::Tensor { tensor, problem } => {
            let stored = stored_name(dialect, version, &tensor).filter(|stored| *stored != tensor);
            let also =
                stored.map_or(String::new(), |stored| format!("`{stored}` in the names of {dialect}; "));
            ModelError::Tensor { problem: also + &problem, tensor }
        }
        ModelError::Mismatch { problem, first } => {
            let stored =
                stored_name(dialect, version, first.trim_matches('`')).map(|stored| format!("`{stored}`"));
            let also = stored
                .filter(|stored| *stored != first)
                .map_or(String::new(), |stored| format!(" ({stored} in the names of {dialect})"));
            ModelError::Mismatch { problem, first: first + &also }
        }
        other => other,
    }
}

/// The name in `dialect` of the parameter that Microsoft calls `name`; `None` for a name that is no parameter's, and for
/// parameters of cosine attention.
fn stored_name(dialect: Dialect, version: SwinVersion, name: &str) -> Option<String> {
    match dialect {
        Dialect::Microsoft | Dialect::FasterTransformer => None,
        Dialect::Timm => timm(name),
        Dialect::TorchVision => torchvision(name),
        Dialect::HuggingFace if version == SwinVersion::V2 => {
            hugging_face(name).map(|name| name.replacen("swin.", "swinv2.", 1))
        }
        Dialect::HuggingFace => hugging_face(name),
    }
}

/// `layers.STAGE.PART.REST` as stage, part and rest.
fn of_stage(name: &str) -> Option<(usize, &str, &str)> {
    let (stage, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let (part, rest) = rest.split_once('.')?;
    Some((stage.parse().ok()?, part, rest))
}

/// The weight or the bias of the module `prefix`.
fn parameter_of<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    name.strip_prefix(prefix)?.strip_prefix('.').filter(|last| matches!(*last, "weight" | "bias"))
}

fn timm(name: &str) -> Option<String> {
    if let Some(last) = parameter_of(name, "head") {
        return Some(format!("head.fc.{last}"));
    }
    match of_stage(name)? {
        (stage, "downsample", rest) => Some(format!("layers.{}.downsample.{rest}", stage + 1)),
        _ => None,
    }
}

fn torchvision(name: &str) -> Option<String> {
    for (ours, theirs) in [("patch_embed.proj", "features.0.0"), ("patch_embed.norm", "features.0.2")] {
        if let Some(last) = parameter_of(name, ours) {
            return Some(format!("{theirs}.{last}"));
        }
    }
    match of_stage(name)? {
        (stage, "downsample", rest) => Some(format!("features.{}.{rest}", 2 * stage + 2)),
        (stage, "blocks", rest) => {
            let rest = rest.replace(".mlp.fc1.", ".mlp.0.").replace(".mlp.fc2.", ".mlp.3.");
            Some(format!("features.{}.{rest}", 2 * stage + 1))
        }
        _ => None,
    }
}

/// Modules of a block in saved files of transformers. The three of `attn.qkv` are named together.
const HF_BLOCK: [(&str, &str); 6] = [
    ("norm1", "layernorm_before"),
    ("norm2", "layernorm_after"),
    ("attn.proj", "attention.output.dense"),
    ("attn.qkv", "attention.self.{query,key,value}"),
    ("mlp.fc1", "intermediate.dense"),
    ("mlp.fc2", "output.dense"),
];

fn hugging_face(name: &str) -> Option<String> {
    let modules = [
        ("patch_embed.proj", "swin.embeddings.patch_embeddings.projection"),
        ("patch_embed.norm", "swin.embeddings.norm"),
        ("norm", "swin.layernorm"),
        ("head", "classifier"),
    ];
    for (ours, theirs) in modules {
        if let Some(last) = parameter_of(name, ours) {
            return Some(format!("{theirs}.{last}"));
        }
    }
    if name == "absolute_pos_embed" {
        return Some("swin.embeddings.position_embeddings".to_owned());
    }
    match of_stage(name)? {
        (_, "downsample", _) => Some(format!("swin.encoder.{name}")),
        (stage, "blocks", rest) => {
            let (block, rest) = rest.split_once('.')?;
            let (module, last) = rest.rsplit_once('.')?;
            let theirs = match (module, last) {
                ("attn", "relative_position_bias_table") => "attention.self",
                _ => HF_BLOCK.iter().find(|(ours, _)| *ours == module)?.1,
            };
            Some(format!("swin.encoder.layers.{stage}.blocks.{block}.{theirs}.{last}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{Target, target};
    use super::*;
    use crate::arch::SwinConfig;
    use crate::params::parameters;

    #[test]
    fn every_parameter_has_the_name_that_is_read() {
        let config = SwinConfig { ape: true, ..SwinConfig::default() };
        for dialect in [Dialect::Timm, Dialect::TorchVision, Dialect::HuggingFace] {
            for (name, _) in parameters(&config) {
                let stored = stored_name(dialect, SwinVersion::V1, &name).unwrap_or_else(|| name.clone());
                let read = match target(dialect, &stored.replace("{query,key,value}", "key")) {
                    Target::Whole(read) | Target::Third(read, _) => read,
                    Target::Dropped => panic!("{dialect} drops {stored}"),
                };
                assert_eq!(read, name, "{dialect}: {stored}");
            }
        }
        assert_eq!(stored_name(Dialect::Timm, SwinVersion::V1, "head.fc2.weight"), None);
    }

    #[test]
    fn an_error_names_both() {
        let of = |name, version| {
            with_stored_name(ModelError::tensor(name, "missing"), Dialect::HuggingFace, version)
        };
        let error = |name| of(name, SwinVersion::V1);
        let text = error("head.weight").to_string();
        assert_eq!(text, "tensor `head.weight`: `classifier.weight` in the names of hf; missing");
        let text = of("norm.bias", SwinVersion::V2).to_string();
        assert!(text.contains("`swinv2.layernorm.bias`"), "{text}");
        assert_eq!(error("other").to_string(), "tensor `other`: missing");
    }
}
