//! Patch embedding, from pixels to the residual stream.

use half::f16;
use swinq_numerics::{ImageEdge, Quantizer, Size};

use super::linear::pack::pack_half;
use super::{Call, ResidualType, int};
use crate::kernel::Kernels;
use crate::params::patch::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Tokens per block in f32.
const TOKENS: usize = 32;
/// Threads per block on the tensor cores (two per token), and the maximum number of columns that a warp can
/// hold.
const HALF_THREADS: u32 = 128;
const MOST_HALF_COLUMNS: usize = 256;
/// Values of a byte.
const BYTES: usize = 256;
/// The channels of a pixel.
const CHANNELS: std::ops::RangeInclusive<usize> = 1..=16;

/// Element type of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InputType {
    /// 8-bit pixels, which the table of [`PatchSpec::lookup`] normalises.
    U8,
    /// Normalised values in f32.
    F32,
    /// Normalised values in f16.
    F16,
    /// Normalised values in bfloat16.
    Bf16,
}

impl InputType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            InputType::U8 => 1,
            InputType::F32 => 4,
            InputType::F16 | InputType::Bf16 => 2,
        }
    }

    pub(super) fn define(self) -> i64 {
        match self {
            InputType::U8 => 0,
            InputType::F32 => 1,
            InputType::F16 => 2,
            InputType::Bf16 => 3,
        }
    }
}

/// Element type and order of the values of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InputForm {
    /// Element type.
    pub element: InputType,
    /// Whether the order of an image is `[channels, height, width]`, not `[height, width, channels]`.
    pub channels_first: bool,
}

impl InputForm {
    /// 8-bit pixels whose channels come last.
    pub const PIXELS: InputForm = InputForm { element: InputType::U8, channels_first: false };
}

/// The conversion of values that are read as normalised ones; [`PatchSpec::lookup`] does the same with bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputSite {
    /// They are the operands.
    Float,
    /// Their codes are the operands.
    Codes(Quantizer),
    /// The values that their codes represent are the operands.
    Fake(Quantizer),
}

impl InputSite {
    pub(super) fn define(self) -> i64 {
        match self {
            InputSite::Float => 0,
            InputSite::Codes(_) => 1,
            InputSite::Fake(_) => 2,
        }
    }

    fn recip_and_scale(self) -> (f32, f32) {
        match self {
            InputSite::Float => (1.0, 1.0),
            InputSite::Codes(q) | InputSite::Fake(q) => (q.recip(), q.scale()),
        }
    }
}

/// Description of a patch embedding: matrix product over normalised pixels, LayerNorm, position embedding.
pub struct PatchSpec<'a> {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// The treatment of the edges of an image that is no multiple of the patch.
    pub edge: ImageEdge,
    /// Value of each byte of each channel: normalised, and quantized by the input's site (as codes for an
    /// INT8 product). A pixel has 1 to 16 channels.
    pub lookup: &'a [[f32; BYTES]],
    /// The site of the input.
    pub input: InputSite,
    /// `[columns, channels * patch * patch]`; codes for an INT8 product.
    pub weight: &'a [f32],
    /// Per column; zeros if there is no bias.
    pub bias: &'a [f32],
    /// Factor `s_x * s_w` of each column, for an INT8 product.
    pub multiplier: Option<&'a [f32]>,
    /// The `.output` site.
    pub output: Option<Quantizer>,
    /// LayerNorm's gamma and beta.
    pub norm: Option<(&'a [f32], &'a [f32])>,
    /// LayerNorm's epsilon.
    pub epsilon: f32,
    /// Absolute position embedding, `[tokens, columns]`. Only images with this number of patches fit it.
    pub position: Option<&'a [f32]>,
    /// Element type of the residual that is written.
    pub residual: ResidualType,
}

/// Constants for which a patch embedding is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchConfig {
    /// Channels of a pixel.
    pub channels: usize,
    /// Side of a patch.
    pub patch: usize,
    /// The treatment of the edges of an image. The program does not depend on it.
    pub edge: ImageEdge,
    /// Number of columns.
    pub columns: usize,
    /// Whether operands are INT8.
    pub integer: bool,
    /// Whether there is an `.output` site.
    pub output: bool,
    /// Whether there is a LayerNorm.
    pub norm: bool,
    /// Whether there is a position embedding.
    pub position: bool,
    /// Element type of the residual that is written.
    pub residual: ResidualType,
}

impl PatchConfig {
    /// Whether the product runs on the tensor cores: if the residual is f16 and a warp can hold every column.
    pub fn half(&self) -> bool {
        self.residual == ResidualType::F16
            && self.columns.is_multiple_of(32)
            && self.columns <= MOST_HALF_COLUMNS
    }

    /// Threads per block; in f32 one per column, within limits.
    pub fn threads(&self) -> u32 {
        if self.half() { HALF_THREADS } else { (self.columns.next_multiple_of(32) as u32).clamp(64, 512) }
    }

    /// Values of a patch.
    fn k(&self) -> usize {
        self.channels * self.patch * self.patch
    }

    /// Elements of the lookup table.
    fn lookup(&self) -> usize {
        self.channels * BYTES
    }

    /// f16 elements from one row of the operands to the next, on the tensor cores.
    fn half_row(&self) -> usize {
        self.k().next_multiple_of(16) + 8
    }

    /// The patches of an image of `size` pixels. Those at its right and lower edges may extend beyond it,
    /// unless they are cut.
    pub fn grid(&self, size: Size) -> Size {
        self.edge.grid(size, self.patch)
    }

    /// The program for images of `form`, whose values go through `site`.
    pub fn program(&self, form: InputForm, site: InputSite) -> Program {
        let program = if self.half() {
            Program::new("patch_half.cu", "patch_half").define("COLUMNS", self.columns as i64)
        } else {
            Program::new("patch.cu", "patch_embed").define("TOKENS", TOKENS as i64)
        };
        program
            .define("THREADS", self.threads().into())
            .define("CHANNELS", self.channels as i64)
            .define("PATCH", self.patch as i64)
            .define("INTEGER", self.integer.into())
            .define("OUTPUT", self.output.into())
            .define("NORM", self.norm.into())
            .define("POSITION", self.position.into())
            .define("RESIDUAL_F32", self.residual.define())
            .define("INPUT", form.element.define())
            .define("CHANNELS_FIRST", form.channels_first.into())
            .define("QUANTIZE", if form.element == InputType::U8 { 0 } else { site.define() })
    }

    /// Launch configuration for `tokens` tokens of images of any form.
    pub fn launch(&self, tokens: usize) -> LaunchConfig {
        if self.half() {
            let each = HALF_THREADS as usize / 2;
            let shared = 2 * (self.lookup() + (self.columns + each) * self.half_row());
            // A block that processes several groups of tokens loads the weights once for all of them.
            let blocks = tokens.div_ceil(each).div_ceil(if tokens > 1 << 16 { 4 } else { 1 });
            return LaunchConfig {
                shared: shared as u32,
                pdl: true,
                ..LaunchConfig::linear(blocks as u32, HALF_THREADS)
            };
        }
        let x_row = self.k().next_multiple_of(4);
        let shared = 4 * (self.lookup() + TOKENS * (x_row + self.columns));
        LaunchConfig {
            shared: shared as u32,
            pdl: true,
            ..LaunchConfig::linear(tokens.div_ceil(TOKENS) as u32, self.threads())
        }
    }
}

/// A patch embedding prepared for a device. The kernel for images of other forms than [`InputForm::PIXELS`]
/// is compiled at its first use.
pub struct DevicePatchEmbed {
    device: Device,
    kernels: Kernels<InputForm>,
    config: PatchConfig,
    input: InputSite,
    lookup: DeviceSlice,
    weight: DeviceSlice,
    bias: DeviceSlice,
    scale: Option<DeviceSlice>,
    norm: Option<(DeviceSlice, DeviceSlice)>,
    /// The absolute position embedding, and its number of tokens.
    position: Option<(DeviceSlice, usize)>,
    output_scale: f32,
    epsilon: f32,
}

/// The largest k for which f32 holds the sums of an INT8 product exactly.
const MAX_EXACT_K: usize = (1 << 24) / (128 * 128);

impl DevicePatchEmbed {
    /// Prepares the op.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if patches are too large for shared memory or for exact sums. Also if the
    /// kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If a length does not match, the number of columns is not a multiple of 4, or there are not 1 to 16
    /// channels.
    pub fn new(device: &Device, spec: &PatchSpec<'_>) -> Result<DevicePatchEmbed, CudaError> {
        let config = config(spec);
        let (columns, k) = (config.columns, config.k());
        let shared = config.launch(1).shared;
        if shared > device.shared_per_block() || (config.integer && k > MAX_EXACT_K) {
            return Err(CudaError::Unsupported(format!(
                "a patch embedding of {k} values to {columns} channels is too large for the CUDA kernel"
            )));
        }
        let copy = |values: &[f32]| Ok::<_, CudaError>(DeviceBuf::from_slice(device, values)?.all());
        let (lookup, weight) = if config.half() {
            half_operands(device, spec, &config)?
        } else {
            let all = (0..k).flat_map(|k0| (0..columns).map(move |c| (c, k0)));
            let transposed: Vec<f32> = all.map(|(c, k0)| spec.weight[c * k + k0]).collect();
            (copy(spec.lookup.as_flattened())?, copy(&transposed)?)
        };
        let scale = scales(spec, columns).map(|scale| copy(&scale)).transpose()?;
        let norm = spec.norm.map(|(g, b)| Ok::<_, CudaError>((copy(g)?, copy(b)?))).transpose()?;
        let op = DevicePatchEmbed {
            device: device.clone(),
            kernels: Kernels::new(),
            config,
            input: spec.input,
            lookup,
            weight,
            bias: copy(spec.bias)?,
            scale,
            norm,
            position: spec.position.map(|table| Ok((copy(table)?, table.len() / columns))).transpose()?,
            output_scale: spec.output.map_or(1.0, Quantizer::scale),
            epsilon: spec.epsilon,
        };
        op.kernel(InputForm::PIXELS)?;
        Ok(op)
    }

    /// The kernel for images of `form`.
    ///
    /// # Errors
    /// The kernel does not compile.
    pub fn kernel(&self, form: InputForm) -> Result<Kernel, CudaError> {
        self.kernels.get(form, || self.device.kernel(&self.config.program(form, self.input)))
    }

    /// Reads images of `size` pixels in `form`, and writes the residual `[images * tokens, columns]`: a token
    /// for each patch of [`PatchConfig::grid`]. The normalised values beyond an image are zeros. Sets the u32
    /// at `raised` to 1 if a value is not finite; nothing resets it.
    ///
    /// # Errors
    /// The kernel for `form` does not compile, or the driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or the position embedding is that of another number of tokens.
    pub fn run(
        &self,
        stream: &Stream,
        (images, size): (usize, Size),
        (pixels, form): (&DeviceSlice, InputForm),
        out: &DeviceSlice,
        raised: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let PatchConfig { channels, columns, residual, .. } = self.config;
        let grid = self.config.grid(size);
        let values = [images, size.height, size.width, channels];
        let rows = [images, grid.height, grid.width, columns, residual.bytes()];
        let (position, tokens) = self.position.as_ref().map(|(table, tokens)| (table, *tokens)).unzip();
        assert_eq!(tokens.unwrap_or(grid.area()), grid.area(), "patch embedding: tokens with a position");
        let total = images * grid.area();
        let (gamma, beta) = self.norm.as_ref().map(|(g, b)| (g, b)).unzip();
        let call = Call(stream);
        let (input_recip, input_scale) = self.input.recip_and_scale();
        let params = Params {
            pixels: call.foreign("patch embedding: the images", pixels, &values, form.element.bytes()),
            lookup: call.own(&self.lookup),
            weight: call.own(&self.weight),
            bias: call.own(&self.bias),
            scale: call.own(&self.scale),
            gamma: call.own(gamma),
            beta: call.own(beta),
            position: call.own(position),
            out: call.array("patch embedding: the residual", out, &rows),
            raised: call.word("patch embedding: the flag", raised),
            height: int(size.height),
            width: int(size.width),
            grid_width: int(grid.width),
            tokens: int(grid.area()),
            total_tokens: int(total),
            columns: int(columns),
            output_scale: self.output_scale,
            epsilon: self.epsilon,
            input_recip,
            input_scale,
        };
        // SAFETY: `Params` is the kernel's parameter. Images and residual have the lengths checked above,
        // and the other arrays those of `new`; the slices are held.
        unsafe { launch(&self.kernel(form)?, self.config.launch(total), stream, &params) }
    }
}

/// The constants for which the kernel of `spec` is compiled.
///
/// # Panics
/// As [`DevicePatchEmbed::new`].
fn config(spec: &PatchSpec<'_>) -> PatchConfig {
    let config = PatchConfig {
        channels: spec.lookup.len(),
        patch: spec.patch,
        edge: spec.edge,
        columns: spec.bias.len(),
        integer: spec.multiplier.is_some(),
        output: spec.output.is_some(),
        norm: spec.norm.is_some(),
        position: spec.position.is_some(),
        residual: spec.residual,
    };
    let (channels, columns, k) = (config.channels, config.columns, config.k());
    assert!(CHANNELS.contains(&channels), "patch embedding: {channels} channels");
    assert!(columns.is_multiple_of(4), "patch embedding: {columns} columns");
    assert_eq!(spec.weight.len(), columns * k, "patch embedding: weight is not [{columns}, {k}]");
    let whole = spec.position.is_none_or(|table| table.len().is_multiple_of(columns));
    assert!(whole, "patch embedding: the position embedding is not [tokens, {columns}]");
    config
}

/// Lookup table and weight in the layout that the tensor cores read.
fn half_operands(
    device: &Device,
    spec: &PatchSpec<'_>,
    config: &PatchConfig,
) -> Result<(DeviceSlice, DeviceSlice), CudaError> {
    let bits = |x: &f32| f16::from_f32(*x).to_bits();
    let lookup: Vec<u16> = spec.lookup.as_flattened().iter().map(bits).collect();
    let weight = pack_half(spec.weight, config.columns, config.k(), config.half_row());
    Ok((DeviceBuf::from_slice(device, &lookup)?.all(), DeviceBuf::from_slice(device, &weight)?.all()))
}

/// The factors of the sums, as in the reference's epilogue.
fn scales(spec: &PatchSpec<'_>, columns: usize) -> Option<Vec<f32>> {
    match (spec.multiplier, spec.output) {
        (None, None) => None,
        (Some(multiplier), None) => Some(multiplier.to_vec()),
        (Some(multiplier), Some(q)) => Some(multiplier.iter().map(|m| m * q.recip()).collect()),
        (None, Some(q)) => Some(vec![q.recip(); columns]),
    }
}
