//! Linear layers with their epilogues: the test cases that `gemm.cu` and `dequant.cu` share.

use half::f16;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::half_gelu::half_codes;
use swinq_cuda::ops::linear::pack::pad_columns;
use swinq_cuda::ops::linear::{DeviceLinearSpec, DeviceWeight, LinearKind, LinearStore};
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride};
use swinq_numerics::{ColumnQuantizers, Gelu, PAD, Quantizer, RowMap, reference};
use swinq_testing::{Rng, assert_same, assert_varied, step, window_map};

use super::launch::{Launch, bytes, floats};
use super::rows::{half_floats, to_halves};

/// Error bound of `gelu_fast`, without the rounding of its result.
pub const FAST_GELU_ERROR: f64 = 1.2e-7;

/// Error bound of GELU in packed halves for the argument `x`, without the rounding of its code.
fn half_gelu_error(x: f32) -> f64 {
    4.5e-4 + f64::from(x).abs() * 2f64.powi(-9)
}

/// GELU in f64.
pub fn gelu(x: f32) -> f64 {
    0.5 * f64::from(x) * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2)
}

/// The variant of a linear layer.
#[derive(Clone, Debug)]
pub struct Kind {
    pub integer: bool,
    pub output: Option<Quantizer>,
    pub gelu: Option<Gelu>,
    /// How results are stored. For `Codes`, the case provides the reciprocals.
    pub store: LinearStore,
    pub residual: ResidualType,
    /// Whether a residual store reorders rows.
    pub mapped: bool,
    /// Whether the input has zero points, which the case provides.
    pub corrected: bool,
    /// Whether GELU is in packed halves where that is possible.
    pub half_gelu: bool,
}

impl Kind {
    pub fn new(integer: bool, store: LinearStore) -> Kind {
        Kind {
            integer,
            output: None,
            gelu: None,
            store,
            residual: ResidualType::F32,
            mapped: false,
            corrected: false,
            half_gelu: true,
        }
    }

    pub fn plain(integer: bool, store: DeviceStore) -> Kind {
        Kind::new(integer, LinearStore::Plain(store))
    }

    pub fn residual(integer: bool, residual: ResidualType, mapped: bool) -> Kind {
        Kind { residual, mapped, ..Kind::new(integer, LinearStore::Residual) }
    }

    pub fn output(self, scale: f32) -> Kind {
        Kind { output: Some(step(scale)), ..self }
    }

    pub fn corrected(self) -> Kind {
        Kind { corrected: true, ..self }
    }

    pub fn gelu(self, gelu: Gelu) -> Kind {
        Kind { gelu: Some(gelu), ..self }
    }

    /// The crate's type for this variant, for `n` columns.
    pub fn kind(&self, n: usize) -> LinearKind {
        let weight = match self.integer {
            true => DeviceWeight::Codes {
                codes: &[],
                multiplier: &[],
                zero_points: if self.corrected { &[1] } else { &[] },
            },
            false => DeviceWeight::Half(&[]),
        };
        let (output, store) = (self.output, self.store.clone());
        let spec = DeviceLinearSpec {
            n,
            k: 0,
            weight,
            bias: None,
            output,
            gelu: self.gelu,
            store,
            residual: self.residual,
        };
        let mut kind = LinearKind::new(&spec);
        kind.half_gelu &= self.half_gelu;
        kind
    }

    /// Bytes per stored element.
    fn element_bytes(&self) -> usize {
        match &self.store {
            LinearStore::Plain(store) => store.element_bytes(),
            LinearStore::Codes(_) | LinearStore::ChannelCodes(_) | LinearStore::Heads { .. } => 1,
            LinearStore::ChannelFake(_) => 2,
            LinearStore::Residual => self.residual.bytes(),
        }
    }

    /// The sites of queries, keys and values, and the heads with hi and lo codes, if the layer normalises
    /// heads.
    fn heads(&self) -> Option<(&[Quantizer; 3], &[bool])> {
        match &self.store {
            LinearStore::Heads { sites, hi_lo } => Some((sites, hi_lo)),
            _ => None,
        }
    }

    /// Columns of lo codes.
    fn low_columns(&self) -> usize {
        self.heads().map_or(0, |(_, two)| 2 * HEAD_DIM * two.iter().filter(|&&two| two).count())
    }

    fn is_residual(&self) -> bool {
        self.store == LinearStore::Residual
    }

    /// Whether GELU is the fast version, which only approximates the reference.
    fn is_near(&self) -> bool {
        self.gelu.is_some() && self.residual == ResidualType::F16
    }

    /// Whether results have a scale and a zero point for each column, which the case provides.
    fn has_channels(&self) -> bool {
        matches!(self.store, LinearStore::ChannelCodes(_) | LinearStore::ChannelFake(_))
    }

    fn quantizer(&self) -> Option<Quantizer> {
        match self.store {
            LinearStore::Plain(
                DeviceStore::Codes(q) | DeviceStore::FakeHalf(q) | DeviceStore::FakeFloat(q),
            ) => Some(q),
            _ => None,
        }
    }
}

/// The operands and per-column arrays of a linear layer.
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// `[m, k]` and `[n, k]`.
    pub a: Vec<i8>,
    pub w: Vec<i8>,
    multiplier: Vec<f32>,
    bias: Vec<f32>,
    recip: Vec<f32>,
    columns: ColumnQuantizers,
    zero_points: Vec<i8>,
    residual: Vec<f32>,
    map: RowMap,
}

impl Case {
    /// Most multipliers and all scales are powers of two, so that many values are ties. Sums of a few hundred
    /// codes reach both clamps. With `integer`, codes use their full range. Without it they are small, so
    /// that sums of f16 products are exact.
    pub fn new((m, n, k): (usize, usize, usize), integer: bool, seed: u64) -> Case {
        let mut rng = Rng(seed);
        let power = |rng: &mut Rng, low: i32| 2f32.powi(low + (rng.next() % 3) as i32);
        let mut codes = |count: usize| -> Vec<i8> {
            let codes = rng.bytes(count).into_iter().map(u8::cast_signed);
            let mut codes: Vec<i8> = codes.map(|c| if integer { c } else { c % 9 }).collect();
            codes.iter_mut().take(k.min(5)).for_each(|c| *c = if integer { -128 } else { -8 });
            codes.iter_mut().rev().take(3).for_each(|c| *c = if integer { 127 } else { 8 });
            codes
        };
        let (a, w) = (codes(m * k), codes(n * k));
        let eights: Vec<f32> = (0..n).step_by(8).map(|_| power(&mut rng, -1)).collect();
        let mut bias: Vec<f32> = (0..n).map(|_| (rng.next() % 41) as f32 * 0.5 - 10.0).collect();
        bias[n.min(4) - 1] = f32::NAN;
        let (map, images) = window_map(m);
        Case {
            multiplier: (0..n)
                .map(|c| power(&mut rng, -9) * if c % 4 == 2 { 1.0 + 0.3 * rng.float() } else { 1.0 })
                .collect(),
            recip: (0..n).map(|c| eights[c / 8]).collect(),
            columns: {
                let factors: Vec<f32> = (0..n).map(|_| power(&mut rng, -2)).collect();
                let zero_points: Vec<i8> = rng.bytes(n).into_iter().map(u8::cast_signed).collect();
                ColumnQuantizers::channels(1.0, &factors, &zero_points).unwrap()
            },
            zero_points: rng.bytes(k).into_iter().map(u8::cast_signed).collect(),
            residual: rng.floats(m.max(images * map.tokens()) * n, 20.0),
            m,
            n,
            k,
            a,
            w,
            bias,
            map,
        }
    }

    /// The same layer with finite biases.
    pub fn finite(mut self) -> Case {
        self.bias.iter_mut().filter(|bias| bias.is_nan()).for_each(|bias| *bias = 0.5);
        self
    }

    /// The exact sum of row `row` and column `column`.
    fn sum(&self, row: usize, column: usize) -> i32 {
        let k = self.k;
        reference::accumulate_i8(&self.a[row * k..][..k], &self.w[column * k..][..k])
    }

    /// The subtrahend of the sums of each column.
    fn corrections(&self) -> Vec<i32> {
        let (k, of) = (self.k, &self.zero_points);
        (0..self.n).map(|column| reference::correction_i8(of, &self.w[column * k..][..k])).collect()
    }

    /// All sums, `[m, n]`.
    pub fn sums(&self) -> Vec<i32> {
        (0..self.m * self.n).map(|i| self.sum(i / self.n, i % self.n)).collect()
    }

    /// All sums of the f16 product, whose weights are multiples of 1/8.
    pub fn float_sums(&self) -> Vec<f32> {
        self.sums().into_iter().map(|sum| sum as f32 / 8.0).collect()
    }

    /// The codes of the `.output` site for the integer sums.
    pub fn output_codes(&self, kind: &Kind) -> Vec<i8> {
        let recip = kind.output.expect("an output site").recip();
        let code = |(i, sum)| reference::code(sum as f32 * (self.multiplier[i % self.n] * recip));
        self.sums().into_iter().enumerate().map(code).collect()
    }

    /// The values before they are stored, `[m, n]`.
    fn values(&self, kind: &Kind) -> Vec<f32> {
        let corrections = if kind.corrected { self.corrections() } else { vec![0; self.n] };
        let value = |(i, sum): (usize, i32)| {
            let c = i % self.n;
            let sum = sum - corrections[c];
            if kind.integer {
                reference::epilogue_i8(sum, self.multiplier[c], self.bias[c], kind.output, kind.gelu)
            } else {
                reference::epilogue_f32(sum as f32 / 8.0, self.bias[c], kind.output, kind.gelu)
            }
        };
        self.sums().into_iter().enumerate().map(value).collect()
    }

    /// Elements from one row of the output to the next.
    fn stride(&self, kind: &Kind) -> usize {
        let bytes = kind.element_bytes();
        if kind.is_residual() || bytes == 4 { self.n } else { row_stride(self.n + kind.low_columns(), bytes) }
    }

    /// The output before the launch: the residual, or bytes that must stay unchanged where nothing is stored.
    fn before(&self, kind: &Kind) -> Vec<u8> {
        if !kind.is_residual() {
            return vec![77; self.m * self.stride(kind) * kind.element_bytes()];
        }
        let rows = if kind.mapped { self.map.tokens() * (self.m / self.map.rows().len()) } else { self.m };
        let residual = &self.residual[..rows * self.n];
        match kind.residual {
            ResidualType::F32 => bytes(residual),
            ResidualType::F16 => bytes(&to_halves(residual)),
        }
    }

    /// Adds the fields of `Epilogue` to `launch`.
    pub fn epilogue(&self, launch: Launch, kind: &Kind) -> Launch {
        let recip = |q: Quantizer| q.recip();
        let scale = |&m: &f32| match (kind.integer, kind.output) {
            (true, output) => m * output.map_or(1.0, recip),
            (false, output) => output.map_or(1.0, recip),
        };
        let mut scales: Vec<f32> = self.multiplier.iter().map(scale).collect();
        let mut bias = self.bias.clone();
        let of_kernel = kind.kind(self.n);
        // The code of a NaN is 0.
        let known = self.columns.zero_points().iter().zip(scales.iter().zip(&bias));
        let zero_points: Vec<f32> =
            known.map(|(z, (s, b))| if s.is_nan() || b.is_nan() { 0.0 } else { *z }).collect();
        of_kernel.column_constants(&mut scales, &mut bias);
        let recips = match kind.quantizer() {
            Some(q) => vec![q.recip(); self.n],
            None if of_kernel.half_codes() => half_codes(self.columns.recips(), &zero_points),
            None if kind.has_channels() => self.columns.recips().to_vec(),
            None if kind.heads().is_some() => {
                let (sites, _) = kind.heads().expect("heads");
                (0..self.n).map(|c| sites[3 * c / self.n].recip()).collect()
            }
            None => self.recip.clone(),
        };
        let of_channels =
            |values: &[f32]| (kind.has_channels() && !of_kernel.half_codes()).then(|| pad_columns(values));
        let corrections = kind.corrected.then(|| pad_columns(&self.corrections()));
        let bit = |(head, &two): (usize, &bool)| u64::from(two) << head;
        let heads = kind.heads().map_or(0, |(_, two)| two.len());
        let hi_lo = kind.heads().map_or(0, |(_, two)| two.iter().enumerate().map(bit).sum());
        let launch = launch
            .array(&pad_columns(&scales))
            .array(&pad_columns(&bias))
            .array(&pad_columns(&recips))
            .optional(of_channels(self.columns.zero_points()).as_deref())
            .optional(of_channels(self.columns.scales()).as_deref())
            .optional(corrections.as_deref())
            .long(hi_lo)
            .optional(kind.mapped.then(|| self.map.rows()))
            .activation(&self.before(kind))
            .int(self.n)
            .int(self.stride(kind))
            .int(self.map.rows().len())
            .int(self.map.tokens())
            .int(heads);
        let fake = kind.quantizer().unwrap_or(step(1.0));
        let output = kind.output.map_or(1.0, Quantizer::scale);
        launch.float(output).float(fake.recip()).float(fake.scale())
    }

    /// Panics unless `got`, the output after the launch, equals the reference's output.
    pub fn check(&self, kind: &Kind, got: &[u8], what: &str) {
        if kind.is_near() {
            return self.check_near(kind, got, what);
        }
        let (stride, before) = (self.stride(kind), self.before(kind));
        let values = self.values(kind);
        if kind.element_bytes() == 1 {
            let mut want = before;
            for (i, value) in values.into_iter().enumerate() {
                let recip = kind.quantizer().map_or(self.recip[i % self.n], Quantizer::recip);
                let code = match kind.has_channels() {
                    true => self.columns.code(i % self.n, value),
                    false => reference::code(value * recip),
                };
                want[i / self.n * stride + i % self.n] = code.cast_unsigned();
            }
            assert_eq!(got, want, "{what}");
            assert_varied(&want, what);
            return;
        }
        let half = kind.element_bytes() == 2;
        let decode = |bytes: &[u8]| if half { half_floats(bytes) } else { floats(bytes) };
        let mut want = decode(&before);
        for (i, value) in values.into_iter().enumerate() {
            let Some(row) = self.destination(kind, i / self.n) else { continue };
            let to = &mut want[row * stride + i % self.n];
            let value = match kind.quantizer() {
                Some(q) => q.fake(value),
                None if kind.has_channels() => self.columns.fake(i % self.n, value),
                None if kind.is_residual() => *to + value,
                None => value,
            };
            *to = if half { f16::from_f32(value).to_f32() } else { value };
        }
        assert_same(&decode(got), &want, what);
    }

    /// Panics unless `got` has the codes of the reference for queries, keys and values. With an f16 residual
    /// the length of a vector has an error, which may change codes of values near the middle of two, and lo
    /// codes by one.
    pub fn check_heads(&self, kind: &Kind, got: &[u8], what: &str) {
        let (sites, hi_lo) = kind.heads().expect("heads");
        let (stride, width) = (self.stride(kind), self.n / 3);
        let mut values = self.values(kind);
        for row in values.chunks_exact_mut(self.n) {
            row.chunks_exact_mut(HEAD_DIM).take(2 * hi_lo.len()).for_each(reference::normalize);
        }
        let exact = kind.residual == ResidualType::F32;
        for (row, got) in values.chunks_exact(self.n).zip(got.chunks_exact(stride)) {
            let mut low = self.n;
            for (operand, (part, site)) in row.chunks_exact(width).zip(sites).enumerate() {
                for (head, vector) in part.chunks_exact(HEAD_DIM).enumerate() {
                    let two = operand < 2 && hi_lo[head];
                    for (i, value) in vector.iter().enumerate() {
                        let scaled = value * site.recip();
                        let code = got[operand * width + head * HEAD_DIM + i].cast_signed();
                        let low = two.then(|| got[low + i].cast_signed());
                        let value = f32::from(code) + low.map_or(0.0, f32::from) / 256.0;
                        let want = (reference::code(scaled), two.then(|| reference::lo_code(scaled)));
                        let near =
                            (value - scaled.clamp(-128.0, 127.0)).abs() <= if two { 0.01 } else { 0.501 };
                        assert!(
                            near && (!exact || (code, low) == want),
                            "{what}: {code} {low:?} of {scaled}"
                        );
                    }
                    low += if two { HEAD_DIM } else { 0 };
                }
            }
            assert!(got[low..].iter().all(|b| *b == 77), "{what}: written after the codes");
        }
    }

    /// Panics unless `got` differs from GELU in f64 by at most [`FAST_GELU_ERROR`], or [`half_gelu_error`] in
    /// packed halves, plus the rounding of the store.
    fn check_near(&self, kind: &Kind, got: &[u8], what: &str) {
        let (stride, size) = (self.stride(kind), kind.element_bytes());
        let before_gelu = self.values(&Kind { gelu: None, ..kind.clone() });
        let stored: Vec<f32> = match size {
            1 => got.iter().map(|b| f32::from(b.cast_signed())).collect(),
            2 => half_floats(got),
            _ => floats(got),
        };
        for (i, bytes) in got.chunks_exact(size).enumerate() {
            let (row, column) = (i / stride, i % stride);
            if column >= self.n {
                assert!(bytes.iter().all(|b| *b == 77), "{what}, element {i}: written");
                continue;
            }
            let x = before_gelu[row * self.n + column];
            let got = f64::from(stored[i]);
            let recip = match (size, kind.quantizer()) {
                (_, Some(q)) => Some(q.recip()),
                _ if kind.has_channels() => Some(self.columns.recips()[column]),
                (1, None) => Some(self.recip[column]),
                _ => None,
            };
            let zero_point = if kind.has_channels() { self.columns.zero_points()[column] } else { 0.0 };
            if x.is_nan() && recip.is_none() {
                assert!(got.is_nan(), "{what}, element {i}: {got} of a NaN");
                continue;
            }
            // The code of a NaN is 0.
            let y = if x.is_nan() { 0.0 } else { gelu(x) };
            let error = match kind.kind(self.n).half_gelu {
                true if x.is_nan() => 0.0,
                true => half_gelu_error(x),
                false => FAST_GELU_ERROR + y.abs() * 2f64.powi(-24),
            };
            let (got, want, allowed) = match recip.map(f64::from) {
                Some(recip) => {
                    // The code of a NaN is 0 whatever the zero point.
                    let zero_point = f64::from(zero_point);
                    let got = if size == 1 { got } else { got * recip + zero_point };
                    let want = if x.is_nan() { 0.0 } else { y * recip + zero_point };
                    (got, want.clamp(-128.0, 127.0), 0.5 + error * recip)
                }
                None if size == 2 => (got, y, error + y.abs() / 2048.0 + 3e-8),
                None => (got, y, error),
            };
            assert!((got - want).abs() <= allowed, "{what}, element {i}: {got}, not {want} ({allowed:e})");
            assert!(recip.is_none() || got == got.round(), "{what}, element {i}: {got} is no code");
        }
        assert_varied(got, what);
    }

    /// The output row to which row `row` is written.
    fn destination(&self, kind: &Kind, row: usize) -> Option<usize> {
        if !kind.mapped {
            return Some(row);
        }
        let period = self.map.rows().len();
        let token = self.map.rows()[row % period];
        (token != PAD).then(|| row / period * self.map.tokens() + token as usize)
    }
}
