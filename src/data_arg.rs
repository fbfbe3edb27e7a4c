//! From the data arguments to batches.

use std::path::Path;

use anyhow::bail;
use sha2::{Digest, Sha256};
use swinq_data::{Dataset, Layout, Loader, LoaderOptions, Split};
use swinq_model::{SwinConfig, Transform};

/// Batches in flight between the decoder and the model.
const PREFETCH: usize = 2;

/// A data set and the images of it that a run uses.
pub struct Sample {
    /// The data set.
    pub dataset: Dataset,
    /// Positions of the images in its list, in the order they are used.
    pub ids: Vec<usize>,
}

impl Sample {
    /// Opens the data set and draws a seeded sample of `limit` images, or takes all in list order.
    pub fn open(path: &Path, split: Split, limit: Option<usize>, seed: u64) -> anyhow::Result<Sample> {
        let dataset = Dataset::open(path, split)?;
        let ids = dataset.sample(limit, seed);
        Ok(Sample { dataset, ids })
    }

    /// Refuses a data set whose labels cannot be the model's classes.
    pub fn check_labels(&self, config: &SwinConfig) -> anyhow::Result<()> {
        let data = self.dataset.describe();
        let Some(classes) = self.dataset.num_classes() else {
            bail!(
                "{data}; accuracy needs labels: an ImageFolder, a Swin zip layout or a list file with classes"
            );
        };
        if classes > config.num_classes {
            bail!(
                "{data}, but {} has {}; is it the data the model was trained on? (a float \
                 checkpoint's class count comes from --cfg: --opts MODEL.NUM_CLASSES {classes})",
                config.name,
                config.num_classes
            );
        }
        if self.dataset.layout() == Layout::ImageFolder && classes < config.num_classes {
            bail!(
                "{data}, one folder each, but {} has {} classes, so folder order would not be class \
                 order; use a list file with class numbers for a part of the classes",
                config.name,
                config.num_classes
            );
        }
        Ok(())
    }

    /// SHA-256 over the names of the images used, one a line, hexadecimal.
    pub fn list_sha256(&self) -> String {
        let mut hash = Sha256::new();
        for &id in &self.ids {
            hash.update(self.dataset.name(id));
            hash.update("\n");
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Batches of the sample, preprocessed.
    pub fn loader(
        &self,
        transform: &Transform,
        batch_size: usize,
        threads: usize,
        skip_corrupt: usize,
    ) -> Loader {
        let options = LoaderOptions { batch_size, threads, prefetch: PREFETCH, skip_corrupt };
        Loader::new(self.dataset.clone(), self.ids.clone(), transform.clone(), options)
    }
}
