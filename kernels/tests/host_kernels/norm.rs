//! `norm.cu`: LayerNorm of gathered rows.

use swinq_kernels::cuda::ops::norm::NormConfig;
use swinq_kernels::cuda::ops::{DeviceStore, StreamType, row_stride};
use swinq_kernels::{PAD, reference};

use crate::compiler::Compiler;
use crate::launch::{Launch, words};
use crate::rows::{self, half_floats, to_halves};
use crate::support::{Rng, step, window_map};

const EPSILON: f32 = 1e-5;

/// A stream, its norm, and the sources of the rows.
struct Case {
    images: usize,
    /// Number of rows and of tokens of an image.
    rows: usize,
    tokens: usize,
    /// Number of columns of a row, over all pieces.
    columns: usize,
    pieces: usize,
    /// `[rows, pieces]`.
    map: Option<Vec<u32>>,
    stream: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

impl Case {
    fn new(images: usize, rows: usize, columns: usize, pieces: usize, mapped: bool) -> Case {
        let mut rng = Rng((rows + columns) as u64);
        let (map, tokens) = match (pieces, mapped) {
            (1, false) => (None, rows),
            (1, true) => {
                let (map, of_map) = window_map(2 * rows);
                assert_eq!(of_map, 2);
                (Some(map.rows().to_vec()), map.tokens())
            }
            _ => {
                let tokens = rows * pieces - 3;
                let token = |i: usize| if i % 7 == 5 { PAD } else { (i * 5 % tokens) as u32 };
                (Some((0..rows * pieces).map(token).collect()), tokens)
            }
        };
        // Values far from zero, so that the rounding error of the mean matters. They are exact in f16.
        let values = (0..images * tokens * columns / pieces).map(|_| rng.float() * 4.0 + 30.0);
        let stream = half_floats(&crate::launch::bytes(&to_halves(&values.collect::<Vec<f32>>())));
        let (gamma, beta) = (rng.floats(columns, 2.0), rng.floats(columns, 1.0));
        Case { images, rows, tokens, columns, pieces, map, stream, gamma, beta }
    }

    /// Row `row` of all images before the norm, and whether it is padding, which becomes zeros after the
    /// norm.
    fn row(&self, row: usize) -> (Vec<f32>, bool) {
        let width = self.columns / self.pieces;
        let Some(map) = &self.map else { return (self.stream[row * width..][..width].to_vec(), false) };
        let (image, row) = (row / self.rows, row % self.rows);
        let tokens = &map[row * self.pieces..][..self.pieces];
        let piece = |&token: &u32| match token {
            PAD => vec![0.0; width],
            token => self.stream[(image * self.tokens + token as usize) * width..][..width].to_vec(),
        };
        (tokens.iter().flat_map(piece).collect(), tokens == [PAD])
    }

    fn launch(&self, stream: StreamType, store: DeviceStore) -> Launch {
        let config = NormConfig { columns: self.columns, pieces: self.pieces, stream };
        let total = self.images * self.rows;
        let launch = Launch::new(&config.program(store), config.launch(total));
        let launch = match stream {
            StreamType::F32 => launch.activation(&self.stream),
            StreamType::F16 => launch.activation(&to_halves(&self.stream)),
        };
        let launch = launch.optional(self.map.as_deref()).array(&self.gamma).array(&self.beta);
        let launch =
            rows::output(launch, total, self.columns, store).activation(&[0_u32]).int(total).int(self.rows);
        let launch = launch.int(self.tokens);
        let stride = row_stride(self.columns, store.element_bytes());
        rows::step_of(launch.int(self.columns).int(stride).float(EPSILON), store)
    }

    /// The rows computed by the reference.
    fn exact(&self) -> Vec<f32> {
        let row = |row| {
            let (x, padding) = self.row(row);
            let mut out = vec![0.0; self.columns];
            if !padding {
                reference::layer_norm_row(&x, &self.gamma, &self.beta, EPSILON, &mut out);
            }
            out
        };
        (0..self.images * self.rows).flat_map(row).collect()
    }

    /// The rows computed in f64, with mean and variance in two passes.
    fn truth(&self) -> Vec<f64> {
        let row = |row| {
            let (x, padding) = self.row(row);
            let count = self.columns as f64;
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
            let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
            let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
            let value = |i: usize| {
                (f64::from(x[i]) - mean) * inverse * f64::from(self.gamma[i]) + f64::from(self.beta[i])
            };
            (0..self.columns).map(|i| if padding { 0.0 } else { value(i) }).collect::<Vec<f64>>()
        };
        (0..self.images * self.rows).flat_map(row).collect()
    }
}

/// A stream whose sums depend on their order: small values among large ones that cancel, values so close to
/// each other that their variance is mostly rounding error, and rows with a single value.
fn delicate() -> Case {
    let mut case = Case::new(1, 60, 96, 1, false);
    let mut rng = Rng(11);
    case.beta.fill(0.0);
    for (i, row) in case.stream.chunks_exact_mut(96).enumerate() {
        match i % 3 {
            0 => {
                row.iter_mut().for_each(|x| *x = rng.float());
                for pair in 0..i % 2 + 1 {
                    let (a, b) = (rng.next() as usize % 48, 48 + rng.next() as usize % 48);
                    (row[a], row[b]) = if pair % 2 == 0 { (1e17, -1e17) } else { (-1e17, 1e17) };
                }
            }
            1 => row.iter_mut().for_each(|x| *x = 3000.0 + rng.float() * 0.001),
            _ => row.fill(0.1 + i as f32),
        }
    }
    case
}

/// Sizes around the 64 rows of a block, and full and partial groups of sixteen columns.
fn cases() -> [Case; 5] {
    [
        Case::new(1, 1, 96, 1, false),
        Case::new(2, 32, 40, 1, false),
        Case::new(1, 65, 96, 1, true),
        Case::new(3, 21, 128, 1, true),
        Case::new(2, 9, 384, 4, true),
    ]
}

#[test]
fn an_f32_stream_gives_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let quantizer = step(0.015625);
    let stores = [
        DeviceStore::Codes(quantizer),
        DeviceStore::Half,
        DeviceStore::FakeHalf(quantizer),
        DeviceStore::Float,
        DeviceStore::FakeFloat(quantizer),
    ];
    for (i, case) in cases().into_iter().chain([delicate()]).enumerate() {
        let want = case.exact();
        for store in stores {
            let got = &case.launch(StreamType::F32, store).run(compiler);
            let what = format!("case {i}, {store:?}");
            rows::check(&got[got.len() - 2], &want, case.columns, store, &what);
        }
    }
}

#[test]
fn an_f16_stream_is_normalised_as_well_as_f32_can() {
    let Some(compiler) = Compiler::get() else { return };
    for (i, case) in cases().into_iter().chain([Case::new(1, 3, 1536, 4, true)]).enumerate() {
        let want = case.truth();
        for store in [DeviceStore::Codes(step(0.0625)), DeviceStore::Half, DeviceStore::Float] {
            let got = &case.launch(StreamType::F16, store).run(compiler);
            let what = format!("case {i}, {store:?}");
            // The mean, about 30, is rounded to f32, and this error is divided by a standard deviation of
            // about 2.
            assert_eq!(words(&got[got.len() - 1]), [0], "{what}: the overflow flag");
            rows::check_near(&got[got.len() - 2], &want, 1e-5, case.columns, store, &what);
        }
    }
}

#[test]
fn a_value_of_the_f16_stream_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    for (mut case, at) in
        [(Case::new(1, 65, 96, 1, false), 64 * 96 + 95), (Case::new(1, 3, 1536, 4, true), 7)]
    {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            case.stream[at] = value;
            let got = case.launch(StreamType::F16, DeviceStore::Codes(step(0.0625))).run(compiler);
            assert_eq!(words(&got[got.len() - 1]), [1], "{value}");
        }
        // The largest finite half must not set the flag.
        case.stream.fill(65504.0);
        let got = case.launch(StreamType::F16, DeviceStore::Codes(step(0.0625))).run(compiler);
        assert_eq!(words(&got[got.len() - 1]), [0]);
    }
}
