//! JPEG by zune-jpeg, with Pillow's colour conversions.

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{RgbImage, check_size};
use crate::error::DecodeError;

/// JPEG's own limit on a side.
const MAX_SIDE: usize = 65_535;

/// Decodes a JPEG file, strictly: no part of a damaged image is made up.
pub(super) fn decode(bytes: &[u8]) -> Result<RgbImage, DecodeError> {
    find_end(bytes)?;
    let options =
        DecoderOptions::default().set_strict_mode(true).set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(corrupt)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| no_frame("size"))?;
    check_size(width as u64, height as u64)?;
    let input = decoder.input_colorspace().ok_or_else(|| no_frame("colour space"))?;
    let output = match input {
        ColorSpace::Luma | ColorSpace::CMYK | ColorSpace::YCCK => input,
        ColorSpace::YCbCr | ColorSpace::RGB => ColorSpace::RGB,
        other => return Err(DecodeError::Corrupt(format!("JPEG colour space {other:?} is not a picture's"))),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(output));
    let samples = decoder.decode().map_err(corrupt)?;
    let pixels = to_rgb(samples, output);
    if pixels.len() != width * height * 3 {
        return Err(DecodeError::Corrupt("the decoder returned fewer samples than the frame has".to_owned()));
    }
    Ok(RgbImage { width, height, pixels })
}

fn corrupt(error: DecodeErrors) -> DecodeError {
    DecodeError::Corrupt(format!("JPEG: {error:?}"))
}

fn no_frame(what: &str) -> DecodeError {
    DecodeError::Corrupt(format!("JPEG: no frame header gives a {what}"))
}

fn to_rgb(samples: Vec<u8>, space: ColorSpace) -> Vec<u8> {
    match space {
        ColorSpace::Luma => samples.iter().flat_map(|&grey| [grey; 3]).collect(),
        ColorSpace::CMYK => {
            samples.as_chunks::<4>().0.iter().flat_map(|&[c, m, y, k]| inks_to_rgb([c, m, y], k)).collect()
        }
        ColorSpace::YCCK => {
            let inks = |&[y, cb, cr, k]: &[u8; 4]| inks_to_rgb(ycc_to_inks(y, cb, cr), k);
            samples.as_chunks::<4>().0.iter().flat_map(inks).collect()
        }
        _ => samples,
    }
}

/// Pillow's CMYK to RGB of Adobe's inverted inks (255 is no ink): with the ink `c = 255 - stored` and
/// `k = 255 - stored`, `(255 - k) - c * (255 - k) / 255`, the division rounded.
fn inks_to_rgb(stored: [u8; 3], stored_black: u8) -> [u8; 3] {
    let light = u32::from(stored_black);
    stored.map(|ink| {
        let product = u32::from(255 - ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

/// libjpeg's YCCK to CMYK: the inks are `255 - RGB` of the YCbCr part (JFIF's equations in 16-bit fixed point).
fn ycc_to_inks(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((91_881 * cr + HALF) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
    let blue = y + ((116_130 * cb + HALF) >> 16);
    [red, green, blue].map(|value| (255 - value).clamp(0, 255) as u8)
}

/// Walks the marker segments (ITU-T T.81, annex B) to the end-of-image marker.
///
/// A decoder may fill in what a truncated file lacks; this check is what makes truncation an error.
fn find_end(bytes: &[u8]) -> Result<(), DecodeError> {
    let truncated = |what: &str| {
        DecodeError::Truncated(format!("the JPEG's {} bytes end {what}, before its end marker", bytes.len()))
    };
    let mut at = 2;
    loop {
        at = next_marker(bytes, at).ok_or_else(|| truncated("inside the image data"))?;
        let marker = bytes[at - 1];
        match marker {
            0xd9 => return Ok(()),
            // Restart markers and TEM stand alone; so does a second start of image.
            0x01 | 0xd0..=0xd8 => {}
            _ => {
                let length = bytes.get(at..at + 2).ok_or_else(|| truncated("inside a segment header"))?;
                at += usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
                if at > bytes.len() {
                    return Err(truncated("inside a segment"));
                }
            }
        }
    }
}

/// Position just after the next marker at or after `from`: stuffed zeros and fill bytes are no markers.
fn next_marker(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)? + 1;
        match bytes.get(at)? {
            0x00 => at += 1,
            0xff => {}
            _ => return Some(at + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inks_match_pillow() {
        // Image.new("CMYK", (1, 1), ...).convert("RGB"), with the inks inverted as Adobe stores them.
        for (cmyk, rgb) in [
            ([0, 0, 0, 0], [255, 255, 255]),
            ([255, 0, 0, 0], [0, 255, 255]),
            ([10, 100, 200, 50], [197, 125, 44]),
            ([1, 2, 3, 254], [1, 1, 1]),
            ([128, 128, 128, 128], [63, 63, 63]),
        ] {
            let [c, m, y, k] = cmyk.map(|ink: u8| 255 - ink);
            assert_eq!(inks_to_rgb([c, m, y], k), rgb, "{cmyk:?}");
        }
    }

    #[test]
    fn the_end_must_be_there() {
        let whole = [0xff, 0xd8, 0xff, 0xda, 0, 2, 1, 0xff, 0, 2, 0xff, 0xd0, 3, 0xff, 0xff, 0xd9];
        assert_eq!(find_end(&whole), Ok(()));
        for length in 2..whole.len() {
            assert!(matches!(find_end(&whole[..length]), Err(DecodeError::Truncated(_))), "{length}");
        }
    }
}
