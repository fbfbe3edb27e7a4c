//! Augmentation settings, as a job file spells them.

use serde::{Deserialize, Serialize};
use swinq_model::Size;

use crate::error::DataError;

/// Maximum of [`Augment::padding`]. No image that is cropped this way is larger, so a larger value is a
/// mistake.
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
    /// The same, but its width / height is that of the input size times the ratio: for inputs of several
    /// sizes.
    Proportional,
    /// The whole image, shifted at random within a black border and resized to the input size: for small
    /// images such as CIFAR's.
    Padded,
}

/// How training images are augmented. Omitted keys take their defaults, which suit fine-tuning: a random
/// resized crop and a horizontal flip, no colour adjustments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augment {
    /// `random_resized`, `proportional`, `padded`, or `none` (the evaluation preprocessing).
    pub crop: CropKind,
    /// Input sizes; one is drawn for each iteration; for networks that take images of any size. Empty: the
    /// size of the model's preprocessing. In a job they are texts such as `512x640`, height and width.
    #[serde(with = "sizes", skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<Size>,
    /// With `random_resized` and `proportional`: minimum and maximum area of the rectangle as fractions of
    /// the image's area; 0 < minimum <= maximum <= 1. Fine-tuning for a few epochs often does better with a
    /// minimum well above the default 0.08.
    pub scale: [f64; 2],
    /// With `random_resized`: minimum and maximum width / height of the rectangle, greater than 0. With
    /// `proportional` they are multiples of the width / height of the input.
    pub ratio: [f64; 2],
    /// With `padded`: width of the black border in pixels of the source image, which is also the largest
    /// shift.
    pub padding: usize,
    /// Probability of a horizontal flip, in 0..=1.
    pub flip: f64,
    /// Strength `x` of the brightness adjustment, whose factor is uniform in `max(0, 1 - x)..1 + x`; 0
    /// disables it.
    pub brightness: f64,
    /// Strength of the contrast adjustment, defined in the same way.
    pub contrast: f64,
    /// Strength of the saturation adjustment, defined in the same way.
    pub saturation: f64,
    /// Strength `x`, in 0..=0.5, of the hue rotation, whose fraction of a full turn is uniform in `-x..x`; 0
    /// disables it.
    pub hue: f64,
    /// Probability, in 0..=1, that a rectangle is replaced by noise (Zhong et al., "Random Erasing Data
    /// Augmentation", 2020).
    #[serde(skip_serializing_if = "is_zero")]
    pub erasing: f64,
}

/// Whether a setting is off. Settings that are off and are younger than the first trainings are left out of
/// the settings that a training records, so that older trainings can be resumed.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

impl Default for Augment {
    fn default() -> Augment {
        Augment {
            crop: CropKind::RandomResized,
            sizes: Vec::new(),
            scale: [0.08, 1.0],
            ratio: [3.0 / 4.0, 4.0 / 3.0],
            padding: 4,
            flip: 0.5,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            erasing: 0.0,
        }
    }
}

impl Augment {
    /// No augmentation: the evaluation preprocessing.
    pub fn none() -> Augment {
        Augment { crop: CropKind::None, flip: 0.0, ..Augment::default() }
    }

    /// Refuses values outside their documented ranges, including those of fields that the chosen crop does
    /// not use.
    ///
    /// # Errors
    /// [`DataError::Setting`] with the field's name.
    pub fn validate(&self) -> Result<(), DataError> {
        check_range("scale", self.scale, 1.0)?;
        check_range("ratio", self.ratio, f64::MAX)?;
        if self.padding > MAX_PADDING {
            let problem = format!("{} is more than {MAX_PADDING} pixels", self.padding);
            return Err(DataError::setting("padding", problem));
        }
        check_limit("flip", self.flip, 1.0)?;
        check_limit("brightness", self.brightness, f64::MAX)?;
        check_limit("contrast", self.contrast, f64::MAX)?;
        check_limit("saturation", self.saturation, f64::MAX)?;
        check_limit("hue", self.hue, 0.5)?;
        check_limit("erasing", self.erasing, 1.0)
    }
}

/// Sizes as texts of the form `HEIGHTxWIDTH`.
mod sizes {
    use serde::de::{Error, IgnoredAny};
    use serde::{Deserialize, Deserializer, Serializer};
    use swinq_model::Size;

    use crate::sizing::Sizing;

    /// The bounds of a list of sizes.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Text(String),
        Other(IgnoredAny),
    }

    #[expect(clippy::ptr_arg, reason = "serde passes a reference to the field")]
    pub fn serialize<S: Serializer>(sizes: &Vec<Size>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(sizes.iter().map(|&size| Sizing::Exact(size).to_string()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Size>, D::Error> {
        let size = |given: &Given| match given {
            Given::Text(text) => match text.parse() {
                Ok(Sizing::Exact(size)) => Ok(size),
                _ => Err(D::Error::custom(format!("`{text}` in `sizes` is not HEIGHTxWIDTH as in 512x640"))),
            },
            Given::Other(_) => Err(D::Error::custom("`sizes` are texts HEIGHTxWIDTH as in 512x640")),
        };
        Vec::<Given>::deserialize(deserializer)?.iter().map(size).collect()
    }
}

/// Refuses a range unless 0 < minimum <= maximum <= `limit`.
fn check_range(field: &'static str, [low, high]: [f64; 2], limit: f64) -> Result<(), DataError> {
    if low > 0.0 && low <= high && high <= limit {
        return Ok(());
    }
    let bound = if limit < f64::MAX { format!(" <= {limit}") } else { String::new() };
    Err(DataError::setting(
        field,
        format!("[{low}, {high}] must be [minimum, maximum] with 0 < minimum <= maximum{bound}"),
    ))
}

/// Refuses a number outside `0..=limit`.
fn check_limit(field: &'static str, value: f64, limit: f64) -> Result<(), DataError> {
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
    fn omitted_keys_take_their_defaults() {
        assert_eq!(parse("{}"), Ok(Augment::default()));
        let cifar = parse(r#"{"crop": "padded", "padding": 3, "hue": 0.5}"#).unwrap();
        let expected = Augment { crop: CropKind::Padded, padding: 3, hue: 0.5, ..Augment::default() };
        assert_eq!(cifar, expected);
        assert_eq!(parse(r#"{"crop": "none", "flip": 0}"#), Ok(Augment::none()));
        assert_eq!(parse(&serde_json::to_string(&cifar).unwrap()), Ok(cifar));
        let sized = parse(r#"{"sizes": ["512x640", "32x24"]}"#).unwrap();
        assert_eq!(sized.sizes, [Size::new(512, 640), Size::new(32, 24)]);
        assert_eq!(parse(&serde_json::to_string(&sized).unwrap()), Ok(sized));
        assert!(!serde_json::to_string(&Augment::default()).unwrap().contains("sizes"));
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
            (r#"{"erasing": 2}"#, "erasing"),
            (r#"{"hues": 0.1}"#, "hues"),
            (r#"{"sizes": ["keep"]}"#, "sizes"),
            (r#"{"sizes": ["512"]}"#, "sizes"),
            (r#"{"sizes": [512]}"#, "sizes"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(&format!("`{field}`")), "{message}");
        }
        let infinite = Augment { brightness: f64::INFINITY, ..Augment::default() };
        let nan = Augment { flip: f64::NAN, ..Augment::default() };
        assert!(infinite.validate().is_err() && nan.validate().is_err());
    }
}
