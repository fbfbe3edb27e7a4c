//! Decoding of Windows bitmaps (BMP), with Pillow's conversions to RGB. Bitmaps with run-length coding are
//! refused.

use super::{DecodedImage, Dimensions, admit};
use crate::error::DecodeError;
use crate::turn::Turn;

/// Length of the file header, which precedes the bitmap header.
const FILE_HEADER: usize = 14;

/// The bitmap header.
struct Header {
    width: usize,
    height: usize,
    /// Whether the first row is the uppermost.
    top_down: bool,
    /// Bits of a pixel.
    bits: u16,
    /// 0: no compression, 3: bit masks, others are refused.
    compression: u32,
    /// Number of palette entries.
    colors: u32,
    /// Bytes of a palette entry.
    entry: usize,
    /// Offset of the palette or the masks.
    end: usize,
}

/// Place of a pixel's colours.
enum Layout {
    /// An index of `bits` bits into the palette.
    Palette(Vec<[u8; 3]>),
    /// 5 or 6 bits for each of red, green and blue, at these shifts and with these largest values.
    Packed([(u32, u32); 3]),
    /// Bytes: red, green and blue are at these positions in a pixel.
    Bytes([usize; 3]),
}

/// Width and height in the header of a BMP file.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    let header = read_header(bytes)?;
    Ok((header.width as u64, header.height as u64))
}

/// Decodes a BMP file.
pub(super) fn decode(bytes: &[u8], _turn: Turn) -> Result<DecodedImage, DecodeError> {
    let header = read_header(bytes)?;
    let permit = admit(header.width as u64, header.height as u64, 3)?;
    let layout = layout(bytes, &header)?;
    let start = pixels_start(bytes, &header, &layout)?;
    let row = (header.width * usize::from(header.bits)).div_ceil(8);
    let stride = row.next_multiple_of(4);
    let mut pixels = Vec::with_capacity(header.width * header.height * 3);
    for y in 0..header.height {
        let stored = if header.top_down { y } else { header.height - 1 - y };
        let at = start + stride * stored;
        let row = bytes.get(at..at + row).ok_or_else(truncated)?;
        unpack_row(row, &header, &layout, &mut pixels)?;
    }
    Ok(DecodedImage::new(header.width, header.height, pixels, permit))
}

fn truncated() -> DecodeError {
    DecodeError::Truncated("the BMP ends inside its image data".to_owned())
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, DecodeError> {
    let found = bytes.get(at..at + 2).ok_or_else(truncated)?;
    Ok(u16::from_le_bytes([found[0], found[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, DecodeError> {
    Ok(u32::from(u16_at(bytes, at)?) | u32::from(u16_at(bytes, at + 2)?) << 16)
}

fn read_header(bytes: &[u8]) -> Result<Header, DecodeError> {
    let length = u32_at(bytes, FILE_HEADER)?;
    let at = FILE_HEADER + 4;
    match length {
        12 => Ok(Header {
            width: usize::from(u16_at(bytes, at)?),
            height: usize::from(u16_at(bytes, at + 2)?),
            top_down: false,
            bits: u16_at(bytes, at + 6)?,
            compression: 0,
            colors: 0,
            entry: 3,
            end: FILE_HEADER + 12,
        }),
        40 | 52 | 56 | 64 | 108 | 124 => {
            let height = u32_at(bytes, at + 4)? as i32;
            Ok(Header {
                width: u32_at(bytes, at)? as usize,
                height: height.unsigned_abs() as usize,
                top_down: height < 0,
                bits: u16_at(bytes, at + 10)?,
                compression: u32_at(bytes, at + 12)?,
                colors: u32_at(bytes, at + 28)?,
                entry: 4,
                end: FILE_HEADER + length as usize,
            })
        }
        other => Err(DecodeError::Unsupported(format!("BMP with a header of {other} bytes"))),
    }
}

/// The layout of pixels, from the header and the palette or the masks.
fn layout(bytes: &[u8], header: &Header) -> Result<Layout, DecodeError> {
    match (header.compression, header.bits) {
        (0, 1 | 4 | 8) => palette(bytes, header).map(Layout::Palette),
        (0, 16) => Ok(Layout::Packed([(10, 31), (5, 31), (0, 31)])),
        (0, 24 | 32) => Ok(Layout::Bytes([2, 1, 0])),
        (3, 16 | 24 | 32) => masks(bytes, header),
        (1 | 2, _) => Err(DecodeError::Unsupported("BMP with run-length coding".to_owned())),
        (compression, bits) => {
            Err(DecodeError::Unsupported(format!("BMP with {bits} bits and compression {compression}")))
        }
    }
}

fn palette(bytes: &[u8], header: &Header) -> Result<Vec<[u8; 3]>, DecodeError> {
    let most = 1 << header.bits;
    let count = if header.colors == 0 { most } else { header.colors.min(most) } as usize;
    let stored = bytes.get(header.end..header.end + count * header.entry).ok_or_else(truncated)?;
    Ok(stored.chunks_exact(header.entry).map(|entry| [entry[2], entry[1], entry[0]]).collect())
}

/// The layout that the three masks after the header fields state.
fn masks(bytes: &[u8], header: &Header) -> Result<Layout, DecodeError> {
    let mut masks = [0; 3];
    for (i, mask) in masks.iter_mut().enumerate() {
        *mask = u32_at(bytes, FILE_HEADER + 40 + 4 * i)?;
    }
    let whole_byte = |mask: u32| (0..4).find(|&byte| mask == 0xff << (8 * byte));
    match (header.bits, masks, masks.map(whole_byte)) {
        (16, [0xf800, 0x7e0, 0x1f], _) => Ok(Layout::Packed([(11, 31), (5, 63), (0, 31)])),
        (16, [0x7c00, 0x3e0, 0x1f], _) => Ok(Layout::Packed([(10, 31), (5, 31), (0, 31)])),
        (24, _, [Some(2), Some(1), Some(0)]) | (32, [0, 0, 0], _) => Ok(Layout::Bytes([2, 1, 0])),
        (32, _, [Some(red), Some(green), Some(blue)]) => Ok(Layout::Bytes([red, green, blue])),
        _ => Err(DecodeError::Unsupported(format!("BMP with the masks {masks:08x?}"))),
    }
}

/// Offset of the pixels: the file header's, which some writers leave at the palette.
fn pixels_start(bytes: &[u8], header: &Header, layout: &Layout) -> Result<usize, DecodeError> {
    let start = u32_at(bytes, 10)? as usize;
    match layout {
        Layout::Palette(colors) if start == header.end => Ok(start + header.entry * colors.len()),
        _ => Ok(start),
    }
}

/// Appends one row as RGB.
fn unpack_row(row: &[u8], header: &Header, layout: &Layout, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    match layout {
        Layout::Palette(colors) => {
            let bits = usize::from(header.bits);
            for x in 0..header.width {
                let index = row[x * bits / 8] >> (8 - bits - x * bits % 8) & (0xff >> (8 - bits)) as u8;
                let color = colors
                    .get(usize::from(index))
                    .ok_or_else(|| DecodeError::Corrupt(format!("BMP: the palette has no entry {index}")))?;
                out.extend(color);
            }
        }
        Layout::Packed(fields) => {
            for pixel in row.as_chunks::<2>().0 {
                let value = u32::from(u16::from_le_bytes(*pixel));
                out.extend(fields.map(|(shift, largest)| ((value >> shift & largest) * 255 / largest) as u8));
            }
        }
        Layout::Bytes(places) => {
            let pixels = row.chunks_exact(usize::from(header.bits) / 8);
            out.extend(pixels.flat_map(|pixel| places.map(|place| pixel[place])));
        }
    }
    Ok(())
}
