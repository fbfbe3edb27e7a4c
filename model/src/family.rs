//! The families of evaluation preprocessing.

use std::fmt;
use std::str::FromStr;

/// The family whose evaluation preprocessing is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Microsoft: shorter side to `int(256 / 224 * size)`, center crop (direct with `TEST.CROP: False`).
    Microsoft,
    /// timm: shorter side to `floor(size / crop_pct)`, center crop.
    Timm,
    /// torchvision: the weights' own resize, center crop.
    Torchvision,
    /// The Swins that Hugging Face publishes: direct bicubic resize, mean and deviation of ImageNet. A file
    /// without these fields has other values, those of `ViTImageProcessor`.
    HuggingFace,
}

/// Writes the name of the family as the program's option `--transform` takes it.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Microsoft => "ms",
            Family::Timm => "timm",
            Family::Torchvision => "torchvision",
            Family::HuggingFace => "hf",
        })
    }
}

/// Reads the name that [`Display`](fmt::Display) writes.
impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Family, String> {
        let all = [Family::Microsoft, Family::Timm, Family::Torchvision, Family::HuggingFace];
        let found = all.into_iter().find(|family| family.to_string() == name);
        found.ok_or_else(|| format!("`{name}` is none of ms, timm, torchvision, hf"))
    }
}
