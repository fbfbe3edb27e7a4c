//! Engines: how they are made, and what outputs they have.

use std::sync::Arc;

use swinq::int8_runtime::cuda::ResidualType;
use swinq::model::Size;
use swinq::{BackendChoice, DEFAULT_BATCH, EngineOptions};

use super::tensor::{SWINQ_LAYOUT_NCHW, describe, swinq_tensor};
use super::{hand_out, swinq_engine, swinq_model};
use crate::handles::{self, Object, Served};
use crate::memory::{self, Versioned};
use crate::status::{Failure, Status, guard};

/// `backend`: the GPU if one can be used, else the CPU.
pub const SWINQ_BACKEND_AUTO: u32 = 0;
/// `backend`: the CPU.
pub const SWINQ_BACKEND_CPU: u32 = 1;
/// `backend`: the GPU; an error if none can be used.
pub const SWINQ_BACKEND_CUDA: u32 = 2;

/// How an engine is made. Set every field to zero and `size` to `sizeof(swinq_engine_options)` for the
/// defaults.
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
    /// Images that run at a time, on a CPU at most 2 on each thread; larger batches are split. 0 is 8.
    pub max_batch: usize,
    /// 1 for an f32 residual stream on a GPU, which gives the CPU's bits; 0 for f16, or f32 if f16 does not
    /// hold the stream.
    pub residual_f32: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The most pixels, height times width, of an image. 0 is as many as half of the free memory holds.
    /// Images of the model's own size, and smaller ones, are always accepted.
    pub max_pixels: usize,
    /// Threads of the CPU engine that work on one image; 0 is as many as make it faster.
    pub image_threads: usize,
    /// The most bytes for the tensors of images of one size, which the CPU engine runs side by side; 0 is a
    /// quarter of the machine's memory.
    pub max_memory: usize,
    /// The most streams of a GPU on which the engine runs at the same time, each with memory of its own; a
    /// recorded graph counts as one as long as it lives. 0 is 4.
    pub max_streams: usize,
}

// SAFETY: the structure is `repr(C)`, starts with its size, and has numbers.
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
            max_pixels: 0,
            image_threads: 0,
            max_memory: 0,
            max_streams: 0,
        }
    }
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
        unsafe { hand_out(Object::Engine(Arc::new(Served::new(made))), engine, "engine") }
    })
}

/// Writes the number of outputs of the engine to `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_get_output_count(
    engine: *const swinq_engine,
    count: *mut usize,
) -> Status {
    guard(|| {
        let served = handles::engine(engine.addr())?;
        // SAFETY: the caller of this function states that its pointers are valid.
        unsafe { memory::write(count, served.engine.outputs().len(), "count") }
    })
}

/// Describes output `index` for one image of `height` and `width`: writes its name, type, layout, rank and
/// shape to `output`, as many fields as `output->size` has room for. The layout of a feature map is
/// `SWINQ_LAYOUT_NCHW`; it may be asked for in `SWINQ_LAYOUT_NHWC` or, `[images, tokens, channels]`, in
/// `SWINQ_LAYOUT_ROWS`. The name is valid until the engine is freed. `shape[0]` is the number of images, 1,
/// and `data` is NULL; set both for `swinq_engine_run`. Fails with `SWINQ_STATUS_ARGUMENT` if the engine has
/// no such output, or if the network cannot process such an image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swinq_engine_get_output(
    engine: *const swinq_engine,
    index: usize,
    height: usize,
    width: usize,
    output: *mut swinq_tensor,
) -> Status {
    guard(|| {
        let Served { engine, names } = &*handles::engine(engine.addr())?;
        let found = engine.outputs().get(index).zip(names.get(index));
        let (known, name) = found.ok_or_else(|| {
            Failure::argument("index", format!("is {index}; the engine has {} outputs", names.len()))
        })?;
        let size = Size::new(height, width);
        engine.check_size(size).map_err(Failure::of_run)?;
        let tensor =
            swinq_tensor { name: name.as_ptr(), ..describe(engine, known, (size, 1), SWINQ_LAYOUT_NCHW) };
        // SAFETY: the caller of this function states that its pointers are valid.
        unsafe { memory::fill(output, tensor, "output") }
    })
}

/// Frees an engine. A call that runs on another thread meanwhile completes. NULL is allowed, and a handle
/// that was freed is an error.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_engine_free(engine: *mut swinq_engine) -> Status {
    guard(|| handles::remove(engine.addr(), "engine", |object| matches!(object, Object::Engine(_))))
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
    let max_batch = if given.max_batch == 0 { DEFAULT_BATCH } else { given.max_batch };
    let swinq_engine_options { threads, max_pixels, image_threads, max_memory, max_streams, .. } = *given;
    let mut options = EngineOptions {
        backend,
        threads,
        image_threads,
        max_batch,
        max_memory,
        max_pixels,
        ..EngineOptions::default()
    };
    options.cuda.device = given.device as usize;
    if max_streams > 0 {
        options.cuda.max_streams = max_streams;
    }
    if given.residual_f32 != 0 {
        options.cuda.residual = Some(ResidualType::F32);
    }
    Ok(options)
}
