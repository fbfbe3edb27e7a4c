//! The CUDA backend from the command line. The tests need no GPU: they check the messages on a machine
//! without one.

use crate::common::{self, refused, sample_cfg, stdout, swinq};
use assert_cmd::Command;
use swinq_cuda::{Device, Library, library};

/// `swinq bench` of random weights, with `more` arguments.
fn bench(more: &[&str]) -> Command {
    let mut command =
        swinq(["bench", "--random-weights", "3", "--batch-size", "1", "--seconds", "0.05", "--cfg"]);
    command.arg(sample_cfg()).args(more);
    command
}

/// Whether this machine can run the CUDA backend. If so, prints that `test` is skipped.
fn gpu(test: &str) -> bool {
    let found = library::present(Library::Driver) && Device::count().is_ok_and(|count| count > 0);
    if found {
        eprintln!("SKIPPED {test}: this machine has a GPU");
    }
    found
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_an_error_that_names_what_is_missing() {
    if gpu("a_gpu_that_is_asked_for_and_not_there_is_an_error_that_names_what_is_missing") {
        return;
    }
    let image = common::root().join("tests/data/airplane.jpg");
    let mut predict = swinq(["predict"]);
    predict.arg(common::sample_model()).arg(image).arg("--cfg").arg(sample_cfg()).args(["--backend", "cuda"]);
    for mut command in [bench(&["--backend", "cuda"]), predict] {
        let words: &[&str] = if library::present(Library::Driver) {
            &["--backend cuda", "CUDA"]
        } else {
            &["--backend cuda", "libcuda.so", "not found", "NVIDIA driver", "LD_LIBRARY_PATH"]
        };
        refused(command.assert(), 1, words);
    }
}

#[test]
fn auto_uses_the_cpu_where_there_is_no_gpu() {
    if gpu("auto_uses_the_cpu_where_there_is_no_gpu") {
        return;
    }
    let text =
        stdout(&bench(&["--backend", "auto", "--gemm", "own", "--residual", "f32"]).assert().success());
    assert!(text.contains("threads") && text.contains("cpu"), "{text}");
}

#[test]
fn arguments_of_the_backend_that_make_no_sense_are_wrong_usage() {
    for (arguments, words) in [
        (&["--gemm", "nonsense"][..], &["nonsense", "own", "cublaslt", "auto"][..]),
        (&["--gemm", "own,nonsense"], &["nonsense", "cublaslt"]),
        (&["--gemm", ""], &["--gemm", "cublaslt"]),
        (&["--autotune", "much"], &["much", "table", "off", "quick", "full"]),
        (&["--residual", "f64"], &["f64", "f16", "f32"]),
        (&["--backend", "rocm"], &["rocm", "auto", "cpu", "cuda"]),
        (&["--device=-1"], &["--device", "-1"]),
        (&["--device", "first"], &["--device"]),
    ] {
        refused(bench(arguments).assert(), 2, words);
    }
}

#[test]
fn marks_for_a_profiler_need_a_gpu() {
    refused(bench(&["--backend", "cpu", "--nvtx"]).assert(), 2, &["--nvtx", "GPU", "swinq doctor"]);
}

#[test]
fn several_gpus_are_not_the_cpu_and_not_the_same() {
    refused(bench(&["--backend", "cpu", "--devices", "0,1"]).assert(), 2, &["--devices", "GPU"]);
    refused(bench(&["--devices", "0,1,0"]).assert(), 2, &["--devices names GPU 0 twice"]);
    let mut inspect = swinq(["inspect", "--plan", "--devices", "0,1"]);
    inspect.arg(common::sample_model()).arg("--cfg").arg(common::sample_cfg());
    refused(inspect.assert(), 2, &["this command runs on one GPU"]);
}

#[test]
fn doctor_says_which_cuda_libraries_there_are_and_what_brings_the_others() {
    let text = stdout(&swinq(["doctor"]).assert().success());
    let line = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).map(str::to_owned);
    for (name, which) in [
        ("driver", Library::Driver),
        ("NVRTC", Library::Nvrtc),
        ("cuBLASLt", Library::CublasLt),
        ("NCCL", Library::Nccl),
        ("NVTX", Library::Nvtx),
    ] {
        let line = line(name).unwrap_or_else(|| panic!("no line {name}: {text}"));
        let missing = line.contains(which.file()) && line.contains(which.package());
        assert_eq!(missing, !library::present(which), "{line}");
    }
    let auto = line("--backend auto").unwrap_or_else(|| panic!("{text}"));
    assert!(auto.contains("uses the CPU") || auto.contains("uses GPU 0"), "{auto}");
    // On a GPU, doctor compiles a test kernel and keeps it there.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("kernels");
    let cache = swinq(["doctor"]).env("SWINQ_CACHE", &folder).assert().success();
    assert!(stdout(&cache).contains(&format!("{}, ", folder.display())), "{}", stdout(&cache));
    assert!(!text.contains("does not say its version"), "{text}");
}

/// `swinq calibrate` and `swinq eval --simulate` of the sample, both with the float forward on `device`.
fn float_forward(device: &str, output: &std::path::Path) -> [Command; 2] {
    let mut calibrate = swinq(["calibrate"]);
    calibrate.arg(common::sample_model()).arg("--cfg").arg(sample_cfg()).arg("-o").arg(output);
    calibrate.arg("--data-path").arg(common::sample_data()).args(["--device", device]);
    let mut eval = swinq(["eval", "--simulate", "--simulate-device", device]);
    eval.arg(common::sample_model()).arg("--cfg").arg(sample_cfg());
    eval.arg("--data-path").arg(common::sample_data());
    [calibrate, eval]
}

#[test]
fn a_device_of_the_float_forward_that_cannot_be_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("q.safetensors");
    for mut command in float_forward("gpu", &output) {
        refused(command.assert(), 2, &["gpu", "cpu, cuda or cuda:N"]);
    }
    let data = common::sample_data();
    let mut exact = swinq(["eval", "--simulate=exact", "--simulate-device", "cpu"]);
    exact.arg(common::sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(&data);
    refused(exact.assert(), 2, &["--simulate-device", "exact", "CPU"]);
    let mut alone = swinq(["eval", "--simulate-device", "cpu"]);
    alone.arg(common::sample_model()).arg("--data-path").arg(&data);
    refused(alone.assert(), 2, &["--simulate"]);
    let mut ranges = swinq(["calibrate", "--device", "cpu", "--ft-amax", "none.pth"]);
    ranges.arg(common::sample_model()).arg("-o").arg(&output);
    refused(ranges.assert(), 2, &["--device", "--ft-amax"]);
    assert!(!output.exists());
}

#[test]
fn a_build_without_candles_cuda_says_how_to_have_one() {
    let text = stdout(&swinq(["doctor"]).assert().success());
    let built = cfg!(feature = "cuda");
    assert!(text.contains(if built { "runs on GPUs too" } else { "runs on the CPU only" }), "{text}");
    if built {
        return eprintln!("SKIPPED a_build_without_candles_cuda_says_how_to_have_one: this build has it");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("q.safetensors");
    for mut command in float_forward("cuda:1", &output) {
        refused(command.assert(), 2, &["cuda:1", "rebuild", "cargo build --release --features cuda"]);
    }
    assert!(!output.exists());
}

#[test]
fn the_float_forward_on_a_gpu_that_is_not_there_is_an_error() {
    let test = "the_float_forward_on_a_gpu_that_is_not_there_is_an_error";
    if !cfg!(feature = "cuda") {
        return eprintln!("SKIPPED {test}: built without the feature cuda");
    }
    if gpu(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("q.safetensors");
    for mut command in float_forward("cuda", &output) {
        refused(command.assert(), 1, &["cuda:0", "swinq doctor"]);
    }
    assert!(!output.exists());
}
