//! LayerNorm of rows gathered from the residual stream.

use super::{DeviceMap, DeviceStore, StreamType, expect, expect_word, int, row_stride};
use crate::cuda::{
    CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Params, Program, Stream, launch,
};

/// Threads of a block.
const THREADS: u32 = 256;
/// Maximum number of lanes that share a row.
const LANES_PER_ROW: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct NormParams {
    stream: u64,
    map: u64,
    gamma: u64,
    beta: u64,
    out: u64,
    overflow: u64,
    total_rows: i32,
    rows: i32,
    tokens: i32,
    columns: i32,
    stride: i32,
    epsilon: f32,
    recip: f32,
    scale: f32,
}

// SAFETY: `repr(C)`, with the fields of `Params` in norm.cu in the same order.
unsafe impl Params for NormParams {}

/// The sources of the rows.
enum Sources {
    /// Row i is token i.
    Tokens,
    /// One token per row, or padding; rows of padding are set to zero after the norm.
    Rows(DeviceMap),
    /// Four tokens side by side per row; padding tokens are zeros in the input of the norm.
    Merged { map: DeviceSlice, rows: usize, tokens: usize },
}

/// LayerNorm of rows that consist of one or of four source tokens, prepared for a device.
pub struct DeviceNorm {
    kernel: Kernel,
    config: NormConfig,
    gamma: DeviceSlice,
    beta: DeviceSlice,
    epsilon: f32,
    sources: Sources,
    store: DeviceStore,
}

/// Constants for which a norm kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Number of columns of a normalised row.
    pub columns: usize,
    /// Number of source tokens per row: 1 or 4.
    pub pieces: usize,
    /// Element type of the input.
    pub stream: StreamType,
}

impl NormConfig {
    /// Lanes per row, and chunks of 8 elements per lane (f16 streams).
    pub fn lanes_and_chunks(&self) -> (usize, usize) {
        let eights = self.columns.div_ceil(8);
        let lanes = match eights {
            0..=16 => 4,
            17..=32 => 8,
            33..=64 => 16,
            _ => 32,
        };
        (lanes, eights.div_ceil(lanes))
    }

    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        let entry = if self.stream == StreamType::F32 { "norm_exact" } else { "norm_half" };
        let program = Program::new("norm.cu", entry)
            .define("THREADS", THREADS.into())
            .define("PIECES", self.pieces as i64)
            .define("STORE", store.define())
            .define("FAKE", store.is_fake().into());
        if self.stream == StreamType::F32 {
            return program.define("EXACT", 1);
        }
        let (lanes, chunks) = self.lanes_and_chunks();
        program.define("LANES", lanes as i64).define("CHUNKS", chunks as i64)
    }

    /// Launch configuration for `rows` rows.
    pub fn launch(&self, rows: usize) -> LaunchConfig {
        let lanes = if self.stream == StreamType::F32 { 4 } else { self.lanes_and_chunks().0 };
        let blocks = (rows * lanes).div_ceil(THREADS as usize);
        // Gamma and beta.
        let shared = if self.stream == StreamType::F32 { 0 } else { 8 * self.columns as u32 };
        LaunchConfig { pdl: true, shared, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }
}

impl DeviceNorm {
    /// LayerNorm with `gamma` and `beta` of the stream's tokens, in the order of `map` if there is one.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 8.
    pub fn rows(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        stream: StreamType,
        map: Option<DeviceMap>,
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        let sources = map.map_or(Sources::Tokens, Sources::Rows);
        let config = NormConfig { columns: gamma.len(), pieces: 1, stream };
        DeviceNorm::new(device, config, (gamma, beta), epsilon, sources, store)
    }

    /// LayerNorm with `gamma` and `beta` of four tokens side by side. `merge[i]` are the tokens of row i of
    /// an image, which has `tokens` tokens; `None` stands for zeros.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 32, or a token is not below `tokens`.
    pub fn merged(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        stream: StreamType,
        (merge, tokens): (&[[Option<usize>; 4]], usize),
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        assert!(gamma.len().is_multiple_of(32), "merged norm: {} columns", gamma.len());
        assert!(
            merge.iter().flatten().flatten().all(|&t| t < tokens),
            "merged norm: a token is outside 0..{tokens}"
        );
        let map: Vec<u32> = merge.iter().flatten().map(|t| t.map_or(crate::PAD, |t| t as u32)).collect();
        let map = DeviceBuf::from_slice(device, &map)?.all();
        let config = NormConfig { columns: gamma.len(), pieces: 4, stream };
        let sources = Sources::Merged { map, rows: merge.len(), tokens };
        DeviceNorm::new(device, config, (gamma, beta), epsilon, sources, store)
    }

    fn new(
        device: &Device,
        config: NormConfig,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        sources: Sources,
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        assert!(gamma.len() == beta.len() && gamma.len().is_multiple_of(8), "norm: {} columns", gamma.len());
        Ok(DeviceNorm {
            kernel: device.kernel(&config.program(store))?,
            config,
            gamma: DeviceBuf::from_slice(device, gamma)?.all(),
            beta: DeviceBuf::from_slice(device, beta)?.all(),
            epsilon,
            sources,
            store,
        })
    }

    /// Number of rows written and of tokens read per image, given the stream's number of tokens.
    fn rows_and_tokens(&self, tokens: usize) -> (usize, usize) {
        match &self.sources {
            Sources::Tokens => (tokens, tokens),
            Sources::Rows(map) => (map.rows, map.tokens),
            Sources::Merged { rows, tokens, .. } => (*rows, *tokens),
        }
    }

    /// Reads the stream of `images` images of `tokens` tokens and writes their rows. Sets the u32 at
    /// `overflow` to 1 if an f16 stream holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or `tokens` is not the number for which the sources were prepared.
    pub fn run(
        &self,
        on: &Stream,
        (images, tokens): (usize, usize),
        stream: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let (rows, expected) = self.rows_and_tokens(tokens);
        assert_eq!(tokens, expected, "norm: tokens of an image");
        let columns = self.config.columns;
        let stride = row_stride(columns, self.store.element_bytes());
        let piece = columns / self.config.pieces;
        expect("norm: the stream", stream, images * tokens * piece * self.config.stream.bytes());
        expect("norm: the output", out, images * rows * stride * self.store.element_bytes());
        expect_word("norm: the overflow flag", overflow);
        // The kernels count lanes in 32 bits.
        int(images * rows * LANES_PER_ROW);
        let map = match &self.sources {
            Sources::Tokens => None,
            Sources::Rows(map) => Some(&map.slice),
            Sources::Merged { map, .. } => Some(map),
        };
        [stream, out, overflow, &self.gamma, &self.beta].into_iter().chain(map).for_each(|s| on.hold(s));
        let (recip, scale) = self.store.recip_and_scale();
        let params = NormParams {
            stream: stream.ptr(),
            map: map.map_or(0, DeviceSlice::ptr),
            gamma: self.gamma.ptr(),
            beta: self.beta.ptr(),
            out: out.ptr(),
            overflow: overflow.ptr(),
            total_rows: int(images * rows),
            rows: int(rows),
            tokens: int(tokens),
            columns: int(columns),
            stride: int(stride),
            epsilon: self.epsilon,
            recip,
            scale,
        };
        // SAFETY: `NormParams` is the kernel's parameter. The maps were constructed so that every row and
        // token that the kernel accesses is within the lengths checked above; the slices are held.
        unsafe { launch(&self.kernel, self.config.launch(images * rows), on, &params) }
    }
}
