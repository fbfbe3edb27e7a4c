//! Rows of f32 gathered in the order of a map and quantized, without a norm: the input of a block whose norm
//! comes last.

use std::ops::Range;

use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{RowMap, RowStore};

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::pool::{Parts, Pool};
use crate::rows::{Cast, ColumnRange, MapRows, RowOut, RowSink, ToCodes, ToF32, ToFake, units_per_task};

/// The fewest f32 values of a task, so that distributing the tasks costs little in comparison.
const MIN_VALUES: usize = 4096;

/// Gathers rows in the order of a [`RowMap`] and stores them: quantized, or as f32 where the site is off. The
/// cyclic shift, padding and window partition happen in its reads, as in [`LayerNorm`](crate::LayerNorm).
pub struct QuantizeRows {
    cpu: Cpu,
    columns: usize,
    /// Number of gathered rows that make one row of the output.
    side_by_side: usize,
    store: RowStore,
}

impl QuantizeRows {
    /// The op over rows of `columns` values.
    ///
    /// # Panics
    /// If `columns` is 0 or more than a slice can hold.
    pub fn new(cpu: Cpu, columns: usize, store: RowStore) -> QuantizeRows {
        QuantizeRows::merging(cpu, columns, 1, store)
    }

    /// The op that puts each `side_by_side` consecutive rows of the map side by side into one row of the
    /// output: with four, the gathering of Swin's patch merging.
    ///
    /// # Panics
    /// If `columns` or `side_by_side` is 0, or if their product is more than a slice can hold.
    pub fn merging(cpu: Cpu, columns: usize, side_by_side: usize, store: RowStore) -> QuantizeRows {
        assert!(columns > 0 && side_by_side > 0, "QuantizeRows: no columns");
        elements("QuantizeRows", "row", &[side_by_side, columns]);
        QuantizeRows { cpu, columns, side_by_side, store }
    }

    /// Row `(b, i)` of `out` is row `(b, map.rows()[i])` of `x`, and zeros (byte 128 in codes) for
    /// [`PAD`](swinq_numerics::PAD). `x` is f32 `[images, map.tokens(), columns]`, `out` is
    /// `[images, map.rows().len() / side_by_side, side_by_side * columns]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match, or if `side_by_side` does not divide the rows of
    /// the map.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], map: &RowMap, out: RowOut<'_>) {
        check_len("QuantizeRows", "input", x.len(), &[images, map.tokens(), self.columns]);
        let rows = elements("QuantizeRows", "rows", &[images, map.rows().len()]);
        let sink = self.sink(rows, out);
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / self.columns + 1);
        let source = |row: usize| &x[row * self.columns..][..self.columns];
        pool.run(rows.div_ceil(each), &|task, _| {
            let rows = task * each..rows.min((task + 1) * each);
            // SAFETY: rows are distinct, and each is written once, by the task that holds it.
            let out = |row| unsafe { self.column_range(&sink, row) };
            self.gather(rows, map, source, out);
        });
    }

    /// The output, for `rows` gathered rows.
    fn sink<'o>(&self, rows: usize, out: RowOut<'o>) -> RowSink<'o> {
        let parts = self.side_by_side;
        assert!(rows.is_multiple_of(parts), "QuantizeRows: {rows} rows, {parts} side by side");
        RowSink::new("QuantizeRows", self.store, out, rows / parts, parts * self.columns)
    }

    /// The place of the gathered row `row` in the output.
    ///
    /// # Safety
    /// Nobody else accesses it while the result is alive.
    unsafe fn column_range<'s>(&self, sink: &'s RowSink<'_>, row: usize) -> ColumnRange<'s> {
        let (parts, columns) = (self.side_by_side, self.columns);
        // SAFETY: the caller's promise; gathered rows have distinct columns of a row of the output.
        unsafe { sink.column_range(row / parts, row % parts * columns, columns) }
    }

    /// Stores rows `rows` of `map`'s order over all images on the caller's thread. `out` holds only these
    /// rows; `x` is as in [`QuantizeRows::run`].
    ///
    /// # Panics
    /// As [`QuantizeRows::run`].
    ///
    /// # Safety
    /// Nobody writes these rows of `x` during the call.
    pub(crate) unsafe fn run_on_this_thread(
        &self,
        rows: Range<usize>,
        x: Parts<'_, f32>,
        map: &RowMap,
        out: RowOut<'_>,
    ) {
        let first = rows.start;
        let sink = self.sink(rows.len(), out);
        // SAFETY: the caller's promise.
        let source = |row| unsafe { x.read(row * self.columns, self.columns) };
        // SAFETY: rows are distinct, and each is written once, here.
        let out = |row| unsafe { self.column_range(&sink, row - first) };
        self.gather(rows, map, source, out);
    }

    /// Stores rows `rows` of `map`'s order over all images; `source` gives rows of tokens, `out` rows of the
    /// order.
    fn gather<'x, 's>(
        &self,
        rows: Range<usize>,
        map: &RowMap,
        source: impl Fn(usize) -> &'x [f32],
        out: impl Fn(usize) -> ColumnRange<'s>,
    ) {
        let (first, map_rows) = (rows.start, MapRows::new(map, rows.start));
        let source = |i: usize| map_rows.token(i).map(&source);
        dispatch(self.cpu, Gather { count: rows.len(), source, out: |i| out(first + i) });
    }

    /// Columns of the output, and how results are stored.
    pub(crate) fn shape(&self) -> (usize, RowStore) {
        (self.side_by_side * self.columns, self.store)
    }
}

/// Stores `count` rows: reads row `i` from `source(i)` (`None` is a row of zeros) and writes it to `out(i)`.
struct Gather<S, O> {
    count: usize,
    source: S,
    out: O,
}

impl<'x, 's, S: Fn(usize) -> Option<&'x [f32]>, O: Fn(usize) -> ColumnRange<'s>> Kernel for Gather<S, O> {
    fn scalar(self) {
        for i in 0..self.count {
            match ((self.source)(i), (self.out)(i)) {
                (None, mut out) => out.clear(),
                (Some(x), mut out) => out.put_all(x),
            }
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for i in 0..self.count {
            match ((self.source)(i), (self.out)(i)) {
                (None, mut out) => out.clear(),
                (Some(x), ColumnRange::F32(out)) => store_row(lanes, x, out, ToF32),
                (Some(x), ColumnRange::Fake(out, quantizer)) => store_row(lanes, x, out, ToFake(quantizer)),
                (Some(x), ColumnRange::Codes(out, quantizer)) => store_row(lanes, x, out, ToCodes(quantizer)),
            }
        }
    }
}

/// Stores a row.
#[inline(always)]
pub(crate) fn store_row<L: Lanes, C: Cast>(lanes: L, x: &[f32], out: &mut [C::To], cast: C) {
    let fours = x.len() - x.len() % (4 * L::N);
    for at in (0..fours).step_by(4 * L::N) {
        let mut four = [lanes.splat(0.0); 4];
        for (i, four) in four.iter_mut().enumerate() {
            *four = lanes.load(&x[at + i * L::N..]);
        }
        cast.store4(lanes, &mut out[at..at + 4 * L::N], four);
    }
    let full = x.len() - x.len() % L::N;
    for at in (fours..full).step_by(L::N) {
        cast.store(lanes, &mut out[at..at + L::N], lanes.load(&x[at..]));
    }
    if full < x.len() {
        cast.store(lanes, &mut out[full..], lanes.load_part(&x[full..]));
    }
}
