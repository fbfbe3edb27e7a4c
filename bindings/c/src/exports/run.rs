//! Runs an engine.

use std::ffi::c_void;

use swinq::Engine;
use swinq::int8_runtime::{Images, MOST_OUTPUTS, Output, OutputLayout, OutputMut, OutputValues};
use swinq::model::Size;

use super::swinq_engine;
use super::tensor::{
    Place, SWINQ_LAYOUT_NCHW, SWINQ_LAYOUT_NHWC, SWINQ_TYPE_U8, Taken, describe, read, swinq_tensor,
};
use crate::handles;
use crate::memory::{self, Versioned};
use crate::status::{Failure, Status, guard};

/// The name of the input.
const INPUT: &str = "pixels";

/// How an engine runs. Set every field to zero and `size` to `sizeof(swinq_run_options)` for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_run_options {
    /// Size of this structure.
    pub size: usize,
    /// Stream of a GPU. Must be NULL for tensors in the host's memory.
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

/// Computes outputs of images. `inputs` is one tensor, `SWINQ_TYPE_U8`, `SWINQ_LAYOUT_NHWC`, `[images, height, width,
/// channels]`: any number of images (preprocessed) of any height and width that the network can process. `outputs` has the
/// tensors to write, each output at most once, as `swinq_engine_get_output` describes them for that height and width, with the
/// number of images in `shape[0]`. They must not overlap each other or the images. `options` may be NULL. Images that the
/// network cannot process, or that need more memory than `max_pixels` allows, are `SWINQ_STATUS_ARGUMENT`. After the first call
/// for a height, a width and a number of images it allocates nothing on a CPU, as long as the size is among those used last.
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
        check_options(&given)?;
        // SAFETY: as above.
        unsafe { run(&served.engine, inputs, outputs, output_count) }
    })
}

fn check_count(argument: &str, count: usize, most: usize) -> Result<(), Failure> {
    match count {
        0 => Err(Failure::argument(argument, "is 0; give at least one tensor")),
        count if count > most => Err(Failure::argument(argument, format!("is {count}; at most {most}"))),
        _ => Ok(()),
    }
}

fn check_options(given: &swinq_run_options) -> Result<(), Failure> {
    if !given.stream.is_null() {
        return Err(Failure::argument(
            "options",
            "`stream` is not NULL, which it must be for the host's memory",
        ));
    }
    if given.reserved != 0 {
        return Err(Failure::argument("options", "`reserved` is not 0"));
    }
    Ok(())
}

/// Runs `engine` on the one tensor at `inputs`, and writes the `count` tensors at `outputs`.
///
/// # Safety
/// The pointers, and those of the tensors, are null or valid.
unsafe fn run(
    engine: &Engine,
    inputs: *const swinq_tensor,
    outputs: *const swinq_tensor,
    count: usize,
) -> Result<(), Failure> {
    let place = Place { array: "inputs", index: 0 };
    // SAFETY: the caller states it; so below.
    let input = unsafe { read(inputs, place)? };
    // SAFETY: as above.
    unsafe { check_input(engine, &input, place)? };
    let (pixels, bytes) = (input.data.cast::<u8>().cast_const(), input.elements(place)?);
    let [images, height, width, _] = input.shape;
    let size = Size::new(height, width);
    let mut taken = Taken::<{ 1 + MOST_OUTPUTS }>::new();
    taken.add(pixels, bytes, place)?;
    // SAFETY: as above.
    let pixels = unsafe { memory::slice(pixels, bytes, place)? };
    let mut memory: [OutputMut<'_>; MOST_OUTPUTS] =
        std::array::from_fn(|_| OutputMut::new("", OutputValues::default()));
    for (index, memory) in memory[..count].iter_mut().enumerate() {
        let place = Place { array: "outputs", index };
        // SAFETY: as above.
        let tensor = unsafe { read(outputs, place)? };
        // SAFETY: as above.
        let output = unsafe { output_of(engine, &tensor, place)? };
        let expected = describe(engine, output, (size, images), tensor.layout);
        tensor.check_kind(&expected, place)?;
        tensor.check_shape(&expected, place)?;
        let (data, elements) = (tensor.data.cast::<f32>(), tensor.elements(place)?);
        taken.add(data, elements, place)?;
        // SAFETY: as above; `taken` established that the memory does not overlap that of another tensor.
        let values = unsafe { memory::slice_mut(data, elements, place)? };
        let layout = match tensor.layout {
            SWINQ_LAYOUT_NCHW => OutputLayout::ChannelsFirst,
            _ => OutputLayout::Rows,
        };
        *memory = OutputMut::new(&output.name, values).in_layout(layout);
    }
    engine.run(Images::new(size, pixels), &mut memory[..count]).map_err(Failure::of_run)
}

/// Refuses an input of another name, type, layout, rank or number of channels than `engine` takes. The engine checks height
/// and width.
///
/// # Safety
/// The tensor's name is null or valid.
unsafe fn check_input(engine: &Engine, input: &swinq_tensor, place: Place) -> Result<(), Failure> {
    // SAFETY: the caller states it.
    if let Some(name) = unsafe { memory::optional_text(input.name, place)? }
        && name != INPUT
    {
        return Err(Failure::argument(place, format!("its name is `{name}`; the only input is `{INPUT}`")));
    }
    let kind =
        swinq_tensor { r#type: SWINQ_TYPE_U8, layout: SWINQ_LAYOUT_NHWC, rank: 4, ..Versioned::defaults() };
    input.check_kind(&kind, place)?;
    let [images, height, width, given] = input.shape;
    let channels = engine.channels();
    if given == channels {
        return Ok(());
    }
    let problem = format!(
        "its `shape` is [{images}, {height}, {width}, {given}]; the model takes images of {channels} channels"
    );
    Err(Failure::argument(place, problem))
}

/// The output of `engine` that `tensor` names.
///
/// # Safety
/// The tensor's name is null or valid.
unsafe fn output_of<'e>(
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
