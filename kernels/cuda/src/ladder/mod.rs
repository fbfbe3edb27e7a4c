//! The ladder: one matrix product, one softmax and elementwise ops, from the simplest kernel to the fastest.
//! Each rung is a safe launch on device slices. A timer measures launches with a cold cache. Benchmarks use
//! the ladder; no engine does.

mod col32;
mod elementwise;
mod gemm;
mod output;
mod softmax;
mod timer;

pub use col32::Col32;
pub use elementwise::{Elementwise, ElementwiseOp};
pub use gemm::{FloatGemm, FloatRung};
pub use output::{Elements, Matrix, from_half, half_sum, spread, to_half};
pub use softmax::{Softmax, SoftmaxRung};
pub use timer::Timer;

use super::ops::{expect, int};

/// Converts a number of blocks to the type of a grid size.
///
/// # Panics
/// If it is 2^31 or more.
fn blocks(count: usize) -> u32 {
    int(count).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::{Library, present};
    use crate::{Program, compile, resources};

    /// Every kernel compiles for every architecture and spills no registers. The test needs NVRTC but no GPU.
    #[test]
    fn kernels_compile() {
        if !present(Library::Nvrtc) {
            eprintln!("SKIPPED kernels_compile: there is no NVRTC");
            return;
        }
        let products = FloatRung::ALL.map(FloatRung::program);
        let softmax = [1, 49, 1024, 4095, 4096]
            .into_iter()
            .flat_map(|columns| SoftmaxRung::ALL.map(|rung| rung.program(columns)))
            .map(|program| program.expect("the row fits into registers"));
        let elementwise = ElementwiseOp::ALL.map(ElementwiseOp::program);
        let programs: Vec<Program> = products.into_iter().chain(softmax).chain(elementwise).collect();
        for arch in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"] {
            for program in &programs {
                let compiled = compile(program, arch).unwrap_or_else(|error| panic!("{error}"));
                let found = resources(&compiled.cubin, program.entry).unwrap();
                assert_eq!(found.local_bytes, 0, "{program} for {arch}: {found:?}");
                // Two blocks must share the 65536 registers of a multiprocessor; four, unless a thread holds
                // many values.
                let many = ["gemm_tiled", "softmax_rows", "softmax_staged", "softmax_codes"]
                    .contains(&program.entry);
                let most = if many { 128 } else { 64 };
                assert!(found.registers <= most, "{program} for {arch}: {found:?}");
            }
        }
    }
}
