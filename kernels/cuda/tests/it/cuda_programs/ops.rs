//! Programs of all ops except linear layers.

use swinq_cuda::Program;
use swinq_cuda::ops::attention::{AttentionConfig, AttentionElements, HEAD_DIM, WIDE_HEAD_DIM};
use swinq_cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_cuda::ops::mlp::{MlpConfig, MlpForm, MlpKind};
use swinq_cuda::ops::norm::{NormConfig, NormResult};
use swinq_cuda::ops::output::{MapsConfig, OutputForm, OutputType, values_program};
use swinq_cuda::ops::patch::{InputForm, InputSite, InputType, PatchConfig};
use swinq_cuda::ops::qk_norm::QkNormConfig;
use swinq_cuda::ops::report::DeviceReport;
use swinq_cuda::ops::rows::RowsConfig;
use swinq_cuda::ops::tokens::TokensConfig;
use swinq_cuda::ops::window_block::{WindowBlockConfig, WindowForm};
use swinq_cuda::ops::{DeviceStore, ResidualType};
use swinq_cuda::training::{
    AttentionProgram, ColumnsProgram, FakeProgram, LossProgram, MapsProgram, NormProgram, ScalesProgram,
    UpdateProgram, column_sums_program, gather_program, patches_program, pointwise_program, table_program,
};
use swinq_numerics::{Gelu, ImageEdge, Quantizer};

use super::{Arch, Scope};

pub const RESIDUALS: [ResidualType; 2] = [ResidualType::F16, ResidualType::F32];

pub fn quantizer() -> Quantizer {
    Quantizer::new(0.1).unwrap()
}

/// The outputs that ops can store for a linear layer on the tensor cores.
fn stores(scope: Scope) -> Vec<DeviceStore> {
    let mut stores = vec![DeviceStore::Codes(quantizer()), DeviceStore::Half];
    if scope > Scope::Few {
        stores.push(DeviceStore::FakeHalf(quantizer()));
    }
    stores
}

pub fn programs(arch: &Arch, scope: Scope) -> Vec<Program> {
    [
        patches(scope),
        norms(scope),
        attentions(arch, scope),
        mlps(arch),
        ends(),
        outputs(scope),
        training(scope),
    ]
    .concat()
}

/// The MLP branch of a block, which needs `wgmma`, for all widths; weights stay in shared memory or pass
/// through a ring.
fn mlps(arch: &Arch) -> Vec<Program> {
    if arch.name != "sm_90a" {
        return Vec::new();
    }
    let of = |gelu, (residual, form, sizes), channels, half_gelu| {
        let half_gelu = half_gelu && residual == ResidualType::F16;
        let kind = MlpKind { form, gelu, residual, channels, half_gelu };
        MlpConfig::new(sizes, kind, arch.shared).expect("the sizes are supported").program()
    };
    let sizes = [(64, 192), (64, 256), (96, 384), (128, 512), (192, 768)];
    let of_residual = |residual| {
        let first = sizes.map(|sizes| (residual, MlpForm::PreNorm, sizes));
        let second =
            [(96, 384), (128, 512), (192, 768)].map(|sizes| (residual, MlpForm::PostNormCodes, sizes));
        first.into_iter().chain(second).map(|sizes| of(Gelu::Quadratic, sizes, false, true))
    };
    // Quantizers of hidden columns need more registers.
    let channels = [
        ((ResidualType::F16, MlpForm::PreNorm, (96, 384)), true),
        ((ResidualType::F16, MlpForm::PreNorm, (192, 768)), true),
        ((ResidualType::F16, MlpForm::PostNormCodes, (96, 384)), false),
        ((ResidualType::F16, MlpForm::PostNormCodes, (192, 768)), false),
        ((ResidualType::F32, MlpForm::PreNorm, (96, 384)), false),
        ((ResidualType::F32, MlpForm::PostNormCodes, (192, 768)), false),
    ]
    .map(|(sizes, halves)| of(Gelu::Quadratic, sizes, true, halves));
    let older = of(Gelu::Erf, (ResidualType::F32, MlpForm::PreNorm, (96, 384)), false, false);
    RESIDUALS.into_iter().flat_map(of_residual).chain(channels).chain([older]).collect()
}

/// The attention branches of blocks that fit `arch`: those of the first stages of the official models, and
/// those that use the most registers.
pub fn window_blocks(arch: &Arch) -> Vec<Program> {
    let sizes = [(2, 49), (3, 49), (4, 49), (6, 49), (4, 64), (5, 64), (6, 64)];
    let first = sizes.map(|size| (WindowForm::PreNorm, size));
    let second = [(3, 49), (6, 49), (3, 64), (4, 64), (6, 64)]
        .into_iter()
        .flat_map(|size| [false, true].map(|hi_lo| (WindowForm::PostNorm { hi_lo }, size)));
    let config = |(form, (heads, tokens))| WindowBlockConfig::new(form, heads, tokens, arch.shared);
    let all = first.into_iter().chain(second);
    let kept = all.filter(|_| arch.name != "sm_75").filter_map(config);
    kept.map(|config| config.program()).collect()
}

fn patches(scope: Scope) -> Vec<Program> {
    let mut programs = Vec::new();
    for residual in RESIDUALS {
        let mut add = |(channels, patch), columns, [integer, output, norm, position]: [bool; 4]| {
            let edge = ImageEdge::Padded;
            let config =
                PatchConfig { channels, patch, edge, columns, integer, output, norm, position, residual };
            programs.push(config.program(InputForm::PIXELS, InputSite::Float));
        };
        for columns in [96, 128, 192] {
            add((3, 4), columns, [false, false, true, false]);
            add((3, 4), columns, [true, false, true, false]);
        }
        add((1, 4), 96, [true, false, true, false]);
        if scope > Scope::Few {
            (0..16).for_each(|bits| add((3, 4), 96, [8, 4, 2, 1].map(|bit| bits & bit != 0)));
            (32..=256).step_by(32).for_each(|columns| add((3, 4), columns, [true; 4]));
            for (patch, columns) in [(2, 48), (2, 64), (4, 1024), (8, 96), (8, 512), (16, 768)] {
                add((3, patch), columns, [true; 4]);
            }
            [2, 4, 5, 8, 13, 16].into_iter().for_each(|channels| add((channels, 4), 96, [true; 4]));
            [4, 16].into_iter().for_each(|channels| add((channels, 4), 256, [true; 4]));
        }
        programs.extend(float_inputs(residual, scope));
        let form = InputForm { element: InputType::F32, channels_first: false };
        programs.push(TokensConfig { channels: 180, residual }.program(form));
    }
    programs
}

/// Patch embeddings of normalised values; scopes beyond `Few` add types and float operands.
fn float_inputs(residual: ResidualType, scope: Scope) -> Vec<Program> {
    let (elements, operands): (&[InputType], &[bool]) = match scope {
        Scope::Few => (&[InputType::F16], &[true]),
        _ => (&[InputType::F32, InputType::F16, InputType::Bf16], &[false, true]),
    };
    let program = |element, channels_first, integer| {
        let (channels, patch, columns, output, norm, position) = (3, 4, 96, false, true, false);
        let edge = ImageEdge::Padded;
        let config =
            PatchConfig { channels, patch, edge, columns, integer, output, norm, position, residual };
        let site = if integer { InputSite::Codes(quantizer()) } else { InputSite::Float };
        config.program(InputForm { element, channels_first }, site)
    };
    let forms = elements.iter().flat_map(|&element| [(element, false), (element, true)]);
    forms
        .flat_map(|(element, first)| operands.iter().map(move |&integer| program(element, first, integer)))
        .collect()
}

/// Outputs of each order, and the report of flags; scopes beyond `Few` add the types.
fn outputs(scope: Scope) -> Vec<Program> {
    let elements: &[OutputType] = match scope {
        Scope::Few => &[OutputType::F16],
        _ => &[OutputType::F32, OutputType::F16, OutputType::Bf16],
    };
    let mut programs: Vec<Program> = elements.iter().map(|&element| values_program(element)).collect();
    programs.push(DeviceReport::program());
    for (residual, &element) in RESIDUALS.into_iter().flat_map(|s| elements.iter().map(move |e| (s, e))) {
        for channels_first in [false, true] {
            programs.push(MapsConfig { residual }.program(OutputForm { element, channels_first }));
        }
    }
    programs
}

/// Norms of the official models' rows. Scopes beyond `Few` add norms with INT8 output for all numbers of
/// lanes and chunks that rows of up to 6144 columns need.
fn norms(scope: Scope) -> Vec<Program> {
    let official = [96, 192, 384, 768, 1024, 1536, 2048, 3072];
    let mut programs = Vec::new();
    for (residual, pieces) in RESIDUALS.into_iter().flat_map(|s| [(s, 1), (s, 4)]) {
        for store in stores(scope) {
            let norm = |columns| NormConfig { columns, pieces, residual };
            let program = |columns| norm(columns).program(NormResult::Store(store));
            programs.push(RowsConfig { columns: 96, pieces, residual }.program(store));
            programs.extend(official.map(program));
            if scope > Scope::Few && matches!(store, DeviceStore::Codes(_)) {
                programs.extend((64..=6144).step_by(64).map(program));
            }
        }
    }
    // The norms of Swin V2, which add to the residual; those that keep a row in registers and one that does
    // not.
    for (residual, columns) in RESIDUALS.into_iter().flat_map(|s| [96, 384, 768, 1536, 6144].map(|c| (s, c)))
    {
        for result in [NormResult::Add, NormResult::AddAndCode(quantizer())] {
            programs.push(NormConfig { columns, pieces: 1, residual }.program(result));
        }
    }
    let heads =
        |input| [(true, HEAD_DIM), (false, HEAD_DIM), (true, WIDE_HEAD_DIM)].map(|kind| (input, kind));
    programs.extend(
        RESIDUALS
            .into_iter()
            .flat_map(heads)
            .map(|(input, (codes, head_dim))| QkNormConfig { input, codes, head_dim }.program()),
    );
    programs
}

fn attentions(arch: &Arch, scope: Scope) -> Vec<Program> {
    let tokens: &[usize] =
        if scope == Scope::Few { &[49, 64, 144] } else { &[9, 36, 49, 64, 100, 144, 225, 256, 576] };
    let windows = tokens.iter().map(|&tokens| (tokens, HEAD_DIM)).chain([(49, WIDE_HEAD_DIM)]);
    // Smaller scopes leave out stores with fake quantization.
    let stores = stores(if scope < Scope::Most { Scope::Few } else { scope });
    let mut programs = Vec::new();
    for (tokens, head_dim) in windows {
        for (elements, probs_s8, [head_scales, hi_lo]) in [
            (AttentionElements::Codes, false, [false, false]),
            (AttentionElements::Codes, true, [false, false]),
            (AttentionElements::Codes, false, [true, false]),
            (AttentionElements::Codes, false, [true, true]),
            (AttentionElements::Codes, true, [true, true]),
            (AttentionElements::Half, false, [false, false]),
            (AttentionElements::Half, false, [true, false]),
        ] {
            for exact in [false, true] {
                let config = AttentionConfig {
                    elements,
                    tokens,
                    heads: 3,
                    head_dim,
                    probs_s8,
                    exact,
                    head_scales,
                    hi_lo,
                    mask: -100.0,
                    limit: arch.shared,
                };
                programs.extend(stores.iter().map(|&store| config.program(store)));
            }
        }
    }
    programs
}

/// The operations of training; attention has the window sizes of the official models and every kind of
/// probabilities.
fn training(scope: Scope) -> Vec<Program> {
    let mut programs: Vec<Program> = vec![column_sums_program(), table_program()];
    programs.extend(["gelu_forward", "gelu_backward", "adamw"].map(pointwise_program));
    for vector in [1, 4] {
        programs.extend(["gather", "add_bias"].map(|entry| gather_program(entry, vector)));
        for (table, factors, steps, out) in [
            (false, false, false, 0),
            (false, false, true, 1),
            (true, false, false, 2),
            (true, false, true, 0),
            (true, true, true, 1),
        ] {
            let fake = FakeProgram { vector, table, factors, steps, out };
            programs.extend(["fake_forward", "fake_backward", "fake_steps"].map(|entry| fake.program(entry)));
        }
        for (out, gelu, fake, steps) in
            [(0, false, 2, true), (1, true, 2, true), (1, true, 1, false), (2, false, 0, false)]
        {
            let columns = ColumnsProgram { vector, out, gelu, fake, steps };
            programs.extend(["columns_forward", "columns_backward"].map(|entry| columns.program(entry)));
        }
    }
    programs.push(patches_program());
    programs.extend(["row_maxima", "scale_table"].map(ScalesProgram::program));
    programs.extend(["loss_of_images", "loss_of_batch"].map(LossProgram::program));
    programs.extend(["squares", "errors", "gradient"].map(MapsProgram::program));
    programs.extend(["measure", "decide", "update", "add"].map(UpdateProgram::program));
    let columns: &[usize] =
        if scope == Scope::Few { &[96, 768] } else { &[32, 96, 192, 384, 768, 1536, 3072, 4096] };
    let norms = columns.iter().map(|&columns| NormProgram { columns });
    programs
        .extend(norms.flat_map(|norm| ["norm_forward", "norm_backward"].map(|entry| norm.program(entry))));
    let attention: &[(usize, u32, u32)] = match scope {
        Scope::Few => &[(49, 7, 1)],
        _ => &[(49, 0, 0), (49, 7, 1), (49, 15, 2), (64, 7, 1), (144, 7, 1)],
    };
    for &(tokens, sites, probs) in attention {
        let program = AttentionProgram { tokens, sites, probs };
        programs.extend([program.forward(), program.backward(false), program.backward(true)]);
    }
    programs
}

/// Pools and heads.
fn ends() -> Vec<Program> {
    let mut programs: Vec<Program> = [false, true].map(DeviceLinearF32::program).into();
    for residual in RESIDUALS {
        let q = quantizer();
        for store in [DeviceStore::Codes(q), DeviceStore::Float, DeviceStore::FakeFloat(q)] {
            programs
                .extend([96, 768, 1024, 1536].map(|columns| DevicePool::program(columns, residual, store)));
        }
    }
    programs
}
