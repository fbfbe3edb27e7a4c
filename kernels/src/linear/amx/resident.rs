//! Products with 65 to 128 inputs. The inputs of 32 rows fill four tiles, which are loaded once and multiplied with all
//! panels of a block.

use std::ops::Range;

use super::super::avx512::COLUMNS;
use super::product::{Accumulators, GROUP_BYTES, GROUPS, Operands, STRIDE};
use super::tile::{Config, ROW_BYTES, Shape, TILE_ROWS, Tiles};

/// How the tiles are used: 0 and 1 hold accumulators of the first and the second 16 rows, 2 and 3 the weights of a step,
/// 4 and 5 the first 64 inputs of the rows, and 6 and 7 the rest.
pub(super) struct Resident {
    /// Groups of four inputs after the first 64.
    rest: usize,
}

impl Resident {
    /// For `groups` groups of four inputs; `None` unless they fill one step and a part of another.
    pub(super) fn new(groups: usize) -> Option<Resident> {
        let rest = groups.checked_sub(GROUPS)?;
        (1..=GROUPS).contains(&rest).then_some(Resident { rest })
    }

    /// The configuration of the tiles.
    pub(super) fn config(&self) -> Config {
        let mut shapes = [Shape::FULL; 8];
        shapes[3] = Shape { rows: self.rest, row_bytes: ROW_BYTES };
        shapes[6] = Shape { rows: TILE_ROWS, row_bytes: 4 * self.rest };
        shapes[7] = shapes[6];
        Config::new(shapes)
    }

    /// Loads the inputs, which stay in the tiles until the next call.
    #[inline(always)]
    pub(super) fn load<T: Tiles>(&self, tiles: &mut T, Operands { input, stride, rows, .. }: Operands<'_>) {
        tiles.load::<4, _>(input, stride);
        tiles.load::<6, _>(&input[ROW_BYTES..], stride);
        if rows > TILE_ROWS {
            let second = &input[TILE_ROWS * stride..];
            tiles.load::<5, _>(second, stride);
            tiles.load::<7, _>(&second[ROW_BYTES..], stride);
        }
    }

    /// As [`product`](super::product::product), with the inputs that are loaded.
    #[inline(always)]
    pub(super) fn product<T: Tiles>(
        &self,
        tiles: &mut T,
        operands: Operands<'_>,
        out: &mut Accumulators,
        after: impl FnMut(Range<usize>),
    ) {
        if operands.rows > TILE_ROWS {
            self.multiply::<T, true>(tiles, operands, out, after);
        } else {
            self.multiply::<T, false>(tiles, operands, out, after);
        }
    }

    /// [`Resident::product`]. `TWO` says whether there is a second row of tiles.
    #[inline(always)]
    fn multiply<T: Tiles, const TWO: bool>(
        &self,
        tiles: &mut T,
        Operands { panel, initial, .. }: Operands<'_>,
        out: &mut Accumulators,
        mut after: impl FnMut(Range<usize>),
    ) {
        let out = out.0.as_flattened_mut();
        let groups = GROUPS + self.rest;
        for half in 0..COLUMNS / TILE_ROWS {
            let (columns, bytes) = (half * TILE_ROWS, half * ROW_BYTES);
            // A stride of 0 loads the same row 16 times.
            tiles.load::<0, _>(&initial[columns..], 0);
            tiles.load::<2, _>(&panel[bytes..], GROUP_BYTES);
            tiles.dot::<0, 4, 2>();
            if TWO {
                tiles.load::<1, _>(&initial[columns..], 0);
                tiles.dot::<1, 5, 2>();
            }
            tiles.load::<3, _>(&panel[GROUPS * GROUP_BYTES + bytes..], GROUP_BYTES);
            tiles.dot::<0, 6, 3>();
            tiles.store::<0, _>(&mut out[columns..], STRIDE);
            if TWO {
                tiles.dot::<1, 7, 3>();
                tiles.store::<1, _>(&mut out[TILE_ROWS * COLUMNS + columns..], STRIDE);
            }
            after(half * groups / 2..(half + 1) * groups / 2);
        }
    }
}
