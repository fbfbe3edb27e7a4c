//! Decoding of TIFF files by the tiff crate and with Pillow's conversions to RGB.

use std::io::{Cursor, ErrorKind};

use ::tiff::decoder::{Decoder, DecodingResult, Limits};
use ::tiff::tags::Tag;
use ::tiff::{ColorType, TiffError};

use super::{DecodedImage, Dimensions, MAX_PIXELS, admit, drop_every_fourth};
use crate::error::DecodeError;
use crate::turn::Turn;

/// Bytes of the largest image: four samples of 16 bits per pixel.
const MAX_BYTES: usize = MAX_PIXELS as usize * 8;

/// A decoder of the first image of a TIFF file.
fn decoder(bytes: &[u8]) -> Result<Decoder<Cursor<&[u8]>>, DecodeError> {
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_BYTES;
    limits.intermediate_buffer_size = MAX_BYTES;
    Ok(Decoder::new(Cursor::new(bytes)).map_err(decode_error)?.with_limits(limits))
}

/// Width and height of the first image of a TIFF file, from its tags.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    let (width, height) = decoder(bytes)?.dimensions().map_err(decode_error)?;
    Ok((u64::from(width), u64::from(height)))
}

/// Decodes the first image of a TIFF file.
pub(super) fn decode(bytes: &[u8], turn: Turn) -> Result<DecodedImage, DecodeError> {
    let mut decoder = decoder(bytes)?;
    let (width, height) = decoder.dimensions().map_err(decode_error)?;
    let color = decoder.colortype().map_err(decode_error)?;
    let stored = (u64::from(color.bit_depth()) * u64::from(color.num_samples())).div_ceil(8);
    let permit = admit(u64::from(width), u64::from(height), stored + 4 + turn.bytes_per_pixel())?;
    check_tags(&mut decoder, color)?;
    let samples = decoder.read_image().map_err(decode_error)?;
    let (width, height) = (width as usize, height as usize);
    let pixels = to_rgb(samples, color, width)?;
    if pixels.len() != width * height * 3 {
        return Err(DecodeError::Corrupt("TIFF: the samples do not fill the image".to_owned()));
    }
    Ok(DecodedImage::new(width, height, pixels, permit))
}

fn decode_error(error: TiffError) -> DecodeError {
    match error {
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated("the TIFF ends inside its image data".to_owned())
        }
        TiffError::UnsupportedError(error) => DecodeError::Unsupported(format!("TIFF ({error})")),
        other => DecodeError::Corrupt(format!("TIFF: {other}")),
    }
}

/// Refuses tags that change the meaning of the samples and that this file does not interpret.
fn check_tags(decoder: &mut Decoder<Cursor<&[u8]>>, color: ColorType) -> Result<(), DecodeError> {
    let mut tag = |tag| decoder.find_tag_unsigned::<u16>(tag).map_err(decode_error);
    let channels = color.num_samples();
    let white_is_zero = tag(Tag::PhotometricInterpretation)? == Some(0);
    let refused = [
        ("planes", channels > 1 && tag(Tag::PlanarConfiguration)?.is_some_and(|value| value != 1)),
        ("reversed bits", tag(Tag::FillOrder)?.is_some_and(|value| value != 1)),
        ("additional samples", tag(Tag::SamplesPerPixel)?.is_some_and(|value| value != channels)),
        ("inverted 16-bit grey", white_is_zero && color == ColorType::Gray(16)),
    ];
    if let Some((what, _)) = refused.iter().find(|(_, found)| *found) {
        return Err(DecodeError::Unsupported(format!("TIFF with {what}")));
    }
    let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples).map_err(decode_error)?;
    if extra.is_some_and(|kinds| kinds.contains(&1)) {
        return Err(DecodeError::Unsupported("TIFF with colours multiplied by alpha".to_owned()));
    }
    Ok(())
}

/// Converts samples of an image `width` pixels wide to RGB.
fn to_rgb(samples: DecodingResult, color: ColorType, width: usize) -> Result<Vec<u8>, DecodeError> {
    match (color, samples) {
        (ColorType::Gray(1), DecodingResult::U8(bits)) => Ok(bits
            .chunks_exact(width.div_ceil(8))
            .flat_map(|row| (0..width).map(|x| row[x / 8] >> (7 - x % 8) & 1))
            .flat_map(|bit| [bit * 255; 3])
            .collect()),
        (ColorType::Gray(8), DecodingResult::U8(grey)) => Ok(grey.into_iter().flat_map(|g| [g; 3]).collect()),
        (ColorType::Gray(16), DecodingResult::U16(grey)) => {
            Ok(grey.into_iter().flat_map(|g| [g.min(255) as u8; 3]).collect())
        }
        (ColorType::RGB(8), DecodingResult::U8(rgb)) => Ok(rgb),
        (ColorType::RGB(16), DecodingResult::U16(rgb)) => Ok(high_bytes(rgb)),
        (ColorType::RGBA(8), DecodingResult::U8(mut rgba)) => {
            drop_every_fourth(&mut rgba);
            Ok(rgba)
        }
        (ColorType::RGBA(16), DecodingResult::U16(rgba)) => {
            let mut rgba = high_bytes(rgba);
            drop_every_fourth(&mut rgba);
            Ok(rgba)
        }
        (ColorType::CMYK(8), DecodingResult::U8(inks)) => {
            let inverted = |pixel: &[u8; 4]| pixel.map(|ink| 255 - ink);
            Ok(inks
                .as_chunks::<4>()
                .0
                .iter()
                .flat_map(|pixel| swinq_jpeg::ink_to_rgb(inverted(pixel)))
                .collect())
        }
        (other, _) => Err(DecodeError::Unsupported(format!("TIFF with colour type {other:?}"))),
    }
}

fn high_bytes(samples: Vec<u16>) -> Vec<u8> {
    samples.into_iter().map(|sample| (sample >> 8) as u8).collect()
}
