//! The JSON of results: keys, absent figures, round trips, and errors.

use crate::common;
use serde_json::{Value, json};
use swinq_eval::results::sensitivity::{
    BlockError, Effect, Element, ElementKind, SENSITIVITY_SCHEMA, Subject, read_sensitivity,
    write_sensitivity,
};
use swinq_eval::results::tune::read_tuning;
use swinq_eval::{
    DataInfo, Disagreement, Environment, EvalError, Guess, LaunchResult, Load, ModelResult, Precision,
    Profile, Results, SCHEMA, Sensitivity, Stats, read_results, write_results,
};
use swinq_model::quantized::{Chosen, FileRecord, Score, TrainingRecord};
use swinq_model::{
    Calibrator, ChannelOrder, Granularity, Kind, Orientation, Ptq, Recipe, Rule, Size, Transform,
};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_keys_are_as_documented() {
    let mut results = common::results();
    results.data = Some(DataInfo {
        path: "imagenet".to_owned(),
        split: Some("val".to_owned()),
        transform: Some(Transform::microsoft(Size::square(224), 3, true)),
        ..DataInfo::default()
    });
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!(keys(&json), ["data", "environment", "models", "schema"]);
    assert_eq!(json["schema"], 1);
    let int8 = &json["models"][1];
    let documented = [
        "name",
        "precision",
        "backend",
        "images",
        "top1_correct",
        "top5_correct",
        "agreement",
        "sqnr_db",
        "latency_ms",
        "throughput_ips",
        "size_bytes",
        "sites",
    ];
    for key in documented {
        assert!(!int8[key].is_null(), "{key}");
    }
    assert_eq!((&int8["precision"], &int8["backend"]), (&json!("int8"), &json!("cpu")));
    assert_eq!((&int8["top1_correct"], &int8["images"]), (&json!(40_374), &json!(50_000)));
    assert_eq!(keys(&int8["latency_ms"]), ["1", "32", "8"]);
    assert_eq!(
        keys(&int8["latency_ms"]["8"]),
        ["max", "mean", "median", "median_interval", "min", "p90", "p95", "p99", "runs"]
    );
    let quantized = int8["sites"].as_array().unwrap().iter().find(|site| !site["scale"].is_null()).unwrap();
    assert_eq!(keys(quantized), ["enabled", "kind", "scale", "site", "sqnr_db"]);
    assert_eq!((&quantized["enabled"], &quantized["kind"]), (&json!(true), &json!("s8")));
    let off = int8["sites"].as_array().unwrap().iter().find(|site| site["enabled"] == false).unwrap();
    assert_eq!(keys(off), ["enabled", "kind", "reason", "site"]);
    assert_eq!(json["data"]["transform"]["family"], "ms");
}

#[test]
fn figures_that_were_not_measured_are_absent() {
    let mut results = Results::new(Environment::default());
    results.models.push(ModelResult::new("m", Precision::Fp16, "cuda"));
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!(json["models"][0], json!({"name": "m", "precision": "fp16", "backend": "cuda"}));
    assert_eq!(json["environment"], json!({"swinq": "", "os": "", "arch": "", "threads": 0, "time": ""}));
    assert_eq!(keys(&json), ["environment", "models", "schema"]);
    assert_eq!(serde_json::from_value::<Results>(json).unwrap(), results);
}

#[test]
fn files_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let mut results = common::results();
    results.models[1].sqnr_db = Some(f64::INFINITY);
    results.models[2].sqnr_db = Some(f64::NEG_INFINITY);
    results.notes = vec!["a note".to_owned()];
    write_results(&path, &results).unwrap();
    assert_eq!(read_results(&path).unwrap(), results);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        (&json["models"][1]["sqnr_db"], &json["models"][2]["sqnr_db"]),
        (&json!("inf"), &json!("-inf"))
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The field that the error must name, and a change that makes it invalid.
type Break = (&'static str, fn(&mut Results));

const BROKEN: [Break; 16] = [
    ("schema", |r| r.schema = SCHEMA + 1),
    ("models[1].top1_correct", |r| r.models[1].top1_correct = Some(50_001)),
    ("models[1].top5_correct", |r| r.models[1].top5_correct = Some(40_000)),
    ("models[0].top1_correct", |r| r.models[0].images = None),
    ("models[2].agreement", |r| r.models[2].agreement = Some(95.3)),
    ("models[2].agreement", |r| r.models[2].agreement = Some(f64::NAN)),
    ("models[1].sqnr_db", |r| r.models[1].sqnr_db = Some(f64::NAN)),
    ("models[0].latency_ms.8.mean", |r| r.models[0].latency_ms.get_mut(&8).unwrap().mean = f64::INFINITY),
    ("models[0].latency_ms.8", |r| r.models[0].latency_ms.get_mut(&8).unwrap().p99 = 0.0),
    ("models[0].compute_ms.8", |r| {
        let stats = Stats { p99: 0.0, ..r.models[0].latency_ms[&8] };
        r.models[0].compute_ms.insert(8, stats);
    }),
    ("models[0].throughput_ips.1", |r| *r.models[0].throughput_ips.get_mut(&1).unwrap() = -1.0),
    ("models[0].latency_ms.8.median_interval", |r| {
        r.models[0].latency_ms.get_mut(&8).unwrap().median_interval = Some([0.0, 0.1]);
    }),
    ("load.8.other_cores", |r| {
        r.load.insert(8, Load { average: None, other_cores: Some(f64::NAN) });
    }),
    ("models[1].disagreements[3].own.probability", |r| {
        let guess = Guess { class: 0, probability: 0.5 };
        let own = Guess { probability: 1.5, ..guess };
        r.models[1].disagreements =
            vec![Disagreement { id: 3, image: None, label: None, baseline: guess, own, kl: 0.0 }];
    }),
    ("models[1].profile[a].ms", |r| {
        let launch = LaunchResult { name: "a".to_owned(), ms: -1.0, ..LaunchResult::default() };
        r.models[1].profile = Some(Profile { batch: 1, launches: vec![launch] });
    }),
    ("models[1].sites[patch_embed.proj.input].scale", |r| r.models[1].sites[0].scale = Some(0.0)),
];

#[test]
fn impossible_figures_are_neither_written_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    for (expected, spoil) in BROKEN {
        let mut results = common::results();
        spoil(&mut results);
        match write_results(&path, &results).unwrap_err() {
            EvalError::Results { field, .. } => assert_eq!(field, expected),
            other => panic!("{expected}: {other}"),
        }
        assert!(!path.exists(), "{expected}");
        // JSON has no NaN and no infinity. serde_json writes null, which must be absent or an error when read
        // back.
        std::fs::write(&path, serde_json::to_string(&results).unwrap()).unwrap();
        if let Ok(read) = read_results(&path) {
            assert_ne!(read, results, "{expected}");
            read.check().unwrap();
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn other_files_are_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.json");
    for text in ["", "[]", "{\"schema\": 1}", "{\"schema\": 1, \"models\": [], \"environment\": 3}"] {
        std::fs::write(&path, text).unwrap();
        let error = read_results(&path).unwrap_err();
        assert!(matches!(error, EvalError::File { .. }), "{text}: {error}");
        assert!(error.to_string().contains("other.json"), "{error}");
    }
    let missing = folder.path().join("missing.json");
    assert!(matches!(read_results(&missing), Err(EvalError::Io { .. })));
    let bad = json!({"name": "m", "precision": "int8", "backend": "cpu", "sqnr_db": "loud"});
    assert!(serde_json::from_value::<ModelResult>(bad).unwrap_err().to_string().contains("loud"));
}

/// An effect; `db` may be infinite.
fn effect(db: f64) -> Effect {
    let (kl, top1_changes) = (Some(1e-3), Some(2));
    Effect { sqnr_db: db, cosine: 0.875, kl, top1_changes, top1_correct: Some(7), outputs: Vec::new() }
}

#[test]
fn sensitivity_and_tuning_survive_a_round_trip_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let element = Element {
        name: "head".to_owned(),
        kind: ElementKind::Linear,
        sites: vec!["head.input".to_owned()],
        macs: 10,
        alone: effect(f64::INFINITY),
        without: effect(31.5),
        alone_spread_db: None,
        gain_spread_db: None,
    };
    let sensitivity = Sensitivity {
        schema: SENSITIVITY_SCHEMA,
        model: Subject { name: "m".to_owned(), architecture: "a".to_owned(), sha256: String::new() },
        recipe: Recipe::float(),
        images: 8,
        float_correct: None,
        whole: effect(30.0),
        site_images: 4,
        site_whole: effect(30.5),
        layers: vec![element],
        sites: Vec::new(),
        blocks: vec![BlockError { name: "patch_embed".to_owned(), sqnr_db: f64::INFINITY, cosine: 1.0 }],
        ranges: Vec::new(),
        environment: Environment::default(),
        data: None,
    };
    write_sensitivity(&path, &sensitivity).unwrap();
    assert_eq!(read_sensitivity(&path).unwrap(), sensitivity);
    let error = read_tuning(&path).unwrap_err().to_string();
    assert!(error.contains("`swinq tune` wrote"), "{error}");
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("\"schema\": 1", "\"schema\": 7"))
        .unwrap();
    let error = read_sensitivity(&path).unwrap_err().to_string();
    assert!(error.contains("schema 7"), "{error}");
}

#[test]
fn results_conform_to_the_published_schema() {
    let schema = include_str!("../../../docs/report-schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let violations = |value: &Value| swinq_testing::violations(&schema, value);
    let mut full = common::complete(common::results());
    full.models[1].sqnr_db = Some(f64::INFINITY);
    full.models[1].stream_ips.insert(128, 52_315.0);
    (full.models[1].image_threads, full.models[1].lanes) = (Some(16), Some(64));
    full.models[1].input_size = Some([320, 480]);
    let backbones = crate::backbones::results(0.01);
    (full.models[0].outputs, full.models[0].worst_images, full.models[0].sizes) = {
        let model = backbones.models[1].clone();
        (model.outputs, model.worst_images, model.sizes)
    };
    let data = full.data.as_mut().unwrap();
    data.sizing = Some("keep".to_owned());
    let transform = data.transform.as_mut().unwrap();
    (transform.orientation, transform.channel_order) = (Orientation::Exif, ChannelOrder::Bgr);
    let file = |file: &str| FileRecord { file: file.to_owned(), sha256: "ef".repeat(32) };
    let origin = full.models[1].origin.as_mut().unwrap();
    origin.imported_ranges = Some(file("swin_calib.pth"));
    origin.training = Some(TrainingRecord {
        start: Some(file("q.safetensors")),
        loss: [("kl".to_owned(), 1.0)].into(),
        final_loss: Some(0.4),
        teacher: Some(file("swin_t.pth")),
        chosen_by: Some(Chosen { data: "imagenet".to_owned(), images: 1000, score: Score::Top1(0.8) }),
        ..TrainingRecord::default()
    });
    let value = serde_json::to_value(&full).unwrap();
    assert_eq!(violations(&value), Vec::<String>::new());
    let bare = serde_json::to_value(Results::new(Environment::default())).unwrap();
    assert_eq!(violations(&bare), Vec::<String>::new());
    let mut wrong = value.clone();
    wrong["models"][1]["agreement"] = json!(95.3);
    wrong["models"][1]["sites"][0]["colour"] = json!("red");
    wrong["environment"].as_object_mut().unwrap().remove("threads");
    let found = violations(&wrong);
    assert_eq!(found.len(), 3, "{found:?}");
    // Every property is used, so that none is left over from an earlier version.
    let text = value.to_string();
    let optional =
        ["skipped", "limit", "seed", "gpu", "driver", "memory_bytes", "compute_ms", "size_divisor"];
    for object in schema["$defs"].as_object().unwrap().values() {
        for key in object["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
            let used = text.contains(&format!("\"{key}\":")) || optional.contains(&key);
            assert!(used || ["amax", "granularity", "command", "image", "detail"].contains(&key), "{key}");
        }
    }
}

/// Every calibrator. A new one does not compile until it is added here.
fn calibrators() -> impl Iterator<Item = Calibrator> {
    std::iter::successors(Some(Calibrator::Max), |last| match last {
        Calibrator::Max => Some(Calibrator::Mse),
        Calibrator::Mse => Some(Calibrator::Entropy),
        Calibrator::Entropy => Some(Calibrator::Percentile(99.9)),
        Calibrator::Percentile(_) => None,
    })
}

#[test]
fn every_key_of_a_rule_and_every_calibrator_conforms_to_the_schema() {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/report-schema.json")).unwrap();
    let rules = calibrators().map(|calibrator| Rule {
        pattern: "**".to_owned(),
        enable: Some(true),
        bits: Some(8),
        granularity: Some(Granularity::Channel),
        calibrator: Some(calibrator),
        amax: Some(1.5),
        kind: Some(Kind::U8),
        ptq: Some(Ptq::Refined),
    });
    let mut results = common::complete(common::results());
    results.models[1].origin.as_mut().unwrap().rules = rules.collect();
    let mut value = serde_json::to_value(&results).unwrap();
    assert_eq!(swinq_testing::violations(&schema, &value), Vec::<String>::new());
    value["models"][1]["origin"]["rules"][0]["calibrator"] = json!("median");
    assert_eq!(swinq_testing::violations(&schema, &value).len(), 1);
}

#[test]
fn the_name_of_every_calibrator_is_parsed() {
    for calibrator in calibrators() {
        let name = calibrator.to_string().replace(' ', ":");
        assert_eq!(name.parse(), Ok(calibrator), "{name}");
    }
}
