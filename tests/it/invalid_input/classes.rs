//! The order of classes in data and in models.

use super::Folder;
use crate::common::{self, refused, sample_cfg, sample_model, stderr, stdout, swinq};

const NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Writes `data/val` with one image in the folder of each class.
fn image_folder(folder: &Folder, classes: &[&str]) {
    let image = common::root().join("tests/data/airplane.jpg");
    for name in classes {
        let class = folder.path("data/val").join(name);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::copy(&image, class.join("1.jpg")).unwrap();
    }
}

/// Evaluates the sample, whose classes have the names `labels`, on the file or folder `data`. The predictions
/// are written to `p.csv`.
fn eval(folder: &Folder, labels: &[&str], data: &str) -> assert_cmd::assert::Assert {
    let labels = folder.write("labels.txt", labels.join("\n"));
    let mut command = swinq(["eval", "--no-latency", "--labels"]);
    command.arg(labels).arg(sample_model()).arg("--cfg").arg(sample_cfg());
    command.arg("--predictions").arg(folder.path("p.csv"));
    command.arg("--data-path").arg(folder.path(data)).assert()
}

/// The label of the image whose name contains `name`, in `p.csv`.
fn label_of(folder: &Folder, name: &str) -> String {
    let text = std::fs::read_to_string(folder.path("p.csv")).unwrap();
    let line = text.lines().find(|line| line.contains(name)).unwrap();
    line.split(',').nth(1).unwrap().to_owned()
}

#[test]
fn class_folders_are_matched_with_the_models_names() {
    let folder = Folder::new();
    image_folder(&folder, &NAMES);
    let same = eval(&folder, &NAMES, "data").success();
    assert!(!stderr(&same).contains("by name"), "{}", stderr(&same));
    assert_eq!(label_of(&folder, "airplane/"), "0");
    let mut reversed = NAMES;
    reversed.reverse();
    let other = stderr(&eval(&folder, &reversed, "data").success());
    assert!(other.contains("matched with the model's by name: airplane is class 9, not 0"), "{other}");
    assert_eq!((label_of(&folder, "airplane/"), label_of(&folder, "ship/")), ("9".into(), "1".into()));
}

#[test]
fn numbers_that_the_model_cannot_confirm_are_remarked() {
    let folder = Folder::new();
    let remark = |classes: &[&str], command: &str, more: &[&str]| {
        let _ = std::fs::remove_dir_all(folder.path("data"));
        image_folder(&folder, classes);
        let mut command = swinq([command]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(more);
        let run = command.arg("--data-path").arg(folder.path("data")).assert().success();
        stdout(&run) + &stderr(&run)
    };
    let text = remark(&NAMES, "eval", &["--no-latency"]);
    assert!(text.contains("sorted order: airplane is class 0") && text.contains("--labels"), "{text}");
    let wordnet = NAMES.map(|name| format!("n{:08}", name.len() * 1000 + usize::from(name.as_bytes()[1])));
    let wordnet: Vec<&str> = wordnet.iter().map(String::as_str).collect();
    let text = remark(&wordnet, "eval", &["--no-latency"]);
    assert!(!text.contains("sorted order"), "{text}");
    let output = folder.path("q.safetensors");
    let more = ["--split", "val", "--ptq", "basic", "--batches", "1", "-o", output.to_str().unwrap()];
    let text = remark(&NAMES, "calibrate", &more);
    assert!(text.contains("named by the data set, from class 0 on airplane"), "{text}");
}

#[test]
fn numeric_folders_have_the_order_of_the_models_library() {
    let folder = Folder::new();
    image_folder(&folder, &["1", "2", "3", "10", "20"]);
    let data = folder.path("data");
    let cfg = folder.write(
        "small.yaml",
        "DATA: {IMG_SIZE: 24}\nMODEL:\n  NUM_CLASSES: 5\n  SWIN: {EMBED_DIM: 6, DEPTHS: [1, 2], NUM_HEADS: [2, 3], \
         WINDOW_SIZE: 3, MLP_RATIO: 1.5}\n",
    );
    let checkpoints = common::root().join("model/tests/checkpoints");
    let run = |command: &str, file: &str, more: &[&std::path::Path]| {
        let mut command = swinq([command]);
        command.arg(checkpoints.join(file)).arg("--cfg").arg(&cfg).arg("--data-path").arg(&data).args(more);
        stderr(&command.args(["--transform", "ms"]).assert().success())
    };
    let predictions = folder.path("p.csv");
    let eval = ["--no-latency".as_ref(), "--predictions".as_ref(), predictions.as_path()];
    // timm compares the numbers, Microsoft the texts.
    let said = run("eval", "timm/model.safetensors", &eval);
    assert!(said.contains("as timm sorts them") && said.contains("2 is class 1"), "{said}");
    assert_eq!((label_of(&folder, "/10/"), label_of(&folder, "/2/")), ("3".into(), "1".into()));
    let said = run("eval", "ms.pth", &eval);
    assert!(said.contains("in sorted order: 1 is class 0"), "{said}");
    assert_eq!((label_of(&folder, "/10/"), label_of(&folder, "/2/")), ("1".into(), "2".into()));
    // Calibration stores the names in this order.
    let output = folder.path("q.safetensors");
    let more = ["--split", "val", "--ptq", "basic", "--batches", "1", "-o", output.to_str().unwrap()];
    run("calibrate", "timm/model.safetensors", &more.map(AsRef::as_ref));
    let labels = swinq_model::QuantizedModel::load(&output).unwrap().labels.unwrap();
    assert_eq!(labels, ["1", "2", "3", "10", "20"]);
}

#[test]
fn labels_from_one_are_asked_about() {
    let folder = Folder::new();
    image_folder(&folder, &["cat"]);
    std::fs::copy(folder.path("data/val/cat/1.jpg"), folder.path("a.jpg")).unwrap();
    std::fs::copy(folder.path("data/val/cat/1.jpg"), folder.path("b.jpg")).unwrap();
    folder.write("list.txt", "a.jpg\t1\nb.jpg\t10\n");
    refused(eval(&folder, &NAMES, "list.txt"), 1, &["has 10, from 0 to 9", "do labels start at 1?"]);
    folder.write("list.txt", "a.jpg\t0\nb.jpg\t10\n");
    let text = stderr(&eval(&folder, &NAMES, "list.txt").code(1));
    assert!(!text.contains("start at 1"), "{text}");
}

#[test]
fn a_part_of_the_models_classes_keeps_its_numbers() {
    let folder = Folder::new();
    image_folder(&folder, &["cat", "ship"]);
    let part = stderr(&eval(&folder, &NAMES, "data").success());
    assert!(part.contains("by name, 2 of the model's 10"), "{part}");
    assert_eq!((label_of(&folder, "cat/"), label_of(&folder, "ship/")), ("3".into(), "8".into()));
    std::fs::copy(folder.path("data/val/cat/1.jpg"), folder.path("a.jpg")).unwrap();
    folder.write("list.txt", "a.jpg\tship\n");
    eval(&folder, &NAMES, "list.txt").success();
    assert_eq!(label_of(&folder, "a.jpg"), "8");
}

#[test]
fn numbers_of_a_data_set_that_contradict_the_models_names_are_refused() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("zip")).unwrap();
    for file in ["val.zip", "val_map.txt", "classes.txt"] {
        std::fs::copy(common::root().join("samples/cifar10").join(file), folder.path("zip").join(file))
            .unwrap();
    }
    let mut swapped = NAMES;
    swapped.swap(3, 5);
    refused(
        eval(&folder, &swapped, "zip"),
        1,
        &["class 3 is cat, which is class 5 of the model", "--labels"],
    );
    let foreign: Vec<String> = (0..10).map(|i| format!("name{i}")).collect();
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let text = stderr(&eval(&folder, &foreign, "zip").success());
    assert!(text.contains("class 0 is airplane here and name0 in the model"), "{text}");
}

#[test]
fn names_that_the_model_does_not_have_once_are_refused() {
    let folder = Folder::new();
    image_folder(&folder, &NAMES);
    let mut typo = NAMES;
    typo[3] = "kat";
    refused(eval(&folder, &typo, "data"), 1, &["1 of 10 class names", "cat"]);
    let mut twice = NAMES;
    (twice[4], twice[7]) = ("dog", "dog");
    image_folder(&folder, &["dog"]);
    for name in ["deer", "horse"] {
        std::fs::remove_dir_all(folder.path("data/val").join(name)).unwrap();
    }
    refused(eval(&folder, &twice, "data"), 1, &["two classes called dog, 4 and 5", "class numbers"]);
}
