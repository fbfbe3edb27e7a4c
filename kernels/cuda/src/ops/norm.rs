//! LayerNorm of rows gathered from the residual stream, or of the rows of a branch that are added to it.

use swinq_numerics::{Quantizer, RowMap};

use super::rows::{RowsParams, Sources, THREADS, row_program};
use super::{DeviceMap, DeviceStore, StreamType, expect, expect_word, int, row_stride};
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Maximum number of lanes that share a row.
const LANES_PER_ROW: usize = 32;

/// What happens to the norm of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormResult {
    /// It is stored.
    Store(DeviceStore),
    /// It is added to the row's token of the stream.
    Add,
    /// As [`NormResult::Add`]; the codes of the sums are stored, too.
    AddAndCode(Quantizer),
}

impl NormResult {
    /// How the op stores rows besides the stream.
    fn store(self, stream: StreamType) -> DeviceStore {
        match (self, stream) {
            (NormResult::Store(store), _) => store,
            (NormResult::AddAndCode(q), _) => DeviceStore::Codes(q),
            (NormResult::Add, StreamType::F16) => DeviceStore::Half,
            (NormResult::Add, StreamType::F32) => DeviceStore::Float,
        }
    }

    fn define(self) -> i64 {
        match self {
            NormResult::Store(_) => 0,
            NormResult::Add => 1,
            NormResult::AddAndCode(_) => 2,
        }
    }
}

/// LayerNorm of rows that consist of one or of four source tokens, prepared for a device.
pub struct DeviceNorm {
    kernel: Kernel,
    config: NormConfig,
    gamma: DeviceSlice,
    beta: DeviceSlice,
    epsilon: f32,
    sources: Sources,
    result: NormResult,
    /// The row of the codes of each token of an image; `None` if token t is row t.
    code_rows: Option<DeviceSlice>,
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

    /// The program for `result`.
    pub fn program(&self, result: NormResult) -> Program {
        let entry = if self.stream == StreamType::F32 { "norm_exact" } else { "norm_half" };
        let program = row_program(("norm.cu", entry), self.pieces, self.stream, result.store(self.stream))
            .define("ADD", result.define());
        if self.stream == StreamType::F32 {
            return program;
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
        let config = NormConfig { columns: gamma.len(), pieces: 1, stream };
        let sources = map.map_or(Sources::Tokens, Sources::Rows);
        DeviceNorm::new(device, config, (gamma, beta), epsilon, sources, NormResult::Store(store))
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
        merge: (&[[Option<usize>; 4]], usize),
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        let config = NormConfig { columns: gamma.len(), pieces: 4, stream };
        let sources = Sources::merged(device, config.columns, merge)?;
        DeviceNorm::new(device, config, (gamma, beta), epsilon, sources, NormResult::Store(store))
    }

    /// LayerNorm with `gamma` and `beta` of the rows of a branch, which have the type of the stream and the order of
    /// `map` if there is one. The results are added to the stream's tokens. With `codes`, the codes of the sums are
    /// stored in the order of its map, or in the order of the tokens.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 8, or the map of `codes` has padding.
    pub fn residual(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        stream: StreamType,
        map: Option<DeviceMap>,
        codes: Option<(Quantizer, Option<&RowMap>)>,
    ) -> Result<DeviceNorm, CudaError> {
        let config = NormConfig { columns: gamma.len(), pieces: 1, stream };
        let sources = map.map_or(Sources::Tokens, Sources::Rows);
        let result = codes.map_or(NormResult::Add, |(quantizer, _)| NormResult::AddAndCode(quantizer));
        let mut norm = DeviceNorm::new(device, config, (gamma, beta), epsilon, sources, result)?;
        if let Some((_, Some(map))) = codes {
            let rows = rows_of_tokens(map).expect("the order of the codes has no padding");
            norm.code_rows = Some(DeviceBuf::from_slice(device, &rows)?.all());
        }
        Ok(norm)
    }

    fn new(
        device: &Device,
        config: NormConfig,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        sources: Sources,
        result: NormResult,
    ) -> Result<DeviceNorm, CudaError> {
        assert!(gamma.len() == beta.len() && gamma.len().is_multiple_of(8), "norm: {} columns", gamma.len());
        Ok(DeviceNorm {
            kernel: device.kernel(&config.program(result))?,
            config,
            gamma: DeviceBuf::from_slice(device, gamma)?.all(),
            beta: DeviceBuf::from_slice(device, beta)?.all(),
            epsilon,
            sources,
            result,
            code_rows: None,
        })
    }

    /// Whether the op adds to the stream.
    pub fn adds(&self) -> bool {
        !matches!(self.result, NormResult::Store(_))
    }

    /// Reads the stream of `images` images of `tokens` tokens and writes their rows. Sets the u32 at
    /// `overflow` to 1 if an f16 stream holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, `tokens` is not the number for which the sources were prepared, or the op adds to the
    /// stream.
    pub fn run(
        &self,
        on: &Stream,
        (images, tokens): (usize, usize),
        stream: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let NormResult::Store(store) = self.result else { panic!("the norm adds to the stream") };
        let (rows, expected) = self.sources.rows_and_tokens(tokens);
        assert_eq!(tokens, expected, "norm: tokens of an image");
        let columns = self.config.columns;
        let stride = row_stride(columns, store.element_bytes());
        let piece = columns / self.config.pieces;
        expect("norm: the stream", stream, &[images, tokens, piece, self.config.stream.bytes()]);
        expect("norm: the output", out, &[images, rows, stride, store.element_bytes()]);
        let params = self.params((images, rows, tokens), stream, out, overflow);
        // SAFETY: `RowsParams` is the kernel's parameter. The maps were constructed so that every row and
        // token that the kernel accesses is within the lengths checked above; the slices are held.
        unsafe { self.launch(on, images * rows, &[stream, out, overflow], &params) }
    }

    /// Normalises the rows of the branches of `images` images and adds them to their `stream` of `tokens` tokens, where
    /// [`DeviceNorm::adds`]. `codes` are written if the op was prepared with codes. Sets the u32 at `overflow` as
    /// [`DeviceNorm::run`] does, for the branch.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, `tokens` is not the number for which the op was prepared, `codes` is missing or not
    /// expected, or the op does not add to the stream.
    pub fn run_residual(
        &self,
        on: &Stream,
        (images, tokens): (usize, usize),
        branch: &DeviceSlice,
        stream: &DeviceSlice,
        codes: Option<&DeviceSlice>,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        assert!(self.adds(), "the norm does not add to the stream");
        assert_eq!(codes.is_some(), matches!(self.result, NormResult::AddAndCode(_)), "norm: codes");
        let (rows, expected) = self.sources.rows_and_tokens(tokens);
        assert_eq!(tokens, expected, "norm: tokens of an image");
        let (columns, bytes) = (self.config.columns, self.config.stream.bytes());
        expect("norm: the branch", branch, &[images, rows, columns, bytes]);
        expect("norm: the stream", stream, &[images, tokens, columns, bytes]);
        let mut params = self.params((images, rows, tokens), branch, stream, overflow);
        if let Some(codes) = codes {
            expect("norm: the codes", codes, &[images, tokens, row_stride(columns, 1)]);
            on.hold(codes);
            params.codes = codes.ptr();
            params.code_rows = self.code_rows.as_ref().map_or(0, DeviceSlice::ptr);
            self.code_rows.iter().for_each(|rows| on.hold(rows));
        }
        // SAFETY: as in `run`; `code_rows` has a row below `tokens` for each token.
        unsafe { self.launch(on, images * rows, &[branch, stream, overflow], &params) }
    }

    fn params(
        &self,
        (images, rows, tokens): (usize, usize, usize),
        input: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> RowsParams {
        expect_word("norm: the overflow flag", overflow);
        // The kernels count lanes in 32 bits.
        int(images * rows * LANES_PER_ROW);
        let store = self.result.store(self.config.stream);
        let slices = [input, out, overflow];
        let mut params =
            RowsParams::new(&self.sources, (images, rows, tokens), self.config.columns, store, slices);
        (params.gamma, params.beta, params.epsilon) = (self.gamma.ptr(), self.beta.ptr(), self.epsilon);
        params
    }

    /// Launches the kernel for `rows` rows.
    ///
    /// # Safety
    /// All memory that `params` points to is as long as the kernel expects, and is that of `slices` or of the op.
    unsafe fn launch(
        &self,
        on: &Stream,
        rows: usize,
        slices: &[&DeviceSlice],
        params: &RowsParams,
    ) -> Result<(), CudaError> {
        let own = [&self.gamma, &self.beta].into_iter().chain(self.sources.map());
        slices.iter().copied().chain(own).for_each(|slice| on.hold(slice));
        // SAFETY: the caller's promise; `RowsParams` is the kernel's parameter.
        unsafe { launch(&self.kernel, self.config.launch(rows), on, params) }
    }
}

/// The row of each token, if no row is padding.
pub fn rows_of_tokens(map: &RowMap) -> Option<Vec<u32>> {
    let mut rows = vec![0; map.tokens()];
    for (row, &token) in map.rows().iter().enumerate() {
        *rows.get_mut(token as usize)? = row as u32;
    }
    Some(rows)
}
