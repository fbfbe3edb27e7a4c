//! Images: from files and decoded pictures to the pixels that a model takes.

use swinq::{Model, RgbImage, decode_oriented};

use super::swinq_model;
use crate::handles;
use crate::memory;
use crate::status::{Failure, Status, guard};

/// Brings a decoded image, `rgb` of `height * width * 3` bytes, to the model's input: writes an image of the
/// height, the width and the channels that `swinq_model_get_info` states to `pixels`, whose size is
/// `capacity`. Models take one or three channels; three have the order of the model. The bytes equal
/// Pillow's.
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

/// Decodes the image file in the `length` bytes at `file` (JPEG, PNG, WebP, BMP, TIFF, PNM), turns it by the
/// model's rule for EXIF, and brings it to the model's input as `swinq_preprocess` does.
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
        let image = decode_oriented(file, model.transform().orientation)
            .map_err(|error| Failure::new(Status::Data, error.to_string()))?;
        // SAFETY: as above.
        unsafe { write_input(&model, &image, pixels, capacity) }
    })
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
