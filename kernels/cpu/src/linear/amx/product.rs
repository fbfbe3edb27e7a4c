//! Accumulators of up to 32 rows by one panel of 32 columns: 2 by 2 tiles of 16 by 16. There is room for
//! [`FEW`] more rows.
//!
//! A panel of packed weights has, for each group of four inputs, 16 columns in each of two lines of 64 bytes.
//! These lines are the rows of two tiles. A step multiplies up to 16 groups.

use std::ops::Range;

use super::super::avx512::COLUMNS;
use super::few_rows::FEW;
use super::tile::{Config, Configured, ROW_BYTES, Shape, TILE_ROWS, Tiles};

/// The most rows on tiles.
pub(super) const ROWS: usize = 2 * TILE_ROWS;

/// The most groups of a step.
pub(super) const GROUPS: usize = ROW_BYTES / 4;

/// Bytes of weights of a group.
pub(super) const GROUP_BYTES: usize = 4 * COLUMNS;

/// Bytes from one row of accumulators to the next.
pub(super) const STRIDE: usize = 4 * COLUMNS;

/// Accumulators of a product. The rows are whole cache lines.
#[repr(C, align(1024))]
pub(super) struct Accumulators(pub(super) [[i32; COLUMNS]; ROWS + FEW]);

impl Accumulators {
    /// Accumulators with this value.
    pub(super) fn new(value: i32) -> Accumulators {
        Accumulators([[value; COLUMNS]; ROWS + FEW])
    }
}

/// How inputs are divided into steps, and the shapes of the tiles.
///
/// Tiles 0 to 3 hold accumulators: tile `2 i + j` has rows `16 i..` and columns `16 j..`. If all steps have
/// the same number of groups, tiles 4 and 5 hold inputs and tiles 6 and 7 weights. If the last step has
/// fewer, it needs tiles of other shapes: tiles 4 and 6 hold the operands of full steps, tiles 5 and 7 those
/// of the last step.
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
    /// Inputs from the first row on. Tiles need 16 rows, or 32 if more than 16 are asked for.
    pub(super) input: &'a [u8],
    /// Bytes from one row of the input to the next.
    pub(super) stride: usize,
    /// The rows asked for. Tiles take 1 to [`ROWS`]; `FewRows::split` removes up to [`FEW`] more.
    pub(super) rows: usize,
    pub(super) panel: &'a [i8],
    /// The initial accumulator of each column.
    pub(super) initial: &'a [i32; COLUMNS],
}

impl Operands<'_> {
    /// Checks that the tiles of `rows` rows and `groups` groups lie within the inputs and the weights.
    ///
    /// # Panics
    /// If they do not.
    #[inline(always)]
    pub(super) fn check(&self, rows: usize, groups: usize) {
        Shape { rows, row_bytes: 4 * groups }.check(self.stride, self.input.len());
        assert!(groups * GROUP_BYTES <= self.panel.len(), "a panel has {groups} groups");
    }
}

/// How tiles of weights are loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WeightLoad {
    /// They stay in the first-level cache for [`FewRows`](super::few_rows::FewRows).
    Keep,
    /// They displace nothing in the first-level cache, where the inputs of a product's rows then stay for all
    /// panels.
    Pass,
}

impl WeightLoad {
    /// The most groups of inputs, 512 inputs, for which the first-level cache has room beside the weights.
    const BESIDE_WEIGHTS: usize = 8 * GROUPS;

    /// The faster way for products of `groups` groups of inputs; `few` says whether there are rows beyond
    /// full tiles.
    #[inline(always)]
    pub(super) fn of(groups: usize, few: bool) -> WeightLoad {
        if few || groups <= WeightLoad::BESIDE_WEIGHTS { WeightLoad::Keep } else { WeightLoad::Pass }
    }
}

/// Configured tiles that multiply rows of inputs with panels of weights.
pub(super) trait Multiply {
    /// Takes the rows of `operands` for the products that follow. Tiles that load inputs in each product
    /// ignore it.
    ///
    /// # Panics
    /// If the operands are too short.
    #[inline(always)]
    fn take_rows(&mut self, _operands: Operands<'_>) {}

    /// Computes the accumulators of the rows asked for, which were taken last; those of other rows may have
    /// any value. Calls `after` with the groups of each step.
    ///
    /// # Panics
    /// If the operands are too short.
    #[inline(always)]
    fn product(
        &mut self,
        operands: Operands<'_>,
        weights: WeightLoad,
        out: &mut Accumulators,
        after: impl FnMut(Range<usize>),
    ) {
        assert!(operands.rows <= ROWS, "{} rows on tiles", operands.rows);
        match (operands.rows > TILE_ROWS, weights) {
            (true, WeightLoad::Keep) => self.multiply::<true, false>(operands, out, after),
            (true, WeightLoad::Pass) => self.multiply::<true, true>(operands, out, after),
            (false, WeightLoad::Keep) => self.multiply::<false, false>(operands, out, after),
            (false, WeightLoad::Pass) => self.multiply::<false, true>(operands, out, after),
        }
    }

    /// [`Multiply::product`]. `TWO` says whether there is a second row of tiles, `PASS` whether weights pass.
    fn multiply<const TWO: bool, const PASS: bool>(
        &mut self,
        operands: Operands<'_>,
        out: &mut Accumulators,
        after: impl FnMut(Range<usize>),
    );
}

/// Tiles for products of any number of inputs, with the configuration of `steps`.
pub(super) struct Products<T: Tiles> {
    tiles: Configured<T>,
    steps: Steps,
}

impl<T: Tiles> Products<T> {
    /// Configures `tiles` for `groups` groups of inputs.
    pub(super) fn new(tiles: T, groups: usize) -> Products<T> {
        let steps = Steps::new(groups);
        Products { tiles: Configured::new(tiles, &steps.config()), steps }
    }
}

impl<T: Tiles> Multiply for Products<T> {
    #[inline(always)]
    fn multiply<const TWO: bool, const PASS: bool>(
        &mut self,
        operands: Operands<'_>,
        out: &mut Accumulators,
        mut after: impl FnMut(Range<usize>),
    ) {
        let Products { tiles, steps } = self;
        let (tiles, full) = (tiles.tiles(), steps.count * steps.groups);
        operands.check(if TWO { ROWS } else { TILE_ROWS }, full + steps.rest);
        // SAFETY: `Products::new` has configured the tiles for the steps: 4 to 7 alike without a rest,
        // otherwise 4 and 6 for full steps and 5 and 7 for the rest. All tiles of the steps lie within the
        // operands by the check.
        unsafe {
            start::<T, TWO>(tiles, operands.initial);
            for i in 0..steps.count {
                if steps.rest == 0 {
                    step::<T, 4, 5, 6, 7, TWO, PASS>(tiles, operands, i);
                } else {
                    step::<T, 4, 4, 6, 6, TWO, PASS>(tiles, operands, i);
                }
                after(i * GROUPS..i * GROUPS + steps.groups);
            }
            if steps.rest > 0 {
                step::<T, 5, 5, 7, 7, TWO, PASS>(tiles, operands, steps.count);
                after(full..full + steps.rest);
            }
            store::<T, TWO>(tiles, out);
        }
    }
}

/// Loads the initial accumulators.
///
/// # Safety
/// The tiles are configured by [`Products::new`].
#[inline(always)]
unsafe fn start<T: Tiles, const TWO: bool>(tiles: &mut T, initial: &[i32; COLUMNS]) {
    // SAFETY: `Products::new` has configured tiles 0 to 3 as 16 by 16 accumulators, and a stride of 0 loads
    // the same 16 columns 16 times.
    unsafe {
        tiles.load::<0, _>(initial, 0, 0);
        tiles.load::<1, _>(initial, 16, 0);
        if TWO {
            tiles.load::<2, _>(initial, 0, 0);
            tiles.load::<3, _>(initial, 16, 0);
        }
    }
}

/// Multiplies the groups of step `step`. Tiles `A0` and `A1` hold the inputs of the first and the second 16
/// rows, `B0` and `B1` the weights of the first and the second 16 columns. `A0` may be `A1`, and `B0` may be
/// `B1` at the cost of one more load.
///
/// # Safety
/// [`Products::new`] has configured the tiles, `A0` to `B1` for the groups of this step, and all tiles of the
/// step lie within the operands.
#[inline(always)]
unsafe fn step<
    T: Tiles,
    const A0: usize,
    const A1: usize,
    const B0: usize,
    const B1: usize,
    const TWO: bool,
    const PASS: bool,
>(
    tiles: &mut T,
    Operands { input, stride, panel, .. }: Operands<'_>,
    step: usize,
) {
    let (input_at, panel_at) = (step * ROW_BYTES, step * GROUPS * GROUP_BYTES);
    // SAFETY: promised by the caller.
    unsafe {
        tiles.load::<A0, _>(input, input_at, stride);
        load_weights::<T, B0, PASS>(tiles, panel, panel_at);
        tiles.dot::<0, A0, B0>();
        load_weights::<T, B1, PASS>(tiles, panel, panel_at + ROW_BYTES);
        tiles.dot::<1, A0, B1>();
        if TWO {
            tiles.load::<A1, _>(input, input_at + TILE_ROWS * stride, stride);
            tiles.dot::<3, A1, B1>();
            if B0 == B1 {
                load_weights::<T, B0, PASS>(tiles, panel, panel_at);
            }
            tiles.dot::<2, A1, B0>();
        }
    }
}

/// Loads tile `B` from byte `at` of `panel` on.
///
/// # Safety
/// As for [`Tiles::load`].
#[inline(always)]
unsafe fn load_weights<T: Tiles, const B: usize, const PASS: bool>(tiles: &mut T, panel: &[i8], at: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        if PASS {
            tiles.load_passing::<B, _>(panel, at, GROUP_BYTES);
        } else {
            tiles.load::<B, _>(panel, at, GROUP_BYTES);
        }
    }
}

/// Stores the accumulators.
///
/// # Safety
/// The tiles are configured by [`Products::new`].
#[inline(always)]
unsafe fn store<T: Tiles, const TWO: bool>(tiles: &mut T, out: &mut Accumulators) {
    let out = out.0.as_flattened_mut();
    // SAFETY: `Products::new` has configured tiles 0 to 3 as 16 by 16 accumulators, and `out` holds 2 by 2 of
    // them, whose rows are `STRIDE` bytes apart.
    unsafe {
        tiles.store::<0, _>(out, 0, STRIDE);
        tiles.store::<1, _>(out, 16, STRIDE);
        if TWO {
            tiles.store::<2, _>(out, TILE_ROWS * COLUMNS, STRIDE);
            tiles.store::<3, _>(out, TILE_ROWS * COLUMNS + 16, STRIDE);
        }
    }
}
