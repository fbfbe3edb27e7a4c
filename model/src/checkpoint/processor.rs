//! The preprocessing that an image processor of transformers states. Fields that its file lacks have the
//! defaults of its class.

use serde_json::Value;
use swinq_numerics::Size;

use super::json::Json;
use crate::arch::SwinConfig;
use crate::batch::{Filter, MAX_DIVISOR, Resize, Transform, common_statistics};
use crate::error::ModelError;
use crate::pixels::{ChannelOrder, Orientation};

/// The defaults of a class. Every class rescales by 1/255 and normalises.
struct Class {
    /// Names without `ImageProcessor` and what follows; older versions of transformers call it a
    /// `FeatureExtractor`.
    names: &'static [&'static str],
    filter: Filter,
    statistics: Statistics,
    /// The sides of resized images.
    size: Sides,
    /// The side of the center crop, if there is one.
    crop: Option<usize>,
}

/// Mean and deviation of a class.
#[derive(Clone, Copy)]
enum Statistics {
    /// 0.5 and 0.5 for each channel.
    Half,
    ImageNet,
    /// Those of CLIP.
    OpenAi,
}

/// The sides that images are resized to.
#[derive(Clone, Copy)]
enum Sides {
    Square(usize),
    ShorterSide(usize),
    /// The class resizes in another way than swinq, or its size differs from version to version.
    Stated,
}

const fn class(names: &'static [&'static str], filter: Filter, statistics: Statistics, size: Sides) -> Class {
    Class { names, filter, statistics, size, crop: None }
}

/// The classes; a file without a class has the first, which transformers uses for Swins.
const CLASSES: [Class; 8] = [
    class(&["ViT"], Filter::Bilinear, Statistics::Half, Sides::Square(224)),
    Class { crop: Some(224), ..class(&["DeiT"], Filter::Bicubic, Statistics::Half, Sides::Square(256)) },
    class(&["Beit", "Siglip"], Filter::Bicubic, Statistics::Half, Sides::Square(224)),
    class(&["ConvNext"], Filter::Bicubic, Statistics::Half, Sides::Stated),
    class(&["Donut"], Filter::Bilinear, Statistics::Half, Sides::Stated),
    class(&["MaskFormer", "Mask2Former"], Filter::Bilinear, Statistics::ImageNet, Sides::Stated),
    class(
        &["Segformer", "OneFormer", "Detr", "GroundingDino"],
        Filter::Bilinear,
        Statistics::ImageNet,
        Sides::Stated,
    ),
    Class {
        crop: Some(224),
        ..class(&["CLIP", "Bit"], Filter::Bicubic, Statistics::OpenAi, Sides::ShorterSide(224))
    },
];

/// Mean and deviation of CLIP's images.
const OPENAI: [[f32; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]];

impl Statistics {
    /// Mean and deviation of `channels` channels.
    fn of(self, channels: usize) -> (Vec<f32>, Vec<f32>) {
        match self {
            Statistics::OpenAi if channels == 3 => (OPENAI[0].to_vec(), OPENAI[1].to_vec()),
            Statistics::ImageNet | Statistics::OpenAi => common_statistics(channels),
            Statistics::Half => (vec![0.5; channels], vec![0.5; channels]),
        }
    }
}

/// The class of the processor that `json` describes; `None` for one that is not known.
fn class_of(json: &Json) -> Result<Option<&'static Class>, ModelError> {
    let name = json
        .text("image_processor_type")?
        .map_or_else(|| json.text("feature_extractor_type"), |name| Ok(Some(name)))?;
    let Some(name) = name else { return Ok(Some(&CLASSES[0])) };
    let stem = ["ImageProcessor", "FeatureExtractor"].iter().find_map(|end| Some(name.split_once(end)?.0));
    Ok(CLASSES.iter().find(|class| stem.is_some_and(|stem| class.names.contains(&stem))))
}

/// `value` of the field, or else that of the class.
///
/// # Errors
/// [`ModelError::File`] if the field is absent and the class is not known.
fn or_default<T>(
    json: &Json,
    field: &str,
    value: Option<T>,
    default: impl Fn(&Class) -> Option<T>,
) -> Result<T, ModelError> {
    if let Some(value) = value {
        return Ok(value);
    }
    class_of(json)?.and_then(default).ok_or_else(|| {
        let problem = "is missing, and swinq does not know the default of its class; state the field, or pass \
                       --transform hf";
        json.error(field, problem)
    })
}

/// The filter of the processor that `json` describes.
pub(super) fn filter(json: &Json) -> Result<Filter, ModelError> {
    or_default(json, "resample", json.filter("resample")?, |class| Some(class.filter))
}

impl Class {
    /// The default of `size`, and whether it is that of the shorter side.
    fn resized(&self) -> Option<(bool, Size)> {
        match self.size {
            Sides::Square(side) => Some((false, Size::square(side))),
            Sides::ShorterSide(side) => Some((true, Size::square(side))),
            Sides::Stated => None,
        }
    }

    /// The default of `crop_size`.
    fn cropped(&self) -> Option<(bool, Size)> {
        self.crop.map(|side| (false, Size::square(side)))
    }
}

/// The preprocessing that `json` states for images of the size of `config`.
pub(super) fn transform(json: &Json, config: &SwinConfig) -> Result<Transform, ModelError> {
    let (size, channels) = (config.image_size, config.in_chans);
    if !json.bool("do_resize")?.unwrap_or(true) {
        return Err(json.error(
            "do_resize",
            "false is not supported, because images would keep their own sizes; pass --transform hf",
        ));
    }
    let (mean, std) = statistics(json, channels)?;
    let filter = filter(json)?;
    let crop =
        or_default(json, "do_center_crop", json.bool("do_center_crop")?, |class| Some(class.crop.is_some()))?;
    Ok(Transform {
        family: "hf".to_owned(),
        size,
        resize: resize(json, size, crop)?,
        filter,
        mean,
        std,
        size_divisor: None,
        orientation: Orientation::Exif,
        channel_order: ChannelOrder::Rgb,
    })
}

/// A sentence on a class whose way to bring images to their size is not known.
///
/// # Errors
/// [`ModelError::File`] for a class that is no text.
pub(super) fn remark(json: &Json) -> Result<Option<String>, ModelError> {
    if class_of(json)?.is_some_and(|class| class.resized().is_some()) {
        return Ok(None);
    }
    let name = json.text("image_processor_type")?.unwrap_or_else(|| "its class".to_owned());
    Ok(Some(format!(
        "preprocessor_config.json: {name} may bring images to their size in another way than swinq, which reads `size` and \
         `crop_size` as ViTImageProcessor does; compare an image with transformers, or pass --transform"
    )))
}

/// Mean and deviation of each of `channels` channels, of pixels in 0..1.
pub(super) fn statistics(json: &Json, channels: usize) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
    let rescaled = json.bool("do_rescale")?.unwrap_or(true);
    let factor = json.float("rescale_factor")?.unwrap_or(1.0 / 255.0);
    if !rescaled || (factor * 255.0 - 1.0).abs() > 1e-6 {
        let field = if rescaled { "rescale_factor" } else { "do_rescale" };
        return Err(
            json.error(field, "only pixels rescaled by 1/255 are supported; pass --transform hf for such")
        );
    }
    if !json.bool("do_normalize")?.unwrap_or(true) {
        return Ok((vec![0.0; channels], vec![1.0; channels]));
    }
    let default = |class: &Class| class.statistics.of(channels);
    let (mean, std) = (json.means("image_mean", channels)?, json.deviations("image_std", channels)?);
    let mean = or_default(json, "image_mean", mean, |class| Some(default(class).0))?;
    Ok((mean, or_default(json, "image_std", std, |class| Some(default(class).1))?))
}

/// The number whose multiples the sides of resized images are, if the file states it. The processors of
/// MaskFormer and Mask2Former resize so; those of other classes do not, and 0 says that they do not.
///
/// # Errors
/// [`ModelError::File`] for another number than 0 to 4096.
pub(super) fn size_divisor(json: &Json) -> Result<Option<usize>, ModelError> {
    if !class_of(json)?.is_some_and(|class| class.names.contains(&"MaskFormer")) {
        return Ok(None);
    }
    let field = if json.get("size_divisor").is_some() { "size_divisor" } else { "size_divisibility" };
    match json.side(field)? {
        Some(divisor) if divisor > MAX_DIVISOR => {
            Err(json.error(field, format!("{divisor} is not in 0..={MAX_DIVISOR}")))
        }
        stated => Ok(stated.filter(|&divisor| divisor > 0)),
    }
}

/// The resize that `size` describes: a side or `{height, width}` resizes both sides; `{shortest_edge}`
/// resizes in proportion and needs a crop. Images must get the size `wanted`.
fn resize(json: &Json, wanted: Size, crop: bool) -> Result<Resize, ModelError> {
    let sides =
        |field: &str| match json.get(field) {
            Some(Value::Object(_)) => {
                let size = json.object(field)?.expect("the field holds an object");
                match (size.side("shortest_edge")?, size.side("height")?, size.side("width")?) {
                    (Some(edge), None, None) => Ok((true, Size::square(edge))),
                    (None, Some(height), Some(width)) => Ok((false, Size::new(height, width))),
                    _ => Err(json.error(field, "is neither a shortest_edge nor a height and a width")),
                }
            }
            _ => {
                let stated = json.size(field)?.map(|size| (false, size));
                or_default(json, field, stated, |class| {
                    if field == "size" { class.resized() } else { class.cropped() }
                })
            }
        };
    let (in_proportion, resized) = sides("size")?;
    let result = if crop { sides("crop_size")?.1 } else { resized };
    if result != wanted && (crop || !in_proportion) {
        let problem = format!(
            "gives images of {result} pixels, but config.json has image_size {wanted}; correct one of \
             them, or pass --transform hf"
        );
        return Err(json.error("size", problem));
    }
    match (in_proportion, crop) {
        (true, true) => Ok(Resize::ShorterSide(resized.height)),
        (true, false) => Err(json.error(
            "size",
            "a shortest_edge without do_center_crop gives images of different sizes; state \
             do_center_crop, or pass --transform hf",
        )),
        (false, _) if resized == wanted => Ok(Resize::Direct),
        (false, _) => Err(json.error("size", "a direct resize followed by a crop is not supported")),
    }
}
