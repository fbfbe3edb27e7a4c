//! Calibration and evaluation in shards: several processes, on any machines, work on some of the images each
//! and write a part; the parts merge into what one process would have made of all images, bit for bit.
//! `docs/scale.md` describes it.

mod calibration;
mod evaluation;

use serde::{Deserialize, Serialize};
use swinq_model::ModelError;
use swinq_model::part::{PartDocument, PartFile, PartKind, PartTensors, Shard};

use crate::{Error, Images, ReadOptions};

pub use calibration::{MergedCalibration, calibrate_shard, merge_calibration};
pub use evaluation::{MergedEvaluation, evaluate_shard, merge_evaluation};

/// The part of one shard, to be written to a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// Number of images that were read.
    pub images: usize,
    /// The error messages of the corrupt images that were left out.
    pub skipped: Vec<String>,
    document: PartDocument,
    tensors: PartTensors,
}

impl Part {
    fn new(
        kind: PartKind,
        shard: Shard,
        run: &impl Serialize,
        own: &impl Serialize,
        tensors: PartTensors,
    ) -> Result<Part, Error> {
        let json = |value: serde_json::Result<serde_json::Value>| {
            value.map_err(|e| Error::argument("shard", format!("the part has no JSON form: {e}")))
        };
        let (run, own) = (json(serde_json::to_value(run))?, json(serde_json::to_value(own))?);
        let document = PartDocument::new(kind, shard, run, own);
        Ok(Part { images: 0, skipped: Vec::new(), document, tensors })
    }

    /// Writes the part to `path`: whole or not at all.
    ///
    /// # Errors
    /// An error if the file cannot be written.
    pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        Ok(self.document.write(path.as_ref(), &self.tensors)?)
    }
}

/// The images of a run, in all parts alike. Paths are left out, because machines may have the images in
/// different places.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageSet {
    count: usize,
    seed: u64,
    /// Images per batch.
    batch_size: usize,
    /// Number of corrupt images that may be left out.
    skip_corrupt: usize,
    /// Hash of the images' names in the order of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names_sha256: Option<String>,
    /// Hash of their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels_sha256: Option<String>,
    /// Hash of the pixels of images in memory, which have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pixels_sha256: Option<String>,
}

impl ImageSet {
    fn of(images: &Images, read: &ReadOptions) -> ImageSet {
        ImageSet {
            count: images.len(),
            seed: images.seed(),
            batch_size: read.batch_size,
            skip_corrupt: read.skip_corrupt,
            names_sha256: images.list_sha256(),
            labels_sha256: images.labels_sha256(),
            pixels_sha256: images.pixels_sha256(),
        }
    }

    /// Refuses parts that together left out more corrupt images than one run may.
    fn check_skipped(&self, skipped: &[String]) -> Result<(), Error> {
        if skipped.len() <= self.skip_corrupt {
            return Ok(());
        }
        let problem = format!(
            "the shards left out {} corrupt images together, but --skip-corrupt allows {} in all; the first is {}",
            skipped.len(),
            self.skip_corrupt,
            skipped[0]
        );
        Err(Error::argument("skip_corrupt", problem))
    }
}

/// The version of swinq that writes the parts of a run.
fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Refuses a part whose number of names is not that of its images.
fn check_names(file: &PartFile, names: &[String], images: usize) -> Result<(), Error> {
    if names.len() == images {
        return Ok(());
    }
    let problem = format!("has {} names for {images} images; run this shard again", names.len());
    Err(ModelError::file(file.path(), problem).into())
}
