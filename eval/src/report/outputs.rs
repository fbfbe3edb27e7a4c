//! The outputs of a backbone, and the images whose feature maps are farthest from the baseline's.

use super::ReportExtras;
use super::svg::bar;
use crate::results::{ImageResult, ModelResult, OutputResult};
use crate::text::{cosine, decibels, image_name, relative};

/// The section about outputs.
pub struct Outputs {
    pub rows: Vec<OutputRow>,
    /// The worst images, worst first.
    pub images: Vec<OutputCard>,
}

/// One output.
pub struct OutputRow {
    pub name: String,
    pub sqnr: String,
    pub cosine: String,
    pub error: String,
    /// The error relative to the largest of all outputs.
    pub bar: String,
}

/// An image.
pub struct OutputCard {
    /// The picture as a data URI, if there is one, with its width and height.
    pub picture: Option<(String, usize, usize)>,
    pub name: String,
    pub size: String,
    /// Name and SQNR of each output.
    pub outputs: Vec<[String; 2]>,
}

impl Outputs {
    /// The outputs of `model`; `None` if it is no backbone, or was not compared.
    pub fn new(model: &ModelResult, extras: &ReportExtras) -> Option<Outputs> {
        let error = |output: &OutputResult| output.relative_error.unwrap_or(0.0);
        let largest = model.outputs.iter().map(error).fold(f64::MIN_POSITIVE, f64::max);
        let row = |output: &OutputResult| OutputRow {
            name: output.name.clone(),
            sqnr: decibels(output.sqnr_db),
            cosine: cosine(output.cosine),
            error: output.relative_error.map_or("-".to_owned(), relative),
            bar: bar(&[(error(output) / largest, "noisy")], None),
        };
        let images = model.worst_images.iter().map(|image| card(image, extras)).collect();
        let rows: Vec<OutputRow> = model.outputs.iter().map(row).collect();
        (!rows.is_empty()).then_some(Outputs { rows, images })
    }
}

fn card(image: &ImageResult, extras: &ReportExtras) -> OutputCard {
    let thumbnail = extras.thumbnails.get(&image.id);
    let [height, width] = image.size;
    OutputCard {
        picture: thumbnail.map(|thumbnail| (thumbnail.data_uri(), thumbnail.width, thumbnail.height)),
        name: image_name(image),
        size: format!("{height}x{width}"),
        outputs: image.outputs.iter().map(|o| [o.name.clone(), decibels(o.sqnr_db)]).collect(),
    }
}
