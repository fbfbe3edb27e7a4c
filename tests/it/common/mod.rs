//! Functions that the end-to-end tests share.

pub mod folder;
pub mod sample;
pub mod subject;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use swinq_calib::set_channel_codes;
use swinq_cuda::Device;
use swinq_model::checkpoint::{LoadOptions, load_float};
use swinq_model::config::load_config;
use swinq_model::quantized::FloatModel;
use swinq_model::{
    BlockId, HostTensor, Linear, QuantizedModel, Site, Size, StageOutput, SwinConfig, WindowPolicy,
};
use swinq_testing::XorShift;
use swinq_testing::model::random_channels;

pub use folder::Folder;
pub use swinq_testing::files;

/// The repository's root: that of the folder where the tests were built or, if the test programs were copied
/// to another machine, the current folder.
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("`cli` is a folder of the repository");
    if built.is_dir() { built.to_owned() } else { PathBuf::from(".") }
}

/// The bundled float model.
pub fn sample_model() -> PathBuf {
    root().join("samples/swin_micro_cifar10/model.safetensors")
}

/// Its configuration.
pub fn sample_cfg() -> PathBuf {
    root().join("samples/swin_micro_cifar10/cfg.yaml")
}

/// The bundled float model, loaded.
pub fn float_model() -> FloatModel {
    let cfg = load_config(sample_cfg().to_str().unwrap(), &[]).unwrap();
    load_float(&sample_model(), &LoadOptions { cfg: Some(cfg), ..LoadOptions::default() }).unwrap()
}

/// The bundled model as a backbone under the rule of detectors: both stages are outputs, the first with a
/// norm of random parameters.
pub fn backbone() -> FloatModel {
    let FloatModel { config, mut tensors, .. } = float_model();
    let outputs = vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)];
    let config = SwinConfig { window_policy: WindowPolicy::Detection, ..config }.into_backbone(outputs);
    tensors.retain(|name, _| !name.starts_with("norm.") && !name.starts_with("head."));
    for (seed, name) in ["norm0.weight", "norm0.bias"].into_iter().enumerate() {
        let values = XorShift::new(seed as u64 + 1).bytes(config.embed_dim).into_iter();
        let data = values.map(|byte| f32::from(byte) / 128.0 - 0.5).collect();
        tensors.insert(name.to_owned(), HostTensor { shape: vec![config.embed_dim], data });
    }
    FloatModel { config, tensors, labels: None, ..float_model() }
}

/// [`backbone`] with an outlier channel before the layer `layers.1.blocks.0.mlp.fc1`: the same function,
/// worse in INT8.
pub fn backbone_with_outliers() -> FloatModel {
    let mut model = backbone();
    for parameter in ["weight", "bias"] {
        model.tensors.get_mut(&format!("layers.1.blocks.0.norm2.{parameter}")).unwrap().data[5] *= 64.0;
    }
    let weight = model.tensors.get_mut("layers.1.blocks.0.mlp.fc1.weight").unwrap();
    let (_, columns) = weight.matrix();
    weight.data.iter_mut().skip(5).step_by(columns).for_each(|w| *w /= 64.0);
    model
}

/// Writes [`backbone`] in swinq's format to `path`.
pub fn write_backbone(path: &Path) {
    QuantizedModel::from_float(backbone()).unwrap().save(path).unwrap();
}

/// The bundled images.
pub fn sample_data() -> PathBuf {
    root().join("samples/cifar10")
}

/// The folder of large data; `None` if it is not set, after printing that `test` is skipped.
pub fn large_data(test: &str) -> Option<PathBuf> {
    let folder =
        std::env::var_os("SWINQ_DATA").map(PathBuf::from).filter(|p| p.join("data/cifar10").is_dir());
    if folder.is_none() {
        eprintln!("SKIPPED {test}: SWINQ_DATA names no folder with data/cifar10");
    }
    folder
}

/// Whether there is a GPU. Without one, prints that `test` is skipped, or fails if `REQUIRE_IMPL` names
/// `cuda`.
pub fn gpu(test: &str) -> bool {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| match Device::open(0) {
        Ok(device) => {
            eprintln!("running on {} ({})", device.name(), device.arch());
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    });
    if let Err(error) = found {
        let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "cuda"), "REQUIRE_IMPL names cuda: {error}");
        eprintln!("SKIPPED {test}: {error}");
    }
    found.is_ok()
}

/// Goes on, whatever the progress is.
pub fn go_on<T>(_: T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The command `swinq` with `args`.
pub fn swinq<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(args: I) -> Command {
    let mut command = Command::cargo_bin("swinq").expect("the binary is built");
    command.args(args);
    command
}

/// Runs `swinq calibrate` on the sample with more arguments.
pub fn calibrate(output: &Path, more: &[&str]) -> Assert {
    let mut command = swinq(["calibrate"]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
    command.arg("-o").arg(output).args(more).assert()
}

/// The text that a command wrote to standard error.
pub fn stderr(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

/// The text that a command wrote to standard output.
pub fn stdout(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
}

/// Asserts that a command failed with the exit code `code` and a message that contains all of `words`, and
/// that it did not panic.
#[track_caller]
pub fn refused(assert: Assert, code: i32, words: &[&str]) {
    let message = stderr(&assert);
    assert_eq!(assert.get_output().status.code(), Some(code), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// Runs `command` and sends SIGTERM as soon as it handles signals. Asserts that a run that the signal reached
/// before it wrote `output` ends with exit code 143 and leaves no file. A run that is faster than the signal
/// does not count.
#[cfg(target_os = "linux")]
#[track_caller]
pub fn terminated_before_it_writes(command: &mut std::process::Command, output: &Path) {
    use std::process::Stdio;
    const SIGTERM: u32 = 15;
    let handles_signals = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask >> (SIGTERM - 1) & 1 == 1)
    };
    for _ in 0..40 {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !handles_signals(child.id()) && child.try_wait().unwrap().is_none() {}
        let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        let code = child.wait().unwrap().code();
        if code == Some(143) && !output.exists() {
            return;
        }
        assert!(code == Some(143) || code == Some(0), "{code:?}, kill: {kill:?}");
        std::fs::remove_file(output).unwrap();
    }
    panic!("every run wrote {} before the signal, or after it", output.display());
}

/// Writes an image of 1 or 3 channels, u8 `[height, width, channels]`, as a PNG file.
pub fn write_png(path: &Path, size: Size, pixels: &[u8]) {
    let gray = pixels.len() == size.area();
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, size.width as u32, size.height as u32);
    encoder.set_color(if gray { png::ColorType::Grayscale } else { png::ColorType::Rgb });
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

/// Gives the input of `mlp.fc2` of every block for which `wanted` is true random factors and zero points. The
/// weights are those of `model`, which refinement may have rewritten; `float` is the model that it was made
/// of.
pub fn with_channels(
    mut model: QuantizedModel,
    float: &FloatModel,
    wanted: impl Fn(BlockId) -> bool,
) -> QuantizedModel {
    let stages = model.config.stages();
    let float = float.with_tensors(model.float_tensors());
    for block in blocks(&model).into_iter().filter(|&block| wanted(block)) {
        if let Some(amax) = model.site(Site::Input(Linear::Fc2(block))).amax {
            let seed = 7 * block.stage + block.block;
            let channels = random_channels(stages[block.stage].hidden, seed as u64);
            // The zero points move most of the range above zero.
            set_channel_codes(&mut model, &float, block, 0.6 * amax, channels).unwrap();
        }
    }
    model
}

/// Every block of `model`.
pub fn blocks(model: &QuantizedModel) -> Vec<BlockId> {
    let stages = model.config.stages().into_iter();
    stages.flat_map(|s| (0..s.depth).map(move |block| BlockId { stage: s.index, block })).collect()
}

/// Writes into the table `latencies.json` of a folder whether other processes disturbed its times (`null` if
/// not), which depends on the machine. Returns the table.
pub fn set_disturbed(folder: &Path, value: &str) -> Vec<u8> {
    let path = folder.join("latencies.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, after) = text.split_once("\"disturbed\": ").unwrap();
    let rest = after.find('\n').unwrap();
    let text = format!("{before}\"disturbed\": {value}{}", &after[rest..]);
    std::fs::write(&path, &text).unwrap();
    text.into_bytes()
}
