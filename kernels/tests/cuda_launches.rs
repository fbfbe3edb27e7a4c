//! Launches cover what they compute, once, and fit the GPUs that kernels are compiled for. Pure: no GPU is needed.

use swinq_kernels::cuda::LaunchConfig;
use swinq_kernels::cuda::ops::StreamType;
use swinq_kernels::cuda::ops::attention::{AttentionConfig, AttentionElements};
use swinq_kernels::cuda::ops::head::DeviceLinearF32;
use swinq_kernels::cuda::ops::norm::NormConfig;
use swinq_kernels::cuda::ops::patch::PatchConfig;

/// Bytes of shared memory that a block can have: sm_75, sm_86 and sm_89, sm_80, sm_90.
const SHARED: [(&str, u32); 4] =
    [("sm_75", 64 << 10), ("sm_86", 99 << 10), ("sm_80", 163 << 10), ("sm_90", 227 << 10)];

/// Columns of the streams of the official models, and some between.
const COLUMNS: [usize; 14] = [8, 24, 40, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 6144];

#[track_caller]
fn check(config: LaunchConfig, most_shared: u32, what: &str) {
    let [x, y, z] = config.grid;
    assert!(x >= 1 && x <= 0x7fff_ffff && (1..=65_535).contains(&y) && z == 1, "{what}: {config:?}");
    let whole_warps = config.threads.is_multiple_of(32) && (32..=1024).contains(&config.threads);
    assert!(whole_warps && config.shared <= most_shared, "{what}: {config:?}");
}

/// Units that one launch of the other way round would leave out or repeat.
#[track_caller]
fn covers(blocks: u32, of_block: usize, units: usize, what: &str) {
    let blocks = blocks as usize;
    assert!(blocks * of_block >= units && (blocks - 1) * of_block < units, "{what}: {blocks} blocks for {units}");
}

#[test]
fn patch_embeddings() {
    for (columns, patch) in [(96, 4), (128, 4), (192, 4), (24, 2), (64, 8), (768, 2)] {
        let config = PatchConfig {
            patch,
            columns,
            integer: true,
            output: false,
            norm: true,
            position: false,
            stream: StreamType::F16,
        };
        for tokens in [1, 31, 32, 33, 3136, 3136 * 128, 36864] {
            let launch = config.launch(tokens);
            let what = format!("{columns} columns, patch {patch}, {tokens} tokens");
            // Wide or coarse embeddings are refused where they do not fit; the official models' fit everywhere.
            let limit = if (96..=192).contains(&columns) { SHARED[0].1 } else { SHARED[2].1 };
            check(launch, limit, &what);
            covers(launch.grid[0], 32, tokens, &what);
            // A table of pixels, the patches and the results.
            let floats = 3 * 256 + 32 * (3 * patch * patch + columns);
            assert!(launch.shared as usize >= 4 * floats, "{what}");
        }
    }
}

#[test]
fn norms() {
    for columns in COLUMNS.into_iter().chain((64..=6144).step_by(64)) {
        for stream in [StreamType::F16, StreamType::F32] {
            let config = NormConfig { columns, pieces: 1, stream };
            let (lanes, chunks) = config.lanes_and_chunks();
            assert!(lanes.is_power_of_two() && (4..=32).contains(&lanes), "{columns}: {lanes} lanes");
            let fits = 8 * lanes * chunks >= columns && 8 * lanes * (chunks - 1) < columns;
            assert!(fits, "{columns} columns: {lanes} lanes of {chunks} chunks");
            let lanes = if stream == StreamType::F32 { 4 } else { lanes };
            for rows in [1, 49, 63, 64, 65, 3136, 401_408] {
                let (launch, what) = (config.launch(rows), format!("{columns} columns, {rows} rows"));
                check(launch, 0, &what);
                // Blocks have whole rows.
                assert!(launch.threads as usize % lanes == 0, "{what}");
                covers(launch.grid[0], launch.threads as usize / lanes, rows, &what);
            }
        }
    }
}

/// Configurations of attention: both kinds of elements, by tokens of a window and heads.
fn attentions() -> impl Iterator<Item = AttentionConfig> {
    let of = |tokens| {
        [3, 6, 24, 48].into_iter().flat_map(move |heads| {
            [AttentionElements::Codes, AttentionElements::Half].map(|elements| AttentionConfig {
                elements,
                tokens,
                heads,
                probs_s8: false,
                exact: false,
            })
        })
    };
    [1, 16, 49, 64, 65, 144, 256, 576].into_iter().flat_map(of)
}

#[test]
fn attentions_cover_every_window_and_query_of_every_head() {
    for config in attentions() {
        for total in [1, 2, 64, 127, 2048, 8192] {
            for multiprocessors in [1, 40, 132] {
                let (each, launch) = config.launch(total, multiprocessors);
                let what = format!("{config:?}, {total} windows, {multiprocessors} multiprocessors");
                check(launch, SHARED[3].1, &what);
                assert!(launch.grid[0] as usize % config.heads == 0, "{what}");
                covers(launch.grid[0] / config.heads as u32, each, total, &what);
                if config.whole() {
                    assert!(config.tokens <= 64 && launch.grid[1] == 1, "{what}");
                } else {
                    assert_eq!(each, 1, "{what}");
                    covers(launch.grid[1], 64, config.tokens, &what);
                }
            }
        }
    }
}

#[test]
fn attention_of_small_windows_fits_every_gpu_and_of_large_ones_some() {
    for config in attentions() {
        let fits: Vec<&str> =
            SHARED.into_iter().filter(|(_, limit)| config.shared() <= *limit).map(|(name, _)| name).collect();
        let least = match (config.tokens, config.elements) {
            (..=256, _) => "sm_75",
            _ => "sm_86",
        };
        assert_eq!(fits.first(), Some(&least), "{config:?}: {} bytes", config.shared());
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
