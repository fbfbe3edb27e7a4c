//! Opens the data set that an option names.

use std::path::Path;

use swinq::data::DataError;
use swinq::model::SwinConfig;
use swinq::{Error, Images, Sizing, Split};

use crate::args::Usage;

/// [`Images::open`]; `option` is the option that selects the split, which the message about a missing split
/// names.
pub fn open(
    path: &Path,
    split: &Split,
    option: &str,
    limit: Option<usize>,
    seed: u64,
) -> anyhow::Result<Images> {
    Images::open(path, split.clone(), limit, seed).map_err(|error| match &error {
        Error::Data(DataError::MissingSplit { found, .. }) if !found.is_empty() => {
            anyhow::anyhow!("{error}; pass {option} {} to use it", found[0])
        }
        _ => error.into(),
    })
}

/// Refuses `--size` for images of a classifier, whose architecture is `config`.
pub fn check_size(size: Option<Sizing>, config: &SwinConfig) -> Result<(), Usage> {
    if size.is_none() || config.is_backbone() {
        return Ok(());
    }
    let problem = "--size is for backbones; a classifier's images have the size of its preprocessing (for a backbone, add \
                   --task features)";
    Err(Usage(problem.to_owned()))
}
