//! Models.

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::str::FromStr;

use swinq::model::ModelError;
use swinq::{
    CalibrateOptions, Dialect, Images, LoadOptions, Model, OpenOptions, Progress, Split, load_recipe,
};

use super::{hand_out, swinq_model};
use crate::handles::{self, Object};
use crate::memory::{self, Versioned};
use crate::status::{Failure, Status, guard};

/// How a model is opened. Set every field to zero and `size` to `sizeof(swinq_open_options)` for the
/// defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct swinq_open_options {
    /// Size of this structure.
    pub size: usize,
    /// Configuration of a bare float checkpoint: a shipped name, or a YAML file. NULL for a quantized
    /// checkpoint and for a directory.
    pub cfg: *const c_char,
    /// File of class names, one per line; NULL for those of the model.
    pub labels: *const c_char,
    /// Whether images are turned as EXIF in their files states: `exif` or `stored`; NULL for the rule of the
    /// library that reads such a checkpoint, or of a quantized checkpoint.
    pub orientation: *const c_char,
    /// Order of the three channels before the network: `rgb` or `bgr`; NULL for `rgb`, or that of a quantized
    /// checkpoint.
    pub channels: *const c_char,
    /// Naming convention of the tensors of a float checkpoint: `microsoft`, `timm`, `hf`, `torchvision`,
    /// `openmmlab`, `old-timm` or `ft`; NULL detects it. It chooses between two namings of a network under
    /// one prefix.
    pub dialect: *const c_char,
    /// The beginning of the names of the network's tensors, such as `model.`, if a float checkpoint has other
    /// tensors too; NULL leaves out a beginning that all names have.
    pub prefix: *const c_char,
    /// The key of the state dictionary in a file of `torch.save` that has several, such as `state_dict_ema`;
    /// NULL takes an average of the weights if there is one.
    pub weights: *const c_char,
}

/// How a model is quantized. Set every field to zero and `size` to `sizeof(swinq_quantize_options)` for the
/// defaults.
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
    /// Called with the numbers of images or layers done and of all, on the thread of the call; may be NULL. A
    /// result other than 0 stops the calibration with `SWINQ_STATUS_STOPPED`. It must return: no exception
    /// and no `longjmp` may leave it.
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
        swinq_open_options {
            size: size_of::<Self>(),
            cfg: std::ptr::null(),
            labels: std::ptr::null(),
            orientation: std::ptr::null(),
            channels: std::ptr::null(),
            dialect: std::ptr::null(),
            prefix: std::ptr::null(),
            weights: std::ptr::null(),
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

/// The value of an option, if it is given.
fn parsed<T: FromStr<Err = String>>(text: Option<&str>, name: &'static str) -> Result<Option<T>, Failure> {
    text.map(str::parse).transpose().map_err(|problem: String| Failure::argument(name, problem))
}

/// The naming convention of this name.
fn dialect(name: &str) -> Result<Dialect, Failure> {
    name.parse().map_err(|error| match error {
        ModelError::Config { problem, .. } => Failure::argument("dialect", problem),
        other => Failure::argument("dialect", other),
    })
}

/// The options of the library.
///
/// # Safety
/// The texts of `given` are valid, or NULL.
unsafe fn open_options(given: &swinq_open_options) -> Result<OpenOptions, Failure> {
    // SAFETY: the caller of this function states it.
    let text = |text: *const c_char, name| unsafe { memory::optional_text(text, name) };
    Ok(OpenOptions {
        cfg: text(given.cfg, "cfg")?.map(str::to_owned),
        labels: text(given.labels, "labels")?.map(Into::into),
        orientation: parsed(text(given.orientation, "orientation")?, "orientation")?,
        channel_order: parsed(text(given.channels, "channels")?, "channels")?,
        reading: LoadOptions {
            dialect: text(given.dialect, "dialect")?.map(dialect).transpose()?,
            prefix: text(given.prefix, "prefix")?.map(str::to_owned),
            weights: text(given.weights, "weights")?.map(str::to_owned),
            ..LoadOptions::default()
        },
        ..OpenOptions::default()
    })
}

/// Opens the model at `path` (UTF-8): a quantized or float checkpoint, or a Hugging Face or timm directory.
/// `options` may be NULL. Writes a handle to `model`, which the caller frees with `swinq_model_free`.
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
        let options = unsafe { open_options(&given)? };
        let opened = Model::open_with(path, &options)?;
        // SAFETY: as above.
        unsafe { hand_out(Object::Model(opened), model, "model") }
    })
}

/// Quantizes a float model: finds the ranges of its activations on images of the training part of the data
/// set at `data_path`, which may be an ImageFolder, a Swin zip folder, a list file or a folder of images.
/// `options` may be NULL. Writes a handle of the new model to `quantized`.
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

/// Writes the name of a class (UTF-8, with a zero byte at its end) to the `capacity` bytes at `name`. Fails
/// with `SWINQ_STATUS_ARGUMENT` if the model has no such name, or if it does not fit.
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
