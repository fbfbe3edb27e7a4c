//! The blocks of Swin-T at batches of 1 and 8: their ops one after the other over all rows, and as a chain over groups of
//! windows. For each product the share of the processor's peak, as in `linear`; for the other ops and the block the time.
//!
//! `cargo bench -p swinq-kernels --bench chain [-- STAGE]`; all cores unless `THREADS` says otherwise.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{STAGES, Stage, aligned, step, values};
use swinq_kernels::attention::{AttentionIn, AttentionSpec, WindowAttention};
use swinq_kernels::linear::{LinearI8, LinearOut, LinearSpec, Store};
use swinq_kernels::{
    AlignedBuf, AttentionQuant, Chain, Cpu, LayerNorm, Link, Pool, Probs, RowMap, RowOut, RowStore,
    code_stride, probe,
};

/// Tokens of a window, and of a side of it.
const WINDOW: usize = 49;
const SIDE: usize = 7;

/// Rows of a group, as in the engine.
const GROUP: usize = 196;

/// Samples, and runs of each, of which the fastest counts.
const SAMPLES: usize = 15;
const RUNS: usize = 5;

const NAMES: [&str; 7] = ["norm1", "qkv", "attention", "proj", "norm2", "fc1", "fc2"];

/// Inputs and columns of an op in channels of the stage; no inputs if it is no product.
const SIZES: [(usize, usize); 7] = [(0, 1), (1, 3), (0, 1), (1, 1), (0, 1), (1, 4), (4, 1)];

struct Block {
    links: Vec<Link>,
    map: Arc<RowMap>,
    chain: Chain,
    channels: usize,
}

fn product(cpu: Cpu, k: usize, n: usize, gelu: bool, store: Store) -> Link {
    let codes: Vec<i8> = (0..n * k).map(|i| (i * 7919 % 255) as i8).collect();
    let bias: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
    let spec = LinearSpec { n, k, bias: Some(&bias), output: None, gelu, store };
    let spread = vec![1.0 / (5000.0 * (k as f32).sqrt()); n];
    Link::LinearI8(Arc::new(LinearI8::new(cpu, spec, &codes, &spread)))
}

fn norm(cpu: Cpu, channels: usize) -> Link {
    let (gamma, beta, store) = (vec![1.0; channels], vec![0.0; channels], RowStore::Codes(step(0.03)));
    Link::Norm(Arc::new(LayerNorm::new(cpu, &gamma, &beta, 1e-5, store)))
}

fn attention(cpu: Cpu, stage: Stage) -> Link {
    let Stage { tokens, channels, heads } = stage;
    let site = Some(step(0.03));
    let spec = AttentionSpec {
        heads,
        head_dim: channels / heads,
        tokens: WINDOW,
        windows: tokens / WINDOW,
        scale: 0.18,
        bias: &values(heads * WINDOW * WINDOW),
        regions: None,
        quant: AttentionQuant { q: site, k: site, v: site, scores: None, probs: Probs::U8 },
        store: RowStore::Codes(step(0.03)),
    };
    Link::Attention(Arc::new(WindowAttention::new(cpu, spec)))
}

/// The windows of a square grid.
fn partition(tokens: usize) -> RowMap {
    let side = tokens.isqrt();
    let token = |row: usize| {
        let (window, at) = (row / WINDOW, row % WINDOW);
        let (y, x) = (window / (side / SIDE) * SIDE + at / SIDE, window % (side / SIDE) * SIDE + at % SIDE);
        Some(y * side + x)
    };
    RowMap::new(&(0..tokens).map(token).collect::<Vec<_>>(), tokens).expect("windows cover the grid")
}

impl Block {
    fn new(cpu: Cpu, stage: Stage) -> Block {
        let c = stage.channels;
        let codes = |n: usize| Store::Codes(vec![30.0; n]);
        let residual = || Store::Residual { branch: None, shortcut: None };
        let links = vec![
            norm(cpu, c),
            product(cpu, c, 3 * c, false, codes(3 * c)),
            attention(cpu, stage),
            product(cpu, c, c, false, residual()),
            norm(cpu, c),
            product(cpu, c, 4 * c, true, codes(4 * c)),
            product(cpu, 4 * c, c, false, residual()),
        ];
        let map = Arc::new(partition(stage.tokens));
        let chain = Chain::new(links.clone(), Arc::clone(&map), c, GROUP);
        Block { links, map, chain, channels: c }
    }

    /// The ops one after the other; `memory` is what lies between them.
    fn apart(
        &self,
        pool: &mut Pool,
        images: usize,
        stream: &mut [f32],
        memory: &mut [AlignedBuf; 2],
    ) -> Vec<Duration> {
        let rows = images * self.map.rows().len();
        let mut times = Vec::new();
        for (link, (inputs, columns)) in self.links.iter().zip(SIZES) {
            let [read, write] = memory;
            let out = &mut write.as_u8_mut()[..rows * code_stride(columns * self.channels)];
            let input = |columns: usize| &read.as_u8()[..rows * code_stride(columns * self.channels)];
            let (start, map) = (Instant::now(), &*self.map);
            match link {
                Link::Norm(op) => op.run(pool, images, stream, map, RowOut::Codes(out)),
                Link::Attention(op) => op.run(pool, images, AttentionIn::Codes(input(3)), RowOut::Codes(out)),
                Link::LinearI8(op) if columns == 1 => {
                    op.run(pool, rows, input(inputs), LinearOut::Residual { stream, map });
                }
                Link::LinearI8(op) => op.run(pool, rows, input(inputs), LinearOut::Codes(out)),
                Link::LinearF32(_) => unreachable!("all products are of codes"),
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

/// Both ways in turn.
fn bench(cpu: Cpu, pool: &mut Pool, stage: Stage, images: usize) {
    let block = Block::new(cpu, stage);
    let rows = images * stage.tokens;
    let mut stream = aligned(rows * stage.channels);
    let mut memory = [(); 2].map(|()| AlignedBuf::new(rows * 4 * stage.channels));
    let (mut apart, mut chain) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let peak = (0..4).filter_map(|_| probe::int8_peak(cpu, pool)).fold(0.0, f64::max);
        apart.push((peak, fastest(|| block.apart(pool, images, stream.as_f32_mut(), &mut memory))));
        chain.push((peak, fastest(|| block.chain.run_timed(pool, images, stream.as_f32_mut()))));
    }
    for (i, name) in NAMES.into_iter().chain(["block"]).enumerate() {
        let (inputs, columns) = SIZES.get(i).copied().unwrap_or_default();
        let macs = (rows * inputs * columns * stage.channels.pow(2)) as f64;
        println!("  {name:10} {}  {}", column(&apart, i, macs), column(&chain, i, macs));
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
            let (isa, threads) = (cpu.isa(), pool.threads());
            println!("stage {}, batch {images}, {threads} threads, {isa}: one by one, as a chain", i + 1);
            bench(cpu, &mut pool, stage, images);
        }
    }
}
