//! Evaluation transforms of timm, torchvision and Hugging Face. Microsoft's is [`Transform::microsoft`].

use swinq_model::batch::{IMAGENET_MEAN, IMAGENET_STD};
use swinq_model::{ChannelOrder, Filter, Orientation, Resize, Size, Transform};

/// timm's `crop_pct` for Swin and Swin V2 with inputs smaller than 384.
pub const TIMM_CROP_PCT: f64 = 0.9;

/// timm's transform: a bicubic resize of the shorter side to `floor(size / crop_pct)`, then a center crop.
/// For a size that is not square, the image is resized to cover it, divided by `crop_pct`.
///
/// timm uses [`TIMM_CROP_PCT`] for Swin at 224 and for Swin V2 at 192 and 256. At 384 it uses 1.0, which
/// resizes the shorter side to 384 and crops; it is not a direct resize of both sides.
///
/// # Panics
/// If `crop_pct` is not in `(0, 1]`.
pub fn timm(size: Size, crop_pct: f64) -> Transform {
    assert!(crop_pct > 0.0 && crop_pct <= 1.0, "crop_pct {crop_pct} is not in (0, 1]");
    imagenet("timm", size, Resize::timm(size, crop_pct))
}

/// torchvision's transform for the published weights of `model` (`swin_t`, `swin_s`, `swin_b`, `swin_v2_t`,
/// `swin_v2_s`, `swin_v2_b`); `None` for other names.
pub fn torchvision(model: &str) -> Option<Transform> {
    let (shorter, size) = match model {
        "swin_t" => (232, 224),
        "swin_s" => (246, 224),
        "swin_b" => (238, 224),
        "swin_v2_t" | "swin_v2_s" => (260, 256),
        "swin_v2_b" => (272, 256),
        _ => return None,
    };
    Some(imagenet("torchvision", Size::square(size), Resize::ShorterSide(shorter)))
}

/// Hugging Face's `ViTImageProcessor` with the settings of the Swin models: a direct bicubic resize of both
/// sides to `size`, no crop. Images are turned as EXIF states, as by transformers' `load_image`.
pub fn hugging_face(size: Size) -> Transform {
    Transform { orientation: Orientation::Exif, ..imagenet("hf", size, Resize::Direct) }
}

/// A bicubic transform with ImageNet's channel means and standard deviations.
fn imagenet(family: &str, size: Size, resize: Resize) -> Transform {
    Transform {
        family: family.to_owned(),
        size,
        resize,
        filter: Filter::Bicubic,
        mean: IMAGENET_MEAN.to_vec(),
        std: IMAGENET_STD.to_vec(),
        size_divisor: None,
        orientation: Orientation::Stored,
        channel_order: ChannelOrder::Rgb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_equal_those_of_the_libraries() {
        assert_eq!(timm(Size::new(160, 320), 0.9).resize, Resize::Cover(Size::new(177, 355)));
        assert_eq!(timm(Size::square(224), TIMM_CROP_PCT).resize, Resize::ShorterSide(248));
        assert_eq!(timm(Size::square(256), TIMM_CROP_PCT).resize, Resize::ShorterSide(284));
        assert_eq!(timm(Size::square(384), 1.0).resize, Resize::ShorterSide(384));
        assert_eq!(
            torchvision("swin_v2_b").map(|t| (t.size, t.resize)),
            Some((Size::square(256), Resize::ShorterSide(272)))
        );
        assert_eq!(torchvision("resnet50"), None);
        assert_eq!(hugging_face(Size::square(224)).resize, Resize::Direct);
    }
}
