//! Arguments of the commands that measure or search recipes: `sensitivity` and `tune`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use swinq::{FileKind, PartKinds, PartsOf, Sizing, Split};
use swinq_ladder::parse::{at_least_one, batch, positive};

use super::shared::{CALIBRATION_IMAGES, file};
use super::{BackendArgs, CalibrationArgs, DataArgs, FloatArgs, Threads};

/// The model and the images of `sensitivity` and `tune`.
#[derive(Clone, Debug, Args)]
pub struct SubjectArgs {
    /// Float checkpoint (.pth, .pt, .bin, .pkl, .safetensors), or a Hugging Face or timm directory.
    pub model: PathBuf,
    #[command(flatten)]
    pub float: FloatArgs,
    #[command(flatten)]
    pub data: DataArgs,
    /// Size of the images of a backbone: their own (the default), this height and width, or in proportion so
    /// that the shorter side has 800 pixels and the longer one at most 1333.
    #[arg(long, value_name = "keep|HxW|short:800,long:1333")]
    pub size: Option<Sizing>,
    /// Outputs of a backbone whose SQNR counts; the worst of them does (default: all).
    #[arg(long, value_name = "stageK,stageK", value_delimiter = ',')]
    pub sqnr_of: Vec<String>,
    /// Part of the data set on which models are measured.
    #[arg(long, default_value = "val")]
    pub split: Split,
    /// Threads (0: one per core); a single image uses as many of them as make it faster, or with =N exactly
    /// N.
    #[arg(long, value_name = "N|=N", default_value = "0")]
    pub threads: Threads,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
}

/// Arguments of `sensitivity`.
#[derive(Clone, Debug, Args)]
pub struct SensitivityArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Number of images on which effects are measured: a seeded sample, spread over the classes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub images: usize,
    /// Parts that are measured (default: layers, then sites): layers with the products of attention, blocks
    /// with the layers outside of them, or single sites.
    #[arg(long, value_enum)]
    pub parts: Option<Parts>,
    /// Measures only parts whose names match: a glob such as 'layers.2.**' or '**.mlp.fc2', or 're:' and a
    /// regular expression.
    #[arg(long, value_name = "PATTERN", default_value = "**", hide_default_value = true)]
    pub only: String,
    /// Layers to print, from the most sensitive.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub top: usize,
    /// File to write: the results as JSON. Finished measurements are kept beside it, in FILE.cache.
    #[arg(short, long, value_name = "FILE", value_parser = file(FileKind::Json))]
    pub output: PathBuf,
}

/// Kinds of parts of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Parts {
    /// Linear layers and the products of attention.
    Layers,
    /// Blocks, and the layers outside of them.
    Blocks,
    /// Single sites.
    Sites,
}

impl SensitivityArgs {
    /// The parts that are measured.
    pub fn parts(&self) -> PartsOf {
        let kinds = match self.parts {
            None => PartKinds::LayersAndSites,
            Some(Parts::Layers) => PartKinds::Layers,
            Some(Parts::Blocks) => PartKinds::Blocks,
            Some(Parts::Sites) => PartKinds::Sites,
        };
        PartsOf { kinds, pattern: self.only.clone() }
    }
}

impl SubjectArgs {
    /// The words of the `calibrate` command that writes the checkpoint `output` with the recipe of these
    /// arguments, except that `part` stays in float.
    pub fn calibrate_without(&self, part: &str, output: &Path) -> Vec<String> {
        let CalibrationArgs { recipe, ptq, calibration_split, calibration_images, seed } = &self.calibration;
        let mut words = vec!["swinq".to_owned(), "calibrate".to_owned(), self.model.display().to_string()];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("--data-path", self.data.data_path.display().to_string());
        if *calibration_split != Split::Train {
            add("--split", calibration_split.to_string());
        }
        if *calibration_images != CALIBRATION_IMAGES {
            add("--batches", calibration_images.to_string());
            add("--batch-size", "1".to_owned());
        }
        if *seed != 0 {
            add("--seed", seed.to_string());
        }
        if self.data.skip_corrupt > 0 {
            add("--skip-corrupt", self.data.skip_corrupt.to_string());
        }
        if recipe != "default" {
            add("--recipe", recipe.clone());
        }
        self.size.iter().for_each(|size| add("--size", size.to_string()));
        ptq.iter().for_each(|ptq| add("--ptq", ptq.to_string()));
        add("--disable", part.to_owned());
        add("-o", output.display().to_string());
        words.extend(self.float.words());
        words
    }
}

/// Arguments of `tune`.
#[derive(Clone, Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Number of images for search and verification, one half each: a seeded sample, spread over the classes
    /// (default: all).
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub images: Option<usize>,
    /// The largest drop of top-1 accuracy of a classifier, in percentage points (default: 0.2).
    #[arg(long, value_name = "POINTS", value_parser = points, allow_negative_numbers = true)]
    pub max_drop: Option<f64>,
    /// The least SQNR of the outputs of a backbone against float, in dB.
    #[arg(long, value_name = "DB", value_parser = points, allow_negative_numbers = true)]
    pub min_sqnr: Option<f64>,
    /// The least speedup over the float model on the same engine.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub min_speedup: Option<f64>,
    /// Minutes that the timing of launches and the search may take together; calibration and verification are
    /// not counted. The start recipe is always tried.
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    pub budget: Option<f64>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Images per inference whose latency counts. Before a backbone they have the size that most images have;
    /// on a GPU the network's own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = batch)]
    pub batch_size: usize,
    /// Table of measured latencies: read if it exists, and extended (default: OUTPUT.latencies.json).
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Json))]
    pub latencies: Option<PathBuf>,
    /// Write a report of the search, and of float and the tuned model on the verification images, as one HTML
    /// page.
    #[arg(long, value_name = "FILE", value_parser = file(FileKind::Html))]
    pub report: Option<PathBuf>,
    /// Quantized checkpoint to write. Beside it are written OUTPUT.yaml (the recipe), OUTPUT.json (all
    /// candidates and the front), OUTPUT.latencies.json (the table of latencies) and OUTPUT.cache (finished
    /// measurements).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Percentage points or percent: 0 or more.
pub fn points(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x >= 0.0 && f64::is_finite(x) => Ok(x),
        _ => Err("must be 0 or a positive number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::super::{Cli, Command};

    #[test]
    fn the_command_without_a_part_calibrates_as_the_measurement_did() {
        let line = "sensitivity swin.pth --cfg swin_tiny_patch4_window7_224 --data-path data --transform timm --task features \
                    --outputs stage2,stage4 --calibration-images 20 --seed 3 --recipe mode1 --ptq basic --size 64x96 \
                    --dialect timm --prefix model. --weights net --labels names.txt --orientation exif --channels bgr \
                    --skip-corrupt 2 -o s.json \
                    --opts MODEL.NUM_CLASSES 10 DATA.IMG_SIZE 256";
        let words = std::iter::once("swinq").chain(line.split_whitespace());
        let Command::Sensitivity(args) = Cli::try_parse_from(words).unwrap().command else { unreachable!() };
        let words =
            args.subject.calibrate_without("layers.0.downsample.reduction", Path::new("s.safetensors"));
        let Command::Calibrate(found) = Cli::try_parse_from(&words).unwrap().command else { unreachable!() };
        assert_eq!(format!("{:?}", found.float), format!("{:?}", args.subject.float), "{words:?}");
        assert_eq!(found.batches * found.batch_size, 20);
        assert_eq!((found.seed, found.skip_corrupt, found.recipe.as_str()), (3, 2, "mode1"));
        assert_eq!((found.ptq, found.size), (args.subject.calibration.ptq, args.subject.size));
        assert_eq!(found.disable, ["layers.0.downsample.reduction"]);
    }
}
