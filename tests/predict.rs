//! `predict` on files, folders and standard input, and lists with class names.

mod common;

use std::path::Path;

use common::{refused, root, sample_cfg, sample_data, sample_model, stdout, swinq};
use serde_json::Value;

fn predict(arguments: &[&Path], input: &str) -> assert_cmd::assert::Assert {
    let mut command = swinq(["predict"]);
    command.arg(sample_model()).args(arguments).arg("--cfg").arg(sample_cfg());
    command.args(["--topk", "1", "--json"]).write_stdin(input).assert()
}

fn names(assert: &assert_cmd::assert::Assert) -> Vec<String> {
    let found: Value = serde_json::from_str(&stdout(assert)).unwrap();
    let name = |entry: &Value| Path::new(entry["image"].as_str().unwrap()).file_name().unwrap().to_owned();
    found.as_array().unwrap().iter().map(|entry| name(entry).to_string_lossy().into_owned()).collect()
}

#[test]
fn a_bad_image_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    std::fs::create_dir(&photos).unwrap();
    for kind in ["webp", "png", "jpg"] {
        let name = format!("airplane.{kind}");
        std::fs::copy(root().join("tests/data").join(&name), photos.join(name)).unwrap();
    }
    assert_eq!(names(&predict(&[&photos], "").success()), ["airplane.jpg", "airplane.png", "airplane.webp"]);

    let good = std::fs::read(photos.join("airplane.jpg")).unwrap();
    let cut = photos.join("b cut.jpg");
    std::fs::write(&cut, &good[..good.len() / 2]).unwrap();
    let text = folder.path().join("notes.md");
    std::fs::write(&text, "no image").unwrap();
    let absent = folder.path().join("absent.jpg");
    let run = predict(&[&absent, &photos, &text], "").code(1);
    assert_eq!(names(&run), ["airplane.jpg", "airplane.png", "airplane.webp"]);
    let errors = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    for word in
        ["absent.jpg", "notes.md: not an image: neither", "b cut.jpg", "3 images cannot be classified"]
    {
        assert!(errors.contains(word), "`{word}` is not in: {errors}");
    }

    let [jpg, png] = ["airplane.jpg", "airplane.png"].map(|name| photos.join(name));
    let lines = format!("{}\r\n\n \t\n{}\n", png.display(), jpg.display());
    assert_eq!(names(&predict(&[Path::new("-")], &lines).success()), ["airplane.png", "airplane.jpg"]);
    refused(predict(&[Path::new("-")], "\n"), 1, &["standard input"]);
    assert_eq!(names(&predict(&[&absent], "").code(1)), Vec::<String>::new());
}

#[test]
fn lists_have_any_extension_and_class_names() {
    let folder = tempfile::tempdir().unwrap();
    let classes = std::fs::read_to_string(sample_data().join("classes.txt")).unwrap();
    let classes: Vec<&str> = classes.lines().collect();
    std::fs::copy(root().join("tests/data/airplane.jpg"), folder.path().join("a.jpg")).unwrap();
    std::fs::write(folder.path().join("classes.txt"), classes.join("\n")).unwrap();
    let eval = |list: &Path| {
        let mut command = swinq(["eval"]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(list);
        command.args(["--no-latency", "--backend", "cpu"]).assert()
    };
    let list = folder.path().join("images.tsv");
    for class in ["airplane", "0"] {
        std::fs::write(&list, format!("a.jpg\t{class}\n")).unwrap();
        assert!(stdout(&eval(&list).success()).contains("Acc@1 100.000"), "{class}");
    }
    std::fs::write(&list, "a.jpg\tzeppelin\n").unwrap();
    refused(eval(&list), 1, &["zeppelin", "classes.txt"]);
    std::fs::remove_file(folder.path().join("classes.txt")).unwrap();
    refused(eval(&list), 1, &["class names of the list", "10 classes"]);
}
