//! Histograms of the magnitudes that calibration observed, and the file that keeps them beside a checkpoint.
//!
//! A checkpoint holds what an engine needs and nothing else, and its bytes depend on the model only. The
//! histograms are therefore kept in a file of their own, which names the calibration that it belongs to.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swinq_model::atomic::write_atomic;
use swinq_model::text_file::{self, MAX_RESULTS};

use crate::error::EvalError;

/// Version of the file.
const VERSION: u32 = 1;

/// A histogram of the magnitudes that calibration observed at a site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeHistogram {
    /// Width of a bin. Bin `i` counts magnitudes `m` with `i * bin_width <= m < (i + 1) * bin_width`.
    pub bin_width: f64,
    /// Number of magnitudes in each bin; the last bin is not empty.
    pub counts: Vec<u64>,
    /// Number of values that are exactly zero.
    #[serde(default)]
    pub zeros: u64,
    /// The largest magnitude.
    #[serde(default)]
    pub max: f64,
    /// Number of magnitudes beyond the chosen range; absent if each channel has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clipped: Option<u64>,
}

impl RangeHistogram {
    /// Number of bins that [`RangeHistogram::coarse`] keeps at most.
    pub const BINS: usize = 128;

    /// Adds up neighbouring bins of `counts`, each `width` wide, so that at most [`RangeHistogram::BINS`]
    /// remain. `clipped` counts the bins that lie beyond `amax` completely, if the site has one range.
    pub fn coarse(counts: &[u64], width: f64, zeros: u64, max: f64, amax: Option<f64>) -> RangeHistogram {
        let factor = counts.len().div_ceil(RangeHistogram::BINS).max(1);
        let beyond = |amax: f64| ((amax / width).ceil().max(0.0) as usize).min(counts.len());
        RangeHistogram {
            bin_width: width * factor as f64,
            counts: counts.chunks(factor).map(|bins| bins.iter().sum()).collect(),
            zeros,
            max,
            clipped: amax.map(|amax| counts[beyond(amax)..].iter().sum()),
        }
    }

    /// Number of values.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &n| sum.saturating_add(n))
    }
}

/// The histograms of a calibration, and the command that made them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RangeFile {
    /// Version of the file, 1.
    pub version: u32,
    /// SHA-256 of the pixels of the calibration, as the checkpoint records it.
    pub calibration_sha256: String,
    /// The command that calibrated the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// SQNR in dB of the codes of each quantized weight against the float weight that they were made of.
    #[serde(default)]
    pub weights: BTreeMap<String, f64>,
    /// Histograms by site.
    pub sites: BTreeMap<String, RangeHistogram>,
}

impl RangeFile {
    /// The path of the file that belongs to `checkpoint`: `.ranges.json` in place of its extension.
    pub fn beside(checkpoint: &Path) -> PathBuf {
        checkpoint.with_extension("ranges.json")
    }

    /// A file of the histograms `sites` of the calibration with this hash, and of the SQNR of `weights`.
    pub fn new(
        calibration_sha256: String,
        command: Option<String>,
        weights: BTreeMap<String, f64>,
        sites: BTreeMap<String, RangeHistogram>,
    ) -> RangeFile {
        RangeFile { version: VERSION, calibration_sha256, command, weights, sites }
    }

    /// Writes the file atomically, one site per line.
    ///
    /// # Errors
    /// An error if `path` cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EvalError> {
        let head = RangeFile { sites: BTreeMap::new(), ..self.clone() };
        write_atomic(path, |out: &mut dyn Write| {
            let head = serde_json::to_string(&head)?;
            let head = head.strip_suffix("{}}").expect("the sites are the last key");
            writeln!(out, "{head}{{")?;
            for (i, (site, histogram)) in self.sites.iter().enumerate() {
                let comma = if i + 1 < self.sites.len() { "," } else { "" };
                writeln!(
                    out,
                    "{}:{}{comma}",
                    serde_json::to_string(site)?,
                    serde_json::to_string(histogram)?
                )?;
            }
            writeln!(out, "}}}}")
        })?;
        Ok(())
    }

    /// Reads the file at `path`; `None` if there is none.
    ///
    /// # Errors
    /// [`EvalError::Io`]; [`EvalError::File`] if it is not such a file or has another version.
    pub fn read(path: &Path) -> Result<Option<RangeFile>, EvalError> {
        let text = match text_file::read(path, MAX_RESULTS) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(EvalError::Io { path: path.to_owned(), source }),
        };
        let file: RangeFile = serde_json::from_str(&text).map_err(|e| EvalError::file(path, e))?;
        let widths = file.sites.values().all(|h| h.bin_width.is_finite() && h.bin_width > 0.0);
        match file.version {
            VERSION if widths => Ok(Some(file)),
            VERSION => Err(EvalError::file(path, "a bin width is not a positive number")),
            other => {
                Err(EvalError::file(path, format!("version {other}; this program reads version {VERSION}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_bins_are_added_up() {
        let counts: Vec<u64> = (0..300).collect();
        let coarse = RangeHistogram::coarse(&counts, 0.5, 7, 149.9, Some(100.0));
        assert_eq!((coarse.bin_width, coarse.counts.len()), (1.5, 100));
        assert_eq!((coarse.counts[0], coarse.counts[99]), (1 + 2, 297 + 298 + 299));
        assert_eq!(coarse.clipped, Some((200..300).sum::<u64>()));
        assert_eq!(coarse.total(), counts.iter().sum::<u64>());
        let all = RangeHistogram::coarse(&[4, 1], 0.5, 0, 0.9, Some(9.0));
        assert_eq!((all.counts.as_slice(), all.clipped, all.bin_width), (&[4, 1][..], Some(0), 0.5));
        assert_eq!(RangeHistogram::coarse(&[], 0.5, 0, 0.0, None).total(), 0);
    }

    #[test]
    fn files_round_trip_and_damaged_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = RangeFile::beside(&folder.path().join("swin.int8.safetensors"));
        assert_eq!(path.file_name().unwrap(), "swin.int8.ranges.json");
        assert_eq!(RangeFile::read(&path).unwrap(), None);
        let histogram = RangeHistogram::coarse(&[3, 1], 0.25, 1, 0.4, Some(0.3));
        for sites in
            [BTreeMap::new(), [("a.b".to_owned(), histogram.clone()), ("c".to_owned(), histogram)].into()]
        {
            let weights = BTreeMap::from([("head.weight".to_owned(), 41.5)]);
            let file = RangeFile::new("5e".repeat(32), Some("swinq calibrate".to_owned()), weights, sites);
            file.write(&path).unwrap();
            assert_eq!(RangeFile::read(&path).unwrap(), Some(file));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to, problem) in [
            ("\"version\":1", "\"version\":9", "version 9"),
            ("0.25", "-1", "bin width"),
            ("{", "", "line 1"),
        ] {
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            let error = RangeFile::read(&path).unwrap_err().to_string();
            assert!(error.contains("swin.int8.ranges.json") && error.contains(problem), "{error}");
        }
    }
}
