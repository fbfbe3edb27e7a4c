//! What attention compiles to and how it is launched.

use super::D;
use crate::cuda::training::int;
use crate::cuda::{LaunchConfig, Program};

/// Floats from one row of channels to the next in shared memory.
const ROW: usize = D + 4;

/// Windows of up to this many tokens take all queries at once; larger ones this many at a time.
const WHOLE: usize = 64;
const CHUNK: usize = 48;

/// Blocks of a backward pass: each gives sums over its windows.
const BLOCKS: usize = 1024;

/// What attention is specialised for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionProgram {
    /// Tokens of a window.
    pub tokens: usize,
    /// Sites of queries (1), keys (2), values (4) and scores (8) that are on.
    pub sites: u32,
    /// 0: float, 1: unsigned codes, 2: signed codes.
    pub probs: u32,
}

impl AttentionProgram {
    /// The most tokens that any GPU takes.
    pub const MOST_TOKENS: usize = 256;

    fn padded(self) -> usize {
        self.tokens.next_multiple_of(4)
    }

    fn chunk(self) -> usize {
        if self.tokens <= WHOLE { self.padded() } else { CHUNK }
    }

    fn threads(self) -> u32 {
        (2 * self.padded() as u32).next_multiple_of(32)
    }

    /// Blocks of a multiprocessor that there must be registers for.
    fn blocks(self) -> i64 {
        if self.tokens <= WHOLE { 4 } else { 1 }
    }

    fn program(self, file: &'static str, entry: &'static str) -> Program {
        Program::new(file, entry)
            .define("THREADS", self.threads().into())
            .define("MIN_BLOCKS", self.blocks())
            .define("N", self.tokens as i64)
            .define("CHUNK", self.chunk() as i64)
            .define("SITES", self.sites.into())
            .define("PROBS", self.probs.into())
    }

    /// The forward pass.
    pub fn forward(self) -> Program {
        self.program("train_attention_forward.cu", "attention_forward")
    }

    /// The backward pass; `steps` says whether gradients of steps are wanted.
    pub fn backward(self, steps: bool) -> Program {
        let program = self.program("train_attention_backward.cu", "attention_backward");
        program.define("STEPS", steps.into())
    }

    /// Floats of keys, values and a chunk of queries.
    fn operands(self) -> usize {
        (2 * self.padded() + self.chunk()) * ROW
    }

    /// Floats of a chunk's scores.
    fn scores(self) -> usize {
        self.chunk() * (self.padded() + 4)
    }

    /// How the forward pass is launched.
    pub fn forward_launch(self, windows: usize, heads: usize) -> LaunchConfig {
        let shared = 4 * int(self.operands() + self.scores() + self.chunk()).unsigned_abs();
        let blocks = int(windows * heads).unsigned_abs();
        LaunchConfig { shared, ..LaunchConfig::linear(blocks, self.threads()) }
    }

    /// How the backward pass is launched, in parts of the windows.
    pub fn backward_launch(self, windows: usize, heads: usize) -> LaunchConfig {
        let floats = self.operands() + self.chunk() * ROW + 2 * self.scores();
        let parts = windows.min((BLOCKS / heads).max(1));
        let grid = [int(heads).unsigned_abs(), int(parts).unsigned_abs(), 1];
        LaunchConfig { grid, threads: self.threads(), shared: 4 * int(floats).unsigned_abs(), pdl: false }
    }
}
