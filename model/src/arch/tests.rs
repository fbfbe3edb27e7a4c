use super::*;

#[test]
fn tiny_has_the_published_work() {
    let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
    config.validate().unwrap();
    assert_eq!((config.macs() as f64 / 1e7).round(), 449.0); // 4.49 GMAC
    let grids: Vec<_> = config.stages().iter().map(|s| (s.grid, s.window, s.shift)).collect();
    assert_eq!(grids, [(56, 7, 3), (28, 7, 3), (14, 7, 3), (7, 7, 0)]);
}

#[test]
fn partition_of_a_padded_grid_covers_each_token_once() {
    let config = SwinConfig {
        image_size: 40,
        window_size: 4,
        depths: vec![2, 2],
        num_heads: vec![3, 6],
        window_policy: WindowPolicy::ShrinkAndPad,
        ..SwinConfig::default()
    };
    let stage = &config.stages()[0];
    assert_eq!((stage.grid, stage.padded, stage.shift), (10, 12, 2));
    let rows = stage.partition(stage.shift);
    let mut seen: Vec<_> = rows.iter().flatten().copied().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert_eq!(rows.len(), 144);
    assert_eq!(stage.shift_regions(stage.shift).unwrap().len(), 144);
}

#[test]
fn absurd_and_contradicting_sizes_are_named() {
    let bad = [
        ("IMG_SIZE", SwinConfig { image_size: 1 << 40, ..SwinConfig::default() }),
        ("EMBED_DIM", SwinConfig { embed_dim: 0, ..SwinConfig::default() }),
        ("NUM_HEADS", SwinConfig { num_heads: vec![5, 6, 12, 24], ..SwinConfig::default() }),
        ("WINDOW_SIZE", SwinConfig { window_size: 5, ..SwinConfig::default() }),
        ("DEPTHS", SwinConfig { depths: vec![], num_heads: vec![], ..SwinConfig::default() }),
        ("MLP_RATIO", SwinConfig { mlp_ratio: f64::NAN, ..SwinConfig::default() }),
    ];
    for (field, config) in bad {
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains(field), "{field}: {message}");
    }
}

#[test]
fn files_name_the_version_only_where_it_is_not_v1_and_v2_is_refused() {
    let config = SwinConfig::default();
    let mut json = serde_json::to_value(&config).unwrap();
    assert_eq!(json.get("version"), None);
    assert_eq!(serde_json::from_value::<SwinConfig>(json.clone()).unwrap(), config);
    json["version"] = "v2".into();
    let second: SwinConfig = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&second).unwrap(), json);
    let message = second.validate().unwrap_err().to_string();
    assert!(message.contains("version") && message.contains("Swin V2 is not supported yet"), "{message}");
    json["version"] = "v3".into();
    assert!(serde_json::from_value::<SwinConfig>(json).is_err());
}
