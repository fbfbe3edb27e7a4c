//! Outputs that cannot be written or must not be replaced.

use std::path::Path;

use super::{Folder, quantized};
use crate::common::{self, calibrate, refused, sample_cfg, sample_data, sample_model, swinq};

#[test]
fn outputs_that_cannot_be_written() {
    let folder = Folder::new();
    refused(calibrate(&folder.path("no/such/folder/q"), &[]), 1, &["no/such/folder", "does not exist"]);
    refused(calibrate(folder.as_path(), &[]), 1, &["folder"]);
    refused(calibrate(Path::new("/proc/q.safetensors"), &[]), 1, &["/proc/q.safetensors"]);
    folder.holds_only(&[]);
}

/// `/dev/full` refuses every write; a small tmpfs would need privileges.
#[cfg(target_os = "linux")]
#[test]
fn no_space_left_is_named() {
    let error = std::fs::write("/dev/full", b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let folder = Folder::new();
    let target = folder.path("out");
    let result = swinq_model::atomic::write_atomic(&target, |_| {
        std::fs::write("/dev/full", b"x")?;
        Ok(())
    });
    let message = result.unwrap_err().to_string();
    assert!(message.contains("out") && message.to_lowercase().contains("space"), "{message}");
    folder.holds_only(&[]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_no_file() {
    let folder = Folder::new();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
    child.arg("calibrate").arg(sample_model()).arg("--cfg").arg(sample_cfg());
    child.arg("--data-path").arg(sample_data()).args(["--batches", "250", "--batch-size", "1", "-o"]);
    child
        .arg(folder.path("q.safetensors"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = child.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    folder.holds_only(&[]);
}

#[cfg(unix)]
#[test]
fn a_terminated_evaluation_exits_with_143() {
    let folder = Folder::new();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
    child.arg("eval").arg(sample_model()).arg("--cfg").arg(sample_cfg());
    child.arg("--data-path").arg(sample_data()).args(["--latency", "1,2,4,8,16,32,64", "--json"]);
    child.arg(folder.path("r.json")).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let child = child.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{message}");
    assert!(message.contains("send SIGTERM again") && message.contains("interrupted"), "{message}");
    folder.holds_only(&[]);
}

#[cfg(target_os = "linux")]
#[test]
fn terminated_measurements_write_nothing() {
    let image = common::root().join("tests/data/airplane.jpg");
    let data = sample_data();
    let data = data.to_str().unwrap();
    let images = vec![image.to_str().unwrap(); 200];
    let commands: [(&str, &[&str], &str); 3] = [
        ("bench", &["--batch-size", "1,2,4"], "--json"),
        ("sensitivity", &["--data-path", data], "-o"),
        ("predict", &images, "--logits"),
    ];
    for (command, words, output) in commands {
        let folder = Folder::new();
        let path = folder.path("out");
        let mut swinq = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
        swinq
            .arg(command)
            .arg(sample_model())
            .args(words)
            .arg("--cfg")
            .arg(sample_cfg())
            .arg(output)
            .arg(&path);
        common::terminated_before_it_writes(&mut swinq, &path);
        // Finished measurements, from which `sensitivity` continues.
        let left = common::files(folder.as_path());
        assert!(left.iter().all(|name| name == "out.cache"), "{left:?}");
    }
}

/// Standard output may be a file that others write to: it is never replaced.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_is_not_an_output_file() {
    let folder = Folder::new();
    let log = folder.write("log.txt", "earlier lines\n");
    let image = common::root().join("tests/data/airplane.jpg");
    for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let appended: std::process::Stdio = std::fs::File::options().append(true).open(&log).unwrap().into();
        for stdout in [appended, std::process::Stdio::piped()] {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
            command.arg("predict").arg(sample_model()).arg(&image).arg("--cfg").arg(sample_cfg());
            command.args(["--logits", path]).stdout(stdout).stderr(std::process::Stdio::piped());
            let output = command.output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{message}");
            assert!(message.contains(path) && message.contains("has open"), "{message}");
        }
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "earlier lines\n");
    folder.holds_only(&["log.txt"]);
}

#[test]
fn outputs_that_would_replace_an_input() {
    let folder = Folder::new();
    let model = folder.write("m.safetensors", std::fs::read(sample_model()).unwrap());
    let (cfg, good) = (folder.write("c.yaml", std::fs::read(sample_cfg()).unwrap()), quantized(&folder));
    let before = [&model, &cfg, &good].map(|path| std::fs::read(path).unwrap());
    let calibrate_to = |output: &Path| {
        let mut command = swinq(["calibrate"]);
        command
            .arg(&model)
            .arg("--cfg")
            .arg(&cfg)
            .arg("--data-path")
            .arg(sample_data())
            .arg("-o")
            .arg(output);
        command.assert()
    };
    refused(calibrate_to(&model), 1, &["replace the input"]);
    refused(calibrate_to(&cfg), 1, &["replace the input"]);
    let image = common::root().join("tests/data/airplane.jpg");
    let mut command = swinq(["predict"]);
    refused(command.arg(&good).arg(&image).arg("--logits").arg(&good).assert(), 1, &["replace the input"]);
    let plain = folder.write("plain", std::fs::read(&good).unwrap());
    let mut command = swinq(["eval"]);
    command.arg(&plain).arg("--data-path").arg(sample_data()).arg("--json").arg(&plain);
    refused(command.assert(), 1, &["replace the input"]);
    let names = folder.write("names.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    let data = sample_data();
    let float = |first: &[&str], options: &[&str], output: &Path| {
        let mut command = swinq(first);
        command.arg(&model).arg("--cfg").arg(&cfg).arg("--labels").arg(&names).args(options).arg(output);
        command.assert()
    };
    let measured = ["--data-path", data.to_str().unwrap(), "--report"];
    for input in [&cfg, &names] {
        refused(float(&["bench"], &["--json"], input), 1, &["replace the input"]);
        refused(float(&["eval"], &measured, input), 1, &["replace the input"]);
        refused(float(&["export"], &["--onnx"], input), 1, &["replace the input"]);
        let predict = [image.to_str().unwrap(), "--logits"];
        refused(float(&["predict"], &predict, input), 1, &["replace the input"]);
    }
    let run = folder.path("run");
    std::fs::create_dir(&run).unwrap();
    let job = folder.write("run/job.yaml", "mine");
    let training = [measured[0], measured[1], "--training", run.to_str().unwrap(), "--report"];
    refused(float(&["eval"], &training, &job), 1, &["replace the input"]);
    assert_eq!(std::fs::read_to_string(&names).unwrap().lines().count(), 10);
    assert_eq!(std::fs::read_to_string(&job).unwrap(), "mine");
    let both = folder.path("both");
    let mut command = swinq(["eval"]);
    command
        .arg(&good)
        .arg("--data-path")
        .arg(sample_data())
        .arg("--json")
        .arg(&both)
        .arg("--report")
        .arg(&both);
    refused(command.assert(), 1, &["two outputs"]);
    assert!(before == [&model, &cfg, &good].map(|path| std::fs::read(path).unwrap()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_goes_away_and_a_full_output() {
    let folder = Folder::new();
    let (good, json) = (quantized(&folder), folder.path("r.json"));
    let run = |stdout: std::process::Stdio| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
        command.arg("eval").arg(&good).arg("--data-path").arg(sample_data());
        command.args(["--limit", "10", "--no-latency", "--json"]).arg(&json).stdout(stdout);
        command.stderr(std::process::Stdio::piped()).output().unwrap()
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(writer.into());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(json.exists());
    let output = run(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("standard output") && !message.contains("panicked"), "{message}");
}
