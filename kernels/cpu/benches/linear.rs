//! The linears of Swin-T with their epilogues, in multiply-accumulates per second and as a share of the
//! processor's peak rate. The share of a sample compares its fastest run with the fastest of four probes just
//! before it; the median of all samples is printed. This works on a machine with other load, too.
//!
//! `cargo bench -p swinq-kernels --bench linear [-- FILTER]`; `THREADS` sets the number of threads (default:
//! all cores), `SWINQ_ISA` the kernel (default: the fastest). Each run uses another copy of the weights,
//! because in an inference no linear finds its weights in the second-level cache.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use swinq_kernels::linear::{LinearF32, LinearI8, LinearOut, LinearSpec, Store};
use swinq_kernels::{AlignedBuf, Cpu, Pool, probe};
use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer, RowMap, code_stride};

/// The epilogue of a linear.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    F32,
    Codes,
    GeluCodes,
    Residual,
}

impl Then {
    fn is_codes(self) -> bool {
        matches!(self, Then::Codes | Then::GeluCodes)
    }
}

/// Name, rows of an image, columns, inputs, epilogue.
const INT8: [(&str, usize, usize, usize, Then); 20] = [
    ("1 qkv", 3136, 288, 96, Then::Codes),
    ("1 proj", 3136, 96, 96, Then::Residual),
    ("1 fc1", 3136, 384, 96, Then::GeluCodes),
    ("1 fc1 without GELU", 3136, 384, 96, Then::Codes),
    ("1 fc2", 3136, 96, 384, Then::Residual),
    ("1 reduction", 784, 192, 384, Then::F32),
    ("2 qkv", 784, 576, 192, Then::Codes),
    ("2 proj", 784, 192, 192, Then::Residual),
    ("2 fc1", 784, 768, 192, Then::GeluCodes),
    ("2 fc2", 784, 192, 768, Then::Residual),
    ("2 reduction", 196, 384, 768, Then::F32),
    ("3 qkv", 196, 1152, 384, Then::Codes),
    ("3 proj", 196, 384, 384, Then::Residual),
    ("3 fc1", 196, 1536, 384, Then::GeluCodes),
    ("3 fc2", 196, 384, 1536, Then::Residual),
    ("3 reduction", 49, 768, 1536, Then::F32),
    ("4 qkv", 49, 2304, 768, Then::Codes),
    ("4 proj", 49, 768, 768, Then::Residual),
    ("4 fc1", 49, 3072, 768, Then::GeluCodes),
    ("4 fc2", 49, 768, 3072, Then::Residual),
];

/// The linears that stay in f32.
const F32: [(&str, usize, usize, usize, Then); 2] =
    [("patch_embed", 3136, 96, 48, Then::F32), ("head", 1, 1000, 768, Then::F32)];

/// Total bytes of the copies of a weight: more than the caches of the cores hold.
const COPIES: usize = 32 << 20;

/// The results of a linear, aligned as in an engine, and how they are stored.
struct Results {
    memory: AlignedBuf,
    /// Values of one byte or four.
    len: usize,
    map: RowMap,
    then: Then,
}

impl Results {
    fn new(rows: usize, n: usize, then: Then) -> Results {
        let len = if then.is_codes() { rows * code_stride(n) } else { rows * n };
        let memory = AlignedBuf::new(if then.is_codes() { len } else { 4 * len });
        Results { memory, len, map: RowMap::identity(rows), then }
    }

    fn out(&mut self) -> LinearOut<'_> {
        let (memory, len) = (&mut self.memory, self.len);
        match self.then {
            Then::F32 => LinearOut::F32(&mut memory.as_f32_mut()[..len]),
            Then::Codes | Then::GeluCodes => LinearOut::Codes(&mut memory.as_u8_mut()[..len]),
            Then::Residual => {
                LinearOut::Residual { residual: &mut memory.as_f32_mut()[..len], map: &self.map }
            }
        }
    }
}

fn spec(n: usize, k: usize, bias: &[f32], then: Then) -> LinearSpec<'_> {
    let store = match then {
        Then::F32 => Store::F32,
        Then::Codes | Then::GeluCodes => {
            Store::Codes(ColumnQuantizers::symmetric(n, &[Quantizer::new(0.03).expect("a scale")]))
        }
        Then::Residual => Store::Residual { branch: None, shortcut: None },
    };
    LinearSpec {
        n,
        k,
        bias: Some(bias),
        output: None,
        gelu: (then == Then::GeluCodes).then_some(Gelu::Quadratic),
        store,
    }
}

/// One benchmark: `run` performs run number i, of `macs` multiply-accumulates.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    macs: usize,
    pool: &mut Pool,
    peak: impl Fn(&mut Pool) -> Option<f64>,
    mut run: impl FnMut(&mut Pool, usize),
) {
    let shares = RefCell::new(Vec::new());
    let mut runs = 0;
    group.throughput(Throughput::Elements(macs as u64));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|count| {
            let peak = (0..4).filter_map(|_| peak(pool)).fold(0.0, f64::max);
            let time = |i| {
                let start = Instant::now();
                run(pool, i);
                start.elapsed()
            };
            let times: Vec<Duration> = (runs..runs + count as usize).map(time).collect();
            runs += times.len();
            let fastest = times.iter().min().map_or(f64::NAN, Duration::as_secs_f64);
            shares.borrow_mut().push(macs as f64 / fastest / peak);
            times.iter().sum()
        });
    });
    let mut shares = shares.into_inner();
    shares.sort_by(f64::total_cmp);
    if let Some(median) = shares.get(shares.len() / 2) {
        println!("{name:48} {:.1} % of the probed peak", 100.0 * median);
    }
}

fn int8(group: &mut BenchmarkGroup<'_, WallTime>, cpu: Cpu, pool: &mut Pool, batch: usize) {
    for (name, rows, n, k, then) in INT8 {
        let rows = rows * batch;
        let codes: Vec<i8> = (0..n * k).map(|i| (i * 7919 % 255) as i8).collect();
        let mut input = AlignedBuf::new(rows * code_stride(k));
        input.as_u8_mut().iter_mut().enumerate().for_each(|(i, x)| *x = (i * 104_729 % 256) as u8);
        let input = &input.as_u8()[..rows * code_stride(k)];
        let bias: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
        let op = |_| LinearI8::new(cpu, spec(n, k, &bias, then), &codes, &vec![1e-5; n]);
        let ops: Vec<LinearI8> = (0..COPIES.div_ceil(n * k)).map(op).collect();
        let mut results = Results::new(rows, n, then);
        let name = format!("{name} [{rows}, {k}] x [{n}]");
        let peak = |pool: &mut Pool| probe::int8_peak(cpu, pool);
        measure(group, &name, rows * n * k, pool, peak, |pool, i| {
            ops[i % ops.len()].run(pool, rows, input, results.out());
        });
    }
}

fn float(group: &mut BenchmarkGroup<'_, WallTime>, cpu: Cpu, pool: &mut Pool, batch: usize) {
    for (name, rows, n, k, then) in F32 {
        let rows = rows * batch;
        let (weight, bias) = (vec![0.5; n * k], vec![0.1; n]);
        let mut input = AlignedBuf::new(4 * rows * k);
        input.as_f32_mut().fill(0.25);
        let input = &input.as_f32()[..rows * k];
        let op = |_| LinearF32::new(cpu, spec(n, k, &bias, then), &weight);
        let ops: Vec<LinearF32> = (0..COPIES.div_ceil(4 * n * k)).map(op).collect();
        let mut results = Results::new(rows, n, then);
        let name = format!("{name} [{rows}, {k}] x [{n}]");
        let peak = |pool: &mut Pool| probe::f32_peak(cpu, pool);
        measure(group, &name, rows * n * k, pool, peak, |pool, i| {
            ops[i % ops.len()].run(pool, rows, input, results.out());
        });
    }
}

fn main() {
    let cpu = Cpu::detect().expect("SWINQ_ISA names an instruction set that is there");
    let threads = std::env::var("THREADS").map_or(0, |n| n.parse().expect("THREADS is a number"));
    let mut pool = Pool::new(threads);
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .without_plots()
        .configure_from_args();
    for batch in [1, 8] {
        let title = format!("{}, {} threads, batch {batch}", cpu, pool.threads());
        let mut group = criterion.benchmark_group(format!("{title}, INT8"));
        int8(&mut group, cpu, &mut pool, batch);
        group.finish();
        let mut group = criterion.benchmark_group(format!("{title}, f32"));
        float(&mut group, cpu, &mut pool, batch);
        group.finish();
    }
    criterion.final_summary();
}
