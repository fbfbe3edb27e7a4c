use std::path::Path;

use serde::{Deserialize, Serialize};

use super::*;

const LEAST: &str = "model: q.st\nfloat: f.st\ndata: {path: images}\noutput: out\n";

fn pairs(overrides: &[(&str, &str)]) -> Vec<(String, String)> {
    overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn job(more: &str, overrides: &[(&str, &str)]) -> Result<Job, JobError> {
    Job::from_yaml("test.yaml", &format!("{LEAST}{more}"), &pairs(overrides))
}

fn message(more: &str, overrides: &[(&str, &str)]) -> String {
    job(more, overrides).unwrap_err().to_string()
}

/// A shipped job in which the keys that it leaves to the user are set.
fn shipped(name: &str) -> Job {
    let files = [("float", "f.st"), ("data.path", "images"), ("output", "out"), ("model", "q.st")];
    let given = if name == "finetune" { &files[..3] } else { &files };
    Job::load(name, &pairs(given)).unwrap()
}

#[test]
fn a_job_needs_four_keys_and_has_defaults_for_the_others() {
    let job = job("", &[]).unwrap();
    let required = Job {
        model: Some("q.st".into()),
        float: Some("f.st".into()),
        data: DataKeys { path: "images".into(), ..DataKeys::default() },
        output: "out".into(),
        epochs: Some(3.0),
        ..Job::default()
    };
    assert_eq!(job, required);
    assert_eq!(job.teacher_path(), Some(Path::new("f.st")));
    assert_eq!(job.data.validation_path(), Path::new("images"));
    assert_eq!(job.schedule_length(640).iterations(), 30);
}

#[test]
fn shipped_jobs_have_every_key_and_the_default_job_has_the_defaults() {
    let schema = schema();
    for name in Job::shipped_names() {
        assert_eq!(shipped(name).name, name);
        // Every key is in the file, with a comment on its line.
        let text = Job::shipped(name).unwrap();
        // The length has two keys, of which a job has one.
        let length = if shipped(name).steps.is_some() { "epochs" } else { "steps" };
        for key in tree::keys(&schema).iter().filter(|key| *key != length) {
            let last = key.rsplit('.').next().unwrap();
            let has = |line: &&str| line.trim_start().starts_with(&format!("{last}:"));
            let line = text.lines().find(has).unwrap_or_else(|| panic!("{name} has no {key}"));
            let section = line.trim_end().ends_with(':');
            assert!(section || line.contains(" # "), "{name}: {line}");
        }
    }
    let default = shipped("default");
    let names = Job { name: "default".into(), augment: default.augment.clone(), ..job("", &[]).unwrap() };
    assert_eq!(default, names);
}

#[test]
fn shipped_jobs_keep_what_they_promise() {
    let kl = shipped("mode1_kl");
    assert!(kl.loss.labels == 0.0 && kl.loss.kl > 0.0 && kl.quant);
    let w4 = shipped("w4");
    let learned = (w4.quantization.weight_scales, w4.quantization.activation_scales);
    assert_eq!(learned, (WeightScales::Learned, ActivationScales::Learned));
    let float = shipped("finetune");
    assert!(!float.quant && !float.loss.needs_teacher());
}

#[test]
fn a_job_prints_itself_as_a_job() {
    for name in Job::shipped_names() {
        let job = shipped(name);
        let text = job.to_string();
        assert_eq!(Job::from_yaml("printed", &text, &[]).unwrap(), job, "{text}");
    }
    let text = job("", &[("optimizer.lr", "3e-5")]).unwrap().to_string();
    assert!(text.starts_with("name: qat\nquant: on\nmodel: q.st\n"), "{text}");
    assert!(text.contains("  lr: 0.00003\n") && text.contains("device: cpu\n"), "{text}");
}

#[test]
fn overrides_are_typed_by_their_keys() {
    let job = job(
        "epochs: 2\n",
        &[
            ("name", "2024"),
            ("optimizer.lr", "1e-4"),
            ("optimizer.betas", "[0.8, 0.9]"),
            ("quant", "on"),
            ("device", "cuda:1"),
            ("precision", "bf16"),
            ("log.tensorboard", "false"),
            ("quantization.rules", "[{match: '**.q', scales: learned}]"),
            ("augment.color_jitter.hue", "0.1"),
            ("cfg", "swin_tiny_patch4_window7_224"),
            ("opts.MODEL.NUM_CLASSES", "10"),
            ("opts.MODEL.SWIN.DEPTHS", "[2, 4]"),
            ("data.limit", "100"),
            ("data.limit", "null"),
            ("steps", "20"),
        ],
    )
    .unwrap();
    assert_eq!((job.name.as_str(), job.optimizer.lr, job.optimizer.betas), ("2024", 1e-4, [0.8, 0.9]));
    assert_eq!((job.device, job.precision, job.log.tensorboard), (Device::Cuda(1), Precision::Bf16, false));
    assert_eq!(job.quantization.rules[0].scales, Scales::Learned);
    assert_eq!(job.augment["color_jitter"]["hue"], 0.1);
    let opts = pairs(&[("MODEL.NUM_CLASSES", "10"), ("MODEL.SWIN.DEPTHS", "[2,4]")]);
    assert_eq!((job.config_overrides(), job.data.limit), (opts, None));
    // Setting one length removes the other.
    assert_eq!((job.epochs, job.length()), (None, Length::Iterations(20)));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    let nearest = |more: &str, overrides: &[(&str, &str)]| match job(more, overrides) {
        Err(JobError::UnknownKey { key, nearest, .. }) => (key, nearest),
        other => panic!("{other:?}"),
    };
    for (given, wanted) in [
        ("lr", "optimizer.lr"),
        ("optimizer.weight_deacy", "optimizer.weight_decay"),
        ("optimiser.lr", "optimizer.lr"),
        ("batchsize", "batch_size"),
        ("loss.kl.weight", "loss.kl"),
        ("", "log"),
    ] {
        let (key, near) = nearest("", &[(given, "1")]);
        assert_eq!(key, given);
        assert!(given.len() < 2 || near == wanted, "{given}: {near}");
    }
    assert_eq!(nearest("epoch: 3\n", &[]), ("epoch".into(), "epochs".into()));
    assert_eq!(nearest("loss: {klw: 3}\n", &[]), ("loss.klw".into(), "loss.kl".into()));
    assert_eq!(nearest("log: {}\nloss:\n  x: 1\n", &[]).0, "loss.x");
    let schema = super::schema();
    for (theirs, ours) in super::tree::SYNONYMS {
        let (section, _) = ours.rsplit_once('.').unwrap_or_default();
        let section = schema.get(section).unwrap_or(&schema);
        assert!(section.get(theirs).is_none(), "{theirs} is a key");
        assert_eq!(nearest("", &[(theirs, "1")]).1, ours);
        let known = super::tree::keys(&schema);
        assert!(ours.starts_with("augment.") || known.iter().any(|key| key == ours), "{ours}");
    }
    assert_eq!(nearest("", &[("optimizer.learning_rate", "1")]).1, "optimizer.lr");
    assert_eq!(nearest("", &[("MODEL.NUM_CLASSES", "10")]).1, "opts.MODEL.NUM_CLASSES");
    assert!(job("", &[("opts.MODEL.NUM_CLASSES", "10")]).is_ok(), "of the description of `float`");
    let rule = message("quantization: {rules: [{match: '**', scale: fixed}]}\n", &[]);
    assert!(rule.contains("quantization.rules[0]") && rule.contains("`scales`"), "{rule}");
}

#[test]
fn values_of_another_type_name_their_key() {
    for (more, words) in [
        ("optimizer: {lr: fast}\n", ["optimizer.lr", "\"fast\"", "a number"]),
        ("batch_size: -1\n", ["batch_size", "-1", "whole number"]),
        ("batch_size: 1.5\n", ["batch_size", "1.5", "whole number"]),
        ("quant: maybe\n", ["quant", "`maybe`", "on nor off"]),
        ("device: gpu\n", ["device", "`gpu`", "cuda:N"]),
        ("loss: 3\n", ["loss", "section", "3"]),
        ("optimizer: {betas: [0.9]}\n", ["optimizer.betas", "length", "2"]),
        ("optimizer: {lr: .nan}\n", ["YAML", "non-finite", "nan"]),
        ("seed: 1\nseed: 2\n", ["YAML", "duplicate", "seed"]),
        ("augment: 3\n", ["augment", "section", "3"]),
        ("- a\n", ["test.yaml", "YAML", ""]),
    ] {
        let message = message(more, &[]);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    assert!(message("", &[("loss", "3")]).contains("override one of its keys"));
    assert!(message("", &[("optimizer.betas", "[1")]).contains("`[1`"));
    let text = Job::from_yaml("x", "3", &[]).unwrap_err().to_string();
    assert!(text.contains("`key: value`"), "{text}");
}

#[test]
fn values_out_of_range_name_the_value_and_the_remedy() {
    for (key, value, remedy) in [
        ("optimizer.lr", "2", "0 to 1"),
        ("optimizer.lr", "-1e-4", "0 to 1"),
        ("optimizer.betas", "[0.9, 1]", "below 1"),
        ("optimizer.eps", "0", "above 0"),
        ("optimizer.ema", "1", "below 1"),
        ("optimizer.clip_norm", "-1", "disables clipping"),
        ("schedule.min_lr", "1e-3", "optimizer.lr"),
        ("loss.temperature", "0", "above 0"),
        ("loss.smoothing", "1", "below 1"),
        ("mixing.mixup", "3", "0 (off) to 2"),
        ("mixing.cutmix", "-1", "0 (off) to 2"),
        ("mixing.probability", "1.5", "0 to 1"),
        ("mixing.switch", "-0.5", "0 to 1"),
        ("batch_size", "0", "1 to 65536"),
        ("epochs", "0", "above 0"),
        ("steps", "0", "1 to"),
        ("data.limit", "0", "remove the key"),
        ("log.every", "0", "at least 1"),
        ("checkpoint.keep", "0", "at least 1"),
        ("drop_path", "1", "below 1"),
        ("precision", "bf16", "device: cuda"),
        ("threads", "20000", "at most 1024"),
    ] {
        let message = message("", &[(key, value)]);
        assert!(message.contains(key) && message.contains(remedy), "{message}");
    }
    let both = message("steps: 3\nepochs: 3\n", &[]);
    assert!(both.contains("only one"), "{both}");
}

#[test]
fn missing_files_of_a_job_are_named() {
    for (text, words) in [
        ("float: f\ndata: {path: d}\noutput: o\n", "model: is not set"),
        ("model: q\ndata: {path: d}\noutput: o\n", "float: is not set"),
        ("model: q\nfloat: f\noutput: o\n", "data.path: is not set"),
        ("model: q\nfloat: f\ndata: {path: d}\n", "output: is not set"),
        ("quant: off\nmodel: q\nfloat: f\ndata: {path: d}\noutput: o\n", "model: applies to quant: on only"),
        ("quant: off\ndata: {path: d}\noutput: o\n", "random weights"),
        ("quant: off\ncfg: swin\ndata: {path: d}\noutput: o\n", "teacher: is not set"),
        (
            "quant: off\ncfg: swin\nweights: net\ndata: {path: d}\noutput: o\n",
            "weights: says how checkpoints",
        ),
        ("model: q\nfloat: f\ndata: {path: d}\noutput: o\nloss: {labels: 0, kl: 0}\n", "loss: is empty"),
    ] {
        let message = Job::from_yaml("t", text, &[]).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    let scratch = "quant: off\ncfg: swin\nloss: {kl: 0}\ndata: {path: d}\noutput: o\n";
    assert!(Job::from_yaml("t", scratch, &[]).is_ok());
    let absent = Job::load("/nowhere/job.yaml", &[]).unwrap_err();
    assert!(matches!(absent, JobError::Io { .. }) && absent.to_string().contains("job.yaml"));
}

#[test]
fn sections_may_be_empty() {
    let all_commented = job("loss:\nopts:\naugment:\nlog:\n", &[]).unwrap();
    assert_eq!(all_commented, job("", &[]).unwrap());
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Augment {
    flip: bool,
    angle: f64,
}

impl Default for Augment {
    fn default() -> Augment {
        Augment { flip: false, angle: 3.0 }
    }
}

#[test]
fn augmentation_is_read_by_its_own_type() {
    let mut stated = job("augment: {flip: true}\n", &[]).unwrap();
    assert_eq!(stated.augmentation::<Augment>().unwrap(), Augment { flip: true, angle: 3.0 });
    assert_eq!(stated.augment, serde_json::json!({"flip": true, "angle": 3.0}));
    let error = job("augment: {angle: x}\n", &[]).unwrap().augmentation::<Augment>().unwrap_err().to_string();
    assert!(error.contains("augment.angle") && error.contains("a number"), "{error}");
    let error = job("augment: {flap: 1}\n", &[]).unwrap().augmentation::<Augment>().unwrap_err().to_string();
    assert!(error.contains("augment") && error.contains("`flip`"), "{error}");
}

#[test]
fn an_identity_holds_only_what_has_an_effect_on_the_result() {
    let contents = [("data.path", "abc".to_owned())];
    let identity = |overrides: &[(&str, &str)]| job("", overrides).unwrap().identity(&contents);
    let started = identity(&[]);
    let moved = identity(&[
        ("output", "elsewhere"),
        ("name", "other"),
        ("threads", "3"),
        ("log.every", "1"),
        ("checkpoint.keep", "9"),
        ("data.path", "moved"),
        ("epochs", "3.0"),
    ]);
    assert_eq!((moved.sha256(), moved.check_resumes(&started).is_ok()), (started.sha256(), true));
    let other = identity(&[("optimizer.lr", "1e-4"), ("drop_path", "0.1"), ("augment.flip", "true")]);
    assert_ne!(other.sha256(), started.sha256());
    let message = other.check_resumes(&started).unwrap_err().to_string();
    for words in [
        "optimizer.lr is 0.0001 and was 0.00005",
        "drop_path is 0.1 and was 0.0",
        "augment.flip is true and was absent",
    ] {
        assert!(message.contains(words), "{message}");
    }
    // A training that began before `mixing` existed can be resumed.
    assert_eq!(identity(&[("mixing.cutmix", "0"), ("mixing.switch", "0.1")]), started);
    assert_ne!(identity(&[("mixing.cutmix", "1")]), started);
    assert_eq!(identity(&[("device", "cuda:1")]), identity(&[("device", "cuda")]));
    assert_ne!(identity(&[("device", "cuda")]), started);
    // A checkpoint stores it as JSON.
    let kept: Identity = serde_json::from_str(&serde_json::to_string(&other).unwrap()).unwrap();
    assert_eq!(kept.sha256(), other.sha256());
}
