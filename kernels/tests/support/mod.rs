//! Shared by the conformance suites: the implementations to run, and input for them.

#![allow(dead_code)] // Each suite uses its own part.

use swinq_kernels::{Cpu, Quantizer};

/// Names in `REQUIRE_IMPL` that are not kernels; other suites check them.
const OTHERS: [&str; 3] = ["cuda", "host_kernels", "nvrtc"];

/// Runs `check` for every implementation that the processor can run, and prints their names. Fails if an implementation
/// in `REQUIRE_IMPL` (comma-separated names) is absent.
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

/// SplitMix64 (Steele et al., 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize, amplitude: f32) -> Vec<f32> {
        (0..count).map(|_| self.float() * amplitude).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A quantizer with scale `scale`.
pub fn step(scale: f32) -> Quantizer {
    Quantizer::new(scale).unwrap()
}

/// The largest difference of two slices.
pub fn max_error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
}

/// Panics unless both are equal bit for bit (all NaNs count as equal), and their elements are not all equal.
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!(
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            "{what}, element {i}: {a:e}, not {b:e}"
        );
    }
    assert_varied(want, what);
}

/// Panics if all of at least 8 elements are equal.
pub fn assert_varied<T: PartialEq>(x: &[T], what: &str) {
    assert!(x.len() < 8 || x.iter().any(|v| *v != x[0]), "{what}: all outputs are equal");
}
