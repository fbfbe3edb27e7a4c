//! Outputs of the network in the memory of their reader: feature maps, with their norm if they have one, and scores.

use super::{Call, ResidualType, int};
use crate::kernel::Kernels;
use crate::params::output::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// The most tokens of a block: four lanes compute the norm of one.
const MOST_TOKENS: usize = THREADS as usize / 4;
/// The most bytes of a block's tokens in shared memory, unless two tokens have more: several blocks fit a multiprocessor, and
/// small maps of many columns keep the GPU busy.
const MOST_BYTES: usize = 32 << 10;

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

    /// Launch configuration for `images` images of `tokens` tokens with `columns` columns.
    pub fn launch(&self, (images, tokens): (usize, usize), columns: usize) -> LaunchConfig {
        let each = self.tokens_each(columns);
        let blocks = images * tokens.div_ceil(each);
        // The norms, a word for the flags, and the tokens.
        let shared = 16 * each + 16 + each * self.token_bytes(columns);
        LaunchConfig { shared: shared as u32, pdl: true, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }

    /// The tokens that a block holds, a power of two.
    pub fn tokens_each(&self, columns: usize) -> usize {
        let fit = MOST_BYTES / self.token_bytes(columns);
        (1 << fit.max(2).ilog2()).min(MOST_TOKENS)
    }

    /// Bytes of a token in shared memory: an odd number of 16-byte chunks.
    fn token_bytes(&self, columns: usize) -> usize {
        self.residual.bytes() * columns | 16
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
    /// If the number of columns is not a multiple of [`ResidualType::columns_at_once`], or is not that of the norm.
    pub fn map(
        device: &Device,
        columns: usize,
        norm: Option<NormParameters<'_>>,
        residual: ResidualType,
    ) -> Result<DeviceOutput, CudaError> {
        assert!(columns.is_multiple_of(residual.columns_at_once()), "output: {columns} columns");
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
        let values = images * tokens * columns;
        let (count, tokens_each, config) = match self.source {
            Source::Map { config, .. } => {
                (tokens, config.tokens_each(columns), config.launch((images, tokens), columns))
            }
            Source::Values { .. } => (values, 0, values_launch(values)),
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
            tokens: int(count),
            tokens_each: int(tokens_each),
            columns: int(columns),
            epsilon,
        };
        // SAFETY: `Params` is the kernel's parameter. Input and output have the lengths checked above, gamma and beta
        // that of a row; the slices are held.
        unsafe { launch(&self.kernel(form)?, config, stream, &params) }
    }
}
