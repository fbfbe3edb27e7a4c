//! Compares the MLP branch of a block on a GPU with the scalar reference. Without a GPU, or on one without
//! `wgmma`, the tests are skipped with a message; they fail if `REQUIRE_IMPL` contains `cuda`.

use half::f16;
use swinq_cuda::ops::mlp::{DeviceMlp, MlpConfig, MlpForm, MlpKind, MlpNorm, MlpSpec};
use swinq_cuda::ops::{Int8Linear, ResidualCodes, ResidualType, TokenRows};
use swinq_cuda::{Device, DeviceBuf, Stream};
use swinq_numerics::reference::{accumulate_i8, correction_i8, epilogue_i8, layer_norm_row};
use swinq_numerics::{ColumnQuantizers, Gelu, Quantizer, RowMap};
use swinq_testing::{Rng, step};

/// Channels and hidden columns: all weights stay in shared memory, except in the last two shapes.
const SHAPES: [(usize, usize); 6] = [(64, 192), (64, 256), (96, 384), (128, 512), (192, 768), (192, 832)];
/// Number of different rows; the others repeat them.
const DIFFERENT: usize = 131;
const EPSILON: f32 = 1e-5;
/// Swin V1 and the two forms of Swin V2.
const FORMS: [MlpForm; 3] = [MlpForm::PreNorm, MlpForm::PostNorm, MlpForm::PostNormCodes];
/// Quantizer of the codes of the new residual.
fn next() -> Quantizer {
    step(0.05)
}

fn device(test: &str) -> Option<Device> {
    match Device::open(0) {
        Ok(device) if device.arch().major == 9 => Some(device),
        other => {
            let reason = other.map_or_else(|error| error.to_string(), |_| "it has no wgmma".to_owned());
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "cuda"), "REQUIRE_IMPL names cuda: {reason}");
            eprintln!("SKIPPED {test}: {reason}");
            None
        }
    }
}

/// An MLP with its parameters.
struct Problem {
    columns: usize,
    hidden: usize,
    /// The quantizers of the hidden columns, if each has its own.
    channels: Option<ColumnQuantizers>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    codes: [Vec<i8>; 2],
    multiplier: [Vec<f32>; 2],
    bias: [Vec<f32>; 2],
    inputs: [Quantizer; 2],
    /// `[DIFFERENT, columns]`; every value is a half.
    rows: Vec<f32>,
}

impl Problem {
    /// With `channels`, every hidden column has a scale and a zero point of its own.
    fn new((columns, hidden): (usize, usize), channels: bool) -> Problem {
        let mut rng = Rng((columns + hidden) as u64);
        let mut floats = |count, scale: f32| rng.floats(count, scale);
        let (gamma, beta) = (floats(columns, 1.0), floats(columns, 0.3));
        let bias = [floats(hidden, 1.0), floats(columns, 0.5)];
        let multiplier = [hidden, columns].map(|n| floats(n, 2e-5).iter().map(|x| x.abs() + 2e-5).collect());
        let rows = floats(DIFFERENT * columns, 3.0).iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        let codes = [0, 1]
            .map(|_| rng.bytes(columns * hidden).into_iter().map(|b| b.cast_signed().max(-127)).collect());
        // Some codes of both inputs are clamped.
        let inputs = [step(0.012), step(0.03)];
        // Some codes of the columns are clamped at either end.
        let factors: Vec<f32> =
            rng.floats(hidden, 0.9).iter().map(|x| 1.0 + x.abs().min(0.9) - 0.9).collect();
        let zero_points: Vec<i8> = rng.bytes(hidden).into_iter().map(u8::cast_signed).collect();
        let channels = channels
            .then(|| ColumnQuantizers::channels(inputs[1].scale(), &factors, &zero_points).expect("scales"));
        Problem { columns, hidden, channels, gamma, beta, codes, multiplier, bias, inputs, rows }
    }

    fn spec(&self, form: MlpForm, residual: ResidualType) -> MlpSpec<'_> {
        let linear = |i: usize| Int8Linear {
            codes: &self.codes[i],
            multiplier: &self.multiplier[i],
            bias: Some(&self.bias[i]),
            input: self.inputs[i],
        };
        let (fc1, fc2) = (linear(0), linear(1));
        let of = match form {
            MlpForm::PreNorm => MlpNorm::Residual,
            MlpForm::PostNorm => MlpNorm::Branch { codes: None },
            MlpForm::PostNormCodes => MlpNorm::Branch { codes: Some(next()) },
        };
        MlpSpec {
            norm: (&self.gamma, &self.beta),
            of,
            epsilon: EPSILON,
            fc1,
            gelu: Gelu::Quadratic,
            fc2,
            channels: self.channels.as_ref(),
            residual,
        }
    }

    /// The zero points of the inputs of layer `i`.
    fn zero_points(&self, i: usize) -> Vec<i8> {
        match &self.channels {
            Some(quantizers) if i == 1 => quantizers.zero_points().iter().map(|z| *z as i8).collect(),
            _ => vec![0; [self.columns, self.hidden][i]],
        }
    }

    /// The different rows after the MLP, by the reference.
    fn expected(&self, form: MlpForm) -> Vec<f32> {
        let (columns, hidden) = (self.columns, self.hidden);
        let mut all = self.rows.clone();
        for row in all.chunks_exact_mut(columns) {
            let norm = |x: &[f32]| {
                let mut normal = vec![0.0; columns];
                layer_norm_row(x, &self.gamma, &self.beta, EPSILON, &mut normal);
                normal
            };
            let pre = form == MlpForm::PreNorm;
            let normal = if pre { norm(row) } else { row.to_vec() };
            let input: Vec<i8> = normal.iter().map(|&y| self.inputs[0].code(y)).collect();
            let layer = |i: usize, input: &[i8], k: usize, gelu: Option<Gelu>| -> Vec<f32> {
                let zeros = self.zero_points(i);
                let sums =
                    self.codes[i].chunks_exact(k).map(|w| accumulate_i8(input, w) - correction_i8(&zeros, w));
                let columns = self.multiplier[i].iter().zip(&self.bias[i]);
                sums.zip(columns).map(|(sum, (&m, &b))| epilogue_i8(sum, m, b, None, gelu)).collect()
            };
            let middle: Vec<i8> = layer(0, &input, columns, Some(Gelu::Quadratic))
                .into_iter()
                .enumerate()
                .map(|(column, y)| match &self.channels {
                    Some(quantizers) => quantizers.code(column, y),
                    None => self.inputs[1].code(y),
                })
                .collect();
            let branch = layer(1, &middle, hidden, None);
            let added = if pre { branch } else { norm(&branch) };
            row.iter_mut().zip(added).for_each(|(x, y)| *x += y);
        }
        all
    }

    /// The residual of `m` rows after the launch, and whether the overflow flag is set. `numbers` is the type
    /// of the residual, and whether GELU is in halves. The codes of a single row are not stored; those of
    /// whole images of [`IMAGE`] tokens are stored in the order of a map.
    fn run(
        &self,
        device: &Device,
        form: MlpForm,
        numbers: (ResidualType, bool),
        m: usize,
    ) -> (Vec<f32>, bool) {
        let residual = numbers.0;
        let reversed: Vec<Option<usize>> = (0..IMAGE).rev().map(Some).collect();
        let of_tokens = TokenRows::new(device, &RowMap::new(&reversed, IMAGE).unwrap()).unwrap();
        let order = Some(&of_tokens).filter(|_| m.is_multiple_of(IMAGE));
        let spec = self.spec(form, residual);
        let chosen = DeviceMlp::config(device, &spec).expect("the kernel supports this MLP");
        let kind = MlpKind { half_gelu: numbers.1, ..chosen.kind() };
        assert!(chosen.kind().half_gelu == (residual == ResidualType::F16), "the chosen GELU");
        let sizes = (self.columns, self.hidden);
        let config = MlpConfig::new(sizes, kind, device.shared_per_block()).unwrap();
        let mlp = DeviceMlp::new(device, config, &spec).unwrap();
        let stream = Stream::new(device).unwrap();
        let rows = self.rows.iter().copied().cycle().take(m * self.columns);
        // A row after the last must stay unchanged.
        let rows: Vec<f32> = rows.chain(vec![7.0; self.columns]).collect();
        let halves: Vec<u16> = rows.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
        let buffer = match residual {
            ResidualType::F32 => DeviceBuf::from_slice(device, &rows).unwrap(),
            ResidualType::F16 => DeviceBuf::from_slice(device, &halves).unwrap(),
        };
        let flag = DeviceBuf::zeroed(device, 4).unwrap().all();
        let codes = DeviceBuf::from_slice(device, &vec![77_i8; (m + 1) * self.columns]).unwrap().all();
        let written = codes.slice(0, m * self.columns);
        let stores = mlp.stores_codes() && m > 1;
        let of_residual = stores.then_some(ResidualCodes { slice: &written, rows: order });
        mlp.run(&stream, m, &buffer.all(), of_residual, &flag).unwrap();
        let (mut got, mut halves, mut raised) = (rows, halves, [0_u32]);
        match residual {
            ResidualType::F32 => buffer.all().copy_to(&stream, &mut got).unwrap(),
            ResidualType::F16 => {
                buffer.all().copy_to(&stream, &mut halves).unwrap();
                got = halves.iter().map(|&x| f16::from_bits(x).to_f32()).collect();
            }
        }
        flag.copy_to(&stream, &mut raised).unwrap();
        let after = got.split_off(m * self.columns);
        assert!(after.iter().all(|&x| x == 7.0), "a row after the last was written");
        let mut stored = vec![0_i8; (m + 1) * self.columns];
        codes.copy_to(&stream, &mut stored).unwrap();
        let after = stored.split_off(m * self.columns);
        assert!(after.iter().all(|&code| code == 77), "codes after the last row were written");
        assert!(stores || stored.iter().all(|&code| code == 77), "codes were written");
        for (i, &value) in got.iter().enumerate().filter(|_| stores) {
            let (row, column) = (i / self.columns, i % self.columns);
            let at = if order.is_some() { row / IMAGE * IMAGE + IMAGE - 1 - row % IMAGE } else { row };
            let code = stored[at * self.columns + column];
            assert_eq!(
                code,
                next().code(value),
                "{form:?}, {residual:?}, row {row} of {m}, column {column}: {value}"
            );
        }
        (got, raised[0] != 0)
    }
}

/// Tokens of an image whose codes are stored in another order.
const IMAGE: usize = 16;
/// Numbers of rows: parts of a tile, one tile, and several tiles for each warpgroup.
const ROWS: [usize; 4] = [1, 64, 67, 60_001];

#[test]
fn an_f32_residual_gives_the_bits_of_the_reference() {
    let Some(device) = device("an_f32_residual_gives_the_bits_of_the_reference") else { return };
    for (shape, channels) in
        SHAPES.into_iter().flat_map(|shape| [false, true].map(|channels| (shape, channels)))
    {
        let problem = Problem::new(shape, channels);
        for (form, m) in FORMS.into_iter().flat_map(|form| ROWS.map(|m| (form, m))) {
            let expected = problem.expected(form);
            let (got, raised) = problem.run(&device, form, (ResidualType::F32, false), m);
            assert!(!raised);
            let differ: Vec<usize> = (0..got.len())
                .filter(|&i| got[i].to_bits() != expected[i % expected.len()].to_bits())
                .collect();
            let first =
                differ.first().map(|&i| (i / shape.0, i % shape.0, got[i], expected[i % expected.len()]));
            assert!(
                differ.is_empty(),
                "{shape:?}, channels {channels}, {form:?}, {m} rows: {} differ, first {first:?}",
                differ.len()
            );
        }
    }
}

#[test]
fn an_f16_residual_is_near_the_reference() {
    let Some(device) = device("an_f16_residual_is_near_the_reference") else { return };
    for (shape, channels) in
        SHAPES.into_iter().flat_map(|shape| [false, true].map(|channels| (shape, channels)))
    {
        let problem = Problem::new(shape, channels);
        let kinds = FORMS.into_iter().flat_map(|form| [false, true].map(|half_gelu| (form, half_gelu)));
        for ((form, half_gelu), m) in kinds.flat_map(|kind| ROWS.map(|m| (kind, m))) {
            let expected = problem.expected(form);
            let (got, raised) = problem.run(&device, form, (ResidualType::F16, half_gelu), m);
            assert!(!raised);
            let square = |x: f32| f64::from(x).powi(2);
            let (mut signal, mut noise) = (0.0, 0.0);
            for (i, &got) in got.iter().enumerate() {
                let (before, after) = (problem.rows[i % expected.len()], expected[i % expected.len()]);
                signal += square(after - before);
                noise += square(got - after);
            }
            let db = 10.0 * (signal / noise).log10();
            let what = format!("{shape:?}, channels {channels}, {form:?}, GELU in halves {half_gelu}");
            assert!(db > 45.0, "{what}, {m} rows: {db:.1} dB");
            if m == ROWS[3] {
                eprintln!("{what}: {db:.1} dB");
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_sets_the_flag() {
    let Some(device) = device("a_value_that_is_not_finite_sets_the_flag") else { return };
    let mut problem = Problem::new(SHAPES[2], false);
    problem.rows[5 * 96 + 7] = f32::INFINITY;
    for form in FORMS {
        assert!(problem.run(&device, form, (ResidualType::F16, true), 67).1);
        assert!(!problem.run(&device, form, (ResidualType::F16, true), 5).1);
    }
}
