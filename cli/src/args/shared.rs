//! Arguments that several commands share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use swinq::int8_runtime::cuda::{Autotune, Gemm};
use swinq::model::{Ptq, StageOutput};
use swinq::{ChannelOrder, Dialect, FileKind, Images, Orientation, Padding, Recipe, Split, Task};
use swinq_ladder::parse::{at_least_one, threads};

use super::Usage;
use crate::images_arg;

/// The parser of the path of a file of a kind, which is written. It refuses the ending of another kind.
pub fn file(kind: FileKind) -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(move |path| kind.named(path))
}

/// Arguments for reading a float checkpoint.
#[derive(Clone, Debug, Default, Args)]
pub struct FloatArgs {
    /// Configuration of a bare float checkpoint: a shipped name (swin_tiny_patch4_window7_224, or that of a
    /// detector in its repository) or a YAML file in Microsoft's keys.
    #[arg(long, value_name = "NAME|FILE", help_heading = "Model options")]
    pub cfg: Option<String>,
    /// Overrides of the configuration, as `KEY VALUE` pairs up to the next option (MODEL.NUM_CLASSES 10);
    /// models stand before it.
    #[arg(long, value_names = ["KEY", "VALUE"], num_args = 2.., allow_negative_numbers = true, action = clap::ArgAction::Append, help_heading = "Model options")]
    pub opts: Vec<String>,
    /// Naming convention of the tensors (default: detected).
    #[arg(
        long,
        value_name = "microsoft|timm|old-timm|hf|torchvision|openmmlab|ft",
        help_heading = "Model options"
    )]
    pub dialect: Option<Dialect>,
    /// Key of the weights in a file of torch.save that has several (state_dict, net, teacher); by default the
    /// average of the weights is taken, if the file has one under state_dict_ema or model_ema.
    #[arg(long, value_name = "KEY", help_heading = "Model options")]
    pub weights: Option<String>,
    /// What the names of the network's tensors begin with (model.), if the checkpoint has other tensors too
    /// (default: what all names begin with is left out).
    #[arg(long, value_name = "PREFIX", help_heading = "Model options")]
    pub prefix: Option<String>,
    /// What the network is: a classifier, or the backbone of a larger model, whose outputs are feature maps
    /// (default: what its files say; `features` takes a backbone).
    #[arg(long, value_enum, help_heading = "Model options")]
    pub task: Option<NetworkTask>,
    /// Outputs of a backbone, as in stage2,stage3,stage4 (default: those that its files name, else those with
    /// a norm, else all).
    #[arg(long, value_name = "stageK,stageK", value_delimiter = ',', help_heading = "Model options")]
    pub outputs: Option<Vec<StageName>>,
    /// Preprocessing (default: from the configuration or directory).
    #[arg(long, value_enum, help_heading = "Model options")]
    pub transform: Option<Family>,
    /// Whether images are turned as EXIF in their files states (default: as the library that reads such a
    /// checkpoint does, or as a quantized checkpoint states).
    #[arg(long, value_name = "exif|stored", help_heading = "Model options")]
    pub orientation: Option<Orientation>,
    /// Order of the three channels before the network, also that of mean and deviation (default: rgb, or as a
    /// quantized checkpoint states).
    #[arg(long, value_name = "rgb|bgr", help_heading = "Model options")]
    pub channels: Option<ChannelOrder>,
    /// Class names, one per line (default: those of the model).
    #[arg(long, value_name = "FILE", help_heading = "Model options")]
    pub labels: Option<PathBuf>,
    /// The other models of the command line, which may describe a float checkpoint.
    #[arg(skip)]
    pub described_by: Vec<PathBuf>,
}

/// Arguments that pad the images of a backbone.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PaddingArgs {
    /// Pad images after normalisation with zeros, at the right and at the bottom, to multiples of N pixels,
    /// as detectors do (32). The feature maps are those of the padded images.
    #[arg(long, value_name = "N", value_parser = multiple)]
    pub pad_to: Option<usize>,
    /// Pad the images of a batch in the same way to a common size, as detectors do: --batch-size images that
    /// follow each other form a batch.
    #[arg(long)]
    pub pad_batch: bool,
}

impl PaddingArgs {
    /// The padding.
    pub fn padding(self) -> Padding {
        Padding { multiple: self.pad_to.unwrap_or(1), to_common: self.pad_batch }
    }
}

/// A multiple to which sides are padded.
pub fn multiple(text: &str) -> Result<usize, String> {
    let multiple =
        text.parse().ok().filter(|&multiple| Padding { multiple, to_common: false }.check().is_ok());
    multiple.ok_or_else(|| "must be a number of pixels from 1 to 4096".to_owned())
}

/// What a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkTask {
    /// A classifier.
    Classification,
    /// A backbone.
    Features,
}

impl NetworkTask {
    pub fn task(self) -> Task {
        match self {
            NetworkTask::Classification => Task::Classification,
            NetworkTask::Features => Task::Features,
        }
    }
}

/// The output of a stage by its name, `stage1` for the first; the number is from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageName(pub usize);

impl FromStr for StageName {
    type Err = String;

    fn from_str(text: &str) -> Result<StageName, String> {
        let stage = StageOutput::stage_of(text).filter(|&stage| stage < usize::from(u8::MAX));
        stage.map(StageName).ok_or_else(|| "must be stage1, stage2 and so on".to_owned())
    }
}

/// The family whose evaluation preprocessing is used.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Family {
    /// Microsoft: shorter side to int(256 / 224 * size), center crop (direct with TEST.CROP False).
    Ms,
    /// timm: shorter side to floor(size / crop_pct), center crop.
    Timm,
    /// torchvision: the weights' own resize, center crop.
    Torchvision,
    /// The Swins that Hugging Face publishes: direct bicubic resize, mean and deviation of ImageNet.
    Hf,
}

/// The word of a value on the command line.
fn value_name(value: &impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

impl FloatArgs {
    /// These arguments, with `models` among which a quantized checkpoint may describe a float one.
    pub fn described_by(&self, models: &[PathBuf]) -> FloatArgs {
        FloatArgs { described_by: models.to_vec(), ..self.clone() }
    }

    /// These arguments as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let name = |value: &dyn std::fmt::Display| value.to_string();
        let path = |path: &PathBuf| path.display().to_string();
        let outputs = self.outputs.as_ref().map(|outputs| {
            outputs.iter().map(|StageName(stage)| format!("stage{}", stage + 1)).collect::<Vec<_>>().join(",")
        });
        let options = [
            ("--cfg", self.cfg.clone()),
            ("--dialect", self.dialect.as_ref().map(|dialect| name(dialect))),
            ("--weights", self.weights.clone()),
            ("--prefix", self.prefix.clone()),
            ("--task", self.task.as_ref().and_then(value_name)),
            ("--outputs", outputs),
            ("--transform", self.transform.as_ref().and_then(value_name)),
            ("--orientation", self.orientation.as_ref().map(|orientation| name(orientation))),
            ("--channels", self.channels.as_ref().map(|channels| name(channels))),
            ("--labels", self.labels.as_ref().map(path)),
        ];
        let given = options.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?]));
        let opts = (!self.opts.is_empty()).then(|| "--opts".to_owned());
        // The pairs of --opts go on up to the next option.
        given.flatten().chain(opts).chain(self.opts.iter().cloned()).collect()
    }

    /// The files that these arguments name. `--cfg` may also be the name of a shipped configuration, which is
    /// no file.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.cfg.as_ref().map(Path::new).into_iter().chain(self.labels.as_deref())
    }

    /// Refuses arguments for reading a float checkpoint if no model is one: a quantized checkpoint contains
    /// its own configuration.
    pub fn check_used(&self, any_float: bool) -> Result<(), Usage> {
        let given = self.cfg.is_some()
            || !self.opts.is_empty()
            || self.dialect.is_some()
            || self.weights.is_some()
            || self.prefix.is_some()
            || self.outputs.is_some()
            || self.transform.is_some();
        if given && !any_float {
            let text = "--cfg, --opts, --dialect, --weights, --prefix, --outputs and --transform apply to float checkpoints only, and \
                        every model given is quantized; leave these options out";
            return Err(Usage(text.to_owned()));
        }
        Ok(())
    }
}

/// Arguments that select the images.
#[derive(Clone, Debug, Args)]
pub struct DataArgs {
    /// ImageFolder root, Swin zip layout root, list file, or folder of images.
    #[arg(long, value_name = "PATH")]
    pub data_path: PathBuf,
    /// Number of corrupt images to leave out; one more is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip_corrupt: usize,
}

/// Arguments that select the backend and its options.
#[derive(Clone, Debug, Args)]
pub struct BackendArgs {
    /// Backend of the models: the GPU if there is one, the CPU engine, or the CUDA engine.
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Ordinal of the GPU; `bench` and `eval` run a model on several GPUs, as in `--devices 0,1`.
    #[arg(
        long,
        alias = "device",
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "0",
        help_heading = "CUDA options"
    )]
    pub devices: Vec<usize>,
    /// Type of the residual stream: auto is f16, or f32 where f16 does not hold it; with f32, INT8 layers
    /// give the same bits as on the CPU.
    #[arg(long, value_enum, default_value_t = Residual::Auto, help_heading = "CUDA options")]
    pub residual: Residual,
    /// Implementation of the GEMMs (own, cublaslt, or the faster of the two); several values give one row
    /// each.
    #[arg(
        long,
        value_name = "own|cublaslt|auto",
        value_delimiter = ',',
        default_value = "auto",
        help_heading = "CUDA options"
    )]
    pub gemm: Vec<Gemm>,
    /// How kernels are chosen: by the program's tables, by a performance model of the GPU, or by measuring a
    /// few or all candidates.
    #[arg(long, value_name = "table|off|quick|full", default_value = "table", help_heading = "CUDA options")]
    pub autotune: Autotune,
    /// Mark inferences and launches for a profiler (NVTX). Launches are then issued one by one, which is
    /// slower.
    #[arg(long, help_heading = "CUDA options")]
    pub nvtx: bool,
}

/// The backend that runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The GPU if one can be used, else the CPU.
    Auto,
    /// The CPU engine.
    Cpu,
    /// The CUDA engine.
    Cuda,
}

/// Elements of the residual stream on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Residual {
    /// Half precision, or single where half does not hold the values.
    Auto,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// Images of a calibration where no number is stated; `calibrate` draws as many in its batches.
pub const CALIBRATION_IMAGES: usize = 80;

/// Arguments of a calibration by `sensitivity` and `tune`.
#[derive(Clone, Debug, Args)]
pub struct CalibrationArgs {
    /// Recipe to measure, or to start the search from: default, mode1, mode2, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "default", help_heading = "Calibration options")]
    pub recipe: String,
    /// How the numbers of every layer are found; overrides the recipe: basic or refined.
    #[arg(long, value_name = "basic|refined", help_heading = "Calibration options")]
    pub ptq: Option<Ptq>,
    /// Part of the data set on which ranges are calibrated.
    #[arg(long, default_value = "train", help_heading = "Calibration options")]
    pub calibration_split: Split,
    /// Number of images on which ranges are calibrated.
    #[arg(long, value_name = "N", default_value_t = CALIBRATION_IMAGES, value_parser = at_least_one, help_heading = "Calibration options")]
    pub calibration_images: usize,
    /// Seed of the samples of images.
    #[arg(long, default_value_t = 0, help_heading = "Calibration options")]
    pub seed: u64,
}

impl CalibrationArgs {
    /// The recipe.
    pub fn recipe(&self) -> anyhow::Result<Recipe> {
        let recipe = swinq::load_recipe(&self.recipe).context("--recipe")?;
        Ok(self.ptq.into_iter().fold(recipe, Recipe::with_ptq))
    }

    /// The images of the data set `data` on which ranges are calibrated.
    pub fn images(&self, data: &Path) -> anyhow::Result<Images> {
        let option = "--calibration-split";
        images_arg::open(data, &self.calibration_split, option, Some(self.calibration_images), self.seed)
    }
}

/// The remedy for words after `--opts` that are no pairs.
pub const OPTS_HINT: &str =
    "--opts takes every word up to the next option as KEY VALUE pairs; put models and images before --opts";

/// The words after `--opts`, which takes all words up to the next option, as pairs of key and value.
///
/// # Errors
/// A key that is a file, which was meant as a model, and a key without a value.
pub fn pairs(words: &[String]) -> Result<Vec<(String, String)>, Usage> {
    let (pairs, rest) = words.as_chunks::<2>();
    let is_key = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let is_model =
        |word: &str| Path::new(word).is_file() && (!is_key(word) || Path::new(word).extension().is_some());
    if let Some(file) = pairs.iter().map(|[key, _]| key).chain(rest).find(|word| is_model(word)) {
        return Err(Usage(format!("--opts: {file} is a file, not a key; {OPTS_HINT}")));
    }
    if let [key] = rest {
        return Err(Usage(format!("--opts: {key} has no value; {OPTS_HINT}")));
    }
    Ok(pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect())
}

/// The threads of a CPU engine: `N`, at most so many, or `=N`, so many also for a single image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Threads of the engine; 0 is one per core.
    pub most: usize,
    /// Threads that work on one image; 0 is as many as make it faster.
    pub of_image: usize,
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Threads, String> {
        match text.strip_prefix('=') {
            None => Ok(Threads { most: threads(text)?, of_image: 0 }),
            Some(number) => match threads(number)? {
                0 => Err("after `=` must be a number of threads of at least 1".to_owned()),
                n => Ok(Threads { most: n, of_image: n }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;

    #[test]
    fn a_name_with_the_ending_of_another_format_is_refused() {
        for (line, name) in [
            ("eval m --data-path d --report r.md", "name it r.html"),
            ("eval m --data-path d --markdown r.html", "name it r.md"),
            ("eval m --data-path d --json r.csv", "name it r.json"),
            ("eval m --data-path d --predictions r.json", "name it r.csv"),
            ("merge a b -o r.json --report r.json", "name it r.html"),
            ("bench m --json m.safetensors", "name it m.json"),
            ("sensitivity m --data-path d -o s.safetensors", "name it s.json"),
            ("tune m --data-path d -o q.safetensors --report r.json", "name it r.html"),
            ("predict m x.png --logits l.npz", "name it l.safetensors"),
            ("features m x.png -o f.npz", "name it f.safetensors"),
            ("export m -o m.safetensors", "name it m.onnx"),
        ] {
            let parsed = |line: &str| Cli::try_parse_from(["swinq"].into_iter().chain(line.split(' ')));
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(name), "{line}: {error}");
            let right = name.rsplit(' ').next().unwrap();
            let (start, _) = line.rsplit_once(' ').unwrap();
            assert!(parsed(&format!("{start} {right}")).is_ok(), "{line}");
        }
    }
}
