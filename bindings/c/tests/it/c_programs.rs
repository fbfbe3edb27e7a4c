//! C programs that use the interface, built with the C compiler and its address sanitizer, and linked to the
//! shared and to the static library.
//!
//! Without a C compiler the tests print that they are skipped, unless `REQUIRE_IMPL` names `host_kernels`.

#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::Command;

use half::f16;
use swinq::int8_runtime::{ImageLayout, Images as InputImages, OutputLayout, OutputMut, Pixels};
use swinq::model::Size;
use swinq::{CalibrateOptions, EngineOptions, Images, Model, OpenOptions, Split, calibrate, infer_images};
use swinq_testing::model::{maps, random, stack, tokens};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn root() -> PathBuf {
    here().join("../..").canonicalize().unwrap()
}

/// The folder of the test, in which cargo builds the libraries, too.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The C compiler; `None` if there is none, after printing that `test` is skipped.
fn compiler(test: &str) -> Option<String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Some(compiler);
    }
    let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "host_kernels"), "there is no C compiler `{compiler}`");
    eprintln!("SKIPPED {test}: there is no C compiler `{compiler}`");
    None
}

/// A folder with the shared library under the names that an installation gives it.
fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libswinq.so", "libswinq.so.0"] {
        std::os::unix::fs::symlink(libraries().join("libswinq_c.so"), folder.path().join(name)).unwrap();
    }
    folder
}

/// Compiles `source` with the sanitizers, and links it with `library`: `-lswinq` from the folder `shared`, or
/// the path of the archive.
fn build(compiler: &str, source: &Path, library: &str, shared: &Path, program: &Path) {
    build_with(&[], compiler, source, library, shared, program);
}

/// As [`build`], with more `arguments`.
fn build_with(
    arguments: &[String],
    compiler: &str,
    source: &Path,
    library: &str,
    shared: &Path,
    program: &Path,
) {
    let status = Command::new(compiler)
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"])
        .arg("-fsanitize=address,undefined")
        .arg("-fno-sanitize-recover=all")
        .arg("-I")
        .arg(here().join("include"))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg("-L")
        .arg(shared)
        .arg(library)
        .args(arguments)
        .args(["-lpthread", "-lm", "-ldl"])
        .arg(format!("-Wl,-rpath,{}", shared.display()))
        .status()
        .unwrap();
    assert!(status.success(), "{} does not compile", source.display());
}

fn sample(name: &str) -> PathBuf {
    root().join("samples").join(name)
}

fn float_model() -> Model {
    let cfg = Some(sample("swin_micro_cifar10/cfg.yaml").display().to_string());
    let options = OpenOptions { cfg, ..OpenOptions::default() };
    Model::open_float(sample("swin_micro_cifar10/model.safetensors"), &options).unwrap()
}

/// The sample, quantized on a few images.
fn quantized() -> Model {
    calibrated(float_model(), &Images::open(sample("cifar10"), Split::Train, Some(8), 0).unwrap())
}

fn calibrated(model: Model, images: &Images) -> Model {
    let progress = &mut |_| std::ops::ControlFlow::Continue(());
    calibrate(model, &CalibrateOptions::default(), images, progress).unwrap().model
}

/// Runs `program` and returns what it printed. Leaks are errors.
fn run(program: &Path, arguments: &[&Path]) -> String {
    let output =
        Command::new(program).args(arguments).env("ASAN_OPTIONS", "detect_leaks=1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{text}", program.display(), output.status);
    assert!(text.is_empty(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_example_prints_the_logits_of_the_library() {
    let Some(compiler) = compiler("the example") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, path) = (folder.path().join("classify"), folder.path().join("model.safetensors"));
    let model = quantized();
    model.save(&path).unwrap();
    let files = ["airplane.jpg", "airplane.png"].map(|name| root().join("tests/data").join(name));
    let engine = model.engine(&EngineOptions::cpu(0)).unwrap();
    let images = Images::from_files(&files).unwrap();
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let found = infer_images(&engine, &images, &Default::default(), &mut go_on);
    let expected = found.unwrap().scores.logits;
    let archive = libraries().join("libswinq_c.a").display().to_string();
    let shared = installed();
    for library in ["-lswinq", archive.as_str()] {
        build(&compiler, &here().join("examples/classify.c"), library, shared.path(), &program);
        let printed = run(&program, &[&path, &files[0], &files[1]]);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), 2, "{printed}");
        for (line, row) in lines.iter().zip(expected.rows()) {
            let (_, values) = line.split_once(": ").unwrap();
            let (values, name) = values.rsplit_once(' ').unwrap();
            let found: Vec<f32> = values.split(' ').map(|value| value.parse().unwrap()).collect();
            assert_eq!(found, row, "{line}");
            assert_eq!(name, "airplane", "{line}");
        }
    }
}

/// Runs of `tests/run.c`: height, width, number of images, type and layout.
type Runs = [(usize, usize, usize, &'static str, &'static str)];

/// Asserts that `tests/run.c` prints the library's values of the last output of `model`, for the images or
/// tokens that the program makes.
fn compare_runs(test: &str, model: &Model, runs: &Runs) {
    let Some(compiler) = compiler(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, path) = (folder.path().join("run"), folder.path().join("model.safetensors"));
    model.save(&path).unwrap();
    let engine = model.engine(&EngineOptions::cpu(0)).unwrap();
    let output = engine.outputs().last().unwrap();
    let shared = installed();
    build(&compiler, &here().join("tests/run.c"), "-lswinq", shared.path(), &program);
    for &(height, width, images, kind, order) in runs {
        let size = Size::new(height, width);
        let length = size.image_bytes(engine.channels(), images).unwrap();
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7919 % 251) as u8).collect();
        let values: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 64.0 - 2.0).collect();
        let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
        let pixels = match kind {
            "u8" => Pixels::U8(&bytes),
            "f32" => Pixels::F32(&values),
            _ => Pixels::F16(&halves),
        };
        let layout = if order == "nchw" { ImageLayout::ChannelsFirst } else { ImageLayout::ChannelsLast };
        let mut expected = vec![0.0; images * engine.output_shape(output, size).values()];
        // C has maps with the channels first, unless another layout is asked for.
        let memory = OutputMut::new(&output.name, &mut expected).in_layout(OutputLayout::ChannelsFirst);
        engine.run(InputImages { size, pixels, layout }, &mut [memory]).unwrap();
        let words = [&height.to_string(), &width.to_string(), &images.to_string(), kind, order];
        let arguments = words.into_iter().map(Path::new);
        let printed = run(&program, &[&*path].into_iter().chain(arguments).collect::<Vec<_>>());
        let found: Vec<f32> = printed.split_whitespace().map(|value| value.parse().unwrap()).collect();
        assert_eq!(found, expected, "{images} images of {size}, {kind}, {order}");
        assert!(expected[0] != expected[1], "{expected:?}");
    }
}

#[test]
fn images_of_any_size_have_the_logits_of_the_library() {
    let runs = [
        (56, 56, 3, "u8", "nhwc"),
        (56, 112, 3, "u8", "nhwc"),
        (100, 60, 1, "u8", "nchw"),
        (56, 112, 3, "f32", "nhwc"),
        (100, 60, 3, "f32", "nchw"),
        (100, 60, 1, "f16", "nhwc"),
        (56, 112, 3, "f16", "nchw"),
    ];
    compare_runs("images of any size", &quantized(), &runs);
}

#[test]
fn tokens_of_any_grid_have_the_maps_of_the_library() {
    let config = stack();
    let (size, channels) = (config.image_size, config.in_chans);
    let tokens = maps(&tokens(&config, size, 1), size, channels);
    let tokens = Images::from_values(channels, [(size, &tokens[..])]).unwrap();
    let model = calibrated(Model::from_float(random(config, 3)).unwrap(), &tokens);
    let runs = [
        (8, 12, 3, "f32", "nhwc"),
        (8, 12, 1, "f32", "nchw"),
        (4, 20, 3, "f32", "nchw"),
        (16, 4, 1, "f16", "nhwc"),
        (4, 20, 3, "f16", "nchw"),
    ];
    compare_runs("tokens of any grid", &model, &runs);
}

/// The arguments for programs that use CUDA's runtime, and its folder: beside NVRTC on the loader's path, as
/// PyPI's packages put it. `None` if it is not there, after printing that `test` is skipped.
fn cuda_runtime(test: &str) -> Option<(Vec<String>, PathBuf)> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let with_headers = |folder: &PathBuf| {
        folder.join("../include/cuda_runtime_api.h").exists() && folder.join("libcudart.so.13").exists()
    };
    if let Some(folder) = std::env::split_paths(&path).find(with_headers) {
        let include = folder.join("../include").display().to_string();
        let library = folder.join("libcudart.so.13").display().to_string();
        return Some((vec!["-isystem".to_owned(), include, library], folder));
    }
    let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "cudart"), "CUDA's runtime is not beside NVRTC");
    eprintln!("SKIPPED {test}: CUDA's runtime and its headers are not on LD_LIBRARY_PATH");
    None
}

#[test]
fn the_example_on_a_gpu_gives_the_logits_of_the_library_or_says_that_there_is_no_gpu() {
    let Some(compiler) = compiler("the example on a GPU") else { return };
    let Some((arguments, runtime)) = cuda_runtime("the example on a GPU") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, path) = (folder.path().join("on_gpu"), folder.path().join("model.safetensors"));
    let model = quantized();
    model.save(&path).unwrap();
    let file = root().join("tests/data/airplane.png");
    let shared = installed();
    build_with(&arguments, &compiler, &here().join("examples/on_gpu.c"), "-lswinq", shared.path(), &program);
    // The sanitizer leaves the driver the addresses that it needs.
    let output = Command::new(&program)
        .args([&path, &file])
        .env("ASAN_OPTIONS", "detect_leaks=0:protect_shadow_gap=0")
        .env("LD_LIBRARY_PATH", runtime)
        .output()
        .unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if swinq::usable_gpu(0).is_err() {
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("swinq_engine_new: ") && error.lines().count() == 1, "{error}");
        return;
    }
    assert!(output.status.success(), "{error}");
    let mut options = EngineOptions { backend: swinq::BackendChoice::Cuda, ..EngineOptions::default() };
    options.cuda.max_batch = 1;
    let engine = model.engine(&options).unwrap();
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let images = Images::from_files(&[file]).unwrap();
    let expected = infer_images(&engine, &images, &Default::default(), &mut go_on).unwrap().scores.logits;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "a call and a graph: {text}");
    for line in lines {
        let found: Vec<f32> = line.split(' ').map(|value| value.parse().unwrap()).collect();
        assert_eq!(found, expected.values);
    }
}

#[test]
fn misuse_gives_error_codes() {
    let Some(compiler) = compiler("misuse") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, path) = (folder.path().join("misuse"), folder.path().join("model.safetensors"));
    quantized().save(&path).unwrap();
    let shared = installed();
    build(&compiler, &here().join("tests/misuse.c"), "-lswinq", shared.path(), &program);
    let float = sample("swin_micro_cifar10");
    let (weights, cfg) = (float.join("model.safetensors"), float.join("cfg.yaml"));
    let two = folder.path().join("two.safetensors");
    write_two(&weights, &two);
    run(&program, &[&path, &weights, &cfg, &sample("cifar10"), &two]);
}

/// Writes the tensors of `weights` under the prefix `model.`, and one of another network under `other.`.
fn write_two(weights: &Path, path: &Path) {
    let bytes = std::fs::read(weights).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, first) = file.iter().next().unwrap();
    let renamed = file.iter().map(|(name, tensor)| (format!("model.{name}"), tensor));
    let all: Vec<_> = renamed.chain([("other.weight".to_owned(), first.clone())]).collect();
    std::fs::write(path, safetensors::serialize(all, None).unwrap()).unwrap();
}
