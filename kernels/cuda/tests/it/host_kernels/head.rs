//! `head.cu`: the mean of normalised tokens, and the linear layer in f32.

use swinq_cuda::LaunchConfig;
use swinq_cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride};
use swinq_numerics::{Quantizer, reference};
use swinq_testing::{Rng, assert_same, step};

use super::compiler::Compiler;
use super::launch::{Launch, floats, words};
use super::rows::{self, half_floats, to_halves};

const EPSILON: f32 = 1e-5;

/// LayerNorm of each token of one image, `[tokens, columns]`, then the mean over the tokens.
fn pooled(residual: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f32> {
    let mut normed = vec![0.0; residual.len()];
    for (x, out) in residual.chunks_exact(gamma.len()).zip(normed.chunks_exact_mut(gamma.len())) {
        reference::layer_norm_row(x, gamma, beta, EPSILON, out);
    }
    let mut mean = vec![0.0; gamma.len()];
    reference::mean_of_rows(&normed, &mut mean);
    mean
}

#[test]
fn pooling_gives_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let stores = [
        (ResidualType::F32, DeviceStore::Float),
        (ResidualType::F32, DeviceStore::Codes(step(0.015625))),
        (ResidualType::F32, DeviceStore::FakeFloat(step(0.015625))),
        (ResidualType::F16, DeviceStore::Half),
        (ResidualType::F16, DeviceStore::Float),
        (ResidualType::F16, DeviceStore::Codes(step(0.015625))),
    ];
    // Fewer and more tokens than the block's groups of four lanes or its warps process at once; full and
    // partial groups of sixteen columns, and partial chunks of an f16 row; rows for which a block has fewer
    // warps; more tokens than a block has norms of at a time.
    let sizes =
        [(2, 49, 96), (1, 1, 32), (3, 130, 40), (1, 49, 768), (5, 5, 268), (1, 9, 1536), (1, 2049, 8)];
    for (images, tokens, columns) in sizes {
        let mut rng = Rng(tokens as u64);
        let values: Vec<f32> =
            (0..images * tokens * columns).map(|_| rng.float() * 3.0 + rng.float()).collect();
        let residual = half_floats(&super::launch::bytes(&to_halves(&values)));
        let (gamma, beta) = (rng.floats(columns, 2.0), rng.floats(columns, 0.5));
        let want: Vec<f32> =
            residual.chunks_exact(tokens * columns).flat_map(|x| pooled(x, &gamma, &beta)).collect();
        for (elements, store) in stores {
            let config = DevicePool::launch((images, tokens), columns, elements);
            let launch = |config, each| {
                let launch = Launch::new(&DevicePool::program(columns, elements, store), config);
                let launch = match elements {
                    ResidualType::F32 => launch.activation(&residual),
                    ResidualType::F16 => launch.activation(&to_halves(&residual)),
                };
                let launch = rows::output(launch.array(&gamma).array(&beta), images, columns, store);
                let launch = launch.activation(&[0_u32]);
                let launch = launch.int(tokens).int(columns).int(row_stride(columns, store.element_bytes()));
                rows::step_of(launch.int(each).float(EPSILON), store)
            };
            let got = launch(config, DevicePool::tokens_each(tokens)).run(compiler);
            if elements == ResidualType::F32 && tokens > 48 {
                let shared = (16 * 48 + 4 * columns) as u32;
                let parts = launch(LaunchConfig { shared, ..config }, 48).run(compiler);
                assert!(parts == got, "({images}, {tokens}, {columns}) {store:?}: 48 norms at a time");
            }
            let what = format!("({images}, {tokens}, {columns}) {elements:?} {store:?}");
            assert_eq!(words(&got[got.len() - 1]), [0], "{what}: the overflow flag");
            let got = &got[got.len() - 2];
            match elements {
                ResidualType::F32 => rows::check(got, &want, columns, store, &what),
                // Norms and sums are f32, in another order.
                ResidualType::F16 => {
                    let want: Vec<f64> = want.iter().map(|&x| f64::from(x)).collect();
                    rows::check_near(got, &want, 5e-6, columns, store, &what);
                }
            }
        }
    }
}

#[test]
fn pooling_an_f16_residual_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    let (tokens, columns) = (49, 96);
    let mut residual = vec![1.0_f32; tokens * columns];
    residual[48 * columns + 3] = f32::INFINITY;
    let ones = vec![1.0_f32; columns];
    let store = DeviceStore::Codes(step(0.015625));
    let config = DevicePool::launch((1, tokens), columns, ResidualType::F16);
    let launch = Launch::new(&DevicePool::program(columns, ResidualType::F16, store), config);
    let launch = launch.activation(&to_halves(&residual)).array(&ones).array(&ones);
    let launch = rows::output(launch, 1, columns, store).activation(&[0_u32]);
    let launch = launch.int(tokens).int(columns).int(row_stride(columns, store.element_bytes()));
    let launch = launch.int(DevicePool::tokens_each(tokens));
    let got = rows::step_of(launch.float(EPSILON), store).run(compiler);
    assert_eq!(words(&got[got.len() - 1]), [1]);
}

#[test]
fn the_product_in_f32_gives_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    // Sizes around a block's 16 rows, 32 columns and 64 inputs.
    let shapes =
        [(1, 10, 200), (15, 32, 64), (16, 33, 4), (17, 31, 96), (2, 100, 68), (33, 64, 320), (1, 1, 128)];
    for (m, n, k) in shapes {
        let mut rng = Rng((m + n + k) as u64);
        let (x, w, bias) = (rng.floats(m * k, 2.0), rng.floats(n * k, 1.0), rng.floats(n, 1.0));
        let stride = n.next_multiple_of(4);
        let column = |i: usize| (i % stride < n).then(|| w[i % stride * k + i / stride]);
        // The padding of the weight's rows must not affect the result.
        let transposed: Vec<f32> = (0..k * stride).map(|i| column(i).unwrap_or(f32::NAN)).collect();
        for output in [None, Some(step(0.25))] {
            let launch =
                Launch::new(&DeviceLinearF32::program(output.is_some()), DeviceLinearF32::launch(m, n));
            let launch = launch.activation(&x).array(&transposed).array(&bias);
            let launch = launch
                .float(output.map_or(1.0, Quantizer::recip))
                .float(output.map_or(1.0, Quantizer::scale));
            let launch = launch.activation(&vec![f32::NAN; m * n]).int(m).int(n).int(k).int(stride);
            let got = launch.run(compiler);
            let want = (0..m * n).map(|i| {
                let mut sum = [f32::NAN];
                reference::accumulate_f32(&x[i / n * k..][..k], &w[i % n * k..][..k], &mut sum);
                reference::epilogue_f32(sum[0], bias[i % n], output, None)
            });
            assert_same(
                &floats(&got[3]),
                &want.collect::<Vec<f32>>(),
                &format!("({m}, {n}, {k}) {output:?}"),
            );
        }
    }
}

/// A product that underflows to -0, and a bias of -0.
#[test]
fn a_zero_keeps_its_sign() {
    let Some(compiler) = Compiler::get() else { return };
    let launch = Launch::new(&DeviceLinearF32::program(false), DeviceLinearF32::launch(1, 4));
    let launch = launch.activation(&[-1e-30_f32; 4]).array(&[1e-30_f32; 16]).array(&[-0.0_f32; 4]);
    let launch = launch.float(1.0).float(1.0).activation(&[f32::NAN; 4]).int(1).int(4).int(4).int(4);
    assert!(floats(&launch.run(compiler)[3]).iter().all(|y| y.to_bits() == (-0.0_f32).to_bits()));
}
