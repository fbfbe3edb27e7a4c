//! Times LayerNorm, window attention and patch cutting at the sizes of Swin-T, batch 1: best of many runs.
//!
//! ```text
//! cargo run --release -p swinq-kernels --example bench_attention -- [threads] [runs]
//! ```

use std::time::Instant;

use swinq_kernels::{
    AttentionIn, AttentionQuant, AttentionSpec, Cpu, LayerNorm, Patches, Pool, Probs, Quantizer, RowMap,
    RowOut, RowStore, WindowAttention,
};

/// Tokens of an image, channels, heads, blocks, of each stage.
const STAGES: [(usize, usize, usize, usize); 4] =
    [(3136, 96, 3, 2), (784, 192, 6, 2), (196, 384, 12, 6), (49, 768, 24, 2)];
const WINDOW: usize = 49;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let (threads, runs) = (args.next().unwrap_or(0), args.next().unwrap_or(200));
    let mut pool = Pool::new(threads);
    println!("{} threads, best of {runs}; the whole network's share in ms", pool.threads());
    for cpu in Cpu::available() {
        let runs = if cpu.isa().name() == "scalar" { 2 } else { runs };
        let (mut norms, mut integer, mut float) = (0.0, 0.0, 0.0);
        for (tokens, c, heads, blocks) in STAGES {
            let norm = layer_norm(cpu, &mut pool, runs, tokens, c);
            let [i8, f32] = attention(cpu, &mut pool, runs, tokens, heads);
            let products = 4.0 * (tokens * WINDOW * c) as f64 / 1e6;
            println!(
                "  {tokens:5} x {c:3}: LayerNorm {norm:.4} ms, {:.1} GB/s; attention INT8 {i8:.4} ms, {:.0} GOP/s; \
                 f32 {f32:.4} ms, {:.0} GFLOP/s",
                (tokens * c * 5) as f64 / norm / 1e6,
                products / i8,
                products / f32
            );
            norms += norm * (2 * blocks + 1) as f64;
            integer += i8 * blocks as f64;
            float += f32 * blocks as f64;
        }
        let patches = patches(&mut pool, runs);
        println!(
            "{}: LayerNorm {norms:.3}, attention INT8 {integer:.3}, f32 {float:.3}, patches {patches:.3}",
            cpu.isa()
        );
    }
}

/// Milliseconds of the fastest of `runs` runs of `f`.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    best
}

fn step(scale: f32) -> Quantizer {
    Quantizer::new(scale).expect("a positive step")
}

/// Values that repeat after a thousand or so, in [-2, 2].
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 1009) as f32 / 252.0 - 2.0).collect()
}

fn layer_norm(cpu: Cpu, pool: &mut Pool, runs: usize, tokens: usize, c: usize) -> f64 {
    let op = LayerNorm::new(cpu, &vec![1.0; c], &vec![0.1; c], 1e-5, RowStore::Codes(step(0.03)));
    let (x, map) = (values(tokens * c), RowMap::identity(tokens));
    let mut out = vec![0; tokens * c];
    best(runs, || op.run(pool, 1, &x, &map, RowOut::Codes(&mut out)))
}

/// INT8 and f32, with a mask in every fourth window.
fn attention(cpu: Cpu, pool: &mut Pool, runs: usize, tokens: usize, heads: usize) -> [f64; 2] {
    let (d, n) = (32, WINDOW);
    let (windows, columns) = (tokens / n, heads * d);
    let bias = values(heads * n * n);
    let regions: Vec<u8> = (0..tokens).map(|i| u8::from(i / n % 4 == 3 && i % n > 20)).collect();
    let op = |quant, store| {
        let (scale, bias, regions) = (1.0 / (d as f32).sqrt(), &bias[..], Some(&regions[..]));
        let spec =
            AttentionSpec { heads, head_dim: d, tokens: n, windows, scale, bias, regions, quant, store };
        WindowAttention::new(cpu, spec)
    };
    let s = Some(step(0.02));
    let quant = AttentionQuant { q: s, k: s, v: s, scores: None, probs: Probs::U8 };
    let int8 = op(quant, RowStore::Codes(step(0.02)));
    let codes: Vec<u8> = (0..tokens * 3 * columns).map(|i| (i * 7919 % 251) as u8).collect();
    let mut out = vec![0; tokens * columns];
    let int8 = best(runs, || int8.run(pool, 1, AttentionIn::Codes(&codes), RowOut::Codes(&mut out)));
    let quant = AttentionQuant { q: None, k: None, v: None, scores: None, probs: Probs::Float };
    let float = op(quant, RowStore::F32);
    let x = values(tokens * 3 * columns);
    let mut out = vec![0.0; tokens * columns];
    [int8, best(runs, || float.run(pool, 1, AttentionIn::F32(&x), RowOut::F32(&mut out)))]
}

fn patches(pool: &mut Pool, runs: usize) -> f64 {
    let lookup = [[0.5; 256]; 3];
    let op = Patches::new(224, 4, &lookup, RowStore::Codes(step(0.01)));
    let pixels = vec![7; 224 * 224 * 3];
    let mut out = vec![0; 3136 * 48];
    best(runs, || op.run(pool, 1, &pixels, RowOut::Codes(&mut out)))
}
