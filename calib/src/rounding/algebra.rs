//! Matrix products, by candle, and the Cholesky factorization of large matrices on top of them. No result
//! depends on the number of threads: a product divides among threads only its rows and columns.

use std::ops::Range;

use candle_core::{Device, Tensor, WithDType};
use rayon::prelude::*;

/// Rows of a tile, the piece of work of one thread.
pub(super) const TILE: usize = 128;

/// Columns that are factored or solved before their effect on the others is computed by a product.
const BLOCK: usize = 64;

/// The blocks of `k` columns.
pub(super) fn blocks(k: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..k.div_ceil(BLOCK)).map(move |i| i * BLOCK..((i + 1) * BLOCK).min(k))
}

/// The matrix `values` `[rows, columns]`.
pub(super) fn matrix<T: WithDType>(values: &[T], rows: usize, columns: usize) -> candle_core::Result<Tensor> {
    Tensor::from_slice(values, (rows, columns), &Device::Cpu)
}

/// The part of a matrix with the given rows and columns.
pub(super) fn part(
    matrix: &Tensor,
    rows: Range<usize>,
    columns: Range<usize>,
) -> candle_core::Result<Tensor> {
    matrix.narrow(0, rows.start, rows.len())?.narrow(1, columns.start, columns.len())
}

/// The values of `a b`, row-major.
pub(super) fn product<T: WithDType>(a: &Tensor, b: &Tensor) -> candle_core::Result<Vec<T>> {
    // Candle refuses products without columns.
    if a.dim(1)? == 0 {
        return Ok(vec![T::zero(); a.dim(0)? * b.dim(1)?]);
    }
    a.matmul(b)?.flatten_all()?.to_vec1()
}

/// Adds `a^T b` to `sums` `[m, k]`, where `a` is `[rows, m]` and `b` is `[rows, k]`. The product is in f32,
/// the sum in f64. If `symmetric`, which means that `a` is `b`, entries above the diagonal may be left out.
pub(super) fn add_product(
    sums: &mut [f64],
    a: &Tensor,
    b: &Tensor,
    symmetric: bool,
) -> candle_core::Result<()> {
    let (rows, k) = b.dims2()?;
    sums.par_chunks_mut(TILE * k).enumerate().try_for_each(|(tile, sums)| {
        let (first, height) = (tile * TILE, sums.len() / k);
        let width = if symmetric { first + height } else { k };
        let product: Vec<f32> =
            product(&part(a, 0..rows, first..first + height)?.t()?, &part(b, 0..rows, 0..width)?)?;
        for (sums, product) in sums.chunks_exact_mut(k).zip(product.chunks_exact(width)) {
            sums.iter_mut().zip(product).for_each(|(sum, &p)| *sum += f64::from(p));
        }
        Ok(())
    })
}

/// The Cholesky factor `l` of a symmetric positive definite matrix: lower triangular, `l l^T` is the matrix.
pub(super) struct Cholesky {
    /// `[k, k]`, row-major.
    pub lower: Vec<f64>,
    pub k: usize,
}

impl Cholesky {
    /// Factors `a` `[k, k]`, whose entries on and below the diagonal are read. `None` if it is not positive
    /// definite.
    pub fn new(mut a: Vec<f64>, k: usize) -> candle_core::Result<Option<Cholesky>> {
        for block in blocks(k) {
            let (first, width) = (block.start, block.len());
            if first > 0 {
                let known: Vec<f64> =
                    a[first * k..].chunks_exact(k).flat_map(|row| &row[..first]).copied().collect();
                let known = matrix(&known, k - first, first)?;
                let products: Vec<f64> = product(&known, &known.narrow(0, 0, width)?.t()?)?;
                let rows = a[first * k..].chunks_exact_mut(k).zip(products.chunks_exact(width));
                rows.for_each(|(row, products)| {
                    row[block.clone()].iter_mut().zip(products).for_each(|(a, p)| *a -= p);
                });
            }
            let (above, below) = a.split_at_mut(block.end * k);
            let diagonal = &mut above[first * k..];
            for i in 0..width {
                let (done, row) = diagonal.split_at_mut(i * k);
                let row = &mut row[first..][..=i];
                forward(row, done, first, k);
                let (last, done) = row.split_last_mut().expect("the row has its diagonal");
                *last -= done.iter().map(|l| l * l).sum::<f64>();
                if !(*last > 0.0 && last.is_finite()) {
                    return Ok(None);
                }
                *last = last.sqrt();
            }
            below.par_chunks_mut(k).for_each(|row| forward(&mut row[block.clone()], diagonal, first, k));
        }
        a.par_chunks_mut(k).enumerate().for_each(|(i, row)| row[i + 1..].fill(0.0));
        Ok(Some(Cholesky { lower: a, k }))
    }

    /// Replaces each row `r` of `rows` `[n, k]` with the solution `x` of `x l l^T = r`.
    pub fn solve_rows(&self, rows: &mut [f64]) -> candle_core::Result<()> {
        let k = self.k;
        let lower = matrix(&self.lower, k, k)?;
        for block in blocks(k) {
            self.subtract(
                rows,
                &part(&lower, block.clone(), 0..block.start)?.t()?,
                0..block.start,
                block.clone(),
            )?;
            let diagonal = &self.lower[block.start * k..][..block.len() * k];
            rows.par_chunks_mut(k).for_each(|row| forward(&mut row[block.clone()], diagonal, block.start, k));
        }
        for block in blocks(k).rev() {
            self.subtract(rows, &part(&lower, block.end..k, block.clone())?, block.end..k, block.clone())?;
            rows.par_chunks_mut(k).for_each(|row| self.backward(&mut row[block.clone()], block.start));
        }
        Ok(())
    }

    /// Subtracts from the columns `to` the product of the columns `from` with `factor`.
    fn subtract(
        &self,
        rows: &mut [f64],
        factor: &Tensor,
        from: Range<usize>,
        to: Range<usize>,
    ) -> candle_core::Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let known: Vec<f64> = rows.chunks_exact(self.k).flat_map(|row| &row[from.clone()]).copied().collect();
        let products: Vec<f64> = product(&matrix(&known, rows.len() / self.k, from.len())?, factor)?;
        for (row, products) in rows.chunks_exact_mut(self.k).zip(products.chunks_exact(to.len())) {
            row[to.clone()].iter_mut().zip(products).for_each(|(x, p)| *x -= p);
        }
        Ok(())
    }

    /// Solves `x l = r` for the columns of one block from column `first` on.
    fn backward(&self, x: &mut [f64], first: usize) {
        for j in (0..x.len()).rev() {
            let row = &self.lower[(first + j) * self.k + first..][..=j];
            x[j] /= row[j];
            let (left, solved) = x.split_at_mut(j);
            left.iter_mut().zip(row).for_each(|(x, l)| *x -= solved[0] * l);
        }
    }
}

/// Solves `x l^T = r` for as many columns as `rows` `[n, k]` has rows of `l`, which is at most the length of
/// `x`. The columns of `l` start at `first`.
fn forward(x: &mut [f64], rows: &[f64], first: usize, k: usize) {
    for (j, row) in rows.chunks_exact(k).enumerate() {
        let row = &row[first..][..=j];
        let sum: f64 = x[..j].iter().zip(row).map(|(x, l)| x * l).sum();
        x[j] = (x[j] - sum) / row[j];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_solutions_multiply_back() {
        for k in [1, 5, 64, 65, 200] {
            let mut rng = swinq_testing::Rng(k as u64);
            let b: Vec<f64> = (0..k * k).map(|_| f64::from(rng.float())).collect();
            let entry = |i: usize, j: usize| {
                let sum: f64 = (0..k).map(|m| b[i * k + m] * b[j * k + m]).sum();
                sum + if i == j { 0.1 } else { 0.0 }
            };
            let a: Vec<f64> =
                (0..k * k).map(|at| if at % k > at / k { f64::NAN } else { entry(at / k, at % k) }).collect();
            let factor = Cholesky::new(a, k).unwrap().unwrap();
            for (i, j) in (0..k * k).map(|at| (at / k, at % k)) {
                let sum: f64 = (0..k).map(|m| factor.lower[i * k + m] * factor.lower[j * k + m]).sum();
                assert!((sum - entry(i, j)).abs() < 1e-9, "{k}: {i} {j}");
            }
            let wanted: Vec<f64> = (0..3 * k).map(|_| f64::from(rng.float())).collect();
            let mut rows: Vec<f64> = (0..3 * k)
                .map(|at| (0..k).map(|m| wanted[at / k * k + m] * entry(m, at % k)).sum())
                .collect();
            factor.solve_rows(&mut rows).unwrap();
            assert!(rows.iter().zip(&wanted).all(|(x, y)| (x - y).abs() < 1e-6), "{k}");
        }
    }

    #[test]
    fn matrices_that_are_not_positive_definite_are_refused() {
        assert!(Cholesky::new(vec![1.0, 0.0, 2.0, 4.0], 2).unwrap().is_none());
        assert!(Cholesky::new(vec![0.0], 1).unwrap().is_none());
        assert!(Cholesky::new(vec![f64::NAN], 1).unwrap().is_none());
    }
}
