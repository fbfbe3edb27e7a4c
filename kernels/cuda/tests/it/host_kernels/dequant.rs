//! `dequant.cu`: the epilogue of a linear layer whose GEMM cuBLASLt computes.

use swinq_cuda::LaunchConfig;
use swinq_cuda::ops::linear::LinearStore;
use swinq_cuda::ops::{DeviceStore, ResidualType};
use swinq_numerics::{ColumnQuantizers, Gelu};
use swinq_testing::step;

use super::compiler::Compiler;
use super::launch::Launch;
use super::linear::{Case, Kind};

/// Rows, output columns and input columns.
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 16, 48), (43, 48, 96), (16, 128, 16), (7, 96, 64), (30, 288, 32)];

/// The launch. `codes` says that the sums are codes of the `.output` site.
fn launch(case: &Case, kind: &Kind, codes: bool) -> Launch {
    let (program, (m, n)) = (kind.kind(case.n).finish_program(codes), (case.m, case.n));
    let blocks = (m * n / 8).div_ceil(256) as u32;
    let launch = Launch::new(&program, LaunchConfig { shared: 384, ..LaunchConfig::linear(blocks, 256) });
    let launch = match (codes, kind.integer) {
        (true, _) => launch.activation(&case.output_codes(kind)),
        (false, true) => launch.activation(&case.sums()),
        (false, false) => launch.activation(&case.float_sums()),
    };
    case.epilogue(launch.int(m).int(n), kind)
}

fn check(kind: Kind, codes: bool) {
    let Some(compiler) = Compiler::get() else { return };
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let case = Case::new(shape, kind.integer, i as u64);
        let got = launch(&case, &kind, codes).run(compiler);
        case.check(&kind, &got[got.len() - 1], &format!("{shape:?} {kind:?}, codes: {codes}"));
    }
}

#[test]
fn sums_of_integers() {
    check(Kind::new(true, LinearStore::Codes(Vec::new())), false);
    check(Kind::plain(true, DeviceStore::Codes(step(0.25))).gelu(Gelu::Erf).output(0.25), false);
    check(Kind::residual(true, ResidualType::F32, true), false);
    check(Kind::residual(true, ResidualType::F16, false).output(0.5), false);
}

#[test]
fn zero_points() {
    let any = || ColumnQuantizers::symmetric(0, &[step(1.0)]);
    check(Kind::new(true, LinearStore::ChannelCodes(any())).gelu(Gelu::Quadratic), false);
    check(Kind::new(true, LinearStore::ChannelFake(any())).gelu(Gelu::Erf).output(0.25), false);
    check(Kind::residual(true, ResidualType::F32, true).corrected(), false);
    check(Kind::residual(true, ResidualType::F16, false).output(0.5).corrected(), false);
}

#[test]
fn codes_of_the_output_site() {
    check(Kind::new(true, LinearStore::Codes(Vec::new())).output(0.25), true);
    check(Kind::plain(true, DeviceStore::FakeHalf(step(0.25))).gelu(Gelu::Quadratic).output(0.25), true);
    check(Kind::residual(true, ResidualType::F32, true).output(0.5), true);
}

/// With an f16 residual, GELU uses the exponential unit.
#[test]
fn the_fast_gelu() {
    let half = |kind: Kind| Kind { residual: ResidualType::F16, ..kind.gelu(Gelu::Quadratic) };
    check(half(Kind::plain(false, DeviceStore::Float)), false);
    check(half(Kind::plain(true, DeviceStore::Half)), false);
    check(half(Kind::plain(true, DeviceStore::Codes(step(0.25)))).output(0.25), true);
}

#[test]
fn sums_of_floats() {
    check(Kind::plain(false, DeviceStore::Half).gelu(Gelu::Erf), false);
    check(Kind::residual(false, ResidualType::F16, true).output(0.5), false);
}
