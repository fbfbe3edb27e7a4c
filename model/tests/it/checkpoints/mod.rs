//! One small Swin in every dialect and format loads to the same parameters, and errors name their reason. The
//! files come from `make_checkpoints.py`.

mod backbones;
mod class_names;
mod describe;
mod memory;
mod mmpretrain;
mod pickles;
mod prefixes;
mod processors;
mod second;
mod shards;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use swinq_model::quantized::FloatModel;
use swinq_model::{
    Dialect, Filter, Kind, LoadOptions, LoadedConfig, ModelError, Orientation, QuantizedModel, Resize, Rule,
    Site, Size, StateDict, Transform, WindowPolicy, all_sites, ft_key, import_ft_amax, is_quantized_file,
    load_config, load_float, load_float_with_remarks, random_model,
};

const YAML: &str = "DATA: {IMG_SIZE: 24}\nMODEL:\n  NUM_CLASSES: 5\n  SWIN: {EMBED_DIM: 6, DEPTHS: [1, 2], NUM_HEADS: \
                    [2, 3], WINDOW_SIZE: 3, MLP_RATIO: 1.5}\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name)
}

fn config_with(opts: &[(&str, &str)]) -> LoadedConfig {
    config_of(YAML, opts)
}

/// The configuration in the text `yaml`, with `opts`.
fn config_of(yaml: &str, opts: &[(&str, &str)]) -> LoadedConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.yaml");
    fs::write(&path, yaml).unwrap();
    load_config(path.to_str().unwrap(), &pairs(opts)).unwrap()
}

fn pairs(opts: &[(&str, &str)]) -> Vec<(String, String)> {
    opts.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn options_with(opts: &[(&str, &str)]) -> LoadOptions {
    LoadOptions { cfg: Some(config_with(opts)), ..LoadOptions::default() }
}

fn load(name: &str) -> Result<FloatModel, ModelError> {
    load_float(&fixture(name), &options_with(&[]))
}

/// The model at `path`, and the first remark about it.
fn noted(path: &Path, options: &LoadOptions) -> (FloatModel, Option<String>) {
    let loaded = load_float_with_remarks(path, options).unwrap();
    (loaded.model, loaded.remarks.into_iter().next())
}

/// The parameters in the file `name`, read with the safetensors crate.
fn expected(name: &str) -> StateDict {
    expected_in(&fixture(name))
}

/// The tensors in the file at `path`, read with the safetensors crate.
fn expected_in(path: &Path) -> StateDict {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let data = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        (name.to_owned(), swinq_model::HostTensor::new(view.shape(), data))
    };
    file.iter().map(tensor).collect()
}

fn refusal(name: &str, options: &LoadOptions) -> String {
    load_float(&fixture(name), options).unwrap_err().to_string()
}

#[test]
fn every_dialect_and_format_gives_the_same_parameters() {
    let wanted = expected("expected.safetensors");
    let files = [
        ("expected.safetensors", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms_legacy.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms_protocol5.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms_ddp.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms_training.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("ms_training_legacy.pth", Dialect::Microsoft, WindowPolicy::Microsoft),
        ("timm/model.safetensors", Dialect::Timm, WindowPolicy::Timm),
        ("timm", Dialect::Timm, WindowPolicy::Timm),
        ("hf", Dialect::HuggingFace, WindowPolicy::HuggingFace),
        ("hf_modules.bin", Dialect::HuggingFace, WindowPolicy::HuggingFace),
        ("torchvision.pth", Dialect::TorchVision, WindowPolicy::Pad),
        ("ft_calib.pth", Dialect::FasterTransformer, WindowPolicy::Microsoft),
    ];
    for (name, dialect, policy) in files {
        let model = load(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.tensors, wanted, "{name}");
        assert_eq!(model.source.dialect, dialect.to_string(), "{name}");
        assert_eq!(model.config.window_policy, policy, "{name}");
        assert_eq!(model.source.sha256.len(), 64);
    }
}

#[test]
fn views_and_other_float_types_are_read_as_torch_reads_them() {
    let wanted = expected("expected_views.safetensors");
    assert_ne!(wanted, expected("expected.safetensors"));
    for name in ["ms_views.pth", "ms_views_legacy.pth"] {
        assert_eq!(load(name).unwrap().tensors, wanted, "{name}");
    }
}

#[test]
fn directories_describe_themselves() {
    let mean_std = (vec![0.5, 0.4, 0.3], vec![0.2, 0.25, 0.3]);
    let timm = load_float(&fixture("timm"), &LoadOptions::default()).unwrap();
    let hf = load_float(&fixture("hf"), &LoadOptions::default()).unwrap();
    for (model, family) in [(&timm, "timm"), (&hf, "hf")] {
        assert_eq!(model.tensors, expected("expected.safetensors"), "{family}");
        assert_eq!(model.labels.as_deref().unwrap().join(" "), "ant bee cat dog eel");
        assert_eq!((model.transform.mean.clone(), model.transform.std.clone()), mean_std);
        assert_eq!((model.transform.family.as_str(), model.transform.size), (family, Size::square(24)));
        let like = swinq_model::SwinConfig {
            name: model.config.name.clone(),
            window_policy: model.config.window_policy,
            ..config_with(&[]).config
        };
        assert_eq!(model.config, like);
    }
    assert_eq!((timm.transform.resize, timm.transform.filter), (Resize::ShorterSide(26), Filter::Bicubic));
    assert_eq!((hf.transform.resize, hf.transform.filter), (Resize::Direct, Filter::Bilinear));
    let cfg = options_with(&[("TEST.CROP", "False")]);
    let model = load_float(&fixture("hf"), &cfg).unwrap();
    // The names are those of transformers, which turns images as EXIF states.
    let orientation = Orientation::Exif;
    assert_eq!(model.transform, Transform { orientation, ..cfg.cfg.unwrap().transform });
    assert_eq!([hf.transform.orientation, timm.transform.orientation], [orientation, Orientation::Stored]);
    assert_eq!(model.labels.unwrap().len(), 5);
}

/// A copy of a fixture folder with one JSON file edited.
fn edited(folder: &str, file: &str, edit: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(folder)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let path = copy.path().join(file);
    let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut json);
    fs::write(&path, json.to_string()).unwrap();
    copy
}

#[test]
fn settings_of_a_directory_are_applied_or_refused() {
    use serde_json::json;
    let cases = [
        ("hf", "config.json", "hidden_act", json!("relu"), "hidden_act"),
        ("hf", "config.json", "layer_norm_eps", json!(1e-6), "layer_norm_eps"),
        ("hf", "config.json", "model_type", json!("swinv2"), "is a Swin V1, but the configuration"),
        ("hf", "config.json", "model_type", json!("vit"), "model_type"),
        ("hf", "config.json", "quantization_config", json!({"quant_method": "swinq"}), "from_pretrained"),
        ("hf", "config.json", "quantization_config", json!({"quant_method": "gptq"}), "quantized by `gptq`"),
        ("hf", "config.json", "num_channels", json!(1), "a list of 1: a finite number for each channel"),
        ("hf", "config.json", "embed_dim", json!(-6), "embed_dim"),
        ("hf", "config.json", "embed_dim", json!(1_000_000_000), "EMBED_DIM"),
        ("hf", "config.json", "window_size", json!(4), "bias table is not resized"),
        ("hf", "config.json", "image_size", json!([24, 28]), "image_size"),
        ("hf", "preprocessor_config.json", "resample", json!(1), "resample"),
        ("hf", "preprocessor_config.json", "size", json!(26), "size"),
        ("hf", "preprocessor_config.json", "size", json!({"shortest_edge": 24}), "do_center_crop"),
        ("hf", "preprocessor_config.json", "image_std", json!([0.1, 0.0, 0.1]), "image_std"),
        ("hf", "preprocessor_config.json", "rescale_factor", json!(1.0), "rescale_factor"),
        ("timm", "config.json", "architecture", json!("swin_s3_large_224"), "swin_s3_{tiny,small,base}_224"),
        (
            "timm",
            "config.json",
            "model_args",
            json!({"window_size": [7, 7, 14]}),
            "3 windows, but DEPTHS has 4 stages",
        ),
        ("timm", "config.json", "model_args", json!({"window_size": []}), "a window for each stage"),
        ("timm", "config.json", "architecture", json!("swinv2_tiny_window8_256"), "is a Swin V1, but"),
        ("timm", "config.json", "model_args", json!({"pretrained_window_sizes": [6, 6]}), "Swin V2 only"),
        ("timm", "config.json", "num_classes", json!(6), "label_names"),
        ("timm", "config.json", "model_args", json!({"head_dim": 9}), "model_args.head_dim"),
        ("timm", "config.json", "label_names", json!([1]), "label_names"),
    ];
    for (folder, file, field, value, part) in cases {
        let copy = edited(folder, file, |json| json[field] = value.clone());
        let message = load_float(copy.path(), &LoadOptions::default()).unwrap_err().to_string();
        assert!(message.contains(part), "{folder} {field} {value}: {message}");
    }
    let copy = edited("hf", "preprocessor_config.json", |json| {
        json["size"] = json!({"shortest_edge": 28});
        json["crop_size"] = json!({"height": 24, "width": 24});
        json["do_center_crop"] = json!(true);
    });
    let model = load_float(copy.path(), &LoadOptions::default()).unwrap();
    assert_eq!(model.transform.resize, Resize::ShorterSide(28));
    fs::remove_file(copy.path().join("preprocessor_config.json")).unwrap();
    let message = load_float(copy.path(), &LoadOptions::default()).unwrap_err().to_string();
    for word in ["preprocessor_config.json", "--cfg", "--transform hf"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    let replaced = LoadOptions { any_transform: true, ..LoadOptions::default() };
    load_float(copy.path(), &replaced).unwrap();
}

#[test]
fn the_problem_of_a_directory_is_kept() {
    use serde_json::json;
    use swinq_model::{Problem, Scores};
    let cases = [
        (json!(null), Problem::SingleLabel, Scores::Softmax),
        (json!("single_label_classification"), Problem::SingleLabel, Scores::Softmax),
        (json!("multi_label_classification"), Problem::MultiLabel, Scores::Sigmoid),
        (json!("regression"), Problem::Regression, Scores::Number),
    ];
    for (value, problem, scores) in cases.clone() {
        let copy = edited("hf", "config.json", |json| json["problem_type"] = value.clone());
        for cfg in [None, options_with(&[]).cfg] {
            let model = load_float(copy.path(), &LoadOptions { cfg, ..LoadOptions::default() }).unwrap();
            assert_eq!((model.config.problem, model.config.scores()), (problem, scores), "{value}");
            // Files of this program keep it.
            let own = copy.path().join("own.safetensors");
            QuantizedModel::from_float(model).unwrap().save(&own).unwrap();
            assert_eq!(QuantizedModel::load(&own).unwrap().config.problem, problem);
        }
    }
    // timm's folders may state it in the file or among the facts of the pretraining; the former counts.
    for (value, problem, scores) in cases {
        let whole = edited("timm", "config.json", |json| json["problem_type"] = value.clone());
        let part =
            edited("timm", "config.json", |json| json["pretrained_cfg"]["problem_type"] = value.clone());
        for copy in [whole, part] {
            for cfg in [None, options_with(&[]).cfg] {
                let model = load_float(copy.path(), &LoadOptions { cfg, ..LoadOptions::default() }).unwrap();
                assert_eq!((model.config.problem, model.config.scores()), (problem, scores), "timm: {value}");
            }
        }
    }
    let copy = edited("hf", "config.json", |json| json["problem_type"] = json!("ranking"));
    let message = load_float(copy.path(), &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("problem_type") && message.contains("ranking"), "{message}");
}

#[test]
fn overrides_apply_to_directories() {
    let opts =
        |value: &str| LoadOptions { opts: pairs(&[("MODEL.NUM_CLASSES", value)]), ..LoadOptions::default() };
    let hf = edited("hf", "config.json", |json| {
        json["id2label"] = serde_json::json!({"0": "ant", "1": "bee"});
    });
    let message = load_float(hf.path(), &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("pass --opts MODEL.NUM_CLASSES 5"), "{message}");
    let model = load_float(hf.path(), &opts("5")).unwrap();
    assert_eq!((model.config.num_classes, model.labels), (5, None));
    let whole = load_float(&fixture("timm"), &LoadOptions::default()).unwrap();
    let same = load_float(&fixture("timm"), &opts("5")).unwrap();
    assert_eq!((same.config, same.transform, same.labels), (whole.config, whole.transform, whole.labels));
    let unknown = LoadOptions { opts: pairs(&[("MODEL.NUM_CLASES", "5")]), ..LoadOptions::default() };
    let message = load_float(&fixture("timm"), &unknown).unwrap_err().to_string();
    assert!(message.contains("did you mean MODEL.NUM_CLASSES?"), "{message}");
}

#[test]
fn attacks_are_refused_and_not_executed() {
    let none = LoadOptions::default();
    for (name, function) in [
        ("attack_system.pth", "posix.system"),
        ("attack_system_legacy.pth", "posix.system"),
        ("attack_eval.pth", "builtins.eval"),
    ] {
        let message = refusal(name, &none);
        assert!(
            message.contains(name) && message.contains(&format!("tries to execute {function}")),
            "{message}"
        );
        assert!(message.contains("not a checkpoint to trust; nothing was executed"), "{message}");
    }
    let message = refusal("attack_array.pth", &none);
    assert!(
        message.contains("`head.bias`: is an object of") && message.contains("not a tensor"),
        "{message}"
    );
    let message = refusal("whole_module.pth", &none);
    assert!(
        message.contains("torch.nn.modules.linear.Linear") && message.contains("state_dict"),
        "{message}"
    );
    assert!(!Path::new("attacked").exists());
}

#[test]
fn mismatches_are_explained() {
    let message = refusal("ms.pth", &LoadOptions::default());
    assert!(message.contains("ms.pth") && message.contains("--cfg"), "{message}");
    let message = refusal("hf/model.safetensors", &LoadOptions::default());
    assert!(message.contains("pass its folder"), "{message}");
    let message = refusal("ms.pth", &options_with(&[("MODEL.NUM_CLASSES", "7")]));
    assert!(message.contains("head.") && message.contains("5 classes") && message.contains('7'), "{message}");
    let cause =
        "the checkpoint has 5 classes, but the configuration small has 7; pass --opts MODEL.NUM_CLASSES 5";
    assert!(message.starts_with(cause), "{message}");
    let message = refusal("hf/config.json", &LoadOptions::default());
    assert!(message.contains("but a text; pass the weights beside it, or the folder of both"), "{message}");
    let message = QuantizedModel::load(&fixture("ms.pth")).unwrap_err().to_string();
    assert!(message.contains("ms.pth: is a file of torch.save, and a calibrated checkpoint is"), "{message}");
    let message = refusal("torchvision.pth", &options_with(&[("MODEL.SWIN.MLP_RATIO", "2.0")]));
    assert!(message.contains("`features.1.0.mlp.0.weight` in the names of torchvision"), "{message}");
    let message = refusal("ms.pth", &options_with(&[("MODEL.SWIN.WINDOW_SIZE", "6")]));
    assert!(
        message.contains("window 3") && message.contains("window 6") && message.contains("not resized"),
        "{message}"
    );
    let message = refusal("ms.pth", &options_with(&[("MODEL.SWIN.DEPTHS", "[1, 1]")]));
    assert!(message.contains("2 blocks in stage2") && message.contains("layers.1.blocks.1."), "{message}");
    let message = refusal("ms.pth", &options_with(&[("MODEL.SWIN.APE", "True")]));
    assert!(message.contains("it lacks absolute_pos_embed; give the configuration"), "{message}");
    let mut more = expected("expected.safetensors");
    more.insert("norm.lora".to_owned(), more["norm.bias"].clone());
    let message = load_written(&more).unwrap_err().to_string();
    assert!(message.contains("no Swin of this configuration has norm.lora; give the conf"), "{message}");
    more.remove("norm.bias");
    let message = load_written(&more).unwrap_err().to_string();
    assert!(message.contains("it lacks norm.bias, and has norm.lora instead; give the conf"), "{message}");
    let message = load_float(&fixture("absent.pth"), &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("absent.pth"), "{message}");
}

#[test]
fn backbones_and_windows_of_each_stage_are_named() {
    let mut tensors = expected("expected.safetensors");
    let table = tensors.get_mut("layers.1.blocks.0.attn.relative_position_bias_table").unwrap();
    // A window of 4 after one of 3.
    *table = swinq_model::HostTensor::new([49, 3], vec![0.0; 147]);
    let message = load_written(&tensors).unwrap_err().to_string();
    assert!(message.contains("[3, 4]") && message.contains("WINDOW_SIZE \"[[3, 3], [4, 4]]\""), "{message}");
    // The same without --cfg.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    write(&tensors, &path);
    let message = load_float(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("[3, 4]") && message.contains("WINDOW_SIZE \"[[3, 3], [4, 4]]\""), "{message}");
    let mut tensors = expected("expected.safetensors");
    tensors.retain(|name, _| !name.starts_with("head."));
    let message = load_written(&tensors).unwrap_err().to_string();
    assert!(message.contains("backbone without a head"), "{message}");
    write(&tensors, &path);
    let message = load_float(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("backbone without a head"), "{message}");
}

#[test]
fn grids_that_windows_do_not_divide_follow_the_dialect() {
    // 28 pixels give 7x7 tokens, then 4x4, in windows of 3.
    let odd = options_with(&[("DATA.IMG_SIZE", "28")]);
    assert!(refusal("ms.pth", &odd).contains("does not divide the 7x7 tokens"));
    for name in ["timm/model.safetensors", "hf_modules.bin", "torchvision.pth"] {
        let grid = load_float(&fixture(name), &odd).unwrap().config.own_grids().swap_remove(0);
        assert_eq!((grid.padded, grid.shifts_first), (Size::square(9), name.starts_with("timm")), "{name}");
    }
    // 16 pixels give 4x4 tokens, then 2x2, which is smaller than the window. torchvision keeps the window;
    // Hugging Face shrinks it, so the table no longer fits.
    let small = options_with(&[("DATA.IMG_SIZE", "16")]);
    assert_eq!(
        load_float(&fixture("torchvision.pth"), &small).unwrap().config.stages()[1].window,
        Size::square(3)
    );
    assert!(refusal("hf_modules.bin", &small).contains("bias table is not resized"));
}

/// A safetensors file whose header is `header`.
fn with_header(header: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(&path, bytes).unwrap();
    assert!(!is_quantized_file(&path));
    load_float(&path, &options_with(&[])).unwrap_err().to_string()
}

#[test]
fn headers_with_too_many_or_repeated_names_are_refused() {
    let tensor = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let tensors: Vec<String> = (0..1_200_000).map(|i| format!(r#""{i}":{tensor}"#)).collect();
    let message = with_header(&format!("{{{}}}", tensors.join(",")));
    assert!(message.contains("more than 400000 keys"), "{message}");
    let keys: Vec<String> = (0..5_000_000).map(|i| format!(r#""{i}":"""#)).collect();
    let message = with_header(&format!(r#"{{"__metadata__":{{{}}}}}"#, keys.join(",")));
    assert!(message.contains("more than 400000 keys"), "{message}");
    let message = with_header(&format!(r#"{{"a":{tensor},"a":{tensor}}}"#));
    assert!(message.contains("`a` is stated twice"), "{message}");
    let message = with_header(&format!("{{\"a\":{tensor}}}\n"));
    assert!(message.contains("other than spaces"), "{message}");
}

/// Writes `tensors` as f32 safetensors and loads them.
fn load_written(tensors: &StateDict) -> Result<FloatModel, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    write(tensors, &path);
    assert!(!is_quantized_file(&path));
    load_float(&path, &options_with(&[]))
}

/// Writes `tensors` as f32 safetensors.
fn write(tensors: &StateDict, path: &Path) {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(n, t)| (n.clone(), t.shape.clone(), t.data.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

#[test]
fn other_networks_and_depths_are_named() {
    let tensor = |shape: &[usize]| swinq_model::HostTensor::new(shape, vec![0.5; shape.iter().product()]);
    let mut vit: StateDict = [
        ("cls_token", tensor(&[1, 1, 6])),
        ("pos_embed", tensor(&[1, 5, 6])),
        ("patch_embed.proj.weight", tensor(&[6, 3, 4, 4])),
        ("blocks.0.attn.qkv.weight", tensor(&[18, 6])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into();
    let message = load_written(&vit).unwrap_err().to_string();
    assert!(message.contains("cls_token") && message.contains("a ViT or DeiT, not a Swin"), "{message}");
    vit.insert("dist_token".to_owned(), tensor(&[1, 1, 6]));
    assert!(load_written(&vit).unwrap_err().to_string().contains("a distilled DeiT"));

    for (depths, words) in [
        (
            "[1, 18]",
            "2 blocks in stage2, but the configuration small has 18 (MODEL.SWIN.DEPTHS); the first tensor",
        ),
        (
            "[3, 1]",
            "1 block in stage1, but the configuration small has 3; 2 blocks in stage2, but the configuration small has 1",
        ),
    ] {
        let message = refusal("ms.pth", &options_with(&[("MODEL.SWIN.DEPTHS", depths)]));
        // The cause comes first, and then names.
        let cause = format!("the checkpoint has {words}");
        assert!(message.starts_with(&cause) && message.len() < 300, "{message}");
        let message = refusal("torchvision.pth", &options_with(&[("MODEL.SWIN.DEPTHS", depths)]));
        assert!(message.contains(words) && message.contains("(`features."), "{message}");
    }
    let opts =
        [("DATA.IMG_SIZE", "48"), ("MODEL.SWIN.DEPTHS", "[1, 2, 1]"), ("MODEL.SWIN.NUM_HEADS", "[2, 3, 6]")];
    let message = refusal("ms.pth", &options_with(&opts));
    assert!(message.contains("the checkpoint has 2 stages, but the configuration small has 3"), "{message}");
}

/// Masks of Microsoft's code have the windows of the images of the training.
#[test]
fn a_mask_for_images_of_another_size_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let mut tensors = expected("expected.safetensors");
    let remarks = |tensors: &StateDict, size: &str| {
        write(tensors, &path);
        load_float_with_remarks(&path, &options_with(&[("DATA.IMG_SIZE", size)])).unwrap().remarks.join("\n")
    };
    let mask = |windows: usize| swinq_model::HostTensor::new([windows, 9, 9], vec![0.0; 81 * windows]);
    tensors.insert("layers.1.blocks.1.attn_mask".to_owned(), mask(4));
    let found = remarks(&tensors, "24");
    let wanted = "`layers.1.blocks.1.attn_mask` is of 4 windows, and images of 24x24 have 1 in stage2: it was saved for \
                  images of 48x48 (DATA.IMG_SIZE)";
    assert!(found.contains(wanted), "{found}");
    assert!(!remarks(&tensors, "48").contains("attn_mask"));
    let other = swinq_model::HostTensor::new([1, 16, 16], vec![0.0; 256]);
    tensors.insert("layers.1.blocks.1.attn_mask".to_owned(), other);
    let found = remarks(&tensors, "24");
    assert!(found.contains("is of windows of 16 tokens, and those of the model have 9"), "{found}");
}

/// Names of tensors are somebody else's text, and messages go to terminals.
#[test]
fn control_characters_in_names_are_escaped() {
    let mut tensors = expected("expected.safetensors");
    let value = tensors["norm.bias"].clone();
    tensors.insert("x\u{1b}]0;title\u{7}\n\u{9b}2J".to_owned(), value);
    let message = load_written(&tensors).unwrap_err().to_string();
    assert!(
        message.contains(r"x\u{1b}]0;title\u{7}") && !message.contains(['\u{1b}', '\u{7}', '\u{9b}']),
        "{message}"
    );
}

#[test]
fn every_missing_extra_or_not_finite_tensor_is_named() {
    let whole = expected("expected.safetensors");
    for name in whole.keys() {
        let mut tensors = whole.clone();
        tensors.remove(name);
        let message = load_written(&tensors).unwrap_err().to_string();
        assert!(message.contains(name), "{name}: {message}");
        let mut tensors = whole.clone();
        tensors.get_mut(name).unwrap().data[0] = f32::NAN;
        let message = load_written(&tensors).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("NaN"), "{name}: {message}");
    }
    let mut tensors = whole.clone();
    tensors.insert("head2.weight".to_owned(), tensors["head.weight"].clone());
    assert!(load_written(&tensors).unwrap_err().to_string().contains("head2.weight"));
    let mut tensors = whole;
    tensors.insert("layers.0.blocks.0.attn.logit_scale".to_owned(), tensors["head.weight"].clone());
    let message = load_written(&tensors).unwrap_err().to_string();
    assert!(
        message.contains("MODEL.TYPE") && message.contains("is a Swin V2, but the configuration"),
        "{message}"
    );
}

#[test]
fn ranges_of_faster_transformer_become_sites() {
    let config = config_with(&[]).config;
    let ranges = import_ft_amax(&fixture("ft_calib.pth"), &config).unwrap();
    let without = |site: &Site| {
        let name = site.to_string();
        name.starts_with("patch_embed.") || name.starts_with("head.")
    };
    for site in all_sites(&config) {
        assert_eq!(ranges.contains_key(&site), !without(&site), "{} ({site})", ft_key(site));
    }
    for (site, amax) in [
        ("layers.1.blocks.1.mlp.fc2.input", 1.0),
        ("layers.0.downsample.reduction.output", 3.0),
        ("layers.1.blocks.0.attn.v", 6.0),
        ("layers.1.blocks.0.attn.probs", 7.0),
        ("layers.1.blocks.0.mlp.add.shortcut", 12.0),
    ] {
        assert_eq!(ranges[&site.parse().unwrap()], amax, "{site}");
    }
    let message = import_ft_amax(&fixture("ms.pth"), &config).unwrap_err().to_string();
    assert!(message.contains("no calibrated ranges"), "{message}");
    // Ranges of the inputs of norms have no site; a file with no others has no ranges.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("norms.safetensors");
    let name = "layers.0.blocks.0.layernorm_input1_quantizer._amax".to_owned();
    write(&StateDict::from([(name, swinq_model::HostTensor::new([1], vec![1.0]))]), &path);
    let message = import_ft_amax(&path, &config).unwrap_err().to_string();
    assert!(message.contains("no calibrated ranges"), "{message}");
    let smaller = config_with(&[("MODEL.SWIN.DEPTHS", "[1, 1]")]).config;
    let message = import_ft_amax(&fixture("ft_calib.pth"), &smaller).unwrap_err().to_string();
    assert!(message.contains("layers.1.blocks.1"), "{message}");
}

#[test]
fn impossible_ranges_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config_with(&[]).config;
    let import = |site: &str, values: &[f32]| {
        let path = folder.path().join("calib.safetensors");
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let key = ft_key(site.parse().unwrap());
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![values.len()], &data).unwrap();
        safetensors::serialize_to_file([(key, view)], None, &path).unwrap();
        import_ft_amax(&path, &config)
    };
    for values in [&[0.0][..], &[-1.0], &[f32::NAN], &[f32::INFINITY], &[1.0, 2.0], &[]] {
        let message = import("layers.0.blocks.0.mlp.fc1.input", values).unwrap_err().to_string();
        assert!(message.contains("layers.0.blocks.0.mlp.fc1"), "{values:?}: {message}");
    }
    let weight = "layers.0.blocks.0.mlp.fc1.weight";
    assert_eq!(import(weight, &[1.0, 3.0, 2.0]).unwrap()[&weight.parse().unwrap()], 3.0);
    assert!(import(weight, &[1.0, f32::NAN, 3.0]).is_err());
}

#[test]
fn quantized_files_are_detected_by_their_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q.safetensors");
    let header = r#"{"__metadata__":{"swinq":"{}"}}"#;
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    assert!(is_quantized_file(&path));
    let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
    assert!(message.contains("format_version"), "{message}");
    for name in ["expected.safetensors", "ms.pth", "hf", "absent", "timm/config.json"] {
        assert!(!is_quantized_file(fixture(name)), "{name}");
    }
    let mut lie = fs::read(&path).unwrap();
    lie[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    fs::write(&path, lie).unwrap();
    assert!(!is_quantized_file(&path));
}

/// A file in this program's own format is a float checkpoint if it quantizes nothing.
#[test]
fn own_files_are_float_models_where_every_site_is_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.safetensors");
    let float = random_model(&config_with(&[]), 1);
    let mut own = QuantizedModel::from_float(float.clone()).unwrap();
    own.save(&path).unwrap();
    let read = load_float(&path, &LoadOptions::default()).unwrap();
    assert_eq!((&read.tensors, &read.config), (&float.tensors, &float.config));
    // The source is this file, not the origin of the model in it.
    assert_eq!((read.source.file.as_str(), read.source.dialect.as_str()), (path.to_str().unwrap(), "swinq"));
    assert_eq!(read.source.sha256.len(), 64);
    let rule =
        Rule { pattern: "**.probs".to_owned(), enable: Some(true), kind: Some(Kind::U8), ..Rule::default() };
    own.recipe = own.recipe.with_rule(rule);
    for (site, spec) in own.recipe.resolve(&own.config).unwrap() {
        own.sites.get_mut(&site).unwrap().spec = spec;
    }
    own.save(&path).unwrap();
    let message = load_float(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("is a quantized checkpoint") && message.contains("swinq inspect"), "{message}");
}

#[test]
fn the_trained_micro_swin_loads() {
    let Some(data) = std::env::var_os("SWINQ_DATA") else {
        eprintln!("SKIPPED the_trained_micro_swin_loads: SWINQ_DATA is not set");
        return;
    };
    let folder = Path::new(&data).join("models/swin_micro_cifar10");
    let cfg = load_config(folder.join("cfg.yaml").to_str().unwrap(), &[]).unwrap();
    let options = LoadOptions { cfg: Some(cfg), ..LoadOptions::default() };
    let model = load_float(&folder.join("model.safetensors"), &options).unwrap();
    assert_eq!((model.source.dialect.as_str(), model.config.num_classes), ("timm", 10));
    let parameters: usize = model.tensors.values().map(|t| t.data.len()).sum();
    assert_eq!((parameters as f64 / 1e4).round(), 93.0);
}
