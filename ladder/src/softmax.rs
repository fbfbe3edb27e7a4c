//! `swinq bench softmax`.

use std::sync::atomic::{AtomicU32, Ordering};

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
use crate::row::{Outcome, Row, Workload, table};
use crate::threads::in_parts;

/// The largest allowed error of a probability.
const TOLERANCE: f64 = 2e-6;
/// The largest allowed difference between a code of the scalar rung and `255 e^d`, where `d = x - max(row)`
/// is exact. Rounding to an integer takes 0.5. What is rounded may err by 0.001, by the number contract:
/// `exp_255` errs by less than 3e-6 of at most 255 (7.7e-4), and rounding `d` to f32 changes `255 e^d` by at
/// most `255 / e * 2^-24` (5.6e-6). So values that are closer than that to a tie may have either code. Of
/// them the contract defines one, and the codes of the other rungs must equal the scalar rung's.
const CODE_TOLERANCE: f64 = 0.5 + 0.001;
/// Rows that a CPU thread processes at a time, so that they stay in its cache.
const ROWS_AT_ONCE: usize = 64;

/// Rows of logits.
struct Problem {
    rows: usize,
    columns: usize,
    x: Vec<f32>,
}

/// The results of the scalar rungs, with which the results of the others are compared.
struct Expected {
    probabilities: Vec<f32>,
    /// The codes of all rows, then the sum of each row.
    codes: Vec<f32>,
}

/// Runs the command.
pub fn run(args: &SoftmaxArgs, machine: &mut Machine) -> Result<Vec<Row>, LadderError> {
    let (rows, columns) = (args.rows, args.columns);
    let x = Noise::new(7).floats(rows * columns).into_iter().map(|x| 8.0 * x).collect();
    let problem = Problem { rows, columns, x };
    let (mut found, expected) = problem.on_cpu(machine)?;
    if let Some(gpu) = &machine.gpu {
        for rung in SoftmaxRung::ALL {
            found.push(problem.on_gpu(gpu, machine.clock, rung, &expected)?);
        }
    }
    let compared = "scalar rungs are compared with f64, the others with the scalar rungs";
    machine.print(format_args!("\n{rows} rows of {columns}; {compared}\n{}", table(&found)));
    Ok(found)
}

impl Problem {
    fn row(&self, name: &str, codes: bool, outcome: Outcome) -> Row {
        let (rows, columns) = (self.rows as f64, self.columns as f64);
        let bytes = if codes { 5.0 * rows * columns + 4.0 * rows } else { 8.0 * rows * columns };
        let work = Workload { arithmetic: Arithmetic::Fp32, operations: 0.0, bytes };
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

    /// Compares probabilities with exact arithmetic.
    fn check_probabilities(&self, probabilities: &[f32]) -> Check {
        Check::new(probabilities, self.exact(|sum| 1.0 / sum).into_iter(), TOLERANCE)
    }

    /// Compares codes with exact arithmetic, and the sums that follow them with the sums of the codes.
    fn check_codes(&self, results: &[f32]) -> Check {
        let sum = |codes: &[f32]| codes.iter().map(|&code| code as u32).sum::<u32>() as f32;
        let mut expected = self.exact(|_| 255.0);
        let codes = &results[..expected.len()];
        expected.extend(codes.chunks_exact(self.columns).map(|codes| f64::from(sum(codes))));
        Check::new(results, expected.into_iter(), CODE_TOLERANCE)
    }

    /// Runs the CPU rungs.
    fn on_cpu(&self, machine: &Machine) -> Result<(Vec<Row>, Expected), LadderError> {
        let (columns, cpu) = (self.columns, machine.cpu);
        let scalar = |rows: &mut [f32], totals: &mut [f32]| {
            rows.chunks_exact_mut(columns)
                .zip(totals)
                .for_each(|(row, total)| *total = attention_row_exp(row));
        };
        let vector = |rows: &mut [f32], totals: &mut [f32]| {
            rows_f32::exp_minus_max(cpu, columns, rows, totals);
        };
        let check = |out: &[f32]| self.check_probabilities(out);
        let (float, probabilities) = self.cpu_float(machine, "CPU f32, scalar", scalar, check)?;
        let check = |out: &[f32]| Check::against(out, &probabilities, 0.0);
        let (float_vector, _) = self.cpu_float(machine, "CPU f32, SIMD", vector, check)?;

        let scalar = |rows: &[f32], codes: &mut [u8], sums: &mut [u32]| {
            let each = rows.chunks_exact(columns).zip(codes.chunks_exact_mut(columns)).zip(sums);
            each.for_each(|((row, codes), sum)| *sum = attention_row_u8(row, codes));
        };
        let vector = |rows: &[f32], codes: &mut [u8], sums: &mut [u32]| {
            rows_f32::softmax_codes_u8(cpu, columns, rows, codes, sums);
        };
        let check = |results: &[f32]| self.check_codes(results);
        let (row, codes) = self.cpu_codes(machine, "CPU u8 codes, scalar", scalar, check)?;
        let check = |results: &[f32]| Check::against(results, &codes, 0.0);
        let (row_vector, _) = self.cpu_codes(machine, "CPU u8 codes, SIMD", vector, check)?;
        Ok((vec![float, float_vector, row, row_vector], Expected { probabilities, codes }))
    }

    /// Times `exponentials`, which replaces rows by e^(x - max) and writes the sum of each row. Returns the
    /// probabilities, which `check` compares.
    fn cpu_float(
        &self,
        machine: &Machine,
        name: &str,
        exponentials: impl Fn(&mut [f32], &mut [f32]) + Sync,
        check: impl FnOnce(&[f32]) -> Check,
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
        let check = check(&out);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("{threads} threads"))?;
        Ok((self.row(name, false, outcome), out))
    }

    /// Times `encode`, which writes the codes of rows and the sum of each row's codes. Returns the codes and
    /// then the sums, which `check` compares.
    fn cpu_codes(
        &self,
        machine: &Machine,
        name: &str,
        encode: impl Fn(&[f32], &mut [u8], &mut [u32]) + Sync,
        check: impl FnOnce(&[f32]) -> Check,
    ) -> Result<(Row, Vec<f32>), LadderError> {
        let (columns, threads) = (self.columns, machine.pool.threads());
        let mut out = vec![0_u8; self.x.len()];
        let all_sums: Vec<AtomicU32> = (0..self.rows).map(|_| AtomicU32::new(0)).collect();
        let step = |out: &mut [u8]| {
            in_parts(threads, out, columns, |first, part| {
                let x = &self.x[first..][..part.len()];
                let at_once = ROWS_AT_ONCE * columns;
                let blocks = x.chunks(at_once).zip(part.chunks_mut(at_once));
                for ((x, codes), to) in blocks.zip(all_sums[first / columns..].chunks(ROWS_AT_ONCE)) {
                    let mut sums = [0; ROWS_AT_ONCE];
                    let sums = &mut sums[..x.len() / columns];
                    encode(x, codes, sums);
                    to.iter().zip(sums).for_each(|(to, sum)| to.store(*sum, Ordering::Relaxed));
                }
            });
        };
        step(&mut out);
        let sums = all_sums.iter().map(|sum| sum.load(Ordering::Relaxed) as f32);
        let results: Vec<f32> = out.iter().map(|&code| f32::from(code)).chain(sums).collect();
        let check = check(&results);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("{threads} threads"))?;
        Ok((self.row(name, true, outcome), results))
    }

    fn on_gpu(
        &self,
        gpu: &Gpu,
        clock: Clock,
        rung: SoftmaxRung,
        expected: &Expected,
    ) -> Result<Row, LadderError> {
        let codes = rung == SoftmaxRung::Codes;
        let name = match rung {
            SoftmaxRung::Naive => "CUDA f32, three passes",
            SoftmaxRung::Online => "CUDA f32, warp per row, online",
            SoftmaxRung::Rows => "CUDA f32, rows in registers",
            SoftmaxRung::Codes => "CUDA u8 codes of our attention",
        };
        let check = |results: &[f32]| match codes {
            true => Check::against(results, &expected.codes, 0.0),
            false => Check::against(results, &expected.probabilities, TOLERANCE),
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
        let launch = move |stream: &_| {
            // The last slice holds the sums of the codes. The other rungs write no sums.
            softmax.run(stream, rows, &x, &slices[0], &slices[slices.len() - 1])
        };
        Ok(Prepared::new(launch, outs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row whose largest logit is 0, and whose other values have `255 e^x` at each `offset` from each code
    /// but 0 and 255.
    fn around_codes(offsets: &[f64]) -> Problem {
        let exact = (1..255).flat_map(|code| offsets.iter().map(move |offset| f64::from(code) + offset));
        let x: Vec<f32> = std::iter::once(0.0).chain(exact.map(|e| (e / 255.0).ln() as f32)).collect();
        Problem { rows: 1, columns: x.len(), x }
    }

    /// The codes of the number contract, and their sum.
    fn right_results(problem: &Problem) -> Vec<f32> {
        let mut codes = vec![0; problem.x.len()];
        let sum = attention_row_u8(&problem.x, &mut codes);
        codes.into_iter().map(f32::from).chain([sum as f32]).collect()
    }

    #[test]
    fn codes_of_values_near_ties_pass() {
        let offsets: Vec<f64> = (-100..=100).map(|i| 0.5 + 1e-5 * f64::from(i)).collect();
        let problem = around_codes(&offsets);
        let results = right_results(&problem);
        let check = problem.check_codes(&results);
        assert!(check.passed(), "{}", check.complaint());
        // The tolerance of exactly rounded values would refuse some.
        assert!(check.max_abs_error > 0.5003, "{}", check.max_abs_error);
    }

    #[test]
    fn codes_that_are_off_by_one_fail() {
        let problem = around_codes(&[-0.498, -0.3, 0.01, 0.3, 0.498]);
        let results = right_results(&problem);
        let (codes, sum) = results.split_at(problem.columns);
        assert!(problem.check_codes(&results).passed());
        let check = |codes: Vec<f32>, sum: f32| problem.check_codes(&[codes, vec![sum]].concat());
        for step in [-1.0, 1.0] {
            let all: Vec<f32> = codes.iter().map(|code| code + step).collect();
            let their_sum = all.iter().sum();
            assert_eq!(check(all, their_sum).wrong, codes.len());
            let mut one = codes.to_vec();
            one[617] += step;
            assert_eq!(check(one, sum[0] + step).wrong, 1);
            assert_eq!(check(codes.to_vec(), sum[0] + step).wrong, 1);
        }
        let down: Vec<f32> = problem.exact(|_| 255.0).into_iter().map(|exact| exact.floor() as f32).collect();
        let their_sum = down.iter().sum();
        // Two of five values are below their code.
        assert_eq!(check(down, their_sum).wrong, 2 * 254);
    }
}
