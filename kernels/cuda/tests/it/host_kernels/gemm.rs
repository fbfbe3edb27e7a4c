//! `gemm.cu`: matrix products on the tensor cores with their epilogues.

use std::collections::BTreeSet;

use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::linear::pack::{GROUP, pack_codes, pack_half};
use swinq_cuda::ops::linear::{Gpu, Instruction, LinearStore, Tile};
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride};
use swinq_numerics::{ColumnQuantizers, Gelu};
use swinq_testing::step;

use super::compiler::Compiler;
use super::launch::Launch;
use super::linear::{Case, Kind};
use super::rows::to_halves;

/// Output columns and input columns, including partial tiles.
const SHAPES: [(usize, usize); 9] =
    [(96, 96), (288, 48), (40, 144), (18, 64), (96, 160), (32, 192), (33, 128), (10, 40), (60, 96)];

/// A GPU without `wgmma`, because `wgmma` cannot run on the host.
pub const GPU: Gpu = Gpu { shared: 232_448, multiprocessors: 132, wgmma: false };

const SMALL: Tile = mma((32, 32), (16, 32), 64, 2);
const MIDDLE: Tile = mma((64, 64), (32, 32), 64, 3);
const LARGE: Tile = mma((128, 96), (32, 96), 96, 4);

const fn mma(block: (u16, u16), warp: (u16, u16), depth: u16, stages: u16) -> Tile {
    Tile { instruction: Instruction::Mma, block, warp, depth, stages, resident: 0 }
}

/// The launch of a linear layer.
fn launch(case: &Case, kind: &Kind, tile: Tile) -> Launch {
    let (m, n, k) = (case.m, case.n, case.k);
    let launch = Launch::new(&kind.kind(n).program(tile), tile.launch(m, n, usize::MAX));
    let (launch, bytes) = if kind.integer {
        let stride = row_stride(k, 1);
        (launch.activation(&rows(&case.a, k, stride, 85)).array(&pack_codes(&case.w, n, k, stride)), 1)
    } else {
        let stride = row_stride(k, 2);
        let a = to_halves(&case.a.iter().map(|&x| f32::from(x)).collect::<Vec<f32>>());
        let w: Vec<f32> = case.w.iter().map(|&x| f32::from(x) / 8.0).collect();
        // Rows are padded with NaN.
        (launch.activation(&rows(&a, k, stride, 0x7fff)).array(&pack_half(&w, n, k, stride)), 2)
    };
    let stride = row_stride(k, bytes) * bytes;
    let launch = launch.int(m).int(n.next_multiple_of(GROUP)).int(k * bytes).int(stride).int(stride);
    case.epilogue(launch.int(tile.columns_of_blocks(n)).int(tile.count(m, n)), kind)
}

/// Lays out `[rows, k]` with rows `stride` apart and `pad` in between.
fn rows<T: Copy>(x: &[T], k: usize, stride: usize, pad: T) -> Vec<T> {
    x.chunks_exact(k)
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(pad, stride - k)))
        .collect()
}

/// Checks every shape with 1 row, and with one row less than a block, exactly a block, and one row more.
fn check(kind: Kind, tile: Tile) {
    let Some(compiler) = Compiler::get() else { return };
    let block = usize::from(tile.block.0);
    for (i, (n, k)) in SHAPES.into_iter().enumerate() {
        let m = [1, block + 1, block, block - 1][i % 4];
        let case = Case::new((m, n, k), kind.integer, i as u64);
        let got = launch(&case, &kind, tile).run(compiler);
        case.check(&kind, &got[got.len() - 1], &format!("({m}, {n}, {k}) {kind:?} {tile:?}"));
    }
}

#[test]
fn codes_by_a_step_for_each_column() {
    check(Kind::new(true, LinearStore::Codes(Vec::new())), MIDDLE);
    check(Kind::new(true, LinearStore::Codes(Vec::new())).output(0.25), SMALL);
}

#[test]
fn codes_after_gelu() {
    check(Kind::plain(true, DeviceStore::Codes(step(0.25))).gelu(Gelu::Quadratic), LARGE);
    check(Kind::plain(true, DeviceStore::Codes(step(0.25))).output(0.25).gelu(Gelu::Erf), MIDDLE);
}

/// Codes with a scale and a zero point for each column, and sums of an input with zero points.
#[test]
fn zero_points() {
    let any = || ColumnQuantizers::symmetric(0, &[step(1.0)]);
    check(Kind::new(true, LinearStore::ChannelCodes(any())).gelu(Gelu::Quadratic), MIDDLE);
    check(Kind::new(true, LinearStore::ChannelCodes(any())).output(0.25), SMALL);
    check(Kind::new(true, LinearStore::ChannelFake(any())).gelu(Gelu::Quadratic), SMALL);
    check(Kind::new(false, LinearStore::ChannelCodes(any())), LARGE);
    for half_gelu in [true, false] {
        let channels = Kind::new(true, LinearStore::ChannelCodes(any())).gelu(Gelu::Quadratic);
        check(Kind { residual: ResidualType::F16, half_gelu, ..channels }, SMALL);
    }
    check(Kind::residual(true, ResidualType::F32, true).corrected(), MIDDLE);
    check(Kind::residual(true, ResidualType::F16, false).output(0.5).corrected(), SMALL);
}

/// With an f16 residual, GELU uses the exponential unit.
#[test]
fn after_the_fast_gelu() {
    let half = |kind: Kind| Kind { residual: ResidualType::F16, ..kind.gelu(Gelu::Quadratic) };
    check(half(Kind::plain(true, DeviceStore::Codes(step(0.25)))), LARGE);
    check(half(Kind::new(true, LinearStore::Codes(Vec::new()))).output(0.25), MIDDLE);
    check(half(Kind::plain(false, DeviceStore::Half)), SMALL);
    check(half(Kind::plain(false, DeviceStore::FakeHalf(step(0.25)))).output(0.5), SMALL);
}

#[test]
fn floats_of_integers() {
    check(Kind::plain(true, DeviceStore::Float), SMALL);
    check(Kind::plain(true, DeviceStore::FakeFloat(step(0.5))).output(0.25).gelu(Gelu::Quadratic), SMALL);
}

#[test]
fn halves_of_integers() {
    check(Kind::plain(true, DeviceStore::Half), LARGE);
    check(Kind::plain(true, DeviceStore::FakeHalf(step(0.5))).gelu(Gelu::Quadratic), MIDDLE);
}

#[test]
fn residuals_of_integers() {
    check(Kind::residual(true, ResidualType::F32, true), MIDDLE);
    check(Kind::residual(true, ResidualType::F32, false).output(0.5), LARGE);
    check(Kind::residual(true, ResidualType::F16, true).output(0.5), SMALL);
    check(Kind::residual(true, ResidualType::F16, false), MIDDLE);
}

#[test]
fn products_of_halves() {
    check(Kind::plain(false, DeviceStore::Half).gelu(Gelu::Erf), MIDDLE);
    check(Kind::plain(false, DeviceStore::Float).output(0.5), SMALL);
    check(Kind::plain(false, DeviceStore::FakeHalf(step(0.5))), LARGE);
    check(Kind::new(false, LinearStore::Codes(Vec::new())), SMALL);
    check(Kind::residual(false, ResidualType::F16, true), MIDDLE);
    check(Kind::residual(false, ResidualType::F32, false).output(0.5), MIDDLE);
}

/// Queries and keys of one to six heads, some of them with hi and lo codes per value.
#[test]
fn normalized_heads() {
    let Some(compiler) = Compiler::get() else { return };
    let sites = [1.0 / 127.0, 1.0 / 127.0, 0.5].map(step);
    let cases = [
        (SMALL, 48, vec![false], true),
        (MIDDLE, 96, vec![false, true, true], true),
        (LARGE, 192, vec![true, false, false, true, false, true], true),
        (MIDDLE, 64, vec![true, false], false),
    ];
    for (i, (tile, k, hi_lo, integer)) in cases.into_iter().enumerate() {
        let (m, n) = (usize::from(tile.block.0) + 5, 3 * HEAD_DIM * hi_lo.len());
        let store = LinearStore::Heads { sites, hi_lo };
        for residual in [ResidualType::F32, ResidualType::F16] {
            let kind = Kind { residual, ..Kind::new(integer, store.clone()) };
            let kind = if i == 2 { kind.output(0.25) } else { kind };
            let case = Case::new((m, n, k), integer, i as u64).finite();
            let got = launch(&case, &kind, tile).run(compiler);
            case.check_heads(&kind, &got[got.len() - 1], &format!("({m}, {n}, {k}) {kind:?} {tile:?}"));
        }
    }
}

/// Every block and warp shape to try, with some depth and number of stages.
#[test]
fn every_tile_gives_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let candidates = |k: usize| Tile::candidates(500, 300, k, GPU);
    let shapes: BTreeSet<_> = candidates(96).iter().map(|tile| (tile.block, tile.warp)).collect();
    let kind = Kind::new(true, LinearStore::Codes(Vec::new()));
    for (i, shape) in shapes.into_iter().enumerate() {
        let k = [96, 128, 160, 384][i % 4];
        let tiles: Vec<Tile> =
            candidates(k).into_iter().filter(|tile| (tile.block, tile.warp) == shape).collect();
        let tile = tiles[i % tiles.len()];
        let case = Case::new((usize::from(tile.block.0) + 9, 104, k), true, i as u64);
        let got = launch(&case, &kind, tile).run(compiler);
        case.check(&kind, &got[got.len() - 1], &format!("{tile:?}, k {k}"));
    }
}
