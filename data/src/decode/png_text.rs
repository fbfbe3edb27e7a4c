//! The parts of a PNG file that may state an orientation: EXIF in a chunk of its own or as text, and XMP as
//! text. Pillow reads them so.

use std::io::{ErrorKind, Read};

use flate2::read::ZlibDecoder;

use super::exif::Metadata;

/// The keyword of EXIF in hexadecimal digits, as ImageMagick writes it.
const PROFILE: &[u8] = b"Raw profile type exif";
/// The keyword of XMP.
const XMP: &[u8] = b"XML:com.adobe.xmp";
/// The most bytes of a text; Pillow refuses files with more.
const MOST: u64 = 1 << 20;

/// The chunks of a file that may state an orientation; of several the last counts.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    exif: Option<Vec<u8>>,
    /// A text with EXIF in hexadecimal digits.
    profile: Option<Vec<u8>>,
    /// XMP that is text, and the bytes of an international text, which may be none.
    xmp: Option<Vec<u8>>,
    xmp_bytes: Option<Vec<u8>>,
}

impl Chunks {
    /// Adds a chunk.
    pub(super) fn add(&mut self, kind: &[u8], content: &[u8]) {
        match kind {
            b"eXIf" => self.exif = Some(content.to_vec()),
            b"tEXt" => {
                let (keyword, text) = keyword(content);
                self.add_text(keyword, text.to_vec());
                if keyword == b"exif" {
                    self.exif = Some(text.to_vec());
                }
            }
            b"zTXt" => {
                let (keyword, rest) = keyword(content);
                // The first byte names the compression, and 0 is the only one.
                let text = match rest {
                    [] => Some(Vec::new()),
                    [0, rest @ ..] => inflated(rest).map(Option::unwrap_or_default),
                    _ => None,
                };
                if let Some(text) = text {
                    self.add_text(keyword, text);
                }
            }
            b"iTXt" => self.add_international(content),
            _ => {}
        }
    }

    fn add_text(&mut self, keyword: &[u8], text: Vec<u8>) {
        match keyword {
            PROFILE => self.profile = Some(text),
            XMP => self.xmp = Some(text),
            _ => {}
        }
    }

    /// A chunk iTXt: keyword, whether it is compressed and how, language, translated keyword, text.
    fn add_international(&mut self, content: &[u8]) {
        let (keyword, rest) = keyword(content);
        let [compressed, method, rest @ ..] = rest else { return };
        let mut parts = rest.splitn(3, |&byte| byte == 0);
        let (Some(language), Some(translated), Some(text)) = (parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        let text = match (compressed, method) {
            (0, _) => Some(text.to_vec()),
            (_, 0) => inflated(text).flatten(),
            _ => None,
        };
        let Some(text) = text else { return };
        if keyword == XMP {
            self.xmp_bytes = Some(text.clone());
        }
        if [language, translated, &text[..]].iter().all(|part| std::str::from_utf8(part).is_ok()) {
            self.add_text(keyword, text);
        }
    }

    /// The parts that may state the orientation.
    pub(super) fn metadata(self) -> Metadata {
        // A text that is no profile is damaged EXIF: it is no directory of TIFF either.
        let profile = self.profile.map(|text| of_digits(&text).unwrap_or(text));
        let xmp = self.xmp.filter(|text| !text.is_empty()).or(self.xmp_bytes);
        Metadata { exif: self.exif.or(profile), xmp }
    }
}

/// The keyword of a text, and the rest behind its end.
fn keyword(content: &[u8]) -> (&[u8], &[u8]) {
    match content.iter().position(|&byte| byte == 0) {
        Some(end) => (&content[..end], &content[end + 1..]),
        None => (content, &[]),
    }
}

/// The bytes of a zlib stream, as far as they go; `None` inside for a damaged stream, and outside for more
/// than a text may have.
fn inflated(stream: &[u8]) -> Option<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match ZlibDecoder::new(stream).take(MOST + 1).read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Some(None),
        _ if bytes.len() as u64 > MOST => None,
        _ => Some(Some(bytes)),
    }
}

/// The bytes of a profile: hexadecimal digits from its fourth line on; `None` for other text.
fn of_digits(text: &[u8]) -> Option<Vec<u8>> {
    let mut digits = text.splitn(4, |&byte| byte == b'\n').nth(3).unwrap_or_default().iter();
    let mut bytes = Vec::new();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    while let Some(&first) = digits.next() {
        // The lines that follow are one, and other space may stand between bytes.
        if matches!(first, b' ' | b'\t'..=b'\r') {
            continue;
        }
        let second = digits.find(|&&byte| byte != b'\n')?;
        bytes.push(16 * digit(first)? + digit(*second)?);
    }
    Some(bytes)
}
