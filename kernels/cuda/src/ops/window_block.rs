//! The attention branch of a transformer block in one launch: LayerNorm, QKV, window attention, projection
//! and the residual addition; in Swin V2 the LayerNorm follows the projection.

use swinq_numerics::{AttentionSpec, Probs, Quantizer};

use super::attention::{HEAD_DIM, bias_fragments};
use super::linear::pack::packed_column;
use super::{Call, DeviceWindows, Int8Linear, int};
use crate::params::window::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a group, which processes a window.
const GROUP: u32 = 128;
/// Bytes of shared memory of a group: keys and values of a head.
const EXCHANGE: u32 = 8 * 32 * 8 + 4 * 32 * 16;
/// The same for the lo codes of a head's keys.
const LOW_KEYS: u32 = 8 * 32 * 8;
/// Rows that the warps of a group have: a window is padded to this number.
const ROWS: usize = 64;
/// Number of heads for which the kernel has logit scales.
const MOST_HEADS: usize = 8;

/// Which attention branch the kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowForm {
    /// Swin V1: the LayerNorm precedes QKV.
    PreNorm,
    /// Swin V2: QKV reads the residual itself, queries and keys are normalised, and the LayerNorm follows the
    /// projection.
    PostNorm {
        /// Whether queries and keys of some heads have hi and lo codes for each value.
        hi_lo: bool,
    },
}

/// Description of the attention branch of a block. Every operand of its products is INT8.
pub struct WindowBlockSpec<'a> {
    /// Which branch it is; `attention` says whether heads have hi and lo codes.
    pub post_norm: bool,
    /// Scale and offset of the LayerNorm.
    pub norm: (&'a [f32], &'a [f32]),
    /// Added to the variance.
    pub epsilon: f32,
    /// `[3 * channels, channels]`.
    pub qkv: Int8Linear<'a>,
    /// Attention; its `store` is ignored.
    pub attention: AttentionSpec<'a>,
    /// `[channels, channels]`.
    pub proj: Int8Linear<'a>,
}

/// Constants for which the kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBlockConfig {
    /// Which attention branch.
    pub form: WindowForm,
    /// Number of heads of 32 channels.
    pub heads: usize,
    /// Number of tokens of a window.
    pub tokens: usize,
    /// Groups of a block.
    pub groups: u32,
    /// Buffers of a group for keys and values.
    pub buffers: u32,
}

impl WindowBlockConfig {
    /// The configuration for blocks with at most `shared` bytes of shared memory; `None` if the constants do
    /// not fit, or if windows do not have 49 to 64 tokens.
    pub fn new(form: WindowForm, heads: usize, tokens: usize, shared: u32) -> Option<WindowBlockConfig> {
        if heads > MOST_HEADS || !(49..=ROWS).contains(&tokens) {
            return None;
        }
        let config = WindowBlockConfig { form, heads, tokens, groups: 0, buffers: 1 };
        let exchanges = shared.checked_sub(config.constants() as u32)? / config.exchange();
        // The more groups, the fewer registers a thread may have: 96, 128 or 168.
        let most = match (form, heads, tokens) {
            (WindowForm::PreNorm, ..=4, ..=56) => 5,
            (WindowForm::PreNorm, ..=4, _) | (WindowForm::PreNorm, _, ..=56) => 4,
            // With one buffer the compiler would spill registers of five groups on some GPUs.
            (WindowForm::PostNorm { .. }, ..=3, 57..) if exchanges >= 2 * 5 => 5,
            (WindowForm::PostNorm { .. }, ..=3, _) => 4,
            _ => 3,
        };
        let groups = exchanges.min(most);
        let buffers = if exchanges >= 2 * groups { 2 } else { 1 };
        (groups > 0).then_some(WindowBlockConfig { groups, buffers, ..config })
    }

    /// Bytes of `Constants` in window.cuh.
    fn constants(&self) -> usize {
        let (heads, tiles) = (self.heads, self.key_tiles());
        // The weights of 4 x 32 rows per head, the bias, scale and bias of 5 x 32 columns per head, and the
        // logit scales.
        heads * (128 * 32 * heads + 4 * tiles * 32 * 8 + 5 * 32 * 8) + 4 * MOST_HEADS
    }

    /// Bytes of `Exchange` in window.cuh.
    fn exchange(&self) -> u32 {
        EXCHANGE + if self.hi_lo() { LOW_KEYS } else { 0 }
    }

    fn hi_lo(&self) -> bool {
        matches!(self.form, WindowForm::PostNorm { hi_lo: true })
    }

    fn key_tiles(&self) -> usize {
        self.tokens.div_ceil(8)
    }

    /// The program.
    pub fn program(&self) -> Program {
        Program::new("window_block.cu", "window_block")
            .define("THREADS", (self.groups * GROUP).into())
            .define("BUFFERS", self.buffers.into())
            .define("HEADS", self.heads as i64)
            .define("TOKENS", self.tokens as i64)
            .define("KEY_TILES", self.key_tiles() as i64)
            .define("COSINE", matches!(self.form, WindowForm::PostNorm { .. }).into())
            .define("HI_LO", self.hi_lo().into())
    }

    /// The least number of windows for which this launch is faster than a launch for each op on a device with
    /// `multiprocessors`. A single window takes longer the more heads there are; then the launch pays off
    /// only if it fills most multiprocessors.
    pub fn least_windows(&self, multiprocessors: u32) -> usize {
        if self.heads <= 4 { 0 } else { multiprocessors as usize * 3 / 4 }
    }

    /// Launch configuration for `total` windows on a device with `multiprocessors`. A block fills a
    /// multiprocessor, and its groups loop over windows.
    pub fn launch(&self, total: usize, multiprocessors: usize) -> LaunchConfig {
        let shared = self.constants() as u32 + self.groups * self.buffers * self.exchange();
        let blocks = total.min(multiprocessors) as u32;
        LaunchConfig { shared, pdl: true, ..LaunchConfig::linear(blocks, self.groups * GROUP) }
    }
}

/// The attention branch of a block, prepared for a device.
pub struct DeviceWindowBlock {
    kernel: Kernel,
    config: WindowBlockConfig,
    multiprocessors: usize,
    epsilon: f32,
    scales: [f32; 4],
    hi_lo: u32,
    constants: DeviceSlice,
    /// The region of each token under each mask.
    regions: Option<DeviceSlice>,
}

impl DeviceWindowBlock {
    /// Whether [`DeviceWindowBlock::new`] accepts a block with this attention on `device`; returns the
    /// configuration if so.
    pub fn config(
        device: &Device,
        post_norm: bool,
        attention: &AttentionSpec<'_>,
    ) -> Option<WindowBlockConfig> {
        let quant = &attention.quant;
        let integer = quant.q.is_some() && quant.k.is_some() && quant.v.is_some();
        let usual = integer && quant.scores.is_none() && quant.probs == Probs::U8 && attention.mask == -100.0;
        let form = match (post_norm, attention.hi_lo.contains(&true)) {
            (true, hi_lo) => WindowForm::PostNorm { hi_lo },
            (false, false) => WindowForm::PreNorm,
            (false, true) => return None,
        };
        let fits = usual && attention.head_dim == HEAD_DIM && device.arch().major >= 8;
        fits.then(|| {
            WindowBlockConfig::new(form, attention.heads, attention.tokens, device.shared_per_block())
        })?
    }

    /// Prepares `spec`.
    ///
    /// # Errors
    /// The kernel does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If [`DeviceWindowBlock::config`] does not accept the attention, or a length does not match.
    pub fn new(device: &Device, spec: &WindowBlockSpec<'_>) -> Result<DeviceWindowBlock, CudaError> {
        let attention = &spec.attention;
        let config =
            DeviceWindowBlock::config(device, spec.post_norm, attention).expect("the attention is accepted");
        Ok(DeviceWindowBlock {
            kernel: device.kernel(&config.program())?,
            multiprocessors: device.multiprocessors() as usize,
            epsilon: spec.epsilon,
            scales: scales(spec),
            hi_lo: hi_lo(attention),
            constants: DeviceBuf::from_slice(device, &constants(&config, spec))?.all(),
            regions: super::attention::padded_regions(device, (attention.tokens, ROWS), attention.regions)?,
            config,
        })
    }

    /// Updates the residual of `images` images with `windows` each, f16 `[images * tokens, channels]`. Sets
    /// the u32 at `overflow` to 1 if the residual holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, windows have another number of tokens, or windows are masked and the op has
    /// no regions.
    pub fn run(
        &self,
        stream: &Stream,
        (images, windows): (usize, &DeviceWindows),
        residual: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let (map, channels) = (windows.map(), self.config.heads * HEAD_DIM);
        let masks = windows.masks_for("window block", self.config.tokens, self.regions.is_some());
        let (call, total) = (Call(stream), images * windows.count());
        let [value_scale, input_recip, query_recip, key_recip] = self.scales;
        let params = Params {
            residual: call.array("window block: the residual", residual, &[images, map.tokens, channels, 2]),
            map: call.own(&map.slice),
            constants: call.own(&self.constants),
            regions: call.own(&self.regions),
            masks: call.own(masks),
            overflow: call.word("window block: the overflow flag", overflow),
            total_windows: int(total),
            windows: int(windows.count()),
            tokens: int(map.tokens),
            epsilon: self.epsilon,
            value_scale,
            input_recip,
            query_recip,
            key_recip,
            hi_lo: self.hi_lo,
        };
        int(images * map.tokens);
        // SAFETY: `Params` is the kernel's parameter. The map's tokens are below the number of tokens of an
        // image, for which the residual's length was checked; constants and regions were laid out for this
        // kernel, every mask is below `MASKS`, and the slices are held.
        unsafe { launch(&self.kernel, self.config.launch(total, self.multiprocessors), stream, &params) }
    }
}

/// `value_scale`, `input_recip`, `query_recip` and `key_recip` of the kernel.
pub fn scales(spec: &WindowBlockSpec<'_>) -> [f32; 4] {
    let [q, k, v] = sites(&spec.attention);
    [v.scale() * spec.proj.input.recip() / 255.0, spec.qkv.input.recip() / 255.0, q.recip(), k.recip()]
}

/// `hi_lo` of the kernel: bit h is set if head h has hi and lo codes.
pub fn hi_lo(attention: &AttentionSpec<'_>) -> u32 {
    attention.hi_lo.iter().enumerate().map(|(head, &two)| u32::from(two) << head).sum()
}

/// The sites of queries, keys and values.
fn sites(attention: &AttentionSpec<'_>) -> [Quantizer; 3] {
    let quant = &attention.quant;
    [quant.q, quant.k, quant.v].map(|q| q.expect("the sites of q, k and v are on"))
}

/// `Constants` of window.cuh.
pub fn constants(config: &WindowBlockConfig, spec: &WindowBlockSpec<'_>) -> Vec<u8> {
    let heads = config.heads;
    let channels = heads * HEAD_DIM;
    let matrix = |linear: &Int8Linear<'_>, n: usize| {
        linear.codes.len() == n * channels && linear.multiplier.len() == n
    };
    assert!(matrix(&spec.qkv, 3 * channels) && matrix(&spec.proj, channels), "window block: weights");
    assert!(spec.norm.0.len() == channels && spec.norm.1.len() == channels, "window block: the norm");
    let mut out = Vec::with_capacity(config.constants());
    for head in 0..heads {
        let rows = |part: usize| part * channels + head * HEAD_DIM;
        push_weight(&mut out, &spec.qkv, channels, rows(0), RIGHT);
        push_weight(&mut out, &spec.qkv, channels, rows(1), RIGHT);
        push_weight(&mut out, &spec.qkv, channels, rows(2), LEFT);
    }
    (0..heads).for_each(|group| push_weight(&mut out, &spec.proj, channels, group * HEAD_DIM, RIGHT));
    let bias = spec.attention.bias;
    assert_eq!(bias.len(), heads * config.tokens * config.tokens, "window block: the bias");
    out.extend(bias_fragments(bias, config.tokens, (ROWS / 16, config.key_tiles()), true));
    let mut push = |values: &[f32]| values.iter().for_each(|x| out.extend(x.to_le_bytes()));
    let groups = || (0..heads).map(|group| group * HEAD_DIM);
    for first in groups() {
        let part =
            |values: &[f32]| <[f32; HEAD_DIM]>::try_from(&values[first..][..HEAD_DIM]).expect("32 channels");
        push(before(spec, part(spec.norm.0), part(spec.norm.1), spec.qkv.input).as_flattened());
    }
    let [q, k, v] = sites(&spec.attention);
    for (part, site) in [(0, q), (1, k)] {
        for first in groups() {
            let (multiplier, bias) = columns(&spec.qkv, part * channels + first);
            push(before(spec, multiplier, bias, site).as_flattened());
        }
    }
    for first in groups() {
        let (multiplier, bias) = columns(&spec.qkv, 2 * channels + first);
        let [scale, bias] = shares(&multiplier, &bias, v);
        (0..HEAD_DIM).map(packed_column).for_each(|column| push(&[scale[column], bias[column]]));
    }
    for first in groups() {
        let (multiplier, bias) = columns(&spec.proj, first);
        push(&multiplier);
        push(&bias);
    }
    let unit = q.scale() * k.scale() * std::f32::consts::LOG2_E;
    let factor = |head: usize| spec.attention.scales.get(head).map_or(0.0, |scale| scale * unit);
    (0..MOST_HEADS).for_each(|head| push(&[factor(head)]));
    assert_eq!(out.len(), config.constants(), "window block: the size of the constants");
    out
}

/// Scale and bias of 32 columns that a site follows in Swin V1. In Swin V2 other arithmetic is between them.
fn before(
    spec: &WindowBlockSpec<'_>,
    scale: [f32; HEAD_DIM],
    bias: [f32; HEAD_DIM],
    site: Quantizer,
) -> [[f32; HEAD_DIM]; 2] {
    if spec.post_norm { [scale, bias] } else { shares(&scale, &bias, site) }
}

/// Multiplier and bias of 32 columns.
fn columns(linear: &Int8Linear<'_>, first: usize) -> ([f32; HEAD_DIM], [f32; HEAD_DIM]) {
    let part = |values: &[f32]| values[first..][..HEAD_DIM].try_into().expect("32 columns");
    (part(linear.multiplier), linear.bias.map_or([0.0; HEAD_DIM], part))
}

/// The scales and biases that give `(code + 128) / 255` of `sum * scale + bias`. A column with a NaN gets
/// zeros, because the code of a NaN is 0.
fn shares(scale: &[f32], bias: &[f32], site: Quantizer) -> [[f32; HEAD_DIM]; 2] {
    let recip = f64::from(site.recip());
    let mut out = [[0.0; HEAD_DIM]; 2];
    for (i, (&scale, &bias)) in scale.iter().zip(bias).enumerate() {
        let (scale, bias) = if scale.is_nan() || bias.is_nan() { (0.0, 0.0) } else { (scale, bias) };
        out[0][i] = (f64::from(scale) * recip / 255.0) as f32;
        out[1][i] = ((f64::from(bias) * recip + 128.0) / 255.0) as f32;
    }
    out
}

/// Where a lane's four words of a fragment come from: n-tile and half of the 32 channels. The right operand
/// of a product takes two words of a tile; the left operand takes two tiles of each half.
type Words = [(usize, usize); 4];
const RIGHT: Words = [(0, 0), (0, 1), (1, 0), (1, 1)];
const LEFT: Words = [(0, 0), (1, 0), (0, 1), (1, 1)];

/// Appends the fragments of 32 rows of a weight from row `first` on: two halves of 16 packed rows, steps of
/// 32 channels, lanes, words.
fn push_weight(out: &mut Vec<u8>, linear: &Int8Linear<'_>, channels: usize, first: usize, words: Words) {
    for pair in 0..2 {
        for step in 0..channels / 32 {
            for lane in 0..32 {
                for (tile, half) in words {
                    let row = first + packed_column(8 * (2 * pair + tile) + lane / 4);
                    let at = row * channels + 32 * step + 8 * (lane % 4) + 4 * half;
                    out.extend(linear.codes[at..][..4].iter().map(|code| code.cast_unsigned()));
                }
            }
        }
    }
}
