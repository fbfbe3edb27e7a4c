//! Calibration and evaluation in shards: what is merged equals one run, bit for bit.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{
    self, calibrate, files, go_on, refused, root, sample_cfg, sample_data, sample_model, stderr, stdout,
    swinq,
};
use swinq::model::{Calibrator, Ptq};
use swinq::{
    CalibrateOptions, Candidate, EngineOptions, EvaluateOptions, Images, Model, OpenOptions, Part, PartSet,
    ReadOptions, Recipe, Rule, Shard, Split,
};

const COUNTS: [usize; 3] = [1, 3, 7];

/// A bundled float model.
fn float(sample: &str) -> Model {
    let folder = root().join("samples").join(sample);
    let cfg = Some(folder.join("cfg.yaml").to_str().unwrap().to_owned());
    let options = OpenOptions { cfg, ..OpenOptions::default() };
    Model::open_with(folder.join("model.safetensors"), &options).unwrap()
}

/// The parts of `count` shards, written to `folder`, in another order than that of the images.
fn parts(folder: &Path, count: usize, run: &mut dyn FnMut(Shard) -> Part) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = (1..=count)
        .map(|index| {
            let path = folder.join(format!("{index}.part"));
            run(Shard { index, count }).save(&path).unwrap();
            path
        })
        .collect();
    paths.reverse();
    paths.swap(0, count / 2);
    paths
}

/// Asserts that calibrations in shards give the checkpoint and the histograms of one calibration.
fn compare_calibrations(sample: &str, recipe: Recipe, count: usize, counts: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::open(sample_data(), Split::Train, Some(count), 3).unwrap();
    // The last batch is shorter than the others.
    let read = ReadOptions { batch_size: 2, ..ReadOptions::default() };
    let options = CalibrateOptions { recipe, read, ..CalibrateOptions::default() };
    let written = |calibrated: &swinq::Calibrated| {
        let path = folder.path().join("model.safetensors");
        calibrated.model.save(&path).unwrap();
        (std::fs::read(path).unwrap(), calibrated.range_file(None))
    };
    let whole = swinq::calibrate(float(sample), &options, &images, &mut go_on).unwrap();
    let expected = written(&whole);
    for &shards in counts {
        let paths = parts(folder.path(), shards, &mut |shard| {
            swinq::calibrate_shard(float(sample), &options, &images, shard, None, &mut go_on).unwrap()
        });
        let merged = swinq::merge_calibration(&PartSet::open(&paths).unwrap(), &mut go_on).unwrap();
        assert_eq!(merged.images, count);
        assert_eq!(merged.calibrated.trials, whole.trials);
        assert!(written(&merged.calibrated) == expected, "{} in {shards} shards", options.recipe.name);
    }
}

#[test]
fn every_calibrator_merges() {
    for calibrator in [Calibrator::Max, Calibrator::Percentile(99.9), Calibrator::Mse, Calibrator::Entropy] {
        let pattern = r"re:.*\.(input|q|k|v)".to_owned();
        let rule = Rule { pattern, calibrator: Some(calibrator), ..Rule::default() };
        let recipe = Recipe::shipped("default").unwrap().with_rule(rule).with_ptq(Ptq::Basic);
        let counts = if calibrator == Calibrator::Max { &COUNTS[..] } else { &COUNTS[1..2] };
        compare_calibrations("swin_micro_cifar10", recipe, 13, counts);
    }
}

#[test]
fn refinement_merges() {
    compare_calibrations("swin_micro_cifar10", Recipe::shipped("default").unwrap(), 13, &COUNTS);
    compare_calibrations("swin_micro_cifar10", Recipe::shipped("mode1").unwrap(), 5, &COUNTS[1..2]);
    compare_calibrations("swinv2_micro_cifar10", Recipe::shipped("default").unwrap(), 5, &COUNTS[1..2]);
}

/// The figures that do not depend on the machine and the time.
fn figures(results: &swinq::eval::Results) -> serde_json::Value {
    let text = swinq::eval::results_json(results).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let object = value.as_object_mut().unwrap();
    for key in ["environment", "peak_memory_bytes", "notes", "commands"] {
        object.remove(key);
    }
    value
}

#[test]
fn evaluations_merge() {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::open(sample_data(), Split::Val, Some(150), 1).unwrap();
    let calibration = Images::open(sample_data(), Split::Train, Some(8), 0).unwrap();
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
    let options = CalibrateOptions { recipe, ..CalibrateOptions::default() };
    let float = float("swin_micro_cifar10");
    let int8 = swinq::calibrate(float.clone(), &options, &calibration, &mut go_on).unwrap().model;
    let candidates = || {
        let candidate = |name: &str, model: &Model| {
            let candidate = Candidate::engine(name, model, &EngineOptions::cpu(2)).unwrap();
            candidate.with_sites_of(model).with_hash_of(model).unwrap()
        };
        [candidate("float", &float), candidate("int8", &int8)]
    };
    let read = ReadOptions { batch_size: 16, ..ReadOptions::default() };
    let options = EvaluateOptions { read, threads: 2, site_noise: true, ..EvaluateOptions::default() };
    let observer = &mut |_: usize, _: usize| ControlFlow::Continue(());
    let expected = figures(&swinq::evaluate(&mut candidates(), &images, &options, observer).unwrap());
    for path in ["/models/1/sqnr_db", "/models/1/top1_difference", "/models/1/disagreements/0/image"] {
        assert!(expected.pointer(path).is_some(), "{path} is not in {expected}");
    }
    let sites = expected.pointer("/models/1/sites").and_then(serde_json::Value::as_array).unwrap();
    assert!(sites.iter().any(|site| site.get("sqnr_db").is_some()), "{expected}");
    for count in COUNTS {
        let paths = parts(folder.path(), count, &mut |shard| {
            swinq::evaluate_shard(&mut candidates(), &images, shard, &options, &[], None, observer).unwrap()
        });
        let merged = swinq::merge_evaluation(&PartSet::open(&paths).unwrap()).unwrap();
        let found = figures(&merged.results);
        assert!(found == expected, "{count} shards: {found:#} instead of {expected:#}");
        assert!(merged.results.notes.iter().any(|note| note.contains("latency was not measured")));
    }
}

/// The command line of `swinq eval` on the sample, with these models and arguments.
fn eval(models: &[&Path], more: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = swinq(["eval"]);
    command.args(models).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
    command.args(["--limit", "60", "--batch-size", "10"]).args(more).assert()
}

fn merge(parts: &[&Path], output: &Path, more: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = swinq(["merge"]);
    command.args(parts).arg("-o").arg(output).args(more).assert()
}

#[test]
fn the_program_writes_parts_and_merges_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let settings = ["--batches", "4", "--batch-size", "3", "--ptq", "basic"];
    let [one, three, two] = ["c1.part", "c3.part", "c2.part"].map(path);
    for (shard, part) in [("1/3", &one), ("2/3", &two), ("3/3", &three)] {
        let text = stdout(&calibrate(part, &[&settings[..], &["--shard", shard]].concat()).success());
        assert!(text.contains(&format!("shard      {shard} of these images")), "{text}");
    }
    let (whole, merged) = (path("whole.safetensors"), path("merged.safetensors"));
    calibrate(&whole, &settings).success();
    let text = stdout(&merge(&[&two, &three, &one], &merged, &[]).success());
    assert!(text.contains("merged 3 shards of 12 images"), "{text}");
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&merged).unwrap());
    let ranges = |name: &str| -> serde_json::Value {
        let mut ranges: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap();
        let command = ranges.as_object_mut().unwrap().remove("command").unwrap();
        assert_eq!(
            command.as_str().unwrap().contains("swinq merge"),
            name.starts_with("merged"),
            "{command}"
        );
        ranges
    };
    let names = common::files(folder.path()).into_iter().filter(|name| name.ends_with(".json"));
    let names: Vec<String> = names.collect();
    assert_eq!(ranges(&names[0]), ranges(&names[1]), "{names:?}");

    let models = [sample_model(), merged.clone()];
    let models: Vec<&Path> = models.iter().map(PathBuf::as_path).collect();
    let [first, second] = ["e1.part", "e2.part"].map(path);
    for (shard, part) in [("1/2", &first), ("2/2", &second)] {
        eval(&models, &["--shard", shard, "-o", part.to_str().unwrap()]).success();
    }
    let (json, expected, html) = (path("merged.json"), path("expected.json"), path("report.html"));
    let [csv, expected_csv] = ["merged.csv", "expected.csv"].map(path);
    let files = ["--report", html.to_str().unwrap(), "--predictions", csv.to_str().unwrap()];
    let table = stdout(&merge(&[&second, &first], &json, &files).success());
    for word in ["merged 2 shards of 60 images", "Acc@1", "int8"] {
        assert!(table.contains(word), "`{word}` is not in: {table}");
    }
    let files = ["--json", expected.to_str().unwrap(), "--predictions", expected_csv.to_str().unwrap()];
    eval(&models, &[&["--no-latency"], &files[..]].concat()).success();
    let [text, expected_text] = [&csv, &expected_csv].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!((text.lines().count(), text), (61, expected_text));
    let read = |path: &Path| figures(&swinq::eval::read_results(path).unwrap());
    assert_eq!(read(&json), read(&expected));
    assert!(std::fs::read_to_string(html).unwrap().contains("latency was not measured"));

    let out = path("out.safetensors");
    #[cfg(target_os = "linux")]
    {
        let results = path("terminated.json");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
        command.arg("merge").args([&first, &second]).arg("-o").arg(&results);
        common::terminated_before_it_writes(&mut command, &results);
    }

    // Refusals that name the fault.
    refused(merge(&[&one, &three], &out, &[]), 1, &["shard 2/3 is missing"]);
    refused(merge(&[&one, &first], &out, &[]), 1, &["e1.part", "a part of an evaluation"]);
    refused(merge(&[&merged], &out, &[]), 1, &["a checkpoint that swinq wrote, not a part"]);
    refused(merge(&[&sample_model()], &out, &[]), 1, &["is not a part"]);
    refused(merge(&[&one, &two, &three], &one, &[]), 2, &["safetensors"]);
    refused(merge(&[&first, &second], &first, &[]), 1, &["would replace the input"]);
    refused(merge(&[&first, &second], &out, &[]), 2, &["results are JSON"]);
    refused(merge(&[&one, &two, &three], &out, &["--report", "r.html"]), 2, &["parts of a calibration"]);
    refused(swinq(["inspect"]).arg(&one).assert(), 1, &["is a part of a calibration", "swinq merge"]);
    let mut bytes = std::fs::read(&two).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&two, &bytes).unwrap();
    refused(merge(&[&one, &two, &three], &out, &[]), 1, &["c2.part", "is damaged", "run this shard again"]);
    std::fs::write(&two, &bytes[..last / 2]).unwrap();
    refused(merge(&[&one, &two, &three], &out, &[]), 1, &["c2.part", "truncated or damaged part"]);
    calibrate(&two, &[&settings[..], &["--shard", "2/3", "--calibrator", "mse"]].concat()).success();
    refused(merge(&[&one, &two, &three], &out, &[]), 1, &["c2.part", "another run than", "`recipe."]);
    calibrate(&two, &[&settings[..], &["--shard", "2/3", "--seed", "5"]].concat()).success();
    refused(merge(&[&one, &two, &three], &out, &[]), 1, &["c2.part", "`images.seed` is 5 here and 0 there"]);
    assert!(!out.exists());
}

#[test]
fn shards_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("p.part");
    let refuse = |more: &[&str], code: i32, words: &[&str]| {
        refused(calibrate(&part, &[&["--batches", "2", "--batch-size", "2"], more].concat()), code, words);
    };
    refuse(
        &["--shard", "1/2", "--ptq", "reconstruct"],
        1,
        &["ptq: reconstruct", "without --shard", "--ptq refined"],
    );
    refuse(&["--shard", "1/3"], 1, &["4 images in batches of 2 are 2 batches", "at most 2 shards"]);
    refuse(&["--shard", "0/2"], 2, &["numbered from 1: 1/2 to 2/2"]);
    refuse(&["--shard", "half"], 2, &["must be I/N"]);
    refused(calibrate(&folder.path().join("p.safetensors"), &["--shard", "1/2"]), 2, &["p.part"]);
    let model = sample_model();
    refused(eval(&[&model], &["--shard", "1/2"]), 2, &["--output"]);
    refused(eval(&[&model], &["-o", "p.part"]), 2, &["--shard"]);
    let json = ["--shard", "1/2", "-o", "p.part", "--json", "r.json"];
    refused(eval(&[&model], &json), 2, &["--json"]);
    let none = swinq(["merge", "-o", "x"]).assert();
    assert!(stderr(&none).contains("PART"), "{}", stderr(&none));
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

#[test]
fn corrupt_images_are_left_out_as_in_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let image = root().join("tests/data/airplane.png");
    for index in 0..8 {
        let path = data.join(format!("{index}.png"));
        match index {
            2 | 3 | 7 => std::fs::write(path, "no image").unwrap(),
            _ => std::fs::copy(&image, path).map(|_| ()).unwrap(),
        }
    }
    let run = |output: &Path, more: &[&str]| {
        let mut command = swinq(["calibrate"]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(&data);
        command.args(["--batch-size", "2", "--ptq", "basic"]).args(more).arg("-o").arg(output).assert()
    };
    let merged = folder.path().join("merged.safetensors");
    // The second shard has no image left.
    let merge_with = |budget: &str| {
        let paths = ["1", "2", "3", "4"].map(|shard| {
            let path = folder.path().join(shard).with_extension("part");
            run(&path, &["--skip-corrupt", budget, "--shard", &format!("{shard}/4")]).success();
            path
        });
        merge(&[&paths[2], &paths[0], &paths[3], &paths[1]], &merged, &[])
    };
    refused(merge_with("2"), 1, &["left out 3 corrupt images", "allows 2"]);
    let warnings = stderr(&merge_with("3").success());
    assert!(warnings.contains("2.png") && warnings.contains("7.png"), "{warnings}");
    let whole = folder.path().join("whole.safetensors");
    run(&whole, &["--skip-corrupt", "3"]).success();
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&merged).unwrap());
}
