//! Memory of a GPU that belongs to Python objects: engines run on it, on a stream of the caller.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use swinq::cuda::ops::output::OutputType;
use swinq::cuda::ops::patch::InputType;
use swinq::cuda::{CudaError, Device, DeviceSlice, Event, Stream};
use swinq::int8_runtime::{DeviceImages, DeviceOutput, RuntimeError};
use swinq::model::Size;

use crate::engine::{Engine, LAYOUTS, OUT_LAYOUTS};
use crate::error::{choice, raise_run};

/// The names of element types.
const INPUTS: [(&str, InputType); 4] = [
    ("uint8", InputType::U8),
    ("float32", InputType::F32),
    ("float16", InputType::F16),
    ("bfloat16", InputType::Bf16),
];
const OUTPUTS: [(&str, OutputType); 3] =
    [("float32", OutputType::F32), ("float16", OutputType::F16), ("bfloat16", OutputType::Bf16)];

/// Images on the GPU: their address, the names of their element type and layout, their number, and their
/// height and width.
#[derive(FromPyObject)]
pub struct GpuImages {
    address: u64,
    dtype: String,
    layout: String,
    number: usize,
    height: usize,
    width: usize,
}

/// An output on the GPU: its address, and the name of its element type.
#[derive(FromPyObject)]
pub struct GpuOutput {
    name: String,
    address: u64,
    dtype: String,
}

/// Puts the computation of `outputs` on `stream`, a `cudaStream_t`. `images` and `outputs` are in the memory
/// of the engine's GPU, and dense; `out_layout` is that of feature maps, `NHWC` or `NCHW`. The work begins
/// after what is on the streams `after`.
///
/// The memory is that of the caller, who states that it has these elements, and that it lives until the work
/// is done.
#[pyfunction]
pub fn run_on(
    py: Python<'_>,
    engine: &Engine,
    images: GpuImages,
    outputs: Vec<GpuOutput>,
    out_layout: &str,
    stream: u64,
    after: Vec<u64>,
) -> PyResult<()> {
    let GpuImages { address, dtype, layout, number: count, height, width } = images;
    let layout = choice(py, "layout", &layout, &LAYOUTS)?;
    let out_layout = choice(py, "out_layout", out_layout, &OUT_LAYOUTS)?;
    let element = choice(py, "images", &dtype, &INPUTS)?;
    let (engine, size) = (engine.engine(), Size::new(height, width));
    engine.check_size(size).map_err(|error| raise_run(py, error))?;
    let typed = outputs.iter().map(|GpuOutput { name, address, dtype }| {
        let shape = engine.output(name).map_err(|error| raise_run(py, error))?;
        let values = count * engine.output_shape(shape, size).values();
        Ok((name, *address, values, choice(py, "dtype", dtype, &OUTPUTS)?))
    });
    let typed = typed.collect::<PyResult<Vec<_>>>()?;
    let run = || {
        let device = engine.device().ok_or_else(no_gpu)?;
        // SAFETY: the caller of this private method, `swinq._engine.device`, passes the addresses and shapes
        // of arrays that it holds, and a stream of their library; the documentation of the public functions
        // says how long they must live.
        let slice = |address, bytes| unsafe { DeviceSlice::of_caller(device, address, bytes) };
        // SAFETY: as above; the engine keeps alive what else it puts on the stream.
        let of_caller = |handle| unsafe { Stream::of_caller(device, handle) };
        let stream = of_caller(stream);
        for other in after {
            follow(device, &stream, &of_caller(other))?;
        }
        let values = slice(address, count * size.area() * engine.channels() * element.bytes());
        let written: Vec<_> = typed
            .iter()
            .map(|&(name, address, values, element)| {
                (name, slice(address, values * element.bytes()), element)
            })
            .collect();
        let outputs: Vec<DeviceOutput<'_>> = written
            .iter()
            .map(|(name, values, element)| DeviceOutput {
                name,
                values,
                element: *element,
                layout: out_layout,
            })
            .collect();
        engine.run_on(&stream, DeviceImages { size, values: &values, element, layout }, &outputs)
    };
    py.detach(run).map_err(|error| raise_run(py, error))
}

/// Prepares for `images` images of `height` and `width` on `stream`.
#[pyfunction]
pub fn prepare_on(
    py: Python<'_>,
    engine: &Engine,
    height: usize,
    width: usize,
    images: usize,
    stream: u64,
) -> PyResult<()> {
    let engine = engine.engine();
    let run = || {
        let device = engine.device().ok_or_else(no_gpu)?;
        // SAFETY: as in `run_on`.
        let stream = unsafe { Stream::of_caller(device, stream) };
        engine.prepare_on(&stream, Size::new(height, width), images)
    };
    py.detach(run).map_err(|error| raise_run(py, error))
}

/// Prepares for `images` images of `height` and `width` from host memory.
#[pyfunction]
pub fn prepare(py: Python<'_>, engine: &Engine, height: usize, width: usize, images: usize) -> PyResult<()> {
    let engine = engine.engine();
    py.detach(|| engine.prepare(Size::new(height, width), images)).map_err(|error| raise_run(py, error))
}

/// Fails if an earlier [`run_on`] met a value that is not finite.
#[pyfunction]
pub fn check(py: Python<'_>, engine: &Engine) -> PyResult<()> {
    engine.engine().check().map_err(|error| raise_run(py, error))
}

fn no_gpu() -> RuntimeError {
    RuntimeError::Tensor { name: "images".to_owned(), problem: "the engine runs on a CPU".to_owned() }
}

/// Makes later work on `stream` wait for what is on `other`.
fn follow(device: &Device, stream: &Stream, other: &Stream) -> Result<(), CudaError> {
    let event = Event::untimed(device)?;
    event.record(other)?;
    stream.wait(&event)
}

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor` of DLPack (dlpack.h).
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    rank: i32,
    dtype: DlType,
    shape: *const i64,
    /// Null for a dense array.
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of DLPack before 1.0.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned` of DLPack 1.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

const PLAIN: (&CStr, &CStr) = (c"dltensor", c"used_dltensor");
const WITH_VERSION: (&CStr, &CStr) = (c"dltensor_versioned", c"used_dltensor_versioned");
/// Flag of an array that must not be written.
const READ_ONLY: u64 = 1;
/// `kDLCUDA` and `kDLCUDAManaged`.
const CUDA: [i32; 2] = [2, 13];

/// The array of a capsule, which this object has taken.
enum Taken {
    Plain(*mut Managed),
    Versioned(*mut Versioned),
}

/// An array in memory of a GPU, which another library exports by DLPack. It is given back when this object is
/// freed.
#[pyclass(frozen, unsendable, module = "swinq._native")]
pub struct DeviceArray {
    taken: Taken,
}

#[pymethods]
impl DeviceArray {
    /// Takes the array of `capsule`, the result of `__dlpack__`.
    #[new]
    fn new(capsule: &Bound<'_, PyCapsule>) -> PyResult<DeviceArray> {
        let taken = take(capsule)?;
        let array = DeviceArray { taken };
        if let Taken::Versioned(managed) = array.taken {
            // SAFETY: the pointer is that of a capsule of this name, which `take` established; it is valid
            // until the deleter is called, which `drop` does.
            let major = unsafe { (*managed).major };
            if major > 1 {
                let problem = format!("the array is of version {major} of DLPack; version 1 is known");
                return Err(PyValueError::new_err(problem));
            }
        }
        match CUDA.contains(&array.tensor().device.kind) {
            true => Ok(array),
            false => Err(PyValueError::new_err("the array is not in memory of an NVIDIA GPU")),
        }
    }

    /// Address of the first element.
    #[getter]
    fn data(&self) -> u64 {
        let tensor = self.tensor();
        tensor.data.addr() as u64 + tensor.byte_offset
    }

    /// Ordinal of the GPU.
    #[getter]
    fn device(&self) -> i32 {
        self.tensor().device.id
    }

    /// Elements along each dimension.
    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.numbers(self.tensor().shape)
    }

    /// Whether the elements are dense, in the order of rows.
    #[getter]
    fn is_dense(&self) -> bool {
        if self.tensor().strides.is_null() {
            return true;
        }
        let mut dense = 1;
        self.shape().into_iter().zip(self.numbers(self.tensor().strides)).rev().all(|(extent, stride)| {
            let fits = extent <= 1 || stride == dense;
            dense *= extent;
            fits
        })
    }

    /// Name of the element type, or the numbers of DLPack for one that engines do not know.
    #[getter]
    fn dtype(&self) -> String {
        let DlType { code, bits, lanes } = self.tensor().dtype;
        match (code, bits, lanes) {
            (1, 8, 1) => "uint8".to_owned(),
            (2, 32, 1) => "float32".to_owned(),
            (2, 16, 1) => "float16".to_owned(),
            (4, 16, 1) => "bfloat16".to_owned(),
            _ => format!("type {code} of {bits} bits"),
        }
    }

    /// Whether the array must not be written.
    #[getter]
    fn is_read_only(&self) -> bool {
        match self.taken {
            Taken::Plain(_) => false,
            // SAFETY: as in `new`.
            Taken::Versioned(managed) => unsafe { (*managed).flags & READ_ONLY != 0 },
        }
    }
}

impl DeviceArray {
    fn tensor(&self) -> &DlTensor {
        // SAFETY: as in `new`.
        unsafe {
            match self.taken {
                Taken::Plain(managed) => &(*managed).tensor,
                Taken::Versioned(managed) => &(*managed).tensor,
            }
        }
    }

    /// The `rank` numbers at `first`.
    fn numbers(&self, first: *const i64) -> Vec<i64> {
        let rank = usize::try_from(self.tensor().rank).unwrap_or(0);
        if rank == 0 || first.is_null() {
            return Vec::new();
        }
        // SAFETY: DLPack states that shape and strides have `rank` numbers, as long as the array lives.
        unsafe { std::slice::from_raw_parts(first, rank) }.to_vec()
    }
}

impl Drop for DeviceArray {
    fn drop(&mut self) {
        // Python frees the object, so that the thread holds the interpreter's lock.
        // SAFETY: `take` has taken the array from its capsule, so that this is the only call of the deleter.
        unsafe {
            match self.taken {
                Taken::Plain(managed) => (*managed).deleter.into_iter().for_each(|delete| delete(managed)),
                Taken::Versioned(managed) => {
                    (*managed).deleter.into_iter().for_each(|delete| delete(managed))
                }
            }
        }
    }
}

/// Takes the array of `capsule` and renames it, so that nobody else takes it.
fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<Taken> {
    let of = |(fresh, used): (&'static CStr, &'static CStr)| -> PyResult<Option<*mut c_void>> {
        if !capsule.is_valid_checked(Some(fresh)) {
            return Ok(None);
        }
        let pointer = capsule.pointer_checked(Some(fresh))?.as_ptr();
        // SAFETY: the capsule is alive, and the name is static.
        let renamed = unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) };
        if renamed == 0 { Ok(Some(pointer)) } else { Err(PyErr::fetch(capsule.py())) }
    };
    if let Some(pointer) = of(WITH_VERSION)? {
        return Ok(Taken::Versioned(pointer.cast()));
    }
    if let Some(pointer) = of(PLAIN)? {
        return Ok(Taken::Plain(pointer.cast()));
    }
    Err(PyTypeError::new_err("the capsule holds no array of DLPack, or its array was taken before"))
}
