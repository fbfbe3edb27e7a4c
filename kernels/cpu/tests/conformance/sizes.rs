//! Numbers of images, rows, tokens and channels whose products overflow are refused by every constructor and
//! every `run`: with empty slices, a product that wrapped to 0 would be accepted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use swinq_kernels::{
    AlignedBuf, AttentionIn, BlockOp, Cpu, FusedBlock, FusedRows, LayerNorm, LinearF32, LinearI8, LinearOut,
    LinearSpec, MergeNorm, Patches, Pool, PooledNorm, QkNorm, QuantizeRows, ResidualNorm, RowOut, Store,
    WindowAttention, rows_f32,
};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, ImageEdge, Images, Probs, QkNormSpec, Quantizer, RowMap, RowStore, Size,
};

/// Numbers that are too large. Four times the last one, or 16 times the one before it, is 2^64, which wraps
/// to 0.
const LARGE: [usize; 3] = [usize::MAX / 2, 1 << 60, 1 << 62];

/// Channels.
const C: usize = 8;
/// Tokens of an image.
const TOKENS: usize = 4;

/// Asserts that `run` panics with a message of `op`, and not because an operation overflowed.
fn refused<T>(op: &str, size: usize, run: impl FnOnce() -> T) {
    let payload = catch_unwind(AssertUnwindSafe(run)).err();
    let payload = payload.unwrap_or_else(|| panic!("{op} accepts the size {size}"));
    let message = payload.downcast_ref::<String>().expect("a formatted message");
    assert!(message.starts_with(op) && !message.contains("overflow"), "{op}, {size}: {message}");
}

fn step() -> Quantizer {
    Quantizer::new(0.1).unwrap()
}

fn linear(n: usize, k: usize, store: Store) -> LinearSpec<'static> {
    LinearSpec { n, k, bias: None, output: None, gelu: None, store }
}

fn residual() -> Store {
    Store::Residual { branch: None, shortcut: None }
}

/// One head of [`C`] channels in windows of [`TOKENS`] tokens, without a mask.
fn attention(bias: &[f32], codes: bool) -> AttentionSpec<'_> {
    let site = codes.then(step);
    AttentionSpec {
        heads: 1,
        head_dim: C,
        tokens: TOKENS,
        scales: &[1.0],
        hi_lo: &[],
        bias,
        regions: None,
        mask: -100.0,
        quant: AttentionQuant { q: site, k: site, v: site, scores: None, probs: Probs::Float },
        store: RowStore::F32,
    }
}

/// A norm and a linear that adds to the residual, in tasks of `task_rows` rows.
fn fused(cpu: Cpu, task_rows: usize) -> FusedBlock {
    let norm = LayerNorm::new(cpu, &[1.0; C], &[0.0; C], 1e-5, RowStore::F32);
    let linear = LinearF32::new(cpu, linear(C, C, residual()), &[0.5; C * C]);
    let ops = vec![BlockOp::Norm(Arc::new(norm)), BlockOp::LinearF32(Arc::new(linear))];
    FusedBlock::new(ops, C, task_rows)
}

#[test]
fn every_run_refuses_sizes_whose_product_overflows() {
    let (cpu, map) = (Cpu::detect().unwrap(), RowMap::identity(TOKENS));
    let pool = &mut Pool::new(1);
    let (gamma, beta) = ([1.0; C], [0.0; C]);
    for images in LARGE {
        let norm = LayerNorm::new(cpu, &gamma, &beta, 1e-5, RowStore::F32);
        refused("LayerNorm: ", images, || norm.run(pool, images, &[], &map, RowOut::F32(&mut [])));
        let codes = RowStore::Codes(step());
        let merge = MergeNorm::new(cpu, &[1.0; 4 * C], &[0.0; 4 * C], 1e-5, codes);
        refused("MergeNorm: ", images, || merge.run(pool, images, &[], &map, RowOut::Codes(&mut [])));
        let pooled = PooledNorm::new(cpu, &gamma, &beta, 1e-5, RowStore::F32);
        refused("PooledNorm: ", images, || pooled.run(pool, images, TOKENS, &[], RowOut::F32(&mut [])));
        refused("PooledNorm: ", images, || pooled.run(pool, 0, images, &[], RowOut::F32(&mut [])));
        let norm = ResidualNorm::new(cpu, &gamma, &beta, 1e-5, None, None);
        refused("ResidualNorm: ", images, || norm.run(pool, images, &[], &map, &mut []));
        let quantize = QuantizeRows::new(cpu, C, RowStore::F32);
        refused("QuantizeRows: ", images, || quantize.run(pool, images, &[], &map, RowOut::F32(&mut [])));
        let heads = QkNormSpec { heads: 1, head_dim: C, hi_lo: &[], codes: None };
        let heads = QkNorm::new(cpu, &heads);
        refused("QkNorm: ", images, || heads.run(pool, images, &[], RowOut::F32(&mut [])));
        let patches = Patches::new(2, ImageEdge::Padded, &[[0.0; 256]; 3], RowStore::F32);
        for (images, image) in [(images, Size::square(4)), (0, Size::square(images))] {
            refused("Patches: ", images, || {
                patches.run(pool, images, Images::new(image, &[0_u8; 0][..]), RowOut::F32(&mut []))
            });
        }
        for (codes, input) in [(false, AttentionIn::F32(&[])), (true, AttentionIn::Codes(&[]))] {
            let op = WindowAttention::new(cpu, attention(&[0.0; TOKENS * TOKENS], codes));
            refused("WindowAttention: ", images, || op.run(pool, images, &[0], input, RowOut::F32(&mut [])));
        }
        let (block, rows) = (fused(cpu, 64), FusedRows { map: &map, masks: &[] });
        refused("FusedBlock: ", images, || block.run(pool, images, rows, &mut []));
        refused("FusedBlock: ", images, || block.run_timed(pool, images, rows, &mut []));
    }
    refused("FusedBlock: ", usize::MAX / 2, || fused(cpu, 64).units(usize::MAX / 2, TOKENS));
    refused("FusedBlock: ", usize::MAX / 2, || fused(cpu, 64).units(TOKENS, usize::MAX / 2));
}

#[test]
fn every_linear_and_row_function_refuses_sizes_whose_product_overflows() {
    let (cpu, map) = (Cpu::detect().unwrap(), RowMap::identity(TOKENS));
    let pool = &mut Pool::new(1);
    for rows in LARGE {
        // Without inputs only the output's size tells the number of rows.
        for (k, op) in [(C, "Linear"), (0, "linear: ")] {
            let int8 = |store| LinearI8::new(cpu, linear(C, k, store), &vec![1; C * k], &[1.0; C]);
            let float = |store| LinearF32::new(cpu, linear(C, k, store), &vec![1.0; C * k]);
            let (codes, floats) = (int8(Store::F32), float(Store::F32));
            refused(op, rows, || codes.run(pool, rows, &[], LinearOut::F32(&mut [])));
            refused(op, rows, || floats.run(pool, rows, &[], LinearOut::F32(&mut [])));
        }
        let adds = LinearI8::new(cpu, linear(C, 0, residual()), &[], &[1.0; C]);
        let rows = rows & !3;
        refused("linear: ", rows, || {
            adds.run(pool, rows, &[], LinearOut::Residual { residual: &mut [], map: &map });
        });
        refused("exp_minus_max: ", rows, || rows_f32::exp_minus_max(cpu, rows, &mut [], &mut [0.0; 16]));
        refused("softmax_codes_u8: ", rows, || {
            rows_f32::softmax_codes_u8(cpu, rows, &[], &mut [], &mut [0; 16]);
        });
    }
}

#[test]
fn every_constructor_refuses_sizes_whose_product_overflows() {
    let cpu = Cpu::detect().unwrap();
    for size in LARGE {
        refused("QuantizeRows: ", size, || QuantizeRows::merging(cpu, size, 16, RowStore::F32));
        for (heads, head_dim) in [(size, 4), (4, size)] {
            let spec = QkNormSpec { heads, head_dim, hi_lo: &[], codes: None };
            refused("QkNorm: ", size, || QkNorm::new(cpu, &spec));
        }
        let lookup = [[0.0; 256]; 3];
        refused("Patches: ", size, || Patches::new(size, ImageEdge::Padded, &lookup, RowStore::F32));
        refused("LinearI8: ", size, || LinearI8::new(cpu, linear(size, 16, residual()), &[], &[]));
        refused("LinearF32: ", size, || LinearF32::new(cpu, linear(size, 16, residual()), &[]));
        // A weight without rows has no elements, but its panels have a size.
        refused("linear: ", size, || LinearF32::new(cpu, linear(0, size, residual()), &[]));
        refused("", size, || LinearI8::new(cpu, linear(size, 0, residual()), &[], &[]));
        refused("FusedBlock: ", size, || fused(cpu, size));
        refused(&size.to_string(), size, || RowMap::identity(size));
        RowMap::new(&[], size).unwrap_err();
        AlignedBuf::try_new(size).err().expect("an error");

        let bias = [0.0; TOKENS * TOKENS];
        let with = |change: fn(&mut AttentionSpec<'_>, usize)| {
            let mut spec = attention(&bias, true);
            change(&mut spec, size);
            refused("WindowAttention: ", size, || WindowAttention::new(cpu, spec));
        };
        with(|spec, size| spec.head_dim = size);
        with(|spec, size| (spec.tokens, spec.bias) = (size, &[]));
        with(|spec, size| (spec.heads, spec.scales) = (size, &[]));
    }
}
