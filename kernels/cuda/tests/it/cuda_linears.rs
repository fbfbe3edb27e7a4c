//! Compares every tile of a linear layer on a GPU with the scalar reference. Without a GPU the tests are
//! skipped with a message, and fail if `REQUIRE_IMPL` contains `cuda`.

use half::f16;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::linear::{
    DeviceLinear, DeviceLinearSpec, DeviceWeight, Instruction, LinearStore, Target, Tile,
};
use swinq_cuda::ops::{DeviceMap, DeviceStore, ResidualType, row_stride};
use swinq_cuda::{Device, DeviceBuf, Lt, Stream};
use swinq_numerics::reference::{accumulate_i8, correction_i8, epilogue_i8, lo_code, normalize};
use swinq_numerics::{ColumnQuantizers, Gelu, PAD, Quantizer, RowMap};
use swinq_testing::{Rng, step};

fn device(test: &str) -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "cuda"), "REQUIRE_IMPL names cuda: {error}");
            eprintln!("SKIPPED {test}: {error}");
            None
        }
    }
}

/// The epilogue and store of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    Codes,
    CodesGelu,
    Residual,
    Half,
    Output,
    /// Codes of GELU with a scale and a zero point for each column.
    ChannelCodes,
    /// As `Residual` and `Output`, of an input with zero points.
    CorrectedResidual,
    CorrectedOutput,
    /// Codes of normalised queries and keys, and of values; every other head has hi and lo codes. For columns
    /// that are whole heads.
    Heads,
}

const CASES: [Case; 9] = [
    Case::Codes,
    Case::CodesGelu,
    Case::Residual,
    Case::Half,
    Case::Output,
    Case::ChannelCodes,
    Case::CorrectedResidual,
    Case::CorrectedOutput,
    Case::Heads,
];

/// The cases for `n` columns.
fn cases(n: usize) -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(move |&case| case != Case::Heads || n.is_multiple_of(3 * HEAD_DIM))
}

/// A linear layer with its operands.
struct Problem {
    m: usize,
    n: usize,
    k: usize,
    a: Vec<i8>,
    w: Vec<i8>,
    multiplier: Vec<f32>,
    bias: Vec<f32>,
    columns: ColumnQuantizers,
    zero_points: Vec<i8>,
    residual: Vec<f32>,
    map: RowMap,
}

fn codes(rng: &mut Rng, count: usize) -> Vec<i8> {
    (0..count)
        .map(|_| {
            if rng.next().is_multiple_of(16) {
                [-128, 127][rng.next() as usize % 2]
            } else {
                rng.next() as i8
            }
        })
        .collect()
}

fn values(rng: &mut Rng, count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|_| (rng.next() as i32 as f32) / i32::MAX as f32 * scale).collect()
}

impl Problem {
    fn new(m: usize, n: usize, k: usize, seed: u64) -> Problem {
        let mut rng = Rng(seed);
        // Tokens in reverse order, after a padding row.
        let rows: Vec<Option<usize>> = (0..m).map(|i| (i > 0 || m == 1).then(|| m - 1 - i)).collect();
        let tokens = rows.iter().flatten().count();
        Problem {
            m,
            n,
            k,
            a: codes(&mut rng, m * k),
            w: codes(&mut rng, n * k).iter().map(|&c| c.max(-127)).collect(),
            multiplier: values(&mut rng, n, 1e-4).iter().map(|x| x.abs() + 1e-6).collect(),
            bias: values(&mut rng, n, 1.0),
            columns: {
                let factors: Vec<f32> = values(&mut rng, n, 0.9).iter().map(|x| 1.0 + x).collect();
                ColumnQuantizers::channels(0.02, &factors, &codes(&mut rng, n)).unwrap()
            },
            zero_points: codes(&mut rng, k),
            residual: values(&mut rng, tokens * n, 2.0),
            map: RowMap::new(&rows, tokens).unwrap(),
        }
    }

    /// The zero points of the input.
    fn zero_points(&self, case: Case) -> &[i8] {
        let corrected = matches!(case, Case::CorrectedResidual | Case::CorrectedOutput);
        if corrected { &self.zero_points } else { &[] }
    }

    fn y(&self, row: usize, column: usize, case: Case) -> f32 {
        let (_, output, gelu) = parts(self, case);
        let w = &self.w[column * self.k..][..self.k];
        let sum = accumulate_i8(&self.a[row * self.k..][..self.k], w);
        let sum = sum - correction_i8(self.zero_points(case), w);
        epilogue_i8(sum, self.multiplier[column], self.bias[column], output, gelu)
    }
}

/// The store, the `.output` site and GELU of a case.
fn parts(problem: &Problem, case: Case) -> (LinearStore, Option<Quantizer>, Option<Gelu>) {
    let q = Quantizer::new(0.02).unwrap();
    match case {
        Case::Codes => (LinearStore::Plain(DeviceStore::Codes(q)), None, None),
        Case::CodesGelu => (LinearStore::Plain(DeviceStore::Codes(q)), None, Some(Gelu::Quadratic)),
        Case::Residual | Case::CorrectedResidual => (LinearStore::Residual, None, None),
        Case::ChannelCodes => {
            (LinearStore::ChannelCodes(problem.columns.clone()), None, Some(Gelu::Quadratic))
        }
        Case::Half => (LinearStore::Plain(DeviceStore::Half), None, None),
        Case::Output | Case::CorrectedOutput => {
            (LinearStore::Plain(DeviceStore::Codes(q)), Quantizer::new(0.03), None)
        }
        Case::Heads => {
            let hi_lo = (0..problem.n / (3 * HEAD_DIM)).map(|head| head % 2 == 0).collect();
            (LinearStore::Heads { sites: [1.0 / 127.0, 0.01, 0.02].map(step), hi_lo }, None, None)
        }
    }
}

/// The reference's output as f64: codes, values, or the updated residual.
fn expected(problem: &Problem, case: Case) -> Vec<f64> {
    let (store, ..) = parts(problem, case);
    if store == LinearStore::Residual {
        let mut residual = problem.residual.clone();
        for (row, &token) in problem.map.rows().iter().enumerate().filter(|(_, t)| **t != PAD) {
            for column in 0..problem.n {
                residual[token as usize * problem.n + column] += problem.y(row, column, case);
            }
        }
        return residual.into_iter().map(f64::from).collect();
    }
    if let LinearStore::Heads { sites, hi_lo } = &store {
        return (0..problem.m).flat_map(|row| head_codes(problem, row, sites, hi_lo)).collect();
    }
    let value = |row, column| {
        let y = problem.y(row, column, case);
        match &store {
            LinearStore::ChannelCodes(columns) => f64::from(columns.code(column, y)),
            LinearStore::Plain(DeviceStore::Codes(q)) => f64::from(q.code(y)),
            _ => f64::from(f16::from_f32(y).to_f32()),
        }
    };
    (0..problem.m)
        .flat_map(|row| (0..problem.n).map(move |column| (row, column)))
        .map(|(r, c)| value(r, c))
        .collect()
}

/// The codes of queries, keys and values of a row, and the lo codes after them.
fn head_codes(problem: &Problem, row: usize, sites: &[Quantizer; 3], hi_lo: &[bool]) -> Vec<f64> {
    let mut y: Vec<f32> = (0..problem.n).map(|column| problem.y(row, column, Case::Heads)).collect();
    y.chunks_exact_mut(HEAD_DIM).take(2 * hi_lo.len()).for_each(normalize);
    let parts = || y.chunks_exact(problem.n / 3).zip(sites);
    let mut codes: Vec<f64> =
        parts().flat_map(|(part, site)| part.iter().map(|&y| f64::from(site.code(y)))).collect();
    for (part, site) in parts().take(2) {
        let vectors = part.chunks_exact(HEAD_DIM).zip(hi_lo).filter(|(_, two)| **two);
        codes.extend(vectors.flat_map(|(x, _)| x.iter().map(|&y| f64::from(lo_code(y * site.recip())))));
    }
    codes
}

/// A linear layer on the device, with its input, output and map.
struct OnDevice {
    linear: DeviceLinear,
    input: DeviceBuf,
    output: DeviceBuf,
    map: Option<DeviceMap>,
    element: usize,
    stride: usize,
    /// Columns of the output.
    columns: usize,
}

impl OnDevice {
    fn new(device: &Device, problem: &Problem, case: Case, residual: ResidualType) -> OnDevice {
        let Problem { m, n, k, .. } = *problem;
        let (store, output, gelu) = parts(problem, case);
        let adds = store == LinearStore::Residual;
        let element = match &store {
            LinearStore::Plain(store) => store.element_bytes(),
            LinearStore::ChannelCodes(_) | LinearStore::Heads { .. } => 1,
            _ => 4,
        };
        let low = match &store {
            LinearStore::Heads { hi_lo, .. } => hi_lo.iter().filter(|&&two| two).count(),
            _ => 0,
        };
        let columns = n + 2 * low * HEAD_DIM;
        let zero_points = problem.zero_points(case);
        let weight = DeviceWeight::Codes { codes: &problem.w, multiplier: &problem.multiplier, zero_points };
        let spec =
            DeviceLinearSpec { n, k, weight, bias: Some(&problem.bias), output, gelu, store, residual };
        let mut rows = vec![0i8; m * row_stride(k, 1)];
        for (to, from) in rows.chunks_exact_mut(row_stride(k, 1)).zip(problem.a.chunks_exact(k)) {
            to[..k].copy_from_slice(from);
        }
        let stride = if adds { n } else { row_stride(columns, element) };
        let bytes = if adds { problem.residual.len() * 4 } else { m * stride * element };
        OnDevice {
            linear: DeviceLinear::new(device, &spec).unwrap(),
            input: DeviceBuf::from_slice(device, &rows).unwrap(),
            output: DeviceBuf::new(device, bytes).unwrap(),
            map: adds.then(|| DeviceMap::new(device, &problem.map).unwrap()),
            element,
            stride,
            columns,
        }
    }

    /// Fills the output with a poison pattern, or restores the residual.
    fn reset(&self, stream: &Stream, problem: &Problem) {
        if self.map.is_some() {
            self.output.all().copy_from(stream, &problem.residual).unwrap();
        } else {
            self.output.all().copy_from(stream, &vec![0x5au8; self.output.len_bytes()]).unwrap();
        }
    }

    fn target<'a>(&'a self, output: &'a swinq_cuda::DeviceSlice) -> Target<'a> {
        Target { slice: output, map: self.map.as_ref() }
    }

    fn read(&self, stream: &Stream) -> Vec<f64> {
        let mut bytes = vec![0u8; self.output.len_bytes()];
        self.output.all().copy_to(stream, &mut bytes).unwrap();
        let value = |b: &[u8]| match self.element {
            1 => f64::from(b[0].cast_signed()),
            2 => f64::from(f16::from_le_bytes([b[0], b[1]]).to_f32()),
            _ => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        };
        let rows = bytes.chunks_exact(self.stride * self.element);
        rows.flat_map(|row| row[..self.columns * self.element].chunks_exact(self.element))
            .map(value)
            .collect()
    }
}

#[track_caller]
fn assert_equal(got: &[f64], expected: &[f64], n: usize, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    if let Some(at) = (0..got.len()).find(|&i| got[i] != expected[i]) {
        let count = (0..got.len()).filter(|&i| got[i] != expected[i]).count();
        panic!(
            "{what}: {count} of {} differ, first row {} column {}: {} for {}",
            got.len(),
            at / n,
            at % n,
            got[at],
            expected[at]
        );
    }
}

/// Two tiles for each shape and depth: those with the fewest and the most stages.
fn tiles(linear: &DeviceLinear, m: usize) -> Vec<Tile> {
    let mut all = linear.tiles(m);
    all.sort();
    let key = |t: &Tile| (t.instruction, t.block, t.warp, t.depth);
    let mut kept: Vec<Tile> = Vec::new();
    for tile in all {
        if kept.len() >= 2 && kept[kept.len() - 2..].iter().all(|k| key(k) == key(&tile)) {
            kept.pop();
        }
        kept.push(tile);
    }
    kept
}

#[test]
fn every_tile_gives_the_bits_of_the_reference() {
    let Some(device) = device("every_tile_gives_the_bits_of_the_reference") else { return };
    let stream = Stream::new(&device).unwrap();
    // In the last shape a block processes several tiles.
    let shapes =
        [(1, 10, 48), (65, 96, 96), (129, 288, 160), (300, 200, 384), (257, 136, 1040), (40_000, 8, 256)];
    let mut checked = Instruction::ALL.map(|_| 0);
    for (index, (m, n, k)) in shapes.into_iter().enumerate() {
        let problem = Problem::new(m, n, k, 7 + index as u64);
        for case in cases(n) {
            let expected = expected(&problem, case);
            let run = OnDevice::new(&device, &problem, case, ResidualType::F32);
            let tiles = tiles(&run.linear, m);
            let programs: Vec<_> = tiles.iter().map(|&tile| run.linear.kind().program(tile)).collect();
            device.kernels(&programs).unwrap();
            for tile in tiles {
                run.reset(&stream, &problem);
                let output = run.output.all();
                let own = run.linear.own(tile).unwrap();
                own.run(&run.linear, &stream, m, &run.input.all(), run.target(&output)).unwrap();
                let what = format!("{m} x {n} x {k} {case:?}, {tile}");
                assert_equal(&run.read(&stream), &expected, run.columns, &what);
                let of = Instruction::ALL.iter().position(|&i| i == tile.instruction);
                checked[of.expect("one of all")] += 1;
            }
        }
    }
    eprintln!("linears by {:?}: {checked:?}", Instruction::ALL);
}

/// With an f16 residual, GELU is computed in packed halves: the codes are next to those of the reference, and
/// every tile gives the same.
#[test]
fn every_tile_gives_the_same_codes_of_gelu_in_halves() {
    let Some(device) = device("every_tile_gives_the_same_codes_of_gelu_in_halves") else { return };
    let stream = Stream::new(&device).unwrap();
    let problem = Problem::new(300, 200, 384, 5);
    for case in [Case::CodesGelu, Case::ChannelCodes] {
        every_tile_gives_the_same_codes(&device, &stream, &problem, case);
    }
}

fn every_tile_gives_the_same_codes(device: &Device, stream: &Stream, problem: &Problem, case: Case) {
    let expected = expected(problem, case);
    let run = OnDevice::new(device, problem, case, ResidualType::F16);
    assert!(run.linear.kind().half_gelu);
    let mut first: Option<Vec<f64>> = None;
    let shape = |tile: &Tile| (tile.instruction, tile.block);
    let mut tiles = tiles(&run.linear, problem.m);
    tiles.dedup_by_key(|tile| shape(tile));
    for tile in tiles {
        run.reset(stream, problem);
        let output = run.output.all();
        let own = run.linear.own(tile).unwrap();
        own.run(&run.linear, stream, problem.m, &run.input.all(), run.target(&output)).unwrap();
        let got = run.read(stream);
        let far = got.iter().zip(&expected).filter(|(got, want)| (*got - *want).abs() > 1.0).count();
        assert_eq!(far, 0, "{case:?}, {tile}: codes that differ by more than 1");
        assert_equal(&got, first.get_or_insert_with(|| got.clone()), problem.n, &tile.to_string());
    }
}

#[test]
fn the_library_gives_the_bits_of_the_reference() {
    let Some(device) = device("the_library_gives_the_bits_of_the_reference") else { return };
    let stream = Stream::new(&device).unwrap();
    let lt = std::sync::Arc::new(Lt::new(&device).unwrap());
    for (index, (m, n, k)) in
        [(1, 32, 48), (65, 96, 96), (129, 288, 160), (300, 208, 384)].into_iter().enumerate()
    {
        let problem = Problem::new(m, n, k, 70 + index as u64);
        for case in cases(n) {
            let run = OnDevice::new(&device, &problem, case, ResidualType::F32);
            for library in run.linear.library(&lt, m).unwrap() {
                run.reset(&stream, &problem);
                let output = run.output.all();
                let scratch = DeviceBuf::new(&device, library.scratch_bytes(&run.linear)).unwrap().all();
                library.run(&run.linear, &stream, &run.input.all(), &scratch, run.target(&output)).unwrap();
                let what = format!("{m} x {n} x {k} {case:?}, {:?}", library.plan());
                assert_equal(&run.read(&stream), &expected(&problem, case), n, &what);
            }
        }
    }
}
