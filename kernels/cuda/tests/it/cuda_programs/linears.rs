//! Programs of linear layers, and of the epilogues that follow a GEMM of cuBLASLt.

use std::collections::BTreeMap;

use swinq_cuda::Program;
use swinq_cuda::ops::linear::{
    DeviceLinearSpec, DeviceWeight, Gpu, Instruction, LinearKind, LinearStore, Tile,
};
use swinq_cuda::ops::{DeviceStore, ResidualType};
use swinq_numerics::{ColumnQuantizers, Gelu};

use super::ops::{RESIDUALS, quantizer};
use super::{Arch, Scope};

/// How the lowering of a plan uses a linear layer's output.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// INT8 codes for attention or for the next linear layer.
    Codes,
    /// INT8 codes of normalised queries and keys, and of values.
    Heads(ResidualType),
    /// INT8 codes with a scale that is too small for GELU in packed halves.
    FineCodes,
    /// f16 for a float op.
    Half,
    /// f16 for a float linear layer whose site is on.
    FakeHalf,
    /// f32: scores, or a merged residual.
    Float,
    /// Addition to the residual stream.
    Residual(ResidualType),
    /// INT8 codes, or f16, with a scale and a zero point for each column.
    ChannelCodes,
    ChannelFake,
    /// As `ChannelCodes`, with a scale that is too small for GELU in packed halves.
    FineChannelCodes,
    /// Addition of the product of an input with zero points.
    CorrectedResidual(ResidualType),
}

/// `gelu` is the residual stream of a layer with GELU, because the residual decides which GELU is compiled.
fn kind(integer: bool, output: bool, gelu: Option<ResidualType>, role: Role) -> LinearKind {
    let zero_points = if matches!(role, Role::CorrectedResidual(_)) { &[1][..] } else { &[] };
    let weight = match integer {
        true => DeviceWeight::Codes { codes: &[], multiplier: &[], zero_points },
        false => DeviceWeight::Half(&[]),
    };
    let store = match role {
        Role::Codes => LinearStore::Codes(Vec::new()),
        Role::Heads(_) => LinearStore::Heads { sites: [quantizer(); 3], hi_lo: Vec::new() },
        Role::FineCodes => LinearStore::Codes(vec![1e6]),
        Role::Half => LinearStore::Plain(DeviceStore::Half),
        Role::FakeHalf => LinearStore::Plain(DeviceStore::FakeHalf(quantizer())),
        Role::Float => LinearStore::Plain(DeviceStore::Float),
        Role::ChannelCodes | Role::FineChannelCodes => {
            LinearStore::ChannelCodes(ColumnQuantizers::symmetric(0, &[quantizer()]))
        }
        Role::ChannelFake => LinearStore::ChannelFake(ColumnQuantizers::symmetric(0, &[quantizer()])),
        Role::Residual(_) | Role::CorrectedResidual(_) => LinearStore::Residual,
    };
    let residual = match role {
        Role::Residual(residual) | Role::CorrectedResidual(residual) | Role::Heads(residual) => residual,
        _ => gelu.unwrap_or(ResidualType::F16),
    };
    // What is quantized next gets the quadratics.
    let floats = matches!(role, Role::Half | Role::Float);
    let (output, gelu) =
        (output.then(quantizer), gelu.map(|_| if floats { Gelu::Erf } else { Gelu::Quadratic }));
    let mut kind =
        LinearKind::new(&DeviceLinearSpec { n: 0, k: 0, weight, bias: None, output, gelu, store, residual });
    kind.half_gelu &= role != Role::FineChannelCodes;
    kind
}

/// Every kind that a recipe can require.
fn kinds() -> Vec<LinearKind> {
    let any = [Role::Codes, Role::Half, Role::FakeHalf];
    let mut kinds = Vec::new();
    for (integer, output) in [(true, false), (true, true), (false, false), (false, true)] {
        let plain = any.into_iter().chain([Role::Float]).chain(RESIDUALS.map(Role::Residual));
        kinds.extend(plain.map(|role| kind(integer, output, None, role)));
        for residual in RESIDUALS {
            kinds.push(kind(integer, output, None, Role::Heads(residual)));
            kinds.extend(any.map(|role| kind(integer, output, Some(residual), role)));
            // An `.output` site comes before all of this in the epilogue, so it is not combined with it.
            if integer && !output {
                kinds.push(kind(integer, output, None, Role::CorrectedResidual(residual)));
            }
            if !output {
                let roles = [Role::ChannelCodes, Role::FineChannelCodes, Role::ChannelFake];
                kinds.extend(roles.map(|role| kind(integer, output, Some(residual), role)));
            }
        }
    }
    kinds.push(kind(true, false, Some(ResidualType::F16), Role::FineCodes));
    // Files of older versions have codes of the GELU by the error function.
    let mut older = kind(true, false, Some(ResidualType::F32), Role::Codes);
    older.gelu = Some(Gelu::Erf);
    kinds.push(older);
    // Numbers of columns that are not multiples of 8.
    let ragged = [Role::Codes, Role::Float, Role::Residual(ResidualType::F16)];
    for role in ragged {
        let mut kind = kind(true, false, None, role);
        kind.whole = false;
        kinds.push(kind);
    }
    kinds
}

/// The kinds of the shipped recipes that use the most registers: FC1 whose columns have quantizers of their
/// own, QKV of Swin V2, residual additions for each residual, FC1 for an f32 residual, and FC1 in f16.
fn usual_kinds() -> [LinearKind; 6] {
    [
        kind(true, false, Some(ResidualType::F16), Role::ChannelCodes),
        kind(true, false, None, Role::Heads(ResidualType::F16)),
        kind(true, false, None, Role::Residual(ResidualType::F16)),
        kind(true, false, None, Role::Residual(ResidualType::F32)),
        kind(true, false, Some(ResidualType::F32), Role::Codes),
        kind(false, false, Some(ResidualType::F16), Role::Half),
    ]
}

/// Instruction, whether weights stay in shared memory, block shape and warp shape.
type Shape = (Instruction, bool, (u16, u16), (u16, u16));

/// All tiles of a linear layer on `arch`, by shape.
fn tiles(arch: &Arch) -> BTreeMap<Shape, Vec<Tile>> {
    let gpu = Gpu { shared: arch.shared, multiprocessors: 132, wgmma: arch.name == "sm_90a" };
    let mut tiles: BTreeMap<Shape, Vec<Tile>> = BTreeMap::new();
    for k_bytes in [64, 96, 128, 192, 256, 384, 512, 640, 768, 3072] {
        for tile in Tile::candidates(4096, 384, k_bytes, gpu) {
            let shape = (tile.instruction, tile.resident > 0, tile.block, tile.warp);
            let of_shape = tiles.entry(shape).or_default();
            if !of_shape.contains(&tile) {
                of_shape.push(tile);
            }
        }
    }
    tiles
}

pub fn programs(arch: &Arch, scope: Scope) -> Vec<Program> {
    let tiles = tiles(arch);
    let (kinds, usual) = (kinds(), usual_kinds());
    let mut pairs: Vec<(LinearKind, Tile)> = Vec::new();
    // The newest instruction that has shapes whose weights do not stay in shared memory.
    let newest = tiles.keys().filter(|shape| !shape.1).map(|shape| shape.0).max();
    for (shape, of_shape) in &tiles {
        let of_cut = match scope {
            Scope::Few | Scope::Middle => &usual[..1],
            Scope::Most if Some(shape.0) < newest || shape.1 => &usual[..3],
            Scope::Most => &usual[..4],
            Scope::All => &kinds,
        };
        pairs.extend(of_cut.iter().map(|&kind| (kind, deepest(of_shape))));
    }
    // For the middle shape of each instruction: all depths and numbers of stages, and, for the newest
    // instruction, all epilogues.
    for instruction in Instruction::ALL {
        let shapes: Vec<_> = tiles.iter().filter(|(shape, _)| shape.0 == instruction && !shape.1).collect();
        let Some((_, of_shape)) = shapes.get(shapes.len() / 2) else { continue };
        let every = scope > Scope::Few && newest == Some(instruction);
        let of_tile = if every { &kinds[..] } else { &usual };
        pairs.extend(of_tile.iter().map(|&kind| (kind, deepest(of_shape))));
        if scope > Scope::Middle {
            pairs.extend(of_shape.iter().map(|&tile| (usual[0], tile)));
        }
    }
    let finishes = if scope == Scope::Few { &usual[..] } else { &kinds };
    pairs.iter().map(|(kind, tile)| kind.program(*tile)).chain(finishes.iter().flat_map(finish)).collect()
}

/// The tile with the most bytes in flight.
fn deepest(tiles: &[Tile]) -> Tile {
    *tiles.iter().max_by_key(|tile| (tile.depth, tile.stages)).expect("a shape has tiles")
}

/// The programs of the epilogue launches that may follow cuBLASLt's GEMM.
fn finish(kind: &LinearKind) -> Vec<Program> {
    let codes = kind.integer && kind.output;
    [false, true]
        .into_iter()
        .filter(|&c| (codes || !c) && !kind.heads)
        .map(|c| kind.finish_program(c))
        .collect()
}
