//! Linears against the reference, for every implementation on this processor.
//!
//! All results must be equal bit for bit. Inputs of f32 linears are small integers in the tests of ties and
//! clamps, and arbitrary values in the tests of the order of additions.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::support::{Rng, assert_same, assert_varied, for_each_cpu, step, window_map};
use swinq_kernels::linear::{LinearF32, LinearI8, LinearOut, LinearSpec, Store};
use swinq_kernels::{Cpu, Pool};
use swinq_numerics::{ColumnQuantizers, Gelu, PAD, Quantizer, RowMap, code_stride, reference};

/// Rows, columns, inputs: around the tiles (1, 6, 8, 14, 16 and 32 rows; 8, 16 and 32 columns) and Swin's
/// own.
const SHAPES: [(usize, usize, usize); 25] = [
    (0, 16, 8),
    (1, 1, 1),
    (1, 32, 4),
    (2, 15, 3),
    (5, 16, 18),
    (6, 17, 27),
    (7, 31, 5),
    (13, 33, 48),
    (14, 32, 96),
    (17, 32, 4),
    (18, 40, 200),
    (33, 33, 132),
    (34, 64, 64),
    (15, 48, 97),
    (28, 64, 2),
    (29, 7, 0),
    (49, 96, 96),
    (49, 100, 768),
    (49, 40, 3072),
    (64, 18, 49),
    (98, 288, 96),
    (144, 97, 384),
    (196, 63, 30),
    (300, 10, 192),
    (3, 1000, 65),
];

/// Whether the linear is f32, the scale of `output` as bits, and its GELU.
type Values = (bool, Option<u32>, Option<Gelu>);

/// A linear to check: input codes or integers, weight, vectors.
struct Case {
    rows: usize,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
    codes: Vec<i8>,
    /// Zero points of the INT8 input; empty in every other case.
    zero_points: Vec<i8>,
    multiplier: Vec<f32>,
    bias: Vec<f32>,
    columns: ColumnQuantizers,
    residual: Vec<f32>,
    map: RowMap,
    /// Cached results of [`Case::values`].
    known: RefCell<HashMap<Values, Vec<f32>>>,
}

impl Case {
    /// Multipliers and scales are powers of two, so that many values are ties. Sums of a few hundred inputs
    /// reach both clamps. In every other case one bias is a NaN.
    fn new((rows, n, k): (usize, usize, usize), seed: u64) -> Case {
        let mut rng = Rng(seed);
        let power = |rng: &mut Rng, low: i32| 2f32.powi(low + (rng.next() % 3) as i32);
        let mut bytes = rng.bytes(rows * code_stride(k));
        let mut codes: Vec<i8> = rng.bytes(n * k).into_iter().map(|b| b as i8).collect();
        // The extremes of both operands, in the same places.
        bytes.iter_mut().take(k.min(3)).for_each(|b| *b = 0);
        bytes.iter_mut().rev().take(3).for_each(|b| *b = 255);
        codes.iter_mut().take(k.min(3)).for_each(|c| *c = -128);
        let mut bias: Vec<f32> = (0..n).map(|_| (rng.next() % 41) as f32 * 0.5 - 10.0).collect();
        if n > 3 && seed.is_multiple_of(2) {
            bias[3] = f32::NAN;
        }
        let (map, images) = window_map(rows);
        Case {
            rows,
            n,
            k,
            multiplier: (0..n).map(|_| power(&mut rng, -9)).collect(),
            columns: columns(&mut rng, n, seed % 4 < 2),
            zero_points: if seed % 4 < 2 {
                Vec::new()
            } else {
                rng.bytes(k).into_iter().map(|b| b as i8).collect()
            },
            residual: rng.floats(images * map.tokens() * n, 20.0),
            bytes,
            codes,
            bias,
            map,
            known: RefCell::default(),
        }
    }

    /// Input and weight as integers of few bits, whose f32 products are exact.
    fn integers(&self) -> (Vec<f32>, Vec<f32>) {
        let input = self.bytes[..self.rows * self.k].iter().map(|b| f32::from(b % 17) - 8.0).collect();
        (input, self.codes.iter().map(|c| f32::from(c % 9)).collect())
    }

    fn spec(&self, output: Option<Quantizer>, gelu: Option<Gelu>, store: Store) -> LinearSpec<'_> {
        LinearSpec { n: self.n, k: self.k, bias: Some(&self.bias), output, gelu, store }
    }

    /// The values before they are stored, `[rows, n]`, of the INT8 linear or of [`Case::integers`] in f32.
    fn values(&self, float: bool, output: Option<Quantizer>, gelu: Option<Gelu>) -> Vec<f32> {
        let key = (float, output.map(|q| q.scale().to_bits()), gelu);
        self.known.borrow_mut().entry(key).or_insert_with(|| self.compute(float, output, gelu)).clone()
    }

    fn compute(&self, float: bool, output: Option<Quantizer>, gelu: Option<Gelu>) -> Vec<f32> {
        let (input, weight) = self.integers();
        let signed: Vec<i8> = self.bytes.iter().map(|b| (b ^ 0x80) as i8).collect();
        let value = |i: usize| {
            let (row, c) = (i / self.n, i % self.n);
            if float {
                let sum = sum(&input[row * self.k..][..self.k], &weight[c * self.k..][..self.k]);
                return reference::epilogue_f32(sum, self.bias[c], output, gelu);
            }
            let x = &signed[row * code_stride(self.k)..][..self.k];
            let w = &self.codes[c * self.k..][..self.k];
            let acc = reference::accumulate_i8(x, w) - reference::correction_i8(&self.zero_points, w);
            reference::epilogue_i8(acc, self.multiplier[c], self.bias[c], output, gelu)
        };
        (0..self.rows * self.n).map(value).collect()
    }

    /// Runs the linear with an f32 output.
    fn run(&self, cpu: Cpu, pool: &mut Pool, float: bool, spec: LinearSpec<'_>, out: LinearOut<'_>) {
        if float {
            let (input, weight) = self.integers();
            return LinearF32::new(cpu, spec, &weight).run(pool, self.rows, &input, out);
        }
        LinearI8::with_zero_points(cpu, spec, &self.codes, &self.multiplier, &self.zero_points).run(
            pool,
            self.rows,
            &self.bytes,
            out,
        );
    }
}

/// Quantizers of `n` columns, whose scales are powers of two; symmetric ones or with any zero points.
fn columns(rng: &mut Rng, n: usize, symmetric: bool) -> ColumnQuantizers {
    let factors: Vec<f32> = (0..n).map(|_| 2f32.powi((rng.next() % 3) as i32 - 1)).collect();
    let zero_points =
        rng.bytes(n).into_iter().map(|b| if symmetric { 0 } else { b as i8 }).collect::<Vec<_>>();
    ColumnQuantizers::channels(1.0, &factors, &zero_points).unwrap()
}

/// The reference's sum for one row and column.
fn sum(input: &[f32], weight: &[f32]) -> f32 {
    let mut sum = [f32::NAN];
    reference::accumulate_f32(input, weight, &mut sum);
    sum[0]
}

fn each_case(check: impl Fn(Cpu, &mut Pool, &Case, bool, &str)) {
    // A NaN among the biases disables the faster epilogues for the whole linear, so each shape is also tested
    // without one.
    let cases = SHAPES.into_iter().enumerate();
    let cases = cases.flat_map(|(i, shape)| [0, 1].map(|nan| Case::new(shape, 2 * i as u64 + nan)));
    let cases: Vec<Case> = cases.collect();
    for_each_cpu(|cpu| {
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads);
            for case in &cases {
                for float in [false, true] {
                    let dtype = if float { "f32" } else { "INT8" };
                    let shape = (case.rows, case.n, case.k);
                    let what = format!("{} {dtype} {shape:?}, {threads} threads", cpu);
                    check(cpu, &mut pool, case, float, &what);
                }
            }
        }
    });
}

#[test]
fn f32_results_are_equal_with_and_without_output_and_fake() {
    each_case(|cpu, pool, case, float, what| {
        for output in [None, Some(step(if float { 0.5 } else { 0.25 }))] {
            for fake in [None, Some(&case.columns)] {
                let store = fake.map_or(Store::F32, |columns| Store::Fake(columns.clone()));
                let mut got = vec![f32::NAN; case.rows * case.n];
                case.run(cpu, pool, float, case.spec(output, None, store), LinearOut::F32(&mut got));
                let mut want = case.values(float, output, None);
                let fake_one = |(i, v): (usize, &mut f32)| *v = fake.map_or(*v, |q| q.fake(i % case.n, *v));
                want.iter_mut().enumerate().for_each(fake_one);
                assert_same(&got, &want, &format!("{what}, output {output:?}, fake {}", fake.is_some()));
            }
        }
    });
}

#[test]
fn codes_are_equal_and_nothing_else_is_written() {
    each_case(|cpu, pool, case, float, what| {
        let stride = code_stride(case.n);
        let mut got = vec![77u8; case.rows * stride];
        let store = Store::Codes(case.columns.clone());
        case.run(cpu, pool, float, case.spec(None, None, store), LinearOut::Codes(&mut got));
        let mut want = vec![77u8; case.rows * stride];
        for (i, value) in case.values(float, None, None).into_iter().enumerate() {
            want[i / case.n * stride + i % case.n] = case.columns.code(i % case.n, value) as u8 ^ 0x80;
        }
        assert_eq!(got, want, "{what}");
        assert_varied(&want, what);
        if case.rows * case.n > 4000 {
            assert!(
                want.contains(&0) && want.contains(&255) && want.contains(&128),
                "{what}: clamps and zero"
            );
        }
    });
}

#[test]
fn the_residual_is_equal_and_padding_is_dropped() {
    let sites = [(None, None), (Some(step(0.5)), None), (Some(step(0.125)), Some(step(0.25)))];
    each_case(|cpu, pool, case, float, what| {
        for (branch, shortcut) in sites {
            let mut got = case.residual.clone();
            let spec = case.spec(None, None, Store::Residual { branch, shortcut });
            let out = LinearOut::Residual { residual: &mut got, map: &case.map };
            case.run(cpu, pool, float, spec, out);
            let fake = |q: Option<Quantizer>, x| q.map_or(x, |q: Quantizer| q.fake(x));
            let mut want = case.residual.clone();
            for (i, value) in case.values(float, None, None).into_iter().enumerate() {
                let (row, period) = (i / case.n, case.map.rows().len());
                let token = case.map.rows()[row % period];
                if token != PAD {
                    let at = (row / period * case.map.tokens() + token as usize) * case.n + i % case.n;
                    want[at] = fake(shortcut, want[at]) + fake(branch, value);
                }
            }
            assert_same(&got, &want, &format!("{what}, branch {branch:?}, shortcut {shortcut:?}"));
        }
    });
}

#[test]
fn gelu_is_equal_in_f32_and_in_codes() {
    each_case(|cpu, pool, case, float, what| {
        let forms = [Gelu::Erf, Gelu::Quadratic].map(Some);
        for (gelu, output) in forms.iter().flat_map(|&gelu| [None, Some(step(0.25))].map(|q| (gelu, q))) {
            let want = case.values(float, output, gelu);
            let mut got = vec![f32::NAN; want.len()];
            case.run(cpu, pool, float, case.spec(output, gelu, Store::F32), LinearOut::F32(&mut got));
            assert_same(&got, &want, what);
            let stride = code_stride(case.n);
            for columns in [&ColumnQuantizers::symmetric(case.n, &[step(1.0 / 7.3)]), &case.columns] {
                let mut codes = vec![0u8; case.rows * stride];
                let store = Store::Codes(columns.clone());
                case.run(cpu, pool, float, case.spec(output, gelu, store), LinearOut::Codes(&mut codes));
                let mut expected = vec![0u8; case.rows * stride];
                for (i, &value) in want.iter().enumerate() {
                    expected[i / case.n * stride + i % case.n] = columns.code(i % case.n, value) as u8 ^ 0x80;
                }
                assert_eq!(codes, expected, "{what}");
                assert_varied(&codes, what);
            }
        }
    });
}

/// Arguments of GELU as in a layer, and one scale for all columns, so that kernels use their faster
/// epilogues. With these scales the smallest code is 0, -1, -5 or -126, and GELU reaches the largest code at
/// 64, at 4 or below 1.
#[test]
fn codes_of_gelu_with_one_step_are_equal() {
    for (i, (rows, n, k)) in
        [(98, 288, 96), (29, 97, 192), (14, 64, 768), (13, 32, 384), (1, 96, 96)].into_iter().enumerate()
    {
        let mut rng = Rng(i as u64 + 40);
        let (input, mut codes) = (rng.bytes(rows * code_stride(k)), rng.bytes(n * k));
        // One column has the largest possible accumulators, one only zeros.
        codes[..k].fill(0x80);
        codes[k..2 * k].fill(0);
        let codes: Vec<i8> = codes.into_iter().map(|b| b as i8).collect();
        let spread = 2.0 / (5500.0 * (k as f32).sqrt());
        let multiplier: Vec<f32> = rng.floats(n, 1.0).iter().map(|x| spread * (1.0 + 0.5 * x)).collect();
        let bias = rng.floats(n, 2.0);
        let value = |i: usize| {
            let x = &input[i / n * code_stride(k)..][..k];
            let x: Vec<i8> = x.iter().map(|b| (b ^ 0x80) as i8).collect();
            let acc = reference::accumulate_i8(&x, &codes[i % n * k..][..k]);
            reference::epilogue_i8(acc, multiplier[i % n], bias[i % n], None, Some(Gelu::Quadratic))
        };
        let values: Vec<f32> = (0..rows * n).map(value).collect();
        for recip in [2.0f32, 3.0, 11.0, 30.0, 61.5, 300.0, 740.0, 2000.0] {
            let columns = ColumnQuantizers::symmetric(n, &[step(recip.recip())]);
            let mut want = vec![77u8; rows * code_stride(n)];
            for (i, value) in values.iter().enumerate() {
                want[i / n * code_stride(n) + i % n] = columns.code(i % n, *value) as u8 ^ 0x80;
            }
            for_each_cpu(|cpu| {
                let store = Store::Codes(columns.clone());
                let spec =
                    LinearSpec { n, k, bias: Some(&bias), output: None, gelu: Some(Gelu::Quadratic), store };
                let mut got = vec![77u8; want.len()];
                let op = LinearI8::new(cpu, spec, &codes, &multiplier);
                op.run(&mut Pool::new(2), rows, &input, LinearOut::Codes(&mut got));
                assert_eq!(got, want, "{} ({rows}, {n}, {k}), reciprocal step {recip}", cpu);
            });
        }
    }
}

#[test]
fn f32_products_of_arbitrary_values_are_equal() {
    for (rows, n, k) in SHAPES {
        let mut rng = Rng((rows + k) as u64);
        let (input, weight) = (rng.floats(rows * k, 2.0), rng.floats(n * k, 1.0));
        let bias = rng.floats(n, 1.0);
        let value = |i: usize| sum(&input[i / n * k..][..k], &weight[i % n * k..][..k]);
        let sums: Vec<f32> = (0..rows * n).map(value).collect();
        for gelu in [None, Some(Gelu::Erf), Some(Gelu::Quadratic)] {
            let value = |(i, &sum)| reference::epilogue_f32(sum, bias[i % n], None, gelu);
            let want: Vec<f32> = sums.iter().enumerate().map(value).collect();
            for_each_cpu(|cpu| {
                let spec = LinearSpec { n, k, bias: Some(&bias), output: None, gelu, store: Store::F32 };
                let op = LinearF32::new(cpu, spec, &weight);
                for threads in [1, 2, 3] {
                    let mut got = vec![f32::NAN; rows * n];
                    op.run(&mut Pool::new(threads), rows, &input, LinearOut::F32(&mut got));
                    assert_same(&got, &want, &format!("{} ({rows}, {n}, {k}), {gelu:?}", cpu));
                }
            });
        }
    }
}

/// A product that underflows to -0, and a bias of -0.
#[test]
fn a_zero_keeps_its_sign() {
    for_each_cpu(|cpu| {
        for gelu in [None, Some(Gelu::Erf), Some(Gelu::Quadratic)] {
            let spec = LinearSpec { n: 1, k: 1, bias: Some(&[-0.0]), output: None, gelu, store: Store::F32 };
            let mut got = [f32::NAN];
            let out = LinearOut::F32(&mut got);
            LinearF32::new(cpu, spec, &[1e-30]).run(&mut Pool::new(1), 1, &[-1e-30], out);
            assert_eq!(got[0].to_bits(), (-0.0_f32).to_bits(), "{cpu:?} {gelu:?}");
        }
    });
}

#[test]
fn the_f32_sums_of_the_reference_err_no_more_than_twice_a_naive_sum() {
    for (rows, n, k) in SHAPES {
        let mut rng = Rng(k as u64);
        let (input, weight) = (rng.floats(rows * k, 2.0), rng.floats(n * k, 1.0));
        let (mut ours, mut naive, mut largest) = (0f64, 0f64, 0f64);
        for i in 0..rows * n {
            let (x, w) = (&input[i / n * k..][..k], &weight[i % n * k..][..k]);
            let truth: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let plain: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            ours = ours.max((f64::from(sum(x, w)) - truth).abs());
            naive = naive.max((f64::from(plain) - truth).abs());
            largest = largest.max(truth.abs());
        }
        let floor = largest * f64::from(f32::EPSILON);
        assert!(ours <= 2.0 * naive + floor, "({rows}, {n}, {k}): {ours:e}, {naive:e}");
    }
}

#[test]
#[should_panic(expected = "input of 15 elements is not [2, 8]")]
fn an_input_of_another_size_is_refused() {
    let cpu = Cpu::available()[0];
    let spec = LinearSpec { n: 1, k: 5, bias: None, output: None, gelu: None, store: Store::F32 };
    LinearI8::new(cpu, spec, &[1; 5], &[1.0]).run(
        &mut Pool::new(1),
        2,
        &[0; 15],
        LinearOut::F32(&mut [0.0; 2]),
    );
}

#[test]
#[should_panic(expected = "cannot write")]
fn an_output_that_does_not_suit_the_store_is_refused() {
    let cpu = Cpu::available()[0];
    let spec = LinearSpec { n: 1, k: 4, bias: None, output: None, gelu: None, store: Store::F32 };
    LinearI8::new(cpu, spec, &[1; 4], &[1.0]).run(
        &mut Pool::new(1),
        1,
        &[0; 4],
        LinearOut::Codes(&mut [0; 4]),
    );
}
