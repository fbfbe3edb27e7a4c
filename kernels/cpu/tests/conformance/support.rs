//! Shared by the conformance suites: the implementations to run, and input for them.

use swinq_kernels::Cpu;
pub use swinq_testing::{Rng, assert_same, assert_varied, max_error, step, window_map};

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
