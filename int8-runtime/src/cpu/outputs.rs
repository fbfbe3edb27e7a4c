//! Copies an output from the arena to the caller's memory.

use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use half::f16;
use half::slice::HalfFloatSliceExt;
use swinq_kernels::Pool;

use crate::engine::{OutputElement, OutputForm, OutputLayout};

/// Channels that are copied together: a cache line of f32.
const LINE: usize = 16;
/// Rows whose lines fit into the first cache.
const ROWS: usize = 128;
/// Values that one task copies.
const PART: usize = 1 << 14;

/// A type of the values of an output.
trait Value: Pod + Send + Sync {
    /// Converts `from`, which is as long, to `to`.
    fn convert(from: &[f32], to: &mut [Self]);
    fn from_f32(value: f32) -> Self;
    fn is_finite(self) -> bool;
}

impl Value for f32 {
    fn convert(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn from_f32(value: f32) -> f32 {
        value
    }

    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Value for f16 {
    fn convert(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }

    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn is_finite(self) -> bool {
        f16::is_finite(self)
    }
}

/// Copies `values`, `[images, rows, columns]`, to the bytes `output` in `form`. Returns whether all are
/// finite there.
///
/// # Panics
/// If `output` has another number of values, or is not aligned to them.
pub(super) fn copy(
    pool: &mut Pool,
    values: &[f32],
    shape: (usize, usize),
    output: &mut [u8],
    form: OutputForm,
) -> bool {
    match form.element {
        OutputElement::F32 => copy_as::<f32>(pool, values, shape, output, form.layout),
        OutputElement::F16 => copy_as::<f16>(pool, values, shape, output, form.layout),
    }
}

fn copy_as<T: Value>(
    pool: &mut Pool,
    values: &[f32],
    (rows, columns): (usize, usize),
    output: &mut [u8],
    layout: OutputLayout,
) -> bool {
    let output: &mut [T] = bytemuck::cast_slice_mut(output);
    let finite = AtomicBool::new(true);
    let check = |part: &[T]| {
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
            T::convert(&values[part * PART..][..output.len()], output);
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
fn transpose<T: Value>(values: &[f32], columns: usize, first: usize, rows: usize, output: &mut [T]) {
    for start in (0..rows).step_by(ROWS) {
        let end = rows.min(start + ROWS);
        for (channel, output) in output.chunks_exact_mut(rows).enumerate() {
            for (row, output) in (start..end).zip(&mut output[start..end]) {
                *output = T::from_f32(values[row * columns + first + channel]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS_F32: OutputForm = OutputForm { element: OutputElement::F32, layout: OutputLayout::Rows };
    const MAPS_F32: OutputForm = OutputForm { layout: OutputLayout::ChannelsFirst, ..ROWS_F32 };

    fn as_f16(form: OutputForm) -> OutputForm {
        OutputForm { element: OutputElement::F16, ..form }
    }

    #[test]
    fn both_layouts_hold_every_value_in_both_types() {
        let mut pool = Pool::new(2);
        for (images, rows, columns) in [(1, 1, 5), (2, 300, 48), (3, 7, 13), (1, 129, 20), (2, 200, 17)] {
            // Values that f16 rounds.
            let values: Vec<f32> = (0..images * rows * columns).map(|i| i as f32 + 0.123).collect();
            let (mut output, mut halves) = (vec![-1.0_f32; values.len()], vec![f16::ZERO; values.len()]);
            let mut fill = |form: OutputForm, output: &mut Vec<f32>| {
                let bytes = bytemuck::cast_slice_mut(output);
                assert!(copy(&mut pool, &values, (rows, columns), bytes, form));
                let bytes = bytemuck::cast_slice_mut(&mut halves);
                assert!(copy(&mut pool, &values, (rows, columns), bytes, as_f16(form)));
                assert!(output.iter().zip(&halves).all(|(value, half)| f16::from_f32(*value) == *half));
            };
            fill(ROWS_F32, &mut output);
            assert_eq!(output, values);
            fill(MAPS_F32, &mut output);
            for (i, value) in values.iter().enumerate() {
                let (image, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
                assert_eq!(output[(image * columns + column) * rows + row], *value, "{rows} x {columns}");
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_in_the_type_of_the_output_is_seen() {
        let mut pool = Pool::new(1);
        for form in [ROWS_F32, MAPS_F32] {
            for (bad, fits) in [(f32::NAN, false), (f32::NEG_INFINITY, false), (65520.0, true)] {
                let mut values = vec![1.0; 40 * 24];
                values[901] = bad;
                assert_eq!(copy(&mut pool, &values, (40, 24), &mut vec![0; 4 * 960], form), fits);
                assert!(!copy(&mut pool, &values, (40, 24), &mut vec![0; 2 * 960], as_f16(form)));
            }
        }
    }
}
