//! Outputs of the network in the memory of their reader: feature maps, with their norm if they have one, and scores.

use super::{Call, ResidualType, int};
use crate::kernel::Kernels;
use crate::params::output::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// Tokens of a block: four lanes share one.
const TOKENS: usize = THREADS as usize / 4;
/// Columns of a tile in shared memory.
const TILE: usize = 32;
/// The most columns that a block writes. Each block computes the norms of its tokens, so that small maps of many columns keep
/// the GPU busy.
const COLUMNS: usize = 192;

/// Element type of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputType {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bfloat16.
    Bf16,
}

impl OutputType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            OutputType::F32 => 4,
            OutputType::F16 | OutputType::Bf16 => 2,
        }
    }

    fn define(self) -> i64 {
        match self {
            OutputType::F32 => 0,
            OutputType::F16 => 1,
            OutputType::Bf16 => 2,
        }
    }
}

/// Element type and order of the values of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutputForm {
    /// Element type.
    pub element: OutputType,
    /// Whether the order of an image is `[columns, tokens]`, not `[tokens, columns]`.
    pub channels_first: bool,
}

/// Constants for which the kernel of a feature map is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapConfig {
    /// Element type of the residual.
    pub residual: ResidualType,
    /// Whether the map has a norm.
    pub norm: bool,
}

impl MapConfig {
    /// The program that writes `form`.
    pub fn program(&self, form: OutputForm) -> Program {
        let program = program("feature_map", form.element)
            .define("MAP", 1)
            .define("NORM", self.norm.into())
            .define("CHANNELS_FIRST", form.channels_first.into());
        if self.residual == ResidualType::F32 { program.define("EXACT", 1) } else { program }
    }

    /// Launch configuration for `tokens` tokens of `columns` columns.
    pub fn launch(tokens: usize, columns: usize) -> LaunchConfig {
        let grid = [tokens.div_ceil(TOKENS) as u32, columns.div_ceil(COLUMNS) as u32, 1];
        // The tile, and a word for the flags.
        let shared = 4 * (TILE * (TOKENS + 1) + 1) as u32;
        LaunchConfig { grid, threads: THREADS, shared, pdl: true }
    }

    /// The columns that a block writes.
    pub fn columns_each() -> usize {
        COLUMNS
    }
}

/// The program that writes f32 values as `element`, in their order.
pub fn values_program(element: OutputType) -> Program {
    program("values", element)
}

/// Launch configuration for the program of [`values_program`], for `values` values.
pub fn values_launch(values: usize) -> LaunchConfig {
    let blocks = values.div_ceil(THREADS as usize) as u32;
    LaunchConfig { shared: 4, pdl: true, ..LaunchConfig::linear(blocks, THREADS) }
}

fn program(entry: &'static str, element: OutputType) -> Program {
    Program::new("output.cu", entry).define("THREADS", THREADS.into()).define("TYPE", element.define())
}

/// The flags that a launch reads and raises.
#[derive(Clone, Copy)]
pub struct OutputFlags<'a> {
    /// u32 flags of the steps. If one is set, all values of the output are NaN.
    pub steps: &'a DeviceSlice,
    /// A u32, which becomes 1 if a value of the output is not finite; nothing resets it.
    pub raised: &'a DeviceSlice,
}

/// The rows of an output of the network.
enum Source {
    /// Tokens of the residual, with gamma, beta and epsilon of a norm.
    Map { config: MapConfig, columns: usize, norm: Option<(DeviceSlice, DeviceSlice, f32)> },
    /// The values of an f32 tensor, in their order, such as scores.
    Values { columns: usize },
}

/// An output of the network, prepared for a device. The kernel of each form is compiled at its first use.
pub struct DeviceOutput {
    device: Device,
    source: Source,
    kernels: Kernels<OutputForm>,
}

/// Gamma, beta and epsilon of a LayerNorm.
pub type NormParameters<'a> = (&'a [f32], &'a [f32], f32);

impl DeviceOutput {
    /// A feature map of tokens of the residual, which have `columns` columns, with its norm.
    ///
    /// # Errors
    /// The device has too little memory.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of 4, or is not that of the norm.
    pub fn map(
        device: &Device,
        columns: usize,
        norm: Option<NormParameters<'_>>,
        residual: ResidualType,
    ) -> Result<DeviceOutput, CudaError> {
        assert!(columns.is_multiple_of(4), "output: {columns} columns");
        let copy = |(gamma, beta, epsilon): NormParameters<'_>| {
            assert!(gamma.len() == columns && beta.len() == columns, "output: a norm of {columns} columns");
            let [gamma, beta] = [gamma, beta].map(|values| DeviceBuf::from_slice(device, values));
            Ok::<_, CudaError>((gamma?.all(), beta?.all(), epsilon))
        };
        let norm = norm.map(copy).transpose()?;
        let config = MapConfig { residual, norm: norm.is_some() };
        let source = Source::Map { config, columns, norm };
        Ok(DeviceOutput { device: device.clone(), source, kernels: Kernels::new() })
    }

    /// The values of an f32 tensor, in their order, such as scores: `columns` for each image.
    pub fn values(device: &Device, columns: usize) -> DeviceOutput {
        let source = Source::Values { columns };
        DeviceOutput { device: device.clone(), source, kernels: Kernels::new() }
    }

    fn kernel(&self, form: OutputForm) -> Result<Kernel, CudaError> {
        self.kernels.get(form, || match &self.source {
            Source::Map { config, .. } => self.device.kernel(&config.program(form)),
            Source::Values { .. } => self.device.kernel(&values_program(form.element)),
        })
    }

    /// Writes the output of `images` images, each of `tokens` rows, which are in `input`, to `out` in `form`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If a slice is too short or not aligned to its elements.
    pub fn run(
        &self,
        stream: &Stream,
        (images, tokens): (usize, usize),
        input: &DeviceSlice,
        (out, form): (&DeviceSlice, OutputForm),
        flags: OutputFlags<'_>,
    ) -> Result<(), CudaError> {
        let (columns, bytes) = match self.source {
            Source::Map { config, columns, .. } => (columns, config.residual.bytes()),
            Source::Values { columns } => (columns, 4),
        };
        let (gamma, beta, epsilon) = match &self.source {
            Source::Map { norm: Some((gamma, beta, epsilon)), .. } => (Some(gamma), Some(beta), *epsilon),
            _ => (None, None, 0.0),
        };
        let total = images * tokens;
        let (total, config) = match self.source {
            Source::Map { .. } => (total, MapConfig::launch(total, columns)),
            Source::Values { .. } => (total * columns, values_launch(total * columns)),
        };
        let (call, shape) = (Call(stream), [images, tokens, columns]);
        let params = Params {
            input: call.array("output: the input", input, &[images, tokens, columns, bytes]),
            gamma: call.own(gamma),
            beta: call.own(beta),
            out: call.foreign("output: the output", out, &shape, form.element.bytes()),
            flags: call.word("output: the flags", flags.steps),
            raised: call.word("output: the output's flag", flags.raised),
            flag_count: int(flags.steps.bytes() / 4),
            tokens: int(tokens),
            total: int(total),
            columns: int(columns),
            columns_each: int(COLUMNS),
            epsilon,
        };
        // SAFETY: `Params` is the kernel's parameter. Input and output have the lengths checked above, gamma and beta
        // that of a row; the slices are held.
        unsafe { launch(&self.kernel(form)?, config, stream, &params) }
    }
}
