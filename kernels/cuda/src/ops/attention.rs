//! Window attention.

use swinq_numerics::{AttentionSpec, MASKS, Probs};

use super::{Call, DeviceStore, DeviceWindows, ResidualType, int, row_stride};
use crate::params::attention::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// The head dimension that the kernels support.
pub const HEAD_DIM: usize = 32;
/// Number of tokens that a block processes at a time.
const TOKENS: usize = 64;
const THREADS: u32 = 128;
/// Windows of up to this many f16 tokens are compiled for [`SMALL_BLOCKS`].
const SMALL_TOKENS: usize = 40;
/// Number of blocks of small f16 windows that the compiler leaves registers for.
const SMALL_BLOCKS: i64 = 4;
/// Number of blocks of bit-exact tiled kernels with u8 probabilities that the compiler leaves registers for.
const TILED_BLOCKS: i64 = 3;
/// Maximum registers of a thread in the tiled kernels.
const TILED_REGISTERS: u32 = 168;

/// Element type of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionElements {
    /// INT8 codes; probabilities are INT8 codes too.
    Codes,
    /// f16, summed in f32.
    Half,
}

/// Constants for which an attention kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Element type of the input.
    pub elements: AttentionElements,
    /// Number of tokens of a window.
    pub tokens: usize,
    /// Number of heads.
    pub heads: usize,
    /// Whether probabilities are of kind `s8`.
    pub probs_s8: bool,
    /// Whether exponentials are bit-exact to the reference; if not, the GPU's exponential unit computes them.
    pub exact: bool,
    /// Whether each head has a factor of `q k^T` of its own.
    pub head_scales: bool,
    /// Whether queries and keys of some heads have hi and lo codes for each value.
    pub hi_lo: bool,
    /// Added to the logits of tokens of different regions.
    pub mask: f32,
}

impl AttentionConfig {
    /// Whether one block processes a whole window at once. With hi and lo codes and probabilities of kind `s8`, the kernel for
    /// whole windows would need more registers than some GPUs have.
    pub fn whole(&self) -> bool {
        self.tokens <= TOKENS && !(self.hi_lo && self.probs_s8)
    }

    /// Tokens of a window padded to full tiles, as in the layout of bias and regions.
    pub fn padded(&self) -> usize {
        self.tokens.next_multiple_of(TOKENS)
    }

    /// Factor that the logits' scale and bias are multiplied by: 1 if `exact`, else log2(e), because the
    /// exponential unit computes powers of two.
    pub fn logit_unit(&self) -> f32 {
        if self.exact { 1.0 } else { std::f32::consts::LOG2_E }
    }

    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        let (file, entry) = match (self.elements, self.whole()) {
            (AttentionElements::Codes, true) => ("attention_i8.cu", "attention_i8"),
            (AttentionElements::Half, true) => ("attention_f16.cu", "attention_f16"),
            (AttentionElements::Codes, false) => ("attention_tiled.cu", "attention_i8_tiled"),
            (AttentionElements::Half, false) => ("attention_tiled.cu", "attention_f16_tiled"),
        };
        let program = Program::new(file, entry)
            .define("THREADS", THREADS.into())
            .define("STORE", store.define())
            .define("FAKE", store.is_fake().into())
            .define("EXACT", self.exact.into())
            .define("HEAD_SCALES", self.head_scales.into())
            .define("MASK_BITS", (self.mask * self.logit_unit()).to_bits().into());
        let program = match self.elements {
            AttentionElements::Codes => {
                program.define("PROBS_S8", self.probs_s8.into()).define("HI_LO", self.hi_lo.into())
            }
            AttentionElements::Half => program,
        };
        if self.whole() {
            let program = program.define("KEY_TILES", self.tokens.div_ceil(8) as i64);
            // Without a number of blocks the compiler spills registers of small windows so that more blocks fit.
            let small = self.elements == AttentionElements::Half && self.tokens <= SMALL_TOKENS;
            return if small { program.define("MIN_BLOCKS", SMALL_BLOCKS) } else { program };
        }
        // Without a number of blocks the compiler spills a register so that one more block fits.
        let tight = self.elements == AttentionElements::Codes && self.exact && !self.probs_s8 && !self.hi_lo;
        let program = if tight { program.define("MIN_BLOCKS", TILED_BLOCKS) } else { program };
        let integer = self.elements == AttentionElements::Codes;
        // Without the limit the compiler spills a register so that one more block fits.
        Program { max_registers: Some(TILED_REGISTERS), ..program.define("INTEGER", integer.into()) }
    }

    /// Bytes of shared memory of a block.
    pub fn shared(&self) -> u32 {
        let tokens = TOKENS as u32;
        let (operands, low) = if self.hi_lo { (5, 1) } else { (3, 0) };
        match (self.elements, self.whole()) {
            (AttentionElements::Codes, true) => 2 * operands * tokens * 48 + 32 * 80,
            (AttentionElements::Half, true) => 2 * 3 * tokens * 80,
            // Queries, then the keys and values of every tile, then the transposed INT8 values; lo codes of queries
            // and keys.
            (AttentionElements::Codes, false) => {
                let padded = self.padded() as u32;
                tokens * 48 + 2 * padded * 48 + padded / tokens * 32 * 80 + low * (tokens + padded) * 48
            }
            (AttentionElements::Half, false) => {
                let padded = self.padded() as u32;
                tokens * 80 + 2 * padded * 80
            }
        }
    }

    /// Number of blocks for each multiprocessor, for windows of up to 64 tokens: as many as it runs at the same time.
    /// With hi and lo codes twice as many, because blocks of heads with one code end earlier.
    fn blocks(&self) -> usize {
        match (self.elements, self.hi_lo, self.tokens) {
            (AttentionElements::Codes, true, _) => 2 * 4,
            (AttentionElements::Codes, false, 57..) => 5,
            (AttentionElements::Codes, false, _) if self.head_scales => 5,
            _ => 6,
        }
    }

    /// Number of windows that a block processes, and the launch configuration for `total` windows on a device
    /// with `multiprocessors`. A block loads the bias once for all its windows, so there are few blocks.
    pub fn launch(&self, total: usize, multiprocessors: usize) -> (usize, LaunchConfig) {
        let (each, grid) = if self.whole() {
            let blocks = multiprocessors * self.blocks();
            let each = (total * self.heads).div_ceil(blocks);
            (each, [(total.div_ceil(each) * self.heads) as u32, 1, 1])
        } else {
            (1, [(total * self.heads) as u32, (self.padded() / TOKENS) as u32, 1])
        };
        (each, LaunchConfig { grid, threads: THREADS, shared: self.shared(), pdl: true })
    }
}

/// Window attention of one transformer block, prepared for a device.
pub struct DeviceAttention {
    kernel: Kernel,
    config: AttentionConfig,
    multiprocessors: usize,
    /// Columns of the input.
    columns: usize,
    /// Present if each head has a factor of its own.
    logit_scales: Option<DeviceSlice>,
    /// Present if some heads have hi and lo codes.
    low: Option<DeviceSlice>,
    bias: DeviceSlice,
    /// The region of each token under each mask.
    regions: Option<DeviceSlice>,
    store: DeviceStore,
    scales: Scales,
}

/// Factors of the kernel.
struct Scales {
    /// Of the sums of `q . k`, for each head.
    logits: Vec<f32>,
    value: f32,
    probs: (f32, f32),
}

impl DeviceAttention {
    /// Prepares attention for `spec` (except its `store`), storing results as `store`. With an f32 residual
    /// residual, INT8 attention is bit-exact to the reference.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if a head does not have [`HEAD_DIM`] channels, if only some of the sites of
    /// q, k, v and the probabilities are on, or if a site of the scores is on. Also if the kernel does not
    /// compile, or the device has too little memory.
    ///
    /// # Panics
    /// If a length does not match, or mask 0 has several regions.
    pub fn new(
        device: &Device,
        spec: &AttentionSpec<'_>,
        store: DeviceStore,
        residual: ResidualType,
    ) -> Result<DeviceAttention, CudaError> {
        let config = config(spec, residual)?;
        let kernel = device.kernel(&config.program(store))?;
        let limit = device.shared_per_block();
        if config.shared() > limit {
            return Err(CudaError::Unsupported(format!(
                "windows of {} tokens need {} bytes of shared memory, and this GPU has {limit}",
                config.tokens,
                config.shared()
            )));
        }
        let scales = scales(spec, &config);
        let low = config.hi_lo.then(|| low_columns(spec.hi_lo));
        let lo_codes = low.iter().flatten().filter(|&&column| column >= 0).count();
        Ok(DeviceAttention {
            kernel,
            columns: (3 * config.heads + lo_codes) * HEAD_DIM,
            logit_scales: config
                .head_scales
                .then(|| DeviceBuf::from_slice(device, &scales.logits).map(|scales| scales.all()))
                .transpose()?,
            low: low.map(|low| DeviceBuf::from_slice(device, &low).map(|low| low.all())).transpose()?,
            multiprocessors: device.multiprocessors() as usize,
            bias: DeviceBuf::from_slice(device, &padded_bias(&config, spec.bias))?.all(),
            regions: padded_regions(device, (config.tokens, config.padded()), spec.regions)?,
            store,
            scales,
            config,
        })
    }

    /// Reads the rows of `images` images, window by window, and writes `[images * windows * n, channels]`. `windows` are
    /// those of each image; the op uses their masks.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, windows have another number of tokens, or windows are masked and the op has no regions.
    pub fn run(
        &self,
        stream: &Stream,
        (images, windows): (usize, &DeviceWindows),
        qkv: &DeviceSlice,
        out: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let AttentionConfig { tokens, heads, .. } = self.config;
        let channels = heads * HEAD_DIM;
        let masks = windows.masks_for("attention", tokens, self.regions.is_some());
        let element = if self.config.elements == AttentionElements::Codes { 1 } else { 2 };
        let columns = row_stride(self.columns, element);
        let input = [images, windows.count(), tokens, columns, element];
        let output = [images, windows.count(), tokens, channels, self.store.element_bytes()];
        let (call, total) = (Call(stream), images * windows.count());
        let (each, config) = self.config.launch(total, self.multiprocessors);
        let (recip, scale) = self.store.recip_and_scale();
        let params = Params {
            qkv: call.array("attention: q, k and v", qkv, &input),
            logit_scales: call.own(&self.logit_scales),
            low: call.own(&self.low),
            bias: call.own(&self.bias),
            regions: call.own(&self.regions),
            masks: call.own(masks),
            out: call.array("attention: the output", out, &output),
            total_windows: int(total),
            windows: int(windows.count()),
            n: int(tokens),
            heads: int(heads),
            columns: int(columns),
            windows_each: int(each),
            logit_scale: self.scales.logits[0],
            value_scale: self.scales.value,
            probs_scale: self.scales.probs.0,
            probs_recip: self.scales.probs.1,
            recip,
            scale,
        };
        // SAFETY: `Params` is the kernel's parameter. The windows that the kernel accesses are
        // within the lengths checked above, bias and regions were laid out for the same shape, every mask is below
        // `MASKS`, and the slices are held.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}

/// The kernel configuration for `spec`.
fn config(spec: &AttentionSpec<'_>, residual: ResidualType) -> Result<AttentionConfig, CudaError> {
    let quant = &spec.quant;
    if spec.head_dim != HEAD_DIM {
        return Err(CudaError::Unsupported(format!(
            "heads of {} channels: the CUDA kernels are for {HEAD_DIM} (every official Swin); the CPU backend runs any",
            spec.head_dim
        )));
    }
    let integer = [quant.q.is_some(), quant.k.is_some(), quant.v.is_some(), quant.probs != Probs::Float];
    if quant.scores.is_some() || integer.iter().any(|&stream| stream != integer[0]) {
        return Err(CudaError::Unsupported(
            "the CUDA kernels need the sites q, k, v and probs all on or all off, and scores off; the CPU backend runs \
             every recipe"
                .to_owned(),
        ));
    }
    let elements = if integer[0] { AttentionElements::Codes } else { AttentionElements::Half };
    let probs_s8 = matches!(quant.probs, Probs::S8(_));
    let exact = residual == ResidualType::F32;
    Ok(AttentionConfig {
        elements,
        tokens: spec.tokens,
        heads: spec.heads,
        probs_s8,
        exact,
        head_scales: spec.scales.iter().any(|scale| *scale != spec.scales[0]),
        hi_lo: integer[0] && spec.hi_lo.contains(&true),
        mask: spec.mask,
    })
}

/// The first column of the lo codes of each head's queries, then of its keys, `[2, heads]`; -1 for heads with one
/// code per value. The lo codes follow the values, all of the queries before all of the keys.
pub fn low_columns(hi_lo: &[bool]) -> Vec<i32> {
    let mut next = (3 * hi_lo.len()..).map(|slot| int(slot * HEAD_DIM));
    let of_operand = hi_lo.iter().chain(hi_lo);
    of_operand.map(|&two| two.then(|| next.next()).flatten().unwrap_or(-1)).collect()
}

/// The factors, multiplied in the same order as in the reference.
fn scales(spec: &AttentionSpec<'_>, config: &AttentionConfig) -> Scales {
    let quant = &spec.quant;
    let unit = config.logit_unit();
    let (Some(q), Some(k), Some(v)) = (quant.q, quant.k, quant.v) else {
        let logits = spec.scales.iter().map(|scale| scale * unit).collect();
        return Scales { logits, value: 1.0, probs: (1.0, 1.0) };
    };
    let probs = match quant.probs {
        Probs::S8(probs) => (probs.scale(), probs.recip()),
        Probs::U8 | Probs::Float => (1.0, 1.0),
    };
    let logits = spec.scales.iter().map(|scale| q.scale() * k.scale() * scale * unit).collect();
    Scales { logits, value: v.scale(), probs }
}

/// Pads the bias `[heads, n, n]` to `[heads, padded, padded]`, with -inf for padding keys and zeros for
/// padding queries.
fn padded_bias(config: &AttentionConfig, bias: &[f32]) -> Vec<f32> {
    let (n, padded, unit) = (config.tokens, config.padded(), config.logit_unit());
    assert_eq!(bias.len(), config.heads * n * n, "attention: bias is not [{}, {n}, {n}]", config.heads);
    let mut out = vec![0.0; config.heads * padded * padded];
    for (row, out) in out.chunks_exact_mut(padded).enumerate() {
        let (head, query) = (row / padded, row % padded);
        if query < n {
            let row = &bias[(head * n + query) * n..][..n];
            out.iter_mut().zip(row).for_each(|(out, bias)| *out = bias * unit);
        }
        out[n..].fill(f32::NEG_INFINITY);
    }
    out
}

/// Copies the regions `[MASKS, n]` to the device as `[MASKS, padded]`.
///
/// # Panics
/// If there are not as many, or mask 0, which the kernels skip, has several regions.
pub(super) fn padded_regions(
    device: &Device,
    (n, padded): (usize, usize),
    regions: Option<&[u8]>,
) -> Result<Option<DeviceSlice>, CudaError> {
    let Some(regions) = regions else { return Ok(None) };
    assert_eq!(regions.len(), MASKS * n, "attention: regions are not [{MASKS}, {n}]");
    assert!(regions[..n].iter().all(|region| *region == regions[0]), "attention: mask 0 has several regions");
    let padding = vec![0; padded - n];
    let rows: Vec<u8> = regions.chunks_exact(n).flat_map(|mask| [mask, &padding].concat()).collect();
    Ok(Some(DeviceBuf::from_slice(device, &rows)?.all()))
}
