//! The end of the network: LayerNorm with the mean over tokens, and the head in f32.

use swinq_numerics::Quantizer;

use super::{Call, DeviceStore, ResidualType, int, row_stride};
use crate::params::head::{LinearParams, PoolParams};
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

const LINEAR_THREADS: u32 = 128;
/// Columns of an f16 row that a warp reads at once, maximum number of warps of the pool's block, and floats
/// of shared memory for their sums.
const POOL_COLUMNS: usize = 128;
const POOL_WARPS: usize = 16;
const POOL_FLOATS: usize = (48 << 10) / 4;
/// Tokens of an f32 residual whose norms the pool has in shared memory at a time.
const POOL_TOKENS: usize = 2048;
/// Columns and rows of a block of the linear layer, k values of a stage, and number of stages.
const COLUMNS: usize = 32;
const ROWS: usize = 16;
const DEPTH: usize = 64;
const STAGES: usize = 4;

/// LayerNorm of every token, then the mean over the tokens of each image.
pub struct DevicePool {
    kernel: Kernel,
    gamma: DeviceSlice,
    beta: DeviceSlice,
    columns: usize,
    epsilon: f32,
    residual: ResidualType,
    store: DeviceStore,
}

/// Chunks of [`POOL_COLUMNS`] columns of a row.
fn pool_chunks(columns: usize) -> usize {
    columns.div_ceil(POOL_COLUMNS)
}

/// Threads of a block of the pool. Every warp has sums of all columns of an f16 residual in shared memory.
fn pool_threads(columns: usize, residual: ResidualType) -> u32 {
    match residual {
        ResidualType::F32 => 512,
        ResidualType::F16 => {
            let warps = POOL_FLOATS / (POOL_COLUMNS * pool_chunks(columns));
            32 * warps.clamp(1, POOL_WARPS) as u32
        }
    }
}

impl DevicePool {
    /// The program to compile for rows of `columns` columns.
    pub fn program(columns: usize, residual: ResidualType, store: DeviceStore) -> Program {
        let program = Program::new("head.cu", "pool")
            .define("POOL", 1)
            .define("THREADS", pool_threads(columns, residual).into())
            .define("MIN_BLOCKS", 1)
            .define("RESIDUAL_F32", residual.define())
            .define("STORE", store.define())
            .define("FAKE", store.is_fake().into());
        match residual {
            ResidualType::F32 => program,
            ResidualType::F16 => program.define("CHUNKS", pool_chunks(columns) as i64),
        }
    }

    /// Launch configuration for `images` images of `tokens` tokens of `columns` columns.
    pub fn launch((images, tokens): (usize, usize), columns: usize, residual: ResidualType) -> LaunchConfig {
        let threads = pool_threads(columns, residual);
        let shared = match residual {
            // Three numbers, padded to four words, for each token; and the sum of each column.
            ResidualType::F32 => 16 * DevicePool::tokens_each(tokens) + 4 * columns,
            // The sums of each warp.
            ResidualType::F16 => 4 * threads as usize / 32 * POOL_COLUMNS * pool_chunks(columns),
        };
        LaunchConfig { shared: shared as u32, pdl: true, ..LaunchConfig::linear(images as u32, threads) }
    }

    /// Tokens of an image of `tokens` tokens whose norms the kernel has in shared memory at a time, for an
    /// f32 residual.
    pub fn tokens_each(tokens: usize) -> usize {
        tokens.min(POOL_TOKENS)
    }

    /// Prepares the op.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 4.
    pub fn new(
        device: &Device,
        (gamma, beta): (&[f32], &[f32]),
        epsilon: f32,
        residual: ResidualType,
        store: DeviceStore,
    ) -> Result<DevicePool, CudaError> {
        assert!(gamma.len() == beta.len() && gamma.len().is_multiple_of(4), "pool: {} columns", gamma.len());
        Ok(DevicePool {
            kernel: device.kernel(&DevicePool::program(gamma.len(), residual, store))?,
            gamma: DeviceBuf::from_slice(device, gamma)?.all(),
            beta: DeviceBuf::from_slice(device, beta)?.all(),
            columns: gamma.len(),
            epsilon,
            residual,
            store,
        })
    }

    /// Reads the residual of `images` images of `tokens` tokens and writes `[images, columns]`. Sets the u32
    /// at `overflow` to 1 if an f16 residual holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        stream: &Stream,
        (images, tokens): (usize, usize),
        residual: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let stride = row_stride(self.columns, self.store.element_bytes());
        let call = Call(stream);
        let (recip, scale) = self.store.recip_and_scale();
        let params = PoolParams {
            residual: call.array(
                "pool: the residual",
                residual,
                &[images, tokens, self.columns, self.residual.bytes()],
            ),
            gamma: call.own(&self.gamma),
            beta: call.own(&self.beta),
            out: call.array("pool: the output", out, &[images, stride, self.store.element_bytes()]),
            overflow: call.word("pool: the overflow flag", overflow),
            tokens: int(tokens),
            columns: int(self.columns),
            stride: int(stride),
            tokens_each: int(DevicePool::tokens_each(tokens)),
            epsilon: self.epsilon,
            recip,
            scale,
        };
        let config = DevicePool::launch((images, tokens), self.columns, self.residual);
        // SAFETY: `PoolParams` is the kernel's parameter; the lengths were checked above, and the slices are
        // held.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}

/// A linear layer in f32 for few rows, summed in the order of k as in the reference.
pub struct DeviceLinearF32 {
    kernel: Kernel,
    weight: DeviceSlice,
    bias: DeviceSlice,
    n: usize,
    k: usize,
    output: Option<Quantizer>,
}

impl DeviceLinearF32 {
    /// The program to compile.
    pub fn program(output: bool) -> Program {
        Program::new("head.cu", "linear_f32")
            .define("THREADS", LINEAR_THREADS.into())
            .define("OUTPUT", output.into())
    }

    /// Launch configuration for `m` rows of `n` columns.
    pub fn launch(m: usize, n: usize) -> LaunchConfig {
        LaunchConfig {
            grid: [n.div_ceil(COLUMNS) as u32, m.div_ceil(ROWS) as u32, 1],
            threads: LINEAR_THREADS,
            shared: (4 * STAGES * DEPTH * (COLUMNS + ROWS)) as u32,
            pdl: true,
        }
    }

    /// Prepares the layer with `weight`, `[n, k]`, and `bias`, `[n]`.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If `weight` does not consist of full rows, or k is not a multiple of 4.
    pub fn new(
        device: &Device,
        weight: &[f32],
        bias: &[f32],
        output: Option<Quantizer>,
    ) -> Result<DeviceLinearF32, CudaError> {
        let n = bias.len();
        let k = weight.len() / n;
        assert!(weight.len() == n * k && k.is_multiple_of(4), "linear_f32: weight is not [{n}, {k}]");
        let stride = n.next_multiple_of(4);
        let mut transposed = vec![0.0; k * stride];
        for (column, row) in weight.chunks_exact(k).enumerate() {
            row.iter().enumerate().for_each(|(i, &w)| transposed[i * stride + column] = w);
        }
        Ok(DeviceLinearF32 {
            kernel: device.kernel(&DeviceLinearF32::program(output.is_some()))?,
            weight: DeviceBuf::from_slice(device, &transposed)?.all(),
            bias: DeviceBuf::from_slice(device, bias)?.all(),
            n,
            k,
            output,
        })
    }

    /// Reads f32 `[m, k]` and writes f32 `[m, n]`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        stream: &Stream,
        m: usize,
        x: &DeviceSlice,
        out: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let call = Call(stream);
        let params = LinearParams {
            x: call.array("linear_f32: the input", x, &[m, self.k, 4]),
            w: call.own(&self.weight),
            bias: call.own(&self.bias),
            output_recip: self.output.map_or(1.0, Quantizer::recip),
            output_scale: self.output.map_or(1.0, Quantizer::scale),
            out: call.array("linear_f32: the output", out, &[m, self.n, 4]),
            m: int(m),
            n: int(self.n),
            k: int(self.k),
            stride: int(self.n.next_multiple_of(4)),
        };
        // SAFETY: `LinearParams` is the kernel's parameter; the lengths were checked above, and the slices
        // are held.
        unsafe { launch(&self.kernel, DeviceLinearF32::launch(m, self.n), stream, &params) }
    }
}
