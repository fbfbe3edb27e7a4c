//! Shared by the conformance suites: the implementations to run, and input for them.

#![allow(dead_code)] // Each suite uses its own part.

use swinq_kernels::Cpu;
use swinq_numerics::{Quantizer, RowMap};
#[allow(unused_imports)] // Each suite uses its own part.
pub use swinq_testing::{Rng, assert_same, assert_varied, max_error};

/// Names in `REQUIRE_IMPL` that are not kernels; other suites check them.
const OTHERS: [&str; 6] = ["candle_cuda", "cuda", "host_kernels", "numpy", "nvrtc", "wheel"];

/// Runs `check` for every implementation that the processor can run, and prints their names. Fails if an
/// implementation in `REQUIRE_IMPL` (comma-separated names) is absent.
pub fn for_each_cpu(check: impl Fn(Cpu)) {
    let available = Cpu::available();
    let names: Vec<&str> = available.iter().map(|cpu| cpu.name()).collect();
    eprintln!("implementations: {}", names.join(" "));
    let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
    for name in required.split(',').filter(|name| !name.is_empty() && !OTHERS.contains(name)) {
        assert!(names.contains(&name), "REQUIRE_IMPL asks for {name}; there are {names:?}");
    }
    available.into_iter().for_each(check);
}

/// A quantizer with scale `scale`.
pub fn step(scale: f32) -> Quantizer {
    Quantizer::new(scale).unwrap()
}

/// A map in scrambled order in which every eighth row is padding, and the number of images that `rows` rows
/// form (2 if `rows` is even).
pub fn window_map(rows: usize) -> (RowMap, usize) {
    let images = if rows.is_multiple_of(2) { 2 } else { 1 };
    let period = rows / images;
    let kept: Vec<usize> = (0..period).filter(|i| i % 8 != 5).collect();
    let mut order: Vec<Option<usize>> = vec![None; period];
    let tokens = kept.len();
    for (token, place) in kept.into_iter().enumerate() {
        order[place] = Some((token + tokens / 3) % tokens);
    }
    (RowMap::new(&order, tokens).unwrap(), images)
}
