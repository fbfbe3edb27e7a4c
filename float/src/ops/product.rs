//! Matrix products for one attention head, whose matrices fit the first cache levels.

use pulp::{Simd, WithSimd};

/// The product `out = a b`, or `out = a b^T` if `transposed`.
pub(crate) struct Product<'a> {
    /// `[m, k]`.
    pub a: &'a [f32],
    /// `[n, k]` if `transposed`, else `[k, n]`.
    pub b: &'a [f32],
    pub transposed: bool,
    pub n: usize,
    pub k: usize,
    /// `[m, n]`, overwritten.
    pub out: &'a mut [f32],
    /// Scratch, reused between calls.
    pub packed: &'a mut Vec<f32>,
}

/// Size of a tile of `out` in registers: rows of `a`, and vectors of columns of `b`.
const ROWS: usize = 4;
const VECTORS: usize = 2;

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let panel = VECTORS * S::F32_LANES;
        let panels = self.n.div_ceil(panel);
        self.packed.clear();
        self.packed.resize(panels * panel * self.k, 0.0);
        self.pack(panel);
        let m = self.a.len() / self.k;
        for (index, b) in self.packed.chunks_exact(panel * self.k).enumerate() {
            let columns = panel.min(self.n - index * panel);
            let (b, _) = S::as_simd_f32s(b);
            for i in (0..m).step_by(ROWS) {
                // At the lower edge the last row is computed repeatedly; it is written with the same values.
                let rows: [usize; ROWS] = std::array::from_fn(|r| (i + r).min(m - 1));
                let a = rows.map(|row| &self.a[row * self.k..][..self.k]);
                let sums = tile(simd, a, b);
                for (row, sums) in rows.into_iter().zip(&sums) {
                    let out = &mut self.out[row * self.n + index * panel..][..columns];
                    out.copy_from_slice(&bytemuck::cast_slice(sums)[..columns]);
                }
            }
        }
    }
}

impl Product<'_> {
    /// Copies `b` into panels of `panel` columns, `[panels, k, panel]`; columns beyond `n` stay zero.
    #[inline(always)]
    fn pack(&mut self, panel: usize) {
        let (n, k) = (self.n, self.k);
        for (index, packed) in self.packed.chunks_exact_mut(panel * k).enumerate() {
            let first = index * panel;
            let columns = panel.min(n - first);
            for (p, row) in packed.chunks_exact_mut(panel).enumerate() {
                if self.transposed {
                    for (j, value) in row[..columns].iter_mut().enumerate() {
                        *value = self.b[(first + j) * k + p];
                    }
                } else {
                    row[..columns].copy_from_slice(&self.b[p * n + first..][..columns]);
                }
            }
        }
    }
}

/// The products of [`ROWS`] rows of `a` with one packed panel of `b`.
#[inline(always)]
fn tile<S: Simd>(simd: S, a: [&[f32]; ROWS], b: &[S::f32s]) -> [[S::f32s; VECTORS]; ROWS] {
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; VECTORS]; ROWS];
    for (p, b) in b.chunks_exact(VECTORS).enumerate() {
        for (sums, a) in sums.iter_mut().zip(&a) {
            let a = simd.splat_f32s(a[p]);
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = simd.mul_add_f32s(a, b, *sum);
            }
        }
    }
    sums
}
