//! Programs of the ladder.

use swinq_cuda::Program;
use swinq_cuda::ladder::{ElementwiseOp, FloatRung, SoftmaxRung};

/// The architectures for which the ladder's kernels are compiled.
const ARCHS: [&str; 5] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"];

/// Every program of the ladder with each architecture. Rows of a softmax are short, ragged and long.
pub fn programs() -> impl Iterator<Item = (Program, &'static str)> {
    let products = FloatRung::ALL.map(FloatRung::program);
    let softmax = [1, 49, 1024, 4095, 4096]
        .into_iter()
        .flat_map(|columns| SoftmaxRung::ALL.map(|rung| rung.program(columns)))
        .map(|program| program.expect("the row fits into registers"));
    let elementwise = ElementwiseOp::ALL.map(ElementwiseOp::program);
    let programs: Vec<Program> = products.into_iter().chain(softmax).chain(elementwise).collect();
    ARCHS.into_iter().flat_map(move |arch| programs.clone().into_iter().map(move |program| (program, arch)))
}

/// The most registers of a thread of `program`, if it is a program of the ladder. Two blocks must share the
/// 65536 registers of a multiprocessor; four, unless a thread holds many values.
pub fn most_registers(program: &Program) -> Option<u32> {
    let many = ["gemm_tiled", "softmax_rows", "softmax_staged", "softmax_codes"].contains(&program.entry);
    program.file.starts_with("ladder_").then_some(if many { 128 } else { 64 })
}
