//! `swinq bench gemm --swin`: every distinct matrix product of a Swin, one table row each.

use comfy_table::{CellAlignment, Table, presets};
use swinq_cuda::{FloatKind, Output};

use crate::LadderError;
use crate::args::GemmArgs;
use crate::gemm;
use crate::machine::Machine;
use crate::row::{Outcome, Row, time};
use crate::rung::Rung;
use crate::shape::{NamedShape, Shape};

/// The rungs on a machine with a GPU.
const GPU: [Rung; 6] = [
    Rung::OwnInt8,
    Rung::OwnCodes,
    Rung::LtInt8(Output::S32),
    Rung::LtInt8(Output::S8),
    Rung::OwnHalf,
    Rung::LtFloat(FloatKind::F16),
];
/// The rungs on a machine without a GPU.
const CPU: [Rung; 2] = [Rung::CpuFloat, Rung::CpuInt8];

/// Runs the products.
pub fn run(args: &GemmArgs, machine: &mut Machine, products: &[NamedShape]) -> Result<Vec<Row>, LadderError> {
    let rungs: &[Rung] = if machine.gpu.is_some() { &GPU } else { &CPU };
    let mut by_product = Vec::new();
    for named in products {
        let mut rows = gemm::ladder(machine, named, rungs, args.tiles)?;
        rows.iter_mut().for_each(|row| row.shape.push(("count", named.count)));
        by_product.push(rows);
    }
    machine.print(format_args!("\n{}", table(rungs, products, &by_product)));
    Ok(by_product.concat())
}

fn table(rungs: &[Rung], products: &[NamedShape], by_product: &[Vec<Row>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let names = rungs.iter().map(|rung| rung.name().to_owned());
    let fixed = ["product", "times", "m", "n", "k"].map(str::to_owned).into_iter();
    table.set_header(fixed.chain(names).chain(["fastest".to_owned()]));
    for column in table.column_iter_mut().skip(1).take(4 + rungs.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (named, rows) in products.iter().zip(by_product) {
        let Shape { m, n, k } = named.shape;
        let sizes = [named.count, m, n, k].map(|size| size.to_string());
        let cells = std::iter::once(named.name.clone()).chain(sizes).chain(rows.iter().map(cell));
        table.add_row(cells.chain([winner(rows)]));
    }
    let totals = (0..rungs.len()).map(|i| total(products, by_product, i).map_or("-".to_owned(), time));
    let label = ["all of a forward", "", "", "", ""].map(str::to_owned).into_iter();
    table.add_row(label.chain(totals).chain([String::new()]));
    table
}

fn cell(row: &Row) -> String {
    match (&row.outcome, row.median()) {
        (_, Some(median)) => time(median),
        (Outcome::Failed(..), None) => "FAIL".to_owned(),
        (Outcome::Right { .. }, None) => "PASS".to_owned(),
        (Outcome::Skipped(_), None) => "-".to_owned(),
    }
}

/// The fastest rung of one product.
fn winner(rows: &[Row]) -> String {
    let timed = rows.iter().filter_map(|row| Some((row.median()?, &row.rung)));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).map_or("-".to_owned(), |(_, rung)| rung.clone())
}

/// Milliseconds of all products of a forward on rung `index`; `None` if it did not run all of them.
fn total(products: &[NamedShape], by_product: &[Vec<Row>], index: usize) -> Option<f64> {
    let each = products.iter().zip(by_product);
    each.map(|(named, rows)| Some(named.count as f64 * rows[index].median()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::measured;

    #[test]
    fn the_fastest_and_the_totals() {
        let shape = Shape { m: 8, n: 8, k: 8 };
        let named = |name: &str, count| NamedShape { name: name.into(), count, shape };
        let products = [named("stage 1 qkv", 2), named("stage 1 proj", 3)];
        let rows = |a, b| vec![measured("one", 8, a), measured("two", 8, b)];
        let by_product = [rows(1.0, 2.0), rows(4.0, 3.0)];
        assert_eq!((winner(&by_product[0]), winner(&by_product[1])), ("one".into(), "two".into()));
        assert_eq!(total(&products, &by_product, 0), Some(14.0));
        let text = table(&CPU, &products, &by_product).to_string();
        for word in ["stage 1 proj", "14.00 ms", "13.00 ms", "CPU INT8, SIMD", "fastest"] {
            assert!(text.contains(word), "`{word}` is not in\n{text}");
        }
    }
}
