//! Outputs of the network in the memory of their reader: feature maps, with their norm if they have one, and
//! scores.

use super::{Call, ResidualType, int};
use crate::kernel::Kernels;
use crate::params::output::{Map, MapsParams, ValuesParams};
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// The most tokens of a block: four lanes compute the norm of one.
const MOST_TOKENS: usize = THREADS as usize / 4;
/// The most bytes of a block's tokens in shared memory, unless two tokens have more: several blocks fit a
/// multiprocessor, and small maps of many columns keep the GPU busy.
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

/// The most maps of a launch.
const MOST_MAPS: usize = 16;

/// Constants of the kernel of feature maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsConfig {
    /// Element type of the residual.
    pub residual: ResidualType,
}

/// The sizes of a map: images, tokens of an image, and columns.
pub type MapShape = [usize; 3];

impl MapsConfig {
    /// The program that writes `form`.
    pub fn program(&self, form: OutputForm) -> Program {
        let program = program("maps", form.element)
            .define("MAPS", 1)
            .define("CHANNELS_FIRST", form.channels_first.into());
        if self.residual == ResidualType::F32 { program.define("EXACT", 1) } else { program }
    }

    /// The first block of each of `maps`, and the launch configuration.
    pub fn launch(&self, maps: &[MapShape]) -> (Vec<usize>, LaunchConfig) {
        let mut blocks = 0;
        let mut first = |&[images, tokens, columns]: &MapShape| {
            let first = blocks;
            blocks += images * tokens.div_ceil(self.tokens_each(columns));
            first
        };
        let firsts = maps.iter().map(&mut first).collect();
        let shared = maps.iter().map(|&[.., columns]| self.shared(columns)).max().unwrap_or(0);
        (
            firsts,
            LaunchConfig { shared: shared as u32, pdl: true, ..LaunchConfig::linear(blocks as u32, THREADS) },
        )
    }

    /// The tokens that a block holds, a power of two.
    pub fn tokens_each(&self, columns: usize) -> usize {
        let fit = MOST_BYTES / self.token_bytes(columns);
        (1 << fit.max(2).ilog2()).min(MOST_TOKENS)
    }

    /// Bytes of a block: the norms, a word for the flags, and the tokens.
    fn shared(&self, columns: usize) -> usize {
        let each = self.tokens_each(columns);
        16 * each + 16 + each * self.token_bytes(columns)
    }

    /// Bytes of a token in shared memory: an odd number of 16-byte chunks.
    fn token_bytes(&self, columns: usize) -> usize {
        (self.residual.bytes() * columns) | 16
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

/// An output of the network: feature maps of the residual, or the values of an f32 tensor, such as scores.
pub struct DeviceOutput {
    columns: usize,
    source: Source,
}

enum Source {
    /// Tokens of the residual, with gamma, beta and epsilon of a norm.
    Map(Option<(DeviceSlice, DeviceSlice, f32)>),
    Values,
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
    /// If the number of columns is not that of the norm.
    pub fn map(
        device: &Device,
        columns: usize,
        norm: Option<NormParameters<'_>>,
    ) -> Result<DeviceOutput, CudaError> {
        let copy = |(gamma, beta, epsilon): NormParameters<'_>| {
            assert!(gamma.len() == columns && beta.len() == columns, "output: a norm of {columns} columns");
            let [gamma, beta] = [gamma, beta].map(|values| DeviceBuf::from_slice(device, values));
            Ok::<_, CudaError>((gamma?.all(), beta?.all(), epsilon))
        };
        Ok(DeviceOutput { columns, source: Source::Map(norm.map(copy).transpose()?) })
    }

    /// The values of an f32 tensor, in their order: `columns` for each image.
    pub fn values(columns: usize) -> DeviceOutput {
        DeviceOutput { columns, source: Source::Values }
    }
}

/// An output that is written.
#[derive(Clone, Copy)]
pub struct WrittenOutput<'a> {
    /// The output.
    pub output: &'a DeviceOutput,
    /// Rows of an image.
    pub rows: usize,
    /// The rows of all images.
    pub input: &'a DeviceSlice,
    /// Memory for as many values, in `form`.
    pub out: &'a DeviceSlice,
    /// Type and order of the values.
    pub form: OutputForm,
    /// A u32, which becomes 1 if a value of the output is not finite; nothing resets it.
    pub raised: &'a DeviceSlice,
}

/// Writes outputs of a network. The kernel of each form is compiled at its first use.
pub struct OutputWriter {
    device: Device,
    config: MapsConfig,
    maps: Kernels<OutputForm>,
    values: Kernels<OutputType>,
}

impl OutputWriter {
    /// Writes outputs of a network whose residual has this type.
    pub fn new(device: &Device, residual: ResidualType) -> OutputWriter {
        let (config, device) = (MapsConfig { residual }, device.clone());
        OutputWriter { device, config, maps: Kernels::new(), values: Kernels::new() }
    }

    /// Writes `outputs` of `images` images. One launch writes all maps of a form. If one of the u32 `flags`
    /// of the steps is set, all values are NaN.
    ///
    /// # Errors
    /// A kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If a slice is too short or not aligned to its elements, or rows of a map are no whole groups of
    /// [`ResidualType::columns_at_once`].
    pub fn run(
        &self,
        stream: &Stream,
        images: usize,
        outputs: &[WrittenOutput<'_>],
        flags: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let mut maps: Vec<&WrittenOutput<'_>> = Vec::new();
        for output in outputs {
            match output.output.source {
                Source::Map(_) => maps.push(output),
                Source::Values => self.write_values(stream, images, output, flags)?,
            }
        }
        while let Some(form) = maps.first().map(|map| map.form) {
            let same = maps.extract_if(.., |map| map.form == form).collect::<Vec<_>>();
            same.chunks(MOST_MAPS)
                .try_for_each(|maps| self.write_maps(stream, images, (maps, form), flags))?;
        }
        Ok(())
    }

    fn write_maps(
        &self,
        stream: &Stream,
        images: usize,
        (maps, form): (&[&WrittenOutput<'_>], OutputForm),
        flags: &DeviceSlice,
    ) -> Result<(), CudaError> {
        // Blocks of long rows take longest, so they begin first.
        let mut maps = maps.to_vec();
        maps.sort_by_key(|map| std::cmp::Reverse(map.output.columns));
        let shapes: Vec<MapShape> = maps.iter().map(|map| [images, map.rows, map.output.columns]).collect();
        let (firsts, config) = self.config.launch(&shapes);
        let call = Call(stream);
        let mut params = MapsParams {
            flags: call.word("output: the flags", flags),
            flag_count: int(flags.bytes() / 4),
            count: int(maps.len()),
            maps: [Map::default(); MOST_MAPS],
        };
        for ((map, first), to) in maps.into_iter().zip(firsts).zip(&mut params.maps) {
            *to = self.map(&call, images, map, first);
        }
        let kernel = self.maps.get(form, || self.device.kernel(&self.config.program(form)))?;
        // SAFETY: `MapsParams` is the kernel's parameter. Inputs and outputs have the lengths that `map`
        // checks, gamma and beta those of a row; the slices are held.
        unsafe { launch(&kernel, config, stream, &params) }
    }

    /// The parameters of a map whose blocks begin with `first`.
    fn map(&self, call: &Call<'_>, images: usize, map: &WrittenOutput<'_>, first: usize) -> Map {
        let (columns, shape) = (map.output.columns, [images, map.rows, map.output.columns]);
        let residual = self.config.residual;
        assert!(columns.is_multiple_of(residual.columns_at_once()), "output: {columns} columns");
        let norm = match &map.output.source {
            Source::Map(norm) => norm.as_ref(),
            Source::Values => None,
        };
        let input = [images, map.rows, columns, residual.bytes()];
        Map {
            input: call.array("output: the input", map.input, &input),
            gamma: call.own(norm.map(|(gamma, ..)| gamma)),
            beta: call.own(norm.map(|(_, beta, _)| beta)),
            out: call.foreign("output: the output", map.out, &shape, map.form.element.bytes()),
            raised: call.word("output: the output's flag", map.raised),
            tokens: int(map.rows),
            tokens_each: int(self.config.tokens_each(columns)),
            columns: int(columns),
            first_block: int(first),
            epsilon: norm.map_or(0.0, |(.., epsilon)| *epsilon),
        }
    }

    fn write_values(
        &self,
        stream: &Stream,
        images: usize,
        output: &WrittenOutput<'_>,
        flags: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let (shape, call) = ([images, output.rows, output.output.columns], Call(stream));
        let (count, element) = (shape.iter().product(), output.form.element);
        let params = ValuesParams {
            input: call.array("output: the input", output.input, &[count, 4]),
            out: call.foreign("output: the output", output.out, &shape, element.bytes()),
            flags: call.word("output: the flags", flags),
            raised: call.word("output: the output's flag", output.raised),
            flag_count: int(flags.bytes() / 4),
            count: int(count),
        };
        let kernel = self.values.get(element, || self.device.kernel(&values_program(element)))?;
        // SAFETY: `ValuesParams` is the kernel's parameter. Input and output have the lengths checked above;
        // the slices are held.
        unsafe { launch(&kernel, values_launch(count), stream, &params) }
    }
}
