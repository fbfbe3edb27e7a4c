//! `eval` of backbones: the distance of each output from float, the worst images, and latency by the size of
//! images.

use std::ops::ControlFlow;

use crate::backbones::folder;
use crate::common::{self, Folder, refused, sample_cfg, sample_model, stderr, stdout, swinq};
use assert_cmd::assert::Assert;
use serde_json::Value;
use swinq::eval::{Distortion, LatencyOptions};
use swinq::{Candidate, EngineOptions, EvaluateOptions, Images, Model, Split};

/// A folder with a backbone, its quantized form `q.safetensors`, and pictures.
fn quantized() -> Folder {
    let folder = folder();
    folder.calibrate("q.safetensors", &["--batches", "2"]).success();
    folder
}

/// `swinq eval` of the models on the pictures, without latency, on the CPU.
fn eval(folder: &Folder, models: &[&str], more: &[&str]) -> Assert {
    let mut command = swinq(["eval", "--no-latency", "--backend", "cpu"]);
    command.args(models.iter().map(|model| folder.path(model)));
    command.arg("--data-path").arg(folder.path("photos")).args(more).assert()
}

/// The JSON of such an evaluation.
fn json(folder: &Folder, models: &[&str], more: &[&str]) -> Value {
    let path = folder.path("results.json");
    eval(folder, models, &[&["--json", path.to_str().unwrap()], more].concat()).success();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn outputs_are_measured_against_the_first_model() {
    let folder = quantized();
    let models = ["backbone.safetensors", "q.safetensors"];
    let found = json(&folder, &models, &[]);
    let int8 = &found["models"][1];
    assert_eq!((&int8["images"], &found["data"]["sizing"]), (&9.into(), &"keep".into()));
    let (float, own) = (folder.maps(models[0], &[]), folder.maps(models[1], &[]));
    for (index, name) in ["stage1", "stage2"].into_iter().enumerate() {
        let mut expected = Distortion::default();
        for ((key, (_, reference)), (_, (_, other))) in
            float.iter().zip(&own).filter(|((key, _), _)| key.ends_with(name))
        {
            expected.update(reference, other).unwrap_or_else(|error| panic!("{key}: {error}"));
        }
        let output = &int8["outputs"][index];
        assert_eq!(output["name"], name);
        let near = |key: &str, value: f64| (output[key].as_f64().unwrap() - value).abs() < 1e-9;
        assert!(near("sqnr_db", expected.sqnr_db()), "{output} {}", expected.sqnr_db());
        assert!(near("cosine", expected.cosine()) && near("relative_error", expected.relative().unwrap()));
    }
    let lowest = |outputs: &Value| {
        outputs
            .as_array()
            .unwrap()
            .iter()
            .map(|output| output["sqnr_db"].as_f64().unwrap())
            .fold(1e9, f64::min)
    };
    assert_eq!(int8["sqnr_db"].as_f64().unwrap(), lowest(&int8["outputs"]));
    let worst: Vec<f64> =
        int8["worst_images"].as_array().unwrap().iter().map(|image| lowest(&image["outputs"])).collect();
    assert!(worst.len() == 9 && worst.is_sorted(), "{worst:?}");
    assert!(int8["worst_images"][0]["image"].as_str().unwrap().ends_with(".png"));
    assert!(int8["sites"].as_array().unwrap().iter().any(|site| !site["sqnr_db"].is_null()));
    assert!(found["models"][0]["outputs"].is_null() && int8["top1_correct"].is_null());

    // Batches have no effect on a figure; sizes do.
    let single = json(&folder, &models, &["--batch-size", "1"]);
    assert_eq!(single["models"][1]["outputs"], int8["outputs"]);
    let resized = json(&folder, &models, &["--size", "48x64"]);
    assert_eq!(resized["data"]["sizing"], "48x64");
    assert_eq!(resized["models"][1]["worst_images"][0]["size"], serde_json::json!([48, 64]));
    assert_ne!(resized["models"][1]["outputs"], int8["outputs"]);
}

#[test]
fn a_report_shows_outputs_and_pictures_and_simulations_run() {
    let folder = quantized();
    let report = folder.path("report.html");
    let more = ["--simulate=exact", "--report", report.to_str().unwrap()];
    let run = eval(&folder, &["backbone.safetensors", "q.safetensors"], &more).success();
    let text = stdout(&run);
    assert!(text.contains("SQNR stage1") && text.contains("farthest from the baseline"), "{text}");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("Outputs and images") && page.contains("data:image/jpeg"), "{text}");

    // The engine has the bits of the reference and of the simulation in float.
    for simulate in ["--simulate=exact", "--simulate"] {
        let found = json(&folder, &["q.safetensors"], &[simulate]);
        assert_eq!(found["models"][1]["sqnr_db"], "inf", "{simulate}");
    }
    // A float backbone equals itself.
    let same = json(&folder, &["backbone.safetensors", "backbone.safetensors"], &[]);
    assert_eq!(same["models"][1]["outputs"][0]["sqnr_db"], "inf");
    assert!(same["models"][1]["worst_images"].is_null());
}

#[test]
fn latency_is_measured_by_size() {
    let folder = quantized();
    let images = Images::open(folder.path("photos"), Split::Val, None, 0).unwrap();
    let engine = EngineOptions::cpu(2);
    let candidate = |name: &str| {
        let model = Model::open(folder.path(name)).unwrap();
        Candidate::engine(name, &model, &engine).unwrap()
    };
    let mut candidates = [candidate("backbone.safetensors"), candidate("q.safetensors")];
    let latency_options = LatencyOptions { min_ms: 1.0, warmup_ms: 0.0, min_runs: 3 };
    let options = EvaluateOptions { latency: vec![1, 2], latency_options, ..EvaluateOptions::default() };
    let go = &mut |_: usize, _: usize| ControlFlow::Continue(());
    let results = swinq::evaluate(&mut candidates, &images, &options, go).unwrap();
    for model in &results.models {
        let sizes: Vec<[usize; 2]> = model.sizes.iter().map(|of_size| of_size.size).collect();
        // Three pictures of each size; the largest comes first.
        assert_eq!(sizes, [[64, 96], [44, 72], [60, 32]]);
        assert!(model.sizes.iter().all(|of_size| of_size.latency_ms.keys().eq([&1, &2])));
        assert_eq!((&model.latency_ms, model.input_size), (&model.sizes[0].latency_ms, None));
    }
}

#[test]
fn what_cannot_be_compared_is_explained() {
    let folder = quantized();
    let both = ["backbone.safetensors", "q.safetensors"];
    let more = ["--predictions", "p.csv"];
    refused(eval(&folder, &["q.safetensors"], &[]), 1, &["give the float checkpoint first", "swinq bench"]);
    refused(eval(&folder, &both, &more), 2, &["--predictions lists classes", "swinq features"]);
    let stage2 = ["--outputs", "stage2"];
    folder.calibrate("last.safetensors", &[&stage2[..], &["--batches", "1"]].concat()).success();
    let last = ["backbone.safetensors", "last.safetensors"];
    refused(eval(&folder, &last, &[]), 1, &["has the outputs stage2 (", "--outputs"]);
    assert_eq!(json(&folder, &last, &stage2)["models"][1]["outputs"].as_array().unwrap().len(), 1);
    refused(
        eval(&folder, &both, &stage2),
        1,
        &["q.safetensors is quantized and has the outputs stage1, stage2"],
    );

    let classifier = folder.path("classifier.safetensors");
    common::calibrate(&classifier, &["--batches", "1"]).success();
    let pair = ["backbone.safetensors", "classifier.safetensors"];
    refused(eval(&folder, &pair, &[]), 1, &["is a backbone and", "--task features"]);
    let mut command = swinq(["eval", "--no-latency", "--size", "keep"]);
    let run = command
        .arg(sample_model())
        .arg("--cfg")
        .arg(sample_cfg())
        .arg("--data-path")
        .arg(common::sample_data());
    refused(run.assert(), 2, &["--size is for backbones"]);

    // A file that is no image is named, and may be left out.
    std::fs::write(folder.image(4), b"no image").unwrap();
    refused(eval(&folder, &both, &[]), 1, &["4.png"]);
    let run = eval(&folder, &both, &["--skip-corrupt", "1"]).success();
    assert!(stderr(&run).contains("left out") && stderr(&run).contains("4.png"), "{}", stderr(&run));
}

#[test]
fn parts_merge_into_the_results_of_one_run() {
    let folder = quantized();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let models = ["backbone.safetensors", "q.safetensors"];
    let expected = json(&folder, &models, &["--batch-size", "2"]);
    let parts: Vec<String> = (1..=3).map(|index| at(&format!("{index}.part"))).collect();
    for (index, part) in parts.iter().enumerate() {
        let shard = format!("{}/3", index + 1);
        let more = ["--batch-size", "2", "--shard", &shard, "-o", part];
        let mut command = swinq(["eval", "--backend", "cpu"]);
        command.args(models.map(&at)).arg("--data-path").arg(at("photos")).args(more).assert().success();
    }
    let merged = at("merged.json");
    let mut command = swinq(["merge", "--markdown", &at("merged.md"), "-o", &merged]);
    let run = command.args([&parts[2], &parts[0], &parts[1]]).assert().success();
    assert!(stdout(&run).contains("SQNR stage2"), "{}", stdout(&run));
    let found: Value = serde_json::from_slice(&std::fs::read(merged).unwrap()).unwrap();
    for key in ["images", "outputs", "worst_images", "sqnr_db", "cosine", "sites"] {
        assert_eq!(found["models"][1][key], expected["models"][1][key], "{key}");
    }
    assert_eq!(found["data"]["sizing"], "keep");
    let mut command = swinq(["merge", "--predictions", &at("p.csv"), "-o", &at("m.json")]);
    refused(command.args(&parts).assert(), 1, &["backbones", "no classes"]);

    // Two runs are compared, and a limit is one of dB.
    let results = |name: &str, value: &Value| {
        std::fs::write(at(name), value.to_string()).unwrap();
        at(name)
    };
    let mut worse = expected.clone();
    let db = expected["models"][1]["outputs"][1]["sqnr_db"].as_f64().unwrap();
    worse["models"][1]["outputs"][1]["sqnr_db"] = (db - 3.0).into();
    let (first, second) = (results("a.json", &expected), results("b.json", &worse));
    let run = swinq(["compare", &first, &second]).assert().success();
    assert!(stdout(&run).contains("SQNR dB stage2"), "{}", stdout(&run));
    refused(
        swinq(["compare", &first, &second, "--max-sqnr-drop", "2.9"]).assert(),
        4,
        &["stage2 drops by 3.00 dB"],
    );
    swinq(["compare", &first, &second, "--max-sqnr-drop", "3.1"]).assert().success();
}
