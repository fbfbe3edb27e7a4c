//! What may vary, as a job file has it.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// The largest [`Augment::padding`]: no image that is cropped this way is larger.
const MAX_PADDING: usize = 1 << 16;

/// Which part of an image becomes the network's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropKind {
    /// The evaluation preprocessing: the model's own resize and central crop.
    None,
    /// A random rectangle, resized to the input size: for photographs.
    #[default]
    RandomResized,
    /// The whole image moved at random within a black border, resized to the input size: for small images such as
    /// CIFAR's.
    Padded,
}

/// How training images vary. Keys left out have their defaults, which are those of fine-tuning: a random resized crop
/// and a flip, colours as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augment {
    /// `random_resized`, `padded`, or `none` (the evaluation preprocessing).
    pub crop: CropKind,
    /// With `random_resized`: least and greatest area of the rectangle, as parts of the image's; 0 < least <= greatest
    /// <= 1. Fine-tuning for a few epochs often does better with a least area well above the default 0.08.
    pub scale: [f64; 2],
    /// With `random_resized`: least and greatest width over height of the rectangle, greater than 0.
    pub ratio: [f64; 2],
    /// With `padded`: the border in pixels of the source image, and so how far it moves at most.
    pub padding: usize,
    /// Probability of exchanging left and right, in 0..=1.
    pub flip: f64,
    /// Brightness is multiplied by a factor uniform in `max(0, 1 - x)..1 + x`; 0 is off.
    pub brightness: f64,
    /// Contrast, likewise.
    pub contrast: f64,
    /// Saturation, likewise.
    pub saturation: f64,
    /// Hue is turned by a part of a turn uniform in `-x..x`, x in 0..=0.5; 0 is off.
    pub hue: f64,
}

impl Default for Augment {
    fn default() -> Augment {
        Augment {
            crop: CropKind::RandomResized,
            scale: [0.08, 1.0],
            ratio: [3.0 / 4.0, 4.0 / 3.0],
            padding: 4,
            flip: 0.5,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
        }
    }
}

impl Augment {
    /// No variation: the evaluation preprocessing.
    pub fn none() -> Augment {
        Augment { crop: CropKind::None, flip: 0.0, ..Augment::default() }
    }

    /// Refuses values that mean nothing, also of fields that the crop does not use.
    ///
    /// # Errors
    /// [`DataError::Setting`] with the field's name.
    pub fn validate(&self) -> Result<(), DataError> {
        range("scale", self.scale, 1.0)?;
        range("ratio", self.ratio, f64::MAX)?;
        if self.padding > MAX_PADDING {
            let problem = format!("{} is more than {MAX_PADDING} pixels", self.padding);
            return Err(DataError::setting("padding", problem));
        }
        strength("flip", self.flip, 1.0)?;
        strength("brightness", self.brightness, f64::MAX)?;
        strength("contrast", self.contrast, f64::MAX)?;
        strength("saturation", self.saturation, f64::MAX)?;
        strength("hue", self.hue, 0.5)
    }
}

/// Refuses a range that is empty, reversed, not positive or beyond `limit`.
fn range(field: &'static str, [low, high]: [f64; 2], limit: f64) -> Result<(), DataError> {
    if low > 0.0 && low <= high && high <= limit {
        return Ok(());
    }
    let bound = if limit < f64::MAX { format!(" <= {limit}") } else { String::new() };
    Err(DataError::setting(
        field,
        format!("[{low}, {high}] must be [least, greatest], 0 < least <= greatest{bound}"),
    ))
}

/// Refuses a number outside `0..=limit`.
fn strength(field: &'static str, value: f64, limit: f64) -> Result<(), DataError> {
    if (0.0..=limit).contains(&value) {
        return Ok(());
    }
    let allowed =
        if limit < f64::MAX { format!("between 0 and {limit}") } else { "a number from 0 up".to_owned() };
    Err(DataError::setting(field, format!("{value} must be {allowed}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Augment, String> {
        let settings: Augment = serde_json::from_str(text).map_err(|error| error.to_string())?;
        settings.validate().map(|()| settings).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_left_out_have_their_defaults() {
        assert_eq!(parse("{}"), Ok(Augment::default()));
        let cifar = parse(r#"{"crop": "padded", "padding": 3, "hue": 0.5}"#).unwrap();
        let wanted = Augment { crop: CropKind::Padded, padding: 3, hue: 0.5, ..Augment::default() };
        assert_eq!(cifar, wanted);
        assert_eq!(parse(r#"{"crop": "none", "flip": 0}"#), Ok(Augment::none()));
        assert_eq!(parse(&serde_json::to_string(&cifar).unwrap()), Ok(cifar));
    }

    #[test]
    fn wrong_settings_name_their_field() {
        for (text, field) in [
            (r#"{"scale": [0, 1]}"#, "scale"),
            (r#"{"scale": [0.5, 1.5]}"#, "scale"),
            (r#"{"scale": [0.9, 0.5]}"#, "scale"),
            (r#"{"ratio": [-1, 1]}"#, "ratio"),
            (r#"{"padding": 100000}"#, "padding"),
            (r#"{"flip": 1.01}"#, "flip"),
            (r#"{"brightness": -0.1}"#, "brightness"),
            (r#"{"contrast": -1}"#, "contrast"),
            (r#"{"saturation": -1}"#, "saturation"),
            (r#"{"hue": 0.6}"#, "hue"),
            (r#"{"hues": 0.1}"#, "hues"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(&format!("`{field}`")), "{message}");
        }
        let infinite = Augment { brightness: f64::INFINITY, ..Augment::default() };
        let nan = Augment { flip: f64::NAN, ..Augment::default() };
        assert!(infinite.validate().is_err() && nan.validate().is_err());
    }
}
