//! Decoding of WebP files by image-webp.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::{DecodedImage, Dimensions, admit};
use crate::error::DecodeError;
use crate::turn::Turn;

/// Memory of the decoder for a pixel: RGBA twice, or RGBA beside the planes of a lossy image.
const BYTES_PER_PIXEL: u64 = 8;

/// Width and height in the header of a WebP file.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    check_length(bytes)?;
    let (width, height) = WebPDecoder::new(Cursor::new(bytes)).map_err(decode_error)?.dimensions();
    Ok((u64::from(width), u64::from(height)))
}

/// Decodes a still WebP file and drops its alpha.
pub(super) fn decode(bytes: &[u8], turn: Turn) -> Result<DecodedImage, DecodeError> {
    check_length(bytes)?;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(decode_error)?;
    let (width, height) = decoder.dimensions();
    let permit = admit(u64::from(width), u64::from(height), BYTES_PER_PIXEL + turn.bytes_per_pixel())?;
    if decoder.is_animated() {
        return Err(DecodeError::Unsupported("animated WebP".to_owned()));
    }
    let (width, height) = (width as usize, height as usize);
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = vec![0; width * height * channels];
    decoder.read_image(&mut pixels).map_err(decode_error)?;
    if channels == 4 {
        super::drop_every_fourth(&mut pixels);
    }
    Ok(DecodedImage::new(width, height, pixels, permit))
}

/// Refuses a file that is shorter than its first chunk states: the decoder needs its last bytes in few cases.
fn check_length(bytes: &[u8]) -> Result<(), DecodeError> {
    let stated = bytes.get(4..8).map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    if stated.is_none_or(|size| (bytes.len() as u64) < 8 + u64::from(size)) {
        return Err(truncated());
    }
    Ok(())
}

fn truncated() -> DecodeError {
    DecodeError::Truncated("the WebP is shorter than its header states".to_owned())
}

fn decode_error(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => truncated(),
        other => DecodeError::Corrupt(format!("WebP: {other}")),
    }
}
