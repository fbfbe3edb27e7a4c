//! The YAML files and class names that ship with swinq, embedded in the program so that their names work without the
//! repository.
//!
//! Each table lists the names of one folder beside their text. The crates that read the text own its format:
//! `swinq-model` reads [`SWIN`], [`SWINV2`] and [`QUANT`], `swinq-qat` reads [`QAT`].

/// The name of a file, without its extension, and its YAML text.
pub type Named = (&'static str, &'static str);

macro_rules! embedded {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, ".yaml")))),*]
    };
}

/// Model configurations: `configs/swin/*.yaml`, in the keys of Microsoft's Swin repository.
pub const SWIN: &[Named] = embedded!["swin":
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

/// Model configurations of Swin V2: `configs/swinv2/*.yaml`, in the keys of Microsoft's Swin repository.
pub const SWINV2: &[Named] = embedded!["swinv2":
    "swinv2_tiny_patch4_window8_256",
    "swinv2_tiny_patch4_window16_256",
    "swinv2_small_patch4_window8_256",
    "swinv2_small_patch4_window16_256",
    "swinv2_base_patch4_window8_256",
    "swinv2_base_patch4_window16_256",
    "swinv2_base_patch4_window12_192_22k",
    "swinv2_base_patch4_window12to16_192to256_22kto1k_ft",
    "swinv2_base_patch4_window12to24_192to384_22kto1k_ft",
    "swinv2_large_patch4_window12_192_22k",
    "swinv2_large_patch4_window12to16_192to256_22kto1k_ft",
    "swinv2_large_patch4_window12to24_192to384_22kto1k_ft",
];

/// Quantization recipes: `configs/quant/*.yaml`.
pub const QUANT: &[Named] = embedded!["quant": "default", "mode1", "mode2"];

/// Training jobs: `configs/qat/*.yaml`.
pub const QAT: &[Named] = embedded!["qat": "default", "mode1_kl", "w4", "finetune", "backbone"];

/// The names of ImageNet-1k's classes (ILSVRC 2012), one per line in the order of the classes: the first word of WordNet for
/// each. Where two classes share it they are told apart: `crane (bird)`, `crane (machine)`, `maillot`, `tank suit`.
pub const IMAGENET_1K: &str = include_str!("../labels/imagenet1k.txt");

/// The text of the entry called `name`.
pub fn find(table: &[Named], name: &str) -> Option<&'static str> {
    table.iter().find(|(entry, _)| *entry == name).map(|(_, text)| *text)
}
