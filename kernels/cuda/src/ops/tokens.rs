//! The tokens of a network that begins with blocks: values of any form become the residual stream.

use swinq_numerics::Size;

use super::patch::{InputForm, InputSite};
use super::{Call, ResidualType, int};
use crate::kernel::Kernels;
use crate::params::patch::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// Tokens and channels of a tile.
const TILE: usize = 32;

/// Constants of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensConfig {
    /// Channels of a token.
    pub channels: usize,
    /// Element type of the residual that is written.
    pub residual: ResidualType,
}

impl TokensConfig {
    /// The program for tokens of `form`.
    pub fn program(&self, form: InputForm) -> Program {
        Program::new("tokens.cu", "tokens")
            .define("THREADS", THREADS.into())
            .define("CHANNELS", self.channels as i64)
            .define("PATCH", 1)
            .define("RESIDUAL_F32", self.residual.define())
            .define("INPUT", form.element.define())
            .define("CHANNELS_FIRST", form.channels_first.into())
            .define("QUANTIZE", InputSite::Float.define())
    }

    /// Launch configuration for `tokens` tokens.
    pub fn launch(&self, tokens: usize) -> LaunchConfig {
        let grid = [tokens.div_ceil(TILE) as u32, self.channels.div_ceil(TILE) as u32, 1];
        LaunchConfig { grid, threads: THREADS, shared: 4 * (TILE * (TILE + 1)) as u32, pdl: true }
    }
}

/// Reads tokens, prepared for a device. The kernel of each form is compiled at its first use.
pub struct DeviceTokens {
    device: Device,
    kernels: Kernels<InputForm>,
    config: TokensConfig,
    lookup: DeviceSlice,
}

impl DeviceTokens {
    /// Prepares the op for tokens with as many channels as `lookup`, which has the value of each byte of each
    /// channel.
    ///
    /// # Errors
    /// The device has too little memory.
    pub fn new(
        device: &Device,
        lookup: &[[f32; 256]],
        residual: ResidualType,
    ) -> Result<DeviceTokens, CudaError> {
        let config = TokensConfig { channels: lookup.len(), residual };
        let lookup = DeviceBuf::from_slice(device, lookup.as_flattened())?.all();
        Ok(DeviceTokens { device: device.clone(), kernels: Kernels::new(), config, lookup })
    }

    /// Reads the tokens of `images` grids of `size`, `[images, height, width, channels]` or in the order of
    /// `form`, and writes the residual `[images * tokens, channels]`. Sets the u32 at `raised` to 1 if a
    /// value is not finite; nothing resets it.
    ///
    /// # Errors
    /// The kernel for `form` does not compile, or the driver fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        stream: &Stream,
        (images, size): (usize, Size),
        (tokens, form): (&DeviceSlice, InputForm),
        out: &DeviceSlice,
        raised: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let TokensConfig { channels, residual } = self.config;
        let (total, call) = (images * size.area(), Call(stream));
        let params = Params {
            pixels: call.foreign("tokens", tokens, &[total, channels], form.element.bytes()),
            lookup: call.own(&self.lookup),
            out: call.array("tokens: the residual", out, &[total, channels, residual.bytes()]),
            raised: call.word("tokens: the flag", raised),
            height: int(size.height),
            width: int(size.width),
            grid_width: int(size.width),
            tokens: int(size.area()),
            total_tokens: int(total),
            columns: int(channels),
            ..Params::default()
        };
        let kernel = self.kernels.get(form, || self.device.kernel(&self.config.program(form)))?;
        // SAFETY: `Params` is the kernel's parameter. Tokens and residual have the lengths checked above, and
        // the table has 256 values for each channel; the slices are held.
        unsafe { launch(&kernel, self.config.launch(total), stream, &params) }
    }
}
