//! Products with 65 to 128 inputs. The inputs of 32 rows fill four tiles, which are loaded once and
//! multiplied with all panels of a block.

use std::ops::Range;

use super::super::avx512::COLUMNS;
use super::product::{Accumulators, GROUP_BYTES, GROUPS, Multiply, Operands, ROWS, STRIDE};
use super::tile::{Config, Configured, ROW_BYTES, Shape, TILE_ROWS, Tiles};

/// Tiles for products with 65 to 128 inputs.
///
/// Tiles 0 and 1 hold accumulators of the first and the second 16 rows, 2 and 3 the weights of a step, 4 and
/// 5 the first 64 inputs of the rows, and 6 and 7 the rest.
pub(super) struct Resident<T: Tiles> {
    tiles: Configured<T>,
    /// Groups of four inputs after the first 64.
    rest: usize,
}

impl<T: Tiles> Resident<T> {
    /// Whether `groups` groups of four inputs fill one step and a part of another.
    pub(super) fn fits(groups: usize) -> bool {
        (GROUPS + 1..=2 * GROUPS).contains(&groups)
    }

    /// Configures `tiles` for `groups` groups of inputs.
    ///
    /// # Panics
    /// Unless [`Resident::fits`].
    pub(super) fn new(tiles: T, groups: usize) -> Resident<T> {
        assert!(Self::fits(groups), "{groups} groups");
        let rest = groups - GROUPS;
        let mut shapes = [Shape::FULL; 8];
        shapes[3] = Shape { rows: rest, row_bytes: ROW_BYTES };
        shapes[6] = Shape { rows: TILE_ROWS, row_bytes: 4 * rest };
        shapes[7] = shapes[6];
        Resident { tiles: Configured::new(tiles, &Config::new(shapes)), rest }
    }
}

impl<T: Tiles> Multiply for Resident<T> {
    /// Loads the inputs, which stay in the tiles until the next call.
    #[inline(always)]
    fn take_rows(&mut self, operands: Operands<'_>) {
        let Operands { input, stride, rows, .. } = operands;
        let (tiles, second) = (self.tiles.tiles(), TILE_ROWS * stride);
        operands.check(if rows > TILE_ROWS { ROWS } else { TILE_ROWS }, GROUPS + self.rest);
        // SAFETY: `Resident::new` has configured the tiles, which lie within the inputs by the check.
        unsafe {
            tiles.load::<4, _>(input, 0, stride);
            tiles.load::<6, _>(input, ROW_BYTES, stride);
            if rows > TILE_ROWS {
                tiles.load::<5, _>(input, second, stride);
                tiles.load::<7, _>(input, second + ROW_BYTES, stride);
            }
        }
    }

    #[inline(always)]
    fn multiply<const TWO: bool, const PASS: bool>(
        &mut self,
        operands: Operands<'_>,
        out: &mut Accumulators,
        mut after: impl FnMut(Range<usize>),
    ) {
        let (tiles, groups) = (self.tiles.tiles(), GROUPS + self.rest);
        let (out, Operands { panel, initial, .. }) = (out.0.as_flattened_mut(), operands);
        operands.check(TILE_ROWS, groups);
        for half in 0..COLUMNS / TILE_ROWS {
            let (columns, bytes) = (half * TILE_ROWS, half * ROW_BYTES);
            // SAFETY: `Resident::new` has configured the tiles. Both tiles of weights lie within the panel by
            // the check, a stride of 0 loads the same 16 columns 16 times, and `out` holds 2 by 2 tiles,
            // whose rows are `STRIDE` bytes apart.
            unsafe {
                tiles.load::<0, _>(initial, columns, 0);
                tiles.load::<2, _>(panel, bytes, GROUP_BYTES);
                tiles.dot::<0, 4, 2>();
                if TWO {
                    tiles.load::<1, _>(initial, columns, 0);
                    tiles.dot::<1, 5, 2>();
                }
                tiles.load::<3, _>(panel, GROUPS * GROUP_BYTES + bytes, GROUP_BYTES);
                tiles.dot::<0, 6, 3>();
                tiles.store::<0, _>(out, columns, STRIDE);
                if TWO {
                    tiles.dot::<1, 7, 3>();
                    tiles.store::<1, _>(out, TILE_ROWS * COLUMNS + columns, STRIDE);
                }
            }
            after(half * groups / 2..(half + 1) * groups / 2);
        }
    }
}
