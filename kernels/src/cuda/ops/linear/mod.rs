//! Linear layers on the tensor cores with their epilogue: bias, GELU, then a store or the addition to the
//! residual stream. Our own kernels do all of it in one launch; with cuBLASLt the epilogue needs a second
//! launch.

mod library;
pub mod pack;
mod params;
mod tile;

use std::fmt;
use std::sync::{Mutex, Weak};

pub use library::LibraryLinear;
pub use tile::{Gpu, Instruction, Tile};

use self::pack::{GROUP, pack_codes, pack_half, pad_columns};
use self::params::{EpilogueParams, GemmParams, RolesParams};
use super::{DeviceMap, DeviceStore, StreamType, expect, int, row_stride};
use crate::cuda::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, Program, Stream, TensorMap, launch};
use crate::reference::correction_i8;
use crate::{ColumnQuantizers, Quantizer};

/// The weight of a linear layer.
#[derive(Clone, Copy)]
pub enum DeviceWeight<'a> {
    /// INT8 codes `[n, k]`, for INT8 inputs, and the factor `s_x * s_w` of each column.
    Codes {
        /// The codes.
        codes: &'a [i8],
        /// One per column.
        multiplier: &'a [f32],
        /// The zero points of the k inputs, or none: an input code `q` stands for `q - zero_points[k]`.
        zero_points: &'a [i8],
    },
    /// Weights to be rounded to f16, `[n, k]`, for f16 inputs; sums are f32.
    Half(&'a [f32]),
}

/// How a linear layer stores its results.
#[derive(Clone, Debug, PartialEq)]
pub enum LinearStore {
    /// The same store as any op.
    Plain(DeviceStore),
    /// INT8 codes, with the reciprocal of a scale per column. Each aligned group of eight columns has the
    /// same scale.
    Codes(Vec<f32>),
    /// INT8 codes, with a scale and a zero point per column.
    ChannelCodes(ColumnQuantizers),
    /// Quantized and dequantized with a scale and a zero point per column, then stored as f16.
    ChannelFake(ColumnQuantizers),
    /// Added to the residual stream.
    Residual,
}

/// Description of a linear layer.
pub struct DeviceLinearSpec<'a> {
    /// Number of output columns.
    pub n: usize,
    /// Number of input columns.
    pub k: usize,
    /// The weight.
    pub weight: DeviceWeight<'a>,
    /// Per column.
    pub bias: Option<&'a [f32]>,
    /// The `.output` site.
    pub output: Option<Quantizer>,
    /// Whether GELU follows the bias.
    pub gelu: bool,
    /// How the results are stored.
    pub store: LinearStore,
    /// Element type of the residual stream.
    pub stream: StreamType,
}

/// Constants for which the kernels of a linear layer are compiled, without the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearKind {
    /// Whether operands are INT8; if not, they are f16.
    pub integer: bool,
    /// Whether there is an `.output` site.
    pub output: bool,
    /// Whether GELU is applied.
    pub gelu: bool,
    /// Whether values are quantized and dequantized before the store.
    pub fake: bool,
    /// Whether GELU and its codes are computed in packed halves.
    pub half_gelu: bool,
    /// Whether the codes of the results have a scale and a zero point per column.
    pub channels: bool,
    /// Whether the codes of the input have zero points.
    pub corrected: bool,
    /// Whether the number of columns is a multiple of 8, so that all stores are vectors of eight values.
    pub whole: bool,
    /// The STORE_ constant.
    store: i64,
    /// Element type of the residual stream.
    pub stream: StreamType,
}

/// Reciprocals of the output scale for which GELU may be computed in packed halves: no code is less than -128
/// (GELU is -0.17 at least), and the reciprocal is a normal f16.
pub(super) const HALF_GELU_RECIPS: std::ops::RangeInclusive<f32> = 1e-3..=750.0;

/// Whether GELU and its codes are computed in packed halves: with an f16 stream, for INT8 layers without an
/// `.output` site that store codes in full groups of eight columns.
fn half_gelu(spec: &DeviceLinearSpec<'_>) -> bool {
    let layer =
        spec.gelu && spec.output.is_none() && spec.stream == StreamType::F16 && spec.n.is_multiple_of(8);
    let in_range = match &spec.store {
        LinearStore::Plain(DeviceStore::Codes(q)) => HALF_GELU_RECIPS.contains(&q.recip()),
        LinearStore::Codes(recips) => recips.iter().all(|recip| HALF_GELU_RECIPS.contains(recip)),
        _ => false,
    };
    layer && in_range && matches!(spec.weight, DeviceWeight::Codes { .. })
}

impl LinearKind {
    /// The kind of `spec`.
    pub fn new(spec: &DeviceLinearSpec<'_>) -> LinearKind {
        let (store, fake) = match &spec.store {
            LinearStore::Plain(store) => (store.define(), store.is_fake()),
            LinearStore::Codes(_) | LinearStore::ChannelCodes(_) => (super::STORE_CODES, false),
            LinearStore::ChannelFake(_) => (super::STORE_HALF, true),
            LinearStore::Residual => (super::STORE_RESIDUAL, false),
        };
        let corrected = match spec.weight {
            DeviceWeight::Codes { zero_points, .. } => !zero_points.is_empty(),
            DeviceWeight::Half(_) => false,
        };
        LinearKind {
            channels: matches!(spec.store, LinearStore::ChannelCodes(_) | LinearStore::ChannelFake(_)),
            corrected,
            integer: matches!(spec.weight, DeviceWeight::Codes { .. }),
            output: spec.output.is_some(),
            gelu: spec.gelu,
            fake,
            half_gelu: half_gelu(spec),
            whole: spec.n.is_multiple_of(8),
            store,
            stream: spec.stream,
        }
    }

    /// Rewrites the factors and biases of all columns for the kernels. GELU in packed halves takes half of its
    /// argument, so both are halved. It does not pass on a NaN, so a column with a NaN gets zeros, because the
    /// code of a NaN is 0.
    pub fn column_constants(&self, factors: &mut [f32], bias: &mut [f32]) {
        if self.half_gelu {
            for (factor, bias) in factors.iter_mut().zip(bias) {
                let number = !factor.is_nan() && !bias.is_nan();
                (*factor, *bias) = if number { (0.5 * *factor, 0.5 * *bias) } else { (0.0, 0.0) };
            }
        }
    }

    /// The same kind for another type of the residual stream.
    #[must_use]
    pub fn with_stream(self, stream: StreamType) -> LinearKind {
        LinearKind { stream, half_gelu: self.half_gelu && stream == StreamType::F16, ..self }
    }

    /// Adds the defines of the epilogue to `program`.
    fn define(&self, program: Program) -> Program {
        program
            .define("INTEGER", self.integer.into())
            .define("OUTPUT", self.output.into())
            .define("GELU", self.gelu.into())
            .define("HALF_GELU", self.half_gelu.into())
            .define("FAKE", self.fake.into())
            .define("CHANNELS", self.channels.into())
            .define("CORRECTED", self.corrected.into())
            .define("WHOLE", self.whole.into())
            .define("STORE", self.store)
            .define("STREAM_F32", self.stream.define())
    }

    /// The program of our own kernel with `tile`.
    pub fn program(&self, tile: Tile) -> Program {
        let program = match tile.instruction {
            Instruction::Mma => Program::new("gemm.cu", "gemm")
                .define("BM", tile.block.0.into())
                .define("WM", tile.warp.0.into())
                .define("WN", tile.warp.1.into())
                .define("BK", tile.depth.into()),
            Instruction::Wgmma => Program::new("gemm_sm90.cu", "gemm_sm90")
                .define("GROUPS_M", tile.groups().into())
                .define("BLOCKS", (tile.warp.0 / 64).into())
                .define("RESIDENT", tile.resident.into()),
            Instruction::Cooperative | Instruction::PingPong => {
                let (multiply, copy) = tile.registers().unwrap_or_default();
                Program::new("gemm_roles.cu", "gemm_roles")
                    .define("GROUPS_M", tile.groups().into())
                    .define("BLOCKS", (tile.warp.0 / 64).into())
                    .define("RESIDENT", tile.resident.into())
                    .define("TURNS", (tile.instruction == Instruction::PingPong).into())
                    .define("REGISTERS", multiply.into())
                    .define("COPY_REGISTERS", copy.into())
            }
        };
        let program = program
            .define("BN", tile.block.1.into())
            .define("STAGES", tile.stages.into())
            .define("THREADS", tile.threads().into());
        self.define(program)
    }

    /// Bytes per stored element.
    fn element_bytes(&self) -> usize {
        match self.store {
            super::STORE_CODES => 1,
            super::STORE_HALF => 2,
            super::STORE_FLOAT => 4,
            _ => self.stream.bytes(),
        }
    }

    /// Whether results are added to the residual stream.
    pub fn is_residual(&self) -> bool {
        self.store == super::STORE_RESIDUAL
    }
}

impl fmt::Display for LinearKind {
    /// Describes the kind in words, which the tables of tiles use as its name. Scales and zero points per column
    /// are not part of it, because they hardly change the time of a tile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (integer, stream) = (self.integer, self.stream);
        f.write_str(if integer { "int8" } else { "f16" })?;
        for (on, name) in [(self.output, " output"), (self.gelu, " gelu"), (self.fake, " fake")] {
            f.write_str(if on { name } else { "" })?;
        }
        let store = match self.store {
            super::STORE_CODES => "codes",
            super::STORE_HALF => "f16",
            super::STORE_FLOAT => "f32",
            _ => "residual",
        };
        write!(f, " to {store}, {} stream", if stream == StreamType::F32 { "f32" } else { "f16" })
    }
}

/// A linear layer whose weight is on a device.
pub struct DeviceLinear {
    device: Device,
    kind: LinearKind,
    n: usize,
    k: usize,
    weight: DeviceSlice,
    epilogue: EpilogueArrays,
    /// The unpacked weight for cuBLASLt. It is on the device only while a [`LibraryLinear`] of this layer
    /// exists.
    plain_weight: PlainWeight,
    plain_on_device: Mutex<Weak<DeviceSlice>>,
}

/// The unpacked weight.
enum PlainWeight {
    Codes(Vec<i8>),
    /// Bits of f16.
    Half(Vec<u16>),
}

/// Per-column arrays, padded to full groups, and scalars.
struct EpilogueArrays {
    scale: DeviceSlice,
    bias: DeviceSlice,
    recip: DeviceSlice,
    /// Of columns that have their own codes.
    zero_point: Option<DeviceSlice>,
    step: Option<DeviceSlice>,
    /// If the input has zero points.
    correction: Option<DeviceSlice>,
    output_scale: f32,
    fake: (f32, f32),
}

impl EpilogueArrays {
    fn new(device: &Device, spec: &DeviceLinearSpec<'_>) -> Result<EpilogueArrays, CudaError> {
        let n = spec.n;
        let copy =
            |values: &[f32]| Ok::<_, CudaError>(DeviceBuf::from_slice(device, &pad_columns(values))?.all());
        let recip = match &spec.store {
            LinearStore::Codes(recip) => {
                let same = recip.chunks(8).all(|eight| eight.iter().all(|r| *r == eight[0]));
                assert!(same && recip.len() == n, "linear: steps change within eight columns");
                recip.clone()
            }
            LinearStore::ChannelCodes(columns) | LinearStore::ChannelFake(columns) => {
                assert_eq!(columns.len(), n, "linear: {} quantizers for {n} columns", columns.len());
                columns.recips().to_vec()
            }
            LinearStore::Plain(store) => vec![store.recip_and_scale().0; n],
            LinearStore::Residual => vec![1.0; n],
        };
        let (mut scale, mut bias) =
            (column_scales(spec), spec.bias.map_or_else(|| vec![0.0; n], <[f32]>::to_vec));
        let (zero_point, step) = column_codes(spec, &scale, &bias).unzip();
        let fake = match &spec.store {
            LinearStore::Plain(store) => store.recip_and_scale(),
            _ => (1.0, 1.0),
        };
        LinearKind::new(spec).column_constants(&mut scale, &mut bias);
        Ok(EpilogueArrays {
            scale: copy(&scale)?,
            bias: copy(&bias)?,
            recip: copy(&recip)?,
            zero_point: zero_point.map(|values| copy(&values)).transpose()?,
            step: step.map(|values| copy(&values)).transpose()?,
            correction: corrections(spec)
                .map(|values| Ok::<_, CudaError>(DeviceBuf::from_slice(device, &pad_columns(&values))?.all()))
                .transpose()?,
            output_scale: spec.output.map_or(1.0, Quantizer::scale),
            fake,
        })
    }

    fn hold(&self, on: &Stream) {
        [&self.scale, &self.bias, &self.recip].into_iter().for_each(|s| on.hold(s));
        [&self.zero_point, &self.step, &self.correction].into_iter().flatten().for_each(|s| on.hold(s));
    }

    fn params(&self, out: &Target<'_>, n: usize, stride: usize) -> EpilogueParams {
        EpilogueParams {
            scale: self.scale.ptr(),
            bias: self.bias.ptr(),
            recip: self.recip.ptr(),
            zero_point: pointer(&self.zero_point),
            step: pointer(&self.step),
            correction: pointer(&self.correction),
            map: out.map.map_or(0, |map| map.slice.ptr()),
            out: out.slice.ptr(),
            n: int(n),
            stride: int(stride),
            map_rows: int(out.map.map_or(0, |map| map.rows)),
            map_tokens: int(out.map.map_or(0, |map| map.tokens)),
            output_scale: self.output_scale,
            fake_recip: self.fake.0,
            fake_scale: self.fake.1,
        }
    }
}

/// The factor of each column's sums.
fn column_scales(spec: &DeviceLinearSpec<'_>) -> Vec<f32> {
    match (spec.weight, spec.output) {
        (DeviceWeight::Codes { multiplier, .. }, None) => multiplier.to_vec(),
        (DeviceWeight::Codes { multiplier, .. }, Some(q)) => {
            multiplier.iter().map(|m| m * q.recip()).collect()
        }
        (DeviceWeight::Half(_), Some(q)) => vec![q.recip(); spec.n],
        (DeviceWeight::Half(_), None) => vec![1.0; spec.n],
    }
}

/// The address of an array; 0 if there is none.
fn pointer(array: &Option<DeviceSlice>) -> u64 {
    array.as_ref().map_or(0, DeviceSlice::ptr)
}

/// The zero point and the scale of each column's codes; none unless columns have their own. Codes of a column with
/// a NaN constant get the zero point 0, because some kernels store the code of 0 there, and the code of a NaN is 0.
fn column_codes(spec: &DeviceLinearSpec<'_>, scale: &[f32], bias: &[f32]) -> Option<(Vec<f32>, Vec<f32>)> {
    match &spec.store {
        LinearStore::ChannelFake(columns) => {
            Some((columns.zero_points().to_vec(), columns.scales().to_vec()))
        }
        LinearStore::ChannelCodes(columns) => {
            let constants = scale.iter().zip(bias);
            let zero_points = columns.zero_points().iter().zip(constants);
            let known = zero_points.map(|(z, (s, b))| if s.is_nan() || b.is_nan() { 0.0 } else { *z });
            Some((known.collect(), columns.scales().to_vec()))
        }
        _ => None,
    }
}

/// What is subtracted from the sums of each column; none if the input has no zero points.
fn corrections(spec: &DeviceLinearSpec<'_>) -> Option<Vec<i32>> {
    match spec.weight {
        DeviceWeight::Codes { codes, zero_points, .. } if !zero_points.is_empty() => {
            assert_eq!(zero_points.len(), spec.k, "linear: {} zero points", zero_points.len());
            Some(codes.chunks(spec.k).map(|row| correction_i8(zero_points, row)).collect())
        }
        _ => None,
    }
}

/// The destination of a linear layer's results.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The output, or the residual stream.
    pub slice: &'a DeviceSlice,
    /// The order of the rows, for a residual store where row r is not token r.
    pub map: Option<&'a DeviceMap>,
}

impl DeviceLinear {
    /// Copies the weight to the device.
    ///
    /// # Errors
    /// The device has too little memory.
    ///
    /// # Panics
    /// If a length does not match.
    pub fn new(device: &Device, spec: &DeviceLinearSpec<'_>) -> Result<DeviceLinear, CudaError> {
        let (n, k) = (spec.n, spec.k);
        let (weight, plain_weight) = match spec.weight {
            DeviceWeight::Codes { codes, multiplier, .. } => {
                assert!(codes.len() == n * k && multiplier.len() == n, "linear: codes are not [{n}, {k}]");
                let packed = pack_codes(codes, n, k, row_stride(k, 1));
                (DeviceBuf::from_slice(device, &packed)?, PlainWeight::Codes(codes.to_vec()))
            }
            DeviceWeight::Half(weight) => {
                assert_eq!(weight.len(), n * k, "linear: weight is not [{n}, {k}]");
                let packed = pack_half(weight, n, k, row_stride(k, 2));
                let plain = weight.iter().map(|&w| half::f16::from_f32(w).to_bits()).collect();
                (DeviceBuf::from_slice(device, &packed)?, PlainWeight::Half(plain))
            }
        };
        Ok(DeviceLinear {
            device: device.clone(),
            kind: LinearKind::new(spec),
            n,
            k,
            weight: weight.all(),
            epilogue: EpilogueArrays::new(device, spec)?,
            plain_weight,
            plain_on_device: Mutex::default(),
        })
    }

    /// Constants for which its kernels are compiled.
    pub fn kind(&self) -> LinearKind {
        self.kind
    }

    /// Number of output columns and of input columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Bytes of an input row, without its padding.
    pub fn k_bytes(&self) -> usize {
        self.k * if self.kind.integer { 1 } else { 2 }
    }

    /// Tiles worth trying for `m` rows, the most promising first.
    pub fn tiles(&self, m: usize) -> Vec<Tile> {
        let gpu = Gpu {
            shared: self.device.shared_per_block(),
            multiprocessors: self.device.multiprocessors(),
            wgmma: self.device.arch().major == 9,
        };
        Tile::candidates(m, self.n, self.k_bytes(), gpu)
    }

    /// Compiles our own kernel for this layer with `tile`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver is too old for it.
    pub fn own(&self, tile: Tile) -> Result<OwnLinear, CudaError> {
        if tile.instruction.has_roles() {
            TensorMap::supported()?;
        }
        let kernel = self.device.kernel(&self.kind.program(tile))?;
        let each = kernel.max_blocks_per_multiprocessor(tile.threads(), tile.shared())?;
        let capacity = (each * self.device.multiprocessors()) as usize;
        Ok(OwnLinear { kernel, tile, capacity })
    }

    /// Elements from one row of the output to the next; residual streams and f32 outputs have no padding.
    fn out_stride(&self) -> usize {
        match self.kind.element_bytes() {
            4 => self.n,
            _ if self.kind.is_residual() => self.n,
            bytes => row_stride(self.n, bytes),
        }
    }

    /// Checks the destination of `m` rows.
    fn expect_target(&self, m: usize, target: &Target<'_>) {
        let rows = match target.map {
            None => m,
            Some(map) => {
                assert!(self.kind.is_residual(), "linear: only a residual store takes a map");
                assert!(m.is_multiple_of(map.rows), "linear: {m} rows are not whole images of {}", map.rows);
                m / map.rows * map.tokens
            }
        };
        expect("linear: the output", target.slice, rows * self.out_stride() * self.kind.element_bytes());
    }
}

/// Our own kernel for a linear layer.
pub struct OwnLinear {
    kernel: Kernel,
    tile: Tile,
    /// Number of blocks that run on the device at the same time.
    capacity: usize,
}

impl OwnLinear {
    /// The kernel's tile.
    pub fn tile(&self) -> Tile {
        self.tile
    }

    /// Multiplies the `m` rows of `a`, which are [`row_stride`] apart, with the weight of `linear`, from
    /// which this was created.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        linear: &DeviceLinear,
        on: &Stream,
        m: usize,
        a: &DeviceSlice,
        target: Target<'_>,
    ) -> Result<(), CudaError> {
        let element = if linear.kind.integer { 1 } else { 2 };
        let row_bytes = row_stride(linear.k, element) * element;
        expect("linear: the input", a, m * row_bytes);
        linear.expect_target(m, &target);
        [a, target.slice, &linear.weight].into_iter().for_each(|s| on.hold(s));
        target.map.into_iter().for_each(|map| on.hold(&map.slice));
        linear.epilogue.hold(on);
        let params = GemmParams {
            a: a.ptr(),
            w: linear.weight.ptr(),
            m: int(m),
            n_packed: int(linear.n.next_multiple_of(GROUP)),
            k_bytes: int(linear.k_bytes()),
            lda: int(row_bytes),
            ldw: int(row_bytes),
            tiles_n: int(self.tile.columns_of_blocks(linear.n)),
            tiles: int(self.tile.count(m, linear.n)),
            epilogue: linear.epilogue.params(&target, linear.n, linear.out_stride()),
        };
        let config = self.tile.launch(m, linear.n, self.capacity);
        if !self.tile.instruction.has_roles() {
            // SAFETY: `GemmParams` is the kernel's parameter. The kernel was compiled for the layer's kind
            // (`own`), and the lengths were checked above. Weight and arrays were padded in
            // `DeviceLinear::new`; all slices are held.
            return unsafe { launch(&self.kernel, config, on, &params) };
        }
        let (rows, columns) = (self.tile.rows() as u32, self.tile.block.1.into());
        let n_packed = linear.n.next_multiple_of(GROUP);
        let params = RolesParams {
            gemm: params,
            a: TensorMap::new(a, (m, linear.k_bytes(), row_bytes), rows)?,
            w: TensorMap::new(&linear.weight, (n_packed, linear.k_bytes(), row_bytes), columns)?,
        };
        // SAFETY: as above; `RolesParams` is the parameter of kernels with roles. The maps describe the input and
        // the padded weight, and the boxes have the sizes for which the tile was compiled.
        unsafe { launch(&self.kernel, config, on, &params) }
    }
}
