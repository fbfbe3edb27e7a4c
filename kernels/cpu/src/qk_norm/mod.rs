//! The operands of cosine attention (Liu et al., "Swin Transformer V2", CVPR 2022): the queries and keys of
//! each head are normalised to length 1, then quantized.

mod vector;

use swinq_numerics::reference::{code, inverse_length, lo_code};
use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{QkNormSpec, Quantizer, code_stride};

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::pool::{Parts, Pool};
use crate::rows::{RowOut, units_per_task};
pub(crate) use vector::lo_scaled;

/// The fewest f32 values of a task, so that distributing the tasks costs little in comparison.
const MIN_VALUES: usize = 4096;

/// Normalises queries and keys, and quantizes them and the values, as [`QkNormSpec`] defines.
pub struct QkNorm {
    cpu: Cpu,
    sizes: Sizes,
    /// For each head with hi and lo codes its position among them.
    low: Vec<Option<usize>>,
    codes: Option<[Quantizer; 3]>,
}

#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    /// Channels of a head.
    d: usize,
    /// Heads with hi and lo codes.
    hi_lo: usize,
}

/// Number of the part that is not normalised, after queries and keys.
const VALUES: usize = 2;

impl Sizes {
    /// Columns of the input.
    #[inline(always)]
    fn wide(self) -> usize {
        3 * self.heads * self.d
    }

    /// The first column of `part` of `head`.
    #[inline(always)]
    fn column(self, part: usize, head: usize) -> usize {
        (part * self.heads + head) * self.d
    }

    /// The first column of the lo codes of `part` of the head at `position` among those with hi and lo codes,
    /// counted from the first lo code.
    #[inline(always)]
    fn low_column(self, part: usize, position: usize) -> usize {
        (part * self.hi_lo + position) * self.d
    }
}

/// For each of `heads` heads its position among the heads with hi and lo codes, if it is one of them.
///
/// # Panics
/// If `hi_lo` has elements, but not one for each head.
pub(crate) fn positions(hi_lo: &[bool], heads: usize) -> Vec<Option<usize>> {
    assert!(
        hi_lo.is_empty() || hi_lo.len() == heads,
        "`hi_lo` has {} elements for {heads} heads",
        hi_lo.len()
    );
    let mut next = 0..;
    (0..heads).map(|head| hi_lo.get(head).copied().unwrap_or(false).then(|| next.next()).flatten()).collect()
}

impl QkNorm {
    /// Prepares the op.
    ///
    /// # Panics
    /// If a size is 0, a row would be longer than a slice can be, or `hi_lo` has elements, but not one for
    /// each head.
    pub fn new(cpu: Cpu, spec: &QkNormSpec<'_>) -> QkNorm {
        let (heads, d) = (spec.heads, spec.head_dim);
        assert!(heads > 0 && d > 0, "QkNorm: {heads} heads of {d} channels");
        // The most columns: queries, keys and values, and lo codes of all queries and keys.
        elements("QkNorm", "row", &[5, heads, d]);
        let low = positions(spec.hi_lo, heads);
        let sizes = Sizes { heads, d, hi_lo: low.iter().flatten().count() };
        QkNorm { cpu, sizes, low, codes: spec.codes }
    }

    /// Columns of the input.
    pub fn columns_in(&self) -> usize {
        self.sizes.wide()
    }

    /// Columns of the result.
    pub fn columns_out(&self) -> usize {
        self.columns_in() + if self.codes.is_some() { 2 * self.sizes.hi_lo * self.sizes.d } else { 0 }
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
        match self.check(rows, x, out) {
            Out::F32(out) => self.run_on(pool, rows, x, out, |out| Out::F32(out)),
            Out::Codes(out, sites) => self.run_on(pool, rows, x, out, |out| Out::Codes(out, sites)),
        }
    }

    /// Divides `rows` rows of `x` and of `out` among the threads of `pool`.
    fn run_on<T: Send + Sync>(
        &self,
        pool: &mut Pool,
        rows: usize,
        x: &[f32],
        out: &mut [T],
        target: impl Fn(&mut [T]) -> Out<'_> + Sync,
    ) {
        let (wide, stride) = (self.columns_in(), out.len() / rows.max(1));
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / wide + 1);
        let out = Parts::new(out);
        pool.run(rows.div_ceil(each), &|task, _| {
            let (first, count) = (task * each, each.min(rows - task * each));
            // SAFETY: tasks have distinct rows.
            let out = unsafe { out.get(first * stride, count * stride) };
            dispatch(self.cpu, Rows { op: self, x: &x[first * wide..][..count * wide], out: target(out) });
        });
    }

    /// As [`QkNorm::run`], on the caller's thread.
    pub(crate) fn run_on_this_thread(&self, rows: usize, x: &[f32], out: RowOut<'_>) {
        dispatch(self.cpu, Rows { op: self, x, out: self.check(rows, x, out) });
    }

    fn check<'o>(&self, rows: usize, x: &[f32], out: RowOut<'o>) -> Out<'o> {
        check_len("QkNorm", "input", x.len(), &[rows, self.columns_in()]);
        match (out, self.codes) {
            (RowOut::F32(out), None) => {
                check_len("QkNorm", "output", out.len(), &[rows, self.columns_out()]);
                Out::F32(out)
            }
            (RowOut::Codes(out), Some(sites)) => {
                check_len("QkNorm", "output", out.len(), &[rows, code_stride(self.columns_out())]);
                Out::Codes(out, sites)
            }
            _ => panic!("QkNorm: the output is of the other type"),
        }
    }
}

/// Rows of the output.
enum Out<'o> {
    F32(&'o mut [f32]),
    /// Rows [`code_stride`] apart.
    Codes(&'o mut [u8], [Quantizer; 3]),
}

/// Rows of the input and the output, which one thread computes.
struct Rows<'r> {
    op: &'r QkNorm,
    x: &'r [f32],
    out: Out<'r>,
}

impl Kernel for Rows<'_> {
    fn scalar(self) {
        let Rows { op, x, mut out } = self;
        let (sizes, stride) = (op.sizes, code_stride(op.columns_out()));
        for (row, x) in x.chunks_exact(sizes.wide()).enumerate() {
            for (vector, x) in x.chunks_exact(sizes.d).enumerate() {
                let (part, head) = (vector / sizes.heads, vector % sizes.heads);
                let (column, factor) =
                    (sizes.column(part, head), if part == VALUES { 1.0 } else { inverse_length(x) });
                match &mut out {
                    Out::F32(out) => {
                        let out = &mut out[row * sizes.wide() + column..];
                        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
                    }
                    Out::Codes(out, sites) => {
                        let out = &mut out[row * stride..];
                        let low = op.low[head].filter(|_| part != VALUES);
                        for (i, scaled) in x.iter().map(|x| x * factor * sites[part].recip()).enumerate() {
                            out[column + i] = code(scaled).cast_unsigned() ^ 0x80;
                            if let Some(low) = low {
                                let low = sizes.wide() + sizes.low_column(part, low) + i;
                                out[low] = lo_code(scaled).cast_unsigned() ^ 0x80;
                            }
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        // With a constant number of channels, loops over them are unrolled. All published models have heads
        // of 32.
        match self.op.sizes {
            sizes @ Sizes { d: 32, .. } => vector::rows(lanes, self, Sizes { d: 32, ..sizes }),
            sizes => vector::rows(lanes, self, sizes),
        }
    }
}
