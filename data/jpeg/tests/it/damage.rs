//! Damaged and hostile files: lost samples are errors, harmless oddities are not, and nothing crosses the
//! border but a result.

use std::fs;
use std::path::Path;

use swinq_jpeg::{JpegError, decode, read_header};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)).unwrap()
}

fn pixels(bytes: &[u8]) -> Result<Vec<u8>, JpegError> {
    decode(bytes, &read_header(bytes)?)
}

/// The file without its end marker.
fn open_ended(name: &str) -> Vec<u8> {
    let mut bytes = fixture(name);
    assert!(bytes.ends_with(&[0xff, 0xd9]));
    bytes.truncate(bytes.len() - 2);
    bytes
}

/// Offset of the last occurrence of `marker`.
fn last(bytes: &[u8], marker: [u8; 2]) -> usize {
    bytes.windows(2).rposition(|pair| pair == marker).unwrap()
}

#[test]
fn lost_samples_are_errors() {
    for name in ["rgb420.jpg", "rgb444.jpg", "grey.jpg", "cmyk.jpg", "restart.jpg"] {
        let mut short = open_ended(name);
        short.truncate(short.len() - 60);
        assert!(matches!(pixels(&short), Err(JpegError::Truncated(_))), "{name}");
        short.extend([0xff, 0xd9]);
        let error = pixels(&short).unwrap_err();
        assert!(
            matches!(&error, JpegError::Corrupt(text) if text.contains("premature end")),
            "{name}: {error}"
        );
    }
    let mut restart = fixture("restart.jpg");
    let at = last(&restart, [0xff, 0xd3]);
    restart[at + 1] = 0xd7;
    assert!(matches!(pixels(&restart), Err(JpegError::Corrupt(_))));
}

#[test]
fn bytes_between_segments_change_nothing() {
    let mut bytes = open_ended("rgb420.jpg");
    bytes.extend([1, 2, 3, 4, 5, 0xff, 0xd9, 6, 7]);
    assert_eq!(pixels(&bytes), pixels(&fixture("rgb420.jpg")));
}

#[test]
fn the_number_of_scans_is_limited() {
    let bytes = fixture("progressive.jpg");
    let start = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0;
    let end = start + 2 + bytes[start + 2..].windows(2).position(is_marker).unwrap();
    // The first scan may be repeated: it sets coefficients and refines none.
    for (count, accepted) in [(40, true), (120, false)] {
        let mut many = bytes[..end].to_vec();
        (0..count).for_each(|_| many.extend(&bytes[start..end]));
        many.extend(&bytes[end..]);
        match pixels(&many) {
            Ok(found) => assert!(accepted && Ok(found) == pixels(&bytes), "{count} scans"),
            Err(error) => assert!(!accepted && error.to_string().contains("100 scans"), "{count}: {error}"),
        }
    }
}

#[test]
fn a_header_of_another_file_is_refused() {
    let (small, large) = (fixture("rgb444.jpg"), fixture("rgb420.jpg"));
    for (bytes, header) in [(&small, read_header(&large)), (&large, read_header(&small))] {
        assert!(matches!(decode(bytes, &header.unwrap()), Err(JpegError::Corrupt(_))));
    }
}

#[test]
fn coding_that_is_not_supported_is_named() {
    let bytes = fixture("rgb444.jpg");
    let frame = last(&bytes, [0xff, 0xc0]);
    for (at, value, word) in [(1, 0xc3, "0xc3"), (4, 12, "precision 12"), (1, 0xc6, "0xc6")] {
        let mut changed = bytes.clone();
        changed[frame + at] = value;
        let error = read_header(&changed).unwrap_err();
        assert!(matches!(&error, JpegError::Unsupported(text) if text.contains(word)), "{error}");
    }
}

#[test]
fn memory_counts_coefficients_of_several_scans() {
    let memory = |name| {
        let header = read_header(&fixture(name)).unwrap();
        header.memory as f64 / (header.width * header.height) as f64
    };
    assert_eq!(memory("rgb444.jpg"), 3.0);
    assert_eq!(memory("cmyk.jpg"), 4.0);
    assert!(memory("progressive.jpg") > 3.0 + 2.0 * 1.5);
}
