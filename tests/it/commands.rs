//! The user's commands, run on the bundled sample.

use crate::common::{
    self, calibrate, files, refused, sample_cfg, sample_data, sample_model, stderr, stdout, swinq,
};
use swinq_kernels::Cpu;

#[test]
fn calibrate_is_reproducible_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|n| folder.path().join(n));
    let report = stdout(&calibrate(&a, &["--batches", "2"]).success());
    for word in ["MACs in INT8", "16 of", "direct to 56x56"] {
        assert!(report.contains(word), "`{word}` is not in: {report}");
    }
    calibrate(&b, &["--batches", "2", "--threads", "1"]).success();
    calibrate(&c, &["--batches", "2", "--seed", "1"]).success();
    let [a_bytes, b_bytes, c_bytes] = [&a, &b, &c].map(|p| std::fs::read(p).unwrap());
    assert!(a_bytes == b_bytes, "the same seed gave two files");
    assert!(a_bytes != c_bytes, "another seed gave the same file");
    let text = stdout(&swinq(["inspect"]).arg(&a).args(["--plan", "--sites"]).assert().success());
    for word in [
        "16 images, seed 0",
        "SHA-256",
        "train.zip@/",
        "gemm INT8 + bias + GELU + quantize",
        "percentile",
        "8/channel",
    ] {
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
    assert!(text.contains("recipe        default (changed: calibrator mse)\n"), "{text}");
    assert!(line(&text, "layers.0.blocks.0.mlp.fc1.input").contains("mse"), "{text}");
    assert!(line(&text, "layers.0.blocks.0.mlp.fc1.weight").contains("max"), "{text}");
    let text = inspect(&["--disable", "**.fc2.*"]);
    assert!(text.contains("recipe        default (changed: **.fc2.* disabled)\n"), "{text}");
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
        "--seconds",
        "0.2",
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
    let program = common::root().join("eval/tests/data/program_gain.json");
    run(&["--no-latency", "--program", program.to_str().unwrap()]);
    let results = read();
    assert_eq!(results["program"]["batches"], 8);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<h2>Whole program</h2>"));
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
    command.arg(sample_cfg()).args(["--batch-size", "1,9", "--seconds", "0.05", "--profile"]);
    let run = command.assert().success();
    let times = stderr(&run);
    assert!(
        times.contains("latency at batch 9: measuring takes about ") && !times.contains("1: measuring takes"),
        "{times}"
    );
    let text = stdout(&run);
    let words = ["=== Performance summary ===", "Throughput:", "median", "layers.1.blocks.3.mlp.fc2"];
    for word in words.into_iter().chain(["| part ", "| layers.1 ", "GMAC/s", "GB/s"]) {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

/// What a CPU engine does with its threads is printed and recorded. Nothing stated, it has as many as this
/// process may use, also where that is fewer than the machine has; `taskset` belongs to util-linux.
#[test]
fn bench_says_how_it_divides_the_threads_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.json");
    let bench = |program: &mut assert_cmd::Command, more: &[&str]| {
        program.args([
            "--random-weights",
            "3",
            "--backend",
            "cpu",
            "--seconds",
            "0.01",
            "--batch-size",
            "2",
            "--json",
        ]);
        program.arg(&path).arg("--cfg").arg(sample_cfg()).args(more);
        let out = program.assert();
        let results = std::fs::read_to_string(&path).unwrap_or_default();
        (out, serde_json::from_str::<serde_json::Value>(&results).unwrap_or_default())
    };
    let (out, results) = bench(&mut swinq(["bench"]), &["--threads", "=2", "--streams", "3"]);
    let out = out.success();
    for words in ["threads 2, for one image 2; images side by side 2", "stream images/s @ 2"] {
        assert!(stdout(&out).contains(words), "{}", stdout(&out));
    }
    let model = &results["models"][0];
    assert_eq!((&model["image_threads"], &model["lanes"]), (&2.into(), &2.into()));
    assert!(model["stream_ips"]["2"].as_f64().unwrap() > 0.0, "{model}");
    let program = swinq(["bench"]).get_program().to_owned();
    let mut one = assert_cmd::Command::new("taskset");
    one.args(["--cpu-list", "0"]).arg(program).arg("bench");
    let (out, results) = bench(&mut one, &[]);
    let out = out.success();
    assert!(stdout(&out).contains("threads 1, for one image 1;"), "{}", stdout(&out));
    assert_eq!(results["environment"]["threads"], 1);
    for wrong in ["=0", "=", "x", "=9999"] {
        refused(bench(&mut swinq(["bench"]), &["--threads", wrong]).0, 2, &["--threads"]);
    }
}

#[test]
fn bench_times_other_image_sizes_that_the_network_and_the_memory_allow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.json");
    let bench = |more: &[&str]| {
        let mut command =
            swinq(["bench", "--random-weights", "3", "--backend", "cpu", "--seconds", "0.01", "--cfg"]);
        command.arg(sample_cfg()).args(["--batch-size", "1,3"]).args(more).assert()
    };
    let text = stdout(&bench(&["--size", "56x56,112x56", "--json", path.to_str().unwrap()]).success());
    assert!(text.contains(" at 112x56 (fp32, cpu)"), "{text}");
    let results = swinq::eval::read_results(&path).unwrap();
    let [own, tall] = &results.models[..] else { panic!("{text}") };
    assert_eq!([own.input_size, tall.input_size], [Some([56, 56]), Some([112, 56])]);
    assert!([own, tall].iter().all(|model| model.latency_ms.keys().eq([&1, &3])), "{text}");
    // Each size has a baseline of its own.
    assert!(!text.contains("x)"), "{text}");

    refused(bench(&["--size", "60x60"]), 1, &["size: ", " at 60x60: ", "window 7 does not divide"]);
    let text = stdout(&bench(&["--size", "50x90", "--pad-to", "56"]).success());
    assert!(text.contains("56x112") && !text.contains("50x90"), "{text}");
    let text = stdout(&bench(&["--size", "112x56", "--profile"]).success());
    assert!(text.contains(", batch 3, 112x56: "), "{text}");
    for words in [&["--pad-to", "56"][..], &["--size", "56"], &["--size", "56x0"]] {
        refused(bench(words), 2, &["--size"]);
    }
    // The remedy that the message names works.
    let larger = ["--size", "112x112", "--max-pixels"];
    let words = ["112x112", "bytes of buffers", "allow 12544 pixels", "--max-pixels"];
    refused(bench(&[&larger[..], &["12543"]].concat()), 1, &words);
    bench(&[&larger[..], &["12544"]].concat()).success();
}

#[test]
fn doctor_and_quickstart() {
    let text = stdout(&swinq(["doctor"]).assert().success());
    assert!(text.contains("scalar") && text.contains("JPEG  ") && text.contains("GPU"), "{text}");
    for (name, reason) in Cpu::absent() {
        assert!(text.contains(&format!("{name}: {reason}\n")), "{text}");
    }
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

/// The lines of a calibration that state what is in effect.
fn effective(more: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        swinq(["calibrate", "--random-weights", "1", "--batches", "1", "--ptq", "basic", "--cfg"]);
    command
        .arg(sample_cfg())
        .arg("--data-path")
        .arg(sample_data())
        .arg("-o")
        .arg(folder.path().join("q"))
        .args(more);
    stdout(&command.assert().success())
}

#[test]
fn options_of_a_model_apply_to_random_weights() {
    let [own, timm] = [effective(&[]), effective(&["--transform", "timm"])];
    let transform = |text: &str| text.lines().find(|line| line.starts_with("transform")).unwrap().to_owned();
    assert!(transform(&timm).contains("timm"), "{timm}");
    assert_ne!(transform(&own), transform(&timm));
    // The dialect decides how grids are padded that windows do not divide; 7 does not divide 25 tokens.
    let bench = |more: &[&str]| {
        let mut command =
            swinq(["bench", "--random-weights", "1", "--seconds", "0.01", "--batch-size", "1", "--cfg"]);
        command.arg(sample_cfg()).args(["--opts", "DATA.IMG_SIZE", "100"]).args(more);
        command.assert()
    };
    refused(bench(&[]), 1, &["WINDOW_SIZE"]);
    bench(&["--dialect", "hf"]).success();
}

#[test]
fn class_names_come_from_the_data_or_from_a_file_and_are_not_invented() {
    let folder = tempfile::tempdir().unwrap();
    let [named, other, list] =
        ["named.safetensors", "other.safetensors", "labels.txt"].map(|n| folder.path().join(n));
    let image = common::root().join("tests/data/airplane.jpg");
    let labels = |model: &std::path::Path, more: &[&str]| {
        let mut command = swinq(["predict", "--json", "--topk", "10"]);
        let text = stdout(&command.arg(model).arg(&image).args(more).assert().success());
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut classes: Vec<(u64, serde_json::Value)> = json[0]["topk"]
            .as_array()
            .unwrap()
            .iter()
            .map(|class| (class["class"].as_u64().unwrap(), class["label"].clone()))
            .collect();
        classes.sort_by_key(|(class, _)| *class);
        classes.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
    };
    calibrate(&named, &["--batches", "1", "--ptq", "basic"]).success();
    assert_eq!(labels(&named, &[])[..2], ["airplane", "automobile"]);
    let text = stdout(&swinq(["inspect"]).arg(&named).assert().success());
    assert!(
        text.contains("labels        airplane, automobile") && text.contains("from the classes of"),
        "{text}"
    );
    // The float model has no names.
    let cfg = sample_cfg();
    let float = labels(&sample_model(), &["--cfg", cfg.to_str().unwrap()]);
    assert!(float.iter().all(serde_json::Value::is_null), "{float:?}");
    // `inspect` says so, and where names come from that are the model's own.
    let inspect = |words: &[&str]| stdout(&swinq(["inspect"]).args(words).assert().success());
    let text = inspect(&[sample_model().to_str().unwrap(), "--cfg", cfg.to_str().unwrap()]);
    assert!(text.contains("labels        none; classes have their numbers"), "{text}");
    let hf = common::root().join("model/tests/checkpoints/hf");
    let text = inspect(&[hf.to_str().unwrap()]);
    assert!(
        text.contains("labels        ant, bee, cat, dog, eel (from the float model's own files)"),
        "{text}"
    );
    // A file of names wins, and is stored.
    std::fs::write(&list, (0..10).map(|i| format!("name {i}\n")).collect::<String>()).unwrap();
    let list = list.to_str().unwrap();
    assert_eq!(labels(&named, &["--labels", list])[3], "name 3");
    calibrate(&other, &["--batches", "1", "--ptq", "basic", "--labels", list]).success();
    assert_eq!(labels(&other, &[])[9], "name 9");
    std::fs::write(list, "one\ntwo\n").unwrap();
    let mut command = swinq(["predict", "--labels", list]);
    refused(command.arg(&named).arg(&image).assert(), 1, &["labels", "2 names", "10 classes"]);
}

/// A float model needs no configuration where its quantized checkpoint lies, or is given, beside it.
#[test]
fn the_quantized_checkpoint_describes_its_float_model() {
    let folder = tempfile::tempdir().unwrap();
    let [float, int8] = ["float.safetensors", "int8.safetensors"].map(|name| folder.path().join(name));
    std::fs::copy(sample_model(), &float).unwrap();
    let predict = || {
        let mut command = swinq(["predict"]);
        command.arg(&float).arg(common::root().join("tests/data/airplane.jpg")).assert()
    };
    refused(predict(), 1, &["float.safetensors", "--cfg", "EMBED_DIM", "DATA.IMG_SIZE"]);
    let mut command = swinq(["calibrate", "--batches", "1", "--ptq", "basic"]);
    command
        .arg(&float)
        .arg("--cfg")
        .arg(sample_cfg())
        .arg("--data-path")
        .arg(sample_data())
        .arg("-o")
        .arg(&int8);
    command.assert().success();
    let warning = stderr(&predict().success());
    assert!(warning.contains("int8.safetensors, which was made from it"), "{warning}");
    // The other model of the command line, in another folder.
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(&int8, elsewhere.join("int8.safetensors")).unwrap();
    refused(predict(), 1, &["--cfg"]);
    let mut command = swinq(["eval", "--limit", "20", "--no-latency", "--data-path"]);
    command.arg(sample_data()).arg(&float).arg(elsewhere.join("int8.safetensors")).assert().success();
}

#[test]
fn an_accuracy_of_guessing_is_remarked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q");
    let mut command =
        swinq(["calibrate", "--random-weights", "1", "--batches", "1", "--ptq", "basic", "--cfg"]);
    command.arg(sample_cfg()).arg("--data-path").arg(sample_data()).arg("-o").arg(&path).assert().success();
    let eval = |model: &std::path::Path| {
        let mut command = swinq(["eval", "--no-latency", "--limit", "100", "--data-path"]);
        stderr(&command.arg(sample_data()).arg(model).assert().success())
    };
    assert!(eval(&path).contains("no better than guessing among 10 classes (10.00 %)"), "{}", eval(&path));
    // Beside a good model the labels are not to blame.
    let mut command = swinq(["eval", "--no-latency", "--limit", "30", "--name", "A=good", "--data-path"]);
    command.arg(sample_data()).arg("--cfg").arg(sample_cfg()).arg(sample_model()).arg(&path);
    let warning = stderr(&command.assert().success());
    assert!(warning.contains("but good (fp32, "), "{warning}");
    assert!(
        warning.contains("made from another model") && !warning.contains("order of classes"),
        "{warning}"
    );
    calibrate(&path, &["--batches", "1", "--ptq", "basic"]).success();
    assert!(!eval(&path).contains("guessing"));
}

/// Names in checkpoints are somebody else's text.
#[test]
fn control_characters_reach_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (path, list) = (folder.path().join("q\u{1b}[31m"), folder.path().join("labels.txt"));
    std::fs::write(&list, (0..10).map(|i| format!("\u{1b}]0;{i}\u{7}\n")).collect::<String>()).unwrap();
    let said =
        calibrate(&path, &["--batches", "1", "--ptq", "basic", "--labels", list.to_str().unwrap()]).success();
    let image = common::root().join("tests/data/airplane.jpg");
    let inspected = swinq(["inspect"]).arg(&path).assert().success();
    let predicted = swinq(["predict", "--color", "always"]).arg(&path).arg(&image).assert().success();
    let missing = swinq(["predict", "none\u{1b}[31m"]).arg(&image).assert().failure();
    for assert in [&said, &inspected, &predicted, &missing] {
        for text in [stdout(assert), stderr(assert)] {
            assert!(!text.contains(['\u{7}', '\u{9b}']) && !text.contains("\u{1b}]"), "{text:?}");
            assert!(!text.contains("\u{1b}[31m"), "{text:?}");
        }
    }
    assert!(stdout(&inspected).contains(r"\u{1b}]0;0\u{7}"), "{}", stdout(&inspected));
}
