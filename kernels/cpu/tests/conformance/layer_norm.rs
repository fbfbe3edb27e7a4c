//! Conformance of LayerNorm and the ops around it, for every implementation.

use crate::support::{
    Rng, assert_same, assert_sizes_leave_no_trace, assert_varied, for_each_cpu, max_error, step,
};
use swinq_kernels::{Cpu, LayerNorm, MergeNorm, Pool, PooledNorm, QuantizeRows, ResidualNorm, RowOut};
use swinq_numerics::{RowMap, RowStore, code_stride, reference};

const EPS: f32 = 1e-5;

/// Gamma, beta and `rows` rows of `c` channels with means far from 0 and different spreads.
fn case(c: usize, rows: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut rng = Rng(c as u64 * 1000 + rows as u64);
    let gamma: Vec<f32> = (0..c).map(|_| 1.0 + 0.3 * rng.float()).collect();
    let beta = rng.floats(c, 0.5);
    let mut x = Vec::new();
    for row in 0..rows {
        let (mean, spread) = (4.0 * rng.float(), [1.0, 0.01, 30.0][row % 3]);
        x.extend(rng.floats(c, spread).iter().map(|v| v + mean));
    }
    (gamma, beta, x)
}

fn truth(x: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let inverse = 1.0 / (variance + f64::from(EPS)).sqrt();
    let affine = gamma.iter().zip(beta).map(|(&g, &b)| (f64::from(g), f64::from(b)));
    x.iter().zip(affine).map(|(&v, (g, b))| (f64::from(v) - mean) * inverse * g + b).collect()
}

/// LayerNorm in f32 throughout, summed from left to right.
fn naive(x: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f32> {
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
    let inverse = 1.0 / (variance + EPS).sqrt();
    x.iter().zip(gamma).zip(beta).map(|((v, g), b)| (v - mean) * inverse * g + b).collect()
}

fn reference_rows(x: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for (x, out) in x.chunks_exact(gamma.len()).zip(out.chunks_exact_mut(gamma.len())) {
        reference::layer_norm_row(x, gamma, beta, EPS, out);
    }
    out
}

/// Sizes around the registers of every instruction set, and the sizes of Swin.
const CHANNELS: [usize; 19] =
    [1, 7, 8, 15, 16, 17, 31, 63, 64, 65, 96, 100, 128, 192, 384, 768, 1023, 1536, 6144];

#[test]
fn rows_of_f32_are_the_references() {
    for_each_cpu(|cpu| {
        for c in CHANNELS {
            for rows in [1, 7, 8, 9, 19] {
                let (gamma, beta, mut x) = case(c, rows);
                if rows > 8 {
                    x[5 * c + c / 2] = f32::NAN;
                    x[6 * c..7 * c].fill(1e4);
                    x[7 * c] = f32::INFINITY;
                }
                let want = reference_rows(&x, &gamma, &beta);
                let op = LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
                for threads in [1, 2, 3] {
                    let mut pool = Pool::new(threads);
                    let mut out = vec![f32::NAN; x.len()];
                    op.run(&mut pool, 1, &x, &RowMap::identity(rows), RowOut::F32(&mut out));
                    same(&out, &want, c, &format!("{cpu:?} c {c}, {rows} rows"));
                    let mut in_place = x.clone();
                    op.run_in_place(&mut pool, &mut in_place);
                    same(&in_place, &want, c, &format!("in place, {cpu:?} c {c}, {rows} rows"));
                }
            }
        }
    });
}

/// As [`assert_same`], but results may all be equal if `c` is 1: the result of a single channel is beta in
/// every row.
fn same(got: &[f32], want: &[f32], c: usize, what: &str) {
    match c {
        1 => assert!(got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan()), "{what}"),
        _ => assert_same(got, want, what),
    }
}

#[test]
fn errors_of_the_reference_are_within_twice_those_of_plain_f32() {
    for c in CHANNELS {
        let (gamma, beta, x) = case(c, 12);
        let normed = reference_rows(&x, &gamma, &beta);
        for (row, (x, got)) in x.chunks_exact(c).zip(normed.chunks_exact(c)).enumerate() {
            let truth = truth(x, &gamma, &beta);
            let largest = truth.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
            let bound = 2.0 * max_error(&naive(x, &gamma, &beta), &truth) + 3e-7 * largest;
            let error = max_error(got, &truth);
            assert!(error <= bound, "c {c} row {row}: error {error:e}, bound {bound:e}");
        }
    }
}

#[test]
fn rows_are_gathered_padded_and_quantized() {
    let map = RowMap::new(&ORDER, 6).unwrap();
    for_each_cpu(|cpu| {
        for c in [5, 96, 200, 768] {
            let (gamma, beta, x) = case(c, 12);
            let normed = reference_rows(&x, &gamma, &beta);
            let quantizer = step(1.4 / 127.0); // Small enough to clamp both ways.
            let stride = code_stride(c);
            let mut want = vec![128; 16 * stride];
            for (row, want) in want.chunks_exact_mut(stride).enumerate() {
                if let Some(token) = ORDER[row % 8] {
                    let normed = &normed[(row / 8 * 6 + token) * c..][..c];
                    want.iter_mut()
                        .zip(normed)
                        .for_each(|(w, &y)| *w = quantizer.code(y).cast_unsigned() ^ 0x80);
                }
            }
            assert!(want.contains(&0) && want.contains(&255), "both clamps are hit");
            for threads in [1, 2, 3] {
                let mut pool = Pool::new(threads);
                let mut codes = vec![128; 16 * stride];
                let op = LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::Codes(quantizer));
                op.run(&mut pool, 2, &x, &map, RowOut::Codes(&mut codes));
                assert_eq!(codes, want, "{cpu:?} c {c}");
                let mut fake = vec![f32::NAN; 16 * c];
                let op = LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::Fake(quantizer));
                op.run(&mut pool, 2, &x, &map, RowOut::F32(&mut fake));
                for (fake, codes) in fake.chunks_exact(c).zip(codes.chunks_exact(stride)) {
                    let back = |code: &u8| f32::from((code ^ 0x80).cast_signed()) * quantizer.scale();
                    let back: Vec<f32> = codes[..c].iter().map(back).collect();
                    assert_eq!(fake, back, "{cpu:?} c {c}");
                }
            }
        }
    });
}

/// Rows and parameters whose results are not finite, or exceed every integer.
#[test]
fn codes_of_unusual_rows_are_the_references() {
    for_each_cpu(|cpu| {
        for c in [33, 64, 96] {
            for (factor, eps) in [(1.0, EPS), (1.0, 0.0), (1e9, EPS), (1e38, EPS), (f32::NAN, EPS)] {
                let (mut gamma, beta, mut x) = case(c, 20);
                gamma[c / 3] *= factor;
                for (row, value) in
                    [f32::NAN, f32::INFINITY, -f32::INFINITY, 1e25, 1e-25].into_iter().enumerate()
                {
                    x[row * c + row] = value;
                }
                x[5 * c..6 * c].fill(1e4);
                x[6 * c..7 * c].iter_mut().for_each(|x| *x *= 1e-25);
                x[7 * c..8 * c].iter_mut().for_each(|x| *x *= 1e17);
                let quantizer = step(0.01);
                let mut want = vec![128; 20 * code_stride(c)];
                let mut normed = vec![0.0; c];
                for (x, want) in x.chunks_exact(c).zip(want.chunks_exact_mut(code_stride(c))) {
                    reference::layer_norm_row(x, &gamma, &beta, eps, &mut normed);
                    want.iter_mut()
                        .zip(&normed)
                        .for_each(|(w, &y)| *w = quantizer.code(y).cast_unsigned() ^ 0x80);
                }
                let mut codes = vec![128; want.len()];
                let op = LayerNorm::new(cpu, &gamma, &beta, eps, RowStore::Codes(quantizer));
                op.run(&mut Pool::new(1), 1, &x, &RowMap::identity(20), RowOut::Codes(&mut codes));
                assert_eq!(codes, want, "{cpu:?} c {c}, gamma times {factor}, epsilon {eps}");
            }
        }
    });
}

/// The order of two windows of four rows over six tokens, with padding.
const ORDER: [Option<usize>; 8] = [Some(5), None, Some(0), Some(3), Some(1), Some(2), None, Some(4)];

#[test]
fn residual_norms_are_added_to_their_tokens() {
    let orders = [(ORDER.to_vec(), 6), ((0..6).rev().map(Some).collect(), 6), (vec![None, Some(0)], 1)];
    for_each_cpu(|cpu| {
        for c in CHANNELS.into_iter().filter(|&c| c > 1) {
            for (rows, tokens) in &orders {
                for (branch, shortcut) in
                    [(None, None), (Some(step(0.02)), None), (Some(step(0.05)), Some(step(0.03)))]
                {
                    let map = RowMap::new(rows, *tokens).unwrap();
                    let (gamma, beta, x) = case(c, 3 * rows.len());
                    let before = Rng(c as u64).floats(3 * tokens * c, 2.0);
                    let mut want = before.clone();
                    for (i, x) in x.chunks_exact(c).enumerate() {
                        if let Some(token) = rows[i % rows.len()] {
                            let row = &mut want[(i / rows.len() * tokens + token) * c..][..c];
                            reference::add_layer_norm_row(x, &gamma, &beta, EPS, [branch, shortcut], row);
                        }
                    }
                    let op = ResidualNorm::new(cpu, &gamma, &beta, EPS, branch, shortcut);
                    for threads in [1, 3] {
                        let mut residual = before.clone();
                        op.run(&mut Pool::new(threads), 3, &x, &map, &mut residual);
                        assert_same(
                            &residual,
                            &want,
                            &format!("{cpu:?} c {c}, {} rows, {branch:?}", rows.len()),
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn a_residual_norm_adds_what_layer_norm_stores() {
    let (gamma, beta, x) = case(33, 1);
    let (mut normed, mut residual) = (vec![0.0; 33], Rng(3).floats(33, 2.0));
    reference::layer_norm_row(&x, &gamma, &beta, EPS, &mut normed);
    let want: Vec<f32> = residual.iter().zip(&normed).map(|(held, normed)| held + normed).collect();
    reference::add_layer_norm_row(&x, &gamma, &beta, EPS, [None, None], &mut residual);
    assert_same(&residual, &want, "reference");
}

#[test]
fn rows_are_gathered_and_quantized_without_a_norm() {
    let map = RowMap::new(&ORDER, 6).unwrap();
    for_each_cpu(|cpu| {
        for c in CHANNELS {
            let mut x = Rng(c as u64).floats(12 * c, 2.0);
            x[c / 2] = f32::NAN;
            let quantizer = step(1.4 / 127.0); // Small enough to clamp both ways.
            let stride = code_stride(c);
            let (mut codes, mut floats) = (vec![7; 16 * stride], vec![0.0; 16 * c]);
            for (row, (codes, floats)) in
                codes.chunks_exact_mut(stride).zip(floats.chunks_exact_mut(c)).enumerate()
            {
                codes[..c].fill(128);
                if let Some(token) = ORDER[row % 8] {
                    floats.copy_from_slice(&x[(row / 8 * 6 + token) * c..][..c]);
                    let code = |x: &f32| quantizer.code(*x).cast_unsigned() ^ 0x80;
                    codes.iter_mut().zip(&*floats).for_each(|(to, x)| *to = code(x));
                }
            }
            let fake: Vec<f32> = floats.iter().map(|&x| quantizer.fake(x)).collect();
            for threads in [1, 3] {
                let mut pool = Pool::new(threads);
                let mut got = vec![7; codes.len()];
                let op = QuantizeRows::new(cpu, c, RowStore::Codes(quantizer));
                op.run(&mut pool, 2, &x, &map, RowOut::Codes(&mut got));
                assert_eq!(got, codes, "{cpu:?} c {c}");
                for (store, want) in [(RowStore::F32, &floats), (RowStore::Fake(quantizer), &fake)] {
                    let mut got = vec![f32::NAN; want.len()];
                    QuantizeRows::new(cpu, c, store).run(&mut pool, 2, &x, &map, RowOut::F32(&mut got));
                    assert_same(&got, want, &format!("{cpu:?} c {c}, {store:?}"));
                }
            }
        }
    });
}

#[test]
#[should_panic(expected = "ResidualNorm: residual of 8 elements is not [2, 1, 8]")]
fn a_residual_of_the_wrong_size_is_refused() {
    let cpu = Cpu::available()[0];
    let op = ResidualNorm::new(cpu, &[1.0; 8], &[0.0; 8], EPS, None, None);
    op.run(&mut Pool::new(1), 2, &[0.0; 16], &RowMap::identity(1), &mut [0.0; 8]);
}

#[test]
#[should_panic(expected = "QuantizeRows: input of 0 elements is not")]
fn sizes_that_overflow_are_refused() {
    let op = QuantizeRows::new(Cpu::available()[0], 8, RowStore::F32);
    op.run(&mut Pool::new(1), usize::MAX / 4, &[], &RowMap::identity(4), RowOut::F32(&mut []));
}

#[test]
fn a_nan_becomes_code_0_and_stays_a_nan_in_f32() {
    for_each_cpu(|cpu| {
        let (gamma, beta, mut x) = case(40, 2);
        x[3] = f32::NAN;
        let mut codes = vec![1; 80];
        let op = LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::Codes(step(0.01)));
        op.run(&mut Pool::new(1), 1, &x, &RowMap::identity(2), RowOut::Codes(&mut codes));
        assert_eq!(codes[..40], [128; 40], "{cpu:?}");
        assert_varied(&codes[40..], "the other row");
        LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32).run_in_place(&mut Pool::new(1), &mut x);
        assert!(x[..40].iter().all(|y| y.is_nan()) && x[40..].iter().all(|y| y.is_finite()), "{cpu:?}");
    });
}

#[test]
fn four_rows_are_merged_with_zeros_before_the_norm() {
    let sources = [Some(4), Some(0), Some(3), Some(1), Some(2), None, Some(5), None];
    let map = RowMap::new(&sources, 6).unwrap();
    for_each_cpu(|cpu| {
        for c in [3, 20, 96, 192] {
            let (gamma, beta, _) = case(4 * c, 1);
            let (_, _, x) = case(c, 18);
            let mut merged = Vec::new();
            for image in x.chunks_exact(6 * c) {
                for source in sources {
                    merged.extend(source.map_or(vec![0.0; c], |t| image[t * c..][..c].to_vec()));
                }
            }
            let want = reference_rows(&merged, &gamma, &beta);
            for threads in [1, 2, 3] {
                let mut pool = Pool::new(threads);
                let mut out = vec![f32::NAN; want.len()];
                let op = MergeNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
                op.run(&mut pool, 3, &x, &map, RowOut::F32(&mut out));
                assert_same(&out, &want, &format!("{cpu:?} c {c}"));
            }
        }
    });
}

#[test]
#[should_panic(expected = "MergeNorm: 6 rows are no multiple of four")]
fn rows_that_are_no_multiple_of_four_are_not_merged() {
    let op = MergeNorm::new(Cpu::available()[0], &[1.0; 4], &[0.0; 4], EPS, RowStore::F32);
    op.run(&mut Pool::new(1), 1, &[0.0; 6], &RowMap::identity(6), RowOut::F32(&mut [0.0; 4]));
}

#[test]
#[should_panic(expected = "PooledNorm: no tokens")]
fn the_mean_of_no_tokens_is_refused() {
    let op = PooledNorm::new(Cpu::available()[0], &[1.0; 4], &[0.0; 4], EPS, RowStore::F32);
    op.run(&mut Pool::new(1), 1, 0, &[], RowOut::F32(&mut [0.0; 4]));
}

#[test]
fn tokens_are_normalised_and_then_averaged() {
    for_each_cpu(|cpu| {
        for (c, tokens) in [(9, 1), (768, 49), (100, 7)] {
            let (gamma, beta, x) = case(c, 2 * tokens);
            let normed = reference_rows(&x, &gamma, &beta);
            let mut want = vec![f32::NAN; 2 * c];
            let mut truth = vec![0.0_f64; 2 * c];
            for (image, normed) in normed.chunks_exact(tokens * c).enumerate() {
                reference::mean_of_rows(normed, &mut want[image * c..][..c]);
                for (i, &y) in normed.iter().enumerate() {
                    truth[image * c + i % c] += f64::from(y) / tokens as f64;
                }
            }
            assert!(max_error(&want, &truth) <= 2e-6, "c {c}");
            for threads in [1, 2, 3] {
                let mut out = vec![f32::NAN; 2 * c];
                let op = PooledNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
                op.run(&mut Pool::new(threads), 2, tokens, &x, RowOut::F32(&mut out));
                assert_same(&out, &want, &format!("{cpu:?} c {c}"));
            }
        }
    });
}

#[test]
fn one_norm_runs_over_images_of_several_sizes() {
    for_each_cpu(|cpu| {
        let (gamma, beta, x) = case(20, 48);
        let merge = || MergeNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
        assert_sizes_leave_no_trace([24, 8], merge, |op, pool, tokens| {
            let map = RowMap::new(&(0..tokens).rev().map(Some).collect::<Vec<_>>(), tokens).unwrap();
            let mut out = vec![f32::NAN; 2 * tokens * 5];
            op.run(pool, 2, &x[..out.len()], &map, RowOut::F32(&mut out));
            out
        });
        let pooled = || PooledNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
        assert_sizes_leave_no_trace([24, 7], pooled, |op, pool, tokens| {
            let mut out = vec![f32::NAN; 2 * 20];
            op.run(pool, 2, tokens, &x[..2 * tokens * 20], RowOut::F32(&mut out));
            out
        });
    });
}

#[test]
fn nothing_is_a_batch_too() {
    for_each_cpu(|cpu| {
        let (gamma, beta, _) = case(16, 1);
        let mut pool = Pool::new(2);
        let op = LayerNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
        op.run(&mut pool, 0, &[], &RowMap::identity(4), RowOut::F32(&mut []));
        op.run_in_place(&mut pool, &mut []);
        let map = RowMap::identity(4);
        QuantizeRows::new(cpu, 16, RowStore::F32).run(&mut pool, 0, &[], &map, RowOut::F32(&mut []));
        ResidualNorm::new(cpu, &gamma, &beta, EPS, None, None).run(&mut pool, 0, &[], &map, &mut []);
        let map = RowMap::new(&[], 0).unwrap();
        ResidualNorm::new(cpu, &gamma, &beta, EPS, None, None).run(&mut pool, 3, &[], &map, &mut []);
        MergeNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32).run(
            &mut pool,
            3,
            &[],
            &map,
            RowOut::F32(&mut []),
        );
        let pooled = PooledNorm::new(cpu, &gamma, &beta, EPS, RowStore::F32);
        pooled.run(&mut pool, 0, 4, &[], RowOut::F32(&mut []));
    });
}

#[test]
#[should_panic(expected = "LayerNorm: was prepared to store F32 and is given an output of codes")]
fn an_output_of_the_wrong_kind_is_refused() {
    let cpu = Cpu::available()[0];
    let op = LayerNorm::new(cpu, &[1.0; 4], &[0.0; 4], EPS, RowStore::F32);
    op.run(&mut Pool::new(1), 1, &[0.0; 4], &RowMap::identity(1), RowOut::Codes(&mut [0; 4]));
}
