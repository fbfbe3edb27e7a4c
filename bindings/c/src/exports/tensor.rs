//! Tensors: arrays of the caller, with their types and shapes.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ops::Range;

use swinq::Engine;
use swinq::int8_runtime::Output;
use swinq::model::Size;

use crate::memory::{self, Versioned};
use crate::status::Failure;

/// `type`: bytes, 0 to 255. Other numbers are those of types that this version does not have.
pub const SWINQ_TYPE_U8: u32 = 1;
/// `type`: `float`.
pub const SWINQ_TYPE_F32: u32 = 2;
/// `type`: half precision, IEEE 754 binary16, as `_Float16`.
pub const SWINQ_TYPE_F16: u32 = 3;
/// `type`: bfloat16, the upper half of a `float`. Only in memory of a GPU.
pub const SWINQ_TYPE_BF16: u32 = 4;

/// `layout`: rows of numbers, `[images, columns]` or `[images, rows, columns]`.
pub const SWINQ_LAYOUT_ROWS: u32 = 1;
/// `layout`: images whose channels lie side by side, `[images, height, width, channels]`.
pub const SWINQ_LAYOUT_NHWC: u32 = 2;
/// `layout`: images or feature maps, channel by channel, `[images, channels, height, width]`.
pub const SWINQ_LAYOUT_NCHW: u32 = 3;

/// `device_type`: memory of the host.
pub const SWINQ_DEVICE_HOST: u32 = 0;
/// `device_type`: memory of an NVIDIA GPU.
pub const SWINQ_DEVICE_CUDA: u32 = 1;

/// An array of the caller. Set every field to zero first, and `size` to `sizeof(swinq_tensor)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_tensor {
    /// Size of this structure: also the distance of the elements of an array of tensors, which all have the
    /// same.
    pub size: usize,
    /// Name of the input (`pixels`) or output (`swinq_engine_get_output`). NULL is the only one.
    pub name: *const c_char,
    /// The first element, aligned as its type needs it.
    pub data: *mut c_void,
    /// Type of the elements, such as `SWINQ_TYPE_U8`.
    pub r#type: u32,
    /// Order and meaning of the dimensions, such as `SWINQ_LAYOUT_NHWC`.
    pub layout: u32,
    /// Number of dimensions.
    pub rank: usize,
    /// Elements along each dimension, slowest first. Only the first `rank` count.
    pub shape: [usize; 4],
    /// Distance of neighbours along each dimension, in elements. All zero: the array is dense, which it must
    /// be in this version. Along a dimension of one element any distance is dense.
    pub strides: [isize; 4],
    /// Memory in which the array lies: `SWINQ_DEVICE_HOST` or `SWINQ_DEVICE_CUDA`.
    pub device_type: u32,
    /// Ordinal of the GPU, that of the engine; 0 for the host.
    pub device: u32,
}

// SAFETY: the structure is `repr(C)`, starts with its size, and has numbers and pointers.
unsafe impl Versioned for swinq_tensor {
    fn defaults() -> Self {
        swinq_tensor {
            size: size_of::<Self>(),
            name: std::ptr::null(),
            data: std::ptr::null_mut(),
            r#type: 0,
            layout: 0,
            rank: 0,
            shape: [0; 4],
            strides: [0; 4],
            device_type: SWINQ_DEVICE_HOST,
            device: 0,
        }
    }
}

/// The tensor of `output` in f32 for `images` images of `size`, which the network can process, without memory
/// and name. A feature map has the `layout` that is asked for, if it can have it, else `SWINQ_LAYOUT_NCHW`.
pub(super) fn describe(
    engine: &Engine,
    output: &Output,
    (size, images): (Size, usize),
    layout: u32,
) -> swinq_tensor {
    let found = engine.output_shape(output, size);
    let columns = found.columns;
    let (layout, rank, shape) = match (found.grid, layout) {
        (None, _) => (SWINQ_LAYOUT_ROWS, 2, [images, columns, 0, 0]),
        (Some(grid), SWINQ_LAYOUT_ROWS) => (layout, 3, [images, grid.area(), columns, 0]),
        (Some(Size { height, width }), SWINQ_LAYOUT_NHWC) => (layout, 4, [images, height, width, columns]),
        (Some(Size { height, width }), _) => (SWINQ_LAYOUT_NCHW, 4, [images, columns, height, width]),
    };
    swinq_tensor { r#type: SWINQ_TYPE_F32, layout, rank, shape, ..Versioned::defaults() }
}

/// A tensor's place among the arguments, for messages.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) array: &'static str,
    pub(super) index: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.array, self.index)
    }
}

impl swinq_tensor {
    /// The extents.
    fn extents(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// Refuses a `type` or a `layout` that images do not have.
    pub(super) fn check_image(&self, place: Place) -> Result<(), Failure> {
        let types = [SWINQ_TYPE_U8, SWINQ_TYPE_F32, SWINQ_TYPE_F16, SWINQ_TYPE_BF16];
        self.check_type(if self.device_type == SWINQ_DEVICE_CUDA { &types } else { &types[..3] }, place)?;
        if [SWINQ_LAYOUT_NHWC, SWINQ_LAYOUT_NCHW].contains(&self.layout) {
            return Ok(());
        }
        let [last, first] = [SWINQ_LAYOUT_NHWC, SWINQ_LAYOUT_NCHW].map(layout_name);
        let problem = format!("its `layout` is {}; it must be 2 ({last}) or 3 ({first})", self.layout);
        Err(Failure::argument(place, problem))
    }

    /// Refuses a `type` that is none of `types`, which are at least two.
    pub(super) fn check_type(&self, types: &[u32], place: Place) -> Result<(), Failure> {
        if types.contains(&self.r#type) {
            return Ok(());
        }
        let mut names: Vec<String> =
            types.iter().map(|&number| format!("{number} ({})", type_name(number))).collect();
        let last = names.pop().unwrap_or_default();
        let problem = format!("its `type` is {}; it must be {} or {last}", self.r#type, names.join(", "));
        Err(Failure::argument(place, problem))
    }

    /// Refuses a tensor of another type, layout, rank or memory than `expected`, without elements, or that is
    /// not dense.
    pub(super) fn check_kind(&self, expected: &swinq_tensor, place: Place) -> Result<(), Failure> {
        let kinds = [
            ("type", self.r#type, expected.r#type, type_name(expected.r#type)),
            ("layout", self.layout, expected.layout, layout_name(expected.layout)),
            ("device_type", self.device_type, expected.device_type, device_name(expected.device_type)),
            ("device", self.device, expected.device, ordinal_name(expected.device_type)),
        ];
        for (field, given, needed, name) in kinds {
            if given != needed {
                let problem = format!("its `{field}` is {given}; it must be {needed} ({name})");
                return Err(Failure::argument(place, problem));
            }
        }
        if self.rank != expected.rank {
            let problem = format!("its `rank` is {}; it must be {}", self.rank, expected.rank);
            return Err(Failure::argument(place, problem));
        }
        if self.extents().contains(&0) {
            return Err(Failure::argument(place, format!("its `shape` {:?} has a zero", self.extents())));
        }
        self.check_strides(place)
    }

    fn check_strides(&self, place: Place) -> Result<(), Failure> {
        let strides = &self.strides[..self.rank];
        if strides.iter().all(|&stride| stride == 0) {
            return Ok(());
        }
        let mut dense = Some(1usize);
        for (&extent, &stride) in self.extents().iter().zip(strides).rev() {
            if extent > 1 && dense.and_then(|dense| isize::try_from(dense).ok()) != Some(stride) {
                let problem = format!(
                    "its `strides` {strides:?} are not those of a dense array of shape {:?}; copy it to a dense array, whose \
                     strides may be 0",
                    self.extents()
                );
                return Err(Failure::argument(place, problem));
            }
            dense = dense.and_then(|dense| dense.checked_mul(extent));
        }
        Ok(())
    }

    /// Refuses another shape than that of `expected`.
    pub(super) fn check_shape(&self, expected: &swinq_tensor, place: Place) -> Result<(), Failure> {
        if self.extents() == expected.extents() {
            return Ok(());
        }
        let problem = format!("its `shape` is {:?}; it must be {:?}", self.extents(), expected.extents());
        Err(Failure::argument(place, problem))
    }

    /// The number of elements.
    pub(super) fn elements(&self, place: Place) -> Result<usize, Failure> {
        let product = self.extents().iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        product.ok_or_else(|| {
            Failure::argument(place, format!("its `shape` {:?} is more than memory can hold", self.extents()))
        })
    }
}

fn type_name(number: u32) -> &'static str {
    match number {
        SWINQ_TYPE_U8 => "SWINQ_TYPE_U8",
        SWINQ_TYPE_F16 => "SWINQ_TYPE_F16",
        SWINQ_TYPE_BF16 => "SWINQ_TYPE_BF16",
        _ => "SWINQ_TYPE_F32",
    }
}

fn device_name(number: u32) -> &'static str {
    match number {
        SWINQ_DEVICE_CUDA => "SWINQ_DEVICE_CUDA, as that of the input",
        _ => "SWINQ_DEVICE_HOST",
    }
}

fn ordinal_name(device_type: u32) -> &'static str {
    match device_type {
        SWINQ_DEVICE_CUDA => "the ordinal of the engine's GPU",
        _ => "the only ordinal of the host",
    }
}

fn layout_name(number: u32) -> &'static str {
    match number {
        SWINQ_LAYOUT_NHWC => "SWINQ_LAYOUT_NHWC",
        SWINQ_LAYOUT_NCHW => "SWINQ_LAYOUT_NCHW",
        _ => "SWINQ_LAYOUT_ROWS",
    }
}

/// The memory of a call's tensors, which must not overlap.
pub(super) struct Taken<const N: usize> {
    ranges: [(Range<usize>, Place); N],
    len: usize,
}

impl<const N: usize> Taken<N> {
    /// No memory.
    pub(super) fn new() -> Self {
        Taken { ranges: [const { (0..0, Place { array: "", index: 0 }) }; N], len: 0 }
    }

    /// Adds `elements` values of `size` bytes at `data`.
    ///
    /// # Errors
    /// They overlap memory that was added before.
    pub(super) fn add<T>(&mut self, data: *const T, elements: usize, place: Place) -> Result<(), Failure> {
        let start = data.addr();
        let range = start..start.saturating_add(elements.saturating_mul(size_of::<T>()));
        let earlier = &self.ranges[..self.len];
        if let Some((_, other)) =
            earlier.iter().find(|(other, _)| other.start < range.end && range.start < other.end)
        {
            return Err(Failure::argument(place, format!("its memory overlaps that of {other}")));
        }
        self.ranges[self.len] = (range, place);
        self.len += 1;
        Ok(())
    }
}

/// The tensor `place.index` of the array at `tensors`. The first tensor's size is the distance of the
/// elements.
///
/// # Safety
/// `tensors` is null or points to more than `place.index` structures of as many bytes as the first field of
/// the first says.
pub(super) unsafe fn read(tensors: *const swinq_tensor, place: Place) -> Result<swinq_tensor, Failure> {
    if tensors.is_null() {
        return Err(Failure::null(place.array));
    }
    // SAFETY: the caller states it.
    let first = unsafe { memory::options(tensors, Place { index: 0, ..place })? };
    if place.index == 0 {
        return Ok(first);
    }
    let tensor = tensors.wrapping_byte_add(first.size * place.index);
    // SAFETY: as above.
    let tensor = unsafe { memory::options(tensor, place)? };
    if tensor.size != first.size {
        let problem = format!("its `size` is {}, and that of the first tensor {}", tensor.size, first.size);
        return Err(Failure::argument(place, problem));
    }
    Ok(tensor)
}
