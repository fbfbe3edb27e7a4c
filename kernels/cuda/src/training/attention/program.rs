//! Programs and launch configurations of attention in training.

use super::D;
use crate::training::int;
use crate::{LaunchConfig, Program};

/// Floats from one row of channels to the next in shared memory.
const ROW: usize = D + 4;

/// Windows of up to `WHOLE` tokens process all queries at once; larger ones process `CHUNK` queries at a
/// time.
const WHOLE: usize = 64;
const CHUNK: usize = 48;

/// Maximum blocks of a backward pass; each block produces sums over its windows.
const BLOCKS: usize = 1024;

/// Constants for which attention is compiled.
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
    /// Upper limit of the number of tokens, for every GPU; shared memory may impose a lower one.
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

    /// Number of blocks whose registers must fit on a multiprocessor.
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

    /// The program of the forward pass.
    pub fn forward(self) -> Program {
        self.program("train_attention_forward.cu", "attention_forward")
    }

    /// The program of the backward pass; `steps` says whether it computes the gradients of scales.
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

    /// Launch configuration of the forward pass.
    pub fn forward_launch(self, windows: usize, heads: usize) -> LaunchConfig {
        let shared = 4 * int(self.operands() + self.scores() + self.chunk()).unsigned_abs();
        let blocks = int(windows * heads).unsigned_abs();
        LaunchConfig { shared, ..LaunchConfig::linear(blocks, self.threads()) }
    }

    /// Launch configuration of the backward pass, which divides the windows into parts.
    pub fn backward_launch(self, windows: usize, heads: usize) -> LaunchConfig {
        let floats = self.operands() + self.chunk() * ROW + 2 * self.scores();
        let parts = windows.min((BLOCKS / heads).max(1));
        let grid = [int(heads).unsigned_abs(), int(parts).unsigned_abs(), 1];
        LaunchConfig { grid, threads: self.threads(), shared: 4 * int(floats).unsigned_abs(), pdl: false }
    }
}
