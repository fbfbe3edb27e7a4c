//! The user's commands, run on the bundled sample.

mod common;

use common::{calibrate, files, sample_cfg, sample_data, sample_model, stdout, swinq};

#[test]
fn calibrate_is_reproducible_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|n| folder.path().join(n));
    let report = stdout(&calibrate(&a, &["--batches", "2"]).success());
    for word in ["layers.0.blocks.0.attn.qkv", "INT8", "8/channel", "16 of", "direct to 56x56"] {
        assert!(report.contains(word), "`{word}` is not in: {report}");
    }
    calibrate(&b, &["--batches", "2", "--threads", "1"]).success();
    calibrate(&c, &["--batches", "2", "--seed", "1"]).success();
    let [a_bytes, b_bytes, c_bytes] = [&a, &b, &c].map(|p| std::fs::read(p).unwrap());
    assert!(a_bytes == b_bytes, "the same seed gave two files");
    assert!(a_bytes != c_bytes, "another seed gave the same file");
    let text = stdout(&swinq(["inspect"]).arg(&a).args(["--plan", "--sites"]).assert().success());
    for word in
        ["16 images, seed 0", "SHA-256", "train.zip@/", "gemm INT8 + bias + GELU + quantize", "percentile"]
    {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert_eq!(files(folder.path()), ["a", "a.ranges.json", "b", "b.ranges.json", "c", "c.ranges.json"]);
}

#[test]
fn options_of_calibrate_take_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q");
    let inspect = |more: &[&str]| {
        calibrate(&path, &[&["--batches", "1"], more].concat()).success();
        stdout(&swinq(["inspect", "--sites"]).arg(&path).assert().success())
    };
    let line = |text: &str, site: &str| {
        text.lines().find(|l| l.trim_start_matches(['|', ' ']).starts_with(site)).unwrap().to_owned()
    };
    let text = inspect(&[]);
    for word in
        ["made by       PTQ\n", "recipe        default\n", "format version 2, hash xxh3-128:", "verified"]
    {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let text = inspect(&["--calibrator", "mse"]);
    assert!(text.contains("recipe        default, changed\n"), "{text}");
    assert!(line(&text, "layers.0.blocks.0.mlp.fc1.input").contains("mse"), "{text}");
    assert!(line(&text, "layers.0.blocks.0.mlp.fc1.weight").contains("max"), "{text}");
    let text = inspect(&["--disable", "**.fc2.*"]);
    assert!(line(&text, "layers.0.blocks.0.mlp.fc2.input").contains("| float"), "{text}");
    // A rule without effect changes no recipe.
    assert!(inspect(&["--ptq", "refined"]).contains("recipe        default\n"));
    let text = inspect(&["--int8-mode", "1"]);
    assert!(line(&text, "layers.0.blocks.0.mlp.fc2.output").contains("| s8"), "{text}");
    let text = inspect(&["--int8-mode", "2"]);
    assert!(line(&text, "layers.0.blocks.0.mlp.fc2.output").contains("| float"), "{text}");
}

#[test]
fn eval_prints_the_lines_people_grep_and_writes_json_and_html() {
    let folder = tempfile::tempdir().unwrap();
    let [int8, json, html, text] =
        ["q.safetensors", "r.json", "r.html", "r.md"].map(|n| folder.path().join(n));
    calibrate(&int8, &[]).success();
    let run = |more: &[&str]| {
        let mut command = swinq(["eval"]);
        command
            .arg(sample_model())
            .arg(&int8)
            .arg("--cfg")
            .arg(sample_cfg())
            .arg("--data-path")
            .arg(sample_data());
        command.args(["--limit", "100", "--json"]).arg(&json).arg("--report").arg(&html).args(more);
        stdout(&command.assert().success())
    };
    let read = || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap() };
    let table = run(&[
        "--latency",
        "1",
        "--name",
        "A=float",
        "--name",
        "B=mine",
        "--markdown",
        text.to_str().unwrap(),
    ]);
    assert_eq!(table.matches(" * Acc@1 ").count(), 2, "{table}");
    let results = read();
    assert_eq!(results["schema"], 1);
    assert_eq!(results["data"]["limit"], 100);
    let models = results["models"].as_array().unwrap();
    assert_eq!((&models[0]["precision"], &models[1]["precision"]), (&"fp32".into(), &"int8".into()));
    assert_eq!((&models[0]["name"], &models[1]["name"]), (&"float".into(), &"mine".into()));
    assert!(models[0].get("agreement").is_none(), "the baseline has no agreement with itself");
    assert!(models[1]["latency_ms"]["1"]["median"].as_f64().unwrap() > 0.0);
    let sites = models[1]["sites"].as_array().unwrap();
    assert_eq!(sites.len(), 6 * 21 + 9);
    let measured = |site: &serde_json::Value| site["enabled"] == true && site.get("sqnr_db").is_none();
    assert_eq!(sites.iter().filter(|site| measured(site)).count(), 0, "every quantized site has its error");
    let fc2 = sites.iter().find(|site| site["site"] == "layers.0.blocks.0.mlp.fc2.input").unwrap();
    assert!(fc2["histogram"]["counts"].as_array().unwrap().len() > 32, "{fc2}");
    assert!(
        models[1]["origin"]["command"].as_str().unwrap().contains("calibrate"),
        "{}",
        models[1]["origin"]
    );
    assert!(models[1]["profile"]["launches"].as_array().unwrap().len() > 20);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(
        page.contains("<title>INT8 swin_micro_cifar10: ") && page.contains("data:image/jpeg;base64,/9j/")
    );
    assert!(!page.contains("http") && page.len() < 1_500_000, "{} bytes", page.len());
    assert!(std::fs::read_to_string(&text).unwrap().contains("| top-1 |"));
    let schema = std::fs::read(common::root().join("docs/report-schema.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&schema).unwrap();
    assert_eq!(swinq_testing::violations(&schema, &results), Vec::<String>::new());
    let text = stdout(&swinq(["compare"]).arg(&json).arg(&json).assert().success());
    assert!(text.contains("int8"), "{text}");

    // Histograms of another calibration are left out, with a remark.
    let ranges = folder.path().join("q.ranges.json");
    let other = std::fs::read_to_string(&ranges).unwrap().replacen("sha256\":\"", "sha256\":\"0", 1);
    std::fs::write(&ranges, other).unwrap();
    run(&["--no-latency"]);
    let results = read();
    assert!(results["notes"][0].as_str().unwrap().contains("another calibration"), "{}", results["notes"]);
    let histograms = |site: &serde_json::Value| site.get("histogram").is_some();
    assert!(!results["models"][1]["sites"].as_array().unwrap().iter().any(histograms));
    assert_eq!(swinq_testing::violations(&schema, &results), Vec::<String>::new());
}

#[test]
fn simulation_agrees_with_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let [int8, json] = ["q.safetensors", "r.json"].map(|n| folder.path().join(n));
    calibrate(&int8, &[]).success();
    for simulate in ["--simulate", "--simulate=exact"] {
        let mut command = swinq(["eval"]);
        command.arg(&int8).arg("--data-path").arg(sample_data()).arg(simulate);
        command.args(["--limit", "100", "--no-latency", "--json"]).arg(&json).assert().success();
        let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let row = &results["models"][1];
        assert_eq!(row["precision"], "simulated");
        let sqnr = &row["sqnr_db"];
        assert!(sqnr == "inf" || sqnr.as_f64().unwrap() >= 45.0, "{simulate}: {sqnr}");
    }
}

#[test]
fn predict_names_the_class_and_writes_logits() {
    let folder = tempfile::tempdir().unwrap();
    let logits = folder.path().join("l.safetensors");
    // The PNG and WebP files hold Pillow's pixels of the JPEG file.
    let images =
        ["jpg", "png", "webp"].map(|kind| common::root().join(format!("tests/data/airplane.{kind}")));
    let mut command = swinq(["predict"]);
    command.arg(sample_model()).args(images).arg("--cfg").arg(sample_cfg());
    command.args(["--topk", "3", "--json", "--logits"]).arg(&logits);
    let found: serde_json::Value = serde_json::from_str(&stdout(&command.assert().success())).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 3);
    assert_eq!(found[0]["topk"].as_array().unwrap().len(), 3);
    assert_eq!(found[0]["topk"][0]["class"], 0);
    let bytes = std::fs::read(&logits).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let logits = tensors.tensor("logits").unwrap();
    assert_eq!(logits.shape(), [3, 10]);
    assert_eq!(logits.data()[..80], logits.data()[40..], "the same pixels, other logits");
}

#[test]
fn bench_of_random_weights_needs_no_file() {
    let mut command = swinq(["bench", "--random-weights", "3", "--cfg"]);
    command.arg(sample_cfg()).args(["--batch-size", "1,2", "--seconds", "0.05", "--profile"]);
    let text = stdout(&command.assert().success());
    let words = ["=== Performance summary ===", "Throughput:", "median", "layers.1.blocks.3.mlp.fc2"];
    for word in words.into_iter().chain(["| part ", "| layers.1 ", "GMAC/s", "GB/s"]) {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn doctor_and_quickstart() {
    let text = stdout(&swinq(["doctor"]).assert().success());
    assert!(text.contains("scalar") && text.contains("JPEG  ") && text.contains("GPU"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let mut command = swinq(["quickstart", "--out"]);
    let text = stdout(&command.arg(folder.path().join("q")).assert().success());
    for word in ["$ swinq calibrate ", "$ swinq eval ", " * Acc@1 ", "report.html"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert_eq!(
        files(&folder.path().join("q")),
        ["int8.ranges.json", "int8.safetensors", "report.html", "results.json", "sample"]
    );
}
