//! Damaged, hostile and mutated image files give an error or a complete image, never a panic.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use swinq_data::{DecodeError, decode_image, image_size};
use swinq_model::Size;

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension != "tsv"));
    paths.sort();
    assert!(paths.len() > 70);
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// Offset of the width in a PNG file, after the signature and the first chunk's length and type.
const IHDR: usize = 16;

/// `png` with another size in its header, and the header's checksum corrected.
fn claim_png(png: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut bytes = png.to_vec();
    bytes[IHDR..IHDR + 4].copy_from_slice(&width.to_be_bytes());
    bytes[IHDR + 4..IHDR + 8].copy_from_slice(&height.to_be_bytes());
    let crc = crc32(&bytes[IHDR - 4..IHDR + 13]);
    bytes[IHDR + 13..IHDR + 17].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    })
}

#[test]
fn every_truncation_is_an_error() {
    for (name, bytes) in fixtures() {
        // A PNG decodes once its image data is complete, so a cut in the last checksums or in the end chunk
        // is no error. Nor is one in the padding of the last row of a BMP, or in the last bytes of compressed
        // data.
        let unused = match name.rsplit_once('.').unwrap().1 {
            "png" => 20,
            "bmp" => 3,
            _ => 0,
        };
        let end = bytes.len() - unused;
        for length in 0..end {
            assert!(decode_image(&bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
        }
        assert!(decode_image(&bytes).is_ok(), "{name}");
    }
}

#[test]
fn the_header_has_the_size_of_the_decoded_image() {
    for (name, bytes) in fixtures() {
        let image = decode_image(&bytes).unwrap();
        assert_eq!(image_size(&bytes), Ok(Size::new(image.height, image.width)), "{name}");
        for length in 0..bytes.len() {
            let size = image_size(&bytes[..length]);
            assert!(size.is_err() || size == image_size(&bytes), "{name} cut to {length}: {size:?}");
        }
    }
}

#[test]
fn headers_beyond_the_pixel_limit_are_refused() {
    let png = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rgb.png")).unwrap();
    for (width, height) in [(100_000, 100_000), (0x7fff_ffff, 0x7fff_ffff), (178_956_971, 1)] {
        let error = decode_image(&claim_png(&png, width, height)).unwrap_err();
        assert_eq!(image_size(&claim_png(&png, width, height)).unwrap_err(), error);
        assert!(matches!(error, DecodeError::TooLarge { .. }), "{width} x {height}: {error}");
    }
    assert!(matches!(decode_image(&claim_png(&png, 0, 5)), Err(DecodeError::Corrupt(_))));
    let mut jpeg = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rgb444.jpg")).unwrap();
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    for (side, problem) in [(65_500_u16, "more than the limit"), (65_535, "dimension is 65500")] {
        jpeg[frame + 5..frame + 7].copy_from_slice(&side.to_be_bytes());
        jpeg[frame + 7..frame + 9].copy_from_slice(&side.to_be_bytes());
        let error = decode_image(&jpeg).unwrap_err().to_string();
        assert!(error.contains(problem), "{side}: {error}");
    }
}

#[test]
fn parts_of_formats_that_are_not_decoded_are_named() {
    let changed = |name: &str, at: usize, value: u8| {
        let (_, mut bytes) = fixtures().into_iter().find(|(found, _)| found == name).unwrap();
        bytes[at] = value;
        decode_image(&bytes).unwrap_err()
    };
    // The compression of a BMP, a kind of Netpbm, and the coding of a JPEG.
    let jpeg = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rgb444.jpg")).unwrap();
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    for (error, word) in [
        (changed("kind_grey.bmp", 30, 1), "BMP with run-length coding"),
        (changed("kind_rgb.bmp", 28, 7), "BMP with 7 bits"),
        (changed("kind_rgb.ppm", 1, b'7'), "PAM"),
        (changed("rgb444.jpg", frame + 1, 0xc3), "SOF type 0xc3"),
    ] {
        let named = matches!(&error, DecodeError::Unsupported(what) if what.contains(word));
        assert!(named && error.to_string().contains("convert the image"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn mutations_decode_or_are_refused(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let fixtures = fixtures();
        let (_, bytes) = &fixtures[file.index(fixtures.len())];
        let mut bytes = bytes.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(image) = decode_image(&bytes) {
            prop_assert_eq!(image.pixels.len(), image.width * image.height * 3);
        }
    }

    #[test]
    fn any_bytes_after_a_magic_are_refused_or_decode(
        jpeg in any::<bool>(), tail in prop::collection::vec(any::<u8>(), 0..300)
    ) {
        let mut bytes = if jpeg { vec![0xff, 0xd8, 0xff] } else { b"\x89PNG\r\n\x1a\n".to_vec() };
        bytes.extend(tail);
        prop_assert!(decode_image(&bytes).is_err());
    }
}
