//! Names of the shipped configurations.

use swinq_configs::{BACKBONES, NamedYaml, SWIN, SWINV2};

use crate::nearest::{nearest_name, spelled};

/// The shipped configurations of classifiers: Swin V1, then Swin V2.
pub(super) fn classifiers() -> impl Iterator<Item = &'static NamedYaml> {
    SWIN.iter().chain(SWINV2)
}

/// Finds a shipped configuration. That of a classifier has its own name, the name of its checkpoint
/// (`…_22kto1k`, `swin_base_patch4_window12_384`), or the short name that timm and Hugging Face use for the
/// fine-tuned Swin-L and Swin V2. That of a backbone is the one with which `name` begins.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let endings = ["", "_finetune", "_22kto1k_finetune", "_ft", "_22kto1k_ft"];
    let spelled = |ending: &str| classifiers().find(|(preset, _)| preset.strip_prefix(name) == Some(ending));
    let classifier = endings.iter().find_map(|ending| spelled(ending));
    classifier.or_else(|| backbone(name)).map(|(_, text)| *text)
}

/// The configuration of a backbone with which `name` begins, the longest of several. Repositories spell their
/// names with `-` and with `_`, and end them with data sets and schedules.
fn backbone(name: &str) -> Option<&'static NamedYaml> {
    let spelled = |name: &str| name.replace('_', "-");
    let name = spelled(name);
    let begins = |(preset, _): &&NamedYaml| {
        name.strip_prefix(&spelled(preset)).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    BACKBONES.iter().filter(begins).max_by_key(|(preset, _)| preset.len())
}

/// The shipped name that begins with `name`, of any spelling, else the most similar one. Of several, a
/// classifier's.
pub(super) fn nearest(name: &str) -> &'static str {
    let all = || classifiers().chain(BACKBONES).map(|(preset, _)| *preset);
    let begun = all().find(|preset| !name.is_empty() && spelled(preset).starts_with(&spelled(name)));
    begun.or_else(|| nearest_name(name, all())).expect("there are presets")
}
