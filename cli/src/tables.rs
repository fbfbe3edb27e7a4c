//! Tables of at most 100 columns of text.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets};

/// Width of a table in columns of text.
const WIDTH: u16 = 100;

/// A Markdown table with a first column that is never wrapped. Cells of other columns are, if the table is
/// too wide.
pub fn markdown(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    keep_whole(&mut table, 0);
    table
}

/// Wraps no cell of column `index`.
pub fn keep_whole(table: &mut Table, index: usize) {
    if let Some(column) = table.column_mut(index) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
}

/// Aligns `count` columns from the second on to the right.
pub fn align_numbers(table: &mut Table, count: usize) {
    for column in table.column_iter_mut().skip(1).take(count) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
