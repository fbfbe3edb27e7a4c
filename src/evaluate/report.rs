//! Reports as files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jpeg_encoder::{ColorType, Encoder};
use swinq_data::{RgbImage, preprocess};
use swinq_eval::report::verdict::subject;
use swinq_eval::{ReportExtras, Results, Thumbnail};
use swinq_model::atomic::write_atomic;
use swinq_model::{ChannelOrder, Resize, Size, Transform};

use crate::{Error, Images};

/// Largest side of a thumbnail in pixels.
const SIDE: usize = 128;
/// JPEG quality of a thumbnail.
const QUALITY: u8 = 76;

/// The files of a report; each is optional.
#[derive(Clone, Debug, Default)]
pub struct ReportFiles {
    /// The report as one HTML page.
    pub html: Option<PathBuf>,
    /// The report as Markdown.
    pub markdown: Option<PathBuf>,
    /// The figures as JSON.
    pub json: Option<PathBuf>,
}

impl ReportFiles {
    /// The paths that are set.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.json, &self.html, &self.markdown].into_iter().flatten()
    }
}

/// Writes the report of `results` and `extras`. The page shows the images on which the model of its title
/// disagrees most with the baseline if `images` is the data set of the results.
///
/// # Errors
/// [`Error::Eval`] for results that are impossible; an error if a file cannot be written, or an image not be
/// read.
pub fn write_report(
    results: &Results,
    mut extras: ReportExtras,
    images: Option<&Images>,
    files: &ReportFiles,
) -> Result<(), Error> {
    results.check()?;
    if let Some(path) = &files.json {
        swinq_eval::write_results(path, results)?;
    }
    if let Some(path) = &files.html {
        if let Some(images) = images {
            extras.thumbnails = thumbnails(results, images)?;
        }
        let page = swinq_eval::html(results, &extras);
        write_atomic(path, |out| out.write_all(page.as_bytes()))?;
    }
    if let Some(path) = &files.markdown {
        let text = swinq_eval::markdown(results, &extras);
        write_atomic(path, |out| out.write_all(text.as_bytes()))?;
    }
    Ok(())
}

/// Pictures of the images on which the report's model disagrees most with the baseline, or is farthest from
/// it, as the model sees them.
fn thumbnails(results: &Results, images: &Images) -> Result<BTreeMap<usize, Thumbnail>, Error> {
    let (Some(dataset), Some(subject)) = (images.dataset(), subject(results)) else {
        return Ok(BTreeMap::new());
    };
    let Some(transform) = results.data.as_ref().and_then(|data| data.transform.as_ref()) else {
        return Ok(BTreeMap::new());
    };
    let model = &results.models[subject];
    let own = model.disagreements.iter().map(|image| (image.id, transform.clone()));
    let sized = model.worst_images.iter().map(|image| {
        let [height, width] = image.size;
        (image.id, Transform { size: Size::new(height, width), resize: Resize::Direct, ..transform.clone() })
    });
    let shown = own.chain(sized).filter(|(id, _)| *id < dataset.len());
    shown
        .map(|(id, transform)| {
            Ok((id, thumbnail(&dataset.decode_oriented(id, transform.orientation)?, &transform)))
        })
        .collect()
}

/// The input of the model, scaled down to at most [`SIDE`].
fn thumbnail(image: &RgbImage, transform: &Transform) -> Thumbnail {
    let size = transform.size;
    let mut pixels = preprocess(image, &Transform { channel_order: ChannelOrder::Rgb, ..transform.clone() });
    if transform.channels() == 1 {
        pixels = pixels.iter().flat_map(|&value| [value; 3]).collect();
    }
    let input = RgbImage::new(size.width, size.height, pixels);
    let longer = size.height.max(size.width).max(SIDE);
    let small = size.map(|side| (side * SIDE / longer).max(1));
    let direct = Transform { resize: Resize::Direct, ..Transform::microsoft(small, 3, false) };
    let pixels = preprocess(&input, &Transform { filter: transform.filter, ..direct });
    let mut jpeg = Vec::new();
    let encoder = Encoder::new(&mut jpeg, QUALITY);
    encoder
        .encode(&pixels, small.width as u16, small.height as u16, ColorType::Rgb)
        .expect("the picture is small and the buffer grows");
    Thumbnail { jpeg, width: small.width, height: small.height }
}
