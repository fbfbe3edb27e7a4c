//! The configurations that ship with the program: `configs/swin/*.yaml`.

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../configs/swin/", $name, ".yaml")))),*]
    };
}

/// Name and YAML of every shipped configuration.
pub(super) const PRESETS: &[(&str, &str)] = presets![
    "swin_tiny_patch4_window7_224",
    "swin_tiny_patch4_window7_224_22k",
    "swin_tiny_patch4_window7_224_22kto1k_finetune",
    "swin_small_patch4_window7_224",
    "swin_small_patch4_window7_224_22k",
    "swin_small_patch4_window7_224_22kto1k_finetune",
    "swin_base_patch4_window7_224",
    "swin_base_patch4_window7_224_22k",
    "swin_base_patch4_window7_224_22kto1k_finetune",
    "swin_base_patch4_window12_384_22k",
    "swin_base_patch4_window12_384_22kto1k_finetune",
    "swin_base_patch4_window12_384_finetune",
    "swin_large_patch4_window7_224_22k",
    "swin_large_patch4_window7_224_22kto1k_finetune",
    "swin_large_patch4_window12_384_22k",
    "swin_large_patch4_window12_384_22kto1k_finetune",
];

/// Finds a shipped configuration by its own name, by the name of the checkpoint it belongs to (`…_22kto1k`,
/// `swin_base_patch4_window12_384`), or by the bare name that timm and Hugging Face use for the tuned Swin-L.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let spellings = [name.to_owned(), format!("{name}_finetune"), format!("{name}_22kto1k_finetune")];
    let preset = |spelling: &String| PRESETS.iter().find(|(preset, _)| preset == spelling);
    spellings.iter().find_map(preset).map(|(_, yaml)| *yaml)
}

/// The shipped name nearest to `name`.
pub(super) fn nearest(name: &str) -> &'static str {
    let name: String = name.chars().take(80).collect();
    let distance = |(preset, _): &&(&str, &str)| strsim::damerau_levenshtein(&name, preset);
    PRESETS.iter().min_by_key(distance).expect("there are presets").0
}
