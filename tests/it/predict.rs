//! `predict` on files, folders and standard input, and lists with class names.

use std::path::Path;

use crate::common::{refused, root, sample_cfg, sample_data, sample_model, stdout, swinq};
use safetensors::SafeTensors;
use serde_json::Value;
use swinq_kernels::Cpu;
use swinq_model::QuantizedModel;
use swinq_numerics::Gelu;

fn predict(arguments: &[&Path], input: &str) -> assert_cmd::assert::Assert {
    let mut command = swinq(["predict"]);
    command.arg(sample_model()).args(arguments).arg("--cfg").arg(sample_cfg());
    command.args(["--topk", "1", "--json"]).write_stdin(input).assert()
}

fn names(assert: &assert_cmd::assert::Assert) -> Vec<String> {
    let found: Value = serde_json::from_str(&stdout(assert)).unwrap();
    let classified = found.as_array().unwrap().iter().filter(|entry| entry.get("topk").is_some());
    classified.map(name_of).collect()
}

fn name_of(entry: &Value) -> String {
    let path = Path::new(entry["image"].as_str().unwrap());
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The images with errors and the errors.
fn errors(assert: &assert_cmd::assert::Assert) -> Vec<(String, String)> {
    let found: Value = serde_json::from_str(&stdout(assert)).unwrap();
    let with_error = found.as_array().unwrap().iter().filter(|entry| entry.get("topk").is_none());
    with_error.map(|entry| (name_of(entry), entry["error"].as_str().unwrap().to_owned())).collect()
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
    let said = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    for word in
        ["absent.jpg", "notes.md: not an image: neither", "b cut.jpg", "3 inputs cannot be classified"]
    {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    // The JSON has every input.
    let failed = errors(&run);
    let of_errors: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(of_errors, ["absent.jpg", "notes.md", "b cut.jpg"]);
    assert!(failed.iter().all(|(name, error)| error.contains(name) && said.contains(error)), "{failed:?}");

    let [jpg, png] = ["airplane.jpg", "airplane.png"].map(|name| photos.join(name));
    let lines = format!("{}\r\n\n \t\n{}\n", png.display(), jpg.display());
    assert_eq!(names(&predict(&[Path::new("-")], &lines).success()), ["airplane.png", "airplane.jpg"]);
    refused(predict(&[Path::new("-")], "\n"), 1, &["standard input"]);
    let percents = |text: &str| -> Vec<usize> { text.lines().filter_map(|line| line.find(" %")).collect() };
    let mut table = swinq(["predict", "--topk", "10", "--cfg"]);
    let table = stdout(&table.arg(sample_cfg()).arg(sample_model()).arg(&jpg).assert().success());
    let ends = percents(&table);
    assert!(ends.len() == 10 && ends.iter().all(|end| *end == ends[0]), "{table}");
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let (_, problem) = errors(&predict(&[&folder.path().join("empty")], "").code(1)).remove(0);
    assert!(problem.contains("empty: not an image: the folder has no image"), "{problem}");
    let none = predict(&[&absent], "").code(1);
    assert_eq!((names(&none), errors(&none).len()), (Vec::<String>::new(), 1));
}

#[test]
fn no_logits_are_written_if_no_image_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (text, logits) = (folder.path().join("a.jpg"), folder.path().join("logits.safetensors"));
    std::fs::write(&text, "no image").unwrap();
    let run = predict(&[&text, "--logits".as_ref(), &logits], "").code(1);
    assert_eq!(errors(&run).len(), 1);
    assert!(!logits.exists());
}

/// The folder of a small model of transformers with this `problem_type`.
fn with_problem(problem: &str) -> tempfile::TempDir {
    let (copy, hf) = (tempfile::tempdir().unwrap(), root().join("model/tests/checkpoints/hf"));
    for name in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        std::fs::copy(hf.join(name), copy.path().join(name)).unwrap();
    }
    let path = copy.path().join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["problem_type"] = problem.into();
    std::fs::write(&path, json.to_string()).unwrap();
    copy
}

#[test]
fn scores_are_those_of_the_problem() {
    let image = root().join("tests/data/airplane.png");
    let folder = tempfile::tempdir().unwrap();
    let logits = folder.path().join("logits.safetensors");
    let found = |problem: &str| -> (String, Vec<(usize, f64)>) {
        let model = with_problem(problem);
        let mut command = swinq(["predict"]);
        command.arg(model.path()).arg(&image).args(["--json", "--logits"]).arg(&logits);
        let entries: Value = serde_json::from_str(&stdout(&command.assert().success())).unwrap();
        let score = |class: &Value| {
            let score = class.get("probability").or(class.get("value")).unwrap();
            (class["class"].as_u64().unwrap() as usize, score.as_f64().unwrap())
        };
        let scores = entries[0]["scores"].as_str().unwrap().to_owned();
        (scores, entries[0]["topk"].as_array().unwrap().iter().map(score).collect())
    };
    let (kind, classes) = found("multi_label_classification");
    let bytes = std::fs::read(&logits).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (values, _) = file.tensor("logits").unwrap().data().as_chunks::<4>();
    let logit = |class: usize| f64::from(f32::from_le_bytes(values[class]));
    assert!(kind == "sigmoid" && classes.len() == 5);
    assert!(classes.iter().all(|&(class, p)| (p - 1.0 / (1.0 + (-logit(class)).exp())).abs() < 1e-9));
    let (kind, classes) = found("regression");
    assert!(kind == "number" && classes.iter().all(|&(class, value)| value == logit(class)), "{classes:?}");
    let (kind, classes) = found("single_label_classification");
    assert!(kind == "softmax" && (classes.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
}

/// The folder of timm states the problem as that of transformers does, in the file or in `pretrained_cfg`.
#[test]
fn a_threshold_lists_all_classes_that_reach_it() {
    let (copy, timm) = (tempfile::tempdir().unwrap(), root().join("model/tests/checkpoints/timm"));
    std::fs::copy(timm.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let image = root().join("tests/data/airplane.png");
    let run = |more: &[&str]| swinq(["predict", "--json"]).arg(copy.path()).arg(&image).args(more).assert();
    let json: Value = serde_json::from_slice(&std::fs::read(timm.join("config.json")).unwrap()).unwrap();
    let state = |problem: &str| {
        let mut json = json.clone();
        json["pretrained_cfg"]["problem_type"] = problem.into();
        std::fs::write(copy.path().join("config.json"), json.to_string()).unwrap();
    };
    state("multi_label_classification");
    let classes = |more: &[&str]| -> Vec<f64> {
        let entries: Value = serde_json::from_str(&stdout(&run(more).success())).unwrap();
        assert_eq!(entries[0]["scores"], "sigmoid");
        let score = |class: &Value| class["probability"].as_f64().unwrap();
        entries[0]["topk"].as_array().unwrap().iter().map(score).collect()
    };
    let all = classes(&["--threshold", "0"]);
    assert!(all.len() > 2 && all.is_sorted_by(|a, b| a >= b), "{all:?}");
    let least = all[1].to_string();
    let reached = all.iter().filter(|&&score| score >= all[1]).count();
    assert_eq!(classes(&["--threshold", &least]), all[..reached]);
    assert_eq!(classes(&["--threshold", "1"]), Vec::<f64>::new());
    refused(run(&["--threshold", "0.5", "--topk", "3"]), 2, &["--topk"]);
    refused(run(&["--threshold", "2"]), 2, &["from 0 to 1"]);
    state("single_label_classification");
    refused(run(&["--threshold", "0.5"]), 2, &["multi-label", "--topk"]);
}

/// Commands that measure accuracy by labels, or train on it.
#[test]
fn problems_without_a_measure_are_refused_by_name() {
    for (problem, name) in
        [("multi_label_classification", "multi-label classifier"), ("regression", "regression")]
    {
        let model = with_problem(problem);
        let output = model.path().join("out");
        let name = format!("is a {name}, for which swinq has no measure of accuracy");
        let data = |command: &str, more: &[&str]| {
            let mut command = swinq([command]);
            command.arg(model.path()).args(more).arg("--data-path").arg(sample_data()).assert()
        };
        refused(data("eval", &["--no-latency"]), 1, &[&name]);
        refused(data("tune", &["--max-drop", "1", "-o", output.to_str().unwrap()]), 1, &[&name]);
        let mut qat = swinq(["qat", "default", "--opts", "quant", "off", "loss.kl", "0", "float"]);
        qat.arg(model.path()).arg("data.path").arg(sample_data()).arg("output").arg(&output);
        refused(qat.assert(), 1, &[&name]);
        assert!(!output.exists());
    }
}

/// A budget that is as large as one image of 32 x 32 pixels, and one that is smaller than any: images wait
/// for each other, and every one is decoded.
#[test]
fn a_small_memory_for_decoding_is_enough() {
    let files =
        ["airplane.jpg", "airplane.png", "airplane.webp"].map(|name| root().join("tests/data").join(name));
    let paths: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
    let all = stdout(&predict(&paths, "").success());
    for memory in ["12K", "1"] {
        let arguments = [&paths[..], &[Path::new("--decode-memory"), Path::new(memory)]].concat();
        assert_eq!(stdout(&predict(&arguments, "").success()), all, "--decode-memory {memory}");
    }
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

/// Models of the versions 1 to 3 of the number contract (`inspect` shows the version), and the bits of their
/// logits for `airplane.png`: with the GELU of these versions, the LayerNorm of version 5 and the weights of
/// attention of version 6. With those of their versions the logits differed by at most 6.7e-5, as single
/// codes differ. The file of version 3 is a Swin V2.
const OLDER: [(&str, [u32; 10]); 3] = [
    (
        "numbers-1",
        [
            0xbfaa8156, 0x3f28061e, 0xbf13109d, 0x3ecdbb11, 0x3f66dc11, 0x3e8d44f7, 0xbf9eb1e1, 0x3f883f78,
            0xbb9799c0, 0xbfb1a111,
        ],
    ),
    (
        "numbers-2",
        [
            0xbfa90434, 0x3f28b0e0, 0xbf1304f4, 0x3ed27f24, 0x3f6649a6, 0x3e90c730, 0xbf9d1b8a, 0x3f86cdfa,
            0xba6ccb80, 0xbfb2d8ee,
        ],
    ),
    (
        "numbers-3",
        [
            0x3d03da40, 0x3eb1d920, 0xbe3fece0, 0x3f2dbee1, 0xbfb3ff50, 0x3fe76238, 0x3fb9d719, 0x3ed412b5,
            0x3ea5aa80, 0xbf2a009d,
        ],
    ),
];

/// The bits of the logits of `airplane.png`.
fn logits(model: &Path, isa: &str) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits");
    let mut command = swinq(["predict", "--backend", "cpu", "--logits"]);
    command.arg(&out).arg(model).arg(root().join("tests/data/airplane.png")).env("SWINQ_ISA", isa);
    command.assert().success();
    let bytes = std::fs::read(&out).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (words, _) = file.tensor("logits").unwrap().data().as_chunks::<4>();
    words.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

#[test]
fn trained_models_have_the_same_logits_on_every_instruction_set() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["swin_micro_cifar10", "swinv2_micro_cifar10"] {
        let (sample, int8) = (root().join("samples").join(name), folder.path().join(name));
        let mut command = swinq(["calibrate", "--batches", "1", "--ptq", "basic", "--data-path"]);
        command
            .arg(sample_data())
            .arg(sample.join("model.safetensors"))
            .arg("--cfg")
            .arg(sample.join("cfg.yaml"));
        command.arg("-o").arg(&int8).assert().success();
        let expected = logits(&int8, "scalar");
        assert!(expected.iter().any(|&bits| bits != expected[0]), "{name}: {expected:?}");
        for cpu in Cpu::available() {
            assert_eq!(logits(&int8, cpu.name()), expected, "{name} on {cpu}");
        }
    }
}

#[test]
fn models_of_older_versions_keep_their_gelu() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bits) in OLDER {
        let path = root().join("tests/data/older").join(name).with_extension("safetensors");
        for cpu in Cpu::available() {
            assert_eq!(logits(&path, cpu.name()), bits, "{name} on {cpu}");
        }
        // The image tells the versions apart, except where `mlp.fc1.output` leaves few values.
        if name == "numbers-1" {
            continue;
        }
        let mut model = QuantizedModel::load(&path).unwrap();
        model.gelu = Gelu::Quadratic;
        let newest = folder.path().join(name);
        model.save(&newest).unwrap();
        assert_ne!(logits(&newest, "scalar"), bits, "{name}");
    }
}
