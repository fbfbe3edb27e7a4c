use super::*;
use crate::error::ModelError;

/// Grid, window and shift of each stage at the network's own image size, where all are square.
fn squares(config: &SwinConfig) -> Vec<(usize, usize, usize)> {
    let side = |size: Size| size.side().unwrap();
    config.own_grids().iter().map(|grid| (side(grid.size), side(grid.window), side(grid.shift))).collect()
}

#[test]
fn tiny_has_the_published_work() {
    let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
    config.validate().unwrap();
    assert_eq!((config.macs() as f64 / 1e7).round(), 449.0); // 4.49 GMAC
    assert_eq!(squares(&config), [(56, 7, 3), (28, 7, 3), (14, 7, 3), (7, 7, 0)]);
}

#[test]
fn partition_of_a_padded_grid_covers_each_token_once() {
    let config = SwinConfig {
        image_size: Size::square(40),
        window_size: Size::square(4).into(),
        depths: vec![2, 2],
        num_heads: vec![3, 6],
        window_policy: WindowPolicy::ShrinkAndPad,
        ..SwinConfig::default()
    };
    let grid = &config.own_grids()[0];
    assert_eq!([grid.size, grid.padded, grid.shift], [10, 12, 2].map(Size::square));
    let rows = grid.partition(true);
    let mut seen: Vec<_> = rows.iter().flatten().copied().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert_eq!(rows.len(), 144);
    assert_eq!(grid.masks(true), [0, 0, 1, 0, 0, 1, 2, 2, 3]);
    assert_eq!(grid.masks(false), [0; 9]);
}

#[test]
fn absurd_and_contradicting_sizes_are_named() {
    let second = SwinConfig::official("swinv2_tiny_patch4_window8_256").unwrap();
    second.validate().unwrap();
    let bad = [
        ("IMG_SIZE", SwinConfig { image_size: Size::square(1 << 40), ..SwinConfig::default() }),
        ("EMBED_DIM", SwinConfig { embed_dim: 0, ..SwinConfig::default() }),
        ("NUM_HEADS", SwinConfig { num_heads: vec![5, 6, 12, 24], ..SwinConfig::default() }),
        ("WINDOW_SIZE", SwinConfig { window_size: Size::square(5).into(), ..SwinConfig::default() }),
        ("DEPTHS", SwinConfig { depths: vec![], num_heads: vec![], ..SwinConfig::default() }),
        ("MLP_RATIO", SwinConfig { mlp_ratio: f64::NAN, ..SwinConfig::default() }),
        ("mask", SwinConfig { mask: -200.0, ..SwinConfig::default() }),
        ("mask", SwinConfig { mask: f64::NAN, ..second.clone() }),
        (
            "pretrained_window_sizes",
            SwinConfig { pretrained_window_sizes: vec![6; 4], ..SwinConfig::default() },
        ),
        ("qk_scale", SwinConfig { qk_scale: Some(0.2), ..second.clone() }),
        // 32 pixels end with one token, for which Microsoft's code divides by 0.
        ("IMG_SIZE", SwinConfig { image_size: Size::square(32), ..second.clone() }),
    ];
    for (field, config) in bad {
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains(field), "{field}: {message}");
    }
}

#[test]
fn files_state_what_only_v2_has_only_for_v2() {
    let config = SwinConfig::default();
    let mut json = serde_json::to_value(&config).unwrap();
    for field in ["version", "mask", "pretrained_window_sizes"] {
        assert_eq!(json.get(field), None);
    }
    assert_eq!(serde_json::from_value::<SwinConfig>(json.clone()).unwrap(), config);
    json["version"] = "v2".into();
    json["mask"] = (-200.0).into();
    json["pretrained_window_sizes"] = vec![12, 12, 12, 6].into();
    let second: SwinConfig = serde_json::from_value(json.clone()).unwrap();
    assert_eq!((second.version, second.mask), (SwinVersion::V2, -200.0));
    assert_eq!(serde_json::to_value(&second).unwrap(), json);
    second.validate().unwrap();
    json["version"] = "v3".into();
    assert!(serde_json::from_value::<SwinConfig>(json).is_err());
}

#[test]
fn official_swin_v2s_have_their_published_windows() {
    let tiny = SwinConfig::official("swinv2_tiny_window8_256").unwrap();
    let named = SwinConfig {
        name: tiny.name.clone(),
        ..SwinConfig::official("swinv2_tiny_patch4_window8_256").unwrap()
    };
    assert_eq!(tiny, named);
    assert_eq!(squares(&tiny), [(64, 8, 4), (32, 8, 4), (16, 8, 4), (8, 8, 0)]);
    assert_eq!((tiny.macs() as f64 / 1e8).round(), 59.0); // 5.9 GMAC
    let large = SwinConfig::official("swinv2_large_window12to24_192to384").unwrap();
    let windows: Vec<_> =
        large.stages().iter().map(|s| (s.window.height, large.pretrained_window(s.index))).collect();
    assert_eq!(windows, [(24, Some(12)), (24, Some(12)), (24, Some(12)), (12, Some(6))]);
    assert_eq!(SwinConfig::official("swinv2_base_window12_192").unwrap().num_classes, 21841);
    for name in [
        "swinv2_cr_tiny_224",
        "swinv2_tiny_window12_192",
        "swinv2_tiny_window7_224",
        "swinv2_huge_window8_256",
    ] {
        assert_eq!(SwinConfig::official(name), None, "{name}");
    }
}

/// mmpretrain's Swin V2 states a window for each stage, and shifts by half of it.
#[test]
fn windows_of_mmpretrain_that_are_smaller_than_the_first_are_shifted_by_their_half() {
    let config = SwinConfig {
        version: SwinVersion::V2,
        image_size: Size::square(64),
        window_size: Size::square(16).into(),
        depths: vec![2, 2],
        num_heads: vec![3, 6],
        window_policy: WindowPolicy::Mmpretrain,
        ..SwinConfig::default()
    };
    let found = |size| config.grids(size).unwrap().iter().map(|g| (g.window, g.shift)).collect::<Vec<_>>();
    let [large, small, none] = [16, 8, 0].map(Size::square);
    assert_eq!(found(Size::square(64)), [(large, none), (small, none)]);
    assert_eq!(found(Size::new(100, 150)), [(large, small), (small, Size::square(4))]);
    // The masks of a stage divide its windows at the same shift.
    let shifts: Vec<_> = config.stages().iter().map(|stage| stage.shift).collect();
    assert_eq!(shifts, [small, Size::square(4)]);
}

/// Windows that shrank at the network's own size would grow for a larger image, and shrink for a smaller one.
#[test]
fn images_for_other_windows_are_refused_with_the_remedy() {
    let config = SwinConfig {
        image_size: Size::new(28, 84),
        depths: vec![2, 2],
        num_heads: vec![3, 6],
        window_policy: WindowPolicy::Timm,
        ..SwinConfig::default()
    };
    assert_eq!(config.stages()[1].window, Size::new(4, 7));
    let refusal = |height, width| config.grids(Size::new(height, width)).unwrap_err().to_string();
    let larger = refusal(56, 112);
    assert!(larger.contains("windows of 4x7, and its 7x14 tokens would have windows of 7x7"), "{larger}");
    assert!(larger.contains("use a smaller image"), "{larger}");
    let smaller = refusal(20, 84);
    assert!(smaller.contains("5x21 tokens of stage1 are fewer than its window of 7x7"), "{smaller}");
    assert!(smaller.contains("use a larger image"), "{smaller}");
    config.grids(Size::new(28, 112)).unwrap();
}

/// Rules of libraries that pad images, that leave out what fills no patch, and that take whole patches only.
#[test]
fn images_that_the_patch_does_not_divide() {
    let config = |window_policy| SwinConfig {
        image_size: Size::square(32),
        window_size: Size::square(4).into(),
        depths: vec![2, 2],
        num_heads: vec![3, 6],
        window_policy,
        ..SwinConfig::default()
    };
    let grid = |policy, height, width| {
        config(policy).grids(Size::new(height, width)).map(|grids| [grids[0].size, grids[1].size])
    };
    let sizes = [[9, 13], [5, 7]].map(|[height, width]| Size::new(height, width));
    assert_eq!(grid(WindowPolicy::Detection, 35, 50).unwrap(), sizes);
    let sizes = [[8, 12], [4, 6]].map(|[height, width]| Size::new(height, width));
    assert_eq!(grid(WindowPolicy::Pad, 35, 50).unwrap(), sizes);
    for policy in [WindowPolicy::Timm, WindowPolicy::TimmAnySize, WindowPolicy::Microsoft] {
        let message = grid(policy, 35, 50).unwrap_err().to_string();
        assert!(message.contains("35x50 is not a multiple of PATCH_SIZE 4"), "{message}");
    }
    let message = grid(WindowPolicy::Pad, 35, 3).unwrap_err().to_string();
    assert!(message.contains("images of 35x3") && message.contains("do not fill a patch"), "{message}");
    // A network is built for whole patches.
    let built = SwinConfig { image_size: Size::square(33), ..config(WindowPolicy::Pad) };
    assert!(built.validate().unwrap_err().to_string().contains("DATA.IMG_SIZE"));
}

/// The reason names the image, not a field of the configuration, which says nothing of it.
#[test]
fn images_of_a_size_that_the_network_cannot_process_are_named() {
    let config = SwinConfig { ape: true, window_policy: WindowPolicy::Detection, ..SwinConfig::default() };
    config.grids(Size::new(222, 223)).unwrap();
    let refusal = |height, width| config.grids(Size::new(height, width)).unwrap_err();
    for (height, width, word) in [
        (800, 1333, "absolute position embedding (absolute_pos_embed) for images of 224x224"),
        (4097, 8, "4097 is outside 1..=4096; resize the image"),
        (8, 0, "0 is outside 1..=4096"),
    ] {
        let error = refusal(height, width);
        let message = error.to_string();
        assert!(matches!(error, ModelError::Image { .. }), "{message}");
        assert!(message.starts_with(&format!("images of {height}x{width}: ")), "{message}");
        assert!(message.contains(word) && !message.contains("DATA.IMG_SIZE"), "{message}");
    }
}

#[test]
fn position_embeddings_are_interpolated_where_the_library_does() {
    let with = |ape_sizes, window_policy| SwinConfig {
        ape: true,
        ape_sizes,
        window_policy,
        ..SwinConfig::default()
    };
    let detector = with(PositionSizes::Bicubic, WindowPolicy::Detection);
    assert!(detector.grids(Size::new(801, 1333)).is_ok());
    let (own, other) = (Size::square(56), Size::new(56, 57));
    assert!(detector.resizes_position(other) && !detector.resizes_position(own));
    let message = detector.size_rules().unwrap_err().to_string();
    assert!(message.contains("absolute_pos_embed is interpolated"), "{message}");
    let whole = with(PositionSizes::BicubicWholePatches, WindowPolicy::HuggingFace);
    assert!(whole.grids(Size::new(448, 260)).is_ok());
    let message = whole.grids(Size::new(448, 258)).unwrap_err().to_string();
    assert!(message.contains("448x258 is not a multiple of PATCH_SIZE 4"), "{message}");
    // At its own grid nothing is interpolated, whatever the image.
    assert!(whole.grids(Size::new(222, 223)).is_ok());
    for (config, problem) in [
        (SwinConfig { image_size: Size::new(224, 448), ..whole }, "a square grid only"),
        (SwinConfig { ape: false, ..detector }, "has no absolute position embedding"),
    ] {
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("ape_sizes") && message.contains(problem), "{message}");
    }
}

#[test]
fn the_windows_of_stages_are_stated_where_they_differ() {
    let config = SwinConfig::official("swin_s3_tiny_224").unwrap();
    config.validate().unwrap();
    let windows = |config: &SwinConfig| config.stages().iter().map(|s| s.window.height).collect::<Vec<_>>();
    assert_eq!(windows(&config), [7, 7, 14, 7]);
    let json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["window_size"], serde_json::json!([[7, 7], [7, 7], [14, 14], [7, 7]]));
    assert_eq!(serde_json::from_value::<SwinConfig>(json.clone()).unwrap(), config);
    assert!(config.needs_version_3());
    for (value, problem) in
        [("[]", "no window"), ("[[7, 7, 7]]", "did not match"), ("\"7\"", "did not match")]
    {
        let mut json = json.clone();
        json["window_size"] = serde_json::from_str(value).unwrap();
        let message = serde_json::from_value::<SwinConfig>(json).unwrap_err().to_string();
        assert!(message.contains(problem), "{value}: {message}");
    }
    // One window serves the stages of a backbone that ends before the others.
    let short = config.clone().into_backbone(vec![StageOutput::of_stage(1, false)]);
    assert_eq!(short.window_size, Size::square(7).into());
    let wrong = SwinConfig { depths: vec![2, 2, 6], num_heads: vec![3, 6, 12], ..config.clone() };
    assert!(wrong.validate().unwrap_err().to_string().contains("4 windows, but DEPTHS has 3 stages"));
    // A window shrinks to its grid, unless timm always partitions.
    let small = SwinConfig { image_size: Size::square(128), window_policy: WindowPolicy::Timm, ..config };
    assert_eq!(windows(&small), [7, 7, 8, 4]);
    let always = SwinConfig { window_policy: WindowPolicy::TimmAlwaysPartition, ..small };
    assert_eq!(windows(&always), [7, 7, 14, 7]);
    assert!(always.own_grids().iter().all(|grid| grid.shift != Size::square(0) && grid.shifts_first));
}

/// Networks of every policy, whose windows shrink in no stage, in the last one, on one axis, and in all.
fn networks_of_every_policy() -> Vec<SwinConfig> {
    use WindowPolicy::{
        Detection, HuggingFace, HuggingFaceV2, Microsoft, Mmpretrain, Pad, Timm, TimmAlwaysPartition,
        TimmAnySize,
    };
    let of_stages = |sides: [usize; 3]| Windows::of_stages(sides.map(Size::square).to_vec()).unwrap();
    let mut networks = Vec::new();
    for window_policy in [
        Microsoft,
        HuggingFace,
        Pad,
        Timm,
        TimmAnySize,
        TimmAlwaysPartition,
        HuggingFaceV2,
        Mmpretrain,
        Detection,
    ] {
        for (image, window_size) in [
            (Size::square(32), Size::square(4).into()),
            (Size::square(32), Size::square(3).into()),
            (Size::square(28), Size::square(7).into()),
            (Size::square(16), Size::square(7).into()),
            (Size::new(16, 48), Size::square(4).into()),
            (Size::new(16, 48), Size::new(3, 5).into()),
            (Size::square(32), of_stages([2, 8, 4])),
            (Size::new(32, 40), of_stages([4, 7, 3])),
        ] {
            let config = SwinConfig {
                image_size: image,
                patch_size: 2,
                depths: vec![2, 2, 2],
                num_heads: vec![3, 6, 12],
                window_size,
                window_policy,
                ..SwinConfig::default()
            };
            networks.extend(config.validate().is_ok().then_some(config));
        }
    }
    networks
}

#[test]
fn the_rules_say_what_the_grids_of_each_size_are() {
    let (mut taken, mut refused) = (0, 0);
    for config in networks_of_every_policy() {
        let rules = config.size_rules().unwrap();
        for (height, width) in (1..=50).flat_map(|height| (1..=50).map(move |width| (height, width))) {
            let size = Size::new(height, width);
            let fits = |limits: &[Limit], size| {
                limits.iter().all(|limit| limit.lengths.contain(limit.side.of(size)))
            };
            let first = rules.edge.grid(size, rules.patch);
            let sizes = [1, 2, 4].map(|part| first.map(|side: usize| side.div_ceil(part)));
            let allowed = fits(&rules.limits, size)
                && rules.stages.iter().zip(sizes).all(|(rule, grid)| fits(&rule.limits, grid));
            let what = format!("{:?} of {} at {size}", config.window_policy, config.image_size);
            let Ok(grids) = config.grids(size) else {
                assert!(!allowed, "{what}");
                refused += 1;
                continue;
            };
            assert!(allowed, "{what}");
            for ((rule, grid), size) in rules.stages.iter().zip(&grids).zip(sizes) {
                let found = (size, rule.window, rule.shift_of(size), rule.shifts_first);
                assert_eq!(found, (grid.size, grid.window, grid.shift, grid.shifts_first), "{what}");
                assert!(!(rule.is_never_padded() && grid.is_padded()), "{what}");
            }
            taken += 1;
        }
        assert!(config.grids(rules.smallest).is_ok(), "{config:?}");
    }
    assert!(taken > 10_000 && refused > 10_000, "{taken} {refused}");
}

#[test]
fn the_limits_are_stated_in_pixels() {
    let words = |config: SwinConfig| config.size_rules().unwrap().in_words();
    let with = |window_policy| SwinConfig { window_policy, ..SwinConfig::default() };
    assert_eq!(words(with(WindowPolicy::Microsoft)), "height and width: multiples of 224");
    assert_eq!(words(with(WindowPolicy::Detection)), "any height and width");
    assert_eq!(words(with(WindowPolicy::Pad)), "height and width: at least 4 pixels");
    assert_eq!(words(with(WindowPolicy::HuggingFace)), "the shorter side: at least 193 pixels");
    assert_eq!(words(with(WindowPolicy::Timm)), "height and width: multiples of 4, at least 196 pixels");
    let wide = SwinConfig { image_size: Size::new(192, 672), ..with(WindowPolicy::Timm) };
    assert_eq!(
        words(wide),
        "height: multiples of 4, 164 to 192 pixels; width: multiples of 4, at least 196 pixels"
    );
    assert_eq!(with(WindowPolicy::Timm).size_rules().unwrap().smallest, Size::square(196));
    for config in
        [with(WindowPolicy::ShrinkAndPad), SwinConfig { ape: true, ..with(WindowPolicy::Detection) }]
    {
        let message = config.size_rules().unwrap_err().to_string();
        assert!(message.contains("images of 224x224 only"), "{message}");
    }
}

/// A stack of blocks with a merging behind them.
fn stack() -> SwinConfig {
    SwinConfig {
        input: Input::Tokens,
        image_size: Size::new(16, 24),
        in_chans: 12,
        patch_size: 1,
        embed_dim: 12,
        depths: vec![2, 0],
        num_heads: vec![2, 4],
        window_size: Size::square(8).into(),
        patch_norm: false,
        window_policy: WindowPolicy::HuggingFace,
        ..SwinConfig::default()
    }
    .into_backbone([0, 1].map(|stage| StageOutput::of_stage(stage, false)).into())
}

/// Changes a configuration.
type Change = dyn Fn(&mut SwinConfig);

#[test]
fn a_stack_has_nothing_before_and_behind_its_blocks() {
    stack().validate().unwrap();
    let refused = |change: &Change| {
        let mut config = stack();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    let cases: [(&Change, &str); 8] = [
        (&|c| c.in_chans = 3, "IN_CHANS"),
        (&|c| c.patch_size = 2, "PATCH_SIZE"),
        (&|c| c.patch_norm = true, "PATCH_NORM"),
        (&|c| c.ape = true, "APE"),
        (&|c| c.outputs[1].norm = true, "no norm behind its blocks"),
        (&|c| (c.task, c.outputs, c.num_classes) = (Task::Classification, Vec::new(), 3), "no classifier"),
        (&|c| c.depths = vec![0, 0], "DEPTHS[0]"),
        (&|c| c.input = Input::Images, "DEPTHS[1]"),
    ];
    for (change, named) in cases {
        let error = refused(change);
        assert!(error.contains(named), "{named}: {error}");
    }
    // Blocks between two mergings are no stack, and a stage without blocks lies at an end.
    let middle = |config: &mut SwinConfig| {
        (config.depths, config.num_heads) = (vec![2, 0, 2], vec![2, 4, 8]);
        config.outputs[1].stage = 2;
    };
    assert!(refused(&middle).contains("DEPTHS[1]"));
}

#[test]
fn a_stage_without_blocks_takes_any_grid() {
    // The merged grid has 4x5 tokens, fewer than a window.
    assert_eq!(stack().grids(Size::new(8, 9)).unwrap()[1].size, Size::new(4, 5));
    assert!(stack().grids(Size::new(7, 9)).is_err());
    let rules = stack().size_rules().unwrap();
    assert!(rules.stages[1].limits.is_empty() && !rules.stages[0].limits.is_empty());
}

#[test]
fn files_state_tokens_and_no_images() {
    let json = serde_json::to_value(stack()).unwrap();
    assert_eq!(json["input"], "tokens");
    assert_eq!(serde_json::from_value::<SwinConfig>(json).unwrap(), stack());
    assert!(serde_json::to_value(SwinConfig::default()).unwrap().get("input").is_none());
}
