//! The YAML files and class names that ship with swinq, embedded in the program so that their names work
//! without the repository.
//!
//! Each table lists the names of one folder beside their text. The crates that read the text own its format:
//! `swinq-model` reads [`SWIN`], [`SWINV2`], [`BACKBONES`] and [`QUANT`], `swinq-qat` reads [`QAT`].

/// The name of a file, without its extension, and its YAML text.
pub type NamedYaml = (&'static str, &'static str);

macro_rules! embedded {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, ".yaml")))),*]
    };
}

/// Model configurations: `configs/swin/*.yaml`, in the keys of Microsoft's Swin repository.
pub const SWIN: &[NamedYaml] = embedded!["swin":
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
pub const SWINV2: &[NamedYaml] = embedded!["swinv2":
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

/// Backbones of detectors and other models: `configs/backbones/*.yaml`, in the keys of Microsoft's Swin
/// repository and `OUT_FEATURES`. A name is that of a configuration or a model in its repository, as far as
/// it tells the architecture.
pub const BACKBONES: &[NamedYaml] = embedded!["backbones":
    "mask-rcnn_swin-t-p4-w7",
    "mask-rcnn_swin-s-p4-w7",
    "retinanet_swin-t-p4-w7",
    "mask2former_swin-t",
    "mask2former_swin-s",
    "mask2former_swin-b",
    "mask2former_swin-l",
    "maskformer_swin-l-p4-w12",
    "dino-5scale_swin-l",
    "grounding_dino_swin-t",
    "grounding_dino_swin-b",
    "grounding_dino_swin-l",
    "glip_atss_swin-t",
    "glip_atss_swin-l",
    "mask_rcnn_swin_tiny_patch4_window7",
    "mask_rcnn_swin_small_patch4_window7",
    "cascade_mask_rcnn_swin_tiny_patch4_window7",
    "cascade_mask_rcnn_swin_small_patch4_window7",
    "cascade_mask_rcnn_swin_base_patch4_window7",
    "swin-tiny-patch4-window7-in1k-pre_upernet",
    "swin-small-patch4-window7-in1k-pre_upernet",
    "swin-base-patch4-window7-in1k-pre_upernet",
    "swin-base-patch4-window7-in22k-pre_upernet",
    "swin-large-patch4-window7-in22k-pre_upernet",
    "swin-base-patch4-window12-in1k-384x384-pre_upernet",
    "swin-base-patch4-window12-in22k-384x384-pre_upernet",
    "swin-large-patch4-window12-in22k-384x384-pre_upernet",
    "cascade_mask_rcnn_swin_b_in21k",
    "cascade_mask_rcnn_swin_l_in21k",
    "maskformer2_swin_tiny",
    "maskformer2_swin_small",
    "maskformer2_swin_base",
    "maskformer2_swin_large",
    "maskformer_swin_tiny",
    "maskformer_swin_small",
    "maskformer_swin_base",
    "maskformer_swin_large",
    "GroundingDINO_SwinT",
    "GroundingDINO_SwinB",
    "grounding-dino-tiny",
    "grounding-dino-base",
    "mask2former-swin-tiny",
    "mask2former-swin-small",
    "mask2former-swin-base",
    "mask2former-swin-large",
    "upernet-swin-tiny",
    "upernet-swin-small",
    "upernet-swin-base",
    "upernet-swin-large",
    "dpt-swinv2-tiny-256",
    "dpt-swinv2-base-384",
    "dpt-swinv2-large-384",
];

/// Quantization recipes: `configs/quant/*.yaml`.
pub const QUANT: &[NamedYaml] = embedded!["quant": "default", "mode1", "mode2"];

/// Training jobs: `configs/qat/*.yaml`.
pub const QAT: &[NamedYaml] = embedded!["qat": "default", "mode1_kl", "w4", "finetune", "backbone"];

/// The names of ImageNet-1k's classes (ILSVRC 2012), one per line in the order of the classes: the first word
/// of WordNet for each. Where two classes share it they are told apart: `crane (bird)`, `crane (machine)`,
/// `maillot`, `tank suit`.
pub const IMAGENET_1K: &str = include_str!("../labels/imagenet1k.txt");

/// The text of the entry called `name`.
pub fn find(table: &[NamedYaml], name: &str) -> Option<&'static str> {
    table.iter().find(|(entry, _)| *entry == name).map(|(_, text)| *text)
}
