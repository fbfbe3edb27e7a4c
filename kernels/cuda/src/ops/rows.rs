//! Rows gathered from the residual stream without a norm (Swin V2), and what they share with the norms.

use super::{DeviceMap, DeviceStore, StreamType, expect, expect_word, int, row_stride};
use crate::{
    CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Params, Program, Stream, launch,
};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// Parameters of the kernels in `norm.cu` and `rows.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RowsParams {
    input: u64,
    map: u64,
    pub(super) gamma: u64,
    pub(super) beta: u64,
    out: u64,
    overflow: u64,
    pub(super) codes: u64,
    pub(super) code_rows: u64,
    total_rows: i32,
    rows: i32,
    tokens: i32,
    columns: i32,
    stride: i32,
    pub(super) epsilon: f32,
    recip: f32,
    scale: f32,
}

// SAFETY: `repr(C)`, with the fields of `Params` in rows.cuh in the same order.
unsafe impl Params for RowsParams {}

impl RowsParams {
    /// Parameters without a norm and without codes of the stream.
    pub(super) fn new(
        sources: &Sources,
        (images, rows, tokens): (usize, usize, usize),
        columns: usize,
        store: DeviceStore,
        [input, out, overflow]: [&DeviceSlice; 3],
    ) -> RowsParams {
        let (recip, scale) = store.recip_and_scale();
        RowsParams {
            input: input.ptr(),
            map: sources.map().map_or(0, DeviceSlice::ptr),
            gamma: 0,
            beta: 0,
            out: out.ptr(),
            overflow: overflow.ptr(),
            codes: 0,
            code_rows: 0,
            total_rows: int(images * rows),
            rows: int(rows),
            tokens: int(tokens),
            columns: int(columns),
            stride: int(row_stride(columns, store.element_bytes())),
            epsilon: 0.0,
            recip,
            scale,
        }
    }
}

/// A program of `rows.cuh` with the defines that it needs: `(file, entry)`, the source tokens of a row, the type of
/// the input, and how rows are stored.
pub(super) fn row_program(
    (file, entry): (&'static str, &'static str),
    pieces: usize,
    stream: StreamType,
    store: DeviceStore,
) -> Program {
    let program = Program::new(file, entry)
        .define("THREADS", THREADS.into())
        .define("PIECES", pieces as i64)
        .define("STORE", store.define())
        .define("FAKE", store.is_fake().into());
    if stream == StreamType::F32 { program.define("EXACT", 1) } else { program }
}

/// The tokens of the rows.
pub(super) enum Sources {
    /// Row i is token i.
    Tokens,
    /// One token per row, or padding; rows of padding are zeros.
    Rows(DeviceMap),
    /// Four tokens side by side per row; padding tokens are zeros.
    Merged { map: DeviceSlice, rows: usize, tokens: usize },
}

impl Sources {
    /// Four tokens side by side, for rows of `columns` columns. `merge[i]` are the tokens of row i of an image, which
    /// has `tokens` tokens.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 32, or a token is not below `tokens`.
    pub(super) fn merged(
        device: &Device,
        columns: usize,
        (merge, tokens): (&[[Option<usize>; 4]], usize),
    ) -> Result<Sources, CudaError> {
        assert!(columns.is_multiple_of(32), "merged rows: {columns} columns");
        assert!(
            merge.iter().flatten().flatten().all(|&t| t < tokens),
            "merged rows: a token is outside 0..{tokens}"
        );
        let map: Vec<u32> =
            merge.iter().flatten().map(|t| t.map_or(swinq_numerics::PAD, |t| t as u32)).collect();
        let map = DeviceBuf::from_slice(device, &map)?.all();
        Ok(Sources::Merged { map, rows: merge.len(), tokens })
    }

    /// Number of rows and of tokens per image, given the stream's number of tokens.
    pub(super) fn rows_and_tokens(&self, tokens: usize) -> (usize, usize) {
        match self {
            Sources::Tokens => (tokens, tokens),
            Sources::Rows(map) => (map.rows, map.tokens),
            Sources::Merged { rows, tokens, .. } => (*rows, *tokens),
        }
    }

    pub(super) fn map(&self) -> Option<&DeviceSlice> {
        match self {
            Sources::Tokens => None,
            Sources::Rows(map) => Some(&map.slice),
            Sources::Merged { map, .. } => Some(map),
        }
    }
}

/// Constants for which the kernel that gathers rows is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsConfig {
    /// Number of columns of a row.
    pub columns: usize,
    /// Number of source tokens per row: 1 or 4.
    pub pieces: usize,
    /// Element type of the input.
    pub stream: StreamType,
}

impl RowsConfig {
    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        row_program(("rows.cu", "rows"), self.pieces, self.stream, store)
    }

    /// Launch configuration for `rows` rows.
    pub fn launch(&self, rows: usize) -> LaunchConfig {
        let blocks = (rows * self.columns / 8).div_ceil(THREADS as usize);
        LaunchConfig { pdl: true, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }
}

/// Gathers rows of the residual stream for a linear layer, without a norm.
pub struct DeviceRows {
    kernel: Kernel,
    config: RowsConfig,
    sources: Sources,
    store: DeviceStore,
}

impl DeviceRows {
    /// Rows of `columns` columns of the stream's tokens, in the order of `map` if there is one.
    ///
    /// # Errors
    /// The kernel does not compile.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 8.
    pub fn rows(
        device: &Device,
        columns: usize,
        stream: StreamType,
        map: Option<DeviceMap>,
        store: DeviceStore,
    ) -> Result<DeviceRows, CudaError> {
        let sources = map.map_or(Sources::Tokens, Sources::Rows);
        DeviceRows::new(device, RowsConfig { columns, pieces: 1, stream }, sources, store)
    }

    /// Rows of four tokens side by side, of `columns` columns together. `merge[i]` are the tokens of row i of an image,
    /// which has `tokens` tokens; `None` stands for zeros.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 32, or a token is not below `tokens`.
    pub fn merged(
        device: &Device,
        columns: usize,
        stream: StreamType,
        merge: (&[[Option<usize>; 4]], usize),
        store: DeviceStore,
    ) -> Result<DeviceRows, CudaError> {
        let sources = Sources::merged(device, columns, merge)?;
        DeviceRows::new(device, RowsConfig { columns, pieces: 4, stream }, sources, store)
    }

    fn new(
        device: &Device,
        config: RowsConfig,
        sources: Sources,
        store: DeviceStore,
    ) -> Result<DeviceRows, CudaError> {
        assert!(config.columns.is_multiple_of(8), "rows: {} columns", config.columns);
        Ok(DeviceRows { kernel: device.kernel(&config.program(store))?, config, sources, store })
    }

    /// Reads the stream of `images` images of `tokens` tokens and writes their rows. Sets the u32 at `overflow` to 1
    /// if an f16 stream holds a value that is not finite; nothing resets it.
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
        let (rows, expected) = self.sources.rows_and_tokens(tokens);
        assert_eq!(tokens, expected, "rows: tokens of an image");
        let RowsConfig { columns, pieces, stream: element } = self.config;
        let bytes = self.store.element_bytes();
        expect("rows: the stream", stream, &[images, tokens, columns / pieces, element.bytes()]);
        expect("rows: the output", out, &[images, rows, row_stride(columns, bytes), bytes]);
        expect_word("rows: the overflow flag", overflow);
        // The kernel counts threads in 32 bits.
        int(images * rows * columns / 8);
        let slices = [stream, out, overflow];
        slices.into_iter().chain(self.sources.map()).for_each(|slice| on.hold(slice));
        let params = RowsParams::new(&self.sources, (images, rows, tokens), columns, self.store, slices);
        // SAFETY: `RowsParams` is the kernel's parameter. The maps were constructed so that every row and token that
        // the kernel accesses is within the lengths checked above; the slices are held.
        unsafe { launch(&self.kernel, self.config.launch(images * rows), on, &params) }
    }
}
