//! Runs an engine on a stream of the caller, from and to memory of its GPU.

use std::ffi::c_void;

use swinq::Engine;
use swinq::cuda::ops::output::OutputType;
use swinq::cuda::ops::patch::InputType;
use swinq::cuda::{Device, DeviceSlice, Stream};
use swinq::int8_runtime::{Backend, DeviceImages, DeviceOutput, OutputLayout, RuntimeError};
use swinq::model::Size;

use super::run::{INPUT, arranged, check_input, output_of};
use super::swinq_engine;
use super::tensor::{
    Place, SWINQ_DEVICE_CUDA, SWINQ_LAYOUT_NCHW, SWINQ_TYPE_BF16, SWINQ_TYPE_F16, SWINQ_TYPE_F32, describe,
    read, swinq_tensor,
};
use crate::handles;
use crate::status::{Failure, Status, guard};

/// Prepares for `images` images of `height` and `width` on `stream`, a `cudaStream_t` of the engine's GPU;
/// NULL is the default stream. Otherwise the first call of `swinq_engine_run` on the stream prepares, which
/// takes far longer than later calls, and cannot while a graph is recorded. Fails with
/// `SWINQ_STATUS_ARGUMENT` for an engine on a CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_prepare(
    engine: *const swinq_engine,
    height: usize,
    width: usize,
    images: usize,
    stream: *mut c_void,
) -> Status {
    guard(|| {
        let served = handles::engine(engine.addr())?;
        let (device, _) = gpu(&served.engine)?;
        if images == 0 {
            return Err(Failure::argument("images", "is 0"));
        }
        // SAFETY: the caller of this function states that the stream is valid. The engine keeps alive what it
        // puts there.
        let stream = unsafe { Stream::of_caller(device, stream.addr() as u64) };
        served.engine.prepare_on(&stream, Size::new(height, width), images).map_err(Failure::of_run)
    })
}

/// Fails with `SWINQ_STATUS_ENGINE` if an earlier call of `swinq_engine_run` with memory of a GPU, or a graph
/// that holds one, met a value that is not finite; `swinq_last_error` names it. It does not wait: synchronize
/// the stream first. An error is told once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_check(engine: *const swinq_engine) -> Status {
    guard(|| handles::engine(engine.addr())?.engine.check().map_err(Failure::of_run))
}

/// The GPU of `engine`, and its ordinal.
fn gpu(engine: &Engine) -> Result<(&Device, u32), Failure> {
    match (engine.device(), engine.backend()) {
        (Some(device), Backend::Cuda(options)) => Ok((device, options.device as u32)),
        _ => Err(Failure::argument("engine", "runs on a CPU; memory of a GPU needs `SWINQ_BACKEND_CUDA`")),
    }
}

/// Puts the computation of the `count` tensors at `outputs` from `input` on `stream`.
///
/// # Safety
/// The pointers, and those of the tensors, are null or valid until the work is done; the stream is one of the
/// engine's GPU.
pub(super) unsafe fn run_on(
    engine: &Engine,
    input: &swinq_tensor,
    outputs: *const swinq_tensor,
    count: usize,
    stream: *mut c_void,
) -> Result<(), Failure> {
    let place = Place { array: "inputs", index: 0 };
    let (device, ordinal) = gpu(engine)?;
    let memory = swinq_tensor { device_type: SWINQ_DEVICE_CUDA, device: ordinal, ..*input };
    // SAFETY: the caller states it; so below.
    unsafe { check_input(engine, input, &memory, place)? };
    let (layout, [images, height, width, _]) = arranged(input);
    let size = Size::new(height, width);
    // SAFETY: as above.
    let values = unsafe { slice_of(device, input, place)? };
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        let place = Place { array: "outputs", index };
        // SAFETY: as above.
        let tensor = unsafe { read(outputs, place)? };
        // SAFETY: as above.
        let output = unsafe { output_of(engine, &tensor, place)? };
        tensor.check_type(&[SWINQ_TYPE_F32, SWINQ_TYPE_F16, SWINQ_TYPE_BF16], place)?;
        engine.check_size(size).map_err(Failure::of_run)?;
        let expected = describe(engine, output, (size, images), tensor.layout);
        let (device_type, r#type) = (SWINQ_DEVICE_CUDA, tensor.r#type);
        let expected = swinq_tensor { r#type, device_type, device: ordinal, ..expected };
        tensor.check_kind(&expected, place)?;
        tensor.check_shape(&expected, place)?;
        // SAFETY: as above.
        found.push((&output.name, tensor, unsafe { slice_of(device, &tensor, place)? }));
    }
    let outputs: Vec<DeviceOutput<'_>> =
        found.iter().map(|(name, tensor, values)| output(name, tensor, values)).collect();
    let element = input_type(input);
    // SAFETY: the caller states that the stream is valid. The engine keeps alive what it puts there, except
    // the tensors, whose memory the caller keeps.
    let stream = unsafe { Stream::of_caller(device, stream.addr() as u64) };
    let images = DeviceImages { size, values: &values, element, layout };
    engine.run_on(&stream, images, &outputs).map_err(named)
}

/// The failure `error`, in which the input has its name in C.
fn named(error: RuntimeError) -> Failure {
    Failure::of_run(match error {
        RuntimeError::Tensor { name, problem } if name == "images" => {
            RuntimeError::Tensor { name: INPUT.to_owned(), problem }
        }
        other => other,
    })
}

fn output<'a>(name: &'a str, tensor: &swinq_tensor, values: &'a DeviceSlice) -> DeviceOutput<'a> {
    let element = match tensor.r#type {
        SWINQ_TYPE_F16 => OutputType::F16,
        SWINQ_TYPE_BF16 => OutputType::Bf16,
        _ => OutputType::F32,
    };
    let layout = match tensor.layout {
        SWINQ_LAYOUT_NCHW => OutputLayout::ChannelsFirst,
        _ => OutputLayout::Rows,
    };
    DeviceOutput { name, values, element, layout }
}

fn input_type(tensor: &swinq_tensor) -> InputType {
    match tensor.r#type {
        SWINQ_TYPE_F32 => InputType::F32,
        SWINQ_TYPE_F16 => InputType::F16,
        SWINQ_TYPE_BF16 => InputType::Bf16,
        _ => InputType::U8,
    }
}

/// The memory of `tensor`, which must be that of `device`.
///
/// # Safety
/// The memory lives until the work that uses the slice is done.
unsafe fn slice_of(device: &Device, tensor: &swinq_tensor, place: Place) -> Result<DeviceSlice, Failure> {
    if tensor.data.is_null() {
        return Err(Failure::null(format!("the `data` of {place}")));
    }
    let bytes = tensor.elements(place)?.checked_mul(input_type(tensor).bytes());
    let bytes = bytes.ok_or_else(|| Failure::argument(place, "is larger than memory can be"))?;
    let ptr = tensor.data.addr() as u64;
    if !device.holds(ptr) {
        let problem = format!("its `data` is not memory of GPU {}", tensor.device);
        return Err(Failure::argument(place, problem));
    }
    // SAFETY: the memory is the device's, as checked above, and the caller states that it lives long enough.
    Ok(unsafe { DeviceSlice::of_caller(device, ptr, bytes) })
}
