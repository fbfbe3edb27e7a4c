//! Attention within windows: `softmax(scale * QK^T + bias + mask) V`, for every window and head.
//!
//! [`swinq_numerics::reference::attention_window`] is the definition, which every instruction set equals bit
//! for bit. Each of the two products is computed in integers if both its operands are quantized, else in f32
//! on the values that their sites return. Queries, keys, values, logits and probabilities of one window and
//! head stay in a thread's scratch memory; only the result is written, where the projection reads it.
//!
//! There are three bodies: `scalar` calls the reference; `general` handles every combination of sites and any
//! size by vectors; `int8_u8` handles Swin's usual case, INT8 products with U8 probabilities, with fewer
//! instructions.

mod general;
mod int8_u8;
mod operands;
mod products;
mod scalar;
mod scores;
mod scratch;
pub(crate) mod softmax;
mod tables;
mod values;

use std::ops::Range;

use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{AttentionQuant, AttentionSpec, HeadScores, MASKS, Probs, RowStore, code_stride};

use crate::buffer::AlignedBuf;
use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::pool::Pool;
use crate::qk_norm::positions;
use crate::rows::{RowOut, RowSink, units_per_task};
use operands::AttentionOperand;
use scores::Finish;
use scratch::Layout;
use tables::Tables;

/// Queries, keys and values of all windows: one row for each token in window order, `q | k | v`, each
/// `heads * d` wide. In codes, the lo codes of the heads that have hi and lo codes follow, as
/// [`QkNorm`](crate::QkNorm) writes them.
#[derive(Clone, Copy, Debug)]
pub enum AttentionIn<'a> {
    /// Codes `u8 = code + 128`, `[rows, code_stride(columns)]`; the sites q, k and v are all on.
    Codes(&'a [u8]),
    /// f32 `[rows, 3 * heads * d]`; the sites q, k and v that are on are applied here.
    F32(&'a [f32]),
}

/// Attention of one block, prepared for an instruction set.
pub struct WindowAttention {
    cpu: Cpu,
    shape: Shape,
    scores: Vec<HeadScores>,
    /// For each head with hi and lo codes its position among them.
    low: Vec<Option<usize>>,
    quant: AttentionQuant,
    store: RowStore,
    tables: Tables,
    /// How logits are computed, for each head.
    finish: Vec<Finish>,
    /// Whether results of integers, in units of a stored code, are below 2^31. A result is a mean of values,
    /// weighted by the probabilities, so none exceeds the largest value.
    results_are_bounded: bool,
    /// A zero for each key of a query's logits, if a head has hi and lo codes.
    zeros: Vec<f32>,
    layout: Layout,
}

/// Sizes of one block's attention, which no image changes.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    /// Channels of a head.
    d: usize,
    /// Tokens of a window.
    n: usize,
    /// Heads with hi and lo codes for each query and key.
    hi_lo: usize,
}

impl Shape {
    /// Columns of codes.
    fn columns(self) -> usize {
        (3 * self.heads + 2 * self.hi_lo) * self.d
    }

    /// First column of `part` of the head number `head`, which for lo codes counts only heads that have them.
    fn column(self, part: AttentionOperand, head: usize) -> usize {
        let first = match part {
            AttentionOperand::Query => 0,
            AttentionOperand::Key => self.heads,
            AttentionOperand::Value => 2 * self.heads,
            AttentionOperand::QueryLo => 3 * self.heads,
            AttentionOperand::KeyLo => 3 * self.heads + self.hi_lo,
        };
        (first + head) * self.d
    }
}

impl WindowAttention {
    /// Prepares the op.
    ///
    /// # Panics
    /// If a size is 0, an operand would be longer than a slice can be, the length of `scales`, `hi_lo`,
    /// `bias` or `regions` does not match its shape, or mask 0 has several regions.
    pub fn new(cpu: Cpu, spec: AttentionSpec<'_>) -> WindowAttention {
        let sizes = [spec.heads, spec.head_dim, spec.tokens];
        assert!(!sizes.contains(&0), "WindowAttention: heads, head_dim, tokens are {sizes:?}");
        let scales = spec.scales.len();
        assert!(scales == spec.heads, "WindowAttention: {scales} scales for {} heads", spec.heads);
        // The most columns: queries, keys and values, and lo codes of all queries and keys.
        elements("WindowAttention", "window", &[spec.tokens, 5, spec.heads, spec.head_dim]);
        let scores: Vec<HeadScores> = spec.head_scores().collect();
        let low = positions(spec.hi_lo, spec.heads);
        let hi_lo = low.iter().flatten().count();
        let shape = Shape { heads: spec.heads, d: spec.head_dim, n: spec.tokens, hi_lo };
        let tables = Tables::new(shape, spec.bias, spec.regions.map(|regions| (regions, spec.mask)));
        let finish = Finish::of_heads(&spec);
        let layout = Layout::new(shape, &spec.quant);
        let AttentionSpec { quant, store, .. } = spec;
        let largest = quant.v.map_or(f32::INFINITY, |v| 128.0 * v.scale());
        let results_are_bounded =
            matches!(store, RowStore::Codes(to) if largest * to.recip() < (1u32 << 30) as f32);
        let zeros = vec![0.0; if hi_lo > 0 { layout.n_padded } else { 0 }];
        WindowAttention {
            cpu,
            shape,
            scores,
            low,
            quant,
            store,
            tables,
            finish,
            results_are_bounded,
            zeros,
            layout,
        }
    }

    /// Reads the windows of `images` images, writes `[images * masks.len() * n, heads * d]`. `masks` has the
    /// number of the mask of each window of one image ([`AttentionSpec::regions`]), so its length is the
    /// number of these windows.
    ///
    /// # Panics
    /// If `masks` is empty, or has a number that is not below [`MASKS`], or one that is not 0 although the op
    /// has no regions; if a length or the variant of `out` does not match; or if the input is codes and one
    /// of the sites q, k, v is off.
    pub fn run(&self, pool: &mut Pool, images: usize, masks: &[u8], input: AttentionIn<'_>, out: RowOut<'_>) {
        let (Shape { heads, d, n, .. }, windows) = (self.shape, masks.len());
        self.check_masks(masks);
        let rows = elements("WindowAttention", "rows", &[images, windows, n]);
        self.check(rows, input);
        let sink = RowSink::new("WindowAttention", self.store, out, rows, heads * d);
        let units = elements("WindowAttention", "windows and heads", &[images, windows, heads]);
        let each = units_per_task(units, pool.threads(), 1);
        pool.run(units.div_ceil(each), &|task, scratch| {
            let units = task * each..units.min((task + 1) * each);
            let scratch = &mut scratch.op;
            dispatch(self.cpu, Units { op: self, masks, first: 0, units, input, sink: &sink, scratch });
        });
    }

    /// Computes the windows `windows`, counted over all images, on the caller's thread; `input` and `out`
    /// hold only these windows. [`WindowAttention::check_masks`] has accepted `masks`, those of one image.
    ///
    /// # Panics
    /// If a length, `out` or `input` is one that [`WindowAttention::run`] refuses.
    pub(crate) fn run_on_this_thread(
        &self,
        windows: Range<usize>,
        masks: &[u8],
        input: AttentionIn<'_>,
        out: RowOut<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let Shape { heads, d, n, .. } = self.shape;
        let rows = elements("WindowAttention", "rows", &[windows.len(), n]);
        self.check(rows, input);
        let sink = &RowSink::new("WindowAttention", self.store, out, rows, heads * d);
        let units = 0..windows.len() * heads;
        dispatch(self.cpu, Units { op: self, masks, first: windows.start, units, input, sink, scratch });
    }

    /// Tokens of a window, columns of the output, and how it is stored.
    pub(crate) fn sizes(&self) -> (usize, usize, RowStore) {
        (self.shape.n, self.shape.heads * self.shape.d, self.store)
    }

    /// Checks the masks of the windows of one image.
    ///
    /// # Panics
    /// If there are none, or if the op does not have one of them.
    pub(crate) fn check_masks(&self, masks: &[u8]) {
        assert!(!masks.is_empty(), "WindowAttention: no masks, so no windows");
        let largest = masks.iter().copied().fold(0, u8::max);
        assert!(usize::from(largest) < MASKS, "WindowAttention: mask {largest} is not below {MASKS}");
        assert!(
            largest == 0 || self.tables.has_regions(),
            "WindowAttention: mask {largest} of an op without regions"
        );
    }

    fn check(&self, rows: usize, input: AttentionIn<'_>) {
        let wide = 3 * self.shape.heads * self.shape.d;
        match input {
            AttentionIn::F32(x) => {
                check_len("WindowAttention", "input", x.len(), &[rows, wide]);
            }
            AttentionIn::Codes(x) => {
                let stride = code_stride(self.shape.columns());
                check_len("WindowAttention", "input of codes", x.len(), &[rows, stride]);
                let AttentionQuant { q, k, v, .. } = self.quant;
                assert!(
                    q.is_some() && k.is_some() && v.is_some(),
                    "WindowAttention: codes need the scales of q, k and v"
                );
            }
        }
    }

    /// Columns of the input, as codes or as f32.
    pub(crate) fn columns_in(&self, codes: bool) -> usize {
        if codes { self.shape.columns() } else { 3 * self.shape.heads * self.shape.d }
    }

    fn head_scores(&self, head: usize) -> HeadScores {
        self.scores[head]
    }

    /// Unit `index` after window `first`, heads innermost; `masks` is that of each window of an image.
    fn locate(&self, masks: &[u8], first: usize, index: usize) -> Unit {
        let (window, head) = (index / self.shape.heads, index % self.shape.heads);
        Unit { mask: masks[(first + window) % masks.len()], head, row: window * self.shape.n }
    }
}

/// Whether `QK^T` is computed in integers.
fn integer_scores(quant: &AttentionQuant) -> bool {
    quant.q.is_some() && quant.k.is_some()
}

/// Whether `PV` is computed in integers.
fn integer_values(quant: &AttentionQuant) -> bool {
    quant.v.is_some() && quant.probs != Probs::Float
}

/// One window and head of one image.
#[derive(Clone, Copy)]
struct Unit {
    /// Number of the window's mask.
    mask: u8,
    head: usize,
    /// First row of the window, in the input and the output.
    row: usize,
}

/// Some windows and heads, which one thread computes.
struct Units<'a, 'o> {
    op: &'a WindowAttention,
    /// The mask of each window of an image.
    masks: &'a [u8],
    /// The first window of the input and the output, counted over all images.
    first: usize,
    /// The units to compute, counted from that window.
    units: Range<usize>,
    input: AttentionIn<'a>,
    sink: &'a RowSink<'o>,
    scratch: &'a mut AlignedBuf,
}

impl Kernel for Units<'_, '_> {
    fn scalar(self) {
        for unit in self.units {
            let unit = self.op.locate(self.masks, self.first, unit);
            scalar::unit(self.op, unit, self.input, self.sink, self.scratch);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let Units { op, masks, first, units, input, sink, scratch } = self;
        for unit in units {
            let unit = op.locate(masks, first, unit);
            if !int8_u8::suits::<L>(op, unit, input) {
                apart(op.cpu, General(One { op, unit, input, sink, scratch }));
            } else if op.low[unit.head].is_some() {
                apart(op.cpu, TwoCodes(One { op, unit, input, sink, scratch }));
            } else {
                int8_u8::unit::<L, false>(lanes, op, unit, input, sink, scratch);
            }
        }
    }
}

/// One window and head.
struct One<'a, 'o> {
    op: &'a WindowAttention,
    unit: Unit,
    input: AttentionIn<'a>,
    sink: &'a RowSink<'o>,
    scratch: &'a mut AlignedBuf,
}

/// One in the general body.
struct General<'a, 'o>(One<'a, 'o>);

/// One whose queries and keys have hi and lo codes, in the body of `int8_u8`.
struct TwoCodes<'a, 'o>(One<'a, 'o>);

impl One<'_, '_> {
    fn scalar(self) {
        scalar::unit(self.op, self.unit, self.input, self.sink, self.scratch);
    }
}

impl Kernel for General<'_, '_> {
    fn scalar(self) {
        self.0.scalar();
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let One { op, unit, input, sink, scratch } = self.0;
        general::unit(lanes, op, unit, input, sink, scratch);
    }
}

impl Kernel for TwoCodes<'_, '_> {
    fn scalar(self) {
        self.0.scalar();
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let One { op, unit, input, sink, scratch } = self.0;
        int8_u8::unit::<L, true>(lanes, op, unit, input, sink, scratch);
    }
}

/// Runs a body that is compiled apart from the usual one. In one function, the usual one takes up to twice as
/// long.
#[inline(never)]
fn apart(cpu: Cpu, body: impl Kernel) {
    dispatch(cpu, body);
}
