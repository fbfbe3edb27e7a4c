//! Checks which elements the lanes of a product hold after the permutation of packed weights, and in which
//! banks rows lie.

use swinq_cuda::ops::linear::pack::{GROUP, pack_codes, packed_column};
use swinq_cuda::ops::linear::{Instruction, Tile};
use swinq_testing::Rng;

use super::gemm::GPU;

/// In tile `j`, a lane holds the sums of tile columns `2 (lane % 4)` and `2 (lane % 4) + 1`.
#[test]
fn a_lane_holds_eight_consecutive_columns() {
    for lane in 0..32 {
        let held = (0..4).flat_map(|j| [0, 1].map(|b| packed_column(8 * j + 2 * (lane % 4) + b)));
        let expected: Vec<usize> = (0..8).map(|i| 8 * (lane % 4) + i).collect();
        assert_eq!(held.collect::<Vec<_>>(), expected, "lane {lane}");
    }
}

/// Every code is at the position that [`packed_column`] gives, and everything else is zero.
#[test]
fn packed_codes_are_all_there() {
    let mut rng = Rng(1);
    for (n, k, stride) in [(1, 1, 16), (31, 16, 16), (32, 48, 64), (33, 40, 48), (96, 96, 96)] {
        let codes: Vec<i8> = rng.bytes(n * k).into_iter().map(|b| b.cast_signed() | 1).collect();
        let packed = pack_codes(&codes, n, k, stride);
        assert_eq!(packed.len(), n.next_multiple_of(GROUP) * stride);
        for (row, bytes) in packed.chunks_exact(stride).enumerate() {
            let column = row / GROUP * GROUP + packed_column(row % GROUP);
            let mut want = codes.get(column * k..(column + 1) * k).map_or(Vec::new(), <[i8]>::to_vec);
            want.resize(stride, 0);
            assert_eq!(bytes, want, "({n}, {k}, {stride}) row {row}");
        }
    }
}

/// The eight 16-byte rows of a matrix load cover the 128 bytes of all banks exactly once.
#[test]
fn rows_of_a_matrix_load_fall_into_different_banks() {
    for k_bytes in [32, 64, 96, 100, 128, 192, 768, 3072] {
        for tile in Tile::candidates(784, 288, k_bytes, GPU) {
            assert_eq!(tile.instruction, Instruction::Mma);
            let mut banks: Vec<usize> = (0..8).map(|row| row * usize::from(tile.depth + 16) % 128).collect();
            banks.sort_unstable();
            assert_eq!(banks, (0..8).map(|i| 16 * i).collect::<Vec<_>>(), "{tile:?}");
        }
    }
}
