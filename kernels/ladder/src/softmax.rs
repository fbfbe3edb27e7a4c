//! `swinq bench softmax`.

use swinq_kernels::cuda::ladder::{Elements, Matrix, Softmax, SoftmaxRung};
use swinq_kernels::cuda::{CudaError, DeviceBuf, DeviceSlice};
use swinq_kernels::reference::{attention_row_exp, attention_row_u8};

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
    let mut found = vec![problem.cpu_float(machine)?, problem.cpu_codes(machine)?];
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

    fn cpu_float(&mut self, machine: &Machine) -> Result<Row, LadderError> {
        let (columns, threads) = (self.columns, machine.pool.threads());
        let mut out = vec![f32::NAN; self.x.len()];
        let step = |out: &mut [f32]| {
            in_parts(threads, out, columns, |first, part| {
                part.copy_from_slice(&self.x[first..][..part.len()]);
                for row in part.chunks_exact_mut(columns) {
                    let inverse = 1.0 / attention_row_exp(row);
                    row.iter_mut().for_each(|e| *e *= inverse);
                }
            });
        };
        step(&mut out);
        let check = Check::new(&out, self.exact(|sum| 1.0 / sum).into_iter(), TOLERANCE);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("{threads} threads"))?;
        self.probabilities = out;
        Ok(self.row("CPU f32, scalar", false, outcome))
    }

    fn cpu_codes(&mut self, machine: &Machine) -> Result<Row, LadderError> {
        let (columns, threads) = (self.columns, machine.pool.threads());
        let mut out = vec![0_u8; self.x.len()];
        let step = |out: &mut [u8]| {
            in_parts(threads, out, columns, |first, part| {
                let logits = self.x[first..][..part.len()].chunks_exact(columns);
                for (logits, codes) in logits.zip(part.chunks_exact_mut(columns)) {
                    std::hint::black_box(attention_row_u8(logits, codes));
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
        self.codes = [codes, sums].concat();
        Ok(self.row("CPU u8 codes, scalar", true, outcome))
    }

    fn on_gpu(&self, gpu: &Gpu, clock: Clock, rung: SoftmaxRung) -> Result<Row, LadderError> {
        let codes = rung == SoftmaxRung::Codes;
        let name = match rung {
            SoftmaxRung::Naive => "CUDA f32, three passes",
            SoftmaxRung::Online => "CUDA f32, warp per row, online",
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
        let softmax = Softmax::new(&gpu.device, rung)?;
        let x = DeviceBuf::from_slice(&gpu.device, &self.x)?.all();
        let elements = if rung == SoftmaxRung::Codes { Elements::U8 } else { Elements::F32 };
        let mut outs = vec![Matrix::new(&gpu.device, elements, (rows, columns), columns)?];
        if rung == SoftmaxRung::Codes {
            outs.push(Matrix::new(&gpu.device, Elements::S32, (rows, 1), 1)?);
        }
        let slices: Vec<DeviceSlice> = outs.iter().map(|out| out.slice().clone()).collect();
        let launch = move |on: &_| {
            // The last slice holds the sums of the codes. The other rungs write no sums.
            softmax.run(on, (rows, columns), &x, &slices[0], &slices[slices.len() - 1])
        };
        Ok(Prepared::new(launch, outs))
    }
}
