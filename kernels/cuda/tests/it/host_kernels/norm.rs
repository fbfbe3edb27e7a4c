//! `norm.cu` and `rows.cu`: gathered rows with LayerNorm and without, and LayerNorm of rows that are added to
//! the residual.

use swinq_cuda::ops::norm::{NormConfig, NormResult};
use swinq_cuda::ops::rows::RowsConfig;
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride, rows_of_tokens};
use swinq_numerics::{PAD, RowMap, reference};
use swinq_testing::{Rng, assert_same, step, window_map};

use super::compiler::Compiler;
use super::launch::{Launch, floats, words};
use super::rows::{self, half_floats, to_halves};

const EPSILON: f32 = 1e-5;

/// A residual, its norm, and the sources of the rows.
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
    residual: Vec<f32>,
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
        let residual = half_floats(&super::launch::bytes(&to_halves(&values.collect::<Vec<f32>>())));
        let (gamma, beta) = (rng.floats(columns, 2.0), rng.floats(columns, 1.0));
        Case { images, rows, tokens, columns, pieces, map, residual, gamma, beta }
    }

    /// Row `row` of all images before the norm, and whether it is padding, which becomes zeros after the
    /// norm.
    fn row(&self, row: usize) -> (Vec<f32>, bool) {
        let width = self.columns / self.pieces;
        let Some(map) = &self.map else { return (self.residual[row * width..][..width].to_vec(), false) };
        let (image, row) = (row / self.rows, row % self.rows);
        let tokens = &map[row * self.pieces..][..self.pieces];
        let piece = |&token: &u32| match token {
            PAD => vec![0.0; width],
            token => self.residual[(image * self.tokens + token as usize) * width..][..width].to_vec(),
        };
        (tokens.iter().flat_map(piece).collect(), tokens == [PAD])
    }

    fn launch(&self, residual: ResidualType, store: DeviceStore) -> Launch {
        let config = NormConfig { columns: self.columns, pieces: self.pieces, residual };
        let total = self.images * self.rows;
        let launch = Launch::new(&config.program(NormResult::Store(store)), config.launch(total));
        let launch = activation(launch, residual, &self.residual);
        let launch = launch.optional(self.map.as_deref()).array(&self.gamma).array(&self.beta);
        let launch = rows::output(launch, total, self.columns, store).activation(&[0_u32]);
        self.sizes(launch.null().null(), store)
    }

    /// Adds the sizes, epsilon and the step of `store`.
    fn sizes(&self, launch: Launch, store: DeviceStore) -> Launch {
        let launch = launch.int(self.images * self.rows).int(self.rows).int(self.tokens).int(self.columns);
        let stride = row_stride(self.columns, store.element_bytes());
        rows::step_of(launch.int(stride).float(EPSILON), store)
    }

    /// The launch that gathers the rows without a norm.
    fn gather(&self, residual: ResidualType, store: DeviceStore) -> Launch {
        let config = RowsConfig { columns: self.columns, pieces: self.pieces, residual };
        let total = self.images * self.rows;
        let launch = Launch::new(&config.program(store), config.launch(total));
        let launch = activation(launch, residual, &self.residual).optional(self.map.as_deref()).null().null();
        let launch = rows::output(launch, total, self.columns, store).activation(&[0_u32]);
        self.sizes(launch.null().null(), store)
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

/// Adds `values` to `launch` in the type `residual`.
fn activation(launch: Launch, residual: ResidualType, values: &[f32]) -> Launch {
    match residual {
        ResidualType::F32 => launch.activation(values),
        ResidualType::F16 => launch.activation(&to_halves(values)),
    }
}

/// A residual whose sums depend on their order: small values among large ones that cancel, values so close to
/// each other that their variance is mostly rounding error, and rows with a single value.
fn delicate() -> Case {
    let mut case = Case::new(1, 60, 96, 1, false);
    let mut rng = Rng(11);
    case.beta.fill(0.0);
    for (i, row) in case.residual.chunks_exact_mut(96).enumerate() {
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

/// Rows of groups of four columns, as an f32 residual alone may have them.
fn groups_of_four() -> [Case; 2] {
    [Case::new(2, 33, 180, 1, true), Case::new(1, 5, 240, 4, true)]
}

#[test]
fn an_f32_residual_gives_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let quantizer = step(0.015625);
    let stores = [
        DeviceStore::Codes(quantizer),
        DeviceStore::Half,
        DeviceStore::FakeHalf(quantizer),
        DeviceStore::Float,
        DeviceStore::FakeFloat(quantizer),
    ];
    for (i, case) in cases().into_iter().chain(groups_of_four()).chain([delicate()]).enumerate() {
        let want = case.exact();
        for store in stores {
            let got = &case.launch(ResidualType::F32, store).run(compiler);
            let what = format!("case {i}, {store:?}");
            rows::check(&got[got.len() - 2], &want, case.columns, store, &what);
        }
    }
}

#[test]
fn an_f16_residual_is_normalised_as_well_as_f32_can() {
    let Some(compiler) = Compiler::get() else { return };
    for (i, case) in cases().into_iter().chain([Case::new(1, 3, 1536, 4, true)]).enumerate() {
        let want = case.truth();
        for store in [DeviceStore::Codes(step(0.0625)), DeviceStore::Half, DeviceStore::Float] {
            let got = &case.launch(ResidualType::F16, store).run(compiler);
            let what = format!("case {i}, {store:?}");
            // The mean, about 30, is rounded to f32, and this error is divided by a standard deviation of
            // about 2.
            assert_eq!(words(&got[got.len() - 1]), [0], "{what}: the overflow flag");
            rows::check_near(&got[got.len() - 2], &want, 1e-5, case.columns, store, &what);
        }
    }
}

#[test]
fn a_value_of_the_f16_residual_that_is_not_finite_raises_the_flag() {
    let Some(compiler) = Compiler::get() else { return };
    for (mut case, at) in
        [(Case::new(1, 65, 96, 1, false), 64 * 96 + 95), (Case::new(1, 3, 1536, 4, true), 7)]
    {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            case.residual[at] = value;
            let got = case.launch(ResidualType::F16, DeviceStore::Codes(step(0.0625))).run(compiler);
            assert_eq!(words(&got[got.len() - 1]), [1], "{value}");
        }
        // The largest finite half must not set the flag.
        case.residual.fill(65504.0);
        let got = case.launch(ResidualType::F16, DeviceStore::Codes(step(0.0625))).run(compiler);
        assert_eq!(words(&got[got.len() - 1]), [0]);
    }
}

#[test]
fn rows_without_a_norm_are_those_of_the_residual() {
    let Some(compiler) = Compiler::get() else { return };
    // Zeros for padding, and values on both sides of the range of the codes.
    let quantizer = step(0.25);
    let stores = [
        DeviceStore::Codes(quantizer),
        DeviceStore::Half,
        DeviceStore::FakeHalf(quantizer),
        DeviceStore::Float,
    ];
    for (i, case) in cases().into_iter().chain(groups_of_four()).enumerate() {
        let want: Vec<f32> = (0..case.images * case.rows).flat_map(|row| case.row(row).0).collect();
        let whole = |of: &ResidualType| case.columns.is_multiple_of(case.pieces * of.columns_at_once());
        let residuals = [ResidualType::F16, ResidualType::F32].into_iter().filter(whole);
        for (residual, store) in residuals.flat_map(|s| stores.map(|store| (s, store))) {
            let got = &case.gather(residual, store).run(compiler);
            let what = format!("case {i}, {residual:?}, {store:?}");
            assert_eq!(words(&got[got.len() - 1]), [0], "{what}: the overflow flag");
            rows::check(&got[got.len() - 2], &want, case.columns, store, &what);
        }
    }
}

#[test]
fn a_row_of_the_f16_residual_that_is_not_finite_raises_the_flag_without_a_norm() {
    let Some(compiler) = Compiler::get() else { return };
    let mut case = Case::new(1, 65, 96, 1, false);
    for (value, flag) in [(f32::INFINITY, 1), (f32::NAN, 1), (65504.0, 0)] {
        case.residual[64 * 96 + 95] = value;
        let got = case.gather(ResidualType::F16, DeviceStore::Codes(step(0.0625))).run(compiler);
        assert_eq!(words(&got[got.len() - 1]), [flag], "{value}");
    }
}

/// A branch whose rows are added to the tokens of a residual.
struct Branch {
    /// Its `residual` is the branch, and its `map` has the token of each row.
    case: Case,
    /// `[images * tokens, columns]`.
    residual: Vec<f32>,
}

impl Branch {
    /// A branch of whole windows in the order of `map`, or in the order of the tokens.
    fn new(images: usize, columns: usize, map: Option<&RowMap>) -> Branch {
        let (rows, tokens) = map.map_or((21, 21), |map| (map.rows().len(), map.tokens()));
        let mut case = Case::new(images, rows, columns, 1, false);
        case.map = map.map(|map| map.rows().to_vec());
        case.tokens = tokens;
        let values = Rng(7).floats(images * tokens * columns, 30.0);
        let residual = half_floats(&super::launch::bytes(&to_halves(&values)));
        Branch { case, residual }
    }

    /// The buffers after the launch: the residual, the flag, and the codes if they are stored, in the order
    /// of a map or of the tokens.
    fn run(
        &self,
        compiler: &Compiler,
        residual: ResidualType,
        result: NormResult,
        codes: Option<Option<&RowMap>>,
    ) -> Vec<Vec<u8>> {
        let Case { images, rows, tokens, columns, .. } = self.case;
        let config = NormConfig { columns, pieces: 1, residual };
        let launch = Launch::new(&config.program(result), config.launch(images * rows));
        let launch = activation(launch, residual, &self.case.residual).optional(self.case.map.as_deref());
        let launch =
            activation(launch.array(&self.case.gamma).array(&self.case.beta), residual, &self.residual);
        let launch = launch.activation(&[0_u32]);
        let store = match result {
            NormResult::AddAndCode(q) => DeviceStore::Codes(q),
            _ => DeviceStore::Half,
        };
        let launch = match codes {
            Some(order) => {
                let order = order.map(|map| rows_of_tokens(map).unwrap());
                rows::output(launch, images * tokens, columns, store).optional(order.as_deref())
            }
            None => launch.null().null(),
        };
        let got = self.case.sizes(launch, store).run(compiler);
        // The branch, the map, gamma and beta precede the residual.
        got[3 + usize::from(self.case.map.is_some())..].to_vec()
    }

    /// The residual after the addition.
    fn exact(&self) -> Vec<f32> {
        let Case { images, rows, tokens, columns, map, .. } = &self.case;
        let mut residual = self.residual.clone();
        for row in 0..images * rows {
            let token = map.as_ref().map_or(row % rows, |map| map[row % rows] as usize);
            if token == PAD as usize {
                continue;
            }
            let x = &self.case.residual[row * columns..][..*columns];
            let mut y = vec![0.0; *columns];
            reference::layer_norm_row(x, &self.case.gamma, &self.case.beta, EPSILON, &mut y);
            let at = (row / rows * tokens + token) * columns;
            residual[at..at + columns].iter_mut().zip(y).for_each(|(s, y)| *s += y);
        }
        residual
    }

    /// The codes of `residual` in the order of `map`.
    fn codes(&self, residual: &[f32], map: Option<&RowMap>) -> Vec<f32> {
        let Case { images, tokens, columns, .. } = self.case;
        let token = |row: usize| map.map_or(row, |map| map.rows()[row] as usize);
        let row = |i: usize| &residual[(i / tokens * tokens + token(i % tokens)) * columns..][..columns];
        (0..images * tokens).flat_map(|i| row(i).to_vec()).collect()
    }
}

/// Orders with padding and without. Codes are stored only in orders without padding.
fn orders() -> [(RowMap, bool); 2] {
    let (padded, _) = window_map(24);
    let turned = RowMap::new(&(0..40).map(|row| Some((row * 7 + 3) % 40)).collect::<Vec<_>>(), 40).unwrap();
    assert!(rows_of_tokens(&padded).is_none() && rows_of_tokens(&turned).is_some());
    [(padded, false), (turned, true)]
}

#[test]
fn norms_are_added_to_an_f32_residual_as_the_reference_does() {
    let Some(compiler) = Compiler::get() else { return };
    let q = step(0.25);
    let orders = orders();
    let maps = [None, Some(&orders[0].0), Some(&orders[1].0)];
    for (columns, map) in [40, 60, 96].into_iter().flat_map(|columns| maps.map(|map| (columns, map))) {
        let branch = Branch::new(2, columns, map);
        let want = branch.exact();
        let added = branch.run(compiler, ResidualType::F32, NormResult::Add, None);
        assert_same(&floats(&added[0]), &want, "the residual");
        let uncoded = branch.run(compiler, ResidualType::F32, NormResult::AddAndCode(q), None);
        assert!(uncoded == added, "codes that are not stored change nothing");
        for order in [None, Some(&orders[1].0)]
            .into_iter()
            .filter(|o| o.is_none_or(|o| o.tokens() == branch.case.tokens))
        {
            let coded = branch.run(compiler, ResidualType::F32, NormResult::AddAndCode(q), Some(order));
            assert_same(&floats(&coded[0]), &want, "the residual, with codes");
            let codes = branch.codes(&want, order);
            rows::check(&coded[2], &codes, columns, DeviceStore::Codes(q), "codes of the residual");
        }
    }
}

#[test]
fn norms_are_added_to_an_f16_residual_up_to_its_rounding() {
    let Some(compiler) = Compiler::get() else { return };
    let q = step(0.25);
    let turned = &orders()[1].0;
    for columns in [40, 96, 384] {
        let branch = Branch::new(2, columns, Some(turned));
        let want: Vec<f64> = branch.exact().into_iter().map(f64::from).collect();
        let got = branch.run(compiler, ResidualType::F16, NormResult::AddAndCode(q), Some(Some(turned)));
        rows::check_near(&got[0], &want, 1e-4, columns, DeviceStore::Half, "the residual");
        assert_eq!(words(&got[1]), [0], "the overflow flag");
        // The codes are those of the residual as it is stored.
        let codes = branch.codes(&half_floats(&got[0]), Some(turned));
        rows::check(&got[2], &codes, columns, DeviceStore::Codes(q), "codes of the residual");
        let uncoded = branch.run(compiler, ResidualType::F16, NormResult::AddAndCode(q), None);
        assert!(uncoded == got[..2], "codes that are not stored change nothing");
    }
    let mut branch = Branch::new(1, 96, Some(turned));
    branch.case.residual[5 * 96 + 3] = f32::INFINITY;
    assert_eq!(words(&branch.run(compiler, ResidualType::F16, NormResult::Add, None)[1]), [1]);
}
