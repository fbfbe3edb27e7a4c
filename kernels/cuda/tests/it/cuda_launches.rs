//! Checks that launches cover their work exactly once and fit the GPUs for which kernels are compiled. No GPU
//! is needed.

use swinq_cuda::ops::ResidualType;
use swinq_cuda::ops::attention::{AttentionConfig, AttentionElements, HEAD_DIM, WIDE_HEAD_DIM};
use swinq_cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_cuda::ops::norm::NormConfig;
use swinq_cuda::ops::output::{MapsConfig, values_launch};
use swinq_cuda::ops::patch::{InputForm, InputSite, PatchConfig};
use swinq_cuda::ops::rows::RowsConfig;
use swinq_cuda::ops::tokens::TokensConfig;
use swinq_cuda::ops::window_block::{WindowBlockConfig, WindowForm};
use swinq_cuda::{Arch, LaunchConfig};
use swinq_numerics::{ImageEdge, Size};

/// Maximum bytes of shared memory of a block: sm_75, sm_86 and sm_89, sm_80, sm_90.
const SHARED: [(&str, u32); 4] =
    [("sm_75", 64 << 10), ("sm_86", 99 << 10), ("sm_80", 163 << 10), ("sm_90", 227 << 10)];

/// Widths of the residuals of the official models, and some other widths.
const COLUMNS: [usize; 14] = [8, 24, 40, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 6144];

#[track_caller]
fn check(config: LaunchConfig, most_shared: u32, what: &str) {
    let [x, y, z] = config.grid;
    assert!((1..=0x7fff_ffff).contains(&x) && (1..=65_535).contains(&y) && z == 1, "{what}: {config:?}");
    let whole_warps = config.threads.is_multiple_of(32) && (32..=1024).contains(&config.threads);
    assert!(whole_warps && config.shared <= most_shared, "{what}: {config:?}");
}

/// Checks that `blocks` blocks of `of_block` units each cover `units` units, and that no block is empty.
#[track_caller]
fn covers(blocks: u32, of_block: usize, units: usize, what: &str) {
    let blocks = blocks as usize;
    assert!(
        blocks * of_block >= units && (blocks - 1) * of_block < units,
        "{what}: {blocks} blocks for {units}"
    );
}

#[test]
fn launches_overlap_only_where_the_gpu_can() {
    let arch = |major, minor| Arch { major, minor };
    let norm = NormConfig { columns: 96, pieces: 1, residual: ResidualType::F16 }.launch(49);
    let head = DeviceLinearF32::launch(1, 1000);
    for launch in [norm, head] {
        for old in [arch(7, 5), arch(8, 0), arch(8, 6), arch(8, 9)] {
            assert!(!launch.overlaps(old), "{old}: {launch:?}");
        }
        for new in [arch(9, 0), arch(10, 0), arch(12, 0)] {
            assert!(launch.overlaps(new), "{new}: {launch:?}");
        }
    }
    assert!(!LaunchConfig::linear(1, 32).overlaps(arch(9, 0)));
}

#[test]
fn patch_embeddings() {
    for (columns, patch) in [(96, 4), (128, 4), (192, 4), (24, 2), (256, 4), (40, 8), (768, 2)] {
        for residual in [ResidualType::F16, ResidualType::F32] {
            let config = PatchConfig {
                channels: 3,
                patch,
                edge: ImageEdge::Padded,
                columns,
                integer: true,
                output: false,
                norm: true,
                position: false,
                residual,
            };
            for tokens in [1, 31, 32, 33, 3136, 36_864, 65_536, 65_537, 3136 * 128] {
                let launch = config.launch(tokens);
                let what = format!("{config:?}, {tokens} tokens");
                // Wide embeddings are rejected on GPUs where they do not fit; those of the official models
                // fit on every GPU.
                check(launch, if columns <= 192 { SHARED[0].1 } else { SHARED[2].1 }, &what);
                let of_block = match config.half() {
                    true if tokens > 65_536 => 4 * 64,
                    true => 64,
                    false => 32,
                };
                covers(launch.grid[0], of_block, tokens, &what);
            }
        }
    }
}

/// The patch embedding of a Swin-T in INT8 for images of `channels` channels.
fn patch_config(channels: usize, residual: ResidualType) -> PatchConfig {
    PatchConfig {
        channels,
        patch: 4,
        edge: ImageEdge::Padded,
        columns: 96,
        integer: true,
        output: false,
        norm: true,
        position: false,
        residual,
    }
}

#[test]
fn patch_embeddings_of_several_channels() {
    for (channels, residual) in (1..=16).flat_map(|c| [ResidualType::F16, ResidualType::F32].map(|s| (c, s)))
    {
        let config = patch_config(channels, residual);
        let (launch, what) = (config.launch(3136), format!("{channels} channels, {residual:?}"));
        // On the tensor cores, the weights of many channels do not fit every GPU.
        check(launch, SHARED[usize::from(config.half() && channels > 11)].1, &what);
        assert_eq!(
            config.program(InputForm::PIXELS, InputSite::Float)
                == PatchConfig { channels: 3, ..config }.program(InputForm::PIXELS, InputSite::Float),
            channels == 3,
            "{what}"
        );
    }
}

#[test]
fn grids_cover_images_of_any_size() {
    let config = patch_config(3, ResidualType::F16);
    for (height, width, grid) in [(224, 224, (56, 56)), (225, 223, (57, 56)), (1, 4, (1, 1)), (5, 8, (2, 2))]
    {
        assert_eq!(config.grid(Size::new(height, width)), Size::new(grid.0, grid.1), "{height}x{width}");
    }
}

#[test]
fn norms() {
    for columns in COLUMNS.into_iter().chain((64..=6144).step_by(64)) {
        for residual in [ResidualType::F16, ResidualType::F32] {
            let gather = RowsConfig { columns, pieces: 1, residual };
            for rows in [1, 49, 65, 401_408] {
                let launch = gather.launch(rows);
                check(launch, SHARED[0].1, "rows");
                let groups = rows * columns / residual.columns_at_once();
                covers(launch.grid[0], launch.threads as usize, groups, "rows");
            }
            let config = NormConfig { columns, pieces: 1, residual };
            let (lanes, chunks) = config.lanes_and_chunks();
            assert!(lanes.is_power_of_two() && (4..=32).contains(&lanes), "{columns}: {lanes} lanes");
            let fits = 8 * lanes * chunks >= columns && 8 * lanes * (chunks - 1) < columns;
            assert!(fits, "{columns} columns: {lanes} lanes of {chunks} chunks");
            let lanes = if residual == ResidualType::F32 { 4 } else { lanes };
            for rows in [1, 49, 63, 64, 65, 3136, 401_408] {
                let (launch, what) = (config.launch(rows), format!("{columns} columns, {rows} rows"));
                check(launch, SHARED[0].1, &what);
                // Each block has full rows.
                assert!((launch.threads as usize).is_multiple_of(lanes), "{what}");
                covers(launch.grid[0], launch.threads as usize / lanes, rows, &what);
            }
        }
    }
}

/// Configurations of attention with both element types, by tokens per window and heads, for a GPU where a
/// block may have `limit` bytes of shared memory.
fn attentions(limit: u32) -> impl Iterator<Item = AttentionConfig> {
    let of = move |tokens| {
        [(3, HEAD_DIM), (6, HEAD_DIM), (24, HEAD_DIM), (48, HEAD_DIM), (3, WIDE_HEAD_DIM)]
            .into_iter()
            .flat_map(move |(heads, head_dim)| {
                let kinds = [
                    (AttentionElements::Codes, false),
                    (AttentionElements::Codes, true),
                    (AttentionElements::Half, false),
                ];
                kinds.map(move |(elements, hi_lo)| AttentionConfig {
                    elements,
                    tokens,
                    heads,
                    head_dim,
                    probs_s8: false,
                    exact: false,
                    head_scales: hi_lo,
                    hi_lo,
                    mask: -100.0,
                    limit,
                })
            })
    };
    [1, 16, 49, 64, 65, 100, 144, 145, 225, 256, 576].into_iter().flat_map(of)
}

#[test]
fn attentions_cover_every_window_and_query_of_every_head() {
    for (config, limit) in
        SHARED.iter().flat_map(|(_, limit)| attentions(*limit).map(move |config| (config, *limit)))
    {
        for total in [1, 2, 64, 127, 2048, 8192] {
            for multiprocessors in [1, 40, 132] {
                let (each, launch) = config.launch(total, multiprocessors);
                let what = format!("{config:?}, {total} windows, {multiprocessors} multiprocessors");
                // Of windows in tiles, some are for large GPUs only.
                check(launch, if config.whole() { limit } else { SHARED[3].1 }, &what);
                assert!((launch.grid[0] as usize).is_multiple_of(config.heads), "{what}");
                covers(launch.grid[0] / config.heads as u32, each, total, &what);
                // A block has 16 queries for each warp.
                covers(launch.grid[1], launch.threads as usize / 2, config.tokens, &what);
                assert!(config.whole() || each == 1, "{what}");
            }
        }
    }
}

#[test]
fn window_blocks_have_no_more_blocks_than_windows_or_multiprocessors() {
    let forms = [WindowForm::PreNorm, WindowForm::PostNorm { hi_lo: true }];
    let sizes = [(1, 49), (2, 64), (3, 49), (4, 49), (6, 49), (6, 64)];
    for (form, (heads, tokens)) in forms.into_iter().flat_map(|form| sizes.map(|size| (form, size))) {
        for (name, shared) in SHARED {
            let Some(config) = WindowBlockConfig::new(form, heads, tokens, shared) else {
                assert!(heads > 1 || name == "sm_75", "{heads} heads on {name}");
                continue;
            };
            for (total, blocks) in [(1, 1), (64, 64), (132, 132), (8192, 132)] {
                let launch = config.launch(total, 132);
                check(launch, shared, name);
                assert!(launch.grid == [blocks, 1, 1] && launch.threads == 128 * config.groups, "{launch:?}");
            }
        }
    }
}

#[test]
fn attention_of_small_windows_fits_every_gpu_and_of_large_ones_some() {
    for (name, limit) in SHARED {
        for config in attentions(limit).filter(|config| config.head_dim == HEAD_DIM) {
            let fits = match (config.tokens, config.hi_lo) {
                (..=256, _) => true,
                (_, false) => name != "sm_75",
                (_, true) => ["sm_80", "sm_90"].contains(&name),
            };
            assert_eq!(config.shared() <= limit, fits, "{name}, {config:?}: {} bytes", config.shared());
        }
    }
}

#[test]
fn attention_of_wide_heads_fits_every_gpu_up_to_100_tokens_and_the_largest_at_every_window() {
    for (name, limit) in SHARED {
        for config in attentions(limit).filter(|config| config.head_dim == WIDE_HEAD_DIM) {
            let must = config.tokens <= 100 || name == "sm_90";
            assert!(!must || config.shared() <= limit, "{name}, {config:?}: {} bytes", config.shared());
        }
    }
}

#[test]
fn pools_have_a_block_for_each_image_and_room_for_their_norms_or_sums() {
    for (images, tokens) in
        [(1, 1), (1, 49), (8, 49), (32, 144), (33, 49), (256, 1024), (2, 2048), (1, 2049), (1, 65_536)]
    {
        for (columns, residual) in [
            (96, ResidualType::F16),
            (1536, ResidualType::F16),
            (768, ResidualType::F32),
            (1536, ResidualType::F32),
        ] {
            let launch = DevicePool::launch((images, tokens), columns, residual);
            let what = format!("{images} images of {tokens} tokens, {columns} columns, {residual:?}");
            check(launch, SHARED[0].1, &what);
            assert_eq!(launch.grid, [images as u32, 1, 1], "{what}");
            let needed = match residual {
                ResidualType::F32 => 16 * DevicePool::tokens_each(tokens) + 4 * columns,
                ResidualType::F16 => launch.threads as usize / 32 * 4 * columns,
            };
            assert!(launch.shared as usize >= needed, "{what}");
        }
    }
}

#[test]
fn heads() {
    for (m, n) in [(1, 10), (1, 1000), (16, 1000), (17, 1001), (32, 21_841), (256, 2)] {
        let (launch, what) = (DeviceLinearF32::launch(m, n), format!("{m} x {n}"));
        check(launch, SHARED[0].1, &what);
        covers(launch.grid[0], 32, n, &what);
        covers(launch.grid[1], 16, m, &what);
    }
}

#[test]
fn tokens_are_covered_by_tiles() {
    for (tokens, channels) in [(1, 4), (32, 32), (33, 180), (65_536, 1024)] {
        let launch = TokensConfig { channels, residual: ResidualType::F32 }.launch(tokens);
        let what = format!("{tokens} tokens of {channels} channels");
        check(launch, SHARED[0].1, &what);
        covers(launch.grid[0], 32, tokens, &what);
        covers(launch.grid[1], 32, channels, &what);
    }
}

#[test]
fn outputs() {
    for (residual, columns) in
        [ResidualType::F16, ResidualType::F32].map(|of| COLUMNS.map(|c| (of, c))).concat()
    {
        let config = MapsConfig { residual };
        let each = config.tokens_each(columns);
        assert!(each.is_power_of_two() && (2..=64).contains(&each), "{columns} columns");
        for tokens in [1, 49, 64, 65, 3136, 800 * 1344 / 16] {
            let (firsts, launch) = config.launch(&[[2, tokens, columns], [1, 5, 8]]);
            let what = format!("{tokens} tokens of {columns} columns, {residual:?}");
            check(launch, SHARED[0].1, &what);
            covers(firsts[1] as u32 / 2, each, tokens, &what);
            assert_eq!((firsts[0], launch.grid[0] as usize), (0, firsts[1] + 1), "{what}");
        }
    }
    for values in [1, 255, 256, 257, 128_000] {
        let launch = values_launch(values);
        check(launch, SHARED[0].1, &format!("{values} values"));
        covers(launch.grid[0], 256, values, &format!("{values} values"));
    }
}
