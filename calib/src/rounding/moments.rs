//! First and second moments of a layer's input and of its target output.

use rayon::prelude::*;
use swinq_model::quantized::Int8Weight;

use super::algebra::{add_product, matrix, product};
use crate::error::CalibError;

/// Rows that are collected before their products are added: enough to make the product fast.
const ROWS: usize = 1024;

/// Sums over rows of `x` (what the layer's product gets: `[rows, inputs]`) and of `t` (what the product
/// should return: `[rows, outputs]`), from which means and covariances follow.
///
/// The sums are taken of the differences from an offset, the means of the first rows, because a large mean
/// would otherwise hide a small variance. Products are taken in f32 over 1,024 rows and added in f64. The
/// results depend on the order of the rows, but neither on how they are divided into calls of
/// [`Moments::add`] nor on the number of threads.
pub struct Moments {
    inputs: usize,
    outputs: usize,
    rows: usize,
    offset: Option<[Vec<f32>; 2]>,
    sums: [Vec<f64>; 2],
    xx: Vec<f64>,
    tx: Vec<f64>,
    tt: Vec<f64>,
    pending: [Vec<f32>; 2],
}

/// The means and covariances of [`Moments`].
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Number of rows.
    pub rows: usize,
    /// Means of the inputs, `[inputs]`.
    pub x_mean: Vec<f64>,
    /// Means of the target outputs, `[outputs]`.
    pub t_mean: Vec<f64>,
    /// Covariances of the inputs, `[inputs, inputs]`. Only the entries on and below the diagonal are set.
    pub xx: Vec<f64>,
    /// Covariances of the target outputs with the inputs, `[outputs, inputs]`.
    pub tx: Vec<f64>,
    /// Variances of the target outputs, `[outputs]`.
    pub tt: Vec<f64>,
}

impl Moments {
    /// No rows yet, for a layer with this many inputs and outputs.
    pub fn new(inputs: usize, outputs: usize) -> Moments {
        Moments {
            inputs,
            outputs,
            rows: 0,
            offset: None,
            sums: [vec![0.0; inputs], vec![0.0; outputs]],
            xx: vec![0.0; inputs * inputs],
            tx: vec![0.0; outputs * inputs],
            tt: vec![0.0; outputs],
            pending: [Vec::new(), Vec::new()],
        }
    }

    /// Adds rows: `x` `[rows, inputs]` and `t` `[rows, outputs]`.
    ///
    /// # Errors
    /// [`CalibError::NotFinite`] for a NaN or an infinity. The moments are not usable afterwards.
    ///
    /// # Panics
    /// If the lengths are not those of the same number of rows.
    pub fn add(&mut self, x: &[f32], t: &[f32]) -> Result<(), CalibError> {
        let rows = x.len() / self.inputs;
        assert!(
            x.len() == rows * self.inputs && t.len() == rows * self.outputs,
            "x and t have the same rows"
        );
        for values in [x, t] {
            if let Some(index) = values.iter().position(|v| !v.is_finite()) {
                return Err(CalibError::NotFinite { value: values[index], index });
            }
        }
        let (mut x, mut t) = (x, t);
        while !x.is_empty() {
            let room = ROWS - self.pending[0].len() / self.inputs;
            let (now, later) = x.split_at(x.len().min(room * self.inputs));
            let (t_now, t_later) = t.split_at(t.len().min(room * self.outputs));
            self.pending[0].extend_from_slice(now);
            self.pending[1].extend_from_slice(t_now);
            (x, t) = (later, t_later);
            if self.pending[0].len() == ROWS * self.inputs {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Adds the products of the pending rows to the sums.
    fn flush(&mut self) -> Result<(), CalibError> {
        let [mut x, mut t] = std::mem::take(&mut self.pending);
        let rows = x.len() / self.inputs;
        if rows == 0 {
            return Ok(());
        }
        let offset = self.offset.get_or_insert_with(|| [means(&x, self.inputs), means(&t, self.outputs)]);
        for (values, (offset, sums)) in [&mut x, &mut t].into_iter().zip(offset.iter().zip(&mut self.sums)) {
            subtract(values, offset, sums);
        }
        let (x_rows, t_rows) = (matrix(&x, rows, self.inputs)?, matrix(&t, rows, self.outputs)?);
        add_product(&mut self.xx, &x_rows, &x_rows, true)?;
        add_product(&mut self.tx, &t_rows, &x_rows, false)?;
        for row in t.chunks_exact(self.outputs) {
            self.tt.iter_mut().zip(row).for_each(|(sum, &t)| *sum += f64::from(t).powi(2));
        }
        self.rows += rows;
        x.clear();
        t.clear();
        self.pending = [x, t];
        Ok(())
    }

    /// The means and covariances of all rows.
    ///
    /// # Errors
    /// [`CalibError::Empty`] if there is no row.
    pub fn finish(mut self) -> Result<Statistics, CalibError> {
        self.flush()?;
        let Some([x_offset, t_offset]) = self.offset else { return Err(CalibError::Empty) };
        let n = self.rows as f64;
        let [x_shift, t_shift] = self.sums.map(|sums| sums.into_iter().map(|s| s / n).collect::<Vec<f64>>());
        for (products, row_means) in [(&mut self.xx, &x_shift), (&mut self.tx, &t_shift)] {
            products.par_chunks_mut(self.inputs).zip(row_means).for_each(|(row, mean)| {
                row.iter_mut().zip(&x_shift).for_each(|(sum, other)| *sum = *sum / n - mean * other);
            });
        }
        let tt = self.tt.iter().zip(&t_shift).map(|(sum, mean)| sum / n - mean * mean).collect();
        let means = |offset: Vec<f32>, shift: Vec<f64>| {
            offset.into_iter().zip(shift).map(|(o, s)| f64::from(o) + s).collect()
        };
        Ok(Statistics {
            rows: self.rows,
            x_mean: means(x_offset, x_shift),
            t_mean: means(t_offset, t_shift),
            xx: self.xx,
            tx: self.tx,
            tt,
        })
    }
}

impl Statistics {
    /// The statistics of the rows of both.
    ///
    /// # Panics
    /// If they are those of layers of different sizes.
    pub fn merged(&self, other: &Statistics) -> Statistics {
        let (k, n) = (self.x_mean.len(), self.t_mean.len());
        assert_eq!((k, n), (other.x_mean.len(), other.t_mean.len()), "statistics of one layer");
        let rows = self.rows + other.rows;
        let (a, b) = (self.rows as f64 / rows as f64, other.rows as f64 / rows as f64);
        let mean = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| a * x + b * y).collect::<Vec<f64>>();
        let apart = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x - y).collect::<Vec<f64>>();
        let (dx, dt) = (apart(&self.x_mean, &other.x_mean), apart(&self.t_mean, &other.t_mean));
        // The covariance of the union has a part between the two means.
        let covariance = |x: &[f64], y: &[f64], left: &[f64]| -> Vec<f64> {
            let entry = |at: usize| a * x[at] + b * y[at] + a * b * left[at / k] * dx[at % k];
            (0..x.len()).into_par_iter().map(entry).collect()
        };
        let tt = mean(&self.tt, &other.tt).into_iter().zip(&dt).map(|(tt, d)| tt + a * b * d * d).collect();
        Statistics {
            rows,
            x_mean: mean(&self.x_mean, &other.x_mean),
            t_mean: mean(&self.t_mean, &other.t_mean),
            xx: covariance(&self.xx, &other.xx, &dx),
            tx: covariance(&self.tx, &other.tx, &dt),
            tt,
        }
    }

    /// The mean over rows and outputs of the squared error `V x + d - t`, with the weight `V` of codes and
    /// `d` `[outputs]`, which is what the layer adds beyond its float bias (nothing: zeros).
    ///
    /// # Errors
    /// Candle's errors.
    ///
    /// # Panics
    /// If the weight is that of a layer of another size.
    pub fn error(&self, weight: &Int8Weight, d: &[f32]) -> candle_core::Result<f64> {
        let (n, k) = weight.matrix();
        assert!(self.xx.len() == k * k && self.tx.len() == n * k && d.len() == n, "statistics of this layer");
        let values: Vec<f64> = weight.dequantize().data.into_iter().map(f64::from).collect();
        let full = |at: usize| {
            let (i, j) = (at / k, at % k);
            self.xx[i.max(j) * k + i.min(j)]
        };
        let full: Vec<f64> = (0..k * k).into_par_iter().map(full).collect();
        let products: Vec<f64> = product(&matrix(&values, n, k)?, &matrix(&full, k, k)?)?;
        let channel = |c: usize| {
            let (row, at) = (&values[c * k..][..k], c * k..(c + 1) * k);
            let terms = row.iter().zip(&products[at.clone()]).zip(self.tx[at].iter().zip(&self.x_mean));
            let (mut quadratic, mut mean) = (0.0, 0.0);
            for ((v, product), (tx, m)) in terms {
                quadratic += v * (product - 2.0 * tx);
                mean += v * m;
            }
            quadratic + self.tt[c] + (mean + f64::from(d[c]) - self.t_mean[c]).powi(2)
        };
        Ok((0..n).map(channel).sum::<f64>().max(0.0) / n as f64)
    }

    /// The statistics for inputs that are divided by `factors`, one for each input.
    pub fn divide_inputs(&mut self, factors: &[f32]) {
        let factors: Vec<f64> = factors.iter().map(|&f| f64::from(f)).collect();
        let k = factors.len();
        let divide = |row: &mut [f64]| row.iter_mut().zip(&factors).for_each(|(value, f)| *value /= f);
        divide(&mut self.x_mean);
        self.tx.par_chunks_mut(k).for_each(divide);
        self.xx.par_chunks_mut(k).zip(&factors).for_each(|(row, f)| {
            divide(row);
            row.iter_mut().for_each(|value| *value /= f);
        });
    }
}

/// The means of the columns of `values`.
fn means(values: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0f64; columns];
    for row in values.chunks_exact(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v));
    }
    let rows = (values.len() / columns) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

/// Subtracts `offset` from every row of `values`, and adds the differences to `sums`.
fn subtract(values: &mut [f32], offset: &[f32], sums: &mut [f64]) {
    for row in values.chunks_exact_mut(offset.len()) {
        for ((value, offset), sum) in row.iter_mut().zip(offset).zip(&mut *sums) {
            *value -= offset;
            *sum += f64::from(*value);
        }
    }
}
