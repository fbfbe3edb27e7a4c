//! Decoding of JPEG files, by zune-jpeg and with Pillow's colour conversions.

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{RgbImage, check_size};
use crate::error::DecodeError;

/// The largest width and height that the format can express.
const MAX_SIDE: usize = 65_535;

/// Decodes a JPEG file in the decoder's strict mode, in which detected damage is an error.
pub(super) fn decode(bytes: &[u8]) -> Result<RgbImage, DecodeError> {
    check_end_marker(bytes)?;
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
        other => {
            return Err(DecodeError::Corrupt(format!("JPEG: {other:?} is not a colour space of images")));
        }
    };
    decoder.set_options(options.jpeg_set_out_colorspace(output));
    let samples = decoder.decode().map_err(corrupt)?;
    let pixels = to_rgb(samples, output);
    if pixels.len() != width * height * 3 {
        return Err(DecodeError::Corrupt(
            "JPEG: the decoder returned fewer pixels than the header claims".to_owned(),
        ));
    }
    Ok(RgbImage { width, height, pixels })
}

fn corrupt(error: DecodeErrors) -> DecodeError {
    DecodeError::Corrupt(format!("JPEG: {error:?}"))
}

fn no_frame(what: &str) -> DecodeError {
    DecodeError::Corrupt(format!("JPEG: no frame header with a {what}"))
}

/// Converts decoded samples of colour space `space` to RGB.
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

/// Pillow's conversion of CMYK to RGB, from inks stored inverted as Adobe does (255 is no ink). With the inks `c
/// = 255 - stored` and `k = 255 - stored_black`, a channel is `(255 - k) - c * (255 - k) / 255`, where the
/// division rounds to the nearest integer.
fn inks_to_rgb(stored: [u8; 3], stored_black: u8) -> [u8; 3] {
    let light = u32::from(stored_black);
    stored.map(|ink| {
        let product = u32::from(255 - ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

/// libjpeg's conversion of YCCK to CMYK: an ink is 255 minus the RGB value of the YCbCr part (JFIF's equations in
/// 16-bit fixed point).
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
/// The decoder may fill in the missing part of a truncated file; this check makes truncation an error.
fn check_end_marker(bytes: &[u8]) -> Result<(), DecodeError> {
    let truncated = |what: &str| {
        DecodeError::Truncated(format!(
            "the JPEG ends {what}, after {} bytes and without an end marker",
            bytes.len()
        ))
    };
    let mut at = 2;
    loop {
        at = next_marker(bytes, at).ok_or_else(|| truncated("inside the image data"))?;
        let marker = bytes[at - 1];
        match marker {
            0xd9 => return Ok(()),
            // Restart markers, TEM and a second start of image have no segment.
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

/// Position just after the next marker that starts at or after `from`. Stuffed zeros and fill bytes are not markers.
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
    fn inks_become_pillows_rgb() {
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
    fn a_missing_end_marker_is_an_error() {
        let complete = [0xff, 0xd8, 0xff, 0xda, 0, 2, 1, 0xff, 0, 2, 0xff, 0xd0, 3, 0xff, 0xff, 0xd9];
        assert_eq!(check_end_marker(&complete), Ok(()));
        for length in 2..complete.len() {
            assert!(
                matches!(check_end_marker(&complete[..length]), Err(DecodeError::Truncated(_))),
                "{length}"
            );
        }
    }
}
