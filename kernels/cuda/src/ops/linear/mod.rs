//! Linear layers on the tensor cores with their epilogue: bias, GELU, then a store or the addition to the
//! residual stream. Our own kernels do all of it in one launch; with cuBLASLt the epilogue needs a second
//! launch.

mod epilogue;
mod kind;
mod library;
pub mod pack;
mod tile;

use std::sync::{Mutex, Weak};

pub(super) use kind::gelu_define;
pub use kind::{DeviceLinearSpec, DeviceWeight, LinearKind, LinearStore, MOST_HEADS};
pub use library::LibraryLinear;
pub use tile::{Gpu, Instruction, Tile};

use self::epilogue::EpilogueArrays;
use self::pack::{GROUP, pack_codes, pack_half};
use super::{Call, DeviceMap, int, row_stride};
use crate::params::{epilogue::Epilogue, gemm, gemm_roles::RolesParams};
use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Kernel, Stream, TensorMap, launch};

/// A linear layer whose weight is on a device.
pub struct DeviceLinear {
    device: Device,
    kind: LinearKind,
    n: usize,
    k: usize,
    /// Columns of the result.
    columns: usize,
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
            columns: n + spec.store.low_columns(),
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
            bytes => row_stride(self.columns, bytes),
        }
    }

    /// The epilogue of `m` rows whose destination is `target`.
    fn epilogue(&self, call: &Call<'_>, m: usize, target: &Target<'_>) -> Epilogue {
        let (images, rows) = match target.map {
            None => (1, m),
            Some(map) => {
                assert!(self.kind.is_residual(), "linear: only a residual store takes a map");
                assert!(m.is_multiple_of(map.rows), "linear: {m} rows are not whole images of {}", map.rows);
                (m / map.rows, map.tokens)
            }
        };
        let sizes = [images, rows, self.out_stride(), self.kind.element_bytes()];
        let out = call.array("linear: the output", target.slice, &sizes);
        self.epilogue.params(call, target, out, self.n, self.out_stride())
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
        stream: &Stream,
        m: usize,
        a: &DeviceSlice,
        target: Target<'_>,
    ) -> Result<(), CudaError> {
        let element = if linear.kind.integer { 1 } else { 2 };
        let stride = row_stride(linear.k, element);
        let (call, row_bytes) = (Call(stream), stride * element);
        let params = gemm::Params {
            a: call.array("linear: the input", a, &[m, stride, element]),
            w: call.own(&linear.weight),
            m: int(m),
            n_packed: int(linear.n.next_multiple_of(GROUP)),
            k_bytes: int(linear.k_bytes()),
            lda: int(row_bytes),
            ldw: int(row_bytes),
            tiles_n: int(self.tile.columns_of_blocks(linear.n)),
            tiles: int(self.tile.count(m, linear.n)),
            epilogue: linear.epilogue(&call, m, &target),
        };
        let config = self.tile.launch(m, linear.n, self.capacity);
        if !self.tile.instruction.has_roles() {
            // SAFETY: `gemm::Params` is the kernel's parameter. The kernel was compiled for the layer's kind
            // (`own`), and the lengths were checked above. Weight and arrays were padded in
            // `DeviceLinear::new`; all slices are held.
            return unsafe { launch(&self.kernel, config, stream, &params) };
        }
        let (rows, columns) = (self.tile.rows() as u32, self.tile.block.1.into());
        let n_packed = linear.n.next_multiple_of(GROUP);
        let params = RolesParams {
            gemm: params,
            a: TensorMap::new(a, (m, linear.k_bytes(), row_bytes), rows)?,
            w: TensorMap::new(&linear.weight, (n_packed, linear.k_bytes(), row_bytes), columns)?,
        };
        // SAFETY: as above; `RolesParams` is the parameter of kernels with roles. The maps describe the input
        // and the padded weight, and the boxes have the sizes for which the tile was compiled.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}
