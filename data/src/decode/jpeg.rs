//! Decoding of JPEG files by swinq-jpeg, with libjpeg-turbo's arithmetic and Pillow's colour conversions.

use swinq_jpeg::JpegError;

use super::{DecodedImage, Dimensions, budget, check_size};
use crate::error::DecodeError;
use crate::turn::Turn;

/// Width and height in the header of a JPEG file.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    let header = swinq_jpeg::read_header(bytes).map_err(|error| decode_error(error, bytes))?;
    Ok((header.width as u64, header.height as u64))
}

/// Decodes a JPEG file. Damage that loses samples is an error.
pub(super) fn decode(bytes: &[u8], turn: Turn) -> Result<DecodedImage, DecodeError> {
    let header = swinq_jpeg::read_header(bytes).map_err(|error| decode_error(error, bytes))?;
    check_size(header.width as u64, header.height as u64)?;
    let copy = turn.bytes_per_pixel() * header.width as u64 * header.height as u64;
    let permit = budget::acquire(header.memory + copy);
    let pixels = swinq_jpeg::decode(bytes, &header).map_err(|error| decode_error(error, bytes))?;
    Ok(DecodedImage::new(header.width, header.height, pixels, permit))
}

fn decode_error(error: JpegError, bytes: &[u8]) -> DecodeError {
    match error {
        JpegError::Truncated(_) => DecodeError::Truncated(format!(
            "the JPEG ends after {} bytes, without an end marker",
            bytes.len()
        )),
        JpegError::Unsupported(what) => DecodeError::Unsupported(format!("JPEG ({what})")),
        error => DecodeError::Corrupt(format!("JPEG: {error}")),
    }
}
