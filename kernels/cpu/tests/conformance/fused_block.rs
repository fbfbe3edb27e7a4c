//! Fused blocks against the same ops run one after the other, bit for bit, for every implementation on this
//! processor.

use std::sync::Arc;

use crate::attention::regions;
use crate::support::{Rng, assert_same, assert_sizes_leave_no_trace, assert_varied, for_each_cpu, step};
use swinq_kernels::{
    AttentionIn, BlockOp, Cpu, FusedBlock, FusedRows, LayerNorm, LinearF32, LinearI8, LinearOut, LinearSpec,
    Pool, QuantizeRows, ResidualNorm, RowOut, Store, WindowAttention,
};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, ColumnQuantizers, Gelu, MASKS, Probs, RowMap, RowStore, Windows,
    code_stride,
};

/// Sizes of a block: heads, channels of a head, hidden channels.
#[derive(Clone, Copy)]
struct Shape(usize, usize, usize);

/// A grid of windows: tokens of a window, windows, rows of padding in each window.
#[derive(Clone, Copy)]
struct Grid(usize, usize, usize);

/// Sizes around the tiles, the sizes of Swin, and one with padding.
const CASES: [(Shape, Grid); 6] = [
    (Shape(3, 32, 96), Grid(49, 4, 0)),
    (Shape(1, 18, 47), Grid(9, 5, 0)),
    (Shape(2, 12, 50), Grid(16, 6, 3)),
    (Shape(1, 7, 9), Grid(1, 7, 0)),
    (Shape(2, 32, 130), Grid(64, 3, 15)),
    (Shape(6, 32, 768), Grid(16, 4, 0)),
];

/// Ops of a block, each with the columns of its result and whether they are codes; `None` is added to the
/// residual.
type Ops = Vec<(BlockOp, Option<(usize, bool)>)>;

/// Makes ops of a block; each bit of `kind` is a choice between two recipes.
struct Maker {
    cpu: Cpu,
    kind: u32,
    rng: Rng,
}

impl Maker {
    fn choice(&mut self) -> bool {
        let choice = self.kind & 1 == 1;
        self.kind >>= 1;
        choice
    }

    /// How a linear's input is stored: as codes for an INT8 linear, else in one of two ways.
    fn row_store(&mut self, int8: bool) -> RowStore {
        match (int8, self.choice()) {
            (true, _) => RowStore::Codes(step(0.03)),
            (false, true) => RowStore::Fake(step(0.02)),
            (false, false) => RowStore::F32,
        }
    }

    fn norm(&mut self, c: usize, int8: bool) -> (BlockOp, Option<(usize, bool)>) {
        let (gamma, beta) = (self.rng.floats(c, 1.0), self.rng.floats(c, 0.5));
        let op = LayerNorm::new(self.cpu, &gamma, &beta, 1e-5, self.row_store(int8));
        (BlockOp::Norm(Arc::new(op)), Some((c, int8)))
    }

    fn linear(
        &mut self,
        (k, n): (usize, usize),
        int8: bool,
        gelu: Option<Gelu>,
        store: Store,
    ) -> (BlockOp, Option<(usize, bool)>) {
        let left = match store {
            Store::Residual { .. } => None,
            Store::Codes(_) => Some((n, true)),
            _ => Some((n, false)),
        };
        let bias = self.rng.floats(n, 0.5);
        let output = self.choice().then(|| step(0.05));
        let spec = LinearSpec { n, k, bias: Some(&bias), output, gelu, store };
        let op = if int8 {
            let codes: Vec<i8> = self.rng.bytes(n * k).into_iter().map(|b| b as i8).collect();
            {
                let zero_points: Vec<i8> = self.rng.bytes(k).into_iter().map(|b| b as i8).collect();
                let multiplier = vec![0.0004; n];
                let op = LinearI8::with_zero_points(self.cpu, spec, &codes, &multiplier, &zero_points);
                BlockOp::LinearI8(Arc::new(op))
            }
        } else {
            let weight = self.rng.floats(n * k, 0.2);
            BlockOp::LinearF32(Arc::new(LinearF32::new(self.cpu, spec, &weight)))
        };
        (op, left)
    }

    fn residual(&mut self) -> Store {
        let [branch, shortcut] = [self.choice(), self.choice()].map(|on| on.then(|| step(0.04)));
        Store::Residual { branch, shortcut }
    }

    /// An attention branch: norm, linear for q | k | v, attention, projection.
    fn attention(&mut self, Shape(heads, d, _): Shape, tokens: usize) -> Ops {
        let (c, [qkv, codes, proj]) = (heads * d, [self.choice(), self.choice(), self.choice()]);
        let site = (codes || self.choice()).then(|| step(0.04));
        let probs = if self.choice() { Probs::U8 } else { Probs::Float };
        let quant = AttentionQuant { q: site, k: site, v: site, scores: None, probs };
        let spec = AttentionSpec {
            heads,
            head_dim: d,
            tokens,
            scales: &self.rng.floats(heads, 0.2),
            hi_lo: &[],
            mask: -100.0,
            bias: &self.rng.floats(heads * tokens * tokens, 1.0),
            regions: Some(&regions(tokens)),
            quant,
            store: self.row_store(proj),
        };
        let attention = (BlockOp::Attention(Arc::new(WindowAttention::new(self.cpu, spec))), Some((c, proj)));
        let store =
            if codes { Store::Codes(ColumnQuantizers::symmetric(3 * c, &[step(0.04)])) } else { Store::F32 };
        let residual = self.residual();
        vec![
            self.norm(c, qkv),
            self.linear((c, 3 * c), qkv, None, store),
            attention,
            self.linear((c, c), proj, None, residual),
        ]
    }

    /// Quantization, linear, norm: a block whose norm comes last.
    fn norm_last(&mut self, Shape(heads, d, _): Shape) -> Ops {
        let (c, int8) = (heads * d, self.choice());
        let quantize = QuantizeRows::new(self.cpu, c, self.row_store(int8));
        let linear = self.linear((c, c), int8, None, Store::F32);
        let (gamma, beta) = (self.rng.floats(c, 1.0), self.rng.floats(c, 0.5));
        let [branch, shortcut] = [self.choice(), self.choice()].map(|on| on.then(|| step(0.04)));
        let norm = ResidualNorm::new(self.cpu, &gamma, &beta, 1e-5, branch, shortcut);
        vec![
            (BlockOp::Quantize(Arc::new(quantize)), Some((c, int8))),
            linear,
            (BlockOp::ResidualNorm(Arc::new(norm)), None),
        ]
    }

    /// An MLP branch: norm, linear with GELU, linear.
    fn mlp(&mut self, Shape(heads, d, hidden): Shape) -> Ops {
        let (c, [fc1, fc2]) = (heads * d, [self.choice(), self.choice()]);
        let factors: Vec<f32> = self.rng.floats(hidden, 0.9).iter().map(|x| 1.0 + x).collect();
        let zero_points: Vec<i8> = self.rng.bytes(hidden).into_iter().map(|b| b as i8).collect();
        let channels = ColumnQuantizers::channels(0.03, &factors, &zero_points).unwrap();
        let store = if fc2 { Store::Codes(channels) } else { Store::Fake(channels) };
        let residual = self.residual();
        let gelu = Some(if self.choice() { Gelu::Erf } else { Gelu::Quadratic });
        vec![
            self.norm(c, fc1),
            self.linear((c, hidden), fc1, gelu, store),
            self.linear((hidden, c), fc2, None, residual),
        ]
    }
}

/// Windows of `grid`, with all masks, in which every row comes from a token of another index.
fn windows_of(Grid(tokens, windows, pads): Grid) -> Windows {
    let real = windows * (tokens - pads);
    let rows = (0..windows * tokens).map(|row| {
        let (window, at) = (row / tokens, row % tokens);
        (at >= pads).then(|| real - 1 - (window + windows * (at - pads)))
    });
    let map = RowMap::new(&rows.collect::<Vec<_>>(), real).unwrap();
    Windows::new(map, (0..windows).map(|window| (window % MASKS) as u8).collect())
}

/// The rows of `windows` for `ops`.
fn rows_of<'a>(ops: &Ops, windows: &'a Windows) -> FusedRows<'a> {
    let attends = ops.iter().any(|(op, _)| matches!(op, BlockOp::Attention(_)));
    FusedRows { map: windows.map(), masks: if attends { windows.masks() } else { &[] } }
}

/// The result of one op, for the next one.
enum Rows {
    Codes(Vec<u8>),
    F32(Vec<f32>),
}

impl Rows {
    fn new(rows: usize, (columns, codes): (usize, bool)) -> Rows {
        if codes {
            Rows::Codes(vec![0; rows * code_stride(columns)])
        } else {
            Rows::F32(vec![0.0; rows * columns])
        }
    }

    fn out(&mut self) -> RowOut<'_> {
        match self {
            Rows::Codes(out) => RowOut::Codes(out),
            Rows::F32(out) => RowOut::F32(out),
        }
    }
}

/// Runs `ops` one after the other, each over all rows.
fn one_by_one(ops: &Ops, FusedRows { map, masks }: FusedRows<'_>, images: usize, residual: &mut [f32]) {
    let (mut pool, rows) = (Pool::new(1), images * map.rows().len());
    let mut before = Rows::F32(Vec::new());
    for (op, left) in ops {
        let mut after = left.map(|left| Rows::new(rows, left));
        let pool = &mut pool;
        match (op, &before, &mut after) {
            (BlockOp::Norm(norm), _, Some(after)) => norm.run(pool, images, residual, map, after.out()),
            (BlockOp::Attention(attention), Rows::Codes(x), Some(after)) => {
                attention.run(pool, images, masks, AttentionIn::Codes(x), after.out());
            }
            (BlockOp::Attention(attention), Rows::F32(x), Some(after)) => {
                attention.run(pool, images, masks, AttentionIn::F32(x), after.out());
            }
            (BlockOp::Quantize(quantize), _, Some(after)) => {
                quantize.run(pool, images, residual, map, after.out());
            }
            (BlockOp::ResidualNorm(norm), Rows::F32(x), None) => norm.run(pool, images, x, map, residual),
            (BlockOp::LinearI8(linear), Rows::Codes(x), after) => {
                linear.run(pool, rows, x, linear_out(after, residual, map));
            }
            (BlockOp::LinearF32(linear), Rows::F32(x), after) => {
                linear.run(pool, rows, x, linear_out(after, residual, map));
            }
            _ => panic!("an op cannot read what the op before it wrote"),
        }
        before = after.unwrap_or(Rows::F32(Vec::new()));
    }
}

fn linear_out<'a>(rows: &'a mut Option<Rows>, residual: &'a mut [f32], map: &'a RowMap) -> LinearOut<'a> {
    rows.as_mut().map_or(LinearOut::Residual { residual, map }, |rows| rows.out().into())
}

/// A block of `kind` with windows of `tokens` tokens: both its halves, one of them, or one whose norm comes
/// last.
fn ops(cpu: Cpu, kind: u32, shape: Shape, tokens: usize) -> Ops {
    let mut maker = Maker { cpu, kind, rng: Rng(u64::from(kind) + 1) };
    if kind % 5 == 4 {
        return maker.norm_last(shape);
    }
    let mut ops = if kind % 3 == 1 { Vec::new() } else { maker.attention(shape, tokens) };
    if kind % 3 != 2 {
        ops.extend(maker.mlp(shape));
    }
    ops
}

/// The ops without their results.
fn block_ops(ops: &Ops) -> Vec<BlockOp> {
    ops.iter().map(|(op, _)| op.clone()).collect()
}

#[test]
fn a_fused_block_equals_its_ops_one_after_the_other() {
    for_each_cpu(|cpu| {
        let mut kinds = Rng(7);
        // The first kinds have everything in codes.
        for (case, (shape, grid)) in CASES.into_iter().enumerate() {
            for kind in [
                !0,
                !0 << 8,
                0b1111_0100,
                0b1111_1110,
                kinds.next() as u32,
                kinds.next() as u32,
                kinds.next() as u32,
            ] {
                let (ops, windows) = (ops(cpu, kind, shape, grid.0), windows_of(grid));
                let (rows, c) = (rows_of(&ops, &windows), shape.0 * shape.1);
                for (images, threads, task_rows) in [(1, 1, 1), (1, 2, 100), (2, 3, 20), (3, 2, 70)] {
                    let mut residual = Rng(case as u64).floats(images * rows.map.tokens() * c, 2.0);
                    let before = residual.clone();
                    let mut want = residual.clone();
                    one_by_one(&ops, rows, images, &mut want);
                    let block = FusedBlock::new(block_ops(&ops), c, task_rows);
                    let what = format!("{} case {case}, kind {kind:#x}, {images} images", cpu);
                    let mut pool = Pool::new(threads);
                    block.run(&mut pool, images, rows, &mut residual);
                    assert_same(&residual, &want, &what);
                    assert_varied(&residual, &what);
                    assert!(residual != before, "{what}: nothing was added");
                    residual.copy_from_slice(&before);
                    assert_eq!(block.run_timed(&mut pool, images, rows, &mut residual).len(), ops.len());
                    assert_same(&residual, &want, &what);
                }
            }
        }
    });
}

#[test]
fn one_block_runs_over_images_of_several_sizes() {
    let shape = Shape(2, 12, 50);
    for_each_cpu(|cpu| {
        let ops = || ops(cpu, !0, shape, 16);
        let new = || FusedBlock::new(block_ops(&ops()), 24, 20);
        assert_sizes_leave_no_trace([Grid(16, 6, 3), Grid(16, 2, 0)], new, |block, pool, grid| {
            let windows = windows_of(grid);
            let rows = rows_of(&ops(), &windows);
            let mut residual = Rng(3).floats(2 * rows.map.tokens() * 24, 2.0);
            block.run(pool, 2, rows, &mut residual);
            residual
        });
    });
}

#[test]
#[should_panic(expected = "cannot read the result of the op before it")]
fn ops_that_do_not_fit_are_refused() {
    let cpu = Cpu::available()[0];
    let mut maker = Maker { cpu, kind: 0, rng: Rng(1) };
    let ops = [maker.norm(96, false), maker.linear((96, 96), true, None, Store::F32)];
    FusedBlock::new(ops.map(|(op, _)| op).to_vec(), 96, 49);
}

#[test]
#[should_panic(expected = "nothing reads the result of the last op")]
fn the_last_op_must_add_to_the_residual() {
    let mut maker = Maker { cpu: Cpu::available()[0], kind: 0, rng: Rng(1) };
    FusedBlock::new(vec![maker.norm(96, true).0], 96, 49);
}

/// The attention branch of a block with windows of `tokens` tokens, and 8 channels.
fn attention_half(tokens: usize) -> Ops {
    let mut maker = Maker { cpu: Cpu::available()[0], kind: 0, rng: Rng(1) };
    maker.attention(Shape(2, 4, 0), tokens)
}

#[test]
#[should_panic(expected = "FusedBlock: windows of 4 and 1 tokens")]
fn windows_of_two_sizes_are_refused() {
    let ops = [4, 1].map(|tokens| block_ops(&attention_half(tokens))).concat();
    FusedBlock::new(ops, 8, 4);
}

/// Runs `ops` over one image of eight rows.
fn run_with_masks(ops: &Ops, masks: &[u8]) {
    let block = FusedBlock::new(block_ops(ops), 8, 4);
    let map = RowMap::identity(8);
    block.run(&mut Pool::new(1), 1, FusedRows { map: &map, masks }, &mut [0.5; 64]);
}

#[test]
#[should_panic(expected = "FusedBlock: 3 windows of 4 tokens are not 8 rows")]
fn windows_that_do_not_cover_the_rows_are_refused() {
    run_with_masks(&attention_half(4), &[0, 1, 2]);
}

#[test]
#[should_panic(expected = "WindowAttention: mask 4 is not below 4")]
fn masks_that_an_attention_does_not_have_are_refused() {
    run_with_masks(&attention_half(4), &[0, 4]);
}

#[test]
#[should_panic(expected = "FusedBlock: 2 masks without an attention")]
fn masks_without_an_attention_are_refused() {
    let mut maker = Maker { cpu: Cpu::available()[0], kind: 0, rng: Rng(1) };
    run_with_masks(&maker.mlp(Shape(2, 4, 16)), &[0, 0]);
}

#[test]
fn units_are_windows_or_rows() {
    let block = FusedBlock::new(block_ops(&attention_half(4)), 8, 20);
    assert_eq!((block.unit_rows(), block.units(3, 16)), (4, 12));
    let mut maker = Maker { cpu: Cpu::available()[0], kind: 0, rng: Rng(1) };
    let block = FusedBlock::new(block_ops(&maker.mlp(Shape(2, 4, 16))), 8, 20);
    assert_eq!((block.unit_rows(), block.units(3, 16)), (1, 48));
}
