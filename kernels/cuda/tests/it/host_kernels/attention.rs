//! Window attention: `attention_i8.cu` and `attention_f16.cu`, `attention_large_i8.cu`,
//! `attention_large_f16.cu` and `attention_tiled.cu`.

use std::f32::consts::LOG2_E;

use swinq_cuda::ops::attention::{AttentionConfig, AttentionElements, HEAD_DIM, WIDE_HEAD_DIM, low_columns};
use swinq_cuda::ops::{DeviceStore, row_stride};
use swinq_numerics::{AttentionQuant, HeadScores, MASKS, Probs, Quantizer, reference};
use swinq_testing::{Rng, assert_varied, step};

use super::compiler::Compiler;
use super::launch::Launch;
use super::rows::{self, half_floats, to_halves};

const SCALE: f32 = 0.176_776_7;

/// Windows with their bias and regions.
struct Case {
    heads: usize,
    /// Columns of a head.
    head_dim: usize,
    /// Number of tokens of a window.
    n: usize,
    windows: usize,
    images: usize,
    /// `[images * windows * n, 3 * heads * head_dim]`.
    codes: Vec<i8>,
    /// `[heads, n, n]`.
    bias: Vec<f32>,
    /// The region of each token under each mask, `[MASKS, n]`.
    regions: Option<Vec<u8>>,
    /// The mask of each window of an image, if one is masked.
    masks: Option<Vec<u8>>,
    /// Added to the logits of tokens of different regions.
    mask: f32,
    /// The factor of `q k^T` for each head, and whether its queries and keys have hi and lo codes.
    scores: Vec<HeadScores>,
    /// Lo codes of queries and keys, in the layout of [`Case::codes`].
    low: Vec<i8>,
    /// Bytes of shared memory that a block may have.
    limit: u32,
}

impl Case {
    /// The first window of an image has small queries, so that its probabilities are nearly uniform; the last
    /// window's queries are extreme. The first window is not masked, and the others have the other masks in
    /// turn. Some biases are as large as the mask.
    fn new(heads: usize, n: usize, windows: usize, images: usize, masked: bool) -> Case {
        Case::of((heads, HEAD_DIM), n, windows, images, masked)
    }

    /// The same for heads of [`WIDE_HEAD_DIM`] columns.
    fn wide(heads: usize, n: usize, windows: usize, images: usize, masked: bool) -> Case {
        Case::of((heads, WIDE_HEAD_DIM), n, windows, images, masked)
    }

    fn of((heads, head_dim): (usize, usize), n: usize, windows: usize, images: usize, masked: bool) -> Case {
        let mut rng = Rng((heads * n) as u64);
        let width = 3 * heads * head_dim;
        let mut codes: Vec<i8> =
            rng.bytes(images * windows * n * width).into_iter().map(u8::cast_signed).collect();
        for (i, code) in codes.iter_mut().enumerate() {
            let (column, window) = (i % width, i / width / n % windows);
            if column < width / 3 && window == 0 {
                *code %= 3;
            } else if window + 1 == windows && i % 5 == 0 {
                *code = if *code < 0 { -128 } else { 127 };
            }
        }
        let region = |i: usize| if i / n == 0 { 3 } else { (i % n * (i / n + 1) / n) as u8 };
        let mask = |window: usize| (3 * window % MASKS) as u8;
        let regions = masked.then(|| (0..MASKS * n).map(region).collect());
        let masks = masked.then(|| (0..windows).map(mask).collect());
        let mut bias = rng.floats(heads * n * n, 2.0);
        bias.iter_mut().skip(n * n / 2).step_by(29).for_each(|b| *b += 98.0);
        let scores = vec![HeadScores::from(SCALE); heads];
        let low = rng.bytes(codes.len()).into_iter().map(|x| x.cast_signed().max(-127)).collect();
        Case {
            heads,
            head_dim,
            n,
            windows,
            images,
            codes,
            bias,
            regions,
            masks,
            mask: -100.0,
            scores,
            low,
            limit: 227 << 10,
        }
    }

    /// The case with a factor for each head, some of which have hi and lo codes, and another mask.
    fn second_version(mut self) -> Case {
        self.mask = -200.0;
        for (head, scores) in self.scores.iter_mut().enumerate() {
            *scores = HeadScores { scale: 0.05 * (head + 1) as f32, hi_lo: head % 2 == 0 };
        }
        self
    }

    /// The case on a GPU where a block may have `limit` bytes of shared memory.
    fn limited(self, limit: u32) -> Case {
        Case { limit, ..self }
    }

    /// The case with a bias that the kernels for larger windows hold exactly as halves, up to a constant of
    /// each query.
    fn with_half_bias(mut self) -> Case {
        for row in self.bias.chunks_exact_mut(self.n) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let rounded = |x: f32| half::f16::from_f32((x - largest) * LOG2_E).to_f32() / LOG2_E;
            row.iter_mut().for_each(|x| *x = rounded(*x));
        }
        self
    }

    fn hi_lo(&self) -> Vec<bool> {
        self.scores.iter().map(|scores| scores.hi_lo).collect()
    }

    /// Columns of the codes with their lo codes.
    fn columns(&self) -> usize {
        let low = self.hi_lo().into_iter().filter(|&two| two).count();
        3 * self.channels() + 2 * low * self.head_dim
    }

    /// [`Case::codes`] with the lo codes behind each row.
    fn rows_of_codes(&self) -> Vec<i8> {
        let width = 3 * self.channels();
        let mut all = Vec::new();
        for (codes, low) in self.codes.chunks_exact(width).zip(self.low.chunks_exact(width)) {
            all.extend(codes);
            for slot in (0..2 * self.heads).filter(|slot| self.scores[slot % self.heads].hi_lo) {
                all.extend(&low[slot * self.head_dim..][..self.head_dim]);
            }
        }
        all
    }

    fn total(&self) -> usize {
        self.images * self.windows
    }

    fn channels(&self) -> usize {
        self.heads * self.head_dim
    }

    fn config(&self, elements: AttentionElements, probs_s8: bool, exact: bool) -> AttentionConfig {
        let hi_lo = elements == AttentionElements::Codes && self.hi_lo().contains(&true);
        let head_scales = self.scores.iter().any(|scores| scores.scale != self.scores[0].scale);
        AttentionConfig {
            elements,
            tokens: self.n,
            heads: self.heads,
            head_dim: self.head_dim,
            probs_s8,
            exact,
            head_scales,
            hi_lo,
            mask: self.mask,
            limit: self.limit,
        }
    }

    /// The bias of head `head` plus the mask of window `window`, `[n, n]`.
    fn masked_bias(&self, window: usize, head: usize) -> Vec<f32> {
        let n = self.n;
        let value = |i: usize| {
            let bias = self.bias[head * n * n + i];
            let region = |token: usize| {
                let (regions, masks) = (self.regions.as_ref()?, self.masks.as_ref()?);
                Some(regions[usize::from(masks[window % self.windows]) * n + token])
            };
            if region(i / n) == region(i % n) { bias } else { bias + self.mask }
        };
        (0..n * n).map(value).collect()
    }

    /// Queries, keys and values of a window and head, `[n, head_dim]` each. `values` has the layout of
    /// [`Case::codes`].
    fn operands(&self, values: &[f32], window: usize, head: usize) -> [Vec<f32>; 3] {
        let width = 3 * self.channels();
        std::array::from_fn(|operand| {
            let token = |t: usize| {
                let at = (window * self.n + t) * width + operand * self.channels() + head * self.head_dim;
                values[at..at + self.head_dim].iter().copied()
            };
            (0..self.n).flat_map(token).collect()
        })
    }

    /// Collects the results of `attend` for every window and head, `[windows * n, channels]`.
    fn gather<T: Copy + Default>(&self, attend: impl Fn(usize, usize) -> Vec<T>) -> Vec<T> {
        let mut out = vec![T::default(); self.total() * self.n * self.channels()];
        for (window, head) in (0..self.total()).flat_map(|w| (0..self.heads).map(move |h| (w, h))) {
            for (t, row) in attend(window, head).chunks_exact(self.head_dim).enumerate() {
                let at = (window * self.n + t) * self.channels() + head * self.head_dim;
                out[at..at + self.head_dim].copy_from_slice(row);
            }
        }
        out
    }

    /// A launch with the parameters up to `logit_scale`. `unit` is the factor of all logits: of the products,
    /// before the scales of heads.
    fn launch(&self, config: AttentionConfig, store: DeviceStore, unit: f32) -> Launch {
        // With one multiprocessor, a block processes several windows.
        let (each, launch) = config.launch(self.total(), 1);
        let launch = Launch::new(&config.program(store), launch);
        let (launch, columns) = match config.elements {
            AttentionElements::Codes => {
                let columns = self.columns();
                let rows = padded_rows(&self.rows_of_codes(), columns, 1, 99);
                (launch.activation(&rows), row_stride(columns, 1))
            }
            AttentionElements::Half => {
                let columns = 3 * self.channels();
                let rows = padded_rows(&to_halves(&self.values()), columns, 2, 0x7fff);
                (launch.activation(&rows), row_stride(columns, 2))
            }
        };
        let scales: Vec<f32> =
            self.scores.iter().map(|scores| unit * scores.scale * config.logit_unit()).collect();
        let low = config.hi_lo.then(|| low_columns(&self.hi_lo(), self.head_dim));
        let launch = launch.optional(config.head_scales.then_some(&scales[..])).optional(low.as_deref());
        let regions = self.padded_regions(config.padded());
        let launch = launch.array(&config.packed_bias(&self.bias)).optional(regions.as_deref());
        let launch = launch.optional(self.masks.as_deref());
        let launch = rows::output(launch, self.total() * self.n, self.channels(), store);
        let launch = launch.int(self.total()).int(self.windows).int(self.n).int(self.heads).int(columns);
        launch.int(each).float(scales[0])
    }

    /// Regions `[MASKS, padded]`.
    fn padded_regions(&self, padded: usize) -> Option<Vec<u8>> {
        let pad = |mask: &[u8]| [mask, &vec![0; padded - self.n]].concat();
        Some(self.regions.as_ref()?.chunks_exact(self.n).flat_map(pad).collect())
    }

    /// The operands as floats.
    fn values(&self) -> Vec<f32> {
        let values: Vec<f32> = self.codes.iter().map(|&c| f32::from(c) * 0.031).collect();
        half_floats(&super::launch::bytes(&to_halves(&values)))
    }

    /// Attention on the float operands, computed in f64.
    fn truth(&self, window: usize, head: usize) -> Vec<f64> {
        let [q, k, v] =
            self.operands(&self.values(), window, head).map(|x| x.into_iter().map(f64::from).collect());
        let (bias, n, d) = (self.masked_bias(window, head), self.n, self.head_dim);
        let row = |x: &Vec<f64>, i: usize| x[i * d..][..d].to_vec();
        let attend = |i: usize| {
            let logit = |j: usize| {
                let dot: f64 = row(&q, i).iter().zip(row(&k, j)).map(|(q, k)| q * k).sum();
                dot * f64::from(self.scores[head].scale) + f64::from(bias[i * n + j])
            };
            let logits: Vec<f64> = (0..n).map(logit).collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            let channel = |c: usize| weights.iter().enumerate().map(|(j, w)| w * v[j * d + c]).sum();
            (0..d).map(|c| -> f64 { channel(c) }).map(|y| y / total).collect::<Vec<f64>>()
        };
        (0..n).flat_map(attend).collect()
    }
}

/// `x`, rows of `width` elements, with `pad` up to the row stride of the kernels.
fn padded_rows<T: Copy>(x: &[T], width: usize, bytes: usize, pad: T) -> Vec<T> {
    let stride = row_stride(width, bytes);
    let rows = x.chunks_exact(width);
    rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(pad, stride - width))).collect()
}

/// Windows with full and partial tiles, with one tile, one token and several tiles; one or several heads;
/// with and without a mask; windows whose queries two blocks share; GPUs with little shared memory; wide
/// heads.
fn cases() -> [Case; 18] {
    [
        Case::new(3, 49, 4, 2, true),
        Case::new(1, 64, 4, 3, true),
        Case::new(2, 16, 3, 4, false),
        Case::new(4, 1, 1, 5, false),
        Case::new(1, 57, 2, 1, true),
        Case::new(2, 144, 2, 1, true),
        Case::new(1, 65, 1, 2, false),
        Case::new(3, 64, 2, 2, true).second_version(),
        Case::new(2, 20, 2, 1, true).second_version(),
        Case::new(2, 100, 2, 1, true).second_version(),
        Case::new(2, 144, 2, 1, true).limited(80 << 10),
        Case::new(1, 144, 2, 1, true).limited(40 << 10),
        Case::new(1, 225, 2, 1, true),
        Case::new(1, 256, 2, 1, true).second_version().limited(99 << 10),
        Case::new(1, 289, 1, 1, true),
        Case::wide(2, 49, 3, 1, true),
        Case::wide(3, 64, 2, 1, true).second_version(),
        Case::wide(1, 100, 2, 1, false),
    ]
}

/// The scales of q, k and v.
fn steps() -> [Quantizer; 3] {
    [0.03, 0.031, 0.017].map(step)
}

/// The kernel's output for a case, and the values of the reference.
fn run_codes(
    compiler: &Compiler,
    case: &Case,
    probs: Probs,
    store: DeviceStore,
    exact: bool,
) -> (Vec<u8>, Vec<f32>) {
    let [q, k, v] = steps();
    let (probs_recip, probs_scale) = match probs {
        Probs::S8(s) => (s.recip(), s.scale()),
        _ => (1.0, 1.0),
    };
    let config = case.config(AttentionElements::Codes, matches!(probs, Probs::S8(_)), exact);
    let launch = case.launch(config, store, q.scale() * k.scale()).float(v.scale());
    let got = rows::step_of(launch.float(probs_scale).float(probs_recip), store).run(compiler).pop();
    let quant = AttentionQuant { q: Some(q), k: Some(k), v: Some(v), scores: None, probs };
    let codes: Vec<f32> = case.codes.iter().map(|&c| f32::from(c)).collect();
    let low: Vec<f32> = case.low.iter().map(|&c| f32::from(c) / 256.0).collect();
    let want = case.gather(|window, head| {
        let [mut x, mut y, mut z] = case.operands(&codes, window, head);
        if case.scores[head].hi_lo {
            let [x_low, y_low, _] = case.operands(&low, window, head);
            x.iter_mut().zip(x_low).chain(y.iter_mut().zip(y_low)).for_each(|(x, low)| *x += low);
        }
        for (values, step) in [(&mut x, q), (&mut y, k), (&mut z, v)] {
            values.iter_mut().for_each(|x| *x *= step.scale());
        }
        let mut out = vec![f32::NAN; case.n * case.head_dim];
        let bias = case.masked_bias(window, head);
        reference::attention_window(
            case.n,
            case.head_dim,
            (&x, &y, &z),
            case.scores[head],
            &bias,
            &quant,
            &mut out,
        );
        out
    });
    (got.unwrap(), want)
}

/// Checks that the result is bit-exact to the reference.
fn check_codes(case: &Case, probs: Probs, store: DeviceStore) {
    let Some(compiler) = Compiler::get() else { return };
    let (got, want) = run_codes(compiler, case, probs, store, true);
    let what = format!("{} heads, {} tokens, {probs:?}, {store:?}", case.heads, case.n);
    rows::check(&got, &want, case.channels(), store, &what);
}

/// With the exponential unit, one element in a thousand may differ by one code.
fn check_near_codes(case: &Case, probs: Probs, scale: f32) {
    let Some(compiler) = Compiler::get() else { return };
    let q = step(scale);
    let (got, want) = run_codes(compiler, case, probs, DeviceStore::Codes(q), false);
    let what = format!("{} heads, {} tokens, {probs:?}", case.heads, case.n);
    assert_eq!(got.len(), want.len(), "{what}");
    let mut off = 0;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (got, want) = (got.cast_signed(), reference::code(want * q.recip()));
        assert!(got.abs_diff(want) <= 1, "{what}, element {i}: {got}, not {want}");
        off += usize::from(got != want);
    }
    assert!(off <= want.len() / 1000 + 4, "{what}: {off} of {} are one off", want.len());
    assert_varied(&got, &what);
}

#[test]
fn unsigned_probabilities_give_the_reference() {
    for case in cases() {
        for store in [DeviceStore::Codes(step(0.01)), DeviceStore::Half, DeviceStore::FakeHalf(step(0.01))] {
            check_codes(&case, Probs::U8, store);
        }
    }
}

#[test]
fn signed_probabilities_give_the_reference() {
    for case in cases() {
        check_codes(&case, Probs::S8(step(1.0 / 127.0)), DeviceStore::Codes(step(0.01)));
        check_codes(&case, Probs::S8(step(1.0 / 250.0)), DeviceStore::Half);
    }
}

#[test]
fn the_exponential_unit_is_near_the_reference() {
    for case in cases().map(Case::with_half_bias) {
        check_near_codes(&case, Probs::U8, 0.01);
        check_near_codes(&case, Probs::S8(step(1.0 / 127.0)), 0.01);
    }
}

/// Images of different numbers of windows pass through the same programs with the same regions: whole windows
/// and windows in tiles. The windows of one image are not masked.
#[test]
fn one_program_attends_in_images_of_several_sizes() {
    let store = DeviceStore::Codes(step(0.01));
    for n in [49, 65] {
        let bias = Case::new(2, n, 1, 1, true).bias;
        for (windows, images, masked) in [(6, 1, true), (2, 2, true), (3, 1, false), (5, 1, true)] {
            let mut case = Case { bias: bias.clone(), ..Case::new(2, n, windows, images, true) };
            case.masks = case.masks.filter(|_| masked);
            check_codes(&case, Probs::U8, store);
        }
    }
}

/// Probabilities are rounded to f16 once; sums and softmax are f32.
#[test]
fn halves_err_by_the_rounding_of_the_probabilities() {
    let Some(compiler) = Compiler::get() else { return };
    for case in cases().map(Case::with_half_bias) {
        let want = case.gather(|window, head| case.truth(window, head));
        let largest = f64::from(case.values().iter().fold(0.0_f32, |m, x| m.max(x.abs())));
        let stores = [DeviceStore::Codes(step(0.03)), DeviceStore::Half];
        for (store, exact) in stores.into_iter().flat_map(|store| [(store, true), (store, false)]) {
            let config = case.config(AttentionElements::Half, false, exact);
            let launch = case.launch(config, store, 1.0).float(1.0).float(1.0).float(1.0);
            let got = rows::step_of(launch, store).run(compiler);
            let what = format!("{} heads, {} tokens, {store:?}, exact: {exact}", case.heads, case.n);
            let error = largest * (1.0 / 2048.0 + 2e-5);
            rows::check_near(&got[got.len() - 1], &want, error, case.channels(), store, &what);
        }
    }
}
