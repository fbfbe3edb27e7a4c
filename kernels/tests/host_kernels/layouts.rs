//! Which elements the lanes of a product hold after the permutations that kernels pack by.

/// Column of the weight's packed row `row` within a group of 32 (`gemm.cu`).
fn packed_column(row: usize) -> usize {
    let (j, c) = (row / 8, row % 8);
    8 * (c >> 1) + 2 * j + (c & 1)
}

#[test]
fn the_rows_of_a_group_are_its_columns_once_each() {
    let mut columns: Vec<usize> = (0..32).map(packed_column).collect();
    assert_ne!(columns, (0..32).collect::<Vec<_>>());
    columns.sort_unstable();
    assert_eq!(columns, (0..32).collect::<Vec<_>>());
}

/// Of tile `j`, a lane holds the sums of tile columns `2 (lane % 4)` and the next.
#[test]
fn a_lane_holds_eight_consecutive_columns() {
    for lane in 0..32 {
        let held = (0..4).flat_map(|j| [0, 1].map(|b| packed_column(8 * j + 2 * (lane % 4) + b)));
        let expected: Vec<usize> = (0..8).map(|i| 8 * (lane % 4) + i).collect();
        assert_eq!(held.collect::<Vec<_>>(), expected, "lane {lane}");
    }
}
