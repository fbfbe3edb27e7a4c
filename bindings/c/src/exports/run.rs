//! Runs an engine.

use std::ffi::c_void;

use half::f16;
use swinq::Engine;
use swinq::int8_runtime::{
    ImageLayout, Images, MOST_OUTPUTS, Output, OutputLayout, OutputMut, OutputValues, Pixels,
};
use swinq::model::Size;

use super::device::run_on;
use super::swinq_engine;
use super::tensor::{
    Place, SWINQ_DEVICE_CUDA, SWINQ_LAYOUT_NCHW, SWINQ_TYPE_F16, SWINQ_TYPE_F32, Taken, describe, read,
    swinq_tensor,
};
use crate::handles;
use crate::memory::{self, Versioned};
use crate::status::{Failure, Status, guard};

/// The name of the input.
pub(super) const INPUT: &str = "pixels";

/// How an engine runs. Set every field to zero and `size` to `sizeof(swinq_run_options)` for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_run_options {
    /// Size of this structure.
    pub size: usize,
    /// For tensors in memory of a GPU: the `cudaStream_t` on which the engine runs; NULL is the default
    /// stream. Must be NULL for tensors in the host's memory.
    pub stream: *mut c_void,
    /// Must be 0.
    pub reserved: usize,
}

// SAFETY: the structure is `repr(C)`, starts with its size, and has numbers and pointers.
unsafe impl Versioned for swinq_run_options {
    fn defaults() -> Self {
        swinq_run_options { size: size_of::<Self>(), stream: std::ptr::null_mut(), reserved: 0 }
    }
}

/// Computes outputs of images. `inputs` is one tensor, `SWINQ_LAYOUT_NHWC`,
/// `[images, height, width, channels]`, or `SWINQ_LAYOUT_NCHW`, `[images, channels, height, width]`: any
/// number of images of any height and width that the network can process. `SWINQ_TYPE_U8` are 8-bit pixels,
/// resized but not normalised; `SWINQ_TYPE_F32` and `SWINQ_TYPE_F16` are values that the caller has
/// normalised, which must be finite. `outputs` has the tensors to write, each output at most once, as
/// `swinq_engine_get_output` describes them for that height and width, with the number of images in
/// `shape[0]`, in `SWINQ_TYPE_F32` or `SWINQ_TYPE_F16`. They must not overlap each other or the images.
/// `options` may be NULL. Images that the network cannot process, or that need more memory than `max_pixels`
/// allows, are `SWINQ_STATUS_ARGUMENT`. After the first call for a height, a width and a number of images it
/// allocates nothing on a CPU, as long as the size is among those used last.
///
/// On a GPU all tensors may lie in its memory (`SWINQ_DEVICE_CUDA`), in `SWINQ_TYPE_BF16` too. The work is
/// then put on `options->stream` after what is there, and the call returns without waiting for it: the memory
/// must stay valid until it is done. Streams run at the same time, as many as `max_streams`. While the caller
/// records a graph on the stream (`cudaStreamBeginCapture`), the work becomes a part of it; the height, width
/// and number of images must be prepared (`swinq_engine_prepare`). A value that is not finite makes all
/// outputs NaN, and is an error of the next call on the engine, or of `swinq_engine_check`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_run(
    engine: *const swinq_engine,
    inputs: *const swinq_tensor,
    input_count: usize,
    outputs: *const swinq_tensor,
    output_count: usize,
    options: *const swinq_run_options,
) -> Status {
    guard(|| {
        let served = handles::engine(engine.addr())?;
        check_count("input_count", input_count, 1)?;
        check_count("output_count", output_count, MOST_OUTPUTS)?;
        // SAFETY: the caller of this function states that its pointers are valid; so below.
        let given = unsafe { memory::options(options, "options")? };
        if given.reserved != 0 {
            return Err(Failure::argument("options", "`reserved` is not 0"));
        }
        // SAFETY: as above.
        unsafe { run(&served.engine, inputs, outputs, output_count, given.stream) }
    })
}

fn check_count(argument: &str, count: usize, most: usize) -> Result<(), Failure> {
    match count {
        0 => Err(Failure::argument(argument, "is 0; give at least one tensor")),
        count if count > most => Err(Failure::argument(argument, format!("is {count}; at most {most}"))),
        _ => Ok(()),
    }
}

/// Runs `engine` on the one tensor at `inputs`, and writes the `count` tensors at `outputs`.
///
/// # Safety
/// The pointers, and those of the tensors, are null or valid; those in memory of a GPU until the work on the
/// stream is done. The stream is one of the engine's GPU.
unsafe fn run(
    engine: &Engine,
    inputs: *const swinq_tensor,
    outputs: *const swinq_tensor,
    count: usize,
    stream: *mut c_void,
) -> Result<(), Failure> {
    let place = Place { array: "inputs", index: 0 };
    // SAFETY: the caller states it; so below.
    let input = unsafe { read(inputs, place)? };
    if input.device_type == SWINQ_DEVICE_CUDA {
        // SAFETY: as above.
        return unsafe { run_on(engine, &input, outputs, count, stream) };
    }
    if !stream.is_null() {
        let problem = "`stream` is not NULL, which it must be for the host's memory";
        return Err(Failure::argument("options", problem));
    }
    // SAFETY: as above.
    unsafe { check_input(engine, &input, &Versioned::defaults(), place)? };
    let (layout, [images, height, width, _]) = arranged(&input);
    let size = Size::new(height, width);
    let mut taken = Taken::<{ 1 + MOST_OUTPUTS }>::new();
    // SAFETY: as above.
    let pixels = unsafe { pixels_of(&input, &mut taken, place)? };
    let mut memory: [OutputMut<'_>; MOST_OUTPUTS] =
        std::array::from_fn(|_| OutputMut::new("", OutputValues::default()));
    for (index, memory) in memory[..count].iter_mut().enumerate() {
        let place = Place { array: "outputs", index };
        // SAFETY: as above.
        let tensor = unsafe { read(outputs, place)? };
        // SAFETY: as above.
        let output = unsafe { output_of(engine, &tensor, place)? };
        tensor.check_type(&[SWINQ_TYPE_F32, SWINQ_TYPE_F16], place)?;
        let expected = describe(engine, output, (size, images), tensor.layout);
        let expected = swinq_tensor { r#type: tensor.r#type, ..expected };
        tensor.check_kind(&expected, place)?;
        tensor.check_shape(&expected, place)?;
        // SAFETY: as above.
        let values: OutputValues<'_> = unsafe {
            match tensor.r#type {
                SWINQ_TYPE_F16 => output_values::<f16, _>(&tensor, &mut taken, place)?.into(),
                _ => output_values::<f32, _>(&tensor, &mut taken, place)?.into(),
            }
        };
        let layout = match tensor.layout {
            SWINQ_LAYOUT_NCHW => OutputLayout::ChannelsFirst,
            _ => OutputLayout::Rows,
        };
        *memory = OutputMut::new(&output.name, values).in_layout(layout);
    }
    engine.run(Images { size, pixels, layout }, &mut memory[..count]).map_err(Failure::of_run)
}

/// The values of the output `tensor`.
///
/// # Safety
/// The pointer of the tensor is null, or that of as many values of the type `T` as its shape states, which
/// nothing else accesses.
unsafe fn output_values<'a, T, const N: usize>(
    tensor: &swinq_tensor,
    taken: &mut Taken<N>,
    place: Place,
) -> Result<&'a mut [T], Failure> {
    let (data, elements) = claim(tensor, taken, place)?;
    // SAFETY: the caller states it; `taken` established that the memory does not overlap that of another
    // tensor.
    unsafe { memory::slice_mut(data, elements, place) }
}

/// Refuses an input of another name, type, layout, rank or number of channels than engines take, or in other
/// memory than that of `memory`. The engine checks height and width.
///
/// # Safety
/// The tensor's name is null or valid.
pub(super) unsafe fn check_input(
    engine: &Engine,
    input: &swinq_tensor,
    memory: &swinq_tensor,
    place: Place,
) -> Result<(), Failure> {
    // SAFETY: the caller states it.
    if let Some(name) = unsafe { memory::optional_text(input.name, place)? }
        && name != INPUT
    {
        return Err(Failure::argument(place, format!("its name is `{name}`; the only input is `{INPUT}`")));
    }
    input.check_image(place)?;
    let kind = swinq_tensor { r#type: input.r#type, layout: input.layout, rank: 4, ..*memory };
    input.check_kind(&kind, place)?;
    let (channels, (_, [.., given])) = (engine.channels(), arranged(input));
    if given == channels {
        return Ok(());
    }
    let problem = format!("its `shape` is {:?}; the model takes images of {channels} channels", input.shape);
    Err(Failure::argument(place, problem))
}

/// The layout of the images `input`, which [`swinq_tensor::check_image`] accepts: their number, height, width
/// and channels.
pub(super) fn arranged(input: &swinq_tensor) -> (ImageLayout, [usize; 4]) {
    let [images, a, b, c] = input.shape;
    match input.layout {
        SWINQ_LAYOUT_NCHW => (ImageLayout::ChannelsFirst, [images, b, c, a]),
        _ => (ImageLayout::ChannelsLast, [images, a, b, c]),
    }
}

/// The values of the images `input`, whose memory is added to `taken`.
///
/// # Safety
/// The tensor's memory is null or valid.
unsafe fn pixels_of<'a, const N: usize>(
    input: &swinq_tensor,
    taken: &mut Taken<N>,
    place: Place,
) -> Result<Pixels<'a>, Failure> {
    // SAFETY: the caller states it; every pattern of bits is a value of each of the types.
    unsafe {
        Ok(match input.r#type {
            SWINQ_TYPE_F32 => Pixels::F32(values_of(input, taken, place)?),
            SWINQ_TYPE_F16 => Pixels::F16(values_of::<f16, N>(input, taken, place)?),
            _ => Pixels::U8(values_of(input, taken, place)?),
        })
    }
}

/// The elements of `tensor`, whose memory is added to `taken`.
///
/// # Safety
/// The tensor's memory is null or holds its elements, of type `T`.
unsafe fn values_of<'a, T, const N: usize>(
    tensor: &swinq_tensor,
    taken: &mut Taken<N>,
    place: Place,
) -> Result<&'a [T], Failure> {
    let (data, elements) = claim::<T, N>(tensor, taken, place)?;
    // SAFETY: the caller states it.
    unsafe { memory::slice(data, elements, place) }
}

/// The first of the elements of `tensor`, of type `T`, and their number. Their memory is added to `taken`.
fn claim<T, const N: usize>(
    tensor: &swinq_tensor,
    taken: &mut Taken<N>,
    place: Place,
) -> Result<(*mut T, usize), Failure> {
    let (data, elements) = (tensor.data.cast::<T>(), tensor.elements(place)?);
    taken.add(data, elements, place)?;
    Ok((data, elements))
}

/// The output of `engine` that `tensor` names.
///
/// # Safety
/// The tensor's name is null or valid.
pub(super) unsafe fn output_of<'e>(
    engine: &'e Engine,
    tensor: &swinq_tensor,
    place: Place,
) -> Result<&'e Output, Failure> {
    // SAFETY: the caller states it.
    match (unsafe { memory::optional_text(tensor.name, place)? }, engine.outputs()) {
        (Some(name), _) => engine.output(name).map_err(Failure::of_run),
        (None, [only]) => Ok(only),
        (None, all) => {
            let problem = format!("has no name; the engine has {} outputs", all.len());
            Err(Failure::argument(place, problem))
        }
    }
}
