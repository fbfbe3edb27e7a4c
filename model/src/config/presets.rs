//! Names of the shipped configurations.

use swinq_configs::SWIN;

/// Finds a shipped configuration by its own name, by the name of its checkpoint (`…_22kto1k`,
/// `swin_base_patch4_window12_384`), or by the short name that timm and Hugging Face use for the fine-tuned Swin-L.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let spellings = [name.to_owned(), format!("{name}_finetune"), format!("{name}_22kto1k_finetune")];
    spellings.iter().find_map(|spelling| swinq_configs::find(SWIN, spelling))
}

/// The shipped name most similar to `name`.
pub(super) fn nearest(name: &str) -> &'static str {
    let name: String = name.chars().take(80).collect();
    let distance = |(preset, _): &&(&str, &str)| strsim::damerau_levenshtein(&name, preset);
    SWIN.iter().min_by_key(distance).expect("there are presets").0
}
