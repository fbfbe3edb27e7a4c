//! A few products on given tiles, compared with the emulation. It runs once in a process before it uses the
//! processor's tiles.

use std::ops::Range;

use swinq_numerics::odd_lines;

use super::super::avx512::{COLUMNS, LAYOUT};
use super::emulated::Emulated;
use super::product::{Accumulators, Multiply, Operands, Products, WeightLoad};
use super::resident::Resident;
use super::tile::{TILE_ROWS, Tiles};
use crate::buffer::AlignedBuf;

/// Rows and inputs: one and two rows of tiles; less than a step, whole steps, and steps with a rest.
const SHAPES: [(usize, usize); 10] =
    [(32, 32), (32, 64), (32, 96), (16, 96), (7, 64), (17, 32), (32, 4), (31, 384), (1, 100), (20, 0)];

/// Compares the products of the tiles that `tiles` makes with the emulation.
///
/// # Errors
/// The first product that differs.
pub(super) fn self_test<T: Tiles>(tiles: impl Fn() -> T) -> Result<(), String> {
    for (i, (rows, k)) in SHAPES.into_iter().enumerate() {
        let case = Case::new(rows, k, i as u64 + 1);
        let weights = if i % 2 == 0 { WeightLoad::Keep } else { WeightLoad::Pass };
        let (got, want) = (case.run(tiles(), weights), case.run(Emulated::new(), weights));
        for row in 0..rows {
            if let Some(column) = (0..COLUMNS).find(|&c| got.0[row][c] != want.0[row][c]) {
                let (got, want) = (got.0[row][column], want.0[row][column]);
                let product = format!("a product of {rows} rows and {k} inputs");
                return Err(format!(
                    "{product} has {got} in row {row}, column {column}, where {want} is right"
                ));
            }
        }
    }
    Ok(())
}

/// The operands of a product.
pub(super) struct Case {
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) stride: usize,
    pub(super) input: AlignedBuf,
    pub(super) panel: AlignedBuf,
    pub(super) initial: [i32; COLUMNS],
}

impl Case {
    /// Any bytes, among them the extremes of both operands in the same places.
    pub(super) fn new(rows: usize, k: usize, seed: u64) -> Case {
        let stride = odd_lines(k);
        let mut random = Random(seed);
        let mut input = AlignedBuf::new(rows.next_multiple_of(TILE_ROWS) * stride);
        let mut panel = AlignedBuf::new(LAYOUT.panel_len(k));
        input.as_u8_mut().fill_with(|| random.byte());
        panel.as_u8_mut().fill_with(|| random.byte());
        // The first two groups of row 0 and of column 0.
        for i in 0..k.min(8) {
            input.as_u8_mut()[i] = 255;
            panel.as_u8_mut()[i / 4 * 4 * COLUMNS + i % 4] = if k > 64 { 127 } else { 128 };
        }
        let initial = std::array::from_fn(|_| i32::from(random.byte()) * -4099);
        Case { rows, k, stride, input, panel, initial }
    }

    /// The accumulators of `tiles`.
    pub(super) fn run<T: Tiles>(&self, tiles: T, weights: WeightLoad) -> Accumulators {
        let groups = LAYOUT.groups(self.k);
        let mut seen = 0;
        let out = run(tiles, groups, self.operands(), weights, |of_step| {
            assert_eq!(of_step.start, seen, "steps follow each other");
            seen = of_step.end;
        });
        assert_eq!(seen, groups, "steps cover all inputs");
        out
    }

    pub(super) fn operands(&self) -> Operands<'_> {
        Operands {
            input: self.input.as_u8(),
            stride: self.stride,
            rows: self.rows,
            panel: &self.panel.as_i8()[..LAYOUT.panel_len(self.k)],
            initial: &self.initial,
        }
    }
}

/// The accumulators of `tiles`, which are configured for `groups` groups of inputs. Calls `after` with the
/// groups of each step.
pub(super) fn run<T: Tiles>(
    tiles: T,
    groups: usize,
    operands: Operands<'_>,
    weights: WeightLoad,
    after: impl FnMut(Range<usize>),
) -> Accumulators {
    fn product(
        mut tiles: impl Multiply,
        operands: Operands<'_>,
        weights: WeightLoad,
        after: impl FnMut(Range<usize>),
    ) -> Accumulators {
        let mut out = Accumulators::new(i32::MIN);
        tiles.take_rows(operands);
        tiles.product(operands, weights, &mut out, after);
        out
    }
    if Resident::<T>::fits(groups) {
        product(Resident::new(tiles, groups), operands, weights, after)
    } else {
        product(Products::new(tiles, groups), operands, weights, after)
    }
}

/// Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}
