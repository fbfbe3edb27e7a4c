//! `swinq bench elementwise`.

use swinq_cuda::ladder::{Elements, Elementwise, ElementwiseOp, Matrix, from_half, half_sum, to_half};
use swinq_cuda::{CudaError, DeviceBuf, DeviceSlice};
use swinq_kernels::{Cpu, rows_f32};
use swinq_numerics::reference::{code, fma, gelu};

use crate::LadderError;
use crate::args::ElementwiseArgs;
use crate::check::Check;
use crate::clock::Clock;
use crate::machine::{Gpu, Machine};
use crate::measure::{self, Prepared};
use crate::operands::Noise;
use crate::roofline::Arithmetic;
use crate::row::{Outcome, Row, Workload, table};
use crate::threads::in_parts;

/// The factor of scale + add, and the reciprocal scale of quantize.
const SCALE: f32 = 23.75;
/// Elements that a CPU thread processes at a time, so that they stay in its cache.
const AT_ONCE: usize = 4096;

/// The operands, uniform in [-8, 8).
struct Problem {
    x: Vec<f32>,
    y: Vec<f32>,
    x_half: Vec<u16>,
    y_half: Vec<u16>,
}

/// Runs the command.
pub fn run(args: &ElementwiseArgs, machine: &mut Machine) -> Result<Vec<Row>, LadderError> {
    let problem = Problem::new(args.elements);
    let mut rows = Vec::new();
    let mut expected = Vec::new();
    for op in ElementwiseOp::ALL {
        // The vectorised form of an op has the same reference, so it needs no CPU rung of its own.
        if !is_vector(op) {
            let (row, results) = problem.on_cpu(op, machine)?;
            rows.push(row);
            rows.extend(problem.on_cpu_vectors(op, machine, &results)?);
            expected = results;
        }
        if let Some(gpu) = &machine.gpu {
            rows.push(problem.on_gpu(op, gpu, machine.clock, &expected)?);
        }
    }
    machine.print(format_args!("\n{} elements\n{}", args.elements, table(&rows)));
    Ok(rows)
}

/// Whether the op is the vectorised form of another op.
fn is_vector(op: ElementwiseOp) -> bool {
    matches!(op, ElementwiseOp::CopyVector | ElementwiseOp::ScaleAddVector)
}

/// Name of the op on a CPU and on a GPU.
fn names(op: ElementwiseOp) -> [&'static str; 2] {
    match op {
        ElementwiseOp::Copy => ["CPU copy f32", "CUDA copy f32"],
        ElementwiseOp::CopyVector => ["CPU copy f32", "CUDA copy f32x4"],
        ElementwiseOp::ScaleAdd => ["CPU scale + add f32", "CUDA scale + add f32"],
        ElementwiseOp::ScaleAddVector => ["CPU scale + add f32", "CUDA scale + add f32x4"],
        ElementwiseOp::Gelu => ["CPU GELU f32", "CUDA GELU f32x4"],
        ElementwiseOp::Quantize => ["CPU quantize f32 to s8", "CUDA quantize f32 to s8"],
        ElementwiseOp::HalfAdd => ["CPU add f16", "CUDA add f16x8"],
    }
}

impl Problem {
    fn new(count: usize) -> Problem {
        let mut noise = Noise::new(11);
        let mut values = || noise.floats(count).into_iter().map(|x| 8.0 * x).collect::<Vec<f32>>();
        let (x, y) = (values(), values());
        let (x_half, y_half) = (to_half(&x), to_half(&y));
        Problem { x, y, x_half, y_half }
    }

    fn row(&self, name: &str, op: ElementwiseOp, outcome: Outcome) -> Row {
        let bytes = (op.bytes() * self.x.len()) as f64;
        let work = Workload { arithmetic: Arithmetic::Fp32, operations: 0.0, bytes };
        let shape = vec![("elements", self.x.len())];
        Row { rung: name.to_owned(), layer: String::new(), shape, work, outcome }
    }

    /// Runs the op with the scalar definitions. They are the reference.
    fn on_cpu(&self, op: ElementwiseOp, machine: &Machine) -> Result<(Row, Vec<f32>), LadderError> {
        let Problem { x, y, .. } = self;
        match op {
            ElementwiseOp::Copy | ElementwiseOp::CopyVector => self.timed(op, machine, |i| x[i], as_floats),
            ElementwiseOp::ScaleAdd | ElementwiseOp::ScaleAddVector => {
                self.timed(op, machine, |i| fma(x[i], SCALE, y[i]), as_floats)
            }
            ElementwiseOp::Gelu => self.timed(op, machine, |i| gelu(x[i]), as_floats),
            ElementwiseOp::Quantize => self.timed(
                op,
                machine,
                |i| code(x[i] * SCALE),
                |codes| codes.iter().map(|&c| c.into()).collect(),
            ),
            ElementwiseOp::HalfAdd => {
                let (x, y) = (&self.x_half, &self.y_half);
                self.timed(op, machine, |i| half_sum(x[i], y[i]), from_half)
            }
        }
    }

    /// Runs the op with the engine's vector code, where the engine has the op.
    fn on_cpu_vectors(
        &self,
        op: ElementwiseOp,
        machine: &Machine,
        expected: &[f32],
    ) -> Result<Option<Row>, LadderError> {
        let each: fn(Cpu, &[f32], &[f32], &mut [f32]) = match op {
            ElementwiseOp::Copy => |_, x, _, out| out.copy_from_slice(x),
            ElementwiseOp::ScaleAdd => |cpu, x, y, out| rows_f32::scale_add(cpu, x, SCALE, y, out),
            ElementwiseOp::Gelu => |cpu, x, _, out| {
                out.copy_from_slice(x);
                rows_f32::gelu(cpu, out);
            },
            _ => return Ok(None),
        };
        let (cpu, threads) = (machine.cpu, machine.pool.threads());
        let mut out = vec![f32::NAN; self.x.len()];
        let step = |out: &mut [f32]| {
            in_parts(threads, out, 1, |first, part| {
                let operands = self.x[first..].chunks(AT_ONCE).zip(self.y[first..].chunks(AT_ONCE));
                for ((x, y), out) in operands.zip(part.chunks_mut(AT_ONCE)) {
                    each(cpu, &x[..out.len()], &y[..out.len()], out);
                }
            });
        };
        step(&mut out);
        let check = Check::against(&out, expected, 0.0);
        let times = || machine.clock.on_cpu(|| step(&mut out));
        let outcome = measure::on_cpu(Some(check), times, format!("SIMD, {threads} threads"))?;
        Ok(Some(self.row(&format!("{}, SIMD", names(op)[0]), op, outcome)))
    }

    fn timed<T: Send + Copy + Default>(
        &self,
        op: ElementwiseOp,
        machine: &Machine,
        each: impl Fn(usize) -> T + Sync,
        as_f32: impl Fn(&[T]) -> Vec<f32>,
    ) -> Result<(Row, Vec<f32>), LadderError> {
        let threads = machine.pool.threads();
        let mut out = vec![T::default(); self.x.len()];
        let mut step = || {
            in_parts(threads, &mut out, 1, |first, part| {
                part.iter_mut().enumerate().for_each(|(i, out)| *out = each(first + i));
            });
        };
        step();
        let times = || machine.clock.on_cpu(step);
        let outcome = measure::on_cpu(None, times, format!("scalar, {threads} threads"))?;
        Ok((self.row(names(op)[0], op, outcome), as_f32(&out)))
    }

    fn on_gpu(
        &self,
        op: ElementwiseOp,
        gpu: &Gpu,
        clock: Clock,
        expected: &[f32],
    ) -> Result<Row, LadderError> {
        let row = self.row(names(op)[1], op, Outcome::Skipped(String::new()));
        let check = |results: &[f32]| Check::against(results, expected, 0.0);
        let outcome = measure::on_gpu(gpu, clock, &row.work, self.prepare(op, gpu), check)?;
        Ok(Row { outcome, ..row })
    }

    fn prepare(&self, op: ElementwiseOp, gpu: &Gpu) -> Result<Prepared, CudaError> {
        let (device, count) = (&gpu.device, self.x.len());
        let kernel = Elementwise::new(device, op)?;
        let [x, y]: [DeviceSlice; 2] = match op {
            ElementwiseOp::HalfAdd => [
                DeviceBuf::from_slice(device, &self.x_half)?.all(),
                DeviceBuf::from_slice(device, &self.y_half)?.all(),
            ],
            _ => {
                [DeviceBuf::from_slice(device, &self.x)?.all(), DeviceBuf::from_slice(device, &self.y)?.all()]
            }
        };
        let elements = match op {
            ElementwiseOp::Quantize => Elements::S8,
            ElementwiseOp::HalfAdd => Elements::F16,
            _ => Elements::F32,
        };
        let out = Matrix::new(device, elements, (1, count), count)?;
        let to = out.slice().clone();
        Ok(Prepared::new(move |stream| kernel.run(stream, count, SCALE, [&x, &y, &to]), vec![out]))
    }
}

fn as_floats(values: &[f32]) -> Vec<f32> {
    values.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_saturates_some_codes_and_not_most() {
        let problem = Problem::new(1000);
        let codes: Vec<i8> = problem.x.iter().map(|&x| code(x * SCALE)).collect();
        let saturated = codes.iter().filter(|c| **c == 127 || **c == -128).count();
        assert!(saturated > 50 && saturated < 500, "{saturated}");
        let differ = from_half(&problem.x_half).iter().zip(&problem.x).filter(|(a, b)| a != b).count();
        assert!(differ > 900);
    }
}
