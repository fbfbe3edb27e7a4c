//! LayerNorm of rows gathered from the residual stream, or of the rows of a branch that are added to it.

use swinq_numerics::Quantizer;

use super::rows::{ImageRows, THREADS, row_program};
use super::{Call, DeviceStore, ResidualCodes, ResidualType, RowOrder, int, row_stride};
use crate::params::rows::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Columns of an f32 row for each piece of four elements that a lane has.
const COLUMNS_OF_PIECES: usize = 16;
/// Most pieces of an f32 row that a lane keeps in registers.
const MOST_HELD: usize = 24;
/// Maximum number of lanes that share a row.
const LANES_PER_ROW: usize = 32;

/// The destination of the norm of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormResult {
    /// It is stored.
    Store(DeviceStore),
    /// It is added to the row's token of the residual.
    Add,
    /// As [`NormResult::Add`]; a launch can also store the codes of the sums.
    AddAndCode(Quantizer),
}

impl NormResult {
    /// How the op stores rows besides the residual.
    fn store(self, residual: ResidualType) -> DeviceStore {
        match (self, residual) {
            (NormResult::Store(store), _) => store,
            (NormResult::AddAndCode(q), _) => DeviceStore::Codes(q),
            (NormResult::Add, ResidualType::F16) => DeviceStore::Half,
            (NormResult::Add, ResidualType::F32) => DeviceStore::Float,
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
    result: NormResult,
}

/// Constants for which a norm kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Number of columns of a normalised row.
    pub columns: usize,
    /// Number of source tokens per row: 1 or 4.
    pub pieces: usize,
    /// Element type of the input.
    pub residual: ResidualType,
}

impl NormConfig {
    /// Lanes per row, and chunks of 8 elements per lane (f16 residuals).
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
        let entry = if self.residual == ResidualType::F32 { "norm_exact" } else { "norm_half" };
        let program =
            row_program(("norm.cu", entry), self.pieces, self.residual, result.store(self.residual))
                .define("ADD", result.define());
        if self.residual == ResidualType::F32 {
            let pieces = self.columns.div_ceil(COLUMNS_OF_PIECES);
            return program.define("HELD", if pieces <= MOST_HELD { pieces as i64 } else { 0 });
        }
        let (lanes, chunks) = self.lanes_and_chunks();
        program.define("LANES", lanes as i64).define("CHUNKS", chunks as i64)
    }

    /// Launch configuration for `rows` rows.
    pub fn launch(&self, rows: usize) -> LaunchConfig {
        let lanes = if self.residual == ResidualType::F32 { 4 } else { self.lanes_and_chunks().0 };
        let blocks = (rows * lanes).div_ceil(THREADS as usize);
        // Gamma and beta.
        let shared = if self.residual == ResidualType::F32 { 0 } else { 8 * self.columns as u32 };
        LaunchConfig { pdl: true, shared, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }
}

impl DeviceNorm {
    /// LayerNorm with `gamma` and `beta` of the residual's tokens; rows of padding are zeros.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of [`ResidualType::columns_at_once`].
    pub fn rows(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        residual: ResidualType,
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        let config = NormConfig { columns: gamma.len(), pieces: 1, residual };
        DeviceNorm::new(device, config, (gamma, beta), epsilon, NormResult::Store(store))
    }

    /// LayerNorm with `gamma` and `beta` of four tokens side by side; padding tokens are zeros.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns of a token is not a multiple of [`ResidualType::columns_at_once`].
    pub fn merged(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        residual: ResidualType,
        store: DeviceStore,
    ) -> Result<DeviceNorm, CudaError> {
        let config = NormConfig { columns: gamma.len(), pieces: 4, residual };
        DeviceNorm::new(device, config, (gamma, beta), epsilon, NormResult::Store(store))
    }

    /// LayerNorm with `gamma` and `beta` of the rows of a branch, which have the type of the residual. The
    /// results are added to the residual's tokens. With a quantizer for `codes`, the op can also store the
    /// codes of the sums.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of [`ResidualType::columns_at_once`].
    pub fn residual(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        residual: ResidualType,
        codes: Option<Quantizer>,
    ) -> Result<DeviceNorm, CudaError> {
        let config = NormConfig { columns: gamma.len(), pieces: 1, residual };
        let result = codes.map_or(NormResult::Add, NormResult::AddAndCode);
        DeviceNorm::new(device, config, (gamma, beta), epsilon, result)
    }

    fn new(
        device: &Device,
        config: NormConfig,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        result: NormResult,
    ) -> Result<DeviceNorm, CudaError> {
        let NormConfig { columns, pieces, residual } = config;
        let whole = columns.is_multiple_of(pieces * residual.columns_at_once());
        assert!(beta.len() == columns && whole, "norm: {columns} columns");
        Ok(DeviceNorm {
            kernel: device.kernel(&config.program(result))?,
            config,
            gamma: DeviceBuf::from_slice(device, gamma)?.all(),
            beta: DeviceBuf::from_slice(device, beta)?.all(),
            epsilon,
            result,
        })
    }

    /// Whether the op adds to the residual.
    pub fn adds(&self) -> bool {
        !matches!(self.result, NormResult::Store(_))
    }

    /// Whether the op can store the codes of the residual that it has added to.
    pub fn stores_codes(&self) -> bool {
        matches!(self.result, NormResult::AddAndCode(_))
    }

    /// Reads the residual of `images` images and writes their rows in this order. Sets the u32 at `overflow`
    /// to 1 if an f16 residual holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, the order is not that of whole rows, or the op adds to the residual.
    pub fn run(
        &self,
        stream: &Stream,
        (images, order): (usize, RowOrder<'_>),
        residual: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let NormResult::Store(store) = self.result else { panic!("the norm adds to the residual") };
        let rows = ImageRows::new("norm", self.config.pieces, (images, order));
        let columns = self.config.columns;
        let stride = row_stride(columns, store.element_bytes());
        let piece = columns / self.config.pieces;
        let call = Call(stream);
        let memory = [
            call.array(
                "norm: the residual",
                residual,
                &[images, rows.tokens, piece, self.config.residual.bytes()],
            ),
            call.array("norm: the output", out, &[images, rows.rows, stride, store.element_bytes()]),
            call.word("norm: the overflow flag", overflow),
        ];
        let params = self.params(&call, &rows, memory);
        // SAFETY: `Params` is the kernel's parameter. The maps were constructed so that every row and
        // token that the kernel accesses is within the lengths checked above; the slices are held.
        unsafe { launch(&self.kernel, self.config.launch(rows.total()), stream, &params) }
    }

    /// Normalises the rows of the branches of `images` images, which have this order, and adds them to their
    /// `residual`, where [`DeviceNorm::adds`]. Writes the codes of the residual, if they are given. Sets the
    /// u32 at `overflow` as [`DeviceNorm::run`] does, for the branch.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, the codes have the rows of another number of tokens, codes are given although
    /// the op does not store any, or the op does not add to the residual.
    pub fn run_residual(
        &self,
        stream: &Stream,
        (images, order): (usize, RowOrder<'_>),
        branch: &DeviceSlice,
        residual: &DeviceSlice,
        codes: Option<ResidualCodes<'_>>,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        assert!(self.adds(), "the norm does not add to the residual");
        let rows = ImageRows::new("norm", self.config.pieces, (images, order));
        let (columns, bytes) = (self.config.columns, self.config.residual.bytes());
        let call = Call(stream);
        let memory = [
            call.array("norm: the branch", branch, &[images, rows.rows, columns, bytes]),
            call.array("norm: the residual", residual, &[images, rows.tokens, columns, bytes]),
            call.word("norm: the overflow flag", overflow),
        ];
        let mut params = self.params(&call, &rows, memory);
        if let Some(codes) = codes {
            assert!(self.stores_codes(), "the norm stores no codes");
            let tokens = codes.rows.map_or(rows.tokens, |rows| rows.tokens);
            assert_eq!(tokens, rows.tokens, "norm: tokens of an image whose codes are stored");
            let shape = [images, tokens, row_stride(columns, 1)];
            params.codes = call.array("norm: the codes", codes.slice, &shape);
            params.code_rows = call.own(codes.rows.map(|rows| &rows.slice));
        }
        // SAFETY: as in `run`; `code_rows` has a row below `tokens` for each token.
        unsafe { launch(&self.kernel, self.config.launch(rows.total()), stream, &params) }
    }

    /// The parameters of a launch that reads the first memory, writes the second, and may set the flag in the
    /// third.
    fn params(&self, call: &Call<'_>, rows: &ImageRows<'_>, memory: [u64; 3]) -> Params {
        // The kernels count lanes in 32 bits.
        int(rows.total() * LANES_PER_ROW);
        let store = self.result.store(self.config.residual);
        Params {
            gamma: call.own(&self.gamma),
            beta: call.own(&self.beta),
            epsilon: self.epsilon,
            ..Params::new(call, rows, self.config.columns, store, memory)
        }
    }
}
