//! The operands of cosine attention (Liu et al., "Swin Transformer V2", CVPR 2022): the queries and keys of each head are
//! normalised to length 1, then quantized.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::pool::{Parts, Pool};
use crate::reference::{inverse_length, low_code};
use crate::rows::units_per_task;
use crate::sizes::{check_len, elements};
use crate::types::{Quantizer, RowOut, code_stride};

/// The fewest f32 values of a task, so that distributing the tasks costs little in comparison.
const MIN_VALUES: usize = 4096;

/// The heads of one block's cosine attention, and how their operands are stored.
#[derive(Clone, Debug)]
pub struct HeadsSpec<'a> {
    /// Heads.
    pub heads: usize,
    /// Channels of one head, `d`.
    pub head_dim: usize,
    /// Whether the queries and keys of a head have two codes for each value, for each head; empty if none has.
    pub two_codes: &'a [bool],
    /// The sites q, k and v, if the result is codes; else it is f32, and attention applies the sites that are on.
    pub codes: Option<[Quantizer; 3]>,
}

/// Normalises queries and keys, and quantizes them and the values.
///
/// The input is f32 `[rows, 3 * heads * d]`: `q | k | v` of a token. The result has the same columns, as f32 or as codes.
/// In codes, a low code for each value of the heads that have two follows: all of `q`, then all of `k`, each
/// `[heads with two codes, d]`.
///
/// ```text
/// y = x * inverse_length(q or k of the head)           queries and keys
/// code = code(y * recip)        low code = low_code(y * recip)
/// ```
pub struct NormalizeHeads {
    cpu: Cpu,
    heads: usize,
    d: usize,
    /// For each head with two codes its position among them.
    low: Vec<Option<usize>>,
    /// Number of heads with two codes.
    two_codes: usize,
    codes: Option<[Quantizer; 3]>,
}

/// For each of `heads` heads its position among the heads with two codes, if it is one of them.
///
/// # Panics
/// If `two_codes` has elements, but not one for each head.
pub(crate) fn positions(two_codes: &[bool], heads: usize) -> Vec<Option<usize>> {
    assert!(
        two_codes.is_empty() || two_codes.len() == heads,
        "`two_codes` has {} elements for {heads} heads",
        two_codes.len()
    );
    let mut next = 0..;
    (0..heads)
        .map(|head| two_codes.get(head).copied().unwrap_or(false).then(|| next.next()).flatten())
        .collect()
}

impl NormalizeHeads {
    /// Prepares the op.
    ///
    /// # Panics
    /// If a size is 0, a row would be longer than a slice can be, or `two_codes` has elements, but not one for each head.
    pub fn new(cpu: Cpu, spec: &HeadsSpec<'_>) -> NormalizeHeads {
        let (heads, d) = (spec.heads, spec.head_dim);
        assert!(heads > 0 && d > 0, "NormalizeHeads: {heads} heads of {d} channels");
        // The most columns: queries, keys and values, and low codes of all queries and keys.
        elements("NormalizeHeads", "row", &[5, heads, d]);
        let low = positions(spec.two_codes, heads);
        NormalizeHeads { cpu, heads, d, two_codes: low.iter().flatten().count(), low, codes: spec.codes }
    }

    /// Columns of the input.
    pub fn columns_in(&self) -> usize {
        3 * self.heads * self.d
    }

    /// Columns of the result.
    pub fn columns_out(&self) -> usize {
        self.columns_in() + if self.codes.is_some() { 2 * self.two_codes * self.d } else { 0 }
    }

    /// Whether the result is codes.
    pub fn stores_codes(&self) -> bool {
        self.codes.is_some()
    }

    /// Reads `rows` rows of `x` and writes as many to `out`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, rows: usize, x: &[f32], out: RowOut<'_>) {
        let out = self.check(rows, x, out);
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / self.columns_in() + 1);
        pool.run(rows.div_ceil(each), &|task, _| {
            let rows = task * each..rows.min((task + 1) * each);
            // SAFETY: rows are distinct, and each is written once, by the task that holds it.
            dispatch(self.cpu, unsafe { Rows::new(self, rows, x, &out) });
        });
    }

    /// As [`NormalizeHeads::run`], on the caller's thread.
    pub(crate) fn run_on_this_thread(&self, rows: usize, x: &[f32], out: RowOut<'_>) {
        let out = self.check(rows, x, out);
        // SAFETY: rows are distinct, and each is written once, here.
        dispatch(self.cpu, unsafe { Rows::new(self, 0..rows, x, &out) });
    }

    fn check<'o>(&self, rows: usize, x: &[f32], out: RowOut<'o>) -> Out<'o> {
        check_len("NormalizeHeads", "input", x.len(), &[rows, self.columns_in()]);
        match (out, self.codes) {
            (RowOut::F32(out), None) => {
                check_len("NormalizeHeads", "output", out.len(), &[rows, self.columns_out()]);
                Out::F32(Parts::new(out))
            }
            (RowOut::Codes(out), Some(sites)) => {
                check_len("NormalizeHeads", "output", out.len(), &[rows, code_stride(self.columns_out())]);
                Out::Codes(Parts::new(out), sites)
            }
            _ => panic!("NormalizeHeads: the output is of the other type"),
        }
    }
}

/// The whole output.
enum Out<'o> {
    F32(Parts<'o, f32>),
    Codes(Parts<'o, u8>, [Quantizer; 3]),
}

/// Some rows of the input and the output, which one thread computes.
struct Rows<'r, 'o> {
    op: &'r NormalizeHeads,
    rows: Range<usize>,
    x: &'r [f32],
    out: &'r Out<'o>,
}

impl<'r, 'o> Rows<'r, 'o> {
    /// Rows `rows` of `x` and of `out`.
    ///
    /// # Safety
    /// Nobody else accesses these rows of `out` while the result is alive.
    unsafe fn new(
        op: &'r NormalizeHeads,
        rows: Range<usize>,
        x: &'r [f32],
        out: &'r Out<'o>,
    ) -> Rows<'r, 'o> {
        Rows { op, rows, x, out }
    }

    /// Each row.
    fn each(self) -> impl Iterator<Item = Row<'r>> {
        let Rows { op, rows, x, out } = self;
        let (wide, columns) = (op.columns_in(), op.columns_out());
        rows.map(move |row| {
            let out = match out {
                // SAFETY: the promise to `Rows::new`; each row is taken once.
                Out::F32(out) => RowData::F32(unsafe { out.get(row * columns, columns) }),
                Out::Codes(out, sites) => {
                    // SAFETY: as above.
                    RowData::Codes(unsafe { out.get(row * code_stride(columns), columns) }, *sites)
                }
            };
            Row { op, x: &x[row * wide..][..wide], out }
        })
    }
}

impl Kernel for Rows<'_, '_> {
    fn scalar(self) {
        self.each().for_each(Row::scalar);
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for row in self.each() {
            row.vector(lanes);
        }
    }
}

/// One row of the output.
enum RowData<'r> {
    F32(&'r mut [f32]),
    Codes(&'r mut [u8], [Quantizer; 3]),
}

/// One row of the op.
struct Row<'r> {
    op: &'r NormalizeHeads,
    x: &'r [f32],
    out: RowData<'r>,
}

/// Queries, keys and values.
const PARTS: usize = 3;
/// The part that is not normalised.
const VALUES: usize = 2;
/// Vectors whose lengths are computed together.
const LENGTHS: usize = 16;

impl Row<'_> {
    /// First column of `part` of `head`.
    fn column(&self, part: usize, head: usize) -> usize {
        (part * self.op.heads + head) * self.op.d
    }

    /// First column of the low codes of `part` of the head at `position`.
    fn low_column(&self, part: usize, position: usize) -> usize {
        (PARTS * self.op.heads + part * self.op.two_codes + position) * self.op.d
    }
}

impl Row<'_> {
    /// By the reference.
    fn scalar(mut self) {
        let d = self.op.d;
        for part in 0..PARTS {
            for head in 0..self.op.heads {
                let (column, low) = (self.column(part, head), self.op.low[head].filter(|_| part != VALUES));
                let low = low.map(|position| self.low_column(part, position));
                let x = &self.x[column..][..d];
                let factor = if part == VALUES { 1.0 } else { inverse_length(x) };
                match &mut self.out {
                    RowData::F32(out) => {
                        out[column..][..d].iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
                    }
                    RowData::Codes(out, sites) => {
                        for (i, x) in x.iter().enumerate() {
                            let y = x * factor;
                            out[column + i] = sites[part].code(y).cast_unsigned() ^ 0x80;
                            if let Some(low) = low {
                                out[low + i] = low_code(y * sites[part].recip()).cast_unsigned() ^ 0x80;
                            }
                        }
                    }
                }
            }
        }
    }

    /// By vectors.
    #[inline(always)]
    fn vector<L: Lanes>(mut self, lanes: L) {
        let (d, heads) = (self.op.d, self.op.heads);
        for first in (0..VALUES * heads).step_by(LENGTHS) {
            let vectors = first..(first + LENGTHS).min(VALUES * heads);
            let mut factors = [0.0f32; LENGTHS];
            for (factor, vector) in factors.iter_mut().zip(vectors.clone()) {
                *factor = squares(lanes, &self.x[vector * d..][..d]);
            }
            for factor in &mut factors {
                *factor = crate::reference::inverse_of_length(factor.sqrt());
            }
            for (factor, vector) in factors.into_iter().zip(vectors) {
                let (part, head) = (vector / heads, vector % heads);
                self.store(lanes, part, head, lanes.splat(factor));
            }
        }
        for head in 0..heads {
            self.store(lanes, VALUES, head, lanes.splat(1.0));
        }
    }

    /// Stores `part` of `head`, times `factor`.
    #[inline(always)]
    fn store<L: Lanes>(&mut self, lanes: L, part: usize, head: usize, factor: L::F) {
        let (d, column) = (self.op.d, self.column(part, head));
        let low = self.op.low[head].filter(|_| part != VALUES);
        let low = low.map(|position| self.low_column(part, position));
        let x = &self.x[column..][..d];
        for at in (0..d).step_by(L::N) {
            let lane = &x[at..(at + L::N).min(d)];
            let lanes_of_x = if lane.len() == L::N { lanes.load(lane) } else { lanes.load_part(lane) };
            let y = lanes.mul(lanes_of_x, factor);
            match &mut self.out {
                RowData::F32(out) => lanes.store(&mut out[column + at..][..lane.len()], y),
                RowData::Codes(out, sites) => {
                    let scaled = lanes.mul(y, lanes.splat(sites[part].recip()));
                    lanes.store_codes(&mut out[column + at..][..lane.len()], scaled);
                    if let Some(low) = low {
                        let scaled = low_scaled(lanes, scaled);
                        lanes.store_codes(&mut out[low + at..][..lane.len()], scaled);
                    }
                }
            }
        }
    }
}

/// The sum of the squares of `x`, in the order of [`inverse_length`].
#[inline(always)]
fn squares<L: Lanes>(lanes: L, x: &[f32]) -> f32 {
    let mut sums = [lanes.splat(0.0); 2];
    let mut blocks = x.chunks_exact(16);
    for block in &mut blocks {
        for (x, sum) in block.chunks_exact(L::N).zip(&mut sums) {
            let x = lanes.load(x);
            *sum = lanes.fma(x, x, *sum);
        }
    }
    for (x, sum) in blocks.remainder().chunks(L::N).zip(&mut sums) {
        let x = lanes.load_part(x);
        *sum = lanes.fma(x, x, *sum);
    }
    lanes.fold(sums)
}

/// What [`low_code`] rounds, of values already multiplied by the reciprocal scale.
#[inline(always)]
pub(crate) fn low_scaled<L: Lanes>(lanes: L, scaled: L::F) -> L::F {
    let high = lanes.float(lanes.round(lanes.clamp(scaled)));
    let rest = lanes.mul(lanes.sub(scaled, high), lanes.splat(256.0));
    // `max` returns its second operand if either is a NaN.
    lanes.max(rest, lanes.splat(-127.0))
}
