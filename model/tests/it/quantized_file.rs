//! The quantized-checkpoint file: reading returns what was written, and every inconsistent state is refused
//! with an error that names it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use swinq_model::params::parameters;
use swinq_model::quantized::{ChannelCodes, Int8Weight, Param, Provenance, SiteState};
use swinq_model::{
    HostTensor, QuantizedModel, Recipe, Site, Size, StageOutput, SwinConfig, Transform, WindowPolicy,
    all_linears,
};
use swinq_numerics::Gelu;
use twox_hash::XxHash3_128;

const FC1: &str = "layers.0.blocks.0.mlp.fc1";
const HIDDEN: &str = "layers.0.blocks.0.mlp.fc2.input";

fn config() -> SwinConfig {
    SwinConfig {
        name: "micro".to_owned(),
        image_size: Size::square(16),
        num_classes: 3,
        embed_dim: 4,
        depths: vec![1, 1],
        num_heads: vec![1, 2],
        window_size: Size::square(2).into(),
        mlp_ratio: 2.0,
        window_policy: WindowPolicy::ShrinkAndPad,
        ..SwinConfig::default()
    }
}

/// A model under a shipped recipe; all its ranges differ.
pub(crate) fn model(recipe: &str) -> QuantizedModel {
    model_of(config(), recipe)
}

fn model_of(config: SwinConfig, recipe: &str) -> QuantizedModel {
    let recipe = Recipe::shipped(recipe).unwrap_or_else(Recipe::float);
    let table = recipe.resolve(&config).unwrap();
    let ranges = table.iter().enumerate().map(|(i, (site, spec))| {
        let amax = spec.needs_scale(*site).then(|| 0.1 + i as f32 / 3.0);
        (*site, SiteState::new(spec.clone(), amax))
    });
    let sites: BTreeMap<Site, SiteState> = ranges.collect();
    let params = parameters(&config).into_iter().map(|(name, shape)| {
        let count: usize = shape.iter().product();
        let data = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
        (name, Param::Float(HostTensor::new(shape, data)))
    });
    let mut params: BTreeMap<String, Param> = params.collect();
    for linear in all_linears(&config) {
        let spec = &sites[&Site::Weight(linear)].spec;
        if let (true, Some(param)) = (spec.enabled, params.get_mut(&linear.weight_name())) {
            *param =
                Param::Int8(codes(&param.to_float(), spec.granularity == swinq_model::Granularity::Channel));
        }
    }
    QuantizedModel {
        transform: Transform::microsoft(config.image_size, config.in_chans, true),
        labels: (!config.is_backbone()).then(|| ["cat", "dog", "été \"quoted\""].map(str::to_owned).into()),
        config,
        recipe,
        gelu: Gelu::Quadratic,
        sites,
        params,
        provenance: Provenance { tool_version: "test".to_owned(), ..Provenance::default() },
    }
}

fn codes(weight: &HostTensor, per_channel: bool) -> Int8Weight {
    let channels = if per_channel { weight.shape[0] } else { 1 };
    let codes = weight.data.iter().map(|w| (w * 127.0).round() as i8).collect();
    let scales = (0..channels).map(|c| (c + 1) as f32 / 127.0).collect();
    Int8Weight { shape: weight.shape.clone(), codes, scales }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn round_trip() {
    let folder = folder();
    for recipe in ["default", "mode1", "mode2"] {
        let (model, path) = (model(recipe), folder.path().join(recipe));
        model.save(&path).unwrap();
        assert_eq!(QuantizedModel::load(&path).unwrap(), model);
        let first = std::fs::read(&path).unwrap();
        model.save(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first, "the bytes depend on the model only");
    }
}

/// A backbone whose first stage has no norm, under a shipped recipe.
fn backbone(recipe: &str) -> QuantizedModel {
    let outputs = (0..2).map(|stage| StageOutput::of_stage(stage, stage == 1)).collect();
    let config = SwinConfig { window_policy: WindowPolicy::Detection, ..config() };
    model_of(config.into_backbone(outputs), recipe)
}

#[test]
fn backbones_round_trip() {
    let model = backbone("default");
    let parts = Parts::of(&model);
    assert_eq!(parts.load(true).unwrap(), model);
    let architecture = &parts.document["architecture"];
    let outputs = json!([
        {"kind": "stage", "name": "stage1", "stage": 0, "norm": false},
        {"kind": "stage", "name": "stage2", "stage": 1, "norm": true},
    ]);
    assert_eq!((&architecture["task"], &architecture["outputs"]), (&json!("features"), &outputs));
    assert_eq!(parts.document["format_version"], json!(3));
    assert!(architecture["num_classes"].is_null() && parts.tensors.contains_key("norm1.weight"));
    let refused = |words: &[&str], change: &dyn Fn(&mut Value)| {
        let mut parts = parts.clone();
        change(&mut parts.document["architecture"]);
        assert_message(parts.load(true), words);
    };
    refused(&["the last output is not that of the last stage"], &|a| a["outputs"] = json!([outputs[0]]));
    refused(&["do not ascend"], &|a| a["outputs"] = json!([outputs[1], outputs[0]]));
    refused(&["norm1"], &|a| a["outputs"][1]["norm"] = json!(false));
    refused(&["norm0"], &|a| a["outputs"][0]["norm"] = json!(true));
    refused(&["two outputs have one name"], &|a| a["outputs"][0]["name"] = json!("stage2"));
    refused(&["letters, digits"], &|a| a["outputs"][0]["name"] = json!("stage 1"));
    refused(&["no classes"], &|a| a["num_classes"] = json!(3));
    refused(&["its task is"], &|a| a["outputs"][0] = json!({"kind": "logits", "name": "logits"}));
    refused(&["needs a newer swinq"], &|a| a["outputs"][0]["kind"] = json!("mask"));
}

/// The parts of a file: tensors by name, and the JSON. [`Parts::load`] assembles a file from them and reads
/// it.
#[derive(Clone)]
struct Parts {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    document: Value,
}

impl Parts {
    fn new(recipe: &str) -> Parts {
        Parts::of(&model(recipe))
    }

    fn of(model: &QuantizedModel) -> Parts {
        let bytes = saved(model);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let own = |view: &TensorView| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        Parts {
            tensors: file.iter().map(|(name, view)| (name.to_owned(), own(&view))).collect(),
            document: serde_json::from_str(&metadata.metadata().as_ref().unwrap()["swinq"]).unwrap(),
        }
    }

    fn set_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), bytes));
    }

    /// Reads the file of these parts with the hash that they have.
    fn load(&self, metadata: bool) -> Result<QuantizedModel, String> {
        load_bytes(&self.bytes(metadata.then(|| self.hashed())))
    }

    /// The file of these parts with this document.
    fn bytes(&self, document: Option<String>) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let metadata = document.map(|text| [("swinq".to_owned(), text)].into());
        safetensors::serialize(views, metadata).unwrap()
    }

    /// The document with the hash that it has to state, if it states one.
    fn hashed(&self) -> String {
        let mut document = self.document.clone();
        let zeros = "0".repeat(32);
        let Some(hash) = document.get_mut("hash") else { return document.to_string() };
        *hash = json!(format!("xxh3-128:{zeros}"));
        let text = document.to_string();
        text.replacen(&zeros, &self.digits(&text), 1)
    }

    /// The hash of the tensors and of a document with this text, as docs/quantized-checkpoint.md defines it.
    fn digits(&self, text: &str) -> String {
        let stated = text.find("xxh3-128:").unwrap() + "xxh3-128:".len();
        let mut content = text.to_owned();
        content.replace_range(stated..stated + 32, &"0".repeat(32));
        let mut content = content.into_bytes();
        content.push(b'\n');
        for (name, (dtype, shape, bytes)) in &self.tensors {
            content.extend(format!("{name} {dtype:?} {shape:?}\n").bytes());
            content.extend(bytes);
        }
        format!("{:032x}", XxHash3_128::oneshot(&content))
    }
}

fn saved(model: &QuantizedModel) -> Vec<u8> {
    let folder = folder();
    let path: PathBuf = folder.path().join("q.safetensors");
    model.save(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn load_bytes(bytes: &[u8]) -> Result<QuantizedModel, String> {
    let folder = folder();
    let path = folder.path().join("q.safetensors");
    std::fs::write(&path, bytes).unwrap();
    QuantizedModel::load(&path).map_err(|e| e.to_string())
}

/// A model in which one site has scales and zero points of its channels.
fn with_channels() -> QuantizedModel {
    let mut model = model("default");
    let factors = vec![0.5, 1.0, 2.0, 1.5, 0.75, 3.0, 1e-3, 40.0];
    let zero_points = vec![-128, -120, -1, 0, 1, 2, 100, 127];
    let site = HIDDEN.parse().unwrap();
    model.sites.get_mut(&site).unwrap().channels = Some(ChannelCodes { factors, zero_points });
    model
}

/// Asserts that a changed file is refused with a message that contains all of `words`.
fn refused(words: &[&str], change: impl Fn(&mut Parts)) {
    refused_from(&model("default"), words, change);
}

fn refused_from(model: &QuantizedModel, words: &[&str], change: impl Fn(&mut Parts)) {
    let mut parts = Parts::of(model);
    assert!(parts.load(true).is_ok());
    change(&mut parts);
    assert_message(parts.load(true), words);
}

fn assert_message(outcome: Result<QuantizedModel, String>, words: &[&str]) {
    let message = outcome.expect_err(&format!("accepted; expected {words:?}"));
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn other_files_are_refused() {
    let message = QuantizedModel::load(folder().path()).unwrap_err().to_string();
    assert!(message.contains("is a folder; give the file that `swinq calibrate` wrote"), "{message}");
    assert_message(load_bytes(b"PK\x03\x04 not this"), &["is a file of torch.save", "q.safetensors"]);
    let bytes = saved(&model("default"));
    assert_message(load_bytes(&bytes[..bytes.len() - 1]), &["is a truncated or damaged safetensors file"]);
    assert_message(load_bytes(&[]), &["truncated or damaged safetensors file"]);
    let words = [
        "this is a float checkpoint; run `swinq calibrate` first, or pass --cfg to a command that also runs float models",
    ];
    assert_message(Parts::new("default").load(false), &words);
    refused(&["format version 4", "reads versions 1 to 3"], |p| p.document["format_version"] = json!(4));
    refused(&["format version 3", "needs no version 3"], |p| p.document["format_version"] = json!(3));
    refused(&["no format_version"], |p| p.document["format_version"] = json!("one"));
    refused(&["metadata is damaged", "surplus"], |p| p.document["surplus"] = json!(1));
    let missing = QuantizedModel::load("/nonexistent/q.safetensors".as_ref()).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/q.safetensors"), "{missing}");
}

/// [`model`] with another architecture and its transform.
fn changed(change: impl Fn(&mut SwinConfig)) -> QuantizedModel {
    let mut config = model("default").config;
    change(&mut config);
    let transform = Transform::microsoft(config.image_size, config.in_chans, false);
    let cfg = swinq_model::LoadedConfig {
        config,
        transform,
        states_crop: false,
        stages: None,
        drop_path: 0.0,
        origin: "test".to_owned(),
    };
    QuantizedModel::from_float(swinq_model::random_model(&cfg, 1)).unwrap()
}

#[test]
fn what_version_2_cannot_state_is_version_3() {
    let rectangle = changed(|config| config.image_size = Size::new(16, 24));
    let gray = changed(|config| config.in_chans = 1);
    let wide = changed(|config| {
        (config.window_size, config.window_policy) = (Size::new(1, 2).into(), WindowPolicy::Timm);
    });
    let detection = changed(|config| config.window_policy = WindowPolicy::Detection);
    for model in [rectangle, gray, wide, detection] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.safetensors");
        model.save(&path).unwrap();
        let (read, info) = QuantizedModel::load_with_info(&path).unwrap();
        assert_eq!((read, info.format_version), (model, 3));
    }
    let mut parts = Parts::of(&changed(|config| config.image_size = Size::new(16, 24)));
    assert_eq!(parts.document["architecture"]["image_size"], json!([16, 24]));
    parts.document["format_version"] = json!(2);
    assert_message(parts.load(true), &["format version 2", "needs version 3"]);
}

#[test]
fn other_tasks_and_outputs_are_refused_by_name() {
    let classifier = Parts::of(&changed(|config| config.image_size = Size::new(16, 24)));
    let logits = json!([{"name": "logits", "kind": "logits"}]);
    let stage = json!([{"name": "stage1", "kind": "stage", "stage": 0, "norm": true}]);
    let stated = |task: Value, outputs: Value| {
        let mut parts = classifier.clone();
        for (key, value) in [("task", task), ("outputs", outputs)] {
            if !value.is_null() {
                parts.document["architecture"][key] = value;
            }
        }
        parts
    };
    for (task, outputs) in [("classification".into(), Value::Null), ("classification".into(), logits.clone())]
    {
        assert_eq!(stated(task, outputs).load(true).unwrap(), classifier.load(true).unwrap());
    }
    assert_eq!(stated(Value::Null, logits.clone()).load(true).unwrap(), classifier.load(true).unwrap());
    let architecture = &classifier.document["architecture"];
    assert!(
        architecture["task"].is_null() && architecture["outputs"].is_null(),
        "a classifier states neither"
    );

    let long = Value::from("y\u{1b}".repeat(1000));
    assert_message(
        stated(long.clone(), Value::Null).load(true),
        &["the task \"y\\u001by", "..., which needs a newer swinq"],
    );
    assert!(stated(long, Value::Null).load(true).unwrap_err().len() < 400);
    assert_message(stated(json!(["features"]), Value::Null).load(true), &["newer swinq"]);
    assert_message(
        stated(Value::Null, stage).load(true),
        &["its task is \"classification\"", "calibrate again"],
    );
    let named = json!([{"name": "scores", "kind": "logits"}]);
    let twice = json!([logits[0], logits[0]]);
    let more = json!([{"name": "logits", "kind": "logits", "norm": true}]);
    assert_message(stated(Value::Null, json!([3])).load(true), &["has the output 3", "calibrate again"]);
    for outputs in [named, twice, more, json!([]), json!({})] {
        assert_message(stated(Value::Null, outputs).load(true), &["outputs that are not", "calibrate again"]);
    }
    // A file of version 2 has no such keys.
    refused(&["unknown field `task`"], |p| p.document["architecture"]["task"] = json!("classification"));
}

#[test]
fn a_library_s_window_policy_is_read_from_its_dialect() {
    let of = |policy: WindowPolicy, dialect: &str| {
        let mut model = changed(|config| config.window_policy = policy);
        model.provenance.source.dialect = dialect.to_owned();
        let parts = Parts::of(&model);
        let stored = parts.document["architecture"]["window_policy"].as_str().unwrap().to_owned();
        (stored, parts.document["format_version"].clone(), parts.load(true).unwrap().config.window_policy)
    };
    for (policy, dialect) in [
        (WindowPolicy::Timm, "timm"),
        (WindowPolicy::HuggingFace, "hf"),
        (WindowPolicy::Mmpretrain, "openmmlab"),
    ] {
        assert_eq!(of(policy, dialect), ("shrink_and_pad".to_owned(), json!(2), policy));
        // Where the file does not name the library, it takes images of its own size only.
        assert_eq!(of(policy, "swinq"), ("shrink_and_pad".to_owned(), json!(2), WindowPolicy::ShrinkAndPad));
    }
    let (stored, version, policy) = of(WindowPolicy::TimmAnySize, "timm");
    assert_eq!((stored.as_str(), version, policy), ("timm_any_size", json!(3), WindowPolicy::TimmAnySize));
    let unnamed = SwinConfig { window_policy: WindowPolicy::ShrinkAndPad, ..model("default").config };
    let message = unnamed.grids(Size::square(24)).unwrap_err().to_string();
    assert!(message.contains("does not say which library's rule"), "{message}");
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    refused(&["missing norm.bias"], |p| drop(p.tensors.remove("norm.bias")));
    refused(&["unexpected head.scale"], |p| p.set_f32("head.scale", &[], &[1.0]));
    refused(&["norm.bias", "shape [4]", "[8]"], |p| p.set_f32("norm.bias", &[4], &[0.0; 4]));
    refused(&[FC1, "stored as F32", "must be I8"], |p| {
        p.set_f32("layers.0.blocks.0.mlp.fc1.weight", &[8, 4], &[0.5; 32])
    });
    refused(&["norm.bias", "I8", "must be F32, F16 or BF16"], |p| {
        p.tensors.insert("norm.bias".to_owned(), (Dtype::I8, vec![8], vec![1; 8]));
    });
    refused(&["fc1.input.scale", "F16", "scales are F32"], |p| {
        p.tensors.insert(format!("{FC1}.input.scale"), (Dtype::F16, vec![], vec![0, 60]));
    });
    refused(&[FC1, "-128"], |p| p.tensors.get_mut("layers.0.blocks.0.mlp.fc1.weight").unwrap().2[5] = 0x80);
    refused(&["norm.bias", "NaN"], |p| p.set_f32("norm.bias", &[8], &[f32::NAN; 8]));
    refused(&["fc1.weight.scale", "shape [1]"], |p| p.set_f32(&format!("{FC1}.weight.scale"), &[1], &[0.5]));
}

#[test]
fn impossible_scales_are_refused() {
    let site = format!("{FC1}.input.scale");
    refused(&["site layers.0.blocks.0.mlp.fc1.input", "half calibrated", "swinq calibrate"], |p| {
        drop(p.tensors.remove(&site))
    });
    for bad in [-0.5, 0.0, -0.0, f32::NAN, f32::INFINITY, 1e-45, 7e26] {
        refused(&[&site, "cannot be a scale"], |p| p.set_f32(&site, &[], &[bad]));
        let weight = format!("{FC1}.weight.scale");
        refused(&[&weight, "index 3", "cannot be a scale"], |p| {
            let mut scales = [0.5; 8];
            scales[3] = bad;
            p.set_f32(&weight, &[8], &scales);
        });
    }
}

#[test]
fn metadata_that_contradicts_is_refused() {
    let input = format!("{FC1}.input");
    refused(&[&input, "contradicts the scale tensor"], |p| p.document["sites"][&input]["amax"] = json!(3.0));
    refused(&[&input, "no amax"], |p| {
        drop(p.document["sites"][&input].as_object_mut().unwrap().remove("amax"))
    });
    refused(&["head.input", "off"], |p| p.document["sites"]["head.input"]["amax"] = json!(3.0));
    refused(&[&input, "contradicts the stored recipe"], |p| {
        p.document["sites"][&input]["enabled"] = json!(false)
    });
    let weight = format!("{FC1}.weight");
    refused(&[&weight, "contradicts the stored recipe"], |p| {
        p.document["sites"][&weight]["ptq"] = json!("reconstruct")
    });
    refused(&["unexpected head.bias"], |p| {
        p.document["sites"]["head.bias"] = p.document["sites"]["head.input"].clone()
    });
    refused(&["missing head.input"], |p| {
        drop(p.document["sites"].as_object_mut().unwrap().remove("head.input"))
    });
    refused(&["matches no site"], |p| p.document["recipe"]["rules"][0]["match"] = json!("nothing"));
    refused(&["labels", "1 names for 3 classes"], |p| p.document["labels"] = json!(["one"]));
    refused(&["transform.size", "32"], |p| p.document["transform"]["size"] = json!(32));
    for bad in [0.0, 1e-6, 7e26, -0.2] {
        refused(&["transform.std", "0.001..=10"], |p| {
            p.document["transform"]["std"] = json!([1.0, bad, 1.0])
        });
    }
    for bad in [-3.5, 7e26] {
        refused(&["transform.mean", "-1..=2"], |p| p.document["transform"]["mean"] = json!([0.5, 0.5, bad]));
    }
    refused(&["surplus"], |p| p.document["provenance"]["surplus"] = json!(1));
    refused(&["NUM_HEADS"], |p| p.document["architecture"]["num_heads"] = json!([0, 2]));
}

#[test]
fn scales_and_zero_points_of_channels_are_kept_and_need_version_2_of_the_numbers() {
    let model = with_channels();
    let mut parts = Parts::of(&model);
    assert_eq!(parts.document["numbers"], json!(6));
    assert_eq!(parts.load(true).unwrap(), model);
    parts.document["numbers"] = json!(2);
    assert_eq!(parts.load(true).unwrap(), QuantizedModel { gelu: Gelu::Erf, ..model.clone() });
    let names: Vec<&String> = parts.tensors.keys().filter(|name| name.starts_with(HIDDEN)).collect();
    let expected = ["channel_factor", "scale", "zero_point"].map(|n| format!("{HIDDEN}.{n}"));
    assert_eq!(names, expected.iter().collect::<Vec<_>>());
    assert_eq!(model.size_bytes(), self::model("default").size_bytes() + 8 * 5);

    refused(&["no numbers"], |p| drop(p.document.as_object_mut().unwrap().remove("numbers")));
    for unknown in [json!(0), json!(7), json!("2")] {
        refused(&["version", "number contract", "1 to 6"], |p| p.document["numbers"] = unknown.clone());
    }
}

#[test]
fn files_of_versions_before_4_of_the_numbers_keep_their_gelu() {
    let model = model("default");
    let older = QuantizedModel { gelu: Gelu::Erf, ..model.clone() };
    let mut parts = Parts::of(&model);
    assert_eq!(parts.document["numbers"], json!(6));
    for numbers in [1, 2, 3] {
        parts.document["numbers"] = json!(numbers);
        assert_eq!(parts.load(true).unwrap(), older);
    }
    parts.document["numbers"] = json!(4);
    assert_eq!(parts.load(true).unwrap(), model);
    // Saved again, it states the oldest version that has its GELU.
    assert_eq!(Parts::of(&older).document["numbers"], json!(1));
    // Without codes of GELU, both forms are the same model.
    let float = Parts::new("float");
    assert_eq!(float.document["numbers"], json!(6));
    assert_eq!(float.load(true).unwrap(), self::model("float"));
}

#[test]
fn scales_and_zero_points_of_channels_that_do_not_fit_are_refused() {
    let refused = |words: &[&str], change: &dyn Fn(&mut Parts)| refused_from(&with_channels(), words, change);
    let [factor, zero_point] = ["channel_factor", "zero_point"].map(|name| format!("{HIDDEN}.{name}"));
    refused(&[HIDDEN, "`numbers: 2`"], &|p| p.document["numbers"] = json!(1));
    refused(&["missing", &factor], &|p| drop(p.tensors.remove(&factor)));
    refused(&["missing", &zero_point], &|p| drop(p.tensors.remove(&zero_point)));
    refused(&[&factor, "shape [7]", "[8]"], &|p| p.set_f32(&factor, &[7], &[1.0; 7]));
    refused(&[&zero_point, "F32", "must be I8"], &|p| p.set_f32(&zero_point, &[8], &[1.0; 8]));
    for bad in [-0.5, 0.0, f32::NAN, f32::INFINITY, 1e-45, 7e26] {
        let mut factors = [1.0; 8];
        factors[5] = bad;
        refused(&[&factor, "index 5", "cannot be a scale"], &|p| p.set_f32(&factor, &[8], &factors));
    }
    // Usable alone, but the reciprocal of its product with the scale is infinite.
    refused(&[HIDDEN, "channel 0", "scale"], &|p| p.set_f32(&factor, &[8], &[1e-38; 8]));
    let name = format!("{FC1}.input.zero_point");
    refused(&["unexpected", &name], &|p| {
        p.tensors.insert(name.clone(), (Dtype::I8, vec![4], vec![0; 4]));
    });
}

#[test]
fn float_values_of_a_weight_do_not_include_the_factors() {
    let (plain, model) = (model("default"), with_channels());
    let name = "layers.0.blocks.0.mlp.fc2.weight";
    let (codes, own) = (&plain.float_tensors()[name].data, &model.float_tensors()[name].data);
    let factors = &model.site(HIDDEN.parse().unwrap()).channels.as_ref().unwrap().factors;
    for (i, (code, own)) in codes.iter().zip(own).enumerate() {
        assert_eq!(*own, code / factors[i % 8]);
    }
    assert_eq!(plain.float_tensors().len(), plain.params.len());
}

#[test]
fn sums_that_could_overflow_are_refused() {
    let site: Site = HIDDEN.parse().unwrap();
    let channels = |n: usize| ChannelCodes { factors: vec![1.0; n], zero_points: vec![-128; n] };
    assert_eq!(channels(65_793).quantizers(site, 0.1, 65_793).unwrap().len(), 65_793);
    let message = channels(65_794).quantizers(site, 0.1, 65_794).unwrap_err().to_string();
    assert!(message.contains(HIDDEN) && message.contains("INT32"), "{message}");
}

#[test]
fn half_precision_floats_are_read() {
    let values = [0.5f32, -2.0, 0.0, 1.5, 8.0, -0.25, 3.0, 1.0];
    let f16 = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let bf16 = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    for (dtype, bytes) in [(Dtype::F16, f16), (Dtype::BF16, bf16)] {
        let mut parts = Parts::new("default");
        parts.tensors.insert("norm.bias".to_owned(), (dtype, vec![8], bytes));
        assert_eq!(parts.load(true).unwrap().params["norm.bias"].to_float().data, values);
    }
}

#[test]
fn inconsistent_models_are_not_written() {
    let folder = folder();
    let path = folder.path().join("q.safetensors");
    let refuse = |change: &dyn Fn(&mut QuantizedModel), word: &str| {
        let mut model = model("default");
        change(&mut model);
        let message = model.save(&path).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
        assert!(!path.exists());
    };
    let input: Site = format!("{FC1}.input").parse().unwrap();
    let head: Site = "head.input".parse().unwrap();
    refuse(&|m| m.sites.get_mut(&input).unwrap().amax = None, "never calibrated");
    refuse(&|m| m.sites.get_mut(&head).unwrap().amax = Some(1.0), "is off");
    refuse(&|m| drop(m.params.remove("norm.bias")), "norm.bias");
    let channels = |n| Some(ChannelCodes { factors: vec![1.0; n], zero_points: vec![3; n] });
    refuse(&|m| m.sites.get_mut(&input).unwrap().channels = channels(4), "not an input of mlp.fc2");
    let hidden: Site = HIDDEN.parse().unwrap();
    refuse(
        &|m| m.sites.get_mut(&hidden).unwrap().channels = channels(7),
        "7 factors and 7 zero points for 8",
    );
    refuse(
        &|m| {
            m.sites.get_mut(&hidden).unwrap().channels =
                Some(ChannelCodes { factors: vec![0.0; 8], zero_points: vec![0; 8] })
        },
        "channel 0",
    );
}

/// The file of `parts` as version 1 of the format had it.
fn version_1(mut parts: Parts, numbers: Option<u64>) -> Parts {
    let document = parts.document.as_object_mut().unwrap();
    document.insert("format_version".to_owned(), json!(1));
    drop((document.remove("hash"), document.remove("numbers")));
    document.extend(numbers.map(|numbers| ("numbers".to_owned(), json!(numbers))));
    parts
}

#[test]
fn version_1_is_read_and_has_no_hash() {
    for (model, numbers) in [(model("default"), None), (model("mode1"), Some(1)), (with_channels(), Some(2))]
    {
        let parts = version_1(Parts::of(&model), numbers);
        let model = QuantizedModel { gelu: Gelu::Erf, ..model };
        let folder = folder();
        let path = folder.path().join("q.safetensors");
        std::fs::write(&path, parts.bytes(Some(parts.document.to_string()))).unwrap();
        let (read, info) = QuantizedModel::load_with_info(&path).unwrap();
        assert_eq!(read, model);
        assert_eq!((info.format_version, info.numbers, info.hash), (1, numbers.unwrap_or(1), None));
        model.save(&path).unwrap();
        let (read, info) = QuantizedModel::load_with_info(&path).unwrap();
        assert_eq!((read, info.format_version), (model, 2));
        assert_eq!(info.hash.unwrap().len(), "xxh3-128:".len() + 32);
    }
    let mut mixed = version_1(Parts::new("default"), None);
    mixed.document["hash"] = json!("xxh3-128:");
    assert_message(mixed.load(true), &["format version 1 has no hash"]);
}

#[test]
fn the_hash_is_that_of_the_document_and_the_tensors() {
    for model in [model("mode2"), with_channels()] {
        let bytes = saved(&model);
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let text = &metadata.metadata().as_ref().unwrap()["swinq"];
        let parts = Parts::of(&model);
        let stated = parts.document["hash"].as_str().unwrap();
        assert_eq!(stated, format!("xxh3-128:{}", parts.digits(text)));
    }
    refused(&["no hash"], |p| drop(p.document.as_object_mut().unwrap().remove("hash")));
    for (hash, words) in
        [("", "is not xxh3-128:"), ("blake3:00", "is not xxh3-128:"), ("xxh3-128:é", "digits")]
    {
        let mut parts = Parts::new("default");
        parts.document["hash"] = json!(hash);
        assert_message(load_bytes(&parts.bytes(Some(parts.document.to_string()))), &[words, "q.safetensors"]);
    }
}

/// Changes that leave a consistent file with other logits are found by the hash alone.
#[test]
fn every_flipped_byte_and_swapped_tensor_is_refused() {
    let bytes = saved(&with_channels());
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut random = 1u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let (mut unlike_hash, flips) = (0, 600);
    for flip in 0..flips {
        // Half of the flips are in the tensors, which are a small part of this file.
        let place = if flip % 2 == 0 { next(header) } else { header + next(bytes.len() - header) };
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << next(8);
        let message = load_bytes(&damaged).expect_err(&format!("byte {place} flipped, and accepted"));
        unlike_hash += u32::from(!message.contains("its content has the hash"));
    }
    assert!(unlike_hash < flips / 2, "only {} of {flips} flips were left to the hash", flips - unlike_hash);

    let parts = Parts::of(&model("default"));
    let shaped = |name: &str| parts.tensors[name].clone();
    for [a, b] in
        [["norm.bias", "norm.weight"], ["layers.0.blocks.0.norm1.bias", "layers.0.blocks.0.norm2.bias"]]
    {
        let mut swapped = parts.clone();
        let (of_a, of_b) = (shaped(a), shaped(b));
        swapped.tensors.insert(a.to_owned(), (of_b.0, of_b.1, of_b.2.iter().rev().copied().collect()));
        swapped.tensors.insert(b.to_owned(), (of_a.0, of_a.1, of_a.2.iter().rev().copied().collect()));
        assert_ne!(swapped.tensors[a].2, parts.tensors[a].2);
        assert_message(
            load_bytes(&swapped.bytes(Some(parts.document.to_string()))),
            &["its content has the hash"],
        );
    }
}

#[test]
fn keys_that_are_stated_twice_are_refused() {
    let parts = version_1(Parts::new("default"), None);
    for (once, twice) in [
        (r#""format_version":1"#, r#""format_version":1,"format_version":1"#),
        (r#""num_classes":3"#, r#""num_classes":3,"num_classes":3"#),
        (r#""head.input":"#, r#""head.input":{},"head.input":"#),
    ] {
        let text = parts.document.to_string();
        assert!(text.contains(once), "{once} is not in {text}");
        let outcome = load_bytes(&parts.bytes(Some(text.replacen(once, twice, 1))));
        assert_message(outcome, &["stated twice"]);
    }
    // A tensor that is stated twice in the header: the reader of safetensors keeps one of them.
    let bytes = parts.bytes(Some(parts.document.to_string()));
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let entry = header.find(r#""norm.bias":"#).unwrap();
    let end = entry + header[entry..].find('}').unwrap() + 2;
    let header = format!("{}{}{}", &header[..end], &header[entry..end], &header[end..]);
    let twice = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat();
    assert_message(load_bytes(&twice), &["`norm.bias` is stated twice"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reading damaged bytes gives a consistent model or an error.
    #[test]
    fn damaged_files_never_panic(
        keep in 0.0f64..=1.0,
        truncate in any::<bool>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..8),
    ) {
        thread_local! { static BYTES: Vec<u8> = saved(&with_channels()); }
        let mut bytes = BYTES.with(Clone::clone);
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (index, value, in_header) in edits {
            let length = if in_header { header } else { bytes.len() };
            bytes[index.index(length)] = value;
        }
        if truncate {
            bytes.truncate((keep * bytes.len() as f64) as usize);
        }
        if let Ok(model) = load_bytes(&bytes) {
            model.validate().unwrap();
        }
    }
}
