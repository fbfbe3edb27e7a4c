//! Opens the data set that an option names.

use std::path::Path;

use swinq::data::DataError;
use swinq::{Error, Images, Split};

/// [`Images::open`]; `option` is the option that selects the split, which the message about a missing split names.
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
