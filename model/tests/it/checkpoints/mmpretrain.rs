//! Checkpoints of mmpretrain (`tests/parity/make_mmpretrain.py`). `float/tests/parity.rs` compares their
//! logits.

use swinq_model::SwinVersion;

use super::*;

const YAML: [&str; 2] = [
    "DATA: {IMG_SIZE: 44}\nMODEL:\n  NUM_CLASSES: 7\n  SWIN: {EMBED_DIM: 6, DEPTHS: [2, 2, 2], NUM_HEADS: [1, 2, 3], \
     WINDOW_SIZE: 3, MLP_RATIO: 2.5}\n",
    "DATA: {IMG_SIZE: 44}\nMODEL:\n  TYPE: swinv2\n  NUM_CLASSES: 7\n  SWINV2: {EMBED_DIM: 6, DEPTHS: [2, 2, 1], \
     NUM_HEADS: [1, 2, 3], WINDOW_SIZE: 4, MLP_RATIO: 2.5, PRETRAINED_WINDOW_SIZES: [3, 0, 2]}\n",
];

/// The options of version `version`, 1 or 2, with one replacement in its configuration.
fn options(version: usize, from: &str, to: &str) -> LoadOptions {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmpretrain.yaml");
    fs::write(&path, YAML[version - 1].replace(from, to)).unwrap();
    let cfg = load_config(path.to_str().unwrap(), &[]).unwrap();
    LoadOptions { cfg: Some(cfg), ..LoadOptions::default() }
}

#[test]
fn both_versions_load() {
    for (version, swin) in [(1, SwinVersion::V1), (2, SwinVersion::V2)] {
        let path = fixture(&format!("mmpretrain/v{version}.pth"));
        let loaded = load_float_with_remarks(&path, &options(version, "", "")).unwrap();
        assert_eq!(loaded.model.source.dialect, "openmmlab");
        assert_eq!(loaded.model.config.version, swin);
        assert_eq!(loaded.model.config.window_policy, WindowPolicy::Mmpretrain);
        assert!(loaded.remarks.is_empty(), "{:?}", loaded.remarks);
    }
}

#[test]
fn another_dialect_is_refused() {
    let timm = LoadOptions { dialect: Some(Dialect::Timm), ..options(1, "", "") };
    let message = load_float(&fixture("mmpretrain/v1.pth"), &timm).unwrap_err().to_string();
    assert!(message.contains("named as by openmmlab (`backbone.patch_embed.projection."), "{message}");
    assert_eq!("mmpretrain".parse::<Dialect>().unwrap(), Dialect::OpenMmLab);
}

#[test]
fn other_windows_than_the_file_has_are_refused() {
    let message = load_float(&fixture("mmpretrain/v1.pth"), &options(1, "WINDOW_SIZE: 3", "WINDOW_SIZE: 4"));
    let message = message.unwrap_err().to_string();
    let stored =
        "`backbone.stages.0.blocks.0.attn.w_msa.relative_position_bias_table` in the names of openmmlab";
    assert!(message.contains(stored) && message.contains("not resized"), "{message}");
    let message = load_float(&fixture("mmpretrain/v2.pth"), &options(2, "WINDOW_SIZE: 4", "WINDOW_SIZE: 6"));
    let message = message.unwrap_err().to_string();
    assert!(message.contains("windows of 4 in stage1"), "{message}");
}
