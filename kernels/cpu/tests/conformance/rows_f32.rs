//! The functions on rows of f32 against the reference, bit for bit, for every implementation.

use crate::support::{Rng, assert_same, assert_varied, for_each_cpu};
use swinq_kernels::rows_f32;
use swinq_numerics::reference;

/// Rows and columns: sizes around the registers of every instruction set, and the sizes of Swin.
const SHAPES: [(usize, usize); 14] = [
    (0, 49),
    (1, 1),
    (3, 2),
    (5, 7),
    (4, 8),
    (2, 9),
    (9, 15),
    (8, 16),
    (7, 17),
    (2, 31),
    (5, 33),
    (49, 49),
    (20, 144),
    (3, 576),
];

/// Rows that include a NaN, an infinity and values far below the largest one, if there are several rows.
fn logits(rows: usize, columns: usize) -> Vec<f32> {
    let mut x = Rng((rows * 1000 + columns) as u64).floats(rows * columns, 9.0);
    if rows > 3 {
        x[columns / 2] -= 100.0;
        x[columns - 1] = f32::NEG_INFINITY;
        x[columns + columns / 3] = f32::NAN;
        x[3 * columns - 1] = f32::INFINITY;
    }
    x
}

#[test]
fn layer_norm_is_the_references() {
    for_each_cpu(|cpu| {
        for (rows, c) in SHAPES {
            let mut rng = Rng(c as u64);
            let (gamma, beta, x) = (rng.floats(c, 1.5), rng.floats(c, 0.5), logits(rows, c));
            let mut want = vec![0.0; x.len()];
            for (x, want) in x.chunks_exact(c).zip(want.chunks_exact_mut(c)) {
                reference::layer_norm_row(x, &gamma, &beta, 1e-5, want);
            }
            let mut got = vec![f32::NAN; x.len()];
            rows_f32::layer_norm(cpu, &x, &gamma, &beta, 1e-5, &mut got);
            assert_same(&got, &want, &format!("{cpu:?} [{rows}, {c}]"));
        }
    });
}

#[test]
fn gelu_is_the_references() {
    for_each_cpu(|cpu| {
        for (rows, columns) in SHAPES {
            let mut x = logits(rows, columns);
            let want: Vec<f32> = x.iter().map(|&x| reference::gelu(x)).collect();
            rows_f32::gelu(cpu, &mut x);
            assert_same(&x, &want, &format!("{cpu:?} [{rows}, {columns}]"));
        }
    });
}

#[test]
fn scale_add_is_one_rounding() {
    for_each_cpu(|cpu| {
        for count in [0, 1, 15, 16, 1000] {
            let (x, y) = (logits(1, count), logits(1, count + 1));
            let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| reference::fma(*x, 0.3, *y)).collect();
            let mut got = vec![f32::NAN; count];
            rows_f32::scale_add(cpu, &x, 0.3, &y[..count], &mut got);
            assert_same(&got, &want, &format!("{cpu:?} {count}"));
        }
    });
}

#[test]
fn the_gradient_of_gelu_is_its_derivative() {
    let exact = |x: f64| {
        let distribution = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        distribution + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let x: Vec<f32> = (-700..=700).map(|i| i as f32 / 97.0).collect();
    let gradient: Vec<f32> = (0..x.len()).map(|i| (i % 13) as f32 / 4.0 - 1.5).collect();
    for_each_cpu(|cpu| {
        let mut got = gradient.clone();
        rows_f32::gelu_gradient(cpu, &x, &mut got);
        for ((&x, &gradient), &got) in x.iter().zip(&gradient).zip(&got) {
            let want = f64::from(gradient) * exact(f64::from(x));
            assert!((f64::from(got) - want).abs() < 4e-7, "{cpu:?}: {got} instead of {want} at {x}");
        }
    });
}

#[test]
fn softmax_is_the_references() {
    for_each_cpu(|cpu| {
        for (rows, columns) in SHAPES {
            let what = format!("{cpu:?} [{rows}, {columns}]");
            let x = logits(rows, columns);
            let (mut want, mut want_totals) = (x.clone(), Vec::new());
            let (mut want_codes, mut want_sums) = (vec![0; x.len()], Vec::new());
            for ((x, e), codes) in x
                .chunks_exact(columns)
                .zip(want.chunks_exact_mut(columns))
                .zip(want_codes.chunks_exact_mut(columns))
            {
                want_totals.push(reference::attention_row_exp(e));
                want_sums.push(reference::attention_row_u8(x, codes));
            }
            let (mut got, mut totals) = (x.clone(), vec![f32::NAN; rows]);
            rows_f32::exp_minus_max(cpu, columns, &mut got, &mut totals);
            assert_same(&got, &want, &what);
            assert!(
                totals.iter().zip(&want_totals).all(|(a, b)| a == b || a.is_nan() && b.is_nan()),
                "{what}"
            );
            let (mut codes, mut sums) = (vec![7; x.len()], vec![7; rows]);
            rows_f32::softmax_codes_u8(cpu, columns, &x, &mut codes, &mut sums);
            assert_eq!((&codes, &sums), (&want_codes, &want_sums), "{what}");
            assert_varied(&codes, &what);
        }
    });
}

#[test]
#[should_panic(expected = "exp_minus_max: input of 7 elements is not [2, 3]")]
fn an_input_of_another_size_is_refused() {
    let cpu = swinq_kernels::Cpu::available()[0];
    rows_f32::exp_minus_max(cpu, 3, &mut [0.0; 7], &mut [0.0; 2]);
}
