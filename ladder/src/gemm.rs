//! `swinq bench gemm`.

use swinq_numerics::reference::code;

use crate::LadderError;
use crate::args::GemmArgs;
use crate::check::Check;
use crate::machine::Machine;
use crate::measure;
use crate::operands::Operands;
use crate::products::OnGpu;
use crate::reference::{CpuProduct, Reference, scalar_product};
use crate::row::{Outcome, Row, table};
use crate::rung::Rung;
use crate::shape::{NamedShape, Shape};
use crate::swin;

/// Runs the command.
pub fn run(args: &GemmArgs, machine: &mut Machine) -> Result<Vec<Row>, LadderError> {
    let products = args.shapes(machine.gpu.is_some());
    products.iter().try_for_each(|named| named.shape.check())?;
    if args.swin.is_some() {
        return swin::run(args, machine, &products);
    }
    let gpu: &[Rung] = if machine.gpu.is_some() { &Rung::GPU } else { &[] };
    let rungs = [&Rung::CPU, gpu].concat();
    let mut all = Vec::new();
    for named in &products {
        let Shape { m, n, k } = named.shape;
        let rows = ladder(machine, named, &rungs, args.tiles)?;
        machine.print(format_args!(
            "\n{m} x {n} x {k}: {:.4} GMAC\n{}",
            named.shape.macs() / 1e9,
            table(&rows)
        ));
        all.extend(rows);
    }
    Ok(all)
}

/// Runs one product on `rungs`. A rung is skipped if the product is too large for it.
pub fn ladder(
    machine: &mut Machine,
    named: &NamedShape,
    rungs: &[Rung],
    tiles: Option<usize>,
) -> Result<Vec<Row>, LadderError> {
    let shape = named.shape;
    let operands = Operands::new(shape);
    let reference = Reference::new(machine.cpu, &mut machine.pool, &operands);
    let mut rows = Vec::new();
    for &rung in rungs {
        machine.clock.check_interrupt()?;
        let outcome = match rung.skipped(shape) {
            Some(why) => Outcome::Skipped(why),
            None if Rung::CPU.contains(&rung) => on_cpu(machine, rung, &operands, &reference)?,
            None => on_gpu(machine, rung, &operands, &reference, tiles)?,
        };
        let (rung_name, work) = (rung.name().to_owned(), rung.work(shape));
        rows.push(Row { rung: rung_name, layer: named.name.clone(), shape: shape.fields(), work, outcome });
    }
    Ok(rows)
}

fn on_cpu(
    machine: &mut Machine,
    rung: Rung,
    operands: &Operands,
    reference: &Reference,
) -> Result<Outcome, LadderError> {
    let shape = operands.shape;
    let (clock, threads) = (machine.clock, machine.pool.threads());
    let mut out = vec![f32::NAN; shape.m * shape.n];
    if rung == Rung::CpuScalar {
        scalar_product(operands, &mut out);
        let check = Check::against(&out, &reference.float, rung.tolerance(shape.k));
        let times = || clock.on_cpu(|| scalar_product(operands, &mut out));
        return measure::on_cpu(Some(check), times, "1 thread".to_owned());
    }
    let (product, expected, rows_check) = match rung {
        Rung::CpuInt8 => (CpuProduct::int8(machine.cpu, operands), &reference.sums, reference.sums_check),
        _ => (CpuProduct::float(machine.cpu, operands), &reference.float, reference.float_check),
    };
    product.run(&mut machine.pool, &mut out);
    let check = Check::against(&out, expected, 0.0).and(rows_check);
    let times = || clock.on_cpu(|| product.run(&mut machine.pool, &mut out));
    measure::on_cpu(Some(check), times, format!("{}, {threads} threads", machine.cpu))
}

fn on_gpu(
    machine: &Machine,
    rung: Rung,
    operands: &Operands,
    reference: &Reference,
    tiles: Option<usize>,
) -> Result<Outcome, LadderError> {
    let Some(gpu) = &machine.gpu else {
        return Ok(Outcome::Skipped("there is no GPU".to_owned()));
    };
    let prepared = OnGpu { gpu, operands, tiles }.prepare(rung);
    let work = rung.work(operands.shape);
    let check = |results: &[f32]| check_results(rung, operands, reference, results);
    measure::on_gpu(gpu, machine.clock, &work, prepared, check)
}

/// Compares the results of a GPU rung with the reference.
fn check_results(rung: Rung, operands: &Operands, reference: &Reference, results: &[f32]) -> Check {
    let tolerance = rung.tolerance(operands.shape.k);
    if rung.has_codes() {
        let factor = operands.code_factor();
        let expected = reference.sums.iter().map(|&sum| f64::from(code(sum * factor)));
        return Check::new(results, expected, tolerance);
    }
    let expected = if rung.is_int8() { &reference.sums } else { &reference.float };
    Check::against(results, expected, tolerance)
}

#[cfg(test)]
mod tests {
    use swinq_cuda::{FloatKind, Output};
    use swinq_kernels::{Cpu, Pool};

    use super::*;

    #[test]
    fn planted_errors_are_found_at_every_precision() {
        let operands = Operands::new(Shape { m: 9, n: 20, k: 48 });
        let reference = Reference::new(Cpu::detect().unwrap(), &mut Pool::new(1), &operands);
        let factor = operands.code_factor();
        let codes: Vec<f32> = reference.sums.iter().map(|&sum| f32::from(code(sum * factor))).collect();
        assert!(codes.iter().any(|&c| c > 40.0) && codes.iter().any(|&c| c < -40.0));
        let cases = [
            (Rung::LtFloat(FloatKind::F32), reference.float.clone(), 1e-3),
            (Rung::OwnHalf, reference.float.clone(), 0.05),
            (Rung::OwnInt8, reference.sums.clone(), 1.0),
            (Rung::LtInt8(Output::S8), codes, 1.0),
        ];
        for (rung, mut results, error) in cases {
            assert!(check_results(rung, &operands, &reference, &results).passed(), "{}", rung.name());
            results[77] += error;
            let check = check_results(rung, &operands, &reference, &results);
            assert_eq!((check.wrong, check.first.unwrap().index), (1, 77), "{}", rung.name());
        }
    }
}
