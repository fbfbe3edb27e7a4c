//! Options whose words are easy to misplace, and the exit codes of checks.

use std::path::Path;

use crate::common::{refused, sample_cfg, sample_data, sample_model, stdout, swinq};
use serde_json::Value;

#[test]
fn opts_takes_pairs_up_to_the_next_option() {
    let inspect = |words: &[&str]| swinq(["inspect"]).arg(sample_model()).args(words).assert();
    let cfg = sample_cfg();
    let cfg = cfg.to_str().unwrap();
    let two = ["--opts", "MODEL.DROP_PATH_RATE", "0.3", "MODEL.LABEL_SMOOTHING", "0.2", "--cfg", cfg];
    assert!(stdout(&inspect(&two).success()).contains("10 classes"));
    let apart =
        ["--cfg", cfg, "--opts", "MODEL.DROP_PATH_RATE", "0.3", "--opts", "MODEL.LABEL_SMOOTHING", "0.2"];
    inspect(&apart).success();
    refused(
        inspect(&["--cfg", cfg, "--opts", "MODEL.DROP_PATH_RATE", "0.3", "MODEL.LABEL_SMOOTHING"]),
        2,
        &["MODEL.LABEL_SMOOTHING has no value"],
    );
}

#[test]
fn models_after_opts_are_explained() {
    let model = sample_model();
    let model = model.to_str().unwrap();
    let eval = |words: &[&str]| {
        let mut command = swinq(["eval", "--cfg"]);
        command.arg(sample_cfg()).arg("--data-path").arg(sample_data()).args(words).assert()
    };
    let hint = "put models and images before --opts";
    refused(eval(&[model, "--opts", "MODEL.NUM_CLASSES", "10", model]), 2, &[model, hint]);
    refused(eval(&[model, "--opts", "MODEL.NUM_CLASSES", "10", model, model]), 2, &[model, hint]);
    refused(eval(&["--opts", "MODEL.NUM_CLASSES", "10", model]), 2, &["<MODEL>", hint]);
}

/// Writes the JSON of a small `bench` as changed by `change`.
fn results(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut command = swinq(["bench", "--random-weights", "3", "--cfg"]);
    command.arg(sample_cfg()).args([
        "--batch-size",
        "1",
        "--seconds",
        "0.02",
        "--backend",
        "cpu",
        "--json",
        "-",
    ]);
    let mut value: Value = serde_json::from_str(&stdout(&command.assert().success())).unwrap();
    for stats in [&mut value["models"][0]["latency_ms"]["1"]] {
        for key in ["min", "median", "p90", "p95", "p99", "max", "mean"] {
            stats[key] = 10.0.into();
        }
        stats["median_interval"] = serde_json::json!([10.0, 10.0]);
    }
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

#[test]
fn compare_is_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.json", "b.json"].map(|name| folder.path().join(name));
    let compare = |more: &[&str]| swinq(["compare"]).arg(&a).arg(&b).args(more).assert();
    results(&a, |_| {});
    results(&b, |value| {
        for key in ["median", "p90", "p95", "p99", "max"] {
            value["models"][0]["latency_ms"]["1"][key] = 12.0.into();
        }
        value["models"][0]["latency_ms"]["1"]["median_interval"] = serde_json::json!([12.0, 12.0]);
    });
    assert!(stdout(&compare(&[]).success()).contains("+20.0 %"));
    compare(&["--max-slowdown", "25"]).success();
    let over = compare(&["--max-slowdown", "10"]).code(4);
    assert!(String::from_utf8_lossy(&over.get_output().stderr).contains("20.0 % slower; the limit is 10 %"));
    assert!(stdout(&over).contains("+20.0 %"), "the table is printed first");
    compare(&["--max-drop", "1"]).code(1);
    results(&b, |value| value["models"][0]["name"] = "other".into());
    refused(compare(&[]), 1, &["no model has a figure in both", "--name"]);
    results(&b, |value| {
        value["schema"] = 9.into();
        value["models"] = "of a later version".into();
    });
    refused(compare(&[]), 1, &["b.json", "schema 9"]);
}
