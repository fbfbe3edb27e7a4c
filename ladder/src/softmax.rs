//! `swinq bench softmax`.

use swinq_cuda::ladder::{Elements, Matrix, Softmax, SoftmaxRung};
use swinq_cuda::{CudaError, DeviceBuf, DeviceSlice};
use swinq_kernels::rows_f32;
use swinq_numerics::reference::{attention_row_exp, attention_row_u8};

use crate::LadderError;
use crate::args::SoftmaxArgs;
use crate::check::Check;
use crate::clock::Clock;
use crate::machine::{Gpu, Machine};
use crate::measure::{self, Prepared};
use crate::operands::Noise;
use crate::roofline::Arithmetic;
use crate::row::{Outcome, Row, Work, table};
use crate::threads::in_parts;

/// The largest allowed error of a probability.
const TOLERANCE: f64 = 2e-6;
/// The largest allowed difference between a code and 255 times its exact exponential. It covers the rounding
/// to an integer and the errors of f32.
const CODE_TOLERANCE: f64 = 0.5 + 1e-4;
/// Rows that a CPU thread processes at a time, so that they stay in its cache.
const ROWS_AT_ONCE: usize = 64;

/// Rows of logits, and their expected softmax.
struct Problem {
    rows: usize,
    columns: usize,
    x: Vec<f32>,
    probabilities: Vec<f32>,
    /// The codes of all rows, then the sum of each row.
    codes: Vec<f32>,
}

/// Runs the command.
pub fn run(args: &SoftmaxArgs, machine: &mut Machine) -> Result<Vec<Row>, LadderError> {
    let (rows, columns) = (args.rows, args.columns);
    let x = Noise::new(7).floats(rows * columns).into_iter().map(|x| 8.0 * x).collect();
    let mut problem = Problem { rows, columns, x, probabilities: Vec::new(), codes: Vec::new() };
    let mut found = problem.on_cpu(machine)?;
    if let Some(gpu) = &machine.gpu {
        for rung in SoftmaxRung::ALL {
            found.push(problem.on_gpu(gpu, machine.clock, rung)?);
        }
    }
    machine.print(format_args!("\n{rows} rows of {columns}\n{}", table(&found)));
    Ok(found)
}

impl Problem {
    fn row(&self, name: &str, codes: bool, outcome: Outcome) -> Row {
        let (rows, columns) = (self.rows as f64, self.columns as f64);
        let bytes = if codes { 5.0 * rows * columns + 4.0 * rows } else { 8.0 * rows * columns };
        let work = Work { arithmetic: Arithmetic::Fp32, operations: 0.0, bytes };
        let shape = vec![("rows", self.rows), ("columns", self.columns)];
        Row { rung: name.to_owned(), layer: String::new(), shape, work, outcome }
    }

    /// `e^(x - max(row))` in f64, multiplied by `factor(sum(row))`.
    fn exact(&self, factor: impl Fn(f64) -> f64) -> Vec<f64> {
        let rows = self.x.chunks_exact(self.columns).flat_map(|row| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f64> = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
            let factor = factor(exps.iter().sum());
            exps.into_iter().map(move |e| e * factor)
        });
        rows.collect()
    }

    /// Runs the CPU rungs, and keeps the scalar ones' results as the expected results of the others.
    fn on_cpu(&mut self, machine: &Machine) -> Result<Vec<Row>, LadderError> {
        let (columns, cpu) = (self.columns, machine.cpu);
        let scalar = |rows: &mut [f32], totals: &mut [f32]| {
            rows.chunks_exact_mut(columns)
                .zip(totals)
                .for_each(|(row, total)| *total = attention_row_exp(row));
        };
        let vector = |rows: &mut [f32], totals: &mut [f32]| {
            rows_f32::exp_minus_max(cpu, columns, rows, totals);
        };
        let (float, probabilities) = self.cpu_float(machine, "CPU f32, scalar", scalar)?;
        let (float_vector, _) = self.cpu_float(machine, "CPU f32, SIMD", vector)?;

        let scalar = |rows: &[f32], codes: &mut [u8], sums: &mut [u32]| {
            let each = rows.chunks_exact(columns).zip(codes.chunks_exact_mut(columns)).zip(sums);
            each.for_each(|((row, codes), sum)| *sum = attention_row_u8(row, codes));
        };
        let vector = |rows: &[f32], codes: &mut [u8], sums: &mut [u32]| {
            rows_f32::softmax_codes_u8(cpu, columns, rows, codes, sums);
        };
        let (codes, expected) = self.cpu_codes(machine, "CPU u8 codes, scalar", scalar)?;
        let (codes_vector, _) = self.cpu_codes(machine, "CPU u8 codes, SIMD", vector)?;
        (self.probabilities, self.codes) = (probabilities, expected);
        Ok(vec![float, float_vector, codes, codes_vector])
    }

    /// Times `exponentials`, which replaces rows by e^(x - max) and writes the sum of each row.
    fn cpu_float(
        &self,
        machine: &Machine,
        name: &str,
        exponentials: impl Fn(&mut [f32], &mut [f32]) + Sync,
    ) -> Result<(Row, Vec<f32>), LadderError> {
        let (columns, threads) = (self.columns, machine.pool.threads());
        let mut out = vec![f32::NAN; self.x.len()];
        let step = |out: &mut [f32]| {
            in_parts(threads, out, columns, |first, part| {
                let x = &self.x[first..][..part.len()];
                let at_once = ROWS_AT_ONCE * columns;
                for (x, out) in x.chunks(at_once).zip(part.chunks_mut(at_once)) {
                    let mut totals = [0.0; ROWS_AT_ONCE];
                    let totals = &mut totals[..x.len() / columns];
                    out.copy_from_slice(x);
                    exponentials(out, totals);
                    for (row, total) in out.chunks_exact_mut(columns).zip(totals) {
                        let inverse = 1.0 / *total;
                        row.iter_mut().for_each(|e| *e *= inverse);
                    }
                }
            });
        };
        step(&mut out);
        let check = Check::new(&out, self.exact(|sum| 1.0 / sum).into_iter(), TOLERANCE);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("{threads} threads"))?;
        Ok((self.row(name, false, outcome), out))
    }

    /// Times `encode`, which writes the codes of rows and the sum of each row's codes. Returns the codes and
    /// then the sums.
    fn cpu_codes(
        &self,
        machine: &Machine,
        name: &str,
        encode: impl Fn(&[f32], &mut [u8], &mut [u32]) + Sync,
    ) -> Result<(Row, Vec<f32>), LadderError> {
        let (columns, threads) = (self.columns, machine.pool.threads());
        let mut out = vec![0_u8; self.x.len()];
        let step = |out: &mut [u8]| {
            in_parts(threads, out, columns, |first, part| {
                let x = &self.x[first..][..part.len()];
                let at_once = ROWS_AT_ONCE * columns;
                for (x, codes) in x.chunks(at_once).zip(part.chunks_mut(at_once)) {
                    let mut sums = [0; ROWS_AT_ONCE];
                    encode(x, codes, &mut sums[..x.len() / columns]);
                    std::hint::black_box(sums);
                }
            });
        };
        step(&mut out);
        let codes: Vec<f32> = out.iter().map(|&code| f32::from(code)).collect();
        let check = Check::new(&codes, self.exact(|_| 255.0).into_iter(), CODE_TOLERANCE);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("{threads} threads"))?;
        let sum = |row: &[u8]| row.iter().map(|&code| u32::from(code)).sum::<u32>() as f32;
        let sums: Vec<f32> = out.chunks_exact(columns).map(sum).collect();
        Ok((self.row(name, true, outcome), [codes, sums].concat()))
    }

    fn on_gpu(&self, gpu: &Gpu, clock: Clock, rung: SoftmaxRung) -> Result<Row, LadderError> {
        let codes = rung == SoftmaxRung::Codes;
        let name = match rung {
            SoftmaxRung::Naive => "CUDA f32, three passes",
            SoftmaxRung::Online => "CUDA f32, warp per row, online",
            SoftmaxRung::Rows => "CUDA f32, rows in registers",
            SoftmaxRung::Codes => "CUDA u8 codes of our attention",
        };
        let check = |results: &[f32]| match codes {
            true => Check::against(results, &self.codes, 0.0),
            false => Check::against(results, &self.probabilities, TOLERANCE),
        };
        let row = self.row(name, codes, Outcome::Skipped(String::new()));
        let outcome = measure::on_gpu(gpu, clock, &row.work, self.prepare(gpu, rung), check)?;
        Ok(Row { outcome, ..row })
    }

    fn prepare(&self, gpu: &Gpu, rung: SoftmaxRung) -> Result<Prepared, CudaError> {
        let (rows, columns) = (self.rows, self.columns);
        let softmax = Softmax::new(&gpu.device, rung, columns)?;
        let x = DeviceBuf::from_slice(&gpu.device, &self.x)?.all();
        let elements = if rung == SoftmaxRung::Codes { Elements::U8 } else { Elements::F32 };
        let mut outs = vec![Matrix::new(&gpu.device, elements, (rows, columns), columns)?];
        if rung == SoftmaxRung::Codes {
            outs.push(Matrix::new(&gpu.device, Elements::S32, (rows, 1), 1)?);
        }
        let slices: Vec<DeviceSlice> = outs.iter().map(|out| out.slice().clone()).collect();
        let launch = move |on: &_| {
            // The last slice holds the sums of the codes. The other rungs write no sums.
            softmax.run(on, rows, &x, &slices[0], &slices[slices.len() - 1])
        };
        Ok(Prepared::new(launch, outs))
    }
}
