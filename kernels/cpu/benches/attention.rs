//! Window attention at the sizes of Swin-T and of Swin V2-T, batch 1; throughput counts the operations of the
//! two products (`elem` is one operation).
//!
//! ```text
//! cargo bench -p swinq-kernels --bench attention -- 'int8/stage 1/avx512_vnni'
//! cargo bench -p swinq-kernels --bench attention -- 'int8 v2 hi and lo codes/stage 1'
//! ```

mod support;

use criterion::{Criterion, Throughput};
use support::{STAGES, Stage, aligned, aligned_codes, for_each, step, values};
use swinq_kernels::{AlignedBuf, AttentionIn, Cpu, RowOut, WindowAttention};
use swinq_numerics::{AttentionQuant, AttentionSpec, MASKS, Probs, RowStore, code_stride};

/// Tokens of a window.
const WINDOW: usize = 49;
/// The same of Swin V2.
const WINDOW_V2: usize = 64;
const HEAD: usize = 32;

/// Attention over windows of `n` tokens; `hi_lo` is that of every head.
fn op(
    cpu: Cpu,
    (n, stage): (usize, Stage),
    hi_lo: bool,
    quant: AttentionQuant,
    store: RowStore,
) -> WindowAttention {
    let heads = stage.heads;
    let bias = values(heads * n * n);
    let regions: Vec<u8> = (0..MASKS * n).map(|i| u8::from(i / n > 0 && i % n > 20)).collect();
    let spec = AttentionSpec {
        heads,
        head_dim: HEAD,
        tokens: n,
        scales: &vec![1.0 / (HEAD as f32).sqrt(); heads],
        hi_lo: &vec![hi_lo; heads],
        mask: -100.0,
        bias: &bias,
        regions: Some(&regions),
        quant,
        store,
    };
    WindowAttention::new(cpu, spec)
}

/// The mask of each window: one in every fourth.
fn masks(n: usize, stage: Stage) -> Vec<u8> {
    (0..stage.tokens / n).map(|window| if window % 4 == 3 { 1 } else { 0 }).collect()
}

fn int8(c: &mut Criterion, name: &str, n: usize, stage: Stage, hi_lo: bool) {
    let s = Some(step(0.02));
    let quant = AttentionQuant { q: s, k: s, v: s, scores: None, probs: Probs::U8 };
    let parts = if hi_lo { 5 } else { 3 };
    let codes = aligned_codes(stage.tokens * code_stride(parts * stage.channels));
    let len = stage.tokens * code_stride(stage.channels);
    let (masks, mut out) = (masks(n, stage), AlignedBuf::new(len));
    for_each(|cpu, pool, which| {
        let op = op(cpu, (n, stage), hi_lo, quant, RowStore::Codes(step(0.02)));
        measure(c, &format!("{name}/{which}"), n, stage, || {
            let out = RowOut::Codes(&mut out.as_u8_mut()[..len]);
            op.run(pool, 1, &masks, AttentionIn::Codes(codes.as_u8()), out);
        });
    });
}

fn float(c: &mut Criterion, name: &str, stage: Stage) {
    let quant = AttentionQuant { q: None, k: None, v: None, scores: None, probs: Probs::Float };
    let x = aligned(stage.tokens * 3 * stage.channels);
    let (masks, mut out) = (masks(WINDOW, stage), AlignedBuf::new(4 * stage.tokens * stage.channels));
    for_each(|cpu, pool, which| {
        let op = op(cpu, (WINDOW, stage), false, quant, RowStore::F32);
        measure(c, &format!("f32/{name}/{which}"), WINDOW, stage, || {
            op.run(pool, 1, &masks, AttentionIn::F32(x.as_f32()), RowOut::F32(out.as_f32_mut()));
        });
    });
}

fn measure(c: &mut Criterion, name: &str, n: usize, stage: Stage, mut run: impl FnMut()) {
    let mut group = c.benchmark_group("attention");
    group.throughput(Throughput::Elements((4 * stage.tokens * n * stage.channels) as u64));
    group.bench_function(name, |b| b.iter(&mut run));
}

fn main() {
    let mut c = support::criterion();
    for (i, stage) in STAGES.into_iter().enumerate() {
        let name = format!("stage {}", i + 1);
        int8(&mut c, &format!("int8/{name}"), WINDOW, stage, false);
        float(&mut c, &name, stage);
        let v2 = Stage { tokens: stage.tokens / WINDOW * WINDOW_V2, ..stage };
        int8(&mut c, &format!("int8 v2/{name}"), WINDOW_V2, v2, false);
        int8(&mut c, &format!("int8 v2 hi and lo codes/{name}"), WINDOW_V2, v2, true);
    }
    c.final_summary();
}
