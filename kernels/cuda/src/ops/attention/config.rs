//! The kernel for an attention: its program, and the launch.

use super::HEAD_DIM;
use super::bias::{bias_fragments, bias_rows};
use crate::ops::DeviceStore;
use crate::{LaunchConfig, Program};

/// Most tokens of a window that four warps have at once.
const SMALL_TOKENS: usize = 64;
/// Most tokens of a window if a multiprocessor is to have two blocks.
const TWO_BLOCKS: usize = 144;
/// Most tokens of a window that a block has at once.
const WHOLE_TOKENS: usize = 256;
/// Number of tokens that the kernel for tiles processes at a time.
const TILE: usize = 64;
/// Windows of up to this many f16 tokens are compiled for [`TINY_BLOCKS`].
const TINY_TOKENS: usize = 40;
/// Number of blocks of tiny f16 windows that the compiler leaves registers for.
const TINY_BLOCKS: i64 = 4;
/// Number of blocks of bit-exact tiled kernels with u8 probabilities that the compiler leaves registers for.
const TILED_BLOCKS: i64 = 3;
/// Parts of a multiprocessor, each with warps of its own; the registers of each; and the most that a thread
/// has.
const SCHEDULERS: u32 = 4;
const REGISTERS: u32 = 16_384;
const MOST_REGISTERS: u32 = 248;
/// Maximum registers of a thread in the tiled kernels.
const TILED_REGISTERS: u32 = 168;

/// Element type of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionElements {
    /// INT8 codes; probabilities are INT8 codes too.
    Codes,
    /// f16, summed in f32.
    Half,
}

/// Constants for which an attention kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Element type of the input.
    pub elements: AttentionElements,
    /// Number of tokens of a window.
    pub tokens: usize,
    /// Number of heads.
    pub heads: usize,
    /// Columns of a head ([`super::head_columns`]).
    pub head_dim: usize,
    /// Whether probabilities are of kind `s8`.
    pub probs_s8: bool,
    /// Whether exponentials are bit-exact to the reference; if not, the GPU's exponential unit computes them.
    pub exact: bool,
    /// Whether each head has a factor of `q k^T` of its own.
    pub head_scales: bool,
    /// Whether queries and keys of some heads have hi and lo codes for each value.
    pub hi_lo: bool,
    /// Added to the logits of tokens of different regions.
    pub mask: f32,
    /// Bytes of shared memory that a block may have on the GPU.
    pub limit: u32,
}

/// The kernel for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Windows of up to [`SMALL_TOKENS`]: a block of four warps, which keeps the bias in registers.
    Small,
    /// Windows of up to [`WHOLE_TOKENS`]: a warp for each 16 queries.
    Large {
        /// Number of blocks that share the queries of a window.
        parts: usize,
        /// Whether the bias lies in shared memory; if not, it is read through the caches.
        shared_bias: bool,
    },
    /// Other windows and wide heads, in tiles of [`TILE`] tokens.
    Tiles,
}

impl AttentionConfig {
    /// The kernel for the window. With hi and lo codes and probabilities of kind `s8`, the kernels for whole
    /// windows would need more registers than some GPUs have.
    fn layout(&self) -> Layout {
        let large = |parts, shared_bias| Layout::Large { parts, shared_bias };
        let layouts: &[Layout] = match (self.tokens, self.hi_lo) {
            _ if self.head_dim > HEAD_DIM => &[],
            (_, true) if self.probs_s8 => &[],
            (..=SMALL_TOKENS, _) => return Layout::Small,
            (..=TWO_BLOCKS, _) => &[large(1, true), large(1, false)],
            // The bias of so many operands in shared memory would leave room for one block of half as many
            // warps.
            (..=WHOLE_TOKENS, true) => &[large(2, false)],
            (..=WHOLE_TOKENS, false) => &[large(1, true), large(2, true), large(2, false)],
            _ => &[],
        };
        let fits = |&layout: &Layout| self.shared_of(layout) <= self.limit;
        layouts.iter().copied().find(fits).unwrap_or(Layout::Tiles)
    }

    /// Whether a block has all keys of a window at once.
    pub fn whole(&self) -> bool {
        self.layout() != Layout::Tiles
    }

    /// Number of blocks that share the queries of a window.
    fn parts(&self) -> usize {
        match self.layout() {
            Layout::Small => 1,
            Layout::Large { parts, .. } => parts,
            Layout::Tiles => self.tokens.div_ceil(TILE),
        }
    }

    /// Number of warps of a block of this layout. Each has 16 queries at a time.
    fn warps(&self, layout: Layout) -> usize {
        match layout {
            Layout::Small | Layout::Tiles => TILE / 16,
            Layout::Large { parts, .. } => self.tokens.div_ceil(16).div_ceil(parts),
        }
    }

    fn threads(&self) -> u32 {
        32 * self.warps(self.layout()) as u32
    }

    /// Tiles of 8 keys of a whole window; above [`SMALL_TOKENS`] an even number.
    fn key_tiles(&self) -> usize {
        match self.tokens {
            ..=SMALL_TOKENS => self.tokens.div_ceil(8),
            tokens => 2 * tokens.div_ceil(16),
        }
    }

    /// Tokens of a window padded to the queries of its blocks, as in the layout of bias and regions.
    pub fn padded(&self) -> usize {
        self.parts() * self.threads() as usize / 2
    }

    /// Factor that the logits' scale and bias are multiplied by: 1 if `exact`, else log2(e), because the
    /// exponential unit computes powers of two.
    pub fn logit_unit(&self) -> f32 {
        if self.exact { 1.0 } else { std::f32::consts::LOG2_E }
    }

    /// The bias `[heads, n, n]` in the layout and the unit of the kernel, as bytes.
    ///
    /// # Panics
    /// If there are not as many values.
    pub fn packed_bias(&self, bias: &[f32]) -> Vec<u8> {
        let (n, heads) = (self.tokens, self.heads);
        assert_eq!(bias.len(), heads * n * n, "attention: bias is not [{heads}, {n}, {n}]");
        if !matches!(self.layout(), Layout::Large { .. }) {
            return bias_rows(bias, n, self.padded(), self.logit_unit());
        }
        bias_fragments(bias, n, (self.padded() / 16, self.key_tiles()), !self.exact)
    }

    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        let (i8, f16) = match self.layout() {
            Layout::Small => (["attention_i8.cu", "attention_i8"], ["attention_f16.cu", "attention_f16"]),
            Layout::Large { .. } => (
                ["attention_large_i8.cu", "attention_large_i8"],
                ["attention_large_f16.cu", "attention_large_f16"],
            ),
            Layout::Tiles => {
                (["attention_tiled.cu", "attention_i8_tiled"], ["attention_tiled.cu", "attention_f16_tiled"])
            }
        };
        let [file, entry] = if self.elements == AttentionElements::Codes { i8 } else { f16 };
        let program = Program::new(file, entry)
            .define("THREADS", self.threads().into())
            .define("STORE", store.define())
            .define("FAKE", store.is_fake().into())
            .define("EXACT", self.exact.into())
            .define("HEAD_SCALES", self.head_scales.into())
            .define("MASK_BITS", (self.mask * self.logit_unit()).to_bits().into());
        let program = match self.elements {
            AttentionElements::Codes => {
                program.define("PROBS_S8", self.probs_s8.into()).define("HI_LO", self.hi_lo.into())
            }
            AttentionElements::Half => program,
        };
        match self.layout() {
            Layout::Small => self.small_program(program),
            Layout::Large { shared_bias, .. } => self.large_program(program, shared_bias),
            Layout::Tiles => self.tiled_program(program),
        }
    }

    fn small_program(&self, program: Program) -> Program {
        let program = program.define("KEY_TILES", self.key_tiles() as i64);
        // Without a number of blocks the compiler spills registers of small windows so that more blocks fit.
        let tiny = self.elements == AttentionElements::Half && self.tokens <= TINY_TOKENS;
        if tiny { program.define("MIN_BLOCKS", TINY_BLOCKS) } else { program }
    }

    fn large_program(&self, program: Program, shared_bias: bool) -> Program {
        let (held, blocks) = (self.held(), self.large_blocks() as u32);
        let program = program.define("KEY_TILES", self.key_tiles() as i64).define("HELD", held as i64);
        let program =
            program.define("HALF_BIAS", (!self.exact).into()).define("SHARED_BIAS", shared_bias.into());
        // The compiler spills registers so that more blocks fit, unless it is told how many it may use; where
        // it needs few, how many blocks there are.
        if held == 0 {
            return program.define("MIN_BLOCKS", blocks.into());
        }
        let warps = (blocks * self.threads() / 32).div_ceil(SCHEDULERS);
        let registers = (REGISTERS / 32 / warps / 8 * 8).min(MOST_REGISTERS);
        Program { max_registers: Some(registers), ..program }
    }

    fn tiled_program(&self, program: Program) -> Program {
        // Without a number of blocks the compiler spills a register so that one more block fits. Heads of
        // more than 32 columns spill with it, and not without it.
        let integer = self.elements == AttentionElements::Codes;
        let tight = integer && self.exact && !self.probs_s8 && !self.hi_lo && self.head_dim <= HEAD_DIM;
        let program = if tight { program.define("MIN_BLOCKS", TILED_BLOCKS) } else { program };
        let program = program.define("INTEGER", integer.into()).define("HEAD_DIM", self.head_dim as i64);
        // Without the limit the compiler spills a register so that one more block fits.
        Program { max_registers: Some(TILED_REGISTERS), ..program }
    }

    /// Bytes of shared memory of a block.
    pub fn shared(&self) -> u32 {
        self.shared_of(self.layout())
    }

    /// Bytes of shared memory of a block of this layout. Of whole windows: the operands of two, the
    /// transposed INT8 values, and the bias.
    fn shared_of(&self, layout: Layout) -> u32 {
        let queries = 16 * self.warps(layout);
        let (keys, shared_bias) = match layout {
            Layout::Small => (SMALL_TOKENS, false),
            Layout::Large { shared_bias, .. } => (8 * self.key_tiles(), shared_bias),
            Layout::Tiles => return self.tiled_shared(),
        };
        let low = if self.hi_lo { queries + keys } else { 0 };
        let rows = queries + 2 * keys + low;
        let operands = match self.elements {
            AttentionElements::Codes => 2 * rows * 48 + 32 * (keys.next_multiple_of(32) + 16),
            AttentionElements::Half => 2 * rows * 80,
        };
        let each = if self.exact { 4 } else { 2 };
        let bias = if shared_bias { queries * keys * each } else { 0 };
        (operands + bias) as u32
    }

    /// Bytes of shared memory of a block of the kernel for tiles: queries, then the keys and values of every
    /// tile, then the transposed INT8 values; lo codes of queries and keys.
    fn tiled_shared(&self) -> u32 {
        let padded = self.tokens.next_multiple_of(TILE);
        let row = self.head_dim * if self.elements == AttentionElements::Codes { 1 } else { 2 } + 16;
        let low = if self.hi_lo { (TILE + padded) * row } else { 0 };
        let bytes = match self.elements {
            AttentionElements::Codes => (TILE + 2 * padded) * row + padded / TILE * self.head_dim * 80 + low,
            AttentionElements::Half => (TILE + 2 * padded) * row,
        };
        bytes as u32
    }

    /// Number of blocks for each multiprocessor, for whole windows: as many as it runs at the same time.
    /// With hi and lo codes twice as many, because blocks of heads with one code end earlier.
    fn blocks(&self) -> usize {
        match (self.elements, self.hi_lo, self.tokens) {
            (_, true, 65..) => 2 * self.large_blocks(),
            (_, false, 65..) => self.large_blocks(),
            (AttentionElements::Codes, true, _) => 2 * 4,
            (AttentionElements::Codes, false, 57..) => 5,
            (AttentionElements::Codes, false, _) if self.head_scales => 5,
            _ => 6,
        }
    }

    /// Whether logits of a window of 65 to 144 tokens need so few registers that two blocks fit.
    fn light(&self) -> bool {
        let few = self.elements == AttentionElements::Codes && !self.probs_s8 && !self.hi_lo && !self.exact;
        few && self.tokens <= TWO_BLOCKS
    }

    /// Number of blocks of windows of more than 64 tokens that the compiler leaves registers for.
    fn large_blocks(&self) -> usize {
        let halves = self.layout() == Layout::Large { parts: 2, shared_bias: false };
        if self.light() || halves { 2 } else { 1 }
    }

    /// Tiles of 8 keys whose logits stay in registers: as many as fit without local memory, on every GPU.
    fn held(&self) -> usize {
        match self.elements {
            _ if self.light() => 16,
            _ if self.tokens > TWO_BLOCKS => 0,
            AttentionElements::Codes if self.hi_lo => 0,
            AttentionElements::Half if self.head_scales => 0,
            _ => 12,
        }
    }

    /// Number of windows that a block processes, and the launch configuration for `total` windows on a device
    /// with `multiprocessors`. A block loads the bias once for all its windows, so there are few blocks.
    pub fn launch(&self, total: usize, multiprocessors: usize) -> (usize, LaunchConfig) {
        let parts = self.parts();
        let each = match self.whole() {
            true => (total * self.heads * parts).div_ceil(multiprocessors * self.blocks()),
            false => 1,
        };
        let grid = [(total.div_ceil(each) * self.heads) as u32, parts as u32, 1];
        (each, LaunchConfig { grid, threads: self.threads(), shared: self.shared(), pdl: true })
    }
}
