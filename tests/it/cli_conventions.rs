//! The program's output and its streams: completions, manual, quiet and verbose runs, colours, JSON on
//! standard output.

use std::collections::BTreeMap;

use crate::common::{self, calibrate, files, sample_cfg, sample_data, sample_model, stdout, swinq};
use serde_json::Value;
use swinq_kernels::Cpu;

fn stderr(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

/// `eval` of the sample on a few images.
fn eval(more: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = swinq(["eval"]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
    command.args(["--limit", "30", "--no-latency", "--backend", "cpu"]).args(more).assert()
}

#[test]
fn completions_and_manual_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&swinq(["completions", shell]).assert().success());
        for word in ["quickstart", "calibrate", "random-weights", "completions"] {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
    }
    let page = stdout(&swinq(["man"]).assert().success());
    assert!(page.contains(".TH swinq 1") && page.contains("swinq quickstart"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    swinq(["man"]).arg(&pages).assert().success();
    let names = files(&pages);
    for name in ["swinq.1", "swinq-eval.1", "swinq-bench-gemm.1", "swinq-man.1"] {
        assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
    }
    let eval = std::fs::read_to_string(pages.join("swinq-eval.1")).unwrap();
    assert!(eval.contains("CUDA OPTIONS") && eval.contains("Examples"), "{eval}");
}

#[test]
fn quiet_prints_results_only_and_verbose_prints_times() {
    let quiet = eval(&["-q"]).success();
    assert_eq!(stderr(&quiet), "");
    let text = stdout(&quiet);
    assert!(text.contains(" * Acc@1 ") && !text.contains("30 images of"), "{text}");
    let normal = eval(&[]).success();
    assert!(stdout(&normal).contains("30 images of"));
    assert!(
        stderr(&normal).contains("images/s") && !stderr(&normal).contains("opened"),
        "{}",
        stderr(&normal)
    );
    let verbose = stderr(&eval(&["--verbose"]).success());
    for word in ["opened ", "prepared ", "engine: ", " s in all"] {
        assert!(verbose.contains(word), "`{word}` is not in: {verbose}");
    }
    common::refused(eval(&["-q", "-v"]), 2, &["--quiet", "--verbose"]);
}

#[test]
fn a_report_without_latency_has_no_columns_of_times() {
    let folder = tempfile::tempdir().unwrap();
    let (int8, report) = (folder.path().join("q"), folder.path().join("report.md"));
    calibrate(&int8, &["--batches", "1", "--ptq", "basic"]).success();
    let mut command = swinq(["eval", "--limit", "10", "--no-latency", "--data-path"]);
    command.arg(sample_data()).arg(&int8).arg("--markdown").arg(&report).assert().success();
    let report = std::fs::read_to_string(&report).unwrap();
    assert!(report.contains("\n| module | INT8 layers | lowest SQNR, dB |\n"), "{report}");
}

/// Every command with `-q`: nothing on standard error, and on standard output neither what the command works
/// on nor what it wrote. (`tests/it/tune.rs` has `tune`, which takes longer.) Each row has the words after
/// the command; `F/` is a folder, and `SAMPLE` and `DATA` are the bundled model and images.
const QUIET: [(&str, &str); 17] = [
    ("calibrate", "SAMPLE DATA --batches 1 --ptq basic -o F/q"),
    ("eval", "F/q DATA --limit 10 --batch-size 5 --no-latency --shard 1/2 -o F/1.part"),
    ("eval", "F/q DATA --limit 10 --batch-size 5 --no-latency --shard 2/2 -o F/2.part"),
    ("eval", "SAMPLE F/q DATA --limit 10 --no-latency --json F/r.json --report F/r.html"),
    ("merge", "F/1.part F/2.part -o F/merged.json"),
    ("qat", "F/job.yaml"),
    ("bench", "F/q --seconds 0.01 --batch-size 1"),
    ("bench", "elementwise --elements 1024 --seconds 0.01 --threads 2 --backend cpu --json F/e.json"),
    ("sensitivity", "SAMPLE DATA --images 8 --calibration-images 8 --ptq basic -o F/s.json"),
    ("predict", "F/q IMAGE"),
    ("features", "F/backbone IMAGE --features F/maps"),
    ("export", "F/q --onnx F/q.onnx"),
    ("inspect", "F/q"),
    ("compare", "F/r.json F/r.json"),
    ("doctor", ""),
    ("completions", "bash"),
    ("man", "F/man"),
];

#[test]
fn every_command_is_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let job = format!(
        "float: {}\ncfg: {}\nmodel: {}\noutput: {}\nbatch_size: 2\nsteps: 1\nthreads: 2\ndata: {{path: {}, val_limit: 8}}\n",
        sample_model().display(),
        sample_cfg().display(),
        folder.path().join("q").display(),
        folder.path().join("run").display(),
        sample_data().display()
    );
    std::fs::write(folder.path().join("job.yaml"), job).unwrap();
    common::write_backbone(&folder.path().join("backbone"));
    let word = |word: &str| match word {
        "SAMPLE" => {
            vec![sample_model().display().to_string(), "--cfg".into(), sample_cfg().display().to_string()]
        }
        "DATA" => vec!["--data-path".into(), sample_data().display().to_string()],
        "IMAGE" => vec![common::root().join("tests/data/airplane.jpg").display().to_string()],
        word => vec![word.replace("F/", &format!("{}/", folder.path().display()))],
    };
    for (command, words) in QUIET {
        let run = swinq([command]).args(words.split_whitespace().flat_map(word)).arg("-q").assert().success();
        assert_eq!(stderr(&run), "", "{command} -q");
        let printed = stdout(&run);
        // A table of all layers is `inspect`'s.
        assert!(command != "calibrate" || printed.lines().count() <= 3, "{printed}");
        let of_work =
            ["wrote ", "images ", "recipe  ", "model  ", "calibration  ", "merged ", "$ ", "trial ", "CPU: "];
        for start in of_work {
            assert!(!printed.lines().any(|line| line.starts_with(start)), "{command} -q: {printed}");
        }
    }
    // The quickstart fails at its first command, before anything is printed but the error.
    std::fs::create_dir_all(folder.path().join("start/int8.safetensors")).unwrap();
    let run = swinq(["quickstart", "-q", "--out"]).arg(folder.path().join("start")).assert().failure();
    assert_eq!(stdout(&run), "");
    assert!(stderr(&run).starts_with("error: ") && stderr(&run).lines().count() == 1, "{}", stderr(&run));
    // No command is missing here.
    let help = stdout(&swinq(["--help"]).assert().success());
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    for name in names.map(|line| line.split_whitespace().next().unwrap()) {
        let known = QUIET.iter().any(|(command, _)| *command == name);
        assert!(known || ["quickstart", "tune", "help"].contains(&name), "`{name}` is not in the list");
    }
}

#[test]
fn colours_are_chosen() {
    let error = |more: &[&str]| stderr(&swinq(["inspect", "absent.pth"]).args(more).assert().failure());
    assert!(
        error(&["--color", "always"]).starts_with("\u{1b}[1m\u{1b}[31merror"),
        "{}",
        error(&["--color=always"])
    );
    assert!(error(&[]).starts_with("error: "));
    assert!(error(&["--color=never"]).starts_with("error: "));
    let help = |when: &str| stdout(&swinq(["--color", when, "--help"]).assert().success());
    assert!(help("always").contains('\u{1b}') && !help("never").contains('\u{1b}'));
}

#[test]
fn json_on_standard_output_is_alone_there() {
    let run = eval(&["--json", "-", "--no-sites"]).success();
    let results: Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(results["models"][0]["images"], 30);
    assert!(results["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(results["models"][0].get("peak_memory_bytes").is_none(), "the process has more than this model");
    let bytes = sample_model().metadata().unwrap().len();
    assert_eq!(results["models"][0]["file_bytes"].as_u64(), Some(bytes));
    assert!(stderr(&run).contains(" * Acc@1 "), "the text is on standard error");
    let mut bench = swinq(["bench", "--random-weights", "3", "--cfg"]);
    bench.arg(sample_cfg()).args([
        "--batch-size",
        "1",
        "--seconds",
        "0.05",
        "--backend",
        "cpu",
        "--json",
        "-",
    ]);
    let results: Value = serde_json::from_str(&stdout(&bench.assert().success())).unwrap();
    assert!(results["models"][0]["latency_ms"]["1"]["median"].as_f64().unwrap() > 0.0);
    let mut ladder = swinq(["bench", "softmax", "--rows", "64", "--seconds", "0.01", "--backend", "cpu"]);
    let ladder: Value =
        serde_json::from_str(&stdout(&ladder.args(["--json", "-"]).assert().success())).unwrap();
    assert_eq!(ladder["bench"], "softmax");
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn predictions_are_a_table_of_images_and_models() {
    let folder = tempfile::tempdir().unwrap();
    let [int8, csv, json] = ["q", "p.csv", "r.json"].map(|name| folder.path().join(name));
    calibrate(&int8, &["--batches", "1"]).success();
    let (csv_name, json_name) = (csv.to_str().unwrap(), json.to_str().unwrap());
    let more =
        [int8.to_str().unwrap(), "--name", "A=float, mine", "--predictions", csv_name, "--json", json_name];
    let run = eval(&more).success();
    assert!(stderr(&run).contains("noise of "), "{}", stderr(&run));
    let text = std::fs::read_to_string(&csv).unwrap();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert!(rows[0].starts_with("file,label,\"float, mine (fp32, cpu)\","), "{}", rows[0]);
    assert_eq!(rows.len(), 31);
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for (index, model) in results["models"].as_array().unwrap().iter().enumerate() {
        let right = rows[1..].iter().filter(|row| {
            let cells: Vec<&str> = row.rsplit(',').collect();
            cells[2] == cells[1 - index]
        });
        assert_eq!(model["top1_correct"], right.count(), "{text}");
        let of_classes =
            model["classes"].as_array().unwrap().iter().map(|c| c["top1_correct"].as_u64().unwrap());
        assert_eq!(model["top1_correct"].as_u64(), Some(of_classes.sum()), "per-class accuracy");
    }
    assert!(rows[1].starts_with("val.zip@/"), "{}", rows[1]);
}

#[test]
fn no_output_replaces_a_file_of_the_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["val.zip", "val_map.txt"] {
        std::fs::copy(sample_data().join(name), folder.path().join(name)).unwrap();
    }
    let run = |option: &str, name: &str| {
        let mut command = swinq(["eval"]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(folder.path());
        command.args(["--limit", "5", "--no-latency", option]).arg(folder.path().join(name)).assert()
    };
    let map = std::fs::read(folder.path().join("val_map.txt")).unwrap();
    common::refused(run("--predictions", "val_map.txt"), 1, &["val_map.txt", "replace the input"]);
    common::refused(run("--json", "val.zip"), 2, &["val.zip", "the file is JSON, not a .zip file"]);
    assert_eq!(std::fs::read(folder.path().join("val_map.txt")).unwrap(), map);
    run("--json", "results.json").success();
    run("--json", "results.json").success();
}

#[test]
fn inspect_and_doctor_print_json() {
    let folder = tempfile::tempdir().unwrap();
    let int8 = folder.path().join("q");
    calibrate(&int8, &["--batches", "1"]).success();
    let json = |command: &mut assert_cmd::Command| -> Value {
        serde_json::from_str(&stdout(&command.assert().success())).unwrap()
    };
    let found = json(swinq(["inspect", "--json", "--plan", "--backend", "cpu"]).arg(&int8));
    assert_eq!(found["config"]["num_classes"], 10);
    assert_eq!(found["recipe"]["name"], "default");
    assert_eq!((&found["format_version"], &found["numbers"]), (&2.into(), &6.into()));
    let hash = found["hash"].as_str().unwrap();
    let text = stdout(&swinq(["inspect"]).arg(&int8).assert().success());
    assert!(hash.starts_with("xxh3-128:") && text.contains(&format!("hash {hash}, verified")), "{text}");
    assert_eq!(found["provenance"]["calibration"]["images"].as_array().unwrap().len(), 8);
    assert!(found["launches"].as_array().unwrap().len() > 20);
    let sites = found["sites"].as_array().unwrap();
    let fc1 = sites.iter().find(|site| site["site"] == "layers.0.blocks.0.mlp.fc1.input").unwrap();
    assert!(fc1["enabled"] == true && fc1["scale"].as_f64().unwrap() > 0.0, "{fc1}");
    let float = json(swinq(["inspect", "--json"]).arg(sample_model()).arg("--cfg").arg(sample_cfg()));
    assert!(
        float["recipe"].is_null()
            && float["hash"].is_null()
            && float["labels"].is_null()
            && float["parameters"].as_u64() > Some(900_000)
    );
    let doctor = json(&mut swinq(["doctor", "--json"]));
    assert!(doctor["kernels"].as_array().unwrap().iter().any(|name| name == "scalar"), "{doctor}");
    let absent: BTreeMap<_, _> = Cpu::absent().into_iter().collect();
    assert_eq!(doctor["absent"], serde_json::to_value(absent).unwrap());
    assert!(doctor["libraries"]["driver"].is_object() && doctor["in_use"]["found"].is_string(), "{doctor}");
}

#[test]
fn ranges_of_faster_transformer_are_imported_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let [cfg, int8] = ["small.yaml", "q.safetensors"].map(|name| folder.path().join(name));
    let shape = "EMBED_DIM: 6, DEPTHS: [1, 2], NUM_HEADS: [2, 3], WINDOW_SIZE: 3, MLP_RATIO: 1.5";
    let yaml = format!("DATA: {{IMG_SIZE: 24}}\nMODEL: {{NUM_CLASSES: 5, SWIN: {{{shape}}}}}\n");
    std::fs::write(&cfg, yaml).unwrap();
    let files = common::root().join("model/tests/checkpoints");
    let mut command = swinq(["calibrate", "--int8-mode", "1"]);
    command.arg(files.join("ms.pth")).arg("--cfg").arg(&cfg).arg("--ft-amax").arg(files.join("ft_calib.pth"));
    let said = stdout(&command.arg("-o").arg(&int8).assert().success());
    assert!(said.contains("66 ranges from"), "{said}");
    let shown = stdout(&swinq(["inspect"]).arg(&int8).assert().success());
    assert!(shown.contains("INT8  | ±1.000"), "{shown}");
    let line = shown.lines().find(|line| line.contains("ranges from")).unwrap();
    assert!(line.contains("ft_calib.pth (SHA-256 "), "{line}");
    let image = common::root().join("tests/data/airplane.jpg");
    swinq(["predict"]).arg(&int8).arg(image).assert().success();
}

#[test]
fn compare_fails_with_a_code_of_its_own_beyond_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let [before, after] = ["before.json", "after.json"].map(|name| folder.path().join(name));
    eval(&["--no-sites", "--json", before.to_str().unwrap()]).success();
    let mut results: Value = serde_json::from_slice(&std::fs::read(&before).unwrap()).unwrap();
    let top1 = results["models"][0]["top1_correct"].as_u64().unwrap();
    // 3 of 30 images are 10 points.
    results["models"][0]["top1_correct"] = (top1 - 3).into();
    std::fs::write(&after, results.to_string()).unwrap();
    let compare = |first: &std::path::Path, second: &std::path::Path, limit: &[&str]| {
        swinq(["compare"]).args([first, second]).args(limit).assert()
    };
    common::refused(
        compare(&before, &after, &["--max-drop", "9.9"]),
        4,
        &["top-1 drops by 10.000 points; the limit is 9.9"],
    );
    compare(&before, &after, &["--max-drop", "10.1"]).success();
    compare(&after, &before, &["--max-drop", "0"]).success();
    common::refused(compare(&before, &after, &["--max-slowdown", "1"]), 1, &["a run has no latency"]);
    common::refused(compare(&before, &after, &["--max-drop=-1"]), 2, &["--max-drop"]);
}

#[test]
fn sites_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let [int8, json] = ["q", "r.json"].map(|name| folder.path().join(name));
    calibrate(&int8, &["--batches", "1"]).success();
    let run = eval(&[int8.to_str().unwrap(), "--no-sites", "--json", json.to_str().unwrap()]).success();
    assert!(!stderr(&run).contains("noise of "), "{}", stderr(&run));
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let sites = results["models"][1]["sites"].as_array().unwrap();
    let of_activations = sites.iter().filter(|site| !site["site"].as_str().unwrap().ends_with(".weight"));
    assert!(
        of_activations.clone().count() > 0
            && of_activations.clone().all(|site| site.get("sqnr_db").is_none())
    );
}

#[test]
fn tables_fit_100_columns() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("a-folder-with-a-name-that-is-much-longer-than-usual");
    std::fs::create_dir(&long).unwrap();
    let int8 = long.join("quantized.safetensors");
    calibrate(&int8, &["--batches", "1"]).success();
    let mut command = swinq(["eval"]);
    command
        .arg(sample_model())
        .arg(&int8)
        .arg("--cfg")
        .arg(sample_cfg())
        .arg("--data-path")
        .arg(sample_data());
    let short = ["--limit", "30", "--latency", "1,2,4", "--seconds", "0.1"];
    let evaluated = stdout(&command.args(short).assert().success());
    let inspected = stdout(&swinq(["inspect", "--sites"]).arg(&int8).assert().success());
    let mut command = swinq(["bench"]);
    command.arg(&int8).args(["--batch-size", "1,2", "--seconds", "0.05", "--profile", "--backend", "cpu"]);
    let timed = stdout(&command.assert().success());
    for text in [evaluated, inspected, timed] {
        let tables = text.lines().filter(|line| line.starts_with('|'));
        let widest = tables.max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 100, "{} columns: {widest}", widest.chars().count());
    }
}
