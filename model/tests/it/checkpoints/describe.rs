//! Descriptions of bare files of weights, and the dialects of their names.

use std::fs;

use swinq_model::quantized::FloatModel;
use swinq_model::{Dialect, LoadOptions, QuantizedModel, load_config, load_float, random_model};

use super::{expected, fixture, noted, options_with, pairs, refusal, write};

#[test]
fn another_dialect_than_the_names_have_is_refused() {
    let files = [
        ("ms.pth", Dialect::Microsoft),
        ("timm/model.safetensors", Dialect::Timm),
        ("hf_modules.bin", Dialect::HuggingFace),
        ("torchvision.pth", Dialect::TorchVision),
    ];
    let all = files.map(|(_, dialect)| dialect);
    for (name, dialect) in files {
        for given in all.into_iter().chain([Dialect::FasterTransformer]) {
            let options = LoadOptions { dialect: Some(given), ..options_with(&[]) };
            if given == dialect {
                load_float(&fixture(name), &options).unwrap();
                continue;
            }
            let message = refusal(name, &options);
            let words = format!("as by {given}; pass --dialect {dialect}");
            assert!(message.contains(&words) && message.contains(name), "{message}");
        }
    }
}

#[test]
fn overrides_change_what_describes_a_bare_file() {
    let folder = tempfile::tempdir().unwrap();
    let [weights, made] = ["w.safetensors", "q.safetensors"].map(|name| folder.path().join(name));
    write(&expected("expected.safetensors"), &weights);
    let with = |opts: &[(&str, &str)]| LoadOptions { cfg: None, opts: pairs(opts), ..LoadOptions::default() };
    let image_size = with(&[("DATA.IMG_SIZE", "48"), ("TEST.CROP", "False")]);
    // The overrides alone describe nothing.
    let message = load_float(&weights, &image_size).unwrap_err().to_string();
    assert!(message.contains("EMBED_DIM 6"), "{message}");
    let model = load_float(&weights, &options_with(&[])).unwrap();
    let mut quantized = QuantizedModel::from_float(model.clone()).unwrap();
    quantized.save(&made).unwrap();
    let found = load_float(&weights, &image_size).unwrap();
    let stated = options_with(&[("DATA.IMG_SIZE", "48"), ("TEST.CROP", "False")]);
    assert_eq!(found, load_float(&weights, &stated).unwrap());
    let message = load_float(&weights, &with(&[("MODEL.NUM_CLASSES", "7")])).unwrap_err().to_string();
    assert!(message.contains("head.") && message.contains('7'), "{message}");
    // Microsoft's keys do not describe the preprocessing of others.
    quantized.transform.family = "timm".to_owned();
    quantized.save(&made).unwrap();
    let message = load_float(&weights, &image_size).unwrap_err().to_string();
    assert!(message.contains("DATA.IMG_SIZE") && message.contains("--cfg"), "{message}");
    // A folder or a file with its own description needs none.
    for (path, word) in [(fixture("timm"), "--cfg"), (made, "leave --opts out")] {
        let message = load_float(&path, &image_size).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn two_quantized_checkpoints_of_one_file_agree_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [weights, a, b] = ["w.safetensors", "a.safetensors", "b.safetensors"].map(|n| folder.path().join(n));
    write(&expected("expected.safetensors"), &weights);
    let model = load_float(&weights, &options_with(&[])).unwrap();
    let mut quantized = QuantizedModel::from_float(model.clone()).unwrap();
    quantized.save(&a).unwrap();
    quantized.config.name = "other".to_owned();
    quantized.labels = Some((0..5).map(|i| format!("class {i}")).collect());
    quantized.save(&b).unwrap();
    let bare = LoadOptions::default();
    let (found, note) = noted(&weights, &bare);
    assert_eq!(found, FloatModel { labels: quantized.labels.clone(), ..model.clone() });
    assert!(note.unwrap().contains("a.safetensors, which was made from it"));
    // Other preprocessing: neither is taken, unless one is named or the caller has its own.
    quantized.transform.mean[0] += 0.1;
    quantized.save(&b).unwrap();
    let message = load_float(&weights, &bare).unwrap_err().to_string();
    for word in [
        "a.safetensors and ",
        "b.safetensors were made from it",
        "different preprocessing",
        "--transform",
        "--cfg",
    ] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    let replaced = LoadOptions { any_transform: true, ..bare.clone() };
    let (_, note) = noted(&weights, &replaced);
    assert!(note.unwrap().contains("the architecture is that of"));
    let named = LoadOptions { described_by: vec![b.clone()], ..bare.clone() };
    assert_eq!(load_float(&weights, &named).unwrap().transform, quantized.transform);
    let both = LoadOptions { described_by: vec![a, b], ..bare };
    assert!(load_float(&weights, &both).is_err());
}

#[test]
fn a_quantized_checkpoint_describes_the_file_that_it_was_made_from() {
    let folder = tempfile::tempdir().unwrap();
    let [weights, made, other] =
        ["w.safetensors", "q.safetensors", "deep"].map(|name| folder.path().join(name));
    write(&expected("expected.safetensors"), &weights);
    let model = load_float(&weights, &options_with(&[])).unwrap();
    let bare = LoadOptions::default();
    // Nothing describes it; the message says what the shapes tell.
    let message = load_float(&weights, &bare).unwrap_err().to_string();
    for word in [
        "EMBED_DIM 6",
        "DEPTHS [1, 2]",
        "NUM_HEADS [2, 3]",
        "WINDOW_SIZE 3",
        "PATCH_SIZE 4",
        "MLP_RATIO 1.5",
        "NUM_CLASSES 5",
        "do not give DATA.IMG_SIZE",
        "--cfg",
    ] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    // A damaged checkpoint and one of another file describe nothing.
    let mut quantized = QuantizedModel::from_float(model.clone()).unwrap();
    quantized.labels = Some((0..5).map(|i| format!("class {i}")).collect());
    quantized.save(&made).unwrap();
    let bytes = fs::read(&made).unwrap();
    fs::write(&made, [&bytes[..bytes.len() - 1], &[!bytes[bytes.len() - 1]]].concat()).unwrap();
    assert!(load_float(&weights, &bare).is_err());
    quantized.provenance.source.sha256 = "00".repeat(32);
    quantized.save(&made).unwrap();
    assert!(load_float(&weights, &bare).is_err());
    // Beside the file, or given.
    quantized.provenance.source = model.source.clone();
    quantized.save(&made).unwrap();
    let (found, note) = noted(&weights, &bare);
    let labels = quantized.labels.clone();
    assert_eq!(found, FloatModel { labels, ..model.clone() });
    assert!(note.unwrap().contains("q.safetensors, which was made from it"));
    fs::create_dir(&other).unwrap();
    let moved = other.join("moved.safetensors");
    fs::rename(&made, &moved).unwrap();
    assert!(load_float(&weights, &bare).is_err());
    let given = LoadOptions { described_by: vec![moved], ..LoadOptions::default() };
    assert_eq!(load_float(&weights, &given).unwrap().config, model.config);
    // A configuration that is given decides.
    let opts = options_with(&[("DATA.IMG_SIZE", "48")]);
    assert_eq!(noted(&weights, &opts).1, None);
}

#[test]
fn the_only_shipped_configuration_of_the_shapes_describes_a_bare_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swin.safetensors");
    let name = "swin_tiny_patch4_window7_224";
    let opts = [("MODEL.NUM_CLASSES".to_owned(), "7".to_owned())];
    let model = random_model(&load_config(name, &opts).unwrap(), 3);
    write(&model.tensors, &path);
    let (found, note) = noted(&path, &LoadOptions::default());
    assert_eq!((&found.config, &found.transform), (&model.config, &model.transform));
    let note = note.unwrap();
    for word in ["no --cfg", name, "7 classes", "224 pixels", "not in the file"] {
        assert!(note.contains(word), "`{word}` is not in: {note}");
    }
}
