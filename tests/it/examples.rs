//! The programs of `examples/`, run on the bundled sample.

use std::path::{Path, PathBuf};

use crate::common;
use assert_cmd::Command;

/// The example program `name`, which `cargo test` builds beside the program `swinq`.
fn example(name: &str) -> Command {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_swinq"));
    let folder = program.parent().unwrap().join("examples");
    Command::new(folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
}

fn printed(mut command: Command) -> String {
    common::stdout(&command.assert().success())
}

fn image_in(folder: &Path) -> PathBuf {
    let image = folder.join("airplane.jpg");
    std::fs::copy(common::root().join("tests/data/airplane.jpg"), &image).unwrap();
    image
}

#[test]
fn the_examples_calibrate_classify_and_serve() {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    std::fs::create_dir(&photos).unwrap();
    let (image, model) = (image_in(&photos), folder.path().join("q.safetensors"));

    let mut command = example("calibrate_from_images");
    command.arg(common::sample_model()).arg(common::sample_cfg()).arg(&model).arg(&image).arg(&image);
    assert!(printed(command).contains("wrote "));

    let mut command = example("classify_folder");
    command.arg(&model).arg(&photos);
    let text = printed(command);
    assert!(text.starts_with("airplane.jpg: ") && text.contains(" %)"), "{text}");

    let mut command = example("serve_threads");
    command.arg(&model).arg("3").args([&image, &image, &image, &image, &image]);
    let text = printed(command);
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.lines().all(|line| line.contains(": class 0 (")), "{text}");
}
