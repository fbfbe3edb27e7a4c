//! Disks without space, and processes that are killed while they write. A limit on the size of files stands
//! for the disk.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use super::{Folder, quantized};
use crate::common::{self, files, refused, sample_cfg, sample_data, sample_model};

/// The number of the signal SIGXFSZ.
const XFSZ: i32 = 25;
const OLD: &str = "an older result\n";

/// The program in a shell that first does `limit`. Its arguments begin with `arguments`.
fn limited(limit: &str, arguments: &[&str]) -> assert_cmd::Command {
    let mut shell = assert_cmd::Command::new("sh");
    let script = format!("{limit}; exec \"$@\"");
    shell.args(["-c", script.as_str(), "sh", env!("CARGO_BIN_EXE_swinq")]).args(arguments);
    shell
}

/// The program where no file can have a byte. Every write is an error.
fn full(arguments: &[&str]) -> assert_cmd::Command {
    limited("trap '' XFSZ; ulimit -f 0", arguments)
}

fn sample(command: &mut assert_cmd::Command) -> &mut assert_cmd::Command {
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data())
}

/// Asserts that the command names the output, and leaves the older file and no other.
#[track_caller]
fn leaves_the_old_file(command: &mut assert_cmd::Command, output: &Path) {
    std::fs::write(output, OLD).unwrap();
    refused(command.assert(), 1, &[output.to_str().unwrap(), "large"]);
    assert_eq!(std::fs::read_to_string(output).unwrap(), OLD);
    let name = output.file_name().unwrap().to_str().unwrap();
    assert_eq!(files(output.parent().unwrap()), [name]);
}

#[test]
fn a_full_disk_leaves_results_as_they_were() {
    let folder = Folder::new();
    let output = folder.path("q.safetensors");
    let mut command = full(&["calibrate"]);
    sample(&mut command).args(["--batches", "1", "--ptq", "basic", "-o"]).arg(&output);
    leaves_the_old_file(&mut command, &output);
    for (option, name) in [("--json", "r.json"), ("--report", "r.html"), ("--predictions", "p.csv")] {
        let folder = Folder::new();
        let mut command = full(&["eval"]);
        sample(&mut command).args(["--limit", "10", "--no-latency", option]).arg(folder.path(name));
        leaves_the_old_file(&mut command, &folder.path(name));
    }
    let folder = Folder::new();
    let output = folder.path("logits.safetensors");
    let mut command = full(&["predict"]);
    command.arg(sample_model()).arg(common::root().join("tests/data/airplane.jpg"));
    command.arg("--cfg").arg(sample_cfg()).arg("--logits").arg(&output);
    leaves_the_old_file(&mut command, &output);
    let (folder, model) = (Folder::new(), Folder::new());
    let (output, model) = (folder.path("maps.safetensors"), model.path("backbone"));
    common::write_backbone(&model);
    let mut command = full(&["features"]);
    command.arg(model).arg(common::root().join("tests/data/airplane.jpg")).arg("--features").arg(&output);
    leaves_the_old_file(&mut command, &output);
}

/// The signal for a file that is too large ends the process in the middle of its write, as `kill -9` would.
#[test]
fn a_killed_write_leaves_no_torn_file_and_the_next_run_removes_its_remains() {
    let folder = Folder::new();
    let output = folder.write("q.safetensors", OLD);
    let mut command = limited("ulimit -c 0; ulimit -f 8", &["calibrate"]);
    sample(&mut command).args(["--batches", "1", "--ptq", "basic", "-o"]).arg(&output);
    let killed = command.output().unwrap();
    let message = String::from_utf8_lossy(&killed.stderr);
    assert_eq!((killed.status.code(), killed.status.signal()), (None, Some(XFSZ)), "{message}");
    let left = files(folder.as_path());
    assert_eq!((left.len(), left[1].as_str()), (2, "q.safetensors"), "{left:?}");
    assert!(left[0].starts_with(".swinq-") && left[0].ends_with(".part"), "{left:?}");
    assert!(folder.path(&left[0]).metadata().unwrap().len() > 0, "nothing was written");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), OLD);
    assert_eq!(quantized(&folder), output);
    folder.holds_only(&["q.ranges.json", "q.safetensors"]);
}
