//! Decoding of binary PGM and PPM files with samples of 8 bits.

use super::{DecodedImage, Dimensions, admit};
use crate::error::DecodeError;
use crate::turn::Turn;

/// The header of a binary PGM or PPM file.
struct Header {
    channels: usize,
    width: u64,
    height: u64,
    /// The largest sample.
    largest: u64,
    /// Offset of the byte behind the header's last number.
    end: usize,
}

fn read_header(bytes: &[u8]) -> Result<Header, DecodeError> {
    let channels = match bytes.get(1) {
        Some(b'5') => 1,
        Some(b'6') => 3,
        _ => return Err(DecodeError::Unsupported("PBM, PAM or text PGM/PPM".to_owned())),
    };
    let mut end = 2;
    let mut number = || next_number(bytes, &mut end);
    let (width, height, largest) = (number()?, number()?, number()?);
    Ok(Header { channels, width, height, largest, end })
}

/// Width and height in the header of a Netpbm file.
pub(super) fn dimensions(bytes: &[u8]) -> Result<Dimensions, DecodeError> {
    let header = read_header(bytes)?;
    Ok((header.width, header.height))
}

/// Decodes a Netpbm file.
pub(super) fn decode(bytes: &[u8], _turn: Turn) -> Result<DecodedImage, DecodeError> {
    let Header { channels, width, height, largest, end: at } = read_header(bytes)?;
    let permit = admit(width, height, 3)?;
    if largest != 255 {
        return Err(DecodeError::Unsupported(format!("PGM/PPM with samples up to {largest}")));
    }
    let (width, height) = (width as usize, height as usize);
    // One space separates the header from the samples.
    let samples = bytes.get(at + 1..at + 1 + width * height * channels).ok_or_else(truncated)?;
    let pixels = match channels {
        1 => samples.iter().flat_map(|&grey| [grey; 3]).collect(),
        _ => samples.to_vec(),
    };
    Ok(DecodedImage::new(width, height, pixels, permit))
}

fn truncated() -> DecodeError {
    DecodeError::Truncated("the PGM/PPM ends inside its header or image data".to_owned())
}

/// Reads a number of at most nine digits after spaces and comments, and moves `at` behind it.
fn next_number(bytes: &[u8], at: &mut usize) -> Result<u64, DecodeError> {
    loop {
        match bytes.get(*at).ok_or_else(truncated)? {
            b'#' => *at += bytes[*at..].iter().position(|&byte| byte == b'\n').ok_or_else(truncated)?,
            byte if byte.is_ascii_whitespace() => *at += 1,
            _ => break,
        }
    }
    let rest = &bytes[*at..];
    let length = rest.iter().position(|byte| !byte.is_ascii_digit()).ok_or_else(truncated)?;
    let number = std::str::from_utf8(&rest[..length.min(10)]).ok().and_then(|text| text.parse().ok());
    *at += length;
    number
        .filter(|_| length < 10)
        .ok_or_else(|| DecodeError::Corrupt("PGM/PPM: the header has no number where one belongs".to_owned()))
}
