//! Products of a transposed matrix: sums over rows, as in the gradient of a weight.

use swinq_numerics::RowMap;
use swinq_numerics::sizes::check_len;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::f32_kernel;
use super::pack::Layout;
use super::split::Split;
use super::{Block, LinearOut, LinearSpec, Store};
use crate::buffer::AlignedBuf;
use crate::cpu::Cpu;
use crate::pool::{Parts, Pool};

/// Rows of a part. They are added in registers, one after the other. As a stride it is not a power of two,
/// whose multiples would share a few sets of the first-level cache.
const PART: usize = 496;

/// Parts that are packed before they are multiplied, so that they are still in a cache.
const PARTS: usize = 8;

/// `out = a^T b`: `a` `[rows, m]`, `b` `[rows, n]`, `out` `[m, n]`, all row-major.
///
/// The sums of parts of 496 rows are added in order, so the bits are the same on every processor and with any
/// number of threads.
///
/// # Panics
/// If a length does not match the sizes.
pub fn transposed_product(
    cpu: Cpu,
    pool: &mut Pool,
    [rows, m, n]: [usize; 3],
    (a, b): (&[f32], &[f32]),
    out: &mut [f32],
) {
    check_len("transposed_product", "first matrix", a.len(), &[rows, m]);
    check_len("transposed_product", "second matrix", b.len(), &[rows, n]);
    check_len("transposed_product", "output", out.len(), &[m, n]);
    out.fill(0.0);
    if out.is_empty() {
        return;
    }
    let kernel = f32_kernel(cpu.isa());
    let mut packed = Packed::new(kernel.layout, m, n, rows.div_ceil(PART).min(PARTS));
    let store = Store::Residual { branch: None, shortcut: None };
    let spec = LinearSpec { n, k: PART, bias: None, output: None, gelu: None, store };
    let epilogue = Epilogue::new(&spec, &vec![1.0; n], kernel.layout.padded(n), f64::INFINITY);
    let map = RowMap::identity(m);
    let split = Split::new(m, kernel.layout.panels(n), 4 * PART, kernel.tile_rows, pool.threads());
    for (a, b) in a.chunks(PARTS * PART * m).zip(b.chunks(PARTS * PART * n)) {
        packed.fill(pool, a, b);
        let dest = Dest::new(LinearOut::Residual { residual: out, map: &map }, &epilogue.store, m, n);
        pool.run(split.tasks(), &|task, _| {
            let (rows, panels) = split.block(task);
            for part in 0..(a.len() / m).div_ceil(PART) {
                let k = PART.min(a.len() / m - part * PART);
                let (input, weight) = packed.part(part);
                let panel_len = kernel.layout.panel_len(k);
                let (rows, panels) = (rows.clone(), panels.clone());
                let block = Block { input, stride: k, k, weight, panel_len, rows, panels };
                // SAFETY: the kernel belongs to the `Isa` of a `Cpu`, which exists only if the processor has
                // the instructions.
                unsafe { (kernel.block)(&block, &epilogue, &dest) }
            }
        });
    }
}

/// Some parts of both matrices, in the order in which kernels read them.
struct Packed {
    layout: Layout,
    m: usize,
    n: usize,
    /// Each part of the first matrix, transposed.
    inputs: AlignedBuf,
    /// Each part of the second matrix, in panels.
    weights: AlignedBuf,
}

impl Packed {
    fn new(layout: Layout, m: usize, n: usize, parts: usize) -> Packed {
        let floats = |len: usize| AlignedBuf::new(parts * len * size_of::<f32>());
        let weights = floats(layout.panels(n) * layout.panel_len(PART));
        Packed { layout, m, n, inputs: floats(m * PART), weights }
    }

    /// Values of a part of each matrix.
    fn sizes(&self) -> [usize; 2] {
        [self.m * PART, self.layout.panels(self.n) * self.layout.panel_len(PART)]
    }

    /// Packs `a` and `b`, which have the same number of rows.
    fn fill(&mut self, pool: &mut Pool, a: &[f32], b: &[f32]) {
        let ([input, weight], (m, n, layout)) = (self.sizes(), (self.m, self.n, self.layout));
        let (inputs, weights) = (Parts::new(self.inputs.as_f32_mut()), Parts::new(self.weights.as_f32_mut()));
        pool.run(2 * (a.len() / m).div_ceil(PART), &|task, _| {
            let part = task / 2;
            if task % 2 == 0 {
                let a = &a[part * PART * m..];
                // SAFETY: the parts of different tasks do not overlap, and every task runs once.
                let out = unsafe { inputs.get(part * input, input) };
                transpose(m, &a[..a.len().min(PART * m)], out);
            } else {
                let b = &b[part * PART * n..];
                // SAFETY: as above.
                let out = unsafe { weights.get(part * weight, weight) };
                layout.pack_inputs(n, &b[..b.len().min(PART * n)], out);
            }
        });
    }

    fn part(&self, part: usize) -> (&[f32], &[f32]) {
        let [input, weight] = self.sizes();
        (&self.inputs.as_f32()[part * input..], &self.weights.as_f32()[part * weight..][..weight])
    }
}

/// Writes the transpose of `x` `[rows, columns]` to the start of `out`, in squares that fit the first-level
/// cache.
fn transpose(columns: usize, x: &[f32], out: &mut [f32]) {
    const SIDE: usize = 16;
    let rows = x.len() / columns;
    for from in (0..columns).step_by(SIDE) {
        for (square, x) in x.chunks(SIDE * columns).enumerate() {
            for column in from..columns.min(from + SIDE) {
                let out = &mut out[column * rows + square * SIDE..];
                for (out, row) in out.iter_mut().zip(x.chunks_exact(columns)) {
                    *out = row[column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum_r a[r][i] * b[r][j]` in f64, and the sum of the magnitudes.
    fn exact([rows, m, n]: [usize; 3], a: &[f32], b: &[f32]) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); m * n];
        for row in 0..rows {
            for (index, (sum, magnitude)) in sums.iter_mut().enumerate() {
                let term = f64::from(a[row * m + index / n]) * f64::from(b[row * n + index % n]);
                (*sum, *magnitude) = (*sum + term, *magnitude + term.abs());
            }
        }
        sums
    }

    #[test]
    fn is_the_sum_over_rows_with_the_same_bits_everywhere() {
        let noise = |len: usize, seed: u32| -> Vec<f32> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(|_| next()).collect()
        };
        let rows = [0, 1, 7, PART, PART + 1, 2 * PART + 5, PARTS * PART + 3];
        for (case, [m, n]) in
            [[1, 1], [3, 5], [14, 32], [17, 33], [29, 64], [40, 31], [2, 65]].into_iter().enumerate()
        {
            let rows = rows[case];
            let (a, b) = (noise(rows * m, 1), noise(rows * n, 2));
            let mut first: Option<Vec<u32>> = None;
            for cpu in Cpu::available() {
                for threads in [1, 3] {
                    let mut out = vec![f32::NAN; m * n];
                    transposed_product(cpu, &mut Pool::new(threads), [rows, m, n], (&a, &b), &mut out);
                    for (&got, (want, magnitude)) in out.iter().zip(exact([rows, m, n], &a, &b)) {
                        let error = (f64::from(got) - want).abs();
                        assert!(error <= 1e-5 * magnitude, "{rows} {m} {n}: {got} instead of {want}");
                    }
                    let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(first.get_or_insert(bits.clone()), &bits, "{rows} {m} {n}: {cpu:?} {threads}");
                }
            }
        }
    }
}
