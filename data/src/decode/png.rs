//! Decoding of PNG files, by the png crate and with Pillow's conversions to RGB.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, Decoder, DecodingError, Limits};

use super::{DecodedImage, Dimensions, budget, check_size};
use crate::error::DecodeError;
use crate::turn::Turn;

/// Bytes that the decoder may allocate in addition to the image: more than a row of the widest image allowed.
const MAX_DECODER_BYTES: usize = 256 << 20;

/// A decoder of a PNG file.
fn decoder(bytes: &[u8]) -> Decoder<Cursor<&[u8]>> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_DECODER_BYTES });
    decoder.set_transformations(::png::Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder
}

/// Width and height in the header of a PNG file.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    header_of(&mut decoder(bytes))
}

fn header_of(decoder: &mut Decoder<Cursor<&[u8]>>) -> Result<Dimensions, DecodeError> {
    let header = decoder.read_header_info().map_err(decode_error)?;
    Ok((u64::from(header.width), u64::from(header.height)))
}

/// Decodes a PNG file.
pub(super) fn decode(bytes: &[u8], turn: Turn) -> Result<DecodedImage, DecodeError> {
    let mut decoder = decoder(bytes);
    let (width, height) = header_of(&mut decoder)?;
    check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(decode_error)?;
    let size = reader
        .output_buffer_size()
        .ok_or_else(|| DecodeError::Corrupt("PNG: the image does not fit in memory".to_owned()))?;
    let area = u64::from(reader.info().width) * u64::from(reader.info().height);
    let permit = budget::acquire(size as u64 + (3 + turn.bytes_per_pixel()) * area);
    let mut raw = vec![0; size];
    let frame = reader.next_frame(&mut raw).map_err(decode_error)?;
    let (width, height) = (frame.width as usize, frame.height as usize);
    let palette = reader.info().palette.as_deref().unwrap_or_default();
    let mut pixels = Vec::with_capacity(width * height * 3);
    for row in raw.chunks_exact(frame.line_size).take(height) {
        unpack_row(row, width, frame.color_type, frame.bit_depth, palette, &mut pixels);
    }
    if pixels.len() != width * height * 3 {
        return Err(DecodeError::Corrupt(
            "PNG: the decoder returned fewer rows than the header claims".to_owned(),
        ));
    }
    Ok(DecodedImage::new(width, height, pixels, permit))
}

fn decode_error(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            DecodeError::Truncated("the PNG ends inside its image data".to_owned())
        }
        other => DecodeError::Corrupt(format!("PNG: {other}")),
    }
}

/// Appends one row of `width` pixels as RGB.
fn unpack_row(
    row: &[u8],
    width: usize,
    color: ColorType,
    depth: BitDepth,
    palette: &[u8],
    out: &mut Vec<u8>,
) {
    let sixteen_bit = depth == BitDepth::Sixteen;
    match color {
        ColorType::Grayscale if sixteen_bit => {
            out.extend(pairs(row).flat_map(|(high, low)| [if high != 0 { 255 } else { low }; 3]))
        }
        ColorType::Grayscale => {
            // The factors 255, 85, 17 and 1 scale samples of 1, 2, 4 and 8 bits to 0..=255 exactly.
            let factor = 255 / ((1_u32 << depth as u32) - 1);
            out.extend(samples(row, depth, width).flat_map(|value| [(u32::from(value) * factor) as u8; 3]));
        }
        ColorType::Indexed => {
            out.extend(samples(row, depth, width).flat_map(|index| palette_entry(palette, index)));
        }
        ColorType::GrayscaleAlpha if sixteen_bit => {
            out.extend(row.chunks_exact(4).flat_map(|pixel| [pixel[0]; 3]));
        }
        ColorType::GrayscaleAlpha => out.extend(row.chunks_exact(2).flat_map(|pixel| [pixel[0]; 3])),
        ColorType::Rgb if sixteen_bit => out.extend(pairs(row).map(|(high, _)| high)),
        ColorType::Rgb => out.extend_from_slice(&row[..width * 3]),
        ColorType::Rgba if sixteen_bit => {
            out.extend(row.chunks_exact(8).flat_map(|pixel| [pixel[0], pixel[2], pixel[4]]));
        }
        ColorType::Rgba => out.extend(row.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])),
    }
}

/// The high and low bytes of 16-bit samples.
fn pairs(row: &[u8]) -> impl Iterator<Item = (u8, u8)> {
    row.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}

/// The first `width` samples of a row of samples of at most 8 bits, packed with the most significant bits
/// first.
fn samples(row: &[u8], depth: BitDepth, width: usize) -> impl Iterator<Item = u8> {
    let bits = (depth as usize).min(8);
    let (per_byte, mask) = (8 / bits, (0xff_u16 >> (8 - bits)) as u8);
    (0..width).map(move |x| (row[x / per_byte] >> (8 - bits * (x % per_byte + 1))) & mask)
}

/// Colour `index` of the palette; black beyond its end, as in Pillow.
fn palette_entry(palette: &[u8], index: u8) -> [u8; 3] {
    let start = usize::from(index) * 3;
    match palette.get(start..start + 3) {
        Some(color) => [color[0], color[1], color[2]],
        None => [0; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_samples_are_read_most_significant_bits_first() {
        let unpack = |row: &[u8], depth, width| samples(row, depth, width).collect::<Vec<_>>();
        assert_eq!(unpack(&[0b1010_0000, 0b1000_0000], BitDepth::One, 9), [1, 0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(unpack(&[0b0001_1011], BitDepth::Two, 3), [0, 1, 2]);
        assert_eq!(unpack(&[0x3c], BitDepth::Four, 2), [3, 12]);
        assert_eq!(unpack(&[7, 200], BitDepth::Eight, 2), [7, 200]);
    }

    #[test]
    fn an_index_beyond_the_palette_is_black() {
        assert_eq!(palette_entry(&[10, 20, 30, 40, 50, 60], 1), [40, 50, 60]);
        assert_eq!(palette_entry(&[10, 20, 30, 40, 50, 60], 2), [0; 3]);
    }
}
