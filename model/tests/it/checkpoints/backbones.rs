//! One small backbone in the names of every library loads to the same parameters, also from the file of a
//! larger model.

use serde_json::json;
use swinq_model::{HostTensor, Loaded, PositionSizes, StageOutput, SwinConfig, SwinVersion, Task};

use super::*;

/// The backbone: three stages with norms.
fn config() -> SwinConfig {
    let config = SwinConfig {
        name: "small".to_owned(),
        image_size: Size::square(48),
        embed_dim: 6,
        depths: vec![2, 1, 1],
        num_heads: vec![1, 2, 3],
        window_size: Size::square(3).into(),
        mlp_ratio: 2.0,
        window_policy: WindowPolicy::Detection,
        ..SwinConfig::default()
    };
    config.into_backbone((0..3).map(|stage| StageOutput::of_stage(stage, true)).collect())
}

/// Its parameters in our names, which are those of Microsoft's detectors.
fn ours() -> StateDict {
    let cfg = LoadedConfig { config: config(), ..config_with(&[]) };
    random_model(&cfg, 3).tensors
}

/// `tensors` under other names.
fn renamed(tensors: &StateDict, rename: impl Fn(&str) -> String) -> StateDict {
    tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect()
}

fn without_norms(mut tensors: StateDict) -> StateDict {
    tensors.retain(|name, _| !(0..3).any(|stage| name.starts_with(&format!("norm{stage}."))));
    tensors
}

/// timm: merging belongs to the next stage. `layers` stands before the number of a stage.
fn timm(layers: &str) -> StateDict {
    let named = |name: &str| {
        let name = (0..2).rev().fold(name.to_owned(), |name, stage| {
            name.replace(&format!("layers.{stage}.downsample"), &format!("layers.{}.downsample", stage + 1))
        });
        name.replacen("layers.", layers, 1)
    };
    renamed(&without_norms(ours()), named)
}

/// transformers, in the names of files or of the modules of version 5; `norms` names the norm of a stage.
fn transformers(trunk: &str, modules: bool, norms: fn(usize) -> String) -> StateDict {
    let mut split = StateDict::new();
    for (name, tensor) in ours() {
        let Some((block, end)) = name.split_once(".attn.qkv.") else {
            split.insert(name, tensor);
            continue;
        };
        let rows = tensor.shape[0] / 3;
        let values = tensor.data.len() / 3;
        for (index, part) in ["query", "key", "value"].iter().enumerate() {
            let part = match modules {
                true => format!("{}_proj", &part[..1]),
                false => format!("self.{part}"),
            };
            let shape = [&[rows], &tensor.shape[1..]].concat();
            let data = tensor.data[index * values..][..values].to_vec();
            split.insert(format!("{block}.attention.{part}.{end}"), HostTensor::new(shape, data));
        }
    }
    let pairs = match modules {
        true => [
            (".attn.proj.", ".attention.o_proj."),
            (".attn.relative", ".attention.relative_position_bias.relative"),
            (".mlp.fc1.", ".mlp.fc1."),
            (".mlp.fc2.", ".mlp.fc2."),
        ],
        false => [
            (".attn.proj.", ".attention.output.dense."),
            (".attn.relative", ".attention.self.relative"),
            (".mlp.fc1.", ".intermediate.dense."),
            (".mlp.fc2.", ".output.dense."),
        ],
    };
    renamed(&split, |name| {
        if let Some((stage, end)) = name.strip_prefix("norm").and_then(|rest| rest.split_once('.')) {
            return format!("{}.{end}", norms(stage.parse().unwrap()));
        }
        let mut name = name.to_owned();
        let of_block = [(".norm1.", ".layernorm_before."), (".norm2.", ".layernorm_after.")];
        for (from, to) in pairs.iter().chain(&of_block) {
            name = name.replace(from, to);
        }
        let name = name.replace("patch_embed.proj.", "embeddings.patch_embeddings.projection.");
        let name = name.replace("patch_embed.norm.", "embeddings.norm.");
        format!("{trunk}{}", name.replacen("layers.", "encoder.layers.", 1))
    })
}

/// `tensor`, whose columns are those of our merging, with the columns of a merge by `torch.nn.Unfold`.
fn unfolded(tensor: &HostTensor) -> HostTensor {
    let columns = *tensor.shape.last().unwrap();
    let channels = columns / 4;
    let row = |row: &[f32]| {
        let of = |column: usize| row[[0, 2, 1, 3][column % 4] * channels + column / 4];
        (0..columns).map(of).collect::<Vec<f32>>()
    };
    HostTensor::new(tensor.shape.clone(), tensor.data.chunks(columns).flat_map(row).collect())
}

/// OpenMMLab, with the columns of merging as `merge` makes them.
fn openmmlab(merge: fn(&HostTensor) -> HostTensor) -> StateDict {
    let named = |name: &str| {
        let pairs = [
            ("patch_embed.proj.", "patch_embed.projection."),
            (".attn.", ".attn.w_msa."),
            (".mlp.fc1.", ".ffn.layers.0.0."),
            (".mlp.fc2.", ".ffn.layers.1."),
            ("layers.0.blocks", "stages.0.blocks"),
        ];
        let name = pairs.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        match name.strip_prefix("layers.") {
            Some(rest) => format!("backbone.stages.{rest}"),
            None => format!("backbone.{name}"),
        }
    };
    let merged = ours().into_iter().map(|(name, tensor)| {
        let tensor = if name.contains(".downsample.") { merge(&tensor) } else { tensor };
        (name, tensor)
    });
    renamed(&merged.collect(), named)
}

fn torchvision() -> StateDict {
    renamed(&without_norms(ours()), |name| {
        let name = name.replace("patch_embed.proj.", "features.0.0.");
        let name = name.replace("patch_embed.norm.", "features.0.2.");
        let name = name.replace(".mlp.fc1.", ".mlp.0.").replace(".mlp.fc2.", ".mlp.3.");
        (0..3).fold(name, |name, stage| {
            let name =
                name.replace(&format!("layers.{stage}.blocks."), &format!("features.{}.", 2 * stage + 1));
            name.replace(&format!("layers.{stage}.downsample."), &format!("features.{}.", 2 * stage + 2))
        })
    })
}

fn prefixed(prefix: &str, tensors: StateDict) -> StateDict {
    renamed(&tensors, |name| format!("{prefix}{name}"))
}

fn one() -> HostTensor {
    HostTensor::new([1], vec![1.0])
}

fn options() -> LoadOptions {
    LoadOptions { task: Some(Task::Features), ..LoadOptions::default() }
}

fn load(tensors: &StateDict, options: &LoadOptions) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    write(tensors, &path);
    load_float_with_remarks(&path, options).map_err(|error| error.to_string())
}

fn refusal(tensors: &StateDict, options: &LoadOptions) -> String {
    load(tensors, options).expect_err("the file is refused")
}

/// Names and norms of the outputs.
fn outputs(config: &SwinConfig) -> Vec<(&str, bool)> {
    config.outputs.iter().map(|output| (output.name.as_str(), output.norm)).collect()
}

/// A configuration that states outputs is that of a backbone, and its outputs go before those that the file
/// or the folder says.
#[test]
fn a_configuration_states_the_outputs() {
    let config = SwinConfig { task: Task::Classification, outputs: Vec::new(), num_classes: 10, ..config() };
    let cfg =
        |stages: Option<Vec<usize>>| LoadedConfig { config: config.clone(), stages, ..config_with(&[]) };
    let with = |stages| LoadOptions { cfg: Some(cfg(stages)), ..LoadOptions::default() };
    let found = load(&ours(), &with(Some(vec![1, 2]))).unwrap();
    assert_eq!(outputs(&found.model.config), [("stage2", true), ("stage3", true)]);
    assert!(found.remarks.iter().any(|remark| remark.contains("norm0")), "{:?}", found.remarks);
    let asked = LoadOptions { outputs: Some(vec![0]), ..with(Some(vec![1, 2])) };
    assert_eq!(outputs(&load(&ours(), &asked).unwrap().model.config), [("stage1", true)]);
    let message = refusal(&ours(), &LoadOptions { task: Some(Task::Classification), ..with(Some(vec![1])) });
    assert!(message.contains("backbone without a head"), "{message}");
    let opts = vec![("MODEL.SWIN.OUT_FEATURES".to_owned(), "[stage1]".to_owned())];
    let message = refusal(&ours(), &LoadOptions { opts, ..options() });
    assert!(message.contains("MODEL.SWIN.OUT_FEATURES") && message.contains("--outputs"), "{message}");

    let swin = json!({"model_type": "swin", "embed_dim": 6, "depths": [2, 1, 1], "num_heads": [1, 2, 3], "window_size": 3,
                      "mlp_ratio": 2.0, "image_size": 48, "out_features": ["stage1", "stage3"]});
    let host = json!({"model_type": "mask2former", "backbone_config": swin});
    let by_name = |stage: usize| format!("model.encoder.hidden_states_norms.stage{}", stage + 1);
    let folder = hf_folder(&host, &transformers("model.encoder.", false, by_name));
    let read = |options: &LoadOptions| load_float(folder.path(), options).unwrap().config;
    assert_eq!(outputs(&read(&with(Some(vec![1])))), [("stage2", true)]);
    let silent = LoadOptions { task: Some(Task::Features), ..with(None) };
    assert_eq!(outputs(&read(&silent)), [("stage1", true), ("stage3", true)]);
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_eq!(outputs(&read(&with(Some(vec![1])))), [("stage2", true)]);
}

#[test]
fn every_dialect_gives_the_same_backbone() {
    use WindowPolicy::{Detection, HuggingFace, Microsoft, Mmpretrain, Pad, Timm};
    let by_name = |stage: usize| format!("hidden_states_norms.stage{}", stage + 1);
    let by_number = |stage: usize| format!("hidden_states_norms.{stage}");
    let no_norm = |tensors: StateDict, mark: &str| {
        let mut tensors = tensors;
        tensors.retain(|name, _| !name.contains(mark));
        tensors
    };
    let cases = [
        ("microsoft", Detection, true, ours()),
        ("microsoft", Detection, false, without_norms(ours())),
        ("old-timm", Microsoft, false, prefixed("pretrained.model.", without_norms(ours()))),
        ("timm", Timm, false, timm("layers.")),
        ("timm", Timm, false, timm("layers_")),
        ("hf", Detection, true, transformers("", false, by_name)),
        ("hf", Detection, true, transformers("swin.", true, by_name)),
        ("hf", Detection, true, transformers("model.", false, by_number)),
        ("hf", Detection, true, transformers("model.", true, by_number)),
        ("hf", HuggingFace, false, no_norm(transformers("", false, by_name), "hidden")),
        ("openmmlab", Detection, true, openmmlab(unfolded)),
        ("openmmlab", Mmpretrain, false, no_norm(openmmlab(unfolded), "backbone.norm")),
        ("torchvision", Pad, false, torchvision()),
    ];
    for (index, (dialect, policy, norms, tensors)) in cases.into_iter().enumerate() {
        for prefix in
            ["", "module.", "model.pixel_level_module.encoder.", "model.backbone.conv_encoder.model."]
        {
            let mut file = prefixed(prefix, tensors.clone());
            if !prefix.is_empty() {
                file.insert("neck.weight".to_owned(), one());
            }
            let case = format!("case {index}, {dialect} under `{prefix}`");
            let loaded = load(&file, &options()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let wanted = if norms { ours() } else { without_norms(ours()) };
            assert_eq!(loaded.model.tensors, wanted, "{case}");
            assert_eq!(loaded.model.source.dialect, dialect, "{case}");
            let found = loaded.model.config;
            assert_eq!(found.window_policy, policy, "{case}");
            assert_eq!(outputs(&found), ["stage1", "stage2", "stage3"].map(|name| (name, norms)), "{case}");
            let shapes = SwinConfig { outputs: found.outputs.clone(), window_policy: policy, ..config() };
            assert_eq!(SwinConfig { name: "small".to_owned(), ..found }, shapes, "{case}");
            let named = loaded.remarks.iter().any(|remark| remark.contains("left out: neck.weight"));
            assert_eq!(named, !prefix.is_empty(), "{case}: {:?}", loaded.remarks);
        }
    }
}

#[test]
fn another_order_of_merging_is_another_network() {
    let loaded = load(&openmmlab(HostTensor::clone), &options()).unwrap();
    assert_ne!(loaded.model.tensors, ours());
}

#[test]
fn a_classifier_serves_as_a_backbone() {
    let files = [
        ("ms.pth", WindowPolicy::Detection),
        ("timm", WindowPolicy::Timm),
        ("hf", WindowPolicy::Detection),
        ("torchvision.pth", WindowPolicy::Pad),
        ("v2/timm", WindowPolicy::Timm),
        ("v2/hf", WindowPolicy::HuggingFaceV2),
    ];
    for (name, policy) in files {
        let loaded =
            load_float_with_remarks(&fixture(name), &options()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let folder = if name.starts_with("v2") { "v2/expected.safetensors" } else { "expected.safetensors" };
        let mut wanted = expected(folder);
        wanted.retain(|name, _| !name.starts_with("norm.") && !name.starts_with("head."));
        assert_eq!(loaded.model.tensors, wanted, "{name}");
        let config = &loaded.model.config;
        assert_eq!(
            (config.window_policy, config.task, config.num_classes),
            (policy, Task::Features, 0),
            "{name}"
        );
        // transformers writes `out_features` into every file.
        let all = [("stage1", false), ("stage2", false)];
        assert_eq!(outputs(config), &all[usize::from(name.ends_with("hf"))..], "{name}");
        assert_eq!((&loaded.model.labels, &loaded.model.labels_from), (&None, &None));
        let named = |remark: &String| remark.contains("final norm and head are left out");
        assert!(loaded.remarks.iter().any(named), "{:?}", loaded.remarks);
    }
    // The final norm of mmpretrain has the name of an output's norm.
    let loaded = load_float_with_remarks(&fixture("mmpretrain/v1.pth"), &options());
    let loaded = loaded.unwrap().model;
    assert_eq!((outputs(&loaded.config).len(), loaded.config.window_policy), (3, WindowPolicy::Mmpretrain));
    assert!(loaded.config.outputs.iter().all(|output| !output.norm));
}

#[test]
fn a_configuration_of_a_classifier_serves_a_backbone() {
    let cfg = Some(config_with(&[("MODEL.NUM_CLASSES", "77")]));
    let loaded = load_float(&fixture("ms.pth"), &LoadOptions { cfg, ..options() }).unwrap();
    assert_eq!((loaded.config.num_classes, loaded.config.name.as_str()), (0, "small"));
}

#[test]
fn stages_without_an_output_are_left_out() {
    let chosen = LoadOptions { outputs: Some(vec![1]), ..options() };
    let loaded = load(&ours(), &chosen).unwrap();
    assert_eq!(outputs(&loaded.model.config), [("stage2", true)]);
    let mut wanted = ours();
    let left_out = ["layers.2.", "layers.1.downsample.", "norm0.", "norm2."];
    wanted.retain(|name, _| !left_out.iter().any(|module| name.starts_with(module)));
    assert_eq!(loaded.model.tensors, wanted);
    for words in ["behind the last output (stage2) are left out", "of norms of stages that are no outputs"] {
        assert!(loaded.remarks.iter().any(|remark| remark.contains(words)), "{words}: {:?}", loaded.remarks);
    }
    // The norms tell the outputs.
    let mut two = ours();
    two.retain(|name, _| !name.starts_with("norm1.") && !name.starts_with("norm2."));
    assert_eq!(outputs(&load(&two, &options()).unwrap().model.config), [("stage1", true)]);
    for (outputs, word) in [(vec![3], "stage4 is no stage of"), (vec![], "at least one stage")] {
        let message = refusal(&ours(), &LoadOptions { outputs: Some(outputs), ..options() });
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn hostile_files_are_refused_by_name() {
    let mut two = prefixed("student.", ours());
    two.extend(prefixed("teacher.", ours()));
    let message = refusal(&two, &options());
    assert!(message.contains("`student.` and `teacher.`; pass --prefix student."), "{message}");
    let teacher = LoadOptions { prefix: Some("teacher".to_owned()), ..options() };
    assert_eq!(load(&two, &teacher).unwrap().model.tensors, ours());
    let nobody = LoadOptions { prefix: Some("nobody".to_owned()), ..options() };
    assert!(refusal(&two, &nobody).contains("no backbone under `nobody.`"));

    let with = |name: &str, shape: &[usize]| {
        let mut tensors = prefixed("backbone.", ours());
        let tensor = HostTensor::new(shape, vec![0.5; shape.iter().product()]);
        tensors.insert(format!("backbone.{name}"), tensor);
        refusal(&tensors, &options())
    };
    assert!(with("norm1.weight", &[7]).contains("norm1.weight"));
    for name in ["norm5.weight", "gamma", "layers.0.blocks.0.attn.extra", "layers.7.blocks.0.norm1.weight"] {
        let message = with(name, &[6]);
        assert!(
            message.contains(name) || message.contains("DEPTHS [2, 1, 1, 0, 0, 0, 0, 1]"),
            "{name}: {message}"
        );
    }
    assert!(with("patch_embed.proj.weight", &[6, 3, 2, 4, 4]).contains("Video Swin"));
    assert!(with("layers.0.blocks.0.attn.meta_mlp.fc1.weight", &[6]).contains("V2-CR"));
    let foreign = |name: &str| refusal(&StateDict::from([(name.to_owned(), one())]), &options());
    assert!(foreign("layers.0.residual_group.blocks.0.norm1.weight").contains("SwinIR"));
    assert!(foreign("swinViT.layers1.0.blocks.0.norm1.weight").contains("SwinUNETR"));
    assert!(foreign("audio_model.audio_encoder.batch_norm.weight").contains("CLAP"));
    assert!(foreign("backbone.conv1.weight").contains("no backbone"));
    // A whole network beside the marks of a CLAP.
    for (prefix, mark) in
        [("audio_model.audio_encoder.", "batch_norm.weight"), ("", "spectrogram_extractor.stft.w")]
    {
        let mut clap = prefixed(prefix, ours());
        clap.insert(format!("{prefix}{mark}"), one());
        assert!(refusal(&clap, &options()).contains("CLAP"), "{prefix}");
    }
    // A classifier needs its file for itself, and its head.
    let classifier = LoadOptions::default();
    assert!(refusal(&ours(), &classifier).contains("--task features"));
}

/// The prefix of one backbone may be the beginning of another's, or nothing.
#[test]
fn one_of_nested_backbones_is_chosen_by_its_prefix() {
    for (outer, message) in [("model.", "--prefix model."), ("", "--prefix ''")] {
        let inner = format!("{outer}ema.");
        let mut both = prefixed(outer, ours());
        both.extend(prefixed(&inner, ours()));
        let text = refusal(&both, &options());
        assert!(text.contains(message), "{text}");
        for prefix in [outer, &inner] {
            let chosen = LoadOptions { prefix: Some(prefix.to_owned()), ..options() };
            assert_eq!(load(&both, &chosen).unwrap().model.tensors, ours(), "`{prefix}`");
        }
    }
}

/// Two libraries' names of one backbone in a file have the same prefix, which therefore chooses none.
#[test]
fn one_of_two_namings_under_one_prefix_is_chosen_by_its_dialect() {
    let mut both = openmmlab(unfolded);
    assert!(both.keys().any(|name| name.starts_with("backbone.patch_embed.")));
    both.extend(prefixed("backbone.", ours()));
    let text = refusal(&both, &options());
    let advice = "has 2 backbones under `backbone.`, in the names of microsoft and openmmlab; pass --dialect microsoft or \
                  another of them";
    assert!(text.contains(advice), "{text}");
    let alone = load(&openmmlab(unfolded), &options()).unwrap().model;
    for (dialect, wanted) in [(Dialect::Microsoft, ours()), (Dialect::OpenMmLab, alone.tensors)] {
        let found = load(&both, &LoadOptions { dialect: Some(dialect), ..options() }).unwrap();
        assert_eq!((&found.model.tensors, found.model.source.dialect), (&wanted, dialect.to_string()));
        assert!(found.remarks.iter().any(|remark| remark.contains("left out")), "{:?}", found.remarks);
    }
}

/// A detector may have a module with the name of a classifier's head.
#[test]
fn another_head_leaves_the_norm_of_the_last_stage() {
    let mut pose = openmmlab(unfolded);
    pose.retain(|name, _| !name.contains("norm0.") && !name.contains("backbone.norm1."));
    pose.insert("head.final_layer.weight".to_owned(), one());
    let found = load(&pose, &options()).unwrap().model.config;
    assert_eq!(outputs(&found), [("stage3", true)]);
    assert_eq!(found.window_policy, WindowPolicy::Detection);
}

#[test]
fn outputs_of_a_classifier_are_refused() {
    let classifier = LoadOptions { outputs: Some(vec![1]), ..LoadOptions::default() };
    assert!(refusal(&ours(), &classifier).contains("add --task features"));
}

/// A folder of transformers with this `config.json`.
fn hf_folder(config: &serde_json::Value, tensors: &StateDict) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    write(tensors, &folder.path().join("model.safetensors"));
    folder
}

#[test]
fn folders_of_transformers_describe_their_backbones() {
    let by_name = |stage: usize| format!("model.encoder.hidden_states_norms.stage{}", stage + 1);
    let swin = json!({"model_type": "swin", "embed_dim": 6, "depths": [2, 1, 1], "num_heads": [1, 2, 3], "window_size": 3,
                      "mlp_ratio": 2.0, "image_size": 48, "out_features": ["stage1", "stage3"]});
    let mut tensors = transformers("model.encoder.", false, by_name);
    tensors.insert("model.decoder.weight".to_owned(), one());
    let host =
        |backbone: &serde_json::Value| json!({"model_type": "mask2former", "backbone_config": backbone});
    let folder = hf_folder(&host(&swin), &tensors);
    let read = || load_float_with_remarks(folder.path(), &LoadOptions::default());
    let model = read().unwrap().model;
    assert_eq!(outputs(&model.config), [("stage1", true), ("stage3", true)]);
    assert_eq!(
        (&*model.transform.mean, model.transform.size),
        (&[0.485, 0.456, 0.406][..], Size::square(48))
    );
    let old = json!({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": 800, "max_size": 1333,
                     "feature_extractor_type": "MaskFormerFeatureExtractor"});
    fs::write(folder.path().join("preprocessor_config.json"), old.to_string()).unwrap();
    assert_eq!(read().unwrap().model.transform.mean, [0.1, 0.2, 0.3]);
    let new = json!({"image_processor": {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}});
    fs::write(folder.path().join("processor_config.json"), new.to_string()).unwrap();
    assert_eq!(read().unwrap().model.transform.mean, [0.5, 0.5, 0.5]);

    fs::remove_file(folder.path().join("processor_config.json")).unwrap();
    let divisor = |processor: serde_json::Value| {
        fs::write(folder.path().join("preprocessor_config.json"), processor.to_string()).unwrap();
        read().map(|read| read.model.transform.size_divisor).map_err(|error| error.to_string())
    };
    for (class, field, value, expected) in [
        ("Mask2FormerImageProcessor", "size_divisor", json!(32), Some(32)),
        ("MaskFormerFeatureExtractor", "size_divisibility", json!(64), Some(64)),
        ("MaskFormerImageProcessor", "size_divisor", json!(0), None),
        ("MaskFormerImageProcessor", "size_divisor", json!(null), None),
        ("ViTImageProcessor", "size_divisor", json!(32), None),
    ] {
        assert_eq!(divisor(json!({"image_processor_type": class, field: value})), Ok(expected), "{class}");
    }
    for value in [json!(4097), json!(-1), json!("32"), json!(1.5)] {
        let message =
            divisor(json!({"image_processor_type": "Mask2FormerImageProcessor", "size_divisor": value}));
        assert!(
            message.as_ref().is_err_and(|message| message.contains("size_divisor")),
            "{value}: {message:?}"
        );
    }

    let changed = |field: &str, value: serde_json::Value| {
        let mut swin = swin.clone();
        swin[field] = value;
        let folder = hf_folder(&host(&swin), &tensors);
        load_float(folder.path(), &LoadOptions::default()).map_err(|error| error.to_string())
    };
    for (field, value, word) in [
        ("out_features", json!(["stage4"]), "`stage4` is none of the stages stage1 to stage3"),
        ("out_features", json!(["stem"]), "`stem`"),
        ("out_features", json!([]), "at least one stage"),
        ("model_type", json!("resnet"), "has no Swin"),
        ("num_kv_heads", json!([1, 1, 1]), "Surya"),
    ] {
        let message = changed(field, value).unwrap_err();
        let classifier = field == "model_type" && message.contains("neither");
        assert!(message.contains(word) || classifier, "{field}: {message}");
    }
    let model = changed("out_features", json!(null)).unwrap();
    assert_eq!(outputs(&model.config).len(), 3);
    let asked = LoadOptions { task: Some(Task::Classification), ..LoadOptions::default() };
    let message = load_float(folder.path(), &asked).unwrap_err().to_string();
    assert!(message.contains("--task features"), "{message}");
}

/// The configuration of [`ours`] with an absolute position embedding, for images of `size`.
fn of_places(size: &str) -> LoadedConfig {
    config_with(&[
        ("DATA.IMG_SIZE", size),
        ("MODEL.SWIN.APE", "True"),
        ("MODEL.SWIN.DEPTHS", "[2, 1, 1]"),
        ("MODEL.SWIN.NUM_HEADS", "[1, 2, 3]"),
        ("MODEL.SWIN.MLP_RATIO", "2.0"),
    ])
}

#[test]
fn an_embedding_of_places_is_stored_as_a_map() {
    let mut tensors = ours();
    let places = 4 * 5;
    let data: Vec<f32> = (0..6 * places).map(|value| value as f32).collect();
    tensors.insert("absolute_pos_embed".to_owned(), HostTensor::new([1, 6, 4, 5], data));
    let model = load(&tensors, &options()).unwrap().model;
    let stored = &model.tensors["absolute_pos_embed"];
    assert_eq!((&*stored.shape, &stored.data[..3]), (&[1, 20, 6][..], &[0.0, 20.0, 40.0][..]));
    assert_eq!(model.config.image_size, Size::new(16, 20));
    // Detectors interpolate it; the file says so, and so does a file of this program.
    assert_eq!(model.config.ape_sizes, PositionSizes::Bicubic);
    assert!(model.config.grids(Size::new(20, 16)).is_ok());
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.safetensors");
    QuantizedModel::from_float(model.clone()).unwrap().save(&own).unwrap();
    assert_eq!(load_float(&own, &LoadOptions::default()).unwrap().config, model.config);
    // OpenMMLab adds a row for each token, and nothing says how to interpolate them.
    let stored = HostTensor::new([1, 20, 6], stored.data.clone());
    let rows = tensors.clone().into_iter().chain([("absolute_pos_embed".to_owned(), stored)]).collect();
    let fixed =
        load(&rows, &LoadOptions { cfg: Some(of_places("[16, 20]")), ..options() }).unwrap().model.config;
    let message = fixed.grids(Size::new(20, 16)).unwrap_err().to_string();
    assert!(message.contains("absolute_pos_embed) for images of 16x20 only"), "{message}");
    let turned = of_places("[20, 16]");
    let message = refusal(&tensors, &LoadOptions { cfg: Some(turned), ..options() });
    assert!(message.contains("has 4x5 places"), "{message}");
}

#[test]
fn own_files_describe_backbones_and_what_was_made_from_a_file_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (stored, own) = (folder.path().join("stored.safetensors"), folder.path().join("own.safetensors"));
    write(&ours(), &stored);
    let float = load_float(&stored, &LoadOptions { outputs: Some(vec![0, 1]), ..options() }).unwrap();
    QuantizedModel::from_float(float.clone()).unwrap().save(&own).unwrap();
    let again = load_float(&own, &LoadOptions::default()).unwrap();
    assert_eq!((&again.config, &again.tensors), (&float.config, &float.tensors));
    // The file beside it neither makes the file a backbone nor chooses its outputs.
    let refused = load_float(&stored, &LoadOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("--task features"), "{refused}");
    let all = load_float(&stored, &options()).unwrap().config;
    assert_eq!(outputs(&all), [("stage1", true), ("stage2", true), ("stage3", true)]);
    let fewer = LoadOptions { outputs: Some(vec![0]), ..LoadOptions::default() };
    assert_eq!(outputs(&load_float(&own, &fewer).unwrap().config), [("stage1", true)]);
    let classifier = LoadOptions { task: Some(Task::Classification), ..LoadOptions::default() };
    assert!(load_float(&own, &classifier).unwrap_err().to_string().contains("is a backbone"));
    assert_eq!(float.config.version, SwinVersion::V1);
}

/// A large model is saved in shards: the backbone may lie in several, beside other tensors, and in a folder
/// or as an index.
#[test]
fn a_backbone_is_found_in_shards() {
    let by_name = |stage: usize| format!("hidden_states_norms.stage{}", stage + 1);
    let backbone = transformers("", false, by_name);
    let mut tensors = prefixed("model.pixel_level_module.encoder.", backbone.clone());
    let others = ["model.decoder.weight", "class_predictor.bias"].map(|name| (name.to_owned(), one()));
    tensors.extend(others);
    let swin = json!({"model_type": "swin", "embed_dim": 6, "depths": [2, 1, 1], "num_heads": [1, 2, 3], "window_size": 3,
                      "mlp_ratio": 2.0, "image_size": 48, "out_features": ["stage2", "stage3"]});
    let host = json!({"model_type": "mask2former", "backbone_config": swin});
    let whole = hf_folder(&host, &tensors);
    let wanted = load_float(whole.path(), &LoadOptions::default()).unwrap();

    let folder = hf_folder(&host, &tensors);
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    for shard in 0..3 {
        let file = format!("model-0000{shard}-of-00003.safetensors");
        let part = tensors.iter().enumerate().filter(|(index, _)| index % 3 == shard);
        let part: StateDict = part.map(|(_, (name, tensor))| (name.clone(), tensor.clone())).collect();
        map.extend(part.keys().map(|name| (name.clone(), json!(file))));
        write(&part, &folder.path().join(file));
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    let found = load_float_with_remarks(folder.path(), &LoadOptions::default()).unwrap();
    assert_eq!(
        (&found.model.tensors, &found.model.config.outputs),
        (&wanted.tensors, &wanted.config.outputs)
    );
    assert!(found.model.source.file.ends_with("index.json"), "{}", found.model.source.file);
    let named = |word: &str| found.remarks.iter().any(|remark| remark.contains(word));
    assert!(named("2 tensors outside of the backbone") && named("index.json"), "{:?}", found.remarks);
    let bare = load_float(&index, &LoadOptions { outputs: Some(vec![1, 2]), ..options() }).unwrap();
    assert_eq!(bare.tensors, wanted.tensors);

    fs::remove_file(folder.path().join("model-00001-of-00003.safetensors")).unwrap();
    let message = load_float(&index, &options()).unwrap_err().to_string();
    assert!(message.contains("model-00001-of-00003.safetensors"), "{message}");
}
