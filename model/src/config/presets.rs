//! Names of the shipped configurations.

use swinq_configs::{Named, SWIN, SWINV2};

/// Every shipped configuration: Swin V1, then Swin V2.
pub(super) fn all() -> impl Iterator<Item = &'static Named> {
    SWIN.iter().chain(SWINV2)
}

/// Finds a shipped configuration by its own name, by the name of its checkpoint (`…_22kto1k`,
/// `swin_base_patch4_window12_384`), or by the short name that timm and Hugging Face use for the fine-tuned Swin-L and
/// Swin V2.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let endings = ["", "_finetune", "_22kto1k_finetune", "_ft", "_22kto1k_ft"];
    let spelled = |ending: &str| all().find(|(preset, _)| preset.strip_prefix(name) == Some(ending));
    endings.iter().find_map(|ending| spelled(ending)).map(|(_, text)| *text)
}

/// The shipped name most similar to `name`.
pub(super) fn nearest(name: &str) -> &'static str {
    let name: String = name.chars().take(80).collect();
    let distance = |(preset, _): &&(&str, &str)| strsim::damerau_levenshtein(&name, preset);
    all().min_by_key(distance).expect("there are presets").0
}
