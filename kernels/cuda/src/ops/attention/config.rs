//! The kernel for an attention: its program, and the launch.

use super::bias::{bias_fragments, bias_rows};
use crate::ops::DeviceStore;
use crate::{LaunchConfig, Program};

/// Most tokens of a window whose bias stays in registers.
const SMALL_TOKENS: usize = 64;
/// Most tokens of a window of which a multiprocessor has two blocks.
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
/// Parts of a multiprocessor, each with warps of its own; the registers of each; and the most that a thread has.
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

/// Where a kernel has the bias of its queries. `attention.cuh` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BiasPlace {
    /// In registers: windows of up to [`SMALL_TOKENS`].
    Registers = 0,
    /// In shared memory: windows of up to [`WHOLE_TOKENS`].
    Shared = 1,
    /// In global memory, read through the caches: the same windows on GPUs with less shared memory.
    Global = 2,
    /// In rows in global memory, which the kernel for windows in tiles reads.
    Rows = 3,
}

impl AttentionConfig {
    /// Where the kernel has the bias, and the number of blocks that share the queries of a window. With hi and lo codes and
    /// probabilities of kind `s8`, the kernels for whole windows would need more registers than some GPUs have.
    fn layout(&self) -> (BiasPlace, usize) {
        use BiasPlace::{Global, Registers, Rows, Shared};
        let layouts: &[(BiasPlace, usize)] = match self.tokens {
            _ if self.hi_lo && self.probs_s8 => &[],
            ..=SMALL_TOKENS => &[(Registers, 1)],
            ..=TWO_BLOCKS => &[(Shared, 1), (Global, 1)],
            // The bias of so many operands in shared memory would leave room for one block of half as many warps.
            ..=WHOLE_TOKENS if self.hi_lo => &[(Global, 2)],
            ..=WHOLE_TOKENS => &[(Shared, 1), (Shared, 2), (Global, 2)],
            _ => &[],
        };
        let fits = |&layout: &(BiasPlace, usize)| self.whole_shared(layout) <= self.limit;
        layouts.iter().copied().find(fits).unwrap_or((Rows, self.tokens.div_ceil(TILE)))
    }

    fn place(&self) -> BiasPlace {
        self.layout().0
    }

    /// Whether a block has all keys of a window at once.
    pub fn whole(&self) -> bool {
        self.place() != BiasPlace::Rows
    }

    /// Number of warps of a block that has all queries of a window, or one part of several. Each has 16 queries.
    fn warps(&self, parts: usize) -> usize {
        match self.tokens {
            ..=SMALL_TOKENS => SMALL_TOKENS / 16,
            tokens => tokens.div_ceil(16).div_ceil(parts),
        }
    }

    fn threads(&self) -> u32 {
        let warps = match self.layout() {
            (BiasPlace::Rows, _) => TILE / 16,
            (_, parts) => self.warps(parts),
        };
        32 * warps as u32
    }

    /// Tiles of 8 keys of a window in registers; above [`SMALL_TOKENS`] an even number.
    fn key_tiles(&self) -> usize {
        match self.tokens {
            ..=SMALL_TOKENS => self.tokens.div_ceil(8),
            tokens => 2 * tokens.div_ceil(16),
        }
    }

    /// Tokens of a window padded to the queries of its blocks, as in the layout of bias and regions.
    pub fn padded(&self) -> usize {
        self.layout().1 * self.threads() as usize / 2
    }

    /// Factor that the logits' scale and bias are multiplied by: 1 if `exact`, else log2(e), because the
    /// exponential unit computes powers of two.
    pub fn logit_unit(&self) -> f32 {
        if self.exact { 1.0 } else { std::f32::consts::LOG2_E }
    }

    /// Whether the bias is f16. In registers it needs no less room that way.
    fn half_bias(&self) -> bool {
        !self.exact && matches!(self.place(), BiasPlace::Shared | BiasPlace::Global)
    }

    /// The bias `[heads, n, n]` in the layout and the unit of the kernel, as bytes.
    ///
    /// # Panics
    /// If there are not as many values.
    pub fn packed_bias(&self, bias: &[f32]) -> Vec<u8> {
        let (n, heads) = (self.tokens, self.heads);
        assert_eq!(bias.len(), heads * n * n, "attention: bias is not [{heads}, {n}, {n}]");
        if !self.whole() {
            return bias_rows(bias, n, self.padded(), self.logit_unit());
        }
        let tiles = (self.padded() / 16, self.key_tiles());
        if self.half_bias() {
            return bias_fragments(bias, n, tiles, true);
        }
        let scaled: Vec<f32> = bias.iter().map(|bias| bias * self.logit_unit()).collect();
        bias_fragments(&scaled, n, tiles, false)
    }

    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        let (file, entry) = match (self.elements, self.whole()) {
            (AttentionElements::Codes, true) => ("attention_i8.cu", "attention_i8"),
            (AttentionElements::Half, true) => ("attention_f16.cu", "attention_f16"),
            (AttentionElements::Codes, false) => ("attention_tiled.cu", "attention_i8_tiled"),
            (AttentionElements::Half, false) => ("attention_tiled.cu", "attention_f16_tiled"),
        };
        let program = Program::new(file, entry)
            .define("THREADS", self.threads().into())
            .define("BIAS", self.place() as i64)
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
        match self.place() {
            BiasPlace::Rows => self.tiled_program(program),
            BiasPlace::Registers => {
                let tiles = self.key_tiles() as i64;
                let program = program.define("KEY_TILES", tiles).define("HELD", tiles);
                // Without a number of blocks the compiler spills registers of small windows so that more blocks fit.
                let tiny = self.elements == AttentionElements::Half && self.tokens <= TINY_TOKENS;
                if tiny { program.define("MIN_BLOCKS", TINY_BLOCKS) } else { program }
            }
            BiasPlace::Shared | BiasPlace::Global => self.large_program(program),
        }
    }

    fn large_program(&self, program: Program) -> Program {
        // The compiler spills registers so that more blocks fit, unless it is told how many it may use.
        let warps = (self.large_blocks() as u32 * self.threads() / 32).div_ceil(SCHEDULERS);
        let registers = (REGISTERS / 32 / warps / 8 * 8).min(MOST_REGISTERS);
        let program = program.define("KEY_TILES", self.key_tiles() as i64).define("HELD", self.held() as i64);
        Program { max_registers: Some(registers), ..program.define("HALF_BIAS", self.half_bias().into()) }
    }

    fn tiled_program(&self, program: Program) -> Program {
        // Without a number of blocks the compiler spills a register so that one more block fits.
        let integer = self.elements == AttentionElements::Codes;
        let tight = integer && self.exact && !self.probs_s8 && !self.hi_lo;
        let program = if tight { program.define("MIN_BLOCKS", TILED_BLOCKS) } else { program };
        // Without the limit the compiler spills a register so that one more block fits.
        Program { max_registers: Some(TILED_REGISTERS), ..program.define("INTEGER", integer.into()) }
    }

    /// Bytes of shared memory of a block.
    pub fn shared(&self) -> u32 {
        match self.layout() {
            (BiasPlace::Rows, _) => self.tiled_shared(),
            layout => self.whole_shared(layout),
        }
    }

    /// Bytes of shared memory of a block that has a whole window: the operands of two windows, the transposed INT8 values, and the
    /// bias.
    fn whole_shared(&self, (place, parts): (BiasPlace, usize)) -> u32 {
        let queries = 16 * self.warps(parts);
        let keys = if place == BiasPlace::Registers { SMALL_TOKENS } else { 8 * self.key_tiles() };
        let low = if self.hi_lo { queries + keys } else { 0 };
        let rows = queries + 2 * keys + low;
        let operands = match self.elements {
            AttentionElements::Codes => 2 * rows * 48 + 32 * (keys.next_multiple_of(32).max(64) + 16),
            AttentionElements::Half => 2 * rows * 80,
        };
        let bytes = if self.exact { 4 } else { 2 };
        let bias = if place == BiasPlace::Shared { queries * keys * bytes } else { 0 };
        (operands + bias) as u32
    }

    /// Bytes of shared memory of a block of the kernel for tiles: queries, then the keys and values of every tile, then the
    /// transposed INT8 values; lo codes of queries and keys.
    fn tiled_shared(&self) -> u32 {
        let padded = self.tokens.next_multiple_of(TILE);
        let low = if self.hi_lo { (TILE + padded) * 48 } else { 0 };
        let bytes = match self.elements {
            AttentionElements::Codes => TILE * 48 + 2 * padded * 48 + padded / TILE * 32 * 80 + low,
            AttentionElements::Half => TILE * 80 + 2 * padded * 80,
        };
        bytes as u32
    }

    /// Number of blocks for each multiprocessor, for whole windows: as many as it runs at the same time.
    /// With hi and lo codes twice as many, because blocks of heads with one code end earlier.
    fn blocks(&self) -> usize {
        let both = if self.hi_lo { 2 } else { 1 };
        match (self.elements, self.tokens) {
            (_, 65..) => both * self.large_blocks(),
            (AttentionElements::Codes, _) if self.hi_lo => both * 4,
            (AttentionElements::Codes, 57..) => 5,
            (AttentionElements::Codes, _) if self.head_scales => 5,
            _ => 6,
        }
    }

    /// Whether logits of a window of 65 to 144 tokens need so few registers that two blocks fit.
    fn light(&self) -> bool {
        let few = self.elements == AttentionElements::Codes && !self.probs_s8 && !self.hi_lo && !self.exact;
        few && self.tokens <= TWO_BLOCKS
    }

    /// Number of blocks of windows of more than 64 tokens that a multiprocessor runs at the same time.
    fn large_blocks(&self) -> usize {
        let halves = self.layout() == (BiasPlace::Global, 2);
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
        let (_, parts) = self.layout();
        let each = match self.whole() {
            true => (total * self.heads * parts).div_ceil(multiprocessors * self.blocks()),
            false => 1,
        };
        let grid = [(total.div_ceil(each) * self.heads) as u32, parts as u32, 1];
        (each, LaunchConfig { grid, threads: self.threads(), shared: self.shared(), pdl: true })
    }
}
