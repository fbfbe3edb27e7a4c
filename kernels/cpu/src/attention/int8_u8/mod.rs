//! The path for INT8 products with U8 probabilities on rows of full registers: Swin's usual case. A chunk of
//! queries passes through all logits, then all weights, then all results, so that reductions over keys serve
//! several queries at once.
//!
//! Where a single key remains after the full blocks of keys (49 = 3 * 16 + 1), it is not padded to a block:
//! its logits and weights are computed with one query in each lane.

mod operands;
mod results;
mod scores;
mod weights;

use swinq_numerics::Probs;

use super::operands::{AttentionOperand, Rows, Source};
use super::scores::Finish;
use super::scratch::words_mut;
use super::{AttentionIn, Shape, Unit, WindowAttention, apart, integer_scores, integer_values};
use crate::buffer::AlignedBuf;
use crate::buffer::bytes_mut;
use crate::lanes::{Kernel, Lanes};
use crate::rows::RowSink;

/// The most queries of a chunk.
const CHUNK: usize = 64;

/// One value for each query of a chunk.
type Column<T> = [T; CHUNK];

/// Whether this path handles `unit`: it needs codes in registers that are full, and for a head with hi and lo
/// codes for each query and key no lone key.
pub(super) fn suits<L: Lanes>(op: &WindowAttention, unit: Unit, input: AttentionIn<'_>) -> bool {
    matches!(input, AttentionIn::Codes(_))
        && (op.low[unit.head].is_none() || op.shape.n % L::N != 1)
        && integer_scores(&op.quant)
        && integer_values(&op.quant)
        && op.quant.probs == Probs::U8
        && op.shape.d.is_multiple_of(2 * L::N)
}

/// Sizes of the packed operands.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    d: usize,
    /// Registers of keys, without the lone key.
    blocks: usize,
    /// Whether the last key is in none of the blocks.
    lone: bool,
    /// Registers of weights of one query; each holds four blocks.
    packs: usize,
    /// Whether queries and keys have hi and lo codes.
    hi_lo: bool,
}

impl Sizes {
    fn new<L: Lanes>(Shape { d, n, .. }: Shape, hi_lo: bool) -> Sizes {
        let lone = n % L::N == 1;
        let blocks = if lone { n / L::N } else { n.div_ceil(L::N) };
        Sizes { n, d, blocks, lone, packs: blocks.div_ceil(4), hi_lo }
    }

    /// Blocks in weights register `pack`.
    fn blocks_of(&self, pack: usize) -> usize {
        (self.blocks - 4 * pack).min(4)
    }

    /// Groups of four keys whose weights are adjacent; a lone key is one group.
    fn groups<L: Lanes>(&self) -> usize {
        self.blocks * L::N / 4 + usize::from(self.lone)
    }

    /// Stride of the logits of a query, in f32.
    fn logits<L: Lanes>(&self) -> usize {
        self.blocks * L::N
    }

    /// Stride of the weights of a query, in bytes.
    fn weights<L: Lanes>(&self) -> usize {
        self.packs * 4 * L::N
    }

    /// Sizes in f32 of the parts of [`Int8Scratch`], multiples of a cache line.
    fn regions<L: Lanes>(&self) -> [usize; 8] {
        let keys = self.blocks * L::N * self.d / 4;
        let values = self.groups::<L>() * self.d;
        let (logits, weights) = (self.logits::<L>(), self.weights::<L>() / 4);
        let low = usize::from(self.hi_lo);
        let sizes =
            [keys, logits, low * keys, low * logits, values, CHUNK * logits, CHUNK * weights, logits / 4];
        sizes.map(|size| size.next_multiple_of(16))
    }
}

/// The scratch memory of one window and head.
struct Int8Scratch<'s> {
    keys: Keys<'s>,
    /// The lo codes of the keys, if they have hi and lo codes.
    keys_low: Keys<'s>,
    /// `[2 N channels][key group][2 registers]` s8, interleaved; groups in the order of weights.
    values: &'s mut [u8],
    /// `[CHUNK, blocks * N]`.
    logits: &'s mut [f32],
    /// `[CHUNK, packs * 4 N]`, in the order of [`Lanes::pack`].
    weights: &'s mut [u8],
    /// For each group of four keys, in the order of `values` and without the lone key: its position in a
    /// query's weights.
    order: &'s mut [u32],
}

/// Packed codes of keys.
struct Keys<'s> {
    /// `[block][channel group][lane][4]` s8.
    codes: &'s mut [u8],
    /// -128 times the sum of each key's codes, i32.
    offsets: &'s mut [f32],
}

impl<'s> Int8Scratch<'s> {
    fn split<L: Lanes>(sizes: Sizes, scratch: &'s mut AlignedBuf) -> Int8Scratch<'s> {
        let regions = sizes.regions::<L>();
        scratch.reserve(regions.iter().sum::<usize>() * size_of::<f32>());
        let mut rest = scratch.as_f32_mut();
        let [keys, offsets, keys_low, offsets_low, values, logits, weights, order] =
            regions.map(|size| rest.split_off_mut(..size).expect("`reserve` made room for all"));
        let [keys, keys_low, values, weights] = [keys, keys_low, values, weights].map(bytes_mut);
        let order = &mut words_mut(order)[..sizes.blocks * L::N / 4];
        let (keys, keys_low) =
            (Keys { codes: keys, offsets }, Keys { codes: keys_low, offsets: offsets_low });
        Int8Scratch { keys, keys_low, values, logits, weights, order }
    }
}

/// Computes attention of `unit`, which [`suits`] accepts. `HI_LO` says whether its queries and keys have hi
/// and lo codes.
#[inline(always)]
pub(super) fn unit<L: Lanes, const HI_LO: bool>(
    lanes: L,
    op: &WindowAttention,
    unit: Unit,
    input: AttentionIn<'_>,
    sink: &RowSink<'_>,
    scratch: &mut AlignedBuf,
) {
    let AttentionIn::Codes(codes) = input else { unreachable!("`suits` saw codes") };
    let low = op.low[unit.head].filter(|_| HI_LO);
    let sizes = Sizes::new::<L>(op.shape, HI_LO);
    let mut work = Int8Scratch::split::<L>(sizes, scratch);
    let rows = |part| Source { input, shape: op.shape, unit, part, low, site: None }.codes_in(codes);
    let (keys, values) = (rows(AttentionOperand::Key), rows(AttentionOperand::Value));
    let queries =
        Queries { codes: rows(AttentionOperand::Query), low: HI_LO.then(|| rows(AttentionOperand::QueryLo)) };
    operands::pack_keys(lanes, sizes, keys, &mut work.keys);
    if HI_LO {
        operands::pack_keys(lanes, sizes, rows(AttentionOperand::KeyLo), &mut work.keys_low);
    }
    operands::order::<L>(sizes, work.order);
    operands::pack_values(lanes, sizes, values, &mut work);
    for from in (0..sizes.n).step_by(CHUNK) {
        let finish = op.finish[unit.head];
        let (bias, mask, padded) = op.tables.from(unit, from);
        let count = CHUNK.min(sizes.n - from);
        let chunk = Chunk { op, unit, sizes, finish, from, count, bias, mask, padded };
        chunk.run(queries, keys, &mut work, sink);
    }
}

/// The queries of a window and head.
#[derive(Clone, Copy)]
struct Queries<'a> {
    codes: Rows<'a, u8>,
    /// Present if queries have hi and lo codes.
    low: Option<Rows<'a, u8>>,
}

/// Some queries of one window and head.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    op: &'a WindowAttention,
    unit: Unit,
    sizes: Sizes,
    finish: Finish,
    /// The first query.
    from: usize,
    count: usize,
    /// Bias and mask of the queries, a row of `padded` keys for each.
    bias: &'a [f32],
    mask: Option<&'a [f32]>,
    padded: usize,
}

impl Chunk<'_> {
    /// Each step is compiled apart: in one function they would compete for registers.
    fn run(&self, queries: Queries<'_>, keys: Rows<'_, u8>, work: &mut Int8Scratch<'_>, sink: &RowSink<'_>) {
        let mut state = State::new();
        apart(self.op.cpu, Scores { chunk: self, queries, keys, work, state: &mut state });
        apart(self.op.cpu, Weights { chunk: self, work, sink, state: &mut state });
        apart(self.op.cpu, Results { chunk: self, work, sink, state: &state });
    }
}

/// The values that the steps of a chunk pass on.
struct State {
    /// The largest logit of each query.
    largest: Column<f32>,
    /// Logits and weights of the lone key.
    lone: Column<f32>,
    lone_weights: Column<i32>,
    /// Factors of the results.
    factors: Column<f32>,
}

impl State {
    fn new() -> State {
        let (largest, lone) = ([f32::NEG_INFINITY; CHUNK], [0.0; CHUNK]);
        State { largest, lone, lone_weights: [0; CHUNK], factors: [0.0; CHUNK] }
    }
}

/// From queries and keys to logits.
struct Scores<'c, 'a, 's> {
    chunk: &'c Chunk<'a>,
    queries: Queries<'a>,
    keys: Rows<'a, u8>,
    work: &'c mut Int8Scratch<'s>,
    state: &'c mut State,
}

/// From logits to weights and factors.
struct Weights<'c, 'a, 's> {
    chunk: &'c Chunk<'a>,
    work: &'c mut Int8Scratch<'s>,
    sink: &'c RowSink<'c>,
    state: &'c mut State,
}

/// From weights and values to results.
struct Results<'c, 'a, 's> {
    chunk: &'c Chunk<'a>,
    work: &'c Int8Scratch<'s>,
    sink: &'c RowSink<'c>,
    state: &'c State,
}

impl Kernel for Scores<'_, '_, '_> {
    fn scalar(self) {
        unreachable!("this path has vector registers")
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let Scores { chunk, queries, keys, work, state } = self;
        chunk.scores(lanes, queries, work, &mut state.largest);
        if chunk.sizes.lone {
            chunk.lone_scores(lanes, queries.codes, keys, &mut state.largest, &mut state.lone);
        }
    }
}

impl Kernel for Weights<'_, '_, '_> {
    fn scalar(self) {
        unreachable!("this path has vector registers")
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let Weights { chunk, work, sink, state } = self;
        let mut sums = [0; CHUNK];
        chunk.weights(lanes, work, &state.largest, &mut sums);
        if chunk.sizes.lone {
            chunk.lone_weights(lanes, &state.largest, &state.lone, &mut state.lone_weights, &mut sums);
        }
        state.factors = chunk.factors(lanes, &sums, sink);
    }
}

impl Kernel for Results<'_, '_, '_> {
    fn scalar(self) {
        unreachable!("this path has vector registers")
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        let Results { chunk, work, sink, state } = self;
        chunk.results(lanes, work, &state.lone_weights, &state.factors, sink);
    }
}
