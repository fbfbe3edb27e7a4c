//! The epilogue of a tile over vector registers: from accumulators to stored values, for every store and any
//! number of columns.

use std::marker::PhantomData;

use swinq_numerics::{Gelu, Quantizer};

use super::dest::{DROPPED, Dest};
use super::epilogue::Epilogue;
use super::spec::Store;
use crate::lanes::Lanes;
use crate::pool::Parts;
use crate::rows::{AddToResidual, Cast, ToF32};

/// An accumulator type.
pub(super) trait Accumulator: Copy {
    /// A register of accumulators as f32.
    ///
    /// # Panics
    /// If `from` holds less than a register.
    fn load<L: Lanes>(lanes: L, from: &[Self]) -> L::F;
}

impl Accumulator for i32 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[i32]) -> L::F {
        assert!(from.len() >= L::N);
        // SAFETY: in bounds by the assertion.
        lanes.float(unsafe { lanes.read_i(from.as_ptr().cast()) })
    }
}

impl Accumulator for f32 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f32]) -> L::F {
        lanes.load(from)
    }
}

/// Stores the rows of panel `panel` that start at `starts` in `dest`, from their accumulators in `tile`.
#[inline(always)]
pub(super) fn finish<L: Lanes, A: Accumulator, const COLUMNS: usize>(
    lanes: L,
    epilogue: &Epilogue,
    tile: &[[A; COLUMNS]],
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    match (epilogue.output.is_some(), epilogue.gelu) {
        (false, None) => {
            panel_columns::<L, A, Identity, COLUMNS, false>(lanes, epilogue, tile, starts, panel, dest)
        }
        (false, Some(Gelu::Erf)) => {
            panel_columns::<L, A, Erf, COLUMNS, false>(lanes, epilogue, tile, starts, panel, dest)
        }
        (false, Some(Gelu::Quadratic)) => {
            panel_columns::<L, A, Quadratic, COLUMNS, false>(lanes, epilogue, tile, starts, panel, dest)
        }
        (true, None) => {
            panel_columns::<L, A, Identity, COLUMNS, true>(lanes, epilogue, tile, starts, panel, dest)
        }
        (true, Some(Gelu::Erf)) => {
            panel_columns::<L, A, Erf, COLUMNS, true>(lanes, epilogue, tile, starts, panel, dest)
        }
        (true, Some(Gelu::Quadratic)) => {
            panel_columns::<L, A, Quadratic, COLUMNS, true>(lanes, epilogue, tile, starts, panel, dest)
        }
    }
}

/// The function that follows the bias. It is a type, so that the epilogue is compiled for each.
pub(super) trait Activation {
    fn of<L: Lanes>(lanes: L, x: L::F) -> L::F;
}

pub(super) struct Identity;

impl Activation for Identity {
    #[inline(always)]
    fn of<L: Lanes>(_: L, x: L::F) -> L::F {
        x
    }
}

/// [`Gelu::Erf`].
pub(super) struct Erf;

impl Activation for Erf {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, x: L::F) -> L::F {
        lanes.gelu(x)
    }
}

/// [`Gelu::Quadratic`].
pub(super) struct Quadratic;

impl Activation for Quadratic {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, x: L::F) -> L::F {
        lanes.gelu_quadratic(x)
    }
}

/// [`finish`], one register of columns after the other. `OUTPUT` says whether the linear has a quantizer
/// before its bias.
#[inline(always)]
fn panel_columns<L: Lanes, A: Accumulator, F: Activation, const COLUMNS: usize, const OUTPUT: bool>(
    lanes: L,
    epilogue: &Epilogue,
    tile: &[[A; COLUMNS]],
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    let first = panel * COLUMNS;
    for column in (first..epilogue.n.min(first + COLUMNS)).step_by(L::N) {
        let columns = Columns::<L, F, OUTPUT>::new(lanes, epilogue, first, column);
        columns.finish(lanes, epilogue, tile, starts, dest);
    }
}

/// One register of columns of a panel, with their part of the epilogue in registers.
struct Columns<L: Lanes, F: Activation, const OUTPUT: bool> {
    /// The first column.
    first: usize,
    /// The same, counted from the panel's first column.
    in_panel: usize,
    /// Columns that exist: less than a register at the end of the result.
    count: usize,
    factor: L::F,
    bias: L::F,
    /// Scale of the quantizer before the bias; unused without one.
    scale: L::F,
    activation: PhantomData<F>,
}

impl<L: Lanes, F: Activation, const OUTPUT: bool> Columns<L, F, OUTPUT> {
    #[inline(always)]
    fn new(lanes: L, epilogue: &Epilogue, panel_first: usize, first: usize) -> Self {
        Columns {
            first,
            in_panel: first - panel_first,
            count: (epilogue.n - first).min(L::N),
            factor: lanes.load(&epilogue.factor[first..]),
            bias: lanes.load(&epilogue.bias[first..]),
            scale: lanes.splat(epilogue.output.map_or(1.0, Quantizer::scale)),
            activation: PhantomData,
        }
    }

    /// Stores all rows.
    #[inline(always)]
    fn finish<A: Accumulator, const COLUMNS: usize>(
        &self,
        lanes: L,
        epilogue: &Epilogue,
        tile: &[[A; COLUMNS]],
        starts: &[usize],
        dest: &Dest<'_>,
    ) {
        match (dest, &epilogue.store) {
            (Dest::F32(out), Store::Fake(_)) => {
                let [recip, zero_point] = self.codes(lanes, epilogue);
                let scale = lanes.load(&epilogue.quantizers.scales[self.first..]);
                self.rows(lanes, tile, starts, PutFake { out, recip, zero_point, scale });
            }
            (Dest::F32(out), _) => self.rows(lanes, tile, starts, PutCast { out, cast: ToF32 }),
            (Dest::Codes(out), Store::Codes(_)) => {
                let [recip, zero_point] = self.codes(lanes, epilogue);
                self.rows(lanes, tile, starts, PutCodes { out, recip, zero_point });
            }
            (Dest::Residual(residual, _), &Store::Residual { branch, shortcut }) => {
                let cast = AddToResidual { branch, shortcut };
                self.rows(lanes, tile, starts, PutCast { out: residual, cast });
            }
            _ => unreachable!("`Dest::new` refuses a destination that does not match the store"),
        }
    }

    /// The reciprocal scales and the zero points of the columns.
    #[inline(always)]
    fn codes(&self, lanes: L, epilogue: &Epilogue) -> [L::F; 2] {
        let recip = lanes.load(&epilogue.quantizers.recips[self.first..]);
        [recip, lanes.load(&epilogue.quantizers.zero_points[self.first..])]
    }

    /// Stores each row by `put`.
    #[inline(always)]
    fn rows<A: Accumulator, P: Put<L>, const COLUMNS: usize>(
        &self,
        lanes: L,
        tile: &[[A; COLUMNS]],
        starts: &[usize],
        put: P,
    ) {
        for (row, &start) in tile.iter().zip(starts) {
            if start != DROPPED {
                let value = self.value(lanes, A::load(lanes, &row[self.in_panel..]));
                put.put(lanes, start + self.first, self.count, value);
            }
        }
    }

    /// Converts accumulators to values after bias and activation.
    #[inline(always)]
    fn value(&self, lanes: L, acc: L::F) -> L::F {
        let value = if OUTPUT {
            let code = lanes.round(lanes.clamp(lanes.mul(acc, self.factor)));
            lanes.fma(lanes.float(code), self.scale, self.bias)
        } else {
            lanes.fma(acc, self.factor, self.bias)
        };
        F::of(lanes, value)
    }
}

/// How one kind of store writes values. It is a type, so that the loop over rows is compiled for each kind.
trait Put<L: Lanes> {
    /// Stores the first `count` lanes of `value` at element `at` of the destination.
    fn put(&self, lanes: L, at: usize, count: usize, value: L::F);
}

/// Stores values as `cast` does.
struct PutCast<'a, C: Cast> {
    out: &'a Parts<'a, C::To>,
    cast: C,
}

impl<L: Lanes, C: Cast> Put<L> for PutCast<'_, C> {
    #[inline(always)]
    fn put(&self, lanes: L, at: usize, count: usize, value: L::F) {
        // SAFETY: tasks write disjoint rows and columns, and `Dest` maps each to its own place.
        self.cast.store(lanes, unsafe { self.out.get(at, count) }, value);
    }
}

/// Stores codes with the reciprocal scale and the zero point of each column.
struct PutCodes<'a, L: Lanes> {
    out: &'a Parts<'a, u8>,
    recip: L::F,
    zero_point: L::F,
}

impl<L: Lanes> Put<L> for PutCodes<'_, L> {
    #[inline(always)]
    fn put(&self, lanes: L, at: usize, count: usize, value: L::F) {
        // SAFETY: as in `PutCast`.
        let out = unsafe { self.out.get(at, count) };
        lanes.store_codes(out, lanes.fma(value, self.recip, self.zero_point));
    }
}

/// Quantizes and dequantizes with the quantizer of each column, and stores f32.
struct PutFake<'a, L: Lanes> {
    out: &'a Parts<'a, f32>,
    recip: L::F,
    zero_point: L::F,
    scale: L::F,
}

impl<L: Lanes> Put<L> for PutFake<'_, L> {
    #[inline(always)]
    fn put(&self, lanes: L, at: usize, count: usize, value: L::F) {
        let code = lanes.round(lanes.clamp(lanes.fma(value, self.recip, self.zero_point)));
        let value = lanes.mul(lanes.sub(lanes.float(code), self.zero_point), self.scale);
        // SAFETY: as in `PutCast`.
        lanes.store(unsafe { self.out.get(at, count) }, value);
    }
}
