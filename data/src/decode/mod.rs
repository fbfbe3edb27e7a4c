//! Decoding of image files to RGB pixels, as Pillow's `Image.open(...).convert("RGB")` does it.
//!
//! The first bytes decide the format, not the file's name. Whether an image is turned as EXIF states is a
//! rule of the caller ([`Orientation`]); colour profiles are not applied. Detected damage is an error: an
//! incomplete image is never returned.

mod bmp;
mod budget;
mod exif;
mod jpeg;
mod metadata;
mod netpbm;
mod png;
mod png_text;
mod tiff;
mod webp;

use swinq_model::{Orientation, Size};

use crate::error::DecodeError;
use crate::turn::Turn;
pub(crate) use budget::Permit;
use metadata::Stated;

pub use budget::set_decode_memory;

/// Maximum number of pixels of an image: the limit above which Pillow refuses a "decompression bomb".
pub const MAX_PIXELS: u64 = 178_956_970;

/// A decoded image: 8-bit RGB, `[height, width, 3]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub pixels: Vec<u8>,
}

impl RgbImage {
    /// Makes an image of row-major RGB pixels.
    ///
    /// # Panics
    /// If `pixels` does not hold `width * height * 3` bytes.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> RgbImage {
        assert_eq!(pixels.len(), width * height * 3, "{width} x {height} RGB pixels");
        RgbImage { width, height, pixels }
    }
}

/// Format of an image file, detected by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg,
    Png,
    WebP,
    Bmp,
    Tiff,
    Netpbm,
    /// A format that this crate does not decode, by name.
    Other(&'static str),
}

/// Detects the format of an image file by its first bytes; `None` if they are of no known format.
pub(crate) fn sniff(bytes: &[u8]) -> Option<Format> {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let format = match () {
        () if starts(&[0xff, 0xd8, 0xff]) => Format::Jpeg,
        () if starts(b"\x89PNG\r\n\x1a\n") => Format::Png,
        () if starts(b"GIF87a") || starts(b"GIF89a") => Format::Other("GIF"),
        () if starts(b"RIFF") && at(8, b"WEBP") => Format::WebP,
        () if starts(b"II*\0") || starts(b"MM\0*") => Format::Tiff,
        () if starts(b"\0\0\0\x0cjP  ") || starts(b"\xff\x4f\xff\x51") => Format::Other("JPEG 2000"),
        () if starts(b"\xff\x0a") || starts(b"\0\0\0\x0cJXL ") => Format::Other("JPEG XL"),
        () if at(4, b"ftypavif") || at(4, b"ftypavis") => Format::Other("AVIF"),
        () if at(4, b"ftyphei") || at(4, b"ftypmif1") => Format::Other("HEIF"),
        () if starts(b"BM") && at(6, &[0; 4]) => Format::Bmp,
        () if is_netpbm(bytes) => Format::Netpbm,
        () => return None,
    };
    Some(format)
}

fn is_netpbm(bytes: &[u8]) -> bool {
    matches!(bytes, [b'P', b'1'..=b'7', space, ..] if space.is_ascii_whitespace())
}

/// Decodes an image file of one of these formats. Pixels equal Pillow's, byte for byte.
///
/// JPEG: grey, YCbCr, RGB, CMYK and YCCK (the last two with Adobe's inverted inks), baseline, progressive or
/// with arithmetic coding. PNG: every colour type and depth, interlaced or not; alpha and `tRNS` are dropped;
/// 16-bit grey saturates at 255 and other 16-bit samples keep their high byte, as in Pillow.
///
/// WebP: still images, lossy or lossless; alpha is dropped. BMP: palette, 16, 24 and 32 bits, without
/// run-length coding. TIFF: the first image; bilevel, grey, RGB (8 or 16 bits, with or without alpha) and
/// CMYK, uncompressed or with PackBits, LZW or Deflate. PGM and PPM: binary, 8 bits.
///
/// # Errors
/// - [`DecodeError::Unsupported`] for a known format that is not decoded, [`DecodeError::Unknown`] for an
///   unknown one.
/// - [`DecodeError::TooLarge`] if the header claims more than [`MAX_PIXELS`].
/// - [`DecodeError::Truncated`] and [`DecodeError::Corrupt`] for damaged data. A JPEG without an end marker
///   counts as truncated even if all its pixels are there.
///
/// A JPEG whose scan is too short is an error, where Pillow fills in the rest, except with arithmetic coding:
/// there it cannot be told from a scan that ends in zeros.
///
/// The call waits while other calls use the process's [memory for decoding](set_decode_memory).
///
/// The image stays as it is stored, except that TIFF is turned as its tag Orientation says, as by Pillow.
/// [`decode_oriented`] turns the others.
pub fn decode_image(bytes: &[u8]) -> Result<RgbImage, DecodeError> {
    decode_oriented(bytes, Orientation::Stored)
}

/// [`decode_image`], turned by the rule `orientation`. The orientation is that of EXIF in JPEG, PNG (chunk
/// eXIf) and WebP, else of XMP that is not compressed there. Damaged EXIF turns nothing. Pixels equal those
/// of Pillow's `ImageOps.exif_transpose`.
///
/// # Errors
/// Those of [`decode_image`].
pub fn decode_oriented(bytes: &[u8], orientation: Orientation) -> Result<RgbImage, DecodeError> {
    decode_held(bytes, orientation).map(|held| held.image)
}

/// A decoded image with its share of the memory for decoding. Whoever holds it must not decode another image.
#[derive(Debug)]
pub(crate) struct DecodedImage {
    pub(crate) image: RgbImage,
    pub(crate) permit: Permit,
    /// Whether the image was turned.
    pub(crate) turned: bool,
}

impl DecodedImage {
    fn new(width: usize, height: usize, pixels: Vec<u8>, permit: Permit) -> DecodedImage {
        DecodedImage { image: RgbImage { width, height, pixels }, permit, turned: false }
    }
}

/// [`decode_oriented`], with the share of memory kept until the image has been used.
pub(crate) fn decode_held(bytes: &[u8], orientation: Orientation) -> Result<DecodedImage, DecodeError> {
    let codec = codec(bytes)?;
    let turn = codec.stated(bytes, orientation).turn;
    let DecodedImage { image, permit, .. } = (codec.decode)(bytes, turn)?;
    Ok(DecodedImage { image: turn.apply(image), permit, turned: !turn.is_none() })
}

/// The size of the image in a file, from its header: that of [`decode_image`]'s result, if the rest of the
/// file is not damaged. The first bytes of a file are enough for most formats; where they end too early, the
/// result is an error.
///
/// # Errors
/// Those of [`decode_image`] that follow from the header.
pub fn image_size(bytes: &[u8]) -> Result<Size, DecodeError> {
    oriented_size(bytes, Orientation::Stored)
}

/// The size of [`decode_oriented`]'s result, from the headers in a whole file.
///
/// # Errors
/// Those of [`decode_image`] that follow from the headers.
pub fn oriented_size(bytes: &[u8], orientation: Orientation) -> Result<Size, DecodeError> {
    let codec = codec(bytes)?;
    codec.size(bytes, codec.stated(bytes, orientation).turn)
}

/// [`oriented_size`] from the first bytes of a file; `None` if they do not tell it.
pub(crate) fn size_of_start(bytes: &[u8], orientation: Orientation) -> Option<Size> {
    let codec = codec(bytes).ok()?;
    let stated = codec.stated(bytes, orientation);
    codec.size(bytes, stated.turn).ok().filter(|_| stated.complete)
}

/// Width and height of an image, as its header claims them.
type Dimensions = (u64, u64);

/// The functions of a format.
struct Codec {
    dimensions: fn(&[u8]) -> Result<Dimensions, DecodeError>,
    /// Decodes the stored image, and admits the memory that a turn of it needs.
    decode: fn(&[u8], Turn) -> Result<DecodedImage, DecodeError>,
    /// The orientation in a file.
    orientation: fn(&[u8]) -> Stated,
    /// Whether Pillow's decoder turns the image, so that every library does.
    always_turns: bool,
}

impl Codec {
    /// The turn of a file under the rule `orientation`.
    fn stated(&self, bytes: &[u8], orientation: Orientation) -> Stated {
        match self.always_turns || orientation == Orientation::Exif {
            true => (self.orientation)(bytes),
            false => Stated::nothing(bytes),
        }
    }

    /// The size of the image after `turn`.
    fn size(&self, bytes: &[u8], turn: Turn) -> Result<Size, DecodeError> {
        let (width, height) = (self.dimensions)(bytes)?;
        check_size(width, height)?;
        Ok(turn.size(Size::new(height as usize, width as usize)))
    }
}

/// The functions for the format of a file.
fn codec(bytes: &[u8]) -> Result<Codec, DecodeError> {
    let codec = |dimensions: fn(&[u8]) -> Result<Dimensions, DecodeError>,
                 decode: fn(&[u8], Turn) -> Result<DecodedImage, DecodeError>,
                 orientation: fn(&[u8]) -> Stated| {
        Codec { dimensions, decode, orientation, always_turns: false }
    };
    Ok(match sniff(bytes) {
        Some(Format::Jpeg) => codec(jpeg::dimensions, jpeg::decode, metadata::of_jpeg),
        Some(Format::Png) => codec(png::dimensions, png::decode, metadata::of_png),
        Some(Format::WebP) => codec(webp::dimensions, webp::decode, metadata::of_webp),
        Some(Format::Bmp) => codec(bmp::dimensions, bmp::decode, Stated::nothing),
        Some(Format::Tiff) => {
            Codec { always_turns: true, ..codec(tiff::dimensions, tiff::decode, metadata::of_tiff_file) }
        }
        Some(Format::Netpbm) => codec(netpbm::dimensions, netpbm::decode, Stated::nothing),
        Some(Format::Other(name)) => return Err(DecodeError::Unsupported(name.to_owned())),
        None => return Err(unknown(bytes)),
    })
}

/// The error for bytes of no known format.
fn unknown(bytes: &[u8]) -> DecodeError {
    if bytes.is_empty() {
        return DecodeError::Unknown("the file is empty".to_owned());
    }
    let head: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    DecodeError::Unknown(format!("it starts with bytes {}", head.join(" ")))
}

/// Leaves out the fourth of every four bytes.
fn drop_every_fourth(samples: &mut Vec<u8>) {
    let pixels = samples.len() / 4;
    for pixel in 0..pixels {
        samples.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    samples.truncate(3 * pixels);
}

/// Refuses an image without pixels or with too many, and waits for `bytes_per_pixel` of memory for each
/// pixel, before any is allocated.
fn admit(width: u64, height: u64, bytes_per_pixel: u64) -> Result<Permit, DecodeError> {
    check_size(width, height)?;
    Ok(budget::acquire(width * height * bytes_per_pixel))
}

/// Refuses an image without pixels or with too many.
fn check_size(width: u64, height: u64) -> Result<(), DecodeError> {
    if width == 0 || height == 0 {
        return Err(DecodeError::Corrupt(format!("the header claims {width} x {height} pixels")));
    }
    if width.saturating_mul(height) > MAX_PIXELS {
        return Err(DecodeError::TooLarge { width, height, limit: MAX_PIXELS });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_are_named() {
        let samples: [(&[u8], &str); 5] = [
            (b"GIF89a\x01\0", "GIF"),
            (b"P3\n1 1\n255\n1 2 3", "PPM"),
            (b"\0\0\0\x20ftypavif", "AVIF"),
            (b"\0\0\0\x20ftypheic", "HEIF"),
            (b"\xff\x0a\0\0", "JPEG XL"),
        ];
        for (bytes, name) in samples {
            let message = decode_image(bytes).unwrap_err().to_string();
            assert!(message.contains("format not supported") && message.contains(name), "{message}");
        }
    }

    #[test]
    fn bytes_that_are_no_image_are_refused() {
        assert!(decode_image(b"").unwrap_err().to_string().contains("empty"));
        assert!(decode_image(b"hello").unwrap_err().to_string().contains("68 65 6c 6c 6f"));
        assert!(matches!(decode_image(b"P"), Err(DecodeError::Unknown(_))));
    }

    #[test]
    fn the_pixel_limit_equals_pillows() {
        assert!(check_size(178_956_970, 1).is_ok());
        assert!(matches!(check_size(178_956_971, 1), Err(DecodeError::TooLarge { .. })));
        assert!(matches!(check_size(u64::MAX, 2), Err(DecodeError::TooLarge { .. })));
        assert!(matches!(check_size(0, 5), Err(DecodeError::Corrupt(_))));
    }
}
