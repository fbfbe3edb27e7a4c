//! Conformance of window attention, for every implementation and every combination of sites.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::support::{Rng, assert_same, assert_sizes_leave_no_trace, for_each_cpu, max_error, step};
use swinq_kernels::{AttentionIn, Cpu, Pool, RowOut, WindowAttention};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, HeadScores, MASKS, Probs, RowStore, code_stride, reference,
};

/// Sizes, tables and input of one case.
struct Case {
    heads: usize,
    d: usize,
    n: usize,
    images: usize,
    /// The mask of each window of an image.
    masks: Vec<u8>,
    scales: Vec<f32>,
    hi_lo: Vec<bool>,
    bias: Vec<f32>,
    regions: Option<Vec<u8>>,
    /// q, k, v as f32, `[rows, 3 * heads * d]`.
    x: Vec<f32>,
}

const Q: f32 = 0.031;
const K: f32 = 0.027;
const V: f32 = 0.02;

/// Every site off.
const FLOAT: AttentionQuant = AttentionQuant { q: None, k: None, v: None, scores: None, probs: Probs::Float };

/// q, k and v on.
fn int8(probs: Probs) -> AttentionQuant {
    AttentionQuant { q: Some(step(Q)), k: Some(step(K)), v: Some(step(V)), scores: None, probs }
}

/// Regions `[MASKS, n]` of windows that are divided not at all, from left to right, from top to bottom, and
/// in both ways.
pub(crate) fn regions(n: usize) -> Vec<u8> {
    let side = n.isqrt();
    let region = |(mask, i): (usize, usize)| {
        let (right, low) = (i % side > side / 2, i / side > side / 3);
        7 + u8::from(mask & 1 != 0 && right) + 2 * u8::from(mask & 2 != 0 && low)
    };
    (0..MASKS).flat_map(|mask| (0..n).map(move |i| (mask, i))).map(region).collect()
}

impl Case {
    fn new(heads: usize, d: usize, n: usize, windows: usize, images: usize) -> Case {
        let mut rng = Rng((heads + 10 * d + 1000 * n + windows) as u64);
        let regions = (windows > 1).then(|| regions(n));
        let masks = (0..windows).map(|window| (window % MASKS) as u8);
        let x = rng.floats(images * windows * n * 3 * heads * d, 4.5);
        let bias = rng.floats(heads * n * n, 1.5);
        let scales = (0..heads).map(|head| (1.0 - 0.07 * head as f32) / (d as f32).sqrt()).collect();
        Case { heads, d, n, images, masks: masks.collect(), scales, hi_lo: Vec::new(), bias, regions, x }
    }

    /// The same with hi and lo codes for each query and key of every other head, from head `first` on.
    fn with_hi_lo(self, first: usize) -> Case {
        Case { hi_lo: (0..self.heads).map(|head| head % 2 == first).collect(), ..self }
    }

    /// The heads with hi and lo codes.
    fn low_heads(&self) -> Vec<usize> {
        (0..self.hi_lo.len()).filter(|&head| self.hi_lo[head]).collect()
    }

    fn columns(&self) -> usize {
        self.heads * self.d
    }

    fn op(&self, cpu: Cpu, quant: AttentionQuant, store: RowStore) -> WindowAttention {
        let (heads, head_dim, tokens) = (self.heads, self.d, self.n);
        let (bias, regions) = (&self.bias[..], self.regions.as_deref());
        let (scales, hi_lo) = (&self.scales[..], &self.hi_lo[..]);
        let spec = AttentionSpec {
            heads,
            head_dim,
            tokens,
            scales,
            hi_lo,
            bias,
            regions,
            mask: -100.0,
            quant,
            store,
        };
        WindowAttention::new(cpu, spec)
    }

    /// The input as codes of the sites of `quant`, with 99 in the bytes of padding.
    fn codes(&self, quant: &AttentionQuant) -> Vec<u8> {
        let (wide, columns) = (3 * self.columns(), self.columns());
        let mut codes = Vec::new();
        for row in self.x.chunks_exact(wide) {
            let start = codes.len();
            for (part, site) in row.chunks_exact(columns).zip([quant.q, quant.k, quant.v]) {
                codes.extend(part.iter().map(|&x| site.unwrap().code(x).cast_unsigned() ^ 0x80));
            }
            for (part, site) in row.chunks_exact(columns).zip([quant.q, quant.k]) {
                for head in self.low_heads() {
                    let low = |&x: &f32| reference::lo_code(x * site.unwrap().recip()).cast_unsigned() ^ 0x80;
                    codes.extend(part[head * self.d..][..self.d].iter().map(low));
                }
            }
            codes.resize(start + code_stride(codes.len() - start), 99);
        }
        codes
    }

    fn run(&self, op: &WindowAttention, threads: usize, input: AttentionIn<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.x.len() / 3];
        op.run(&mut Pool::new(threads), self.images, &self.masks, input, RowOut::F32(&mut out));
        out
    }

    /// Calls `each` with the operands and the scale of every window and head, its bias with the mask, and the
    /// index of each output.
    fn units(
        &self,
        mut each: impl FnMut([Vec<f32>; 3], HeadScores, Vec<f32>, &dyn Fn(usize, usize) -> usize),
    ) {
        let (n, d, columns) = (self.n, self.d, self.columns());
        for (window, head) in
            (0..self.images * self.masks.len()).flat_map(|w| (0..self.heads).map(move |h| (w, h)))
        {
            let at = |part: usize, i: usize, c: usize| {
                self.x[(window * n + i) * 3 * columns + part * columns + head * d + c]
            };
            let qkv = [0, 1, 2].map(|part| (0..n * d).map(|i| at(part, i / d, i % d)).collect());
            let mut bias = self.bias[head * n * n..][..n * n].to_vec();
            if let Some(regions) = &self.regions {
                let mask = self.masks[window % self.masks.len()];
                let regions = &regions[usize::from(mask) * n..][..n];
                for (i, bias) in bias.iter_mut().enumerate() {
                    *bias += if regions[i / n] == regions[i % n] { 0.0 } else { -100.0 };
                }
            }
            let hi_lo = self.hi_lo.get(head).copied().unwrap_or(false);
            let scores = HeadScores { scale: self.scales[head], hi_lo };
            each(qkv, scores, bias, &|i, c| (window * n + i) * columns + head * d + c);
        }
    }

    fn reference(&self, quant: &AttentionQuant) -> Vec<f32> {
        let (n, d) = (self.n, self.d);
        let mut out = vec![f32::NAN; self.x.len() / 3];
        self.units(|[q, k, v], scores, bias, index| {
            let mut y = vec![0.0; n * d];
            reference::attention_window(n, d, (&q, &k, &v), scores, &bias, quant, &mut y);
            y.iter().enumerate().for_each(|(i, y)| out[index(i / d, i % d)] = *y);
        });
        out
    }

    /// Softmax attention in f32, summed from left to right and normalised before the product with the values.
    fn plain(&self) -> Vec<f32> {
        let (n, d) = (self.n, self.d);
        let mut out = vec![f32::NAN; self.x.len() / 3];
        self.units(|[q, k, v], HeadScores { scale, .. }, bias, index| {
            for i in 0..n {
                let dot = |j: usize| -> f32 { (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum() };
                let logits: Vec<f32> = (0..n).map(|j| dot(j) * scale + bias[i * n + j]).collect();
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exps: Vec<f32> = logits.iter().map(|x| libm::expf(x - max)).collect();
                let total: f32 = exps.iter().sum();
                for c in 0..d {
                    out[index(i, c)] = (0..n).map(|j| exps[j] / total * v[j * d + c]).sum();
                }
            }
        });
        out
    }

    /// Softmax attention in f64.
    fn truth(&self) -> Vec<f64> {
        let (n, d) = (self.n, self.d);
        let mut out = vec![f64::NAN; self.x.len() / 3];
        self.units(|[q, k, v], HeadScores { scale, .. }, bias, index| {
            for i in 0..n {
                let dot = |j: usize| -> f64 {
                    (0..d).map(|c| f64::from(q[i * d + c]) * f64::from(k[j * d + c])).sum()
                };
                let logit = |j| dot(j) * f64::from(scale) + f64::from(bias[i * n + j]);
                let logits: Vec<f64> = (0..n).map(logit).collect();
                let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let exps: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
                let total: f64 = exps.iter().sum();
                for c in 0..d {
                    out[index(i, c)] = (0..n).map(|j| exps[j] * f64::from(v[j * d + c])).sum::<f64>() / total;
                }
            }
        });
        out
    }
}

/// The sizes of Swin, and sizes around the edges of every tile.
fn cases() -> Vec<Case> {
    [
        (3, 32, 49, 5, 1),
        (1, 32, 144, 2, 1),
        (2, 32, 64, 1, 2),
        (1, 32, 36, 2, 1),
        (1, 32, 55, 1, 1),
        (2, 6, 7, 3, 1),
        (3, 20, 17, 2, 2),
        (1, 1, 1, 1, 1),
        (1, 5, 3, 2, 1),
        (2, 16, 16, 2, 1),
        (1, 33, 15, 2, 1),
        (1, 48, 33, 1, 1),
        (1, 7, 9, 2, 0),
        // Rows of codes with a line of padding.
        (16, 32, 16, 1, 1),
    ]
    .map(|(heads, d, n, windows, images)| Case::new(heads, d, n, windows, images))
    .into()
}

/// Panics unless the results for each kind of input that `quant` allows have the bits of the reference.
fn check(case: &Case, cpu: Cpu, quant: AttentionQuant) {
    let what = format!("{cpu:?} n {} d {} {quant:?}", case.n, case.d);
    let want = case.reference(&quant);
    let op = case.op(cpu, quant, RowStore::F32);
    for threads in [1, 2, 3] {
        assert_same(&case.run(&op, threads, AttentionIn::F32(&case.x)), &want, &what);
    }
    if quant.q.is_some() && quant.k.is_some() && quant.v.is_some() {
        let codes = case.codes(&quant);
        assert_same(&case.run(&op, 2, AttentionIn::Codes(&codes)), &want, &what);
    }
}

#[test]
fn f32_errors_of_the_reference_are_within_twice_those_of_the_plain_definition() {
    for case in cases() {
        let (truth, plain) = (case.truth(), case.plain());
        let bound = 2.0 * max_error(&plain, &truth) + 1e-7;
        let error = max_error(&case.reference(&FLOAT), &truth);
        assert!(error <= bound, "n {} d {}: {error:e} > {bound:e}", case.n, case.d);
    }
}

#[test]
fn attention_is_the_references() {
    for_each_cpu(|cpu| {
        for case in cases() {
            check(&case, cpu, FLOAT);
            for scores in [None, Some(step(1.7))] {
                for probs in [Probs::U8, Probs::S8(step(1.0 / 127.0))] {
                    check(&case, cpu, AttentionQuant { scores, ..int8(probs) });
                }
            }
        }
        check(&Case::new(1, 32, 576, 1, 1), cpu, int8(Probs::U8));
    });
}

/// Windows with every mask in any order, and an op with regions whose windows are not masked.
#[test]
fn masks_are_those_of_their_numbers() {
    for_each_cpu(|cpu| {
        for (d, n) in [(32, 49), (32, 64), (6, 12), (20, 17)] {
            for masks in [vec![1, 3, 0, 2, 2, 1, 0, 3, 3], vec![2], vec![0, 0]] {
                let case = Case { masks, regions: Some(regions(n)), ..Case::new(2, d, n, 9, 2) };
                let x = case.x[..2 * case.masks.len() * n * 6 * d].to_vec();
                let case = Case { x, ..case }.with_hi_lo(1);
                for quant in [FLOAT, int8(Probs::U8), int8(Probs::S8(step(1.0 / 127.0)))] {
                    check(&case, cpu, quant);
                }
            }
        }
    });
}

/// A mask whose tokens all lie in one region changes no bit.
#[test]
fn masks_with_one_region_mask_nothing() {
    let case = Case::new(1, 32, 49, 3, 1);
    let plain = Case { regions: None, masks: vec![0; 3], ..Case::new(1, 32, 49, 3, 1) };
    let alike = Case { regions: Some(vec![5; MASKS * 49]), ..case };
    for_each_cpu(|cpu| {
        let run = |case: &Case| {
            let op = case.op(cpu, int8(Probs::U8), RowStore::F32);
            case.run(&op, 1, AttentionIn::F32(&case.x))
        };
        assert_same(&run(&alike), &run(&plain), &format!("{cpu:?}"));
    });
}

#[test]
fn one_op_runs_over_images_of_several_sizes() {
    let case = Case::new(2, 32, 49, 6, 1);
    for_each_cpu(|cpu| {
        let new = || case.op(cpu, int8(Probs::U8), RowStore::F32);
        assert_sizes_leave_no_trace([&[1, 3][..], &[0, 2, 1, 3, 0, 1]], new, |op, pool, masks| {
            let x = &case.x[..masks.len() * 49 * 3 * case.columns()];
            let mut out = vec![f32::NAN; x.len() / 3];
            op.run(pool, 1, masks, AttentionIn::F32(x), RowOut::F32(&mut out));
            out
        });
    });
}

/// Heads with one code beside heads with two, for every size and for sites that are off.
#[test]
fn hi_and_lo_codes_are_the_references() {
    let pick = |on: bool, x: f32| on.then(|| step(x));
    for_each_cpu(|cpu| {
        for (i, case) in cases().into_iter().enumerate() {
            let case = case.with_hi_lo(i % 2);
            for probs in [Probs::U8, Probs::S8(step(1.0 / 127.0))] {
                check(&case, cpu, int8(probs));
            }
            check(&case, cpu, AttentionQuant { scores: Some(step(1.7)), ..int8(Probs::U8) });
        }
        let case = Case::new(3, 20, 17, 2, 1).with_hi_lo(0);
        for bits in 0..8 {
            let quant = AttentionQuant {
                q: pick(bits & 1 != 0, Q),
                k: pick(bits & 2 != 0, K),
                v: pick(bits & 4 != 0, V),
                scores: None,
                probs: Probs::Float,
            };
            check(&case, cpu, quant);
        }
    });
}

/// With hi and lo codes the error of `QK^T` is that of steps of 1/256, which the large scale of a head shows.
#[test]
fn hi_and_lo_codes_lower_the_error_of_large_scales() {
    let case = |two: bool| {
        let mut case = Case::new(1, 32, 64, 1, 1);
        for x in case.x.chunks_exact_mut(96) {
            let (q, rest) = x.split_at_mut(32);
            reference::normalize(q);
            reference::normalize(&mut rest[..32]);
        }
        case.scales = vec![100.0];
        case.hi_lo = vec![two];
        case
    };
    let quant = AttentionQuant { q: Some(step(1.0 / 127.0)), k: Some(step(1.0 / 127.0)), ..FLOAT };
    let error = |two: bool| max_error(&case(two).reference(&quant), &case(two).truth());
    let (one, two) = (error(false), error(true));
    assert!(two < one / 50.0, "{one} with one code, {two} with two");
}

#[test]
fn every_combination_of_sites_is_the_references() {
    let pick = |on: bool, x: f32| on.then(|| step(x));
    for_each_cpu(|cpu| {
        for case in [Case::new(2, 32, 49, 2, 1), Case::new(1, 5, 11, 2, 1)] {
            for bits in 0..16 {
                for probs in [Probs::Float, Probs::U8, Probs::S8(step(0.6 / 127.0))] {
                    let quant = AttentionQuant {
                        q: pick(bits & 1 != 0, Q),
                        k: pick(bits & 2 != 0, K),
                        v: pick(bits & 4 != 0, V),
                        scores: pick(bits & 8 != 0, 1.7),
                        probs,
                    };
                    check(&case, cpu, quant);
                }
            }
        }
    });
}

/// NaNs and infinities among the inputs, as single values and as full rows.
#[test]
fn what_is_not_finite_is_the_references() {
    for_each_cpu(|cpu| {
        let mut case = Case::new(1, 16, 19, 2, 1);
        let wide = 48;
        case.x[2 * wide + 3] = f32::NAN; // A query.
        case.x[4 * wide + 17] = f32::INFINITY; // A key.
        case.x[6 * wide + 40] = f32::NEG_INFINITY; // A value.
        case.x[25 * wide..][..wide].fill(f32::NAN);
        case.bias[5 * 19..6 * 19].fill(f32::NEG_INFINITY);
        case.bias[7 * 19 + 18] = f32::INFINITY;
        case.bias[8 * 19 + 2] = f32::NAN;
        for quant in [FLOAT, int8(Probs::U8), int8(Probs::S8(step(1.0 / 127.0)))] {
            check(&case, cpu, quant);
            check(&case, cpu, AttentionQuant { v: None, scores: Some(step(1.7)), ..quant });
        }
    });
}

#[test]
fn results_are_quantized_where_the_projection_reads_them() {
    for_each_cpu(|cpu| {
        for case in cases() {
            let quant = int8(Probs::U8);
            let quantizer = step(0.012); // Small enough to clamp both ways.
            let columns = case.columns();
            let stride = code_stride(columns);
            let mut want = Vec::new();
            for row in case.reference(&quant).chunks_exact(columns) {
                want.extend(row.iter().map(|&y| quantizer.code(y).cast_unsigned() ^ 0x80));
                want.resize(want.len().next_multiple_of(stride), 77);
            }
            let codes = case.codes(&quant);
            let mut got = vec![77; want.len()];
            assert_eq!(got.len(), case.images * case.masks.len() * case.n * stride);
            let op = case.op(cpu, quant, RowStore::Codes(quantizer));
            let (images, input) = (case.images, AttentionIn::Codes(&codes));
            op.run(&mut Pool::new(2), images, &case.masks, input, RowOut::Codes(&mut got));
            assert_eq!(got, want, "{cpu:?} n {} d {}", case.n, case.d);
            let fake = case.op(cpu, quant, RowStore::Fake(quantizer));
            let fake = case.run(&fake, 1, AttentionIn::Codes(&codes));
            for (fake, got) in fake.chunks_exact(columns).zip(got.chunks_exact(stride)) {
                let back = |c: &u8| f32::from((c ^ 0x80).cast_signed()) * quantizer.scale();
                assert_eq!(fake, got[..columns].iter().map(back).collect::<Vec<_>>());
            }
        }
    });
}

/// Rows of equal logits, and rows where one key has all the weight. Codes are the extremes, so that a
/// saturating product would give other results.
#[test]
fn extremes_are_the_references() {
    for_each_cpu(|cpu| {
        for one_hot in [false, true] {
            let mut case = Case::new(2, 32, 49, 1, 1);
            let n = case.n;
            for (i, x) in case.x.iter_mut().enumerate() {
                let extreme = if (i * 2_654_435_761) & 0x400 == 0 { 100.0 } else { -100.0 };
                *x = if !one_hot && i % 192 < 64 { 0.0 } else { extreme };
            }
            for (i, bias) in case.bias.iter_mut().enumerate() {
                *bias = if !one_hot {
                    0.25
                } else if i % n == i / n * 5 % n {
                    5000.0
                } else {
                    -5000.0
                };
            }
            check(&case, cpu, int8(Probs::U8));
        }
    });
}

/// Nearly flat rows. On these, normalising before rounding would lose the most accuracy.
#[test]
fn flat_rows_keep_their_accuracy() {
    let mut case = Case::new(1, 32, 144, 1, 1);
    case.bias.iter_mut().for_each(|b| *b *= 0.01);
    case.x.iter_mut().enumerate().for_each(|(i, x)| *x *= if i % 96 < 64 { 0.02 } else { 0.5 });
    let quant = AttentionQuant { q: Some(step(0.001)), k: Some(step(0.001)), ..int8(Probs::U8) };
    let (truth, error) = (case.truth(), max_error(&case.reference(&quant), &case.truth()));
    let largest = truth.iter().fold(0.0_f64, |m, y| m.max(y.abs()));
    assert!(error <= 0.05 * largest, "{error} of {largest}");
    for_each_cpu(|cpu| check(&case, cpu, quant));
}

#[test]
#[should_panic(expected = "codes need the scales of q, k and v")]
fn codes_without_scales_are_refused() {
    let case = Case::new(1, 4, 4, 1, 1);
    let op = case.op(Cpu::available()[0], FLOAT, RowStore::F32);
    case.run(&op, 1, AttentionIn::Codes(&[0; 48]));
}

/// The message with which a run over windows with `masks` is refused; `regions` says whether the op has some.
fn refusal(masks: &[u8], regions: bool) -> String {
    let case = Case::new(1, 4, 4, 1, 1);
    let case = Case { masks: masks.to_vec(), regions: regions.then(|| self::regions(4)), ..case };
    let op = case.op(Cpu::available()[0], FLOAT, RowStore::F32);
    let run = || case.run(&op, 1, AttentionIn::F32(&case.x));
    let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    *payload.downcast::<String>().unwrap_or_else(|payload| resume_unwind(payload))
}

#[test]
fn masks_that_the_op_does_not_have_are_refused() {
    assert_eq!(refusal(&[4], true), "WindowAttention: mask 4 is not below 4");
    assert_eq!(refusal(&[255], false), "WindowAttention: mask 255 is not below 4");
    assert_eq!(refusal(&[1], false), "WindowAttention: mask 1 of an op without regions");
    // Another number of windows than the input has.
    assert!(refusal(&[0, 1], true).starts_with("WindowAttention: input of 48 elements"));
}

#[test]
#[should_panic(expected = "WindowAttention: no masks, so no windows")]
fn an_image_without_windows_is_refused() {
    refusal(&[], true);
}
