//! `swinq qat` on several processes: the same bits as on one, kills, hangs, signals, and refusals.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use safetensors::SafeTensors;

use super::{FULL, data, wait_for_an_iteration};
use crate::common::{Folder, refused, root, sample_data, stderr, stdout};

/// A job with all kinds of state, of `steps` iterations with `accumulate` batches each.
fn full(steps: usize, accumulate: usize) -> Folder {
    let text = FULL.replace("steps: 12", &format!("steps: {steps}"));
    Folder::of_job(&(data() + &text.replace("accumulate: 2", &format!("accumulate: {accumulate}"))))
}

/// The tensors of a safetensors file.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

/// The losses of all iterations.
fn losses(folder: &Folder) -> Vec<f64> {
    let log = std::fs::read_to_string(folder.out().join("log.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.filter_map(|record| record["loss"].as_f64()).collect()
}

/// The processes that `parent` started.
fn children(parent: &Child) -> Vec<String> {
    let id = parent.id();
    let path = format!("/proc/{id}/task/{id}/children");
    std::fs::read_to_string(path).unwrap().split_whitespace().map(str::to_owned).collect()
}

fn signal(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

/// Runs the job of `folder` as `size` processes, as torchrun starts them: by variables of the environment.
fn launched(folder: &Folder, size: usize) -> Vec<Output> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swinq"));
        command.arg("qat").arg(folder.path("job.yaml")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let place = [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)];
        command.envs(place.map(|(name, value)| (name, value.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.spawn().unwrap()
    };
    let processes: Vec<Child> = (0..size).map(start).collect();
    processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect()
}

#[test]
fn two_processes_give_the_bits_of_one_with_twice_the_batches() {
    let (one, two) = (full(20, 2), full(20, 1));
    one.run(&[]).success();
    for (rank, output) in launched(&two, 2).iter().enumerate() {
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success(), "rank {rank}: {out}\n{err}");
        match rank {
            0 => assert!(out.contains("20 iterations of 4 images") && out.contains("processes   2"), "{out}"),
            _ => assert!(out.is_empty() && err.is_empty(), "{out}\n{err}"),
        }
    }
    let [expected, found] = [&one, &two].map(losses);
    assert_eq!((found.len(), &found), (20, &expected));
    for file in ["model.safetensors", "checkpoints/step-000000020.safetensors"] {
        let [expected, found] = [&one, &two].map(|folder| tensors(&folder.out().join(file)));
        assert_eq!(expected.len(), found.len());
        for (name, values) in expected {
            assert!(values == found[&name], "{file}: {name} differs");
        }
    }
    // The number of processes is part of the training.
    refused(two.run(&["--resume"]), 1, &["it ran on 2 processes, and this is 1 (--devices"]);
    refused(two.run(&["--resume", "--devices", "cpu,cpu,cpu"]), 1, &["it ran on 2 processes, and this is 3"]);
}

#[test]
fn a_killed_process_ends_all_and_the_training_goes_on_to_the_same_bytes() {
    let devices = ["--devices", "cpu,cpu,cpu,cpu"];
    let (whole, killed) = (full(6, 1), full(6, 1));
    let said = stdout(&whole.run(&devices).success());
    assert!(said.contains("processes   4") && said.contains("6 iterations of 8 images"), "{said}");
    let mut first = killed.start(&devices);
    wait_for_an_iteration(&mut first);
    let others = children(&first);
    assert_eq!(others.len(), 3);
    signal("-KILL", &others[1]);
    let output = first.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("rank 2 (127.0.0.1:") && err.contains("closed its connection: it was killed"),
        "{err}"
    );
    for other in others {
        assert!(!Path::new(&format!("/proc/{other}")).exists(), "process {other} has ended");
    }
    let said = stdout(&killed.run(&[&devices[..], &["--resume"]].concat()).success());
    assert!(said.contains("continues after iteration "), "{said}");
    let file = "model.safetensors";
    let [a, b] = [&whole, &killed].map(|folder| std::fs::read(folder.out().join(file)).unwrap());
    assert!(a == b, "{file} differs");
}

#[test]
fn a_process_that_hangs_ends_all() {
    let folder = full(10_000, 1);
    let mut first = folder.start(&["--devices", "cpu,cpu", "--timeout", "3"]);
    wait_for_an_iteration(&mut first);
    let other = children(&first).remove(0);
    signal("-STOP", &other);
    let output = first.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    for word in ["rank 1 (127.0.0.1:", "sent nothing for 3 s", "--timeout"] {
        assert!(err.contains(word), "`{word}` is not in: {err}");
    }
    assert!(!Path::new(&format!("/proc/{other}")).exists(), "the process that hangs is killed");
}

#[test]
fn a_signal_to_any_process_saves_and_ends_all() {
    let folder = Folder::of_job(&format!("{}steps: 10000\ncheckpoint: {{every: 0}}\n", data()));
    let mut first = folder.start(&["--devices", "cpu,cpu"]);
    wait_for_an_iteration(&mut first);
    signal("-TERM", &children(&first)[0]);
    let output = first.wait_with_output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(out.contains("job.yaml --resume --devices cpu,cpu` continues from "), "{out}");
    assert!(err.contains("another process was asked to stop"), "{err}");
    let mut first = folder.start(&["--devices", "cpu,cpu", "--resume"]);
    wait_for_an_iteration(&mut first);
    signal("-TERM", &first.id().to_string());
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(143));
}

#[test]
fn an_error_of_one_process_is_the_error_of_all() {
    let folder = full(100, 1);
    refused(folder.run(&["--devices", "cpu,cpu", "--opts", "float", "missing.pth"]), 1, &["missing.pth"]);
    // One image of ten is damaged, so that one of the processes finds it in its batch.
    let names = std::fs::read_to_string(sample_data().join("classes.txt")).unwrap();
    let photo = std::fs::read(root().join("tests/data/airplane.png")).unwrap();
    for (index, name) in names.split_whitespace().enumerate() {
        let class = folder.path("images/train").join(name);
        std::fs::create_dir_all(&class).unwrap();
        let kept = if index == 3 { photo.len() / 2 } else { photo.len() };
        std::fs::write(class.join("photo.png"), &photo[..kept]).unwrap();
    }
    let (images, val) = (folder.path("images"), sample_data());
    let data = ["data.path", images.to_str().unwrap(), "data.val_path", val.to_str().unwrap()];
    let failed = folder.run(&[&["--devices", "cpu,cpu", "--opts"][..], &data].concat());
    let err = stderr(&failed);
    let errors: Vec<&str> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!((failed.get_output().status.code(), errors.len()), (Some(1), 2), "{err}");
    assert!(errors.iter().all(|error| error.contains("photo.png")), "{err}");
    assert!(errors.iter().any(|error| error.starts_with("error: rank ")), "{err}");
}

#[test]
fn impossible_places_are_refused() {
    let folder = full(1, 1);
    for (devices, words) in [
        ("cpu,0", "GPUs would wait for the CPU"),
        ("1,1", "GPU 1 is given twice"),
        ("gpu", "a device is `cpu` or the number of a GPU"),
    ] {
        refused(folder.run(&["--devices", devices]), 2, &[words]);
    }
    let with = |variables: &[(&str, &str)], more: &[&str]| {
        let mut command = crate::common::swinq(["qat"]);
        command.arg(folder.path("job.yaml")).args(more).envs(variables.iter().copied()).assert()
    };
    refused(with(&[("WORLD_SIZE", "2")], &[]), 1, &["RANK: is not set"]);
    refused(
        with(&[("RANK", "2"), ("WORLD_SIZE", "2")], &[]),
        1,
        &["RANK: 2 is not below WORLD_SIZE, which is 2"],
    );
    let one = [("RANK", "0"), ("WORLD_SIZE", "1")];
    refused(with(&one, &["--devices", "cpu,cpu"]), 2, &["a launcher has started them"]);
    with(&one, &[]).success();
}
