//! JPEG files to the RGB pixels of Pillow's `Image.open(...).convert("RGB")`.
//!
//! The decoder is libjpeg, as mozjpeg-sys builds it from source, with libjpeg-turbo's arithmetic: the
//! accurate integer IDCT ("islow"), and interpolated chroma ("fancy upsampling"). Its vector code and its C
//! code give the same pixels. `border.c` is the only code that calls it; this crate's only `unsafe` calls
//! that file's functions.

use std::ffi::{c_char, c_int};

// Links libjpeg.
use mozjpeg_sys as _;

/// The reason why a file cannot be decoded. The text is libjpeg's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JpegError {
    /// The file ends before its end marker.
    #[error("{0}")]
    Truncated(String),
    /// The file violates the format, or samples of the image are lost.
    #[error("{0}")]
    Corrupt(String),
    /// The file uses a part of the format that is not decoded: lossless or hierarchical coding, 12-bit
    /// samples, two components, more than 65,500 pixels on a side, or more than 100 scans.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The system has not enough memory.
    #[error("not enough memory: {0}")]
    Memory(String),
}

/// Facts of a file, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Width in pixels, 1 to 65,500.
    pub width: usize,
    /// Height in pixels, 1 to 65,500.
    pub height: usize,
    /// Bytes that decoding allocates, to within a few rows: the samples, and the coefficients of the whole
    /// image if the file has several scans (progressive files have).
    pub memory: u64,
    /// Channels of the decoded samples: 3 (RGB) or 4 (CMYK).
    channels: usize,
}

/// Length of libjpeg's messages, `JMSG_LENGTH_MAX`.
const MESSAGE_LENGTH: usize = 200;

/// `struct swinq_jpeg_input`
#[repr(C)]
struct Input {
    bytes: *const u8,
    length: usize,
}

/// `struct swinq_jpeg_header`
#[repr(C)]
#[derive(Default)]
struct RawHeader {
    width: u32,
    height: u32,
    channels: u32,
    coefficients: u64,
}

/// `struct swinq_jpeg_failure`
#[repr(C)]
struct Failure {
    message: [c_char; MESSAGE_LENGTH],
}

#[allow(unsafe_code)]
// SAFETY: these are the functions of border.c with their types.
unsafe extern "C" {
    fn swinq_jpeg_read_header(input: *const Input, header: *mut RawHeader, failure: *mut Failure) -> c_int;
    fn swinq_jpeg_decode(
        input: *const Input,
        samples: *mut u8,
        length: usize,
        failure: *mut Failure,
    ) -> c_int;
    fn swinq_jpeg_has_simd() -> c_int;
}

impl Input {
    fn new(bytes: &[u8]) -> Input {
        Input { bytes: bytes.as_ptr(), length: bytes.len() }
    }
}

impl Failure {
    fn new() -> Failure {
        Failure { message: [0; MESSAGE_LENGTH] }
    }

    /// The result of a call that returned `kind`, the number of a failure in border.c.
    fn result(&self, kind: c_int) -> Result<(), JpegError> {
        let text = self.message.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
        let text =
            String::from_utf8(text).unwrap_or_else(|_| "an error without a readable message".to_owned());
        match kind {
            0 => Ok(()),
            1 => Err(JpegError::Truncated(text)),
            3 => Err(JpegError::Unsupported(text)),
            4 => Err(JpegError::Memory(text)),
            _ => Err(JpegError::Corrupt(text)),
        }
    }
}

/// Reads the header of the file `bytes`, up to its first scan.
///
/// # Errors
/// [`JpegError`] if the bytes are no JPEG file that this crate decodes.
pub fn read_header(bytes: &[u8]) -> Result<Header, JpegError> {
    let (mut raw, mut failure) = (RawHeader::default(), Failure::new());
    // SAFETY: the three pointers are to live values of the C types, and `Input` describes `bytes`, which the
    // function only reads and does not keep.
    #[allow(unsafe_code)]
    let kind = unsafe { swinq_jpeg_read_header(&Input::new(bytes), &mut raw, &mut failure) };
    failure.result(kind)?;
    let (width, height, channels) = (raw.width as usize, raw.height as usize, raw.channels as usize);
    let samples = u64::from(raw.width) * u64::from(raw.height) * u64::from(raw.channels);
    Ok(Header { width, height, channels, memory: samples + raw.coefficients })
}

/// Decodes the file `bytes` to RGB: `header.height * header.width * 3` bytes, row-major.
///
/// Grey, YCbCr, RGB, CMYK and YCCK files decode, baseline, progressive or with arithmetic coding. The inks of
/// CMYK and YCCK are taken as inverted, as Adobe stores them. Orientation and colour profiles are not
/// applied.
///
/// # Errors
/// [`JpegError`]; also if samples are lost, where Pillow fills them in. A scan with arithmetic coding that is
/// too short cannot be told from one that ends in zeros, so it is no error. `header` must be the file's own.
pub fn decode(bytes: &[u8], header: &Header) -> Result<Vec<u8>, JpegError> {
    let size = header.width.checked_mul(header.height).and_then(|size| size.checked_mul(header.channels));
    let size = size.ok_or_else(|| JpegError::Memory("the image does not fit into memory".to_owned()))?;
    let (mut samples, mut failure) = (vec![0; size], Failure::new());
    // SAFETY: `samples` has the stated length, which border.c compares with the size that it decodes before
    // it writes. `Input` describes `bytes`, which the function only reads and does not keep.
    #[allow(unsafe_code)]
    let kind =
        unsafe { swinq_jpeg_decode(&Input::new(bytes), samples.as_mut_ptr(), samples.len(), &mut failure) };
    failure.result(kind)?;
    if header.channels == 4 {
        inks_to_rgb(&mut samples);
    }
    Ok(samples)
}

/// Whether the decoder of this build has vector code, and the processor runs it. It changes the speed only.
pub fn has_simd() -> bool {
    // SAFETY: the function takes no argument and only reads the processor's features.
    #[allow(unsafe_code)]
    let answer = unsafe { swinq_jpeg_has_simd() };
    answer != 0
}

/// Converts samples of four inks to RGB in place.
fn inks_to_rgb(samples: &mut Vec<u8>) {
    let pixels = samples.len() / 4;
    for pixel in 0..pixels {
        let stored = [0, 1, 2, 3].map(|ink| samples[4 * pixel + ink]);
        samples[3 * pixel..3 * pixel + 3].copy_from_slice(&ink_to_rgb(stored));
    }
    samples.truncate(3 * pixels);
}

/// Pillow's conversion of CMYK to RGB, from inks stored inverted as Adobe does (255 is no ink). With the inks
/// `c = 255 - stored` and `k = 255 - stored_black`, a channel is `(255 - k) - c * (255 - k) / 255`, where the
/// division rounds to the nearest integer.
pub fn ink_to_rgb([c, m, y, black]: [u8; 4]) -> [u8; 3] {
    let light = u32::from(black);
    [c, m, y].map(|ink| {
        let product = u32::from(255 - ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inks_become_pillows_rgb() {
        // Image.new("CMYK", (1, 1), ...).convert("RGB"), with the inks inverted as Adobe stores them.
        let pixels = [
            ([0, 0, 0, 0], [255, 255, 255]),
            ([255, 0, 0, 0], [0, 255, 255]),
            ([10, 100, 200, 50], [197, 125, 44]),
            ([1, 2, 3, 254], [1, 1, 1]),
            ([128, 128, 128, 128], [63, 63, 63]),
        ];
        let mut samples: Vec<u8> =
            pixels.iter().flat_map(|(cmyk, _)| cmyk.map(|ink: u8| 255 - ink)).collect();
        inks_to_rgb(&mut samples);
        assert_eq!(samples, pixels.map(|(_, rgb)| rgb).concat());
    }

    #[test]
    fn bytes_that_are_no_jpeg_are_refused() {
        for bytes in [&b""[..], b"\xff\xd8", b"hello", b"\xff\xd8\xff\xd9"] {
            assert!(read_header(bytes).is_err(), "{bytes:?}");
        }
    }
}
