//! Where EXIF and XMP lie in the files of each format.

use super::exif::{Metadata, of_tiff};
use super::png_text::Chunks;
use crate::turn::Turn;

/// The orientation that a file states, and whether all parts that may state one were among its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stated {
    pub turn: Turn,
    pub complete: bool,
}

impl Stated {
    /// That of a format without orientations.
    pub(super) fn nothing(_bytes: &[u8]) -> Stated {
        Stated { turn: Turn::NONE, complete: true }
    }

    fn new(metadata: &Metadata, complete: bool) -> Stated {
        Stated { turn: metadata.turn(), complete }
    }
}

/// The marker that precedes XMP in a segment of a JPEG file.
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// The orientation of a JPEG file: that of its segments APP1 before the scan. Several of EXIF are one, as in
/// Pillow.
pub(super) fn of_jpeg(bytes: &[u8]) -> Stated {
    let mut metadata = Metadata::default();
    let mut at = 2;
    loop {
        let Some((marker, start)) = next_marker(bytes, at) else { return Stated::new(&metadata, false) };
        at = match marker {
            0xd9 | 0xda => return Stated::new(&metadata, true),
            0x00 | 0x01 | 0xd0..=0xd8 => start,
            _ => match segment(bytes, start) {
                None => return Stated::new(&metadata, false),
                Some(segment) => {
                    if marker == 0xe1 {
                        add_segment(&mut metadata, segment);
                    }
                    start + 2 + segment.len()
                }
            },
        };
    }
}

/// The first marker from the offset `at` on, and the offset behind it. Bytes before markers are skipped.
fn next_marker(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let first = at + bytes.get(at..)?.iter().position(|&byte| byte == 0xff)?;
    let length = bytes[first..].iter().position(|&byte| byte != 0xff)?;
    Some((bytes[first + length], first + length + 1))
}

/// The content of the segment whose length is at `at`.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let length = bytes.get(at..at + 2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])))?;
    bytes.get(at + 2..at + length)
}

fn add_segment(metadata: &mut Metadata, segment: &[u8]) {
    if let Some(exif) = segment.strip_prefix(b"Exif\0\0") {
        match &mut metadata.exif {
            Some(known) => known.extend(exif),
            None => metadata.exif = Some(exif.to_vec()),
        }
    } else if let Some(xmp) = segment.strip_prefix(XMP) {
        metadata.xmp = Some(xmp.to_vec());
    }
}

/// The orientation of a PNG file. The chunks that state it may follow the pixels.
pub(super) fn of_png(bytes: &[u8]) -> Stated {
    let (mut chunks, mut at) = (Chunks::default(), 8);
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let kind = bytes.get(at + 4..at + 8);
        let content = bytes.get(at + 8..(at + 8).saturating_add(length));
        match (kind, content) {
            (Some(b"IEND"), _) => return Stated::new(&chunks.metadata(), true),
            (Some(kind), Some(content)) => chunks.add(kind, content),
            (_, None) | (None, _) => break,
        }
        at += 12 + length;
    }
    Stated::new(&chunks.metadata(), false)
}

/// The orientation of a WebP file: that of its first chunk `EXIF`, else `XMP `, if the extended header states
/// such chunks.
pub(super) fn of_webp(bytes: &[u8]) -> Stated {
    /// Flags of the extended header.
    const EXIF: u8 = 8;
    const XMP: u8 = 4;
    if bytes.get(12..16).is_some_and(|kind| kind != b"VP8X") {
        return Stated::nothing(bytes);
    }
    let Some(flags) = bytes.get(20) else { return Stated { turn: Turn::NONE, complete: false } };
    let (mut metadata, mut at) = (Metadata::default(), 12);
    while let Some(header) = bytes.get(at..at + 8) {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let Some(content) = bytes.get(at + 8..(at + 8).saturating_add(length)) else { break };
        match &header[..4] {
            b"EXIF" if flags & EXIF != 0 => {
                metadata.exif.get_or_insert_with(|| content.to_vec());
            }
            b"XMP " if flags & XMP != 0 => {
                metadata.xmp.get_or_insert_with(|| content.to_vec());
            }
            _ => {}
        }
        at += 8 + length.next_multiple_of(2);
    }
    let stated = (flags & EXIF != 0, flags & XMP != 0);
    let complete = (!stated.0 || metadata.exif.is_some()) && (!stated.1 || metadata.xmp.is_some());
    Stated::new(&metadata, complete)
}

/// The orientation of a TIFF file, whose directory also has the size.
pub(super) fn of_tiff_file(bytes: &[u8]) -> Stated {
    Stated { turn: of_tiff(bytes), complete: true }
}
