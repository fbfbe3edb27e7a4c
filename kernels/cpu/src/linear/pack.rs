//! Packs weights in the order in which kernels read them.

use swinq_numerics::sizes::elements;

use crate::buffer::AlignedBuf;
use crate::weights::Weights;

/// The order of packed weights: panels of `columns` columns side by side, the inputs of each column in groups
/// of `group`.
///
/// ```text
/// packed[panel][k / group][column in panel][k % group] = weight[column][k], zero beyond n and k
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) columns: usize,
    pub(super) group: usize,
    /// Inputs are padded to a multiple of this: `group`, unless the kernel's instructions take several groups
    /// at once.
    pub(super) k_block: usize,
}

impl Layout {
    pub(super) fn panels(self, n: usize) -> usize {
        n.div_ceil(self.columns)
    }

    /// Columns, including the padding of the last panel. [`Layout::pack_i8`] or [`Layout::pack_f32`] of a
    /// weight with `n` columns checked that this does not overflow.
    pub(super) fn padded(self, n: usize) -> usize {
        self.panels(n) * self.columns
    }

    /// Groups of inputs of a column, including the groups of the padding.
    pub(super) fn groups(self, k: usize) -> usize {
        k.next_multiple_of(self.k_block) / self.group
    }

    /// Elements of one panel.
    pub(super) fn panel_len(self, k: usize) -> usize {
        self.groups(k) * self.columns * self.group
    }

    /// Copies `weight` `[n, k]` into `packed`, which holds `panels(n) * panel_len(k)` zeros.
    fn pack<T: Copy, P>(self, n: usize, k: usize, weight: &[T], packed: &mut [P], cast: impl Fn(T) -> P) {
        let step = self.columns * self.group;
        // Without inputs there is nothing to pack.
        for c in if k == 0 { 0..0 } else { 0..n } {
            let start = c / self.columns * self.panel_len(k) + c % self.columns * self.group;
            let groups = packed[start..].chunks_mut(step);
            for (inputs, group) in weight[c * k..][..k].chunks(self.group).zip(groups) {
                group.iter_mut().zip(inputs).for_each(|(packed, &w)| *packed = cast(w));
            }
        }
    }

    /// Copies `weight` `[k, n]`, the weights of an input side by side, to the start of `packed`. Columns
    /// beyond n are left as they are.
    ///
    /// # Panics
    /// If the layout groups inputs.
    pub(super) fn pack_inputs(self, n: usize, weight: &[f32], packed: &mut [f32]) {
        assert_eq!((self.group, self.k_block), (1, 1), "layouts of f32 kernels have no groups");
        let panel_len = self.panel_len(weight.len() / n);
        for (input, weight) in weight.chunks_exact(n).enumerate() {
            for (panel, weight) in weight.chunks(self.columns).enumerate() {
                packed[panel * panel_len + input * self.columns..][..weight.len()].copy_from_slice(weight);
            }
        }
    }

    /// Bytes of the packed weight `[n, k]`, of elements of `size` bytes.
    ///
    /// # Panics
    /// If there are too many, even if n or k is 0.
    fn bytes(self, n: usize, k: usize, size: usize) -> usize {
        let panel = [self.columns, self.groups(k), self.group];
        elements("linear", "packed weight", &[self.panels(n), panel[0], panel[1], panel[2], size])
    }

    /// Packs INT8 weights.
    pub(super) fn pack_i8(self, n: usize, k: usize, weight: &[i8]) -> Weights {
        Weights::new(self.bytes(n, k, 1), |packed| self.pack(n, k, weight, packed, |w| w as u8))
    }

    /// Packs f32 weights stored by inputs, `[k, n]`.
    pub(super) fn pack_f32_inputs(self, n: usize, k: usize, weight: &[f32]) -> AlignedBuf {
        let mut packed = AlignedBuf::new(self.bytes(n, k, size_of::<f32>()));
        if n > 0 {
            self.pack_inputs(n, weight, packed.as_f32_mut());
        }
        packed
    }

    /// Packs f32 weights.
    pub(super) fn pack_f32(self, n: usize, k: usize, weight: &[f32]) -> AlignedBuf {
        let mut packed = AlignedBuf::new(self.bytes(n, k, size_of::<f32>()));
        self.pack(n, k, weight, packed.as_f32_mut(), |w| w);
        packed
    }
}

/// `-sum_k (added + zero_points[k]) * weight[c][k]` of each column, padded with zeros to `padded`: the
/// initial accumulator. It compensates for `added`, which the kernel's input has in addition to its codes
/// (128 for bytes), and for the zero points of the input's codes. `zero_points` may be empty, which stands
/// for zeros.
///
/// From this start every partial sum of products is at most 255 * 128 * k in magnitude, because a code minus
/// its zero point, and a byte, are at most 255. This fits an i32 for k up to 65793.
pub(super) fn compensation(
    k: usize,
    weight: &[i8],
    padded: usize,
    added: i32,
    zero_points: &[i8],
) -> Vec<i32> {
    let sum = |row: &[i8]| {
        let weights: i32 = row.iter().map(|&w| i32::from(w)).sum();
        let products = zero_points.iter().zip(row).map(|(&z, &w)| i32::from(z) * i32::from(w));
        -(added * weights + products.sum::<i32>())
    };
    let mut sums: Vec<i32> = if k == 0 { Vec::new() } else { weight.chunks(k).map(sum).collect() };
    sums.resize(padded, 0);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_has_its_place_and_the_rest_is_zero() {
        let (n, k) = (5, 7);
        let weight: Vec<i8> = (0..n * k).map(|i| i as i8 + 1).collect();
        let layout = Layout { columns: 4, group: 4, k_block: 4 };
        let packed = layout.pack_i8(n, k, &weight);
        let at =
            |c: usize, i: usize| packed.as_i8()[c / 4 * layout.panel_len(k) + i / 4 * 16 + c % 4 * 4 + i % 4];
        assert!((0..n * k).all(|i| at(i / k, i % k) == weight[i]));
        let filled = packed.as_i8().iter().filter(|&&w| w != 0).count();
        assert_eq!((layout.panels(n), layout.groups(k), filled), (2, 2, n * k));
        assert_eq!(compensation(k, &weight, 8, 128, &[])[..2], [-128 * 28, -128 * 77]);
        let zero_points = [-128, 127, 0, 0, 0, 0, 2];
        assert_eq!(compensation(k, &weight, 8, 0, &zero_points)[..2], [-140, -147]);
        assert_eq!(compensation(k, &weight, 8, 128, &zero_points)[1..2], [-128 * 77 - 147]);
    }
}
