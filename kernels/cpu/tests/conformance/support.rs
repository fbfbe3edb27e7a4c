//! Shared by the conformance suites: the implementations to run, and input for them.

use swinq_kernels::{Cpu, Pool};
pub use swinq_testing::{Rng, assert_same, assert_varied, max_error, step, window_map};

/// Names in `REQUIRE_IMPL` that are not kernels; other suites check them.
const OTHERS: [&str; 7] = ["candle_cuda", "cuda", "cudart", "host_kernels", "numpy", "nvrtc", "wheel"];

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

/// Panics unless one op that runs over images of one size, of another, and of the first again gives the bits
/// of a new op for each run.
pub fn assert_sizes_leave_no_trace<O, S: Copy>(
    [first, second]: [S; 2],
    new: impl Fn() -> O,
    run: impl Fn(&O, &mut Pool, S) -> Vec<f32>,
) {
    let (op, mut pool) = (new(), Pool::new(2));
    for (i, size) in [first, second, first].into_iter().enumerate() {
        let want = run(&new(), &mut Pool::new(2), size);
        assert_same(&run(&op, &mut pool, size), &want, &format!("run {i}"));
    }
}
