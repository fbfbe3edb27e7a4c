//! Networks whose tensors resemble those of a Swin, and which are none that this program runs.

use super::dialect::follows;
use super::raw::RawDict;
use crate::error::ModelError;

/// A network that is refused by its name.
struct Foreign {
    /// Patterns of names; one of its tensors has one of them.
    marks: &'static [&'static str],
    /// Its kind, and why it is refused.
    what: &'static str,
}

const FOREIGN: [Foreign; 4] = [
    Foreign {
        marks: &["{*}.residual_group.{*}"],
        what: "a SwinIR or Swin2SR, a network that restores images, not a classifier or a backbone",
    },
    Foreign {
        marks: &["swinViT.{*}", "{*}.swinViT.{*}"],
        what: "a SwinUNETR of MONAI, whose windows have three dimensions; swinq runs windows of two",
    },
    Foreign {
        marks: &["{*}.attn.meta_mlp.{*}"],
        what: "a Swin V2-CR (timm's swinv2_cr), whose attention is another one than Swin V2's; use a swinv2",
    },
    Foreign {
        marks: &[
            "audio_encoder.batch_norm.{*}",
            "{*}.audio_encoder.batch_norm.{*}",
            "spectrogram_extractor.{*}",
            "{*}.spectrogram_extractor.{*}",
        ],
        what: "the audio part of a CLAP, which reads spectrograms; swinq reads images",
    },
];

/// Refuses tensors of another network.
///
/// # Errors
/// [`ModelError::Tensor`] that says which network it is.
pub(super) fn refuse(tensors: &RawDict<'_>) -> Result<(), ModelError> {
    refuse_vit(tensors)?;
    for (name, tensor) in tensors {
        let is = |foreign: &&Foreign| foreign.marks.iter().any(|mark| follows(mark, name));
        if let Some(foreign) = FOREIGN.iter().find(is) {
            return Err(ModelError::tensor(name, format!("the checkpoint is {}", foreign.what)));
        }
        if name.ends_with("patch_embed.proj.weight") && tensor.shape().len() == 5 {
            let problem = "the checkpoint is a Video Swin, whose windows have three dimensions; swinq runs windows of two";
            return Err(ModelError::tensor(name, problem));
        }
    }
    Ok(())
}

/// Pretrainings without classes.
const PRETRAININGS: [Foreign; 3] = [
    Foreign { marks: &["mask_token", "{*}.mask_token"], what: "by masked images (SimMIM)" },
    Foreign {
        marks: &["queue", "queue1", "{*}.queue", "{*}.queue1"],
        what: "by pairs of images (MoBY, MoCo)",
    },
    Foreign {
        marks: &["head.last_layer.{*}", "{*}.head.last_layer.{*}"],
        what: "by a teacher without labels (EsViT, DINO)",
    },
];

/// Refuses tensors of a network that was not trained to classify.
///
/// # Errors
/// [`ModelError::Tensor`] that says what it was trained for.
pub(super) fn refuse_pretraining(tensors: &RawDict<'_>) -> Result<(), ModelError> {
    let names = || tensors.keys().map(String::as_str);
    let mark = |kind: &Foreign| names().find(|name| kind.marks.iter().any(|mark| follows(mark, name)));
    let found = PRETRAININGS.iter().find_map(|kind| Some((kind, mark(kind)?)));
    found.map_or(Ok(()), |(kind, name)| {
        let problem = format!(
            "the checkpoint is a pretraining {}, which has no classes; give a fine-tuned classifier, or compute its feature maps \
             with `swinq features` (other commands: --task features)",
            kind.what
        );
        Err(ModelError::tensor(name, problem))
    })
}

/// Refuses tensors of a ViT or DeiT, whose names resemble those of a Swin.
fn refuse_vit(tensors: &RawDict<'_>) -> Result<(), ModelError> {
    let token = |key: &&String| {
        let last = key.rsplit('.').next().unwrap_or(key);
        ["cls_token", "dist_token", "distillation_token"].contains(&last)
    };
    let tokens: Vec<&String> = tensors.keys().filter(token).collect();
    let Some(&first) = tokens.first() else { return Ok(()) };
    let network = if tokens.len() > 1 { "a distilled DeiT" } else { "a ViT or DeiT" };
    let problem = format!("the checkpoint is {network}, not a Swin: Swins have no class token; use a Swin");
    Err(ModelError::tensor(first, problem))
}
