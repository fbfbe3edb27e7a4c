//! One small Swin V2 in every dialect loads to the same parameters, and errors name their reason. The files
//! come from `make_checkpoints_v2.py`.

use std::path::PathBuf;

use swinq_model::quantized::FloatModel;
use swinq_model::{
    Grid, HostTensor, LoadOptions, LoadedConfig, QuantizedModel, Size, StateDict, SwinVersion, WindowPolicy,
    import_ft_amax, load_config, load_float, load_float_with_remarks, random_model,
};

use super::{noted, pairs, write};

const YAML: &str = "DATA: {IMG_SIZE: 24}\nMODEL:\n  TYPE: swinv2\n  NUM_CLASSES: 5\n  SWINV2: {EMBED_DIM: 6, DEPTHS: \
                    [2, 1], NUM_HEADS: [2, 3], WINDOW_SIZE: 3, MLP_RATIO: 1.5}\n";

fn fixture(name: &str) -> PathBuf {
    super::fixture("v2").join(name)
}

fn config_with(opts: &[(&str, &str)]) -> LoadedConfig {
    super::config_of(YAML, opts)
}

fn options_with(opts: &[(&str, &str)]) -> LoadOptions {
    LoadOptions { cfg: Some(config_with(opts)), ..LoadOptions::default() }
}

fn refusal(name: &str, options: &LoadOptions) -> String {
    load_float(&fixture(name), options).unwrap_err().to_string()
}

/// The parameters in `expected.safetensors`.
fn expected() -> StateDict {
    super::expected("v2/expected.safetensors")
}

#[test]
fn every_dialect_gives_the_same_parameters() {
    let wanted = expected();
    assert!(wanted.iter().any(|(name, t)| name.ends_with("qkv.bias") && t.data[6..12] == [0.0; 6]));
    let files = [
        ("expected.safetensors", "microsoft", WindowPolicy::Microsoft, -100.0),
        ("ms.pth", "microsoft", WindowPolicy::Microsoft, -100.0),
        ("timm/model.safetensors", "timm", WindowPolicy::Timm, -100.0),
        ("timm", "timm", WindowPolicy::Timm, -100.0),
        ("hf", "hf", WindowPolicy::HuggingFaceV2, -200.0),
        ("torchvision.pth", "torchvision", WindowPolicy::Pad, -100.0),
    ];
    for (name, dialect, policy, mask) in files {
        let model = load_float(&fixture(name), &options_with(&[])).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.tensors, wanted, "{name}");
        assert_eq!(
            (model.source.dialect.as_str(), model.config.version),
            (dialect, SwinVersion::V2),
            "{name}"
        );
        assert_eq!((model.config.window_policy, model.config.mask), (policy, mask), "{name}");
    }
}

#[test]
fn directories_describe_themselves() {
    for (folder, mask) in [("timm", -100.0), ("hf", -200.0)] {
        let model = load_float(&fixture(folder), &LoadOptions::default()).unwrap();
        assert_eq!(model.tensors, expected(), "{folder}");
        let like = swinq_model::SwinConfig {
            name: model.config.name.clone(),
            window_policy: model.config.window_policy,
            mask,
            ..config_with(&[]).config
        };
        assert_eq!(model.config, like, "{folder}");
    }
}

#[test]
fn another_version_or_window_is_refused() {
    let v1 = options_with(&[("MODEL.TYPE", "swin")]);
    let message = refusal("ms.pth", &v1);
    for word in ["MODEL.TYPE", "is a Swin V2, but the configuration", "`swinv2`"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    // The buffers of Microsoft and torchvision tell the window, whose change no parameter would show.
    let wider = options_with(&[("MODEL.SWINV2.WINDOW_SIZE", "6")]);
    for name in ["ms.pth", "torchvision.pth"] {
        let message = refusal(name, &wider);
        assert!(
            message.contains("windows of 3 in stage1") && message.contains("uses 6"),
            "{name}: {message}"
        );
    }
    let pretrained = [("MODEL.SWINV2.WINDOW_SIZE", "6"), ("MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", "[3, 3]")];
    let model = load_float(&fixture("ms.pth"), &options_with(&pretrained)).unwrap();
    assert_eq!(model.config.stages()[0].window, Size::square(6));
    // The other dialects do not store it.
    load_float(&fixture("timm/model.safetensors"), &wider).unwrap();
    let message = import_ft_amax(&fixture("ms.pth"), &config_with(&[]).config).unwrap_err().to_string();
    assert!(message.contains("Swin V2"), "{message}");
}

#[test]
fn grids_that_windows_do_not_divide_follow_the_dialect() {
    // 28 pixels give 7x7 tokens, then 4x4, in windows of 3.
    let odd = options_with(&[("DATA.IMG_SIZE", "28")]);
    assert!(refusal("ms.pth", &odd).contains("does not divide the 7x7 tokens"));
    let grids = |name: &str, options| {
        let grids = load_float(&fixture(name), options).unwrap().config.own_grids();
        let of_grid = |grid: Grid| (grid.size, grid.padded, grid.shift).into();
        grids
            .into_iter()
            .map(of_grid)
            .map(|sides: [Size; 3]| sides.map(|side| side.side().unwrap()))
            .collect()
    };
    let torchvision: Vec<[usize; 3]> = grids("torchvision.pth", &odd);
    assert_eq!(torchvision, [[7, 9, 1], [4, 6, 1]]);
    let timm: Vec<[usize; 3]> = grids("timm/model.safetensors", &odd);
    assert_eq!(timm, torchvision);
    // transformers takes the 4x4 tokens of the second stage for 3x3, which one window covers.
    let transformers: Vec<[usize; 3]> = grids("hf", &odd);
    assert_eq!(transformers, [[7, 9, 1], [4, 6, 0]]);
    let found: Vec<[usize; 3]> = grids("hf", &options_with(&[("DATA.IMG_SIZE", "44")]));
    assert_eq!(found, [[11, 12, 1], [6, 6, 1]]);
    // 16 pixels give 4x4 tokens, then 2x2. torchvision keeps the window, the others shrink it: the bias
    // follows.
    let small = options_with(&[("DATA.IMG_SIZE", "16")]);
    let windows = |name: &str| load_float(&fixture(name), &small).unwrap().config.stages()[1].window;
    assert_eq!((windows("torchvision.pth"), windows("hf")), (Size::square(3), Size::square(2)));
}

#[test]
fn a_bare_file_tells_its_version_and_what_is_missing() {
    let bare = LoadOptions::default();
    let message = refusal("timm/model.safetensors", &bare);
    for word in [
        "MODEL.TYPE swinv2",
        "MODEL.SWINV2.EMBED_DIM 6",
        "MODEL.SWINV2.NUM_HEADS [2, 3]",
        "do not give DATA.IMG_SIZE, MODEL.SWINV2.WINDOW_SIZE",
    ] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(refusal("ms.pth", &bare).contains("MODEL.SWINV2.WINDOW_SIZE 3"));
    // Without buffers the official shapes do not tell the window; with them they do.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swinv2.safetensors");
    let name = "swinv2_tiny_patch4_window16_256";
    let mut tensors = random_model(&load_config(name, &[]).unwrap(), 3).tensors;
    write(&tensors, &path);
    let message = load_float(&path, &bare).unwrap_err().to_string();
    assert!(message.contains("window8_256 and swinv2_tiny_patch4_window16_256"), "{message}");
    tensors.insert(TABLE.to_owned(), coordinates(16, 16));
    write(&tensors, &path);
    let (model, note) = noted(&path, &bare);
    assert_eq!(model.config.name, name);
    assert!(note.unwrap().contains(name));
}

const TABLE: &str = "layers.0.blocks.0.attn.relative_coords_table";

/// The buffer of a window of so many tokens whose positions are divided for the window `pretrained`.
fn coordinates(window: i64, pretrained: i64) -> HostTensor {
    let scaled = |c: i64| {
        let t = 8.0 * c as f64 / (pretrained - 1) as f64;
        (t.signum() * (t.abs() + 1.0).log2() / 3.0) as f32
    };
    let side = || 1 - window..window;
    let values = side().flat_map(|y| side().flat_map(move |x| [scaled(y), scaled(x)])).collect();
    HostTensor::new([1, side().count(), side().count(), 2], values)
}

#[test]
fn values_of_buffers_tell_the_pretrained_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pretrained.safetensors");
    let mut tensors = expected();
    tensors.insert(TABLE.to_owned(), coordinates(3, 2));
    write(&tensors, &path);
    let windows = |value: &str| {
        let opts = [("MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", value)];
        let loaded = load_float_with_remarks(&path, &options_with(&opts));
        loaded.map(|loaded| (loaded.model.config.pretrained_window_sizes, loaded.remarks))
    };
    // A configuration without a word, and one with zeros, are completed.
    for silent in ["[]", "[0, 0]"] {
        let (windows, remarks) = windows(silent).unwrap();
        assert_eq!(windows, [2, 0]);
        assert!(
            remarks.iter().any(|remark| remark.contains("PRETRAINED_WINDOW_SIZES [2, 0]")),
            "{remarks:?}"
        );
    }
    let (named, remarks) = windows("[2, 0]").unwrap();
    assert_eq!((named, remarks.len()), (vec![2, 0], 0));
    let message = windows("[3, 0]").unwrap_err().to_string();
    for word in ["pretrained window of 2 in stage1", "has 3 there", "PRETRAINED_WINDOW_SIZES [0,0]", TABLE] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    // Other values are of no Swin V2.
    tensors.insert(TABLE.to_owned(), HostTensor::new([1, 5, 5, 2], vec![0.0; 50]));
    write(&tensors, &path);
    let message = windows("[]").unwrap_err().to_string();
    assert!(message.contains(TABLE) && message.contains("not the relative positions"), "{message}");
}

#[test]
fn official_files_of_one_shape_are_told_apart_by_the_pretrained_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swinv2.safetensors");
    let widened = "swinv2_base_patch4_window12to16_192to256_22kto1k_ft";
    let plain = "swinv2_base_patch4_window16_256";
    let opts = pairs(&[("MODEL.SWINV2.DEPTHS", "[1, 1, 1, 1]")]);
    let mut tensors = random_model(&load_config(widened, &opts).unwrap(), 3).tensors;
    for (pretrained, divisors) in [(true, [12, 12, 12, 6]), (false, [16, 16, 16, 8])] {
        for (stage, divisor) in divisors.into_iter().enumerate() {
            let window = if stage == 3 { 8 } else { 16 };
            let name = format!("layers.{stage}.blocks.0.attn.relative_coords_table");
            tensors.insert(name, coordinates(window, divisor));
        }
        write(&tensors, &path);
        let bare = LoadOptions { opts: opts.clone(), ..LoadOptions::default() };
        let found = load_float(&path, &bare).unwrap().config;
        assert_eq!(found.pretrained_window_sizes, if pretrained { vec![12, 12, 12, 6] } else { vec![] });
        let with = |name: &str| {
            let cfg = Some(load_config(name, &opts).unwrap());
            load_float(&path, &LoadOptions { cfg, ..LoadOptions::default() })
        };
        assert_eq!(with(widened).is_ok(), pretrained);
        assert_eq!(with(plain).unwrap().config.pretrained_window_sizes, found.pretrained_window_sizes);
    }
}

fn loaded() -> FloatModel {
    load_float(&fixture("hf"), &options_with(&[("MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", "[2, 0]")])).unwrap()
}

#[test]
fn every_missing_or_extra_tensor_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    let whole = expected();
    for name in whole.keys() {
        let mut tensors = whole.clone();
        tensors.remove(name);
        write(&tensors, &path);
        let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
        assert!(message.contains(name), "{name}: {message}");
    }
    let mut tensors = whole;
    let table = "layers.0.blocks.0.attn.relative_position_bias_table";
    tensors.insert(table.to_owned(), HostTensor::new([25, 2], vec![0.0; 50]));
    write(&tensors, &path);
    assert!(load_float(&path, &options_with(&[])).unwrap_err().to_string().contains(table));
}

#[test]
fn own_files_keep_the_version_and_need_its_number_contract() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.safetensors");
    let float = loaded();
    let own = QuantizedModel::from_float(float.clone()).unwrap();
    own.save(&path).unwrap();
    let (read, info) = QuantizedModel::load_with_info(&path).unwrap();
    assert_eq!((&read, info.numbers), (&own, 6));
    assert_eq!((read.config.mask, &*read.config.pretrained_window_sizes), (-200.0, &[2, 0][..]));
    let again = load_float(&path, &LoadOptions::default()).unwrap();
    assert_eq!((again.config, again.tensors), (float.config, float.tensors));
}
