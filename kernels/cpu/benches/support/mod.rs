//! Shared by the benchmarks: the stages of Swin-T, and input for them.

#![allow(dead_code)] // Each benchmark uses its own part.

use criterion::Criterion;
use swinq_kernels::{AlignedBuf, Cpu, Pool};
use swinq_numerics::Quantizer;

/// Tokens of an image, channels and heads of one stage of Swin-T.
#[derive(Clone, Copy)]
pub struct Stage {
    pub tokens: usize,
    pub channels: usize,
    pub heads: usize,
}

/// The four stages at 224 x 224.
pub const STAGES: [Stage; 4] = [
    Stage { tokens: 3136, channels: 96, heads: 3 },
    Stage { tokens: 784, channels: 192, heads: 6 },
    Stage { tokens: 196, channels: 384, heads: 12 },
    Stage { tokens: 49, channels: 768, heads: 24 },
];

pub fn step(scale: f32) -> Quantizer {
    Quantizer::new(scale).expect("a positive step")
}

/// Values in [-2, 2] with a period of about a thousand.
pub fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 1009) as f32 / 252.0 - 2.0).collect()
}

/// [`values`], aligned as in an engine; `count` is a multiple of a cache line.
pub fn aligned(count: usize) -> AlignedBuf {
    assert_eq!(count % 16, 0);
    let mut memory = AlignedBuf::new(4 * count);
    memory.as_f32_mut().copy_from_slice(&values(count));
    memory
}

/// As [`aligned`], for bytes.
pub fn aligned_codes(count: usize) -> AlignedBuf {
    assert_eq!(count % 64, 0);
    let mut memory = AlignedBuf::new(count);
    memory.as_u8_mut().iter_mut().enumerate().for_each(|(i, code)| *code = (i * 7919 % 251) as u8);
    memory
}

/// Calls `bench` for each kernel except the scalar reference, with one thread and with all, and with a name.
pub fn for_each(mut bench: impl FnMut(Cpu, &mut Pool, &str)) {
    for cpu in Cpu::available().into_iter().filter(|cpu| cpu.name() != "scalar") {
        for threads in [1, 0] {
            let mut pool = Pool::new(threads);
            let name = format!("{}/{} threads", cpu.name(), pool.threads());
            bench(cpu, &mut pool, &name);
        }
    }
}

/// Short runs, because there are many cases.
pub fn criterion() -> Criterion {
    use std::time::Duration;
    let short = Criterion::default().warm_up_time(Duration::from_millis(200));
    short.measurement_time(Duration::from_millis(800)).sample_size(30).configure_from_args()
}
