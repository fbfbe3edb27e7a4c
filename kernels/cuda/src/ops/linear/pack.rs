//! Packing of weights in the order that the kernels read.

use half::f16;

/// Number of columns of a group.
pub const GROUP: usize = 32;

/// The column of a group that packed row `row` holds; `row` is column `row % 8` of n-tile `row / 8`. A lane
/// of the tensor cores' result has columns 2 q and 2 q + 1 of every n-tile. In this order they are
/// columns 8 q to 8 q + 7 of the group.
pub fn packed_column(row: usize) -> usize {
    let (tile, column) = (row / 8, row % 8);
    8 * (column / 2) + 2 * tile + column % 2
}

/// Packs INT8 codes `[n, k]`: groups of rows in [`packed_column`] order. `n` is padded to full groups and
/// rows to `stride` bytes, both with zeros.
pub fn pack_codes(codes: &[i8], n: usize, k: usize, stride: usize) -> Vec<i8> {
    let mut packed = vec![0; n.next_multiple_of(GROUP) * stride];
    for_rows(n, |row, column| {
        packed[row * stride..][..k].copy_from_slice(&codes[column * k..][..k]);
    });
    packed
}

/// Packs weights `[n, k]` as f16 bits in the same order; `stride` is in elements.
pub fn pack_half(weight: &[f32], n: usize, k: usize, stride: usize) -> Vec<u16> {
    let mut packed = vec![0; n.next_multiple_of(GROUP) * stride];
    for_rows(n, |row, column| {
        let values = weight[column * k..][..k].iter().map(|&w| f16::from_f32(w).to_bits());
        packed[row * stride..][..k].iter_mut().zip(values).for_each(|(to, value)| *to = value);
    });
    packed
}

/// Calls `each` with every packed row and its column.
fn for_rows(n: usize, mut each: impl FnMut(usize, usize)) {
    for row in 0..n.next_multiple_of(GROUP) {
        let column = row / GROUP * GROUP + packed_column(row % GROUP);
        if column < n {
            each(row, column);
        }
    }
}

/// Pads `values` with zeros to full groups.
pub fn pad_columns<T: Copy + Default>(values: &[T]) -> Vec<T> {
    let mut padded = values.to_vec();
    padded.resize(values.len().next_multiple_of(GROUP), T::default());
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_of_a_quad_has_eight_consecutive_columns() {
        for q in 0..4 {
            let of_lane = (0..4).flat_map(|tile| [8 * tile + 2 * q, 8 * tile + 2 * q + 1]);
            let columns: Vec<usize> = of_lane.map(packed_column).collect();
            assert_eq!(columns, (8 * q..8 * q + 8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn packing_moves_whole_rows_and_pads_with_zeros() {
        let (n, k, stride) = (40, 3, 16);
        let codes: Vec<i8> = (0..n * k).map(|i| i as i8).collect();
        let packed = pack_codes(&codes, n, k, stride);
        assert_eq!(packed.len(), 64 * stride);
        for row in 0..64 {
            let column = row / 32 * 32 + packed_column(row % 32);
            let got = &packed[row * stride..][..stride];
            let expected: Vec<i8> = if column < n { codes[column * k..][..k].to_vec() } else { vec![0; k] };
            assert_eq!(got[..k], expected[..], "row {row}");
            assert!(got[k..].iter().all(|&x| x == 0));
        }
    }
}
