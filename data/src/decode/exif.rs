//! The orientation that EXIF states, read as Pillow reads it: damage is ignored, and entries before it count.

use crate::turn::Turn;

/// The marker that precedes EXIF in JPEG files, and in those of some writers elsewhere.
const EXIF: &[u8] = b"Exif\0\0";
/// The tag Orientation.
const ORIENTATION: u16 = 274;
/// The tag of XMP.
const XMP: u16 = 700;
/// The name of the same value in XMP.
const XMP_NAME: &[u8] = b"tiff:Orientation";

/// The parts of a file that may state an orientation.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    /// EXIF, with or without its marker.
    pub exif: Option<Vec<u8>>,
    /// XMP, which counts where EXIF has no orientation.
    pub xmp: Option<Vec<u8>>,
}

impl Metadata {
    /// The turn that the file states. Damaged EXIF turns nothing.
    pub(super) fn turn(&self) -> Turn {
        let stated = match &self.exif {
            None => Stated::Nothing,
            Some(exif) => of_exif(exif),
        };
        match (stated, &self.xmp) {
            (Stated::Value(value), _) => Turn::of(value),
            (Stated::Nothing, Some(xmp)) => of_xmp(xmp).map_or(Turn::NONE, Turn::of),
            (Stated::Nothing | Stated::Damage, _) => Turn::NONE,
        }
    }
}

/// The result of reading a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stated {
    /// The value of the tag; one that is no number is 0.
    Value(u64),
    /// The tag is absent.
    Nothing,
    /// The header is no header of TIFF.
    Damage,
}

/// The orientation of a TIFF file, from its first directory: that of the tag, else of XMP.
pub(super) fn of_tiff(bytes: &[u8]) -> Turn {
    match of_directory(bytes) {
        Stated::Value(value) => Turn::of(value),
        Stated::Nothing => xmp_of_tiff(bytes).and_then(of_xmp).map_or(Turn::NONE, Turn::of),
        Stated::Damage => Turn::NONE,
    }
}

/// The XMP in the first directory of a TIFF file, if its type is that of bytes.
fn xmp_of_tiff(bytes: &[u8]) -> Option<&[u8]> {
    let (numbers, start) = header(bytes)?;
    let found = entry_in(&numbers, start, XMP)??;
    matches!(found.kind, 1 | 7).then(|| &bytes[found.place..found.place + found.size])
}

fn of_exif(exif: &[u8]) -> Stated {
    let strip = |bytes: &[u8]| bytes.strip_prefix(EXIF).map(<[u8]>::to_vec);
    let once = strip(exif).unwrap_or_else(|| exif.to_vec());
    let bytes = strip(&once).unwrap_or(once);
    if bytes.is_empty() { Stated::Nothing } else { of_directory(&bytes) }
}

/// Numbers in the byte order of a TIFF header.
struct Numbers<'a> {
    bytes: &'a [u8],
    little_endian: bool,
}

impl Numbers<'_> {
    /// The number of `length` bytes, at most 8, at the offset `at`; `None` beyond the end.
    fn at(&self, at: usize, length: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(length)?)?;
        let add = |number: u64, &byte: &u8| number << 8 | u64::from(byte);
        Some(if self.little_endian { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    }
}

/// Bytes of an element of a type of TIFF; `None` for a type that Pillow does not know.
fn element(kind: u64) -> Option<u64> {
    Some(match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 => 8,
        _ => return None,
    })
}

/// Whether the elements of a type are whole numbers.
fn is_whole(kind: u64) -> bool {
    matches!(kind, 3 | 4 | 6 | 8 | 9 | 13 | 16)
}

/// An entry of a directory, whose value is `size` bytes at `place`.
struct Entry {
    kind: u64,
    place: usize,
    size: usize,
}

/// The numbers of `bytes`, which start with the header of a TIFF file, and the offset of the first directory.
fn header(bytes: &[u8]) -> Option<(Numbers<'_>, usize)> {
    let little_endian = match bytes.get(..4)? {
        b"II*\0" | b"II\0*" => true,
        b"MM\0*" | b"MM*\0" => false,
        _ => return None,
    };
    let numbers = Numbers { bytes, little_endian };
    let start = numbers.at(4, 4)? as usize;
    Some((numbers, start))
}

/// The orientation in the first directory of `bytes`, which start with the header of a TIFF file.
fn of_directory(bytes: &[u8]) -> Stated {
    let Some((numbers, start)) = header(bytes) else { return Stated::Damage };
    let Some(Some(Entry { kind, place, .. })) = entry_in(&numbers, start, ORIENTATION) else {
        return Stated::Nothing;
    };
    let value = element(kind).and_then(|size| numbers.at(place, size as usize));
    value.map_or(Stated::Nothing, |value| Stated::Value(if is_whole(kind) { value } else { 0 }))
}

/// The first entry of `wanted` in the directory at `start` that has a value; `None` if the directory ends, or
/// a value lies beyond the end, before the tag comes.
fn entry_in(numbers: &Numbers<'_>, start: usize, wanted: u16) -> Option<Option<Entry>> {
    let (count, limit) = (numbers.at(start, 2)?, numbers.bytes.len() as u64);
    let mut total = 0;
    for entry in 0..count as usize {
        let at = start + 2 + 12 * entry;
        let (tag, kind, length) = (numbers.at(at, 2)?, numbers.at(at + 2, 2)?, numbers.at(at + 4, 4)?);
        let inline = numbers.at(at + 8, 4)?;
        let Some(size) = element(kind).map(|element| element * length) else { continue };
        let mut place = at + 8;
        if size > 4 {
            total += size;
            // Pillow skips such an entry, and ends at one that only lies beyond the end.
            if total > limit {
                continue;
            }
            place = inline as usize;
            numbers.bytes.get(place..place.checked_add(size as usize)?)?;
        }
        if tag == u64::from(wanted) && size > 0 {
            return Some(Some(Entry { kind, place, size: size as usize }));
        }
    }
    Some(None)
}

/// The digit after the first `tiff:Orientation="` or `tiff:Orientation>`.
fn of_xmp(xmp: &[u8]) -> Option<u64> {
    let digit = |rest: &[u8]| {
        let rest = rest.strip_prefix(XMP_NAME)?;
        let rest = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?;
        rest.first().filter(|byte| byte.is_ascii_digit()).map(|byte| u64::from(byte - b'0'))
    };
    (0..xmp.len()).filter(|&at| xmp[at] == XMP_NAME[0]).find_map(|at| digit(&xmp[at..]))
}
