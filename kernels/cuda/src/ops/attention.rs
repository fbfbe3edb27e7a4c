//! Window attention.

use swinq_numerics::{AttentionSpec, MASKS, Probs};

use super::{Call, DeviceStore, DeviceWindows, ResidualType, int, row_stride};
use crate::params::attention::Params;
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, Stream, launch};

mod bias;
mod config;

pub use bias::{bias_fragments, bias_rows};
pub use config::{AttentionConfig, AttentionElements};

/// The channels of a head of every official Swin. All kernels run such heads.
pub const HEAD_DIM: usize = 32;
/// Most channels of a head. The kernels of separate launches run such heads.
pub const WIDE_HEAD_DIM: usize = 64;

/// The columns of a head of `channels` channels in the kernels: [`HEAD_DIM`] or [`WIDE_HEAD_DIM`]. The
/// columns beyond its channels are zeros.
pub fn head_columns(channels: usize) -> usize {
    if channels <= HEAD_DIM { HEAD_DIM } else { WIDE_HEAD_DIM }
}

/// Checks that the kernels have room for heads of `channels` channels.
///
/// # Errors
/// [`CudaError::Unsupported`] if there are more than [`WIDE_HEAD_DIM`].
pub fn check_heads(channels: usize) -> Result<(), CudaError> {
    if channels <= WIDE_HEAD_DIM {
        return Ok(());
    }
    Err(CudaError::Unsupported(format!(
        "heads of {channels} channels: the CUDA kernels are for up to {WIDE_HEAD_DIM} (every official Swin has {HEAD_DIM}); the CPU \
         backend runs any"
    )))
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
    /// Prepares attention for `spec` (except its `store`), storing results as `store`. With an f32 residual,
    /// INT8 attention is bit-exact to the reference. A head has [`head_columns`] columns in the input and in
    /// the output. Those beyond its channels are zeros.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if a head has more than [`WIDE_HEAD_DIM`] channels, if only some of the
    /// sites of q, k, v and the probabilities are on, or if a site of the scores is on. Also if the kernel
    /// does not compile, or the device has too little memory.
    ///
    /// # Panics
    /// If a length does not match, or mask 0 has several regions.
    pub fn new(
        device: &Device,
        spec: &AttentionSpec<'_>,
        store: DeviceStore,
        residual: ResidualType,
    ) -> Result<DeviceAttention, CudaError> {
        let limit = device.shared_per_block();
        let config = config(spec, residual, limit)?;
        let kernel = device.kernel(&config.program(store))?;
        if config.shared() > limit {
            return Err(CudaError::Unsupported(format!(
                "windows of {} tokens need {} bytes of shared memory, and this GPU has {limit}",
                config.tokens,
                config.shared()
            )));
        }
        let scales = scales(spec, &config);
        let low = config.hi_lo.then(|| low_columns(spec.hi_lo, config.head_dim));
        let lo_codes = low.iter().flatten().filter(|&&column| column >= 0).count();
        Ok(DeviceAttention {
            kernel,
            columns: (3 * config.heads + lo_codes) * config.head_dim,
            logit_scales: config
                .head_scales
                .then(|| DeviceBuf::from_slice(device, &scales.logits).map(|scales| scales.all()))
                .transpose()?,
            low: low.map(|low| DeviceBuf::from_slice(device, &low).map(|low| low.all())).transpose()?,
            multiprocessors: device.multiprocessors() as usize,
            bias: DeviceBuf::from_slice(device, &config.packed_bias(spec.bias))?.all(),
            regions: padded_regions(device, (config.tokens, config.padded()), spec.regions)?,
            store,
            scales,
            config,
        })
    }

    /// Reads the rows of `images` images, window by window, and writes `[images * windows * n, channels]`.
    /// `windows` are those of each image; the op uses their masks.
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
        qkv: &DeviceSlice,
        out: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let AttentionConfig { tokens, heads, head_dim, .. } = self.config;
        let channels = heads * head_dim;
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
        // SAFETY: `Params` is the kernel's parameter. The windows that the kernel accesses are within the
        // lengths checked above, bias and regions were laid out for the same shape, every mask is below
        // `MASKS`, and the slices are held.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}

/// The kernel configuration for `spec`, on a GPU where a block may have `limit` bytes of shared memory.
fn config(
    spec: &AttentionSpec<'_>,
    residual: ResidualType,
    limit: u32,
) -> Result<AttentionConfig, CudaError> {
    let quant = &spec.quant;
    check_heads(spec.head_dim)?;
    let integer = [quant.q.is_some(), quant.k.is_some(), quant.v.is_some(), quant.probs != Probs::Float];
    if quant.scores.is_some() || integer.iter().any(|&each| each != integer[0]) {
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
        head_dim: head_columns(spec.head_dim),
        probs_s8,
        exact,
        head_scales: spec.scales.iter().any(|scale| *scale != spec.scales[0]),
        hi_lo: integer[0] && spec.hi_lo.contains(&true),
        mask: spec.mask,
        limit,
    })
}

/// The first column of the lo codes of each head's queries, then of its keys, `[2, heads]`; -1 for heads with
/// one code per value. The lo codes follow the values, all of the queries before all of the keys. A head has
/// `head_dim` columns.
pub fn low_columns(hi_lo: &[bool], head_dim: usize) -> Vec<i32> {
    let mut next = (3 * hi_lo.len()..).map(|slot| int(slot * head_dim));
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
