//! Options without effect, absurd values, and the wording of messages.

use super::{Folder, quantized};
use crate::common::{self, calibrate, refused, sample_cfg, sample_data, sample_model, stderr, swinq};

#[test]
fn wrong_usage_has_exit_code_2() {
    for args in [&["frobnicate"][..], &["calibrate"], &["eval"], &["bench", "--batch-size", "0", "x"]] {
        assert_eq!(swinq(args).assert().get_output().status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn arguments_that_would_have_no_effect() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let mut command = swinq(["inspect"]);
    refused(
        command.arg(&good).args(["--transform", "timm"]).assert(),
        2,
        &["--transform", "every model given is quantized"],
    );
    refused(calibrate(&folder.path("out"), &["--disable", "**"]), 1, &["quantizes no site"]);
    folder.holds_only(&["q.ranges.json", "q.safetensors"]);
}

#[test]
fn a_message_does_not_repeat_a_long_value() {
    let folder = Folder::new();
    let cfg = folder.write("long.yaml", format!("x: {}", "9".repeat(100_000)));
    let assert = swinq(["bench", "--random-weights", "0", "--cfg"]).arg(cfg).assert();
    let length = assert.get_output().stderr.len();
    assert!(length < 4096, "{length} bytes");
    refused(assert, 1, &["long.yaml", "bytes left out"]);
}

#[test]
fn absurd_numbers_are_refused_before_any_work() {
    let sample = |command: &str, words: &[&str]| {
        let mut command = swinq([command]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words);
        command
    };
    let data = sample_data();
    let data = data.to_str().unwrap();
    let threads = ["--threads", "20000"];
    let message = ["--threads", "1024"];
    refused(sample("bench", &threads).assert(), 2, &message);
    refused(sample("eval", &[&["--data-path", data][..], &threads].concat()).assert(), 2, &message);
    refused(
        sample("sensitivity", &[&["--data-path", data, "-o", "s"][..], &threads].concat()).assert(),
        2,
        &message,
    );
    refused(swinq(["bench", "softmax", "--threads", "20000"]).assert(), 2, &message);
    let huge = ["--data-path", data, "--latency", "1000000000"];
    refused(sample("eval", &huge).assert(), 2, &["--latency", "65536"]);
    let no = ["--data-path", data, "--latency", "no"];
    refused(sample("eval", &no).assert(), 2, &["--latency", "--no-latency measures none"]);
    refused(sample("bench", &["--batch-size", "70000"]).assert(), 2, &["--batch-size", "65536"]);
    refused(sample("bench", &["--seconds", "1e9"]).assert(), 2, &["--seconds", "3600"]);
    refused(sample("bench", &["--decode-memory", "0"]).assert(), 2, &["--decode-memory", "500M"]);
}

#[test]
fn messages_name_the_option_and_the_next_step() {
    let sample = |command: &str, words: &[&str]| {
        let mut command = swinq([command]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words).assert()
    };
    refused(sample("eval", &["--data-path", "absent"]), 1, &["--data-path absent", "No such file"]);
    let data = sample_data();
    let data = data.to_str().unwrap();
    refused(sample("eval", &["--data-path", data, "--tuning", "absent.json"]), 1, &["--tuning absent.json"]);
    refused(sample("calibrate", &["--ft-amax", "absent.pth", "-o", "q"]), 1, &["--ft-amax absent.pth"]);
    refused(sample("sensitivity", &["--data-path", "absent", "-o", "s"]), 1, &["--data-path absent"]);
    refused(sample("tune", &["--data-path", "absent", "-o", "t"]), 1, &["--data-path absent"]);
    let shipped = ["`default`", "mode1_kl", "finetune"];
    refused(swinq(["qat", "defalt"]).assert(), 1, &shipped);
    let disabled = ["--data-path", data, "--disable", "fc2", "-o", "q"];
    refused(sample("calibrate", &disabled), 1, &["did you mean `**.fc2.**`"]);
    refused(
        sample("calibrate", &["--data-path", data, "--recipe", "absent.yaml", "-o", "q"]),
        1,
        &["--recipe", "absent.yaml"],
    );
}

/// `swinq COMMAND` on the sample.
fn sample(command: &str, words: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = swinq([command]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words).assert()
}

#[test]
fn files_that_options_name_are_named_with_the_option() {
    let data = sample_data();
    let data = data.to_str().unwrap();
    let mut eval = swinq(["eval", "--cfg", "absent.yaml", "--data-path", data]);
    refused(eval.arg(sample_model()).assert(), 1, &["--cfg absent.yaml", "No such file"]);
    let labels = ["--data-path", data, "--labels", "absent.txt"];
    refused(sample("eval", &labels), 1, &["--labels absent.txt", "No such file"]);
    for command in ["sensitivity", "tune"] {
        let recipe = ["--data-path", data, "--recipe", "absent.yaml", "-o", "q"];
        refused(sample(command, &recipe), 1, &["--recipe", "absent.yaml"]);
    }
}

#[test]
fn a_wrong_file_of_a_program_is_refused_before_the_evaluation() {
    let (data, root) = (sample_data(), common::root());
    let (data, wrong) = (data.to_str().unwrap(), root.join("docs/report-schema.json"));
    let refuse = |words: &[&str], code, expected: &[&str]| {
        let assert = sample("eval", &[&["--data-path", data, "--program"], words].concat());
        let found = assert.get_output().stdout.clone();
        refused(assert, code, expected);
        assert!(found.is_empty(), "nothing was evaluated: {}", String::from_utf8_lossy(&found));
    };
    let json = ["--json", "-"];
    let expected = ["report-schema.json", "has no program_gain version", "swinq.torch.measure_gain"];
    refuse(&[&[wrong.to_str().unwrap()], &json[..]].concat(), 1, &expected);
    refuse(&["absent.json", "--json", "-"], 1, &["--program absent.json"]);
    refuse(&[wrong.to_str().unwrap()], 2, &["--report", "--markdown", "--json"]);
    refuse(&["a.json", "--shard", "1/2", "-o", "part"], 2, &["--program"]);
}

#[test]
fn a_data_set_without_the_split_names_the_option_and_the_other_split() {
    let folder = Folder::new();
    let class = folder.path("data/val/cat");
    std::fs::create_dir_all(&class).unwrap();
    std::fs::copy(crate::common::root().join("tests/data/airplane.jpg"), class.join("1.jpg")).unwrap();
    let data = folder.path("data");
    let data = data.to_str().unwrap();
    let output = folder.path("q");
    let calibrate = ["--data-path", data, "-o", output.to_str().unwrap()];
    refused(sample("calibrate", &calibrate), 1, &["`train` is missing", "pass --split val"]);
    let eval = ["--data-path", data, "--split", "train"];
    refused(sample("eval", &eval), 1, &["`train` is missing", "pass --split val"]);
    refused(sample("sensitivity", &calibrate), 1, &["pass --calibration-split val"]);
    folder.holds_only(&["data"]);
}

#[test]
fn a_checkpoint_has_no_extension_of_another_format() {
    let folder = Folder::new();
    let data = sample_data();
    for (command, name) in [("calibrate", "x.pth"), ("tune", "x.onnx")] {
        let output = folder.path(name);
        let words = ["--data-path", data.to_str().unwrap(), "-o", output.to_str().unwrap()];
        refused(sample(command, &words), 2, &[name, "name it", "x.safetensors"]);
    }
    folder.holds_only(&[]);
}

#[test]
fn words_that_look_like_values_are_explained() {
    let folder = Folder::new();
    let image = folder.path("a.jpg");
    std::fs::copy(crate::common::root().join("tests/data/airplane.jpg"), &image).unwrap();
    let with_class = format!("{},0", image.display());
    refused(sample("predict", &[&with_class]), 2, &["a.jpg,0: no such file", "without classes"]);
    let data = sample_data();
    let mut eval = swinq(["eval", "--simulate", "exact", "--cfg"]);
    eval.arg(sample_cfg()).arg(sample_model()).arg("--data-path").arg(&data);
    refused(eval.assert(), 2, &["write --simulate=exact"]);
    let words = ["--data-path", data.to_str().unwrap(), "--disable", "**.fc3.*", "-o", "q"];
    refused(sample("calibrate", &words), 1, &["did you mean `**.fc1.*` or `**.fc2.*`?"]);
}

#[test]
fn causes_are_not_repeated() {
    let data = sample_data();
    let words = ["--data-path", data.to_str().unwrap(), "-v", "--opts", "MODEL.NUM_CLASSES", "7"];
    let message = stderr(&sample("eval", &words).failure());
    assert_eq!(message.matches("pass --opts MODEL.NUM_CLASSES 10").count(), 1, "{message}");
    let long = "9".repeat(3000);
    let message = stderr(&sample("bench", &["--seconds", &long]).code(2));
    assert!(message.contains("bytes left out") && message.len() < 1000, "{message}");
}

/// The command line takes the name of an op for a model if options precede it.
#[test]
fn an_op_after_the_options_of_bench_is_explained() {
    for op in ["gemm", "softmax", "elementwise"] {
        let message = format!("swinq bench {op}");
        refused(swinq(["bench", "--threads", "2", op]).assert(), 1, &[&message, "before all options"]);
    }
}
