use std::fs;

use super::*;
use crate::arch::Windows;
use crate::batch::Resize;

fn opts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

/// Loads `text` from a temporary file.
fn load_text(text: &str) -> Result<LoadedConfig, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my_swin.yaml");
    fs::write(&path, text).unwrap();
    load_config(path.to_str().unwrap(), &[])
}

#[test]
fn every_shipped_configuration_is_the_official_one() {
    let mut count = 0;
    for name in shipped_configs() {
        let loaded = load_config(name, &[]).unwrap();
        assert_eq!(loaded.config, SwinConfig::official(name).unwrap(), "{name}");
        loaded.config.validate().unwrap();
        let direct = name.contains("384");
        assert_eq!(loaded.transform, Transform::microsoft(loaded.config.image_size, 3, !direct), "{name}");
        count += 1;
    }
    assert_eq!(count, 28);
}

#[test]
fn checkpoint_names_find_their_configuration() {
    for name in [
        "swin_small_patch4_window7_224_22kto1k",
        "swin_base_patch4_window12_384",
        "swin_base_patch4_window12_384_22kto1k",
        "swin_large_patch4_window7_224",
        "swin_large_patch4_window12_384",
        "swinv2_base_patch4_window12to16_192to256",
        "swinv2_large_patch4_window12to24_192to384",
    ] {
        assert_eq!(load_config(name, &[]).unwrap().config, SwinConfig::official(name).unwrap(), "{name}");
    }
    let message = load_config("swin_tiny_patch4_window7_225", &[]).unwrap_err().to_string();
    assert!(message.contains("nearest shipped name is swin_tiny_patch4_window7_224"), "{message}");
}

/// Width, depths, heads and window of a shipped backbone, as Microsoft's names for them.
fn size_of(name: &str) -> &'static str {
    let words: Vec<&str> = name.split(['-', '_']).collect();
    let has = |word: &str| words.contains(&word);
    match () {
        () if has("small") || has("s") => "small",
        () if has("base") || has("b") || has("SwinB") => "base",
        () if has("large") || has("l") => "large",
        () => "tiny",
    }
}

#[test]
fn windows_are_stated_as_for_timm() {
    let windows = |text: &str| {
        let opts = [("MODEL.SWIN.WINDOW_SIZE".to_owned(), text.to_owned())];
        load_config("swin_tiny_patch4_window7_224", &opts).map(|loaded| loaded.config.window_size)
    };
    let sizes = |sizes: &[Size]| Windows::of_stages(sizes.to_vec()).unwrap();
    let squares = |sides: &[usize]| sizes(&sides.iter().copied().map(Size::square).collect::<Vec<_>>());
    assert_eq!(windows("14").unwrap(), Size::square(14).into());
    assert_eq!(windows("[8, 12]").unwrap(), Size::new(8, 12).into());
    assert_eq!(windows("[7, 7, 7, 7]").unwrap(), Size::square(7).into());
    let s3 = windows("[7, 7, 14, 7]").unwrap();
    assert_eq!(
        (&s3, s3.to_string()),
        (&squares(&[7, 7, 14, 7]), "[[7, 7], [7, 7], [14, 14], [7, 7]]".to_owned())
    );
    assert_eq!(windows(&s3.to_string()).unwrap(), s3);
    let mixed = windows("[[8, 12], 7, 7, [2, 3]]").unwrap();
    assert_eq!(mixed, sizes(&[Size::new(8, 12), Size::square(7), Size::square(7), Size::new(2, 3)]));
    for (wrong, problem) in [
        ("[]", "a window for each stage"),
        ("[7, 7, 14]", "DEPTHS has 4 stages"),
        ("[[7], 7]", "a window for each"),
    ] {
        assert!(windows(wrong).unwrap_err().to_string().contains(problem), "{wrong}");
    }
}

#[test]
fn every_shipped_backbone_is_an_official_architecture_with_outputs() {
    let mut count = 0;
    for name in shipped_backbones() {
        let loaded = load_config(name, &[]).unwrap();
        let SwinConfig { ref window_size, image_size, version, .. } = loaded.config;
        let (window, pixels, size) = (window_size.of(0).height, image_size.height, size_of(name));
        let official = match version {
            SwinVersion::V1 => format!("swin_{size}_patch4_window{window}_{pixels}"),
            SwinVersion::V2 if pixels == 384 => format!("swinv2_{size}_patch4_window12to24_192to384"),
            SwinVersion::V2 => format!("swinv2_{size}_patch4_window{window}_{pixels}"),
        };
        let official = SwinConfig { name: name.to_owned(), ..SwinConfig::official(&official).unwrap() };
        assert_eq!(loaded.config, official, "{name}");
        assert_eq!((loaded.task(), loaded.transform.resize), (Task::Features, Resize::Direct), "{name}");
        let filter = if version == SwinVersion::V1 { Filter::Bilinear } else { Filter::Bicubic };
        assert_eq!(loaded.transform.filter, filter, "{name}");
        // The detectors that read three stages leave out the first.
        let stages = loaded.stages.unwrap();
        assert!(stages == [0, 1, 2, 3] || stages == [1, 2, 3], "{name}: {stages:?}");
        // The name of no backbone is that of a classifier, or hides another backbone's.
        assert!(shipped_configs().all(|other| other != name));
        count += 1;
    }
    assert_eq!(count, 52);
}

#[test]
fn repositories_names_find_their_backbone() {
    for (name, preset, stages) in [
        ("mask-rcnn_swin-t-p4-w7_fpn_1x_coco", "mask-rcnn_swin-t-p4-w7", &[0, 1, 2, 3][..]),
        ("mask_rcnn_swin-t-p4-w7_fpn_fp16_ms-crop-3x_coco", "mask-rcnn_swin-t-p4-w7", &[0, 1, 2, 3]),
        ("retinanet_swin-t-p4-w7_fpn_1x_coco", "retinanet_swin-t-p4-w7", &[1, 2, 3]),
        (
            "mask2former_swin-b-p4-w12-384-in21k_8xb2-lsj-50e_coco-panoptic",
            "mask2former_swin-b",
            &[0, 1, 2, 3],
        ),
        ("mask2former_swin-t_8xb2-160k_ade20k-512x512", "mask2former_swin-t", &[0, 1, 2, 3]),
        ("grounding_dino_swin-t_pretrain_obj365_goldg", "grounding_dino_swin-t", &[1, 2, 3]),
        ("dino_5scale_swin_l_8xb2_12e_coco", "dino-5scale_swin-l", &[0, 1, 2, 3]),
        ("maskformer2_swin_base_IN21k_384_bs16_50ep", "maskformer2_swin_base", &[0, 1, 2, 3]),
        ("mask2former-swin-large-coco-panoptic", "mask2former-swin-large", &[0, 1, 2, 3]),
        ("GroundingDINO_SwinT_OGC", "GroundingDINO_SwinT", &[1, 2, 3]),
        ("grounding-dino-base", "grounding-dino-base", &[1, 2, 3]),
        ("cascade_mask_rcnn_swin_b_in21k_50ep", "cascade_mask_rcnn_swin_b_in21k", &[0, 1, 2, 3]),
        (
            "swin-base-patch4-window12-in22k-384x384-pre_upernet_8xb2-160k_ade20k-512x512",
            "swin-base-patch4-window12-in22k-384x384-pre_upernet",
            &[0, 1, 2, 3],
        ),
    ] {
        let found = load_config(name, &[]).unwrap();
        let wanted = load_config(preset, &[]).unwrap();
        assert_eq!(SwinConfig { name: preset.to_owned(), ..found.config }, wanted.config, "{name}");
        assert_eq!(
            (found.stages.as_deref(), wanted.stages.as_deref()),
            (Some(stages), Some(stages)),
            "{name}"
        );
    }
    // A part of a word is no beginning.
    let message = load_config("grounding_dino_swin-tt", &[]).unwrap_err().to_string();
    assert!(message.contains("nearest shipped name is grounding_dino_swin-t"), "{message}");
    // Neither is the nearest in edits: `upernet-swin-tiny` and `glip_atss_swin-t` are.
    for (begun, name) in [
        ("swin_tiny", "swin_tiny_patch4_window7_224"),
        ("swin-t", "swin_tiny_patch4_window7_224"),
        ("Swin_Large_Patch4_Window7", "swin_large_patch4_window7_224_22k"),
    ] {
        let message = load_config(begun, &[]).unwrap_err().to_string();
        assert!(message.ends_with(&format!("nearest shipped name is {name}")), "{message}");
        load_config(name, &[]).unwrap();
    }
}

#[test]
fn an_unknown_key_names_the_key_with_the_most_similar_last_part() {
    for (unknown, key) in [
        ("num_classes", "MODEL.NUM_CLASSES"),
        ("NUM_CLASSES", "MODEL.NUM_CLASSES"),
        ("img_size", "DATA.IMG_SIZE"),
        ("SWIN.DEPTHS", "MODEL.SWIN.DEPTHS"),
        ("MODEL.SWIN.EMBED_DIMM", "MODEL.SWIN.EMBED_DIM"),
        ("MODEL.SWINV2.WINDOW", "MODEL.SWINV2.WINDOW_SIZE"),
    ] {
        let opts = [(unknown.to_owned(), "1".to_owned())];
        let message = load_config("swin_tiny_patch4_window7_224", &opts).unwrap_err().to_string();
        assert!(message.ends_with(&format!("did you mean {key}?")), "{message}");
    }
}

#[test]
fn an_override_of_outputs_is_written_as_in_a_file() {
    let with = |value: &str| {
        let opts = [("MODEL.SWIN.OUT_FEATURES".to_owned(), value.to_owned())];
        load_config("swin_tiny_patch4_window7_224", &opts).map_err(|error| error.to_string())
    };
    for value in ["[stage2, stage4]", "['stage2', 'stage4']", "[stage4,stage2]"] {
        assert_eq!(with(value).unwrap().stages, Some(vec![1, 3]), "{value}");
    }
    assert!(with("stage2").unwrap_err().contains("is not a list of names such as [stage1]"));
    assert!(with("[stage7]").unwrap_err().contains("`stage7` is none of the stages stage1 to stage4"));
}

#[test]
fn outputs_of_a_configuration_are_stages() {
    let of = |names: &str| load_text(&format!("MODEL: {{SWIN: {{OUT_FEATURES: {names}}}}}"));
    assert_eq!(of("[stage4, stage2]").unwrap().stages, Some(vec![1, 3]));
    assert_eq!((of("None").unwrap().stages, of("None").unwrap().task()), (None, Task::Classification));
    assert_eq!(load_text("MODEL: {SWINV2: {OUT_FEATURES: [stage1]}}").unwrap().stages, None);
    let changed = load_config("grounding_dino_swin-t", &opts(&[("MODEL.SWIN.OUT_FEATURES", "['stage3']")]));
    assert_eq!(changed.unwrap().stages, Some(vec![2]));
    for (names, word) in [
        ("[]", "names no stage"),
        ("[res2]", "`res2` is none of the stages stage1 to stage4"),
        ("[stage5]", "`stage5`"),
        ("[stage0]", "`stage0`"),
        ("stage1", "list of names"),
        ("[1, 2]", "list of names"),
    ] {
        let message = of(names).unwrap_err().to_string();
        assert!(message.contains("MODEL.SWIN.OUT_FEATURES") && message.contains(word), "{names}: {message}");
    }
}

#[test]
fn lenient_numbers_and_every_architecture_field() {
    let loaded = load_text(
        "DATA:\n  IMG_SIZE: 56.0\n  INTERPOLATION: bilinear\nMODEL:\n  TYPE: swin\n  NUM_CLASSES: '5'\n  SWIN:\n    \
         PATCH_SIZE: 2\n    EMBED_DIM: 12\n    DEPTHS: [1, 2]\n    NUM_HEADS: (2, 3)\n    WINDOW_SIZE: 7\n    \
         MLP_RATIO: 2\n    QKV_BIAS: False\n    QK_SCALE: 1e-1\n    APE: True\n    PATCH_NORM: false\n\
         TRAIN:\n  OPTIMIZER:\n    EPS: 1e-8\n    BETAS: (0.9, 0.999)\nTEST:\n  CROP: False\nAUG:\n",
    )
    .unwrap();
    let wanted = SwinConfig {
        name: "my_swin".to_owned(),
        image_size: Size::square(56),
        patch_size: 2,
        num_classes: 5,
        embed_dim: 12,
        depths: vec![1, 2],
        num_heads: vec![2, 3],
        window_size: Size::square(7).into(),
        mlp_ratio: 2.0,
        qkv_bias: false,
        qk_scale: Some(0.1),
        ape: true,
        patch_norm: false,
        ..SwinConfig::default()
    };
    assert_eq!(loaded.config, wanted);
    assert_eq!((loaded.transform.filter, loaded.transform.resize), (Filter::Bilinear, Resize::Direct));
}

#[test]
fn each_version_reads_its_own_section() {
    let text = "MODEL:\n  TYPE: swinv2\n  SWIN: {EMBED_DIM: 12, QK_SCALE: 0.1}\n  SWINV2: {EMBED_DIM: 24, DEPTHS: [1, 2], \
                NUM_HEADS: [2, 3], WINDOW_SIZE: 8, MLP_RATIO: 2, QKV_BIAS: False, APE: True, PATCH_NORM: False, \
                PRETRAINED_WINDOW_SIZES: [6, 0]}\nDATA: {IMG_SIZE: 64}";
    let wanted = SwinConfig {
        name: "my_swin".to_owned(),
        version: SwinVersion::V2,
        image_size: Size::square(64),
        embed_dim: 24,
        depths: vec![1, 2],
        num_heads: vec![2, 3],
        window_size: Size::square(8).into(),
        mlp_ratio: 2.0,
        qkv_bias: false,
        ape: true,
        patch_norm: false,
        pretrained_window_sizes: vec![6, 0],
        ..SwinConfig::default()
    };
    assert_eq!(load_text(text).unwrap().config, wanted);
    let v1 = load_text(&text.replace("TYPE: swinv2", "TYPE: swin")).unwrap().config;
    assert_eq!((v1.version, v1.embed_dim, v1.qk_scale), (SwinVersion::V1, 12, Some(0.1)));
    let zeros = load_text(&text.replace("[6, 0]", "[0, 0]")).unwrap().config;
    assert!(zeros.pretrained_window_sizes.is_empty());
}

#[test]
fn overrides_in_the_section_of_another_version_are_refused() {
    let load = |name: &str, key: &str| load_config(name, &opts(&[(key, "[1, 1, 1, 1]")]));
    let (v1, v2) = ("swin_tiny_patch4_window7_224", "swinv2_tiny_patch4_window8_256");
    for (name, key, remedy) in [
        (v2, "MODEL.SWIN.DEPTHS", "those of MODEL.SWINV2; override MODEL.SWINV2.DEPTHS"),
        (v1, "MODEL.SWINV2.DEPTHS", "those of MODEL.SWIN; override MODEL.SWIN.DEPTHS"),
        (v1, "MODEL.SWIN_MLP.DEPTHS", "override MODEL.SWIN.DEPTHS"),
        (v2, "MODEL.SWIN.QK_SCALE", "those of MODEL.SWINV2; leave it out"),
    ] {
        let message = load(name, key).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains(remedy), "{message}");
    }
    assert_eq!(load(v2, "MODEL.SWINV2.DEPTHS").unwrap().config.depths, [1; 4]);
    // The version that the overrides state counts.
    let changed = opts(&[("MODEL.TYPE", "swinv2"), ("MODEL.SWINV2.DEPTHS", "[1, 1, 1, 1]")]);
    assert_eq!(load_config(v1, &changed).unwrap().config.depths, [1; 4]);
}

#[test]
fn the_dataset_of_22k_decides_the_classes_as_in_microsofts_code() {
    assert_eq!(load_text("DATA: {DATASET: imagenet22K}").unwrap().config.num_classes, 21841);
    let set = "DATA: {DATASET: imagenet22K}\nMODEL: {NUM_CLASSES: 7}";
    assert_eq!(load_text(set).unwrap().config.num_classes, 7);
}

#[test]
fn base_then_file_then_overrides() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    fs::write(folder.path().join("base.yaml"), "MODEL: {NUM_CLASSES: 3, NAME: a, SWIN: {EMBED_DIM: 48}}")
        .unwrap();
    let path = folder.path().join("deep/top.yaml");
    fs::write(&path, "BASE: ['', '../base.yaml']\nMODEL: {NUM_CLASSES: 4, SWIN: {QK_SCALE: None}}").unwrap();
    let path = path.to_str().unwrap();
    let config = load_config(path, &opts(&[("MODEL.SWIN.NUM_HEADS", "[2,4,8,16]")])).unwrap().config;
    assert_eq!((config.num_classes, config.embed_dim, config.name.as_str()), (4, 48, "a"));
    assert_eq!((config.num_heads, config.qk_scale), (vec![2, 4, 8, 16], None));
    let config = load_config(path, &opts(&[("MODEL.NUM_CLASSES", "9"), ("MODEL.NAME", "b")])).unwrap().config;
    assert_eq!((config.num_classes, config.name.as_str()), (9, "b"));
}

#[test]
fn cycles_and_floods_of_base_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a.yaml");
    fs::write(&a, "BASE: ['b.yaml']").unwrap();
    fs::write(folder.path().join("b.yaml"), "BASE: ['a.yaml']").unwrap();
    let message = load_config(a.to_str().unwrap(), &[]).unwrap_err().to_string();
    assert!(message.contains("a.yaml") && message.contains("BASE"), "{message}");
    // Each level includes the next one ten times, which would be 10^7 reads without the limit.
    for level in 0..8 {
        let next = format!("'l{}.yaml', ", level + 1).repeat(10);
        fs::write(folder.path().join(format!("l{level}.yaml")), format!("BASE: [{next}]")).unwrap();
    }
    fs::write(folder.path().join("l8.yaml"), "SEED: 0").unwrap();
    let message = load_config(folder.path().join("l0.yaml").to_str().unwrap(), &[]).unwrap_err().to_string();
    assert!(message.contains("64 files"), "{message}");
}

/// BASE may name any file, so errors do not show what is in it.
#[test]
fn an_included_file_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (own, secret) = (folder.path().join("own.yaml"), folder.path().join("secret"));
    std::fs::write(&own, "BASE: ['secret']\nDATA: {IMG_SIZE: 224}").unwrap();
    for text in
        ["hunter2 is the word\nhunter2", "hunter2: [1", "hunter2: 3", "DATA: hunter2", "[hunter2, hunter2]"]
    {
        std::fs::write(&secret, text).unwrap();
        let message = load_config(own.to_str().unwrap(), &[]).unwrap_err().to_string();
        assert!(message.contains("secret") && !message.contains("hunter2"), "{text}: {message}");
    }
    // The file that was given is shown.
    std::fs::write(&own, "DATAS: {IMG_SIZE: 224}").unwrap();
    assert!(load_config(own.to_str().unwrap(), &[]).unwrap_err().to_string().contains("DATAS"));
}

/// The reader's message repeats itself above and below the lines of the file.
#[test]
fn errors_of_yaml_are_stated_once() {
    let message = load_text("DATA: [\nMODEL: }\n").unwrap_err().to_string();
    assert_eq!(message.matches("mismatched bracket").count(), 1, "{message}");
    assert!(message.contains("line 1 column 7") && !message.contains('\n'), "{message}");
    let message = crate::Recipe::from_yaml("r.yaml", "name: x\nrules: [}\n").unwrap_err().to_string();
    assert_eq!(message.matches("mismatched bracket").count(), 1, "{message}");
}

#[test]
fn mistakes_are_named_with_key_file_and_remedy() {
    let cases = [
        (
            "MODEL: {SWIN: {EMBED_DIMS: 96}}",
            &["my_swin.yaml", "MODEL.SWIN.EMBED_DIMS", "MODEL.SWIN.EMBED_DIM?"][..],
        ),
        ("MODEL: {TYPE: swin_moe}", &["MODEL.TYPE", "swin_moe", "`swin` and `swinv2`", "my_swin.yaml"]),
        ("MODEL: {TYPE: swinv2, SWINV2: {DEPTHS: 2}}", &["MODEL.SWINV2.DEPTHS", "list of whole numbers"]),
        ("MODEL: {TYPE: swinv2, SWINV2: {EMBED_DIM: 0}}", &["MODEL.SWINV2.EMBED_DIM"]),
        ("MODEL: {TYPE: swinv2, SWINV2: {QK_SCALE: 0.1}}", &["MODEL.SWINV2.QK_SCALE", "unknown key"]),
        (
            "MODEL: {TYPE: swinv2, SWINV2: {PRETRAINED_WINDOW_SIZES: [12, 6]}}",
            &["MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", "2 entries"],
        ),
        (
            "MODEL: {TYPE: swinv2, SWINV2: {PRETRAINED_WINDOW_SIZES: [12, 12, 12, 1]}}",
            &["MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", "1 is neither 0"],
        ),
        ("MODEL: {TYPE: swinv2, SWINV2: {WINDOW_SIZE: 1}}", &["MODEL.SWINV2.WINDOW_SIZE", "one token"]),
        ("MODEL: {TYPE: 3}", &["MODEL.TYPE"]),
        ("MODEL: {SWIN: {IN_CHANS: 17}}", &["IN_CHANS", "17"]),
        ("DATA: {IMG_SIZE: [1, 2, 3]}", &["IMG_SIZE", "a whole number or two"]),
        ("MODEL: {SWIN: {DEPTHS: 2}}", &["DEPTHS", "list of whole numbers"]),
        ("MODEL: {SWIN: {EMBED_DIM: -96}}", &["EMBED_DIM", "-96"]),
        ("MODEL: {SWIN: {EMBED_DIM: 96.5}}", &["EMBED_DIM", "96.5"]),
        ("MODEL: {SWIN: {EMBED_DIM: 99999999999999999999}}", &["EMBED_DIM"]),
        ("MODEL: {SWIN: {QKV_BIAS: 7}}", &["QKV_BIAS", "True or False"]),
        ("MODEL: {SWIN: 3}", &["MODEL.SWIN", "section"]),
        ("MODEL: {NAME: {a: 1}}", &["MODEL.NAME"]),
        (
            "MODEL: {SWIN: {DEPTHS: [256,256,256,256,256,256,256,256], NUM_HEADS: [1,1,1,1,1,1,1,1], EMBED_DIM: 128}}",
            &["parameters"],
        ),
        ("DATA: {INTERPOLATION: lanczos}", &["DATA.INTERPOLATION", "lanczos"]),
        ("DATA: {IMG_SIZE: 1000000000}", &["IMG_SIZE"]),
        ("BASE: {a: b}", &["BASE"]),
        ("[1, 2]", &["my_swin.yaml", "list"]),
        ("MODEL: {NUM_CLASSES: 3, NUM_CLASSES: 4}", &["my_swin.yaml", "YAML"]),
        ("a: [", &["my_swin.yaml", "YAML"]),
    ];
    for (text, parts) in cases {
        let message = load_text(text).unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "{text}: {message}");
        }
    }
    for (key, value) in [("MODEL.SWIM.APE", "1"), ("MODEL", "1"), ("BASE", "x"), ("TEST.CROP", "maybe")] {
        let error = load_config("swin_tiny_patch4_window7_224", &opts(&[(key, value)])).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
    assert!(
        ConfigOverrides::from_words(&["MODEL.NAME".to_owned()])
            .unwrap_err()
            .to_string()
            .contains("MODEL.NAME")
    );
}

#[test]
fn bombs_are_refused_quickly() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let list = vec![format!("*a{}", level - 1); 9].join(", ");
        laughs += &format!("a{level}: &a{level} [{list}]\n");
    }
    let huge = "X".repeat(2 << 20);
    for text in [laughs, huge, "[".repeat(200_000), "a: ".repeat(1000), "- ".repeat(100_000)] {
        let start = std::time::Instant::now();
        assert!(load_text(&text).is_err());
        assert!(start.elapsed().as_secs() < 5);
    }
}

proptest::proptest! {
    #[test]
    fn mutated_files_never_panic(cuts in proptest::collection::vec((0usize..600, 0u8..=255), 1..6)) {
        let mut bytes = swinq_configs::SWIN[9].1.as_bytes().to_vec();
        for (at, byte) in cuts {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = load_text(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_stack_of_blocks_states_its_input() {
    let set = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        load_config("swin_tiny_patch4_window7_224", &pairs)
    };
    let stack = [
        ("MODEL.SWIN.TAKES_TOKENS", "True"),
        ("MODEL.SWIN.IN_CHANS", "180"),
        ("MODEL.SWIN.EMBED_DIM", "180"),
        ("MODEL.SWIN.PATCH_SIZE", "1"),
        ("MODEL.SWIN.PATCH_NORM", "False"),
        ("MODEL.SWIN.DEPTHS", "[6]"),
        ("MODEL.SWIN.NUM_HEADS", "[6]"),
        ("MODEL.SWIN.WINDOW_SIZE", "8"),
        ("DATA.IMG_SIZE", "64"),
    ];
    let loaded = set(&stack).unwrap();
    assert!(loaded.config.takes_tokens() && loaded.config.is_backbone());
    assert_eq!((loaded.stages, loaded.transform.channels()), (Some(vec![0]), 180));
    let error = set(&[("MODEL.SWIN.TAKES_TOKENS", "words")]).unwrap_err().to_string();
    assert!(error.contains("is not True or False"), "{error}");
}
