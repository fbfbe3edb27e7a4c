//! Copies an output from the arena to the caller's memory.

use std::sync::atomic::{AtomicBool, Ordering};

use swinq_kernels::Pool;

use crate::engine::OutputLayout;

/// Channels that are copied together: a cache line of f32.
const LINE: usize = 16;
/// Rows whose lines fit into the first cache.
const ROWS: usize = 128;
/// Values that one task copies.
const PART: usize = 1 << 14;

/// Copies `values`, `[images, rows, columns]`, to `output` in `layout`. Returns whether all are finite.
pub(super) fn copy(
    pool: &mut Pool,
    values: &[f32],
    (rows, columns): (usize, usize),
    output: &mut [f32],
    layout: OutputLayout,
) -> bool {
    let finite = AtomicBool::new(true);
    let check = |part: &[f32]| {
        if !part.iter().fold(true, |finite, value| finite & value.is_finite()) {
            finite.store(false, Ordering::Relaxed);
        }
    };
    match layout {
        OutputLayout::ChannelsFirst if rows > 1 => {
            let channels = line(columns);
            pool.run_parts(output, channels * rows, &|part, output| {
                let (image, first) = (part / (columns / channels), part % (columns / channels) * channels);
                let values = &values[image * rows * columns..][..rows * columns];
                transpose(values, columns, first, rows, output);
                check(output);
            });
        }
        _ => pool.run_parts(output, PART, &|part, output| {
            output.copy_from_slice(&values[part * PART..][..output.len()]);
            check(output);
        }),
    }
    finite.into_inner()
}

/// The largest number of channels, at most a line, that divides `columns`.
fn line(columns: usize) -> usize {
    (1..=LINE).rev().find(|channels| columns.is_multiple_of(*channels)).unwrap_or(1)
}

/// Writes to `output`, `[channels, rows]`, the columns from `first` on of `values`, `[rows, columns]`.
fn transpose(values: &[f32], columns: usize, first: usize, rows: usize, output: &mut [f32]) {
    for start in (0..rows).step_by(ROWS) {
        let end = rows.min(start + ROWS);
        for (channel, output) in output.chunks_exact_mut(rows).enumerate() {
            for (row, output) in (start..end).zip(&mut output[start..end]) {
                *output = values[row * columns + first + channel];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_hold_every_value() {
        let mut pool = Pool::new(2);
        for (images, rows, columns) in [(1, 1, 5), (2, 300, 48), (3, 7, 13), (1, 129, 20), (2, 200, 17)] {
            let values: Vec<f32> = (0..images * rows * columns).map(|i| i as f32).collect();
            let mut output = vec![-1.0; values.len()];
            assert!(copy(&mut pool, &values, (rows, columns), &mut output, OutputLayout::Rows));
            assert_eq!(output, values);
            assert!(copy(&mut pool, &values, (rows, columns), &mut output, OutputLayout::ChannelsFirst));
            for (i, value) in values.iter().enumerate() {
                let (image, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
                assert_eq!(output[(image * columns + column) * rows + row], *value, "{rows} x {columns}");
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_seen() {
        let mut pool = Pool::new(1);
        for layout in [OutputLayout::Rows, OutputLayout::ChannelsFirst] {
            for bad in [f32::NAN, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 40 * 24];
                values[901] = bad;
                assert!(!copy(&mut pool, &values, (40, 24), &mut vec![0.0; 960], layout));
            }
        }
    }
}
