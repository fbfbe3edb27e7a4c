//! The functions and structures of the interface. Their documentation becomes that of the header.
//!
//! # Safety
//! It is the same for every function: each pointer is NULL, which is an error where the description does not allow it,
//! or valid for as much as the description says, and no other thread writes to that memory during the call. Handles are
//! checked.

#![allow(unsafe_code)]
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc, reason = "it is that of the module, and has no place in the header")]

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::Arc;

use swinq::int8_runtime::cuda::StreamType;
use swinq::{
    BackendChoice, CPU_BATCH, CalibrateOptions, EngineOptions, Images, Model, OpenOptions, Progress,
    RgbImage, Split, decode_image, load_recipe,
};

use crate::handles::{self, Object};
use crate::memory::{self, Versioned};
use crate::status::{Failure, Status, guard, last_message};

/// Version of this interface. It changes with each change that breaks a program, as the major version of the library does.
pub const SWINQ_ABI_VERSION: u32 = 0;

/// `backend`: the GPU if one can be used, else the CPU.
pub const SWINQ_BACKEND_AUTO: u32 = 0;
/// `backend`: the CPU.
pub const SWINQ_BACKEND_CPU: u32 = 1;
/// `backend`: the GPU; an error if none can be used.
pub const SWINQ_BACKEND_CUDA: u32 = 2;

/// A model, float or quantized. Threads may share it.
pub struct swinq_model {
    _opaque: [u8; 0],
}

/// A model that is ready to run, with threads and buffers of its own. Threads may share it; their calls run one after
/// another. Engines of one model share its packed weights.
pub struct swinq_engine {
    _opaque: [u8; 0],
}

/// How a model is opened. Set every field to zero and `size` to `sizeof(swinq_open_options)` for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_open_options {
    /// Size of this structure.
    pub size: usize,
    /// Configuration of a bare float checkpoint: a shipped name, or a YAML file. NULL for a quantized checkpoint and for
    /// a directory.
    pub cfg: *const c_char,
    /// File of class names, one per line; NULL for those of the model.
    pub labels: *const c_char,
}

/// How an engine is made. Set every field to zero and `size` to `sizeof(swinq_engine_options)` for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_engine_options {
    /// Size of this structure.
    pub size: usize,
    /// `SWINQ_BACKEND_AUTO`, `SWINQ_BACKEND_CPU` or `SWINQ_BACKEND_CUDA`.
    pub backend: u32,
    /// Ordinal of the GPU.
    pub device: u32,
    /// Threads of the CPU engine, including the caller's; 0 is one per core.
    pub threads: usize,
    /// Images that run at a time; larger batches are split. 0 is 8.
    pub max_batch: usize,
    /// 1 for an f32 residual stream on a GPU, which gives the CPU's bits; 0 for f16.
    pub residual_f32: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// How a model is quantized. Set every field to zero and `size` to `sizeof(swinq_quantize_options)` for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_quantize_options {
    /// Size of this structure.
    pub size: usize,
    /// `default`, `mode1`, `mode2`, or a YAML file; NULL is `default`.
    pub recipe: *const c_char,
    /// Number of images of the data set that are used; 0 is 128.
    pub images: usize,
    /// Seed of the sample of images.
    pub seed: u64,
    /// Images per batch; 0 is 8.
    pub batch_size: usize,
    /// Called with the numbers of images or layers done and of all, on the thread of the call; may be NULL. A result
    /// other than 0 stops the calibration with `SWINQ_STATUS_STOPPED`. It must return: no exception and no `longjmp`
    /// may leave it.
    pub progress: Option<unsafe extern "C" fn(user: *mut c_void, done: usize, total: usize) -> c_int>,
    /// The first argument of `progress`.
    pub user: *mut c_void,
}

/// Facts about a model. Set `size` to `sizeof(swinq_model_info)` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_model_info {
    /// Size of this structure.
    pub size: usize,
    /// Height of the images in pixels.
    pub height: usize,
    /// Width of the images in pixels.
    pub width: usize,
    /// Channels of the images.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// 1 if any site is quantized, 0 for a float model.
    pub quantized: u32,
    /// 1 if the classes have names.
    pub labelled: u32,
}

// SAFETY: the structures are `repr(C)`, start with their size, and have numbers, pointers and one function.
unsafe impl Versioned for swinq_open_options {
    fn defaults() -> Self {
        swinq_open_options { size: size_of::<Self>(), cfg: std::ptr::null(), labels: std::ptr::null() }
    }
}

// SAFETY: as above.
unsafe impl Versioned for swinq_engine_options {
    fn defaults() -> Self {
        let size = size_of::<Self>();
        swinq_engine_options {
            size,
            backend: 0,
            device: 0,
            threads: 0,
            max_batch: 0,
            residual_f32: 0,
            reserved: 0,
        }
    }
}

// SAFETY: as above.
unsafe impl Versioned for swinq_quantize_options {
    fn defaults() -> Self {
        swinq_quantize_options {
            size: size_of::<Self>(),
            recipe: std::ptr::null(),
            images: 0,
            seed: 0,
            batch_size: 0,
            progress: None,
            user: std::ptr::null_mut(),
        }
    }
}

// SAFETY: as above.
unsafe impl Versioned for swinq_model_info {
    fn defaults() -> Self {
        let size = size_of::<Self>();
        swinq_model_info { size, height: 0, width: 0, channels: 0, classes: 0, quantized: 0, labelled: 0 }
    }
}

/// Version of the interface of the library that runs. Compare it with `SWINQ_ABI_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_abi_version() -> u32 {
    SWINQ_ABI_VERSION
}

/// Version of the library, such as `"0.1.0"`. The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_version() -> *const c_char {
    const VERSION: &std::ffi::CStr =
        match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

/// What was wrong with the last call of this thread, in UTF-8; empty if it succeeded. The string belongs to the library
/// and is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_last_error() -> *const c_char {
    last_message()
}

/// Opens the model at `path` (UTF-8): a quantized or float checkpoint, or a Hugging Face or timm directory. `options`
/// may be NULL. Writes a handle to `model`, which the caller frees with `swinq_model_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_model_open(
    path: *const c_char,
    options: *const swinq_open_options,
    model: *mut *mut swinq_model,
) -> Status {
    guard(|| {
        // SAFETY: the caller of this function states that its pointers are valid; so below.
        let (path, given) = unsafe { (memory::text(path, "path")?, memory::options(options, "options")?) };
        // SAFETY: as above.
        let cfg = unsafe { memory::optional_text(given.cfg, "cfg")? };
        // SAFETY: as above.
        let labels = unsafe { memory::optional_text(given.labels, "labels")? };
        let (cfg, labels) = (cfg.map(str::to_owned), labels.map(Into::into));
        let options = OpenOptions { cfg, labels, ..OpenOptions::default() };
        let opened = Model::open_with(path, &options)?;
        // SAFETY: as above.
        unsafe { hand_out(Object::Model(opened), model, "model") }
    })
}

/// Quantizes a float model: finds the ranges of its activations on images of the training part of the data set at
/// `data_path`, which may be an ImageFolder, a Swin zip folder, a list file or a folder of images. `options` may be NULL.
/// Writes a handle of the new model to `quantized`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_model_quantize(
    model: *const swinq_model,
    data_path: *const c_char,
    options: *const swinq_quantize_options,
    quantized: *mut *mut swinq_model,
) -> Status {
    guard(|| {
        let float = handles::model(model.addr())?;
        // SAFETY: the caller of this function states that its pointers are valid; so below.
        let (data, given) =
            unsafe { (memory::text(data_path, "data_path")?, memory::options(options, "options")?) };
        // SAFETY: as above.
        let recipe = unsafe { memory::optional_text(given.recipe, "recipe")? };
        let mut options =
            CalibrateOptions { recipe: load_recipe(recipe.unwrap_or("default"))?, ..Default::default() };
        if given.batch_size > 0 {
            options.read.batch_size = given.batch_size;
        }
        let count = if given.images == 0 { 128 } else { given.images };
        let images = Images::open(data, Split::Train, Some(count), given.seed)?;
        let mut stopped = false;
        let mut progress = |step: Progress| {
            // SAFETY: the caller states that the function may be called with its `user`.
            stopped |=
                given.progress.is_some_and(|call| unsafe { call(given.user, step.done, step.total) } != 0);
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let made = swinq::calibrate(float, &options, &images, &mut progress);
        if stopped {
            return Err(Failure::new(Status::Stopped, "the progress function stopped the calibration"));
        }
        // SAFETY: as above.
        unsafe { hand_out(Object::Model(made?.model), quantized, "quantized") }
    })
}

/// Writes the model to a checkpoint at `path` (UTF-8), completely or not at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_model_save(model: *const swinq_model, path: *const c_char) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        // SAFETY: the caller of this function states that its pointers are valid.
        Ok(model.save(unsafe { memory::text(path, "path")? })?)
    })
}

/// Writes facts about the model to `info`, as many as `info->size` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_model_get_info(
    model: *const swinq_model,
    info: *mut swinq_model_info,
) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        let facts = swinq_model_info {
            height: model.config().image_size.height,
            width: model.config().image_size.width,
            channels: model.config().in_chans,
            classes: model.config().num_classes,
            quantized: model.is_quantized().into(),
            labelled: model.labels().is_some().into(),
            ..Versioned::defaults()
        };
        // SAFETY: the caller of this function states that its pointers are valid.
        unsafe { memory::fill(info, facts, "info") }
    })
}

/// Writes the name of a class (UTF-8, with a zero byte at its end) to the `capacity` bytes at `name`. Fails with
/// `SWINQ_STATUS_ARGUMENT` if the model has no such name, or if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_model_get_label(
    model: *const swinq_model,
    class_index: usize,
    name: *mut c_char,
    capacity: usize,
) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        let labels = model.labels().ok_or_else(|| Failure::argument("model", "its classes have no names"))?;
        let label = labels.get(class_index).ok_or_else(|| {
            Failure::argument(
                "class_index",
                format!("is {class_index}; the model has {} classes", labels.len()),
            )
        })?;
        // SAFETY: the caller of this function states that its pointers are valid.
        let room = unsafe { memory::slice_mut(name.cast::<u8>(), capacity, "name")? };
        let needed = label.len() + 1;
        if needed > capacity {
            return Err(Failure::argument(
                "capacity",
                format!("is {capacity}; the name needs {needed} bytes"),
            ));
        }
        room[..label.len()].copy_from_slice(label.as_bytes());
        room[label.len()] = 0;
        Ok(())
    })
}

/// Frees a model. Engines of the model stay usable. NULL is allowed, and a handle that was freed is an error.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_model_free(model: *mut swinq_model) -> Status {
    guard(|| handles::remove(model.addr(), "model", |object| matches!(object, Object::Model(_))))
}

/// Brings a decoded image, `rgb` of `height * width * 3` bytes, to the model's input: writes an image of the height, the width
/// and the channels that `swinq_model_get_info` states to `pixels`, whose size is `capacity`. Models take one or three
/// channels. The bytes equal Pillow's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_preprocess(
    model: *const swinq_model,
    rgb: *const u8,
    width: usize,
    height: usize,
    pixels: *mut u8,
    capacity: usize,
) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        let bytes = width.checked_mul(height).and_then(|area| area.checked_mul(3)).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| Failure::argument("width, height", format!("{width} x {height}")))?;
        // SAFETY: the caller of this function states that its pointers are valid.
        let rgb = unsafe { memory::slice(rgb, bytes, "rgb")? };
        let image = RgbImage { width, height, pixels: rgb.to_vec() };
        // SAFETY: as above.
        unsafe { write_input(&model, &image, pixels, capacity) }
    })
}

/// Decodes the image file in the `length` bytes at `file` (JPEG, PNG, WebP, BMP, TIFF, PNM), and brings it to the model's
/// input as `swinq_preprocess` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_decode(
    model: *const swinq_model,
    file: *const u8,
    length: usize,
    pixels: *mut u8,
    capacity: usize,
) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        // SAFETY: the caller of this function states that its pointers are valid.
        let file = unsafe { memory::slice(file, length, "file")? };
        let image = decode_image(file).map_err(|error| Failure::new(Status::Data, error.to_string()))?;
        // SAFETY: as above.
        unsafe { write_input(&model, &image, pixels, capacity) }
    })
}

/// Prepares the model to run. `options` may be NULL. Writes a handle to `engine`, which the caller frees with
/// `swinq_engine_free`. The engine does not need the handle of the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_new(
    model: *const swinq_model,
    options: *const swinq_engine_options,
    engine: *mut *mut swinq_engine,
) -> Status {
    guard(|| {
        let model = handles::model(model.addr())?;
        // SAFETY: the caller of this function states that its pointers are valid.
        let given = unsafe { memory::options(options, "options")? };
        let made = model.engine(&engine_options(&given)?)?;
        // SAFETY: as above.
        unsafe { hand_out(Object::Engine(Arc::new(made)), engine, "engine") }
    })
}

/// Computes the logits of images: reads `pixels`, `uint8 [images, height, width, channels]` (preprocessed) of
/// `pixel_bytes` bytes, and writes `logits`, `float [images, classes]` of `logit_count` values. The number of images is
/// any, and follows from both sizes, which must agree. After the first call for a number of images it allocates nothing
/// on a CPU. `pixels` and `logits` must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_infer(
    engine: *const swinq_engine,
    pixels: *const u8,
    pixel_bytes: usize,
    logits: *mut f32,
    logit_count: usize,
) -> Status {
    guard(|| {
        let engine = handles::engine(engine.addr())?;
        let image = engine.image_bytes();
        if !pixel_bytes.is_multiple_of(image) || logit_count != pixel_bytes / image * engine.classes() {
            let problem = format!(
                "{pixel_bytes} bytes of pixels and {logit_count} logits; an image has {image} bytes and {} logits",
                engine.classes()
            );
            return Err(Failure::argument("pixel_bytes, logit_count", problem));
        }
        // SAFETY: the caller of this function states that its pointers are valid and do not overlap.
        let (pixels, logits) = unsafe {
            (memory::slice(pixels, pixel_bytes, "pixels")?, memory::slice_mut(logits, logit_count, "logits")?)
        };
        Ok(engine.infer_into(pixels, logits).map_err(swinq::Error::from)?)
    })
}

/// Frees an engine. A call that runs on another thread meanwhile completes. NULL is allowed, and a handle that was freed
/// is an error.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_engine_free(engine: *mut swinq_engine) -> Status {
    guard(|| handles::remove(engine.addr(), "engine", |object| matches!(object, Object::Engine(_))))
}

/// Adds `object` to the table and writes its handle to `to`.
///
/// # Safety
/// `to` is null or can be written to.
unsafe fn hand_out<T>(object: Object, to: *mut *mut T, what: &str) -> Result<(), Failure> {
    // Checked first, so that no object is left in the table without a handle.
    // SAFETY: the caller states it.
    unsafe { memory::write(to, std::ptr::null_mut(), what)? };
    let handle = std::ptr::without_provenance_mut(handles::insert(object));
    // SAFETY: as above.
    unsafe { memory::write(to, handle, what) }
}

/// Preprocesses `image` for `model` and writes its pixels.
///
/// # Safety
/// `pixels` is null or has `capacity` bytes.
unsafe fn write_input(
    model: &Model,
    image: &RgbImage,
    pixels: *mut u8,
    capacity: usize,
) -> Result<(), Failure> {
    let channels = model.config().in_chans;
    if channels != 1 && channels != 3 {
        let problem = format!("takes {channels} channels, and pictures have 1 or 3");
        return Err(Failure::argument("model", problem));
    }
    let prepared = swinq::data::preprocess(image, model.transform());
    if capacity < prepared.len() {
        let problem = format!("is {capacity}; the model's input has {} bytes", prepared.len());
        return Err(Failure::argument("capacity", problem));
    }
    // SAFETY: the caller states it.
    let room = unsafe { memory::slice_mut(pixels, capacity, "pixels")? };
    room[..prepared.len()].copy_from_slice(&prepared);
    Ok(())
}

fn engine_options(given: &swinq_engine_options) -> Result<EngineOptions, Failure> {
    let backend = match given.backend {
        SWINQ_BACKEND_AUTO => BackendChoice::Auto,
        SWINQ_BACKEND_CPU => BackendChoice::Cpu,
        SWINQ_BACKEND_CUDA => BackendChoice::Cuda,
        other => return Err(Failure::argument("backend", format!("is {other}; it must be a SWINQ_BACKEND"))),
    };
    if given.reserved != 0 {
        return Err(Failure::argument("reserved", "is not 0"));
    }
    let max_batch = if given.max_batch == 0 { CPU_BATCH } else { given.max_batch };
    let mut options =
        EngineOptions { backend, threads: given.threads, max_batch, ..EngineOptions::default() };
    options.cuda.device = given.device as usize;
    if given.residual_f32 != 0 {
        options.cuda.residual = StreamType::F32;
    }
    Ok(options)
}
