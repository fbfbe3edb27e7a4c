//! The output of ops that write whole rows, and how rows are divided among threads.

use swinq_numerics::sizes::check_len;
use swinq_numerics::{PAD, Quantizer, RowMap, RowStore, code_stride};

use crate::lanes::Lanes;
use crate::pool::Parts;

/// The output of an op that writes whole rows; the variant must match its [`RowStore`].
#[derive(Debug)]
pub enum RowOut<'a> {
    /// f32 `[rows, columns]`, for [`RowStore::F32`] and [`RowStore::Fake`].
    F32(&'a mut [f32]),
    /// Codes `[rows, code_stride(columns)]`, for [`RowStore::Codes`].
    Codes(&'a mut [u8]),
}

/// The output of an op, checked against the op's shape; tasks write disjoint ranges of it.
pub(crate) struct RowSink<'a> {
    out: Out<'a>,
    columns: usize,
}

enum Out<'a> {
    F32(Parts<'a, f32>, Option<Quantizer>),
    Codes(Parts<'a, u8>, Quantizer),
}

impl<'a> RowSink<'a> {
    /// The sink of `op`, which writes `[rows, columns]`; `columns` is at most `isize::MAX`.
    ///
    /// # Panics
    /// Unless `out` is the variant that `store` writes and holds exactly that many rows.
    pub(crate) fn new(
        op: &str,
        store: RowStore,
        out: RowOut<'a>,
        rows: usize,
        columns: usize,
    ) -> RowSink<'a> {
        let out = match (store, out) {
            (RowStore::F32, RowOut::F32(out)) => {
                check_len(op, "output", out.len(), &[rows, columns]);
                Out::F32(Parts::new(out), None)
            }
            (RowStore::Fake(quantizer), RowOut::F32(out)) => {
                check_len(op, "output", out.len(), &[rows, columns]);
                Out::F32(Parts::new(out), Some(quantizer))
            }
            (RowStore::Codes(quantizer), RowOut::Codes(out)) => {
                check_len(op, "output of codes", out.len(), &[rows, code_stride(columns)]);
                Out::Codes(Parts::new(out), quantizer)
            }
            (store, out) => {
                let out = if matches!(out, RowOut::F32(_)) { "f32" } else { "codes" };
                panic!("{op}: was prepared to store {store:?} and is given an output of {out}");
            }
        };
        RowSink { out, columns }
    }

    /// Whether codes are stored.
    pub(crate) fn is_codes(&self) -> bool {
        matches!(self.out, Out::Codes(..))
    }

    /// The addresses of columns `from..from + len` of `R` rows from `row` on, and their quantizer, if codes
    /// are stored.
    ///
    /// # Panics
    /// Outside the output.
    #[inline(always)]
    pub(crate) fn codes<const R: usize>(
        &self,
        row: usize,
        from: usize,
        len: usize,
    ) -> Option<([*mut u8; R], Quantizer)> {
        assert!(from + len <= self.columns, "columns {from}+{len} of {}", self.columns);
        let Out::Codes(parts, quantizer) = &self.out else { return None };
        let stride = code_stride(self.columns);
        let first = parts.start_of(row * stride + from, (R - 1) * stride + len);
        let mut rows = [first; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = first.wrapping_add(r * stride);
        }
        Some((rows, *quantizer))
    }

    /// Columns `from..from + len` of row `row`.
    ///
    /// # Safety
    /// No two ranges alive at the same time may overlap.
    ///
    /// # Panics
    /// Outside the output.
    #[inline(always)]
    pub(crate) unsafe fn column_range(&self, row: usize, from: usize, len: usize) -> ColumnRange<'_> {
        assert!(from + len <= self.columns, "columns {from}+{len} of {}", self.columns);
        match &self.out {
            Out::F32(parts, quantizer) => {
                // SAFETY: disjoint by the caller's promise.
                let out = unsafe { parts.get(row * self.columns + from, len) };
                match quantizer {
                    None => ColumnRange::F32(out),
                    Some(quantizer) => ColumnRange::Fake(out, *quantizer),
                }
            }
            Out::Codes(parts, quantizer) => {
                // SAFETY: disjoint by the caller's promise.
                let out = unsafe { parts.get(row * code_stride(self.columns) + from, len) };
                ColumnRange::Codes(out, *quantizer)
            }
        }
    }

    /// Row `row`.
    ///
    /// # Safety
    /// As [`RowSink::column_range`].
    #[inline(always)]
    pub(crate) unsafe fn row(&self, row: usize) -> ColumnRange<'_> {
        // SAFETY: the caller's promise.
        unsafe { self.column_range(row, 0, self.columns) }
    }
}

/// A run of columns of one output row.
pub(crate) enum ColumnRange<'s> {
    F32(&'s mut [f32]),
    Fake(&'s mut [f32], Quantizer),
    Codes(&'s mut [u8], Quantizer),
}

impl ColumnRange<'_> {
    /// Stores zero in every column.
    pub(crate) fn clear(&mut self) {
        match self {
            ColumnRange::F32(out) | ColumnRange::Fake(out, _) => out.fill(0.0),
            ColumnRange::Codes(out, _) => out.fill(128),
        }
    }

    /// Stores `values`, one per column, as the reference defines it.
    pub(crate) fn put_all(&mut self, values: &[f32]) {
        match self {
            ColumnRange::F32(out) => out.copy_from_slice(values),
            ColumnRange::Fake(out, q) => out.iter_mut().zip(values).for_each(|(o, &v)| *o = q.fake(v)),
            ColumnRange::Codes(out, q) => {
                out.iter_mut().zip(values).for_each(|(o, &v)| *o = q.code(v).cast_unsigned() ^ 0x80);
            }
        }
    }
}

impl ColumnRange<'_> {
    /// Stores the lanes of `x` from column `at` on, up to the last column.
    #[inline(always)]
    pub(crate) fn put<L: Lanes>(&mut self, lanes: L, at: usize, x: L::F) {
        match self {
            ColumnRange::F32(out) => ToF32.store(lanes, &mut out[at..], x),
            ColumnRange::Fake(out, q) => ToFake(*q).store(lanes, &mut out[at..], x),
            ColumnRange::Codes(out, q) => ToCodes(*q).store(lanes, &mut out[at..], x),
        }
    }
}

/// The conversion that one kind of [`ColumnRange`] applies, as a type, so that loops are compiled for it.
pub(crate) trait Cast: Copy {
    /// The type that is stored.
    type To;
    /// Stores the lanes of `x`, as many as `out` holds.
    fn store<L: Lanes>(self, lanes: L, out: &mut [Self::To], x: L::F);
    /// Stores four registers, one after the other; `out` holds them.
    #[inline(always)]
    fn store4<L: Lanes>(self, lanes: L, out: &mut [Self::To], x: [L::F; 4]) {
        for (out, x) in out.chunks_exact_mut(L::N).zip(x) {
            self.store(lanes, out, x);
        }
    }
}

/// Stores f32 unchanged.
#[derive(Clone, Copy)]
pub(crate) struct ToF32;

/// Quantizes and dequantizes.
#[derive(Clone, Copy)]
pub(crate) struct ToFake(pub(crate) Quantizer);

/// Stores bytes `code + 128`.
#[derive(Clone, Copy)]
pub(crate) struct ToCodes(pub(crate) Quantizer);

impl Cast for ToF32 {
    type To = f32;

    #[inline(always)]
    fn store<L: Lanes>(self, lanes: L, out: &mut [f32], x: L::F) {
        lanes.store(out, x);
    }
}

impl Cast for ToFake {
    type To = f32;

    #[inline(always)]
    fn store<L: Lanes>(self, lanes: L, out: &mut [f32], x: L::F) {
        lanes.store(out, lanes.fake(x, self.0));
    }
}

impl Cast for ToCodes {
    type To = u8;

    #[inline(always)]
    fn store<L: Lanes>(self, lanes: L, out: &mut [u8], x: L::F) {
        lanes.store_codes(out, lanes.mul(x, lanes.splat(self.0.recip())));
    }

    #[inline(always)]
    fn store4<L: Lanes>(self, lanes: L, out: &mut [u8], x: [L::F; 4]) {
        let out = &mut out[..4 * L::N];
        // SAFETY: `out` holds 4 N bytes.
        unsafe { lanes.write_codes4(out.as_mut_ptr(), scale4(lanes, self.0, x)) };
    }
}

/// Values times the reciprocal scale of `quantizer`.
#[inline(always)]
fn scale4<L: Lanes>(lanes: L, quantizer: Quantizer, [a, b, c, d]: [L::F; 4]) -> [L::F; 4] {
    let recip = lanes.splat(quantizer.recip());
    [lanes.mul(a, recip), lanes.mul(b, recip), lanes.mul(c, recip), lanes.mul(d, recip)]
}

/// Adds to the residual stream: `residual = shortcut.fake(residual) + branch.fake(value)`, where `None`
/// changes nothing.
#[derive(Clone, Copy)]
pub(crate) struct AddToResidual {
    pub(crate) branch: Option<Quantizer>,
    pub(crate) shortcut: Option<Quantizer>,
}

impl Cast for AddToResidual {
    type To = f32;

    #[inline(always)]
    fn store<L: Lanes>(self, lanes: L, out: &mut [f32], x: L::F) {
        let held = if out.len() < L::N { lanes.load_part(out) } else { lanes.load(out) };
        lanes.store(out, lanes.add(fake(lanes, self.shortcut, held), fake(lanes, self.branch, x)));
    }
}

/// Quantizes and dequantizes, if there is a quantizer.
#[inline(always)]
fn fake<L: Lanes>(lanes: L, quantizer: Option<Quantizer>, x: L::F) -> L::F {
    match quantizer {
        None => x,
        Some(quantizer) => lanes.fake(x, quantizer),
    }
}

/// The tokens of consecutive rows of a map's order over all images.
pub(crate) struct MapRows<'a> {
    map: &'a RowMap,
    /// The first row: its image, and its row in the map.
    image: usize,
    row: usize,
}

impl MapRows<'_> {
    /// Rows of `map`'s order over all images, from row `first` on.
    pub(crate) fn new(map: &RowMap, first: usize) -> MapRows<'_> {
        let period = map.rows().len().max(1);
        MapRows { map, image: first / period, row: first % period }
    }

    /// The token of the row after `i` more rows, counted over all images; `None` for padding.
    #[inline(always)]
    pub(crate) fn token(&self, i: usize) -> Option<usize> {
        // Most calls stay in one image. The division is avoided then, because it takes as long as the work on
        // a large part of a short row.
        let (row, period) = (self.row + i, self.map.rows().len());
        let (image, row) =
            if row < period { (self.image, row) } else { (self.image + row / period, row % period) };
        match self.map.rows()[row] {
            PAD => None,
            token => Some(image * self.map.tokens() + token as usize),
        }
    }
}

/// Units of work per task, out of `units` equal units: at least `least`, and few enough that each thread gets
/// a few tasks.
pub(crate) fn units_per_task(units: usize, threads: usize, least: usize) -> usize {
    match threads {
        1 => units.max(1),
        _ => units.div_ceil(threads * 4).max(least),
    }
}
