//! The operands of cosine attention (Swin V2).

use swinq_numerics::QkNormSpec;

use super::attention::{check_heads, head_columns, low_columns};
use super::{Call, DeviceStore, ResidualType, int, row_stride};
use crate::params::qk_norm::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// Lanes that share a vector.
const LANES: usize = 4;

/// Constants for which the kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormConfig {
    /// Element type of the input: that of the residual stream.
    pub input: ResidualType,
    /// Whether the result is codes; else it is f16.
    pub codes: bool,
    /// Columns of a head ([`head_columns`]).
    pub head_dim: usize,
}

impl QkNormConfig {
    /// The program.
    pub fn program(self) -> Program {
        let store = if self.codes { super::STORE_CODES } else { super::STORE_HALF };
        Program::new("qk_norm.cu", "qk_norm")
            .define("THREADS", THREADS.into())
            .define("HEAD_DIM", self.head_dim as i64)
            .define("INPUT_F32", self.input.define())
            .define("STORE", store)
    }

    /// Launch configuration for `rows` tokens of `heads` heads.
    pub fn launch(rows: usize, heads: usize) -> LaunchConfig {
        let blocks = (rows * 3 * heads * LANES).div_ceil(THREADS as usize);
        LaunchConfig { pdl: true, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }
}

/// Normalises queries and keys and quantizes them and the values, prepared for a device. [`QkNormSpec`]
/// defines the result, except that one without codes is f16.
pub struct DeviceQkNorm {
    kernel: Kernel,
    config: QkNormConfig,
    heads: usize,
    /// Columns of the result.
    columns: usize,
    recips: [f32; 3],
    /// Present if some heads have hi and lo codes.
    low: Option<DeviceSlice>,
}

impl DeviceQkNorm {
    /// Prepares the op. Its input has the type of the residual stream. A head has [`head_columns`] columns in
    /// the input and in the output. Those beyond its channels are zeros.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if a head has too many channels. Also if the kernel does not compile, or
    /// the device has too little memory.
    pub fn new(
        device: &Device,
        spec: &QkNormSpec<'_>,
        input: ResidualType,
    ) -> Result<DeviceQkNorm, CudaError> {
        check_heads(spec.head_dim)?;
        let config =
            QkNormConfig { input, codes: spec.codes.is_some(), head_dim: head_columns(spec.head_dim) };
        let low =
            (config.codes && spec.hi_lo.contains(&true)).then(|| low_columns(spec.hi_lo, config.head_dim));
        let lo_codes = low.iter().flatten().filter(|&&column| column >= 0).count();
        Ok(DeviceQkNorm {
            kernel: device.kernel(&config.program())?,
            config,
            heads: spec.heads,
            columns: (3 * spec.heads + lo_codes) * config.head_dim,
            recips: spec.codes.map_or([1.0; 3], |codes| codes.map(|q| q.recip())),
            low: low.map(|low| DeviceBuf::from_slice(device, &low).map(|low| low.all())).transpose()?,
        })
    }

    /// Reads `rows` rows of queries, keys and values, `[rows, 3 * channels]`, and writes as many. Sets the
    /// u32 at `overflow` to 1 if f16 input holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        stream: &Stream,
        rows: usize,
        qkv: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let store = if self.config.codes { 1 } else { DeviceStore::Half.element_bytes() };
        let stride = row_stride(self.columns, store);
        let (call, element) = (Call(stream), self.config.input.bytes());
        // The kernel counts threads in 32 bits.
        int(rows * 3 * self.heads * LANES);
        let params = Params {
            qkv: call.array(
                "QK-norm: q, k and v",
                qkv,
                &[rows, 3, self.heads, self.config.head_dim, element],
            ),
            low: call.own(&self.low),
            out: call.array("QK-norm: the output", out, &[rows, stride, store]),
            overflow: call.word("QK-norm: the overflow flag", overflow),
            rows: int(rows),
            heads: int(self.heads),
            stride: int(stride),
            recip: self.recips,
        };
        // SAFETY: `Params` is the kernel's parameter. Every row that the kernel accesses is within the
        // lengths checked above, the columns of lo codes are within a row, and the slices are held.
        unsafe { launch(&self.kernel, QkNormConfig::launch(rows, self.heads), stream, &params) }
    }
}
