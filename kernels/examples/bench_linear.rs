//! Times the products of Swin-T at batch 1 against the processor's peak rate.
//!
//! `cargo run --release -p swinq-kernels --example bench_linear [threads] [repetitions]`

use std::time::Instant;

use swinq_kernels::linear::{LinearF32, LinearI8, LinearOut, LinearSpec, Store};
use swinq_kernels::{Cpu, Isa, Pool, RowMap};

/// Name, rows, columns, inputs, GELU, residual, how many of them Swin-T has.
const PRODUCTS: [(&str, usize, usize, usize, bool, bool, usize); 17] = [
    ("1 qkv", 3136, 288, 96, false, false, 2),
    ("1 proj", 3136, 96, 96, false, true, 2),
    ("1 fc1", 3136, 384, 96, true, false, 2),
    ("1 fc2", 3136, 96, 384, false, true, 2),
    ("1 merge", 784, 192, 384, false, false, 1),
    ("2 qkv", 784, 576, 192, false, false, 2),
    ("2 proj", 784, 192, 192, false, true, 2),
    ("2 fc1", 784, 768, 192, true, false, 2),
    ("2 fc2", 784, 192, 768, false, true, 2),
    ("3 qkv", 196, 1152, 384, false, false, 6),
    ("3 proj", 196, 384, 384, false, true, 6),
    ("3 fc1", 196, 1536, 384, true, false, 6),
    ("3 fc2", 196, 384, 1536, false, true, 6),
    ("4 qkv", 49, 2304, 768, false, false, 2),
    ("4 proj", 49, 768, 768, false, true, 2),
    ("4 fc1", 49, 3072, 768, true, false, 2),
    ("4 fc2", 49, 768, 3072, false, true, 2),
];

/// Best of `repetitions`, in seconds.
fn best(repetitions: usize, mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..repetitions).map(time).fold(f64::INFINITY, f64::min)
}

/// Seconds of one product in INT8 and in f32.
fn times(cpu: Cpu, pool: &mut Pool, repetitions: usize, product: usize) -> (f64, f64) {
    let (_, rows, n, k, gelu, residual, _) = PRODUCTS[product];
    let spec = |store| LinearSpec { n, k, bias: None, output: None, gelu, store };
    let (mut bytes, mut floats, map) = (vec![0u8; rows * n], vec![0f32; rows * n], RowMap::identity(rows));
    let residual_store = Store::Residual { branch: None, shortcut: None };
    let stores = if residual {
        [residual_store.clone(), residual_store]
    } else {
        [Store::Codes(vec![1.0; n]), Store::F32]
    };
    let [int8_store, float_store] = stores;
    let codes: Vec<i8> = (0..n * k).map(|i| (i * 7919 % 255) as i8).collect();
    let input: Vec<u8> = (0..rows * k).map(|i| (i * 104_729 % 256) as u8).collect();
    let int8 = LinearI8::new(cpu, spec(int8_store), &codes, &vec![1e-3; n]);
    let int8 = best(repetitions, || {
        let out = match residual {
            true => LinearOut::Residual { stream: &mut floats, map: &map },
            false => LinearOut::Codes(&mut bytes),
        };
        int8.run(pool, rows, &input, out);
    });
    let weight: Vec<f32> = codes.iter().map(|&c| f32::from(c) * 1e-2).collect();
    let input: Vec<f32> = input.iter().map(|&x| f32::from(x) * 1e-2 - 1.0).collect();
    let float = LinearF32::new(cpu, spec(float_store), &weight);
    let float = best(repetitions, || {
        let out = match residual {
            true => LinearOut::Residual { stream: &mut floats, map: &map },
            false => LinearOut::F32(&mut floats),
        };
        float.run(pool, rows, &input, out);
    });
    (int8, float)
}

/// Multiply-accumulates per second of a product that stays in the first-level cache and has no epilogue to speak of.
fn peaks(cpu: Cpu, pool: &mut Pool, repetitions: usize) -> (f64, f64) {
    let (rows, n, k) = (14 * 4 * pool.threads(), 32, 512);
    let spec = LinearSpec { n, k, bias: None, output: None, gelu: false, store: Store::F32 };
    let mut out = vec![0f32; rows * n];
    let macs = (rows * n * k) as f64;
    let int8 = LinearI8::new(cpu, spec.clone(), &vec![1; n * k], &vec![1.0; n]);
    let input = vec![1u8; rows * k];
    let int8 = best(repetitions * 10, || int8.run(pool, rows, &input, LinearOut::F32(&mut out)));
    let float = LinearF32::new(cpu, spec, &vec![1.0; n * k]);
    let input = vec![1f32; rows * k];
    let float = best(repetitions * 10, || float.run(pool, rows, &input, LinearOut::F32(&mut out)));
    (macs / int8, macs / float)
}

fn main() {
    let mut arguments =
        std::env::args().skip(1).map(|a| a.parse().expect("threads and repetitions are numbers"));
    let mut pool = Pool::new(arguments.next().unwrap_or(0));
    let repetitions = arguments.next().unwrap_or(50);
    for cpu in Cpu::available().into_iter().filter(|cpu| cpu.isa() != Isa::Scalar) {
        let (int8_peak, float_peak) = peaks(cpu, &mut pool, repetitions);
        println!(
            "{}, {} threads; in cache: {:.0} GMAC/s INT8, {:.0} GMAC/s f32",
            cpu.isa(),
            pool.threads(),
            int8_peak * 1e-9,
            float_peak * 1e-9
        );
        let (mut int8_total, mut float_total) = (0.0, 0.0);
        for (product, &(name, rows, n, k, _, _, count)) in PRODUCTS.iter().enumerate() {
            let (int8, float) = times(cpu, &mut pool, repetitions, product);
            let macs = (rows * n * k) as f64;
            println!(
                "{name:8} [{rows:4}, {k:4}] x [{n:4}]  INT8 {:7.1} us {:6.0} GMAC/s   f32 {:7.1} us {:6.0} GMAC/s   x{:.2}",
                int8 * 1e6,
                macs / int8 * 1e-9,
                float * 1e6,
                macs / float * 1e-9,
                float / int8
            );
            int8_total += int8 * count as f64;
            float_total += float * count as f64;
        }
        println!("all of Swin-T: INT8 {:.2} ms, f32 {:.2} ms\n", int8_total * 1e3, float_total * 1e3);
    }
}
