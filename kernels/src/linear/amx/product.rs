//! Accumulators of up to 32 rows by one panel of 32 columns: 2 by 2 tiles of 16 by 16.
//!
//! A panel of packed weights has, for each group of four inputs, 16 columns in each of two lines of 64 bytes. These
//! lines are the rows of two tiles. A step multiplies up to 16 groups.

use std::ops::Range;

use super::super::avx512::COLUMNS;
use super::tile::{Config, ROW_BYTES, Shape, TILE_ROWS, Tiles};

/// The most rows of a product.
pub(super) const ROWS: usize = 2 * TILE_ROWS;

/// The most groups of a step.
pub(super) const GROUPS: usize = ROW_BYTES / 4;

/// Bytes of weights of a group.
pub(super) const GROUP_BYTES: usize = 4 * COLUMNS;

/// Bytes from one row of accumulators to the next.
pub(super) const STRIDE: usize = 4 * COLUMNS;

/// Accumulators of a product. The rows are whole cache lines.
#[repr(C, align(1024))]
pub(super) struct Accumulators(pub(super) [[i32; COLUMNS]; ROWS]);

/// How inputs are divided into steps, and the shapes of the tiles.
///
/// Tiles 0 to 3 hold accumulators: tile `2 i + j` has rows `16 i..` and columns `16 j..`. If all steps have the
/// same number of groups, tiles 4 and 5 hold inputs and tiles 6 and 7 weights. If the last step has fewer, it
/// needs tiles of other shapes: tiles 4 and 6 hold the operands of full steps, tiles 5 and 7 those of the last
/// step.
pub(super) struct Steps {
    /// Steps of `groups` groups.
    count: usize,
    groups: usize,
    /// Groups of one more step, or 0.
    rest: usize,
}

impl Steps {
    /// Steps over `groups` groups of inputs.
    pub(super) fn new(groups: usize) -> Steps {
        match groups {
            // Without inputs no step is made, but tiles need a shape.
            0 => Steps { count: 0, groups: 1, rest: 0 },
            1..GROUPS => Steps { count: 1, groups, rest: 0 },
            _ => Steps { count: groups / GROUPS, groups: GROUPS, rest: groups % GROUPS },
        }
    }

    /// The configuration of the tiles.
    pub(super) fn config(&self) -> Config {
        let input = |groups| Shape { rows: TILE_ROWS, row_bytes: 4 * groups };
        let weights = |groups| Shape { rows: groups, row_bytes: ROW_BYTES };
        let second = if self.rest > 0 { self.rest } else { self.groups };
        let operands = [input(self.groups), input(second), weights(self.groups), weights(second)];
        let mut shapes = [Shape::FULL; 8];
        shapes[4..].copy_from_slice(&operands);
        Config::new(shapes)
    }
}

/// The operands of a product.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// Inputs from the first row on: 16 rows, or 32 rows if more than 16 are asked for.
    pub(super) input: &'a [u8],
    /// Bytes from one row of the input to the next.
    pub(super) stride: usize,
    /// The rows asked for, 1 to 32.
    pub(super) rows: usize,
    pub(super) panel: &'a [i8],
    /// The initial accumulator of each column.
    pub(super) initial: &'a [i32; COLUMNS],
}

impl<'a> Operands<'a> {
    /// The operands from step `step` on, of [`GROUPS`] groups each.
    #[inline(always)]
    fn at_step(self, step: usize) -> Operands<'a> {
        let (input, panel) = (&self.input[step * ROW_BYTES..], &self.panel[step * GROUPS * GROUP_BYTES..]);
        Operands { input, panel, ..self }
    }
}

/// Computes the accumulators of the rows asked for; those of other rows may have any value. `tiles` have the
/// configuration of `steps`. Calls `after` with the groups of each step.
#[inline(always)]
pub(super) fn product<T: Tiles>(
    tiles: &mut T,
    steps: &Steps,
    operands: Operands<'_>,
    out: &mut Accumulators,
    after: impl FnMut(Range<usize>),
) {
    if operands.rows > TILE_ROWS {
        multiply::<T, true>(tiles, steps, operands, out, after);
    } else {
        multiply::<T, false>(tiles, steps, operands, out, after);
    }
}

/// [`product`]. `TWO` says whether there is a second row of tiles.
#[inline(always)]
fn multiply<T: Tiles, const TWO: bool>(
    tiles: &mut T,
    steps: &Steps,
    operands: Operands<'_>,
    out: &mut Accumulators,
    mut after: impl FnMut(Range<usize>),
) {
    // A stride of 0 loads the same row 16 times.
    tiles.load::<0, _>(operands.initial, 0);
    tiles.load::<1, _>(&operands.initial[16..], 0);
    if TWO {
        tiles.load::<2, _>(operands.initial, 0);
        tiles.load::<3, _>(&operands.initial[16..], 0);
    }
    for i in 0..steps.count {
        if steps.rest == 0 {
            step::<T, 4, 5, 6, 7, TWO>(tiles, operands.at_step(i));
        } else {
            step::<T, 4, 4, 6, 6, TWO>(tiles, operands.at_step(i));
        }
        after(i * GROUPS..i * GROUPS + steps.groups);
    }
    if steps.rest > 0 {
        step::<T, 5, 5, 7, 7, TWO>(tiles, operands.at_step(steps.count));
        after(steps.count * GROUPS..steps.count * GROUPS + steps.rest);
    }
    store::<T, TWO>(tiles, out);
}

/// Multiplies the first groups of `operands`, as many as the tiles have. Tiles `A0` and `A1` hold the inputs of
/// the first and the second 16 rows, `B0` and `B1` the weights of the first and the second 16 columns. `A0` may
/// be `A1`, and `B0` may be `B1` at the cost of one more load.
#[inline(always)]
fn step<T: Tiles, const A0: usize, const A1: usize, const B0: usize, const B1: usize, const TWO: bool>(
    tiles: &mut T,
    Operands { input, stride, panel, .. }: Operands<'_>,
) {
    tiles.load::<A0, _>(input, stride);
    tiles.load::<B0, _>(panel, GROUP_BYTES);
    tiles.dot::<0, A0, B0>();
    tiles.load::<B1, _>(&panel[ROW_BYTES..], GROUP_BYTES);
    tiles.dot::<1, A0, B1>();
    if TWO {
        tiles.load::<A1, _>(&input[TILE_ROWS * stride..], stride);
        tiles.dot::<3, A1, B1>();
        if B0 == B1 {
            tiles.load::<B0, _>(panel, GROUP_BYTES);
        }
        tiles.dot::<2, A1, B0>();
    }
}

/// Stores the accumulators.
#[inline(always)]
fn store<T: Tiles, const TWO: bool>(tiles: &mut T, out: &mut Accumulators) {
    let out = out.0.as_flattened_mut();
    tiles.store::<0, _>(out, STRIDE);
    tiles.store::<1, _>(&mut out[16..], STRIDE);
    if TWO {
        tiles.store::<2, _>(&mut out[TILE_ROWS * COLUMNS..], STRIDE);
        tiles.store::<3, _>(&mut out[TILE_ROWS * COLUMNS + 16..], STRIDE);
    }
}
