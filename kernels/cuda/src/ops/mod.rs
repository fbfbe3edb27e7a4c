//! The fused ops of a Swin Transformer on a GPU. Each op is prepared once and is then put on a stream without
//! any allocation, for images of any size: what depends on the size is given when the op runs.
//!
//! Codes on the device are plain INT8. Rows of codes and of f16 values are [`row_stride`] apart. The residual
//! residual is f16 or f32 ([`ResidualType`]). With an f32 residual and INT8 products, every op is bit-exact
//! to the reference.

pub mod attention;
pub mod half_gelu;
pub mod head;
pub mod linear;
mod maps;
pub mod mlp;
pub mod norm;
pub mod output;
pub mod patch;
pub mod qk_norm;
pub mod report;
pub mod rows;
pub mod tokens;
pub mod window_block;

pub use maps::{DeviceMap, DeviceWindows, ResidualCodes, RowOrder, TokenRows, rows_of_tokens};

use swinq_numerics::Quantizer;
use swinq_numerics::sizes::elements;

use super::{DeviceSlice, Stream};

/// An INT8 linear layer of a fused launch, without an `.output` site.
#[derive(Clone, Copy)]
pub struct Int8Linear<'a> {
    /// Codes of the weight, `[n, k]`.
    pub codes: &'a [i8],
    /// The factor of each column's sums, `s_x * s_w`.
    pub multiplier: &'a [f32],
    /// One per column.
    pub bias: Option<&'a [f32]>,
    /// Quantizer of the input.
    pub input: Quantizer,
}

/// Element type of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResidualType {
    /// Half precision: half the memory traffic.
    F16,
    /// Single precision: bit-exact to the CPU engine.
    F32,
}

impl ResidualType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            ResidualType::F16 => 2,
            ResidualType::F32 => 4,
        }
    }

    /// Columns of the residual that kernels read and write at once, in 16 bytes: its rows are whole groups of
    /// so many.
    pub fn columns_at_once(self) -> usize {
        16 / self.bytes()
    }

    fn define(self) -> i64 {
        i64::from(self == ResidualType::F32)
    }
}

/// How an op that writes full rows stores its results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceStore {
    /// INT8 codes.
    Codes(Quantizer),
    /// f16.
    Half,
    /// f16 of the quantized and dequantized value (for a float linear layer whose input site is on).
    FakeHalf(Quantizer),
    /// f32.
    Float,
    /// f32 of the quantized and dequantized value.
    FakeFloat(Quantizer),
}

/// Values of the STORE_ constants in the kernels.
const STORE_CODES: i64 = 0;
const STORE_HALF: i64 = 1;
const STORE_FLOAT: i64 = 2;
const STORE_RESIDUAL: i64 = 3;

impl DeviceStore {
    /// Bytes per element.
    pub fn element_bytes(self) -> usize {
        match self {
            DeviceStore::Codes(_) => 1,
            DeviceStore::Half | DeviceStore::FakeHalf(_) => 2,
            DeviceStore::Float | DeviceStore::FakeFloat(_) => 4,
        }
    }

    fn define(self) -> i64 {
        match self {
            DeviceStore::Codes(_) => STORE_CODES,
            DeviceStore::Half | DeviceStore::FakeHalf(_) => STORE_HALF,
            DeviceStore::Float | DeviceStore::FakeFloat(_) => STORE_FLOAT,
        }
    }

    fn is_fake(self) -> bool {
        matches!(self, DeviceStore::FakeHalf(_) | DeviceStore::FakeFloat(_))
    }

    /// Reciprocal and scale; both are 1 if nothing is quantized.
    fn recip_and_scale(self) -> (f32, f32) {
        match self {
            DeviceStore::Codes(q) | DeviceStore::FakeHalf(q) | DeviceStore::FakeFloat(q) => {
                (q.recip(), q.scale())
            }
            DeviceStore::Half | DeviceStore::Float => (1.0, 1.0),
        }
    }
}

/// Elements from one row to the next, for rows of `columns` values of `element_bytes` bytes: rows begin at
/// multiples of 16 bytes.
pub fn row_stride(columns: usize, element_bytes: usize) -> usize {
    (columns * element_bytes).next_multiple_of(16) / element_bytes
}

/// Checks that `slice` holds as many bytes as the product of `sizes`, of which the last is often the bytes of
/// an element, and is aligned for 16-byte accesses.
///
/// # Panics
/// If it does not or is not, or if the product overflows; the message begins with `what`.
pub(super) fn expect(what: &str, slice: &DeviceSlice, sizes: &[usize]) {
    let bytes = elements(what, "the memory", sizes);
    assert!(slice.bytes() >= bytes, "{what} has {} bytes on the device, {bytes} are needed", slice.bytes());
    assert!(slice.ptr().is_multiple_of(16), "{what} is not aligned to 16 bytes");
}

/// A launch on a stream: its functions return the addresses for the parameters. They check that slices are
/// those that the kernel expects, and hold them until the work is done.
pub(super) struct Call<'a>(pub(super) &'a Stream);

impl Call<'_> {
    /// The address of `slice`, which [`expect`] checks.
    pub(super) fn array(&self, what: &str, slice: &DeviceSlice, sizes: &[usize]) -> u64 {
        expect(what, slice, sizes);
        self.own(slice)
    }

    /// The address of `slice`, which has the product of `sizes` elements of `bytes` bytes, and is aligned to
    /// its elements: it may belong to a caller of the engine.
    ///
    /// # Panics
    /// If it does not or is not, or if the product overflows; the message begins with `what`.
    pub(super) fn foreign(&self, what: &str, slice: &DeviceSlice, sizes: &[usize], bytes: usize) -> u64 {
        let needed = bytes * elements(what, "the memory", sizes);
        assert!(
            slice.bytes() >= needed,
            "{what} has {} bytes on the device, {needed} are needed",
            slice.bytes()
        );
        assert!(slice.ptr().is_multiple_of(bytes as u64), "{what} is not aligned to {bytes} bytes");
        self.own(slice)
    }

    /// The address of `slice`, which holds an aligned u32.
    ///
    /// # Panics
    /// If it does not; the message begins with `what`.
    pub(super) fn word(&self, what: &str, slice: &DeviceSlice) -> u64 {
        assert!(slice.bytes() >= 4 && slice.ptr().is_multiple_of(4), "{what} is not an aligned u32");
        self.own(slice)
    }

    /// The address of an array of the op itself, whose length is checked where it is made; 0 if there is
    /// none.
    pub(super) fn own<'s>(&self, slice: impl Into<Option<&'s DeviceSlice>>) -> u64 {
        slice.into().map_or(0, |slice| {
            self.0.hold(slice);
            slice.ptr()
        })
    }
}

/// Converts a size to the type that kernels take.
///
/// # Panics
/// If it is 2^31 or more.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or_else(|_| panic!("a size of {size} is too large for one launch"))
}
