//! The blocks of Swin-T at batches of 1 and 8, run op by op over all rows and as fused blocks. Prints the
//! time of each op and of the block, and for each linear its share of the processor's peak rate, as the bench
//! `linear` does.
//!
//! `cargo bench -p swinq-kernels --bench fused_block [-- STAGE]`; `THREADS` sets the number of threads
//! (default: all cores).

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{STAGES, Stage, aligned, step, values};
use swinq_kernels::attention::{AttentionIn, WindowAttention};
use swinq_kernels::linear::{LinearI8, LinearOut, LinearSpec, Store};
use swinq_kernels::{AlignedBuf, BlockOp, Cpu, FusedBlock, FusedRows, LayerNorm, Pool, RowOut, probe};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, ColumnQuantizers, Gelu, Probs, RowMap, RowStore, Windows, code_stride,
};

/// Tokens of a window, and of one of its sides.
const WINDOW: usize = 49;
const SIDE: usize = 7;

/// Rows of a task, as in the engine.
const TASK_ROWS: usize = 196;

/// Number of samples, and runs of each sample, of which the fastest counts.
const SAMPLES: usize = 15;
const RUNS: usize = 5;

const NAMES: [&str; 7] = ["norm1", "qkv", "attention", "proj", "norm2", "fc1", "fc2"];

/// Inputs and columns of each op in multiples of the stage's channels; 0 inputs for ops other than linears.
const SIZES: [(usize, usize); 7] = [(0, 1), (1, 3), (0, 1), (1, 1), (0, 1), (1, 4), (4, 1)];

struct Block {
    ops: Vec<BlockOp>,
    windows: Windows,
    fused: FusedBlock,
    channels: usize,
}

fn linear(cpu: Cpu, k: usize, n: usize, gelu: Option<Gelu>, store: Store) -> BlockOp {
    let codes: Vec<i8> = (0..n * k).map(|i| (i * 7919 % 255) as i8).collect();
    let bias: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
    let spec = LinearSpec { n, k, bias: Some(&bias), output: None, gelu, store };
    let spread = vec![1.0 / (5000.0 * (k as f32).sqrt()); n];
    BlockOp::LinearI8(Arc::new(LinearI8::new(cpu, spec, &codes, &spread)))
}

fn norm(cpu: Cpu, channels: usize) -> BlockOp {
    let (gamma, beta, store) = (vec![1.0; channels], vec![0.0; channels], RowStore::Codes(step(0.03)));
    BlockOp::Norm(Arc::new(LayerNorm::new(cpu, &gamma, &beta, 1e-5, store)))
}

fn attention(cpu: Cpu, stage: Stage) -> BlockOp {
    let Stage { channels, heads, .. } = stage;
    let site = Some(step(0.03));
    let spec = AttentionSpec {
        heads,
        head_dim: channels / heads,
        tokens: WINDOW,
        scales: &vec![0.18; heads],
        hi_lo: &[],
        mask: -100.0,
        bias: &values(heads * WINDOW * WINDOW),
        regions: None,
        quant: AttentionQuant { q: site, k: site, v: site, scores: None, probs: Probs::U8 },
        store: RowStore::Codes(step(0.03)),
    };
    BlockOp::Attention(Arc::new(WindowAttention::new(cpu, spec)))
}

/// The windows of a square grid, without masks.
fn partition(tokens: usize) -> Windows {
    let side = tokens.isqrt();
    let token = |row: usize| {
        let (window, at) = (row / WINDOW, row % WINDOW);
        let (y, x) = (window / (side / SIDE) * SIDE + at / SIDE, window % (side / SIDE) * SIDE + at % SIDE);
        Some(y * side + x)
    };
    let rows: Vec<_> = (0..tokens).map(token).collect();
    let map = RowMap::new(&rows, tokens).expect("windows cover the grid");
    Windows::new(map, vec![0; tokens / WINDOW])
}

impl Block {
    fn new(cpu: Cpu, stage: Stage) -> Block {
        let c = stage.channels;
        let codes = |n: usize| Store::Codes(ColumnQuantizers::symmetric(n, &[step(0.03)]));
        let residual = || Store::Residual { branch: None, shortcut: None };
        let ops = vec![
            norm(cpu, c),
            linear(cpu, c, 3 * c, None, codes(3 * c)),
            attention(cpu, stage),
            linear(cpu, c, c, None, residual()),
            norm(cpu, c),
            linear(cpu, c, 4 * c, Some(Gelu::Quadratic), codes(4 * c)),
            linear(cpu, 4 * c, c, None, residual()),
        ];
        let fused = FusedBlock::new(ops.clone(), c, TASK_ROWS);
        Block { ops, windows: partition(stage.tokens), fused, channels: c }
    }

    /// Runs the ops as a fused block.
    fn fused(&self, pool: &mut Pool, images: usize, residual: &mut [f32]) -> Vec<Duration> {
        let rows = FusedRows { map: self.windows.map(), masks: self.windows.masks() };
        self.fused.run_timed(pool, images, rows, residual)
    }

    /// Runs the ops one after the other; `memory` holds their intermediate results.
    fn apart(
        &self,
        pool: &mut Pool,
        images: usize,
        residual: &mut [f32],
        memory: &mut [AlignedBuf; 2],
    ) -> Vec<Duration> {
        let (map, masks) = (self.windows.map(), self.windows.masks());
        let rows = images * map.rows().len();
        let mut times = Vec::new();
        for (op, (inputs, columns)) in self.ops.iter().zip(SIZES) {
            let [read, write] = memory;
            let out = &mut write.as_u8_mut()[..rows * code_stride(columns * self.channels)];
            let input = |columns: usize| &read.as_u8()[..rows * code_stride(columns * self.channels)];
            let start = Instant::now();
            match op {
                BlockOp::Norm(norm) => norm.run(pool, images, residual, map, RowOut::Codes(out)),
                BlockOp::Attention(attention) => {
                    attention.run(pool, images, masks, AttentionIn::Codes(input(3)), RowOut::Codes(out))
                }
                BlockOp::LinearI8(linear) if columns == 1 => {
                    linear.run(pool, rows, input(inputs), LinearOut::Residual { residual, map });
                }
                BlockOp::LinearI8(linear) => linear.run(pool, rows, input(inputs), LinearOut::Codes(out)),
                _ => unreachable!("a Swin V1 block of INT8 linears"),
            }
            times.push(start.elapsed());
            memory.swap(0, 1);
        }
        times
    }
}

/// The fastest of some runs, in seconds: each op, and the block last.
fn fastest(mut run: impl FnMut() -> Vec<Duration>) -> [f64; NAMES.len() + 1] {
    let mut fastest = [f64::INFINITY; NAMES.len() + 1];
    for _ in 0..RUNS {
        let times = run();
        let block = times.iter().sum();
        for (fastest, time) in fastest.iter_mut().zip(times.iter().chain([&block])) {
            *fastest = fastest.min(time.as_secs_f64());
        }
    }
    fastest
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The peak probed before a sample, and its [`fastest`] times.
type Sample = (f64, [f64; NAMES.len() + 1]);

/// Time, and share of the peak if there are `macs`, of op `i`: medians of `samples`.
fn column(samples: &[Sample], i: usize, macs: f64) -> String {
    let time = median(samples.iter().map(|(_, times)| times[i]).collect());
    let share = median(samples.iter().map(|(peak, times)| macs / times[i] / peak).collect());
    let share = if macs > 0.0 { format!("{:5.1} %", 100.0 * share) } else { String::new() };
    format!("{:9.1} us {share:7}", 1e6 * time)
}

/// Measures the ops and the fused block in turn.
fn bench(cpu: Cpu, pool: &mut Pool, stage: Stage, images: usize) {
    let block = Block::new(cpu, stage);
    let rows = images * stage.tokens;
    let mut residual = aligned(rows * stage.channels);
    let mut memory = [(); 2].map(|()| AlignedBuf::new(rows * code_stride(4 * stage.channels)));
    let (mut apart, mut fused) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let peak = (0..4).filter_map(|_| probe::int8_peak(cpu, pool)).fold(0.0, f64::max);
        apart.push((peak, fastest(|| block.apart(pool, images, residual.as_f32_mut(), &mut memory))));
        fused.push((peak, fastest(|| block.fused(pool, images, residual.as_f32_mut()))));
    }
    for (i, name) in NAMES.into_iter().chain(["block"]).enumerate() {
        let (inputs, columns) = SIZES.get(i).copied().unwrap_or_default();
        let macs = (rows * inputs * columns * stage.channels.pow(2)) as f64;
        println!("  {name:10} {}  {}", column(&apart, i, macs), column(&fused, i, macs));
    }
}

fn main() {
    let cpu = Cpu::detect().expect("SWINQ_ISA names an instruction set that is there");
    let threads = std::env::var("THREADS").map_or(0, |n| n.parse().expect("THREADS is a number"));
    let only = std::env::args().skip(1).find_map(|argument| argument.parse::<usize>().ok());
    let mut pool = Pool::new(threads);
    for images in [1, 8] {
        for (i, stage) in
            STAGES.into_iter().enumerate().filter(|(i, _)| only.is_none_or(|only| only == i + 1))
        {
            let (isa, threads) = (cpu, pool.threads());
            println!("stage {}, batch {images}, {threads} threads, {isa}: op by op, fused", i + 1);
            bench(cpu, &mut pool, stage, images);
        }
    }
}
