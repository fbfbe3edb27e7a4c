//! LayerNorm to codes, patch merging and patch cutting at the sizes of Swin-T, batch 1; throughput counts the
//! bytes read and written.
//!
//! ```text
//! cargo bench -p swinq-kernels --bench norm -- 'layer_norm/stage 1/avx512_vnni'
//! ```

mod support;

use criterion::{Criterion, Throughput};
use half::f16;
use support::{STAGES, Stage, aligned, for_each, step};
use swinq_kernels::{AlignedBuf, LayerNorm, MergeNorm, Patches, RowOut};
use swinq_numerics::{ImageEdge, ImageLayout, Images, Pixels, RowMap, RowStore, Size, code_stride};

/// A map whose order differs from the order in memory, as that of a window partition does.
fn map(tokens: usize) -> RowMap {
    let rows: Vec<_> = (0..tokens).map(|i| Some((i + tokens / 2) % tokens)).collect();
    RowMap::new(&rows, tokens).expect("every token once")
}

fn layer_norm(c: &mut Criterion, name: &str, stage: Stage) {
    let Stage { tokens, channels, .. } = stage;
    let (x, map) = (aligned(tokens * channels), map(tokens));
    let (x, mut out) = (x.as_f32(), AlignedBuf::new(tokens * code_stride(channels)));
    for_each(|cpu, pool, which| {
        let (gamma, beta) = (vec![1.0; channels], vec![0.1; channels]);
        let op = LayerNorm::new(cpu, &gamma, &beta, 1e-5, RowStore::Codes(step(0.03)));
        measure(c, &format!("layer_norm/{name}/{which}"), 5 * x.len(), || {
            op.run(pool, 1, x, &map, RowOut::Codes(out.as_u8_mut()));
        });
    });
}

fn merge(c: &mut Criterion, name: &str, stage: Stage) {
    let Stage { tokens, channels, .. } = stage;
    let side = tokens.isqrt();
    let sources = (0..tokens / 4).flat_map(|i| {
        let at = i / (side / 2) * 2 * side + i % (side / 2) * 2;
        [at, at + side, at + 1, at + side + 1].map(Some)
    });
    let map = RowMap::new(&sources.collect::<Vec<_>>(), tokens).expect("every token once");
    let x = aligned(tokens * channels);
    let (x, mut out) = (x.as_f32(), AlignedBuf::new(tokens / 4 * code_stride(4 * channels)));
    for_each(|cpu, pool, which| {
        let (gamma, beta) = (vec![1.0; 4 * channels], vec![0.1; 4 * channels]);
        let op = MergeNorm::new(cpu, &gamma, &beta, 1e-5, RowStore::Codes(step(0.03)));
        measure(c, &format!("merge/{name}/{which}"), 5 * x.len(), || {
            op.run(pool, 1, x, &map, RowOut::Codes(out.as_u8_mut()));
        });
    });
}

fn patches(c: &mut Criterion) {
    let lookup = [[0.5; 256]; 3];
    let pixels: Vec<u8> = (0..224 * 224 * 3).map(|i| (i * 7919 % 251) as u8).collect();
    let values: Vec<f32> = pixels.iter().map(|&byte| f32::from(byte) / 255.0).collect();
    let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
    for_each(|_, pool, which| {
        let op = Patches::new(4, ImageEdge::Padded, &lookup, RowStore::F32);
        let mut out = AlignedBuf::new(4 * 3136 * 48);
        let given = [Pixels::U8(&pixels), Pixels::F32(&values), Pixels::F16(&halves)];
        for (name, bytes, pixels) in [("u8", 1, given[0]), ("f32", 4, given[1]), ("f16", 2, given[2])] {
            for layout in [ImageLayout::ChannelsLast, ImageLayout::ChannelsFirst] {
                let images = Images { size: Size::square(224), pixels, layout };
                let name = format!("patches/f32 from {name}, {layout:?}/{which}");
                measure(c, &name, (4 + bytes) * pixels.len(), || {
                    op.run(pool, 1, images, RowOut::F32(out.as_f32_mut()));
                });
            }
        }
    });
}

fn measure(c: &mut Criterion, name: &str, bytes: usize, mut run: impl FnMut()) {
    let mut group = c.benchmark_group("norm");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function(name, |b| b.iter(&mut run));
}

fn main() {
    let mut c = support::criterion();
    for (i, stage) in STAGES.into_iter().enumerate() {
        layer_norm(&mut c, &format!("stage {}", i + 1), stage);
        if i < 3 {
            merge(&mut c, &format!("stage {}", i + 1), stage);
        }
    }
    patches(&mut c);
    c.final_summary();
}
