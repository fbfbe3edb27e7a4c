//! The official architectures by name.

use swinq_numerics::Size;

use super::{SwinConfig, SwinVersion, Windows};

impl SwinConfig {
    /// An official Swin by Microsoft's or timm's name. `None` for other names.
    ///
    /// - V1, such as `swin_tiny_patch4_window7_224`: 224 pixels with window 7, and 384 pixels with window 12;
    ///   the suffixes `_22k`, `_22kto1k` and `_22kto1k_finetune` are accepted.
    /// - V2, such as `swinv2_tiny_patch4_window8_256` or `swinv2_tiny_window8_256`: 256 pixels with windows 8
    ///   and 16; base and large also 192 pixels with window 12 (ImageNet-22k), and its fine-tuned forms
    ///   `12to16_192to256` and `12to24_192to384` with or without the suffix `_22kto1k_ft`.
    /// - Swin-S3 (Chen et al., "Searching the Search Space of Vision Transformer", NeurIPS 2021), such as
    ///   `swin_s3_tiny_224`: tiny, small and base, whose stages have windows of their own.
    pub fn official(name: &str) -> Option<SwinConfig> {
        if let Some(rest) = name.strip_prefix("swinv2_") {
            return official_v2(name, rest);
        }
        if let Some(size) = name.strip_prefix("swin_s3_") {
            return official_s3(name, size);
        }
        let (base, classes) = match name.strip_suffix("_22k") {
            Some(base) => (base, 21841),
            None => (name.trim_end_matches("_finetune").trim_end_matches("_22kto1k"), 1000),
        };
        let (size, rest) = base.strip_prefix("swin_")?.split_once("_patch4_window")?;
        let (window_size, image_size) = match rest {
            "7_224" => (7, 224),
            "12_384" => (12, 384),
            _ => return None,
        };
        let (image_size, window_size) = (Size::square(image_size), Size::square(window_size).into());
        Some(SwinConfig { image_size, window_size, num_classes: classes, ..of_size(name, size)? })
    }
}

fn official_v2(name: &str, rest: &str) -> Option<SwinConfig> {
    let (size, rest) = rest.split_once('_')?;
    let rest = rest.strip_prefix("patch4_").unwrap_or(rest).strip_prefix("window")?;
    let (window_size, image_size, classes, pretrained) = match (size, rest) {
        ("tiny" | "small" | "base", "8_256") => (8, 256, 1000, None),
        ("tiny" | "small" | "base", "16_256") => (16, 256, 1000, None),
        ("base" | "large", "12_192" | "12_192_22k") => (12, 192, 21841, None),
        ("base" | "large", rest) => match rest.trim_end_matches("_22kto1k_ft") {
            "12to16_192to256" => (16, 256, 1000, Some([12, 12, 12, 6])),
            "12to24_192to384" => (24, 384, 1000, Some([12, 12, 12, 6])),
            _ => return None,
        },
        _ => return None,
    };
    Some(SwinConfig {
        version: SwinVersion::V2,
        image_size: Size::square(image_size),
        window_size: Size::square(window_size).into(),
        num_classes: classes,
        pretrained_window_sizes: pretrained.map_or_else(Vec::new, Vec::from),
        ..of_size(name, size)?
    })
}

fn official_s3(name: &str, size: &str) -> Option<SwinConfig> {
    let (windows, middle) = match size {
        "tiny_224" => ([7, 7, 14, 7], 6),
        "small_224" => ([14, 14, 14, 7], 18),
        "base_224" => ([7, 7, 14, 7], 30),
        _ => return None,
    };
    let window_size = Windows::of_stages(windows.map(Size::square).to_vec())?;
    Some(SwinConfig { window_size, depths: vec![2, 2, middle, 2], ..of_size(name, "tiny")? })
}

/// The depths and widths of a size, which V1 and V2 share.
fn of_size(name: &str, size: &str) -> Option<SwinConfig> {
    let (embed_dim, middle, heads) = match size {
        "tiny" => (96, 6, 3),
        "small" => (96, 18, 3),
        "base" => (128, 18, 4),
        "large" => (192, 18, 6),
        _ => return None,
    };
    Some(SwinConfig {
        name: name.to_owned(),
        embed_dim,
        depths: vec![2, 2, middle, 2],
        num_heads: vec![heads, heads * 2, heads * 4, heads * 8],
        ..SwinConfig::default()
    })
}
