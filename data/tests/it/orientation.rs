//! The orientation that files state, in every format that may state one, and the order of channels.

use std::io::Write;

use crate::common::{fixture, put};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use swinq_data::{
    Augment, Dataset, Loader, LoaderOptions, OfOneSize, Padding, RgbImage, SizedLoader, Sizing, Split,
    TrainLoader, TrainOptions, decode_image, decode_oriented, oriented_size, preprocess,
};
use swinq_model::{BatchSource, ChannelOrder, Orientation, Resize, Size, Transform};

/// `image` with the pixel at (x, y) that `from` names, of the size `(width, height)`.
fn moved(
    image: &RgbImage,
    (width, height): (usize, usize),
    from: impl Fn(usize, usize) -> (usize, usize),
) -> RgbImage {
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let (column, row) = from(x, y);
            pixels.extend(&image.pixels[3 * (row * image.width + column)..][..3]);
        }
    }
    RgbImage::new(width, height, pixels)
}

fn mirrored(image: &RgbImage) -> RgbImage {
    moved(image, (image.width, image.height), |x, y| (image.width - 1 - x, y))
}

fn upside_down(image: &RgbImage) -> RgbImage {
    moved(image, (image.width, image.height), |x, y| (x, image.height - 1 - y))
}

fn transposed(image: &RgbImage) -> RgbImage {
    moved(image, (image.height, image.width), |x, y| (y, x))
}

/// The turn of a value, made of two mirrors and a transposition as TIFF defines the values.
fn expected(stored: &RgbImage, value: u16) -> RgbImage {
    match value {
        2 => mirrored(stored),
        3 => mirrored(&upside_down(stored)),
        4 => upside_down(stored),
        5 => transposed(stored),
        6 => mirrored(&transposed(stored)),
        7 => mirrored(&upside_down(&transposed(stored))),
        8 => upside_down(&transposed(stored)),
        _ => stored.clone(),
    }
}

/// A directory of TIFF with these entries: tag, type, count, value in place.
fn directory(little_endian: bool, entries: &[(u16, u16, u32, u32)]) -> Vec<u8> {
    let short = |value: u16| if little_endian { value.to_le_bytes() } else { value.to_be_bytes() };
    let long = |value: u32| if little_endian { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut bytes = if little_endian { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
    bytes.extend(long(8));
    bytes.extend(short(entries.len() as u16));
    for &(tag, kind, count, value) in entries {
        bytes.extend([short(tag), short(kind)].concat());
        bytes.extend(long(count));
        // A short value stands in the first two of the four bytes.
        match kind {
            3 if count == 1 => bytes.extend([short(value as u16), [0; 2]].concat()),
            _ => bytes.extend(long(value)),
        }
    }
    bytes.extend([0; 4]);
    bytes
}

fn exif(value: u16) -> Vec<u8> {
    directory(value.is_multiple_of(2), &[(271, 2, 4, 0), (274, 3, 1, u32::from(value))])
}

/// `jpeg` with a segment APP1 behind its start.
fn with_app1(jpeg: &[u8], marker: &[u8], content: &[u8]) -> Vec<u8> {
    let length = (2 + marker.len() + content.len()) as u16;
    [&jpeg[..2], &[0xff, 0xe1], &length.to_be_bytes(), marker, content, &jpeg[2..]].concat()
}

fn jpeg_with(exif: &[u8]) -> Vec<u8> {
    with_app1(&fixture("kind_420.jpg"), b"Exif\0\0", exif)
}

/// A chunk of PNG. Pillow and the decoder check its sum.
fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let body = [&kind[..], content].concat();
    let crc = !body.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    });
    [&(content.len() as u32).to_be_bytes()[..], &body, &crc.to_be_bytes()].concat()
}

/// `rgb.png` with `chunks` behind its header, or before its end.
fn png_with(chunks: &[Vec<u8>], at_end: bool) -> Vec<u8> {
    let png = fixture("rgb.png");
    let at = if at_end { png.len() - 12 } else { 33 };
    [&png[..at], &chunks.concat(), &png[at..]].concat()
}

/// A WebP file in the extended format with the image of `name`, and with `kind` behind it.
fn webp_with(name: &str, kind: &[u8; 4], flag: u8, content: &[u8]) -> Vec<u8> {
    let webp = fixture(name);
    let Size { height, width } = oriented_size(&webp, Orientation::Stored).unwrap();
    let side = |side: usize| ((side - 1) as u32).to_le_bytes();
    let part = |kind: &[u8], content: &[u8]| {
        let padding = vec![0; content.len() % 2];
        [kind, &(content.len() as u32).to_le_bytes(), content, &padding].concat()
    };
    let header = [&[flag, 0, 0, 0][..], &side(width)[..3], &side(height)[..3]].concat();
    let body = [b"WEBP", &part(b"VP8X", &header)[..], &webp[12..], &part(kind, content)].concat();
    part(b"RIFF", &body)
}

/// A TIFF file of 3 x 2 pixels.
fn tiff_with(value: u16) -> Vec<u8> {
    let (width, height) = (3, 2);
    let ifd = 8 + 2 + 12 * 10 + 4;
    let bits = [8_u16; 3].map(u16::to_le_bytes).concat();
    let entries = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, 3, ifd),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, ifd + 6),
        (274, 3, 1, u32::from(value)),
        (277, 3, 1, 3),
        (278, 3, 1, height),
        (279, 4, 1, 3 * width * height),
    ];
    let pixels: Vec<u8> = (0..18).map(|value| 10 * value).collect();
    [directory(true, &entries), bits, pixels].concat()
}

/// Checks that a file is turned by its value under the rule `exif`, and not under `stored` unless `always`.
fn check(what: &str, file: impl Fn(u16) -> Vec<u8>, always: bool) {
    let stored = decode_image(&file(1)).unwrap();
    assert_ne!(stored.width, stored.height, "{what}: a square tells less");
    for value in 1..=8 {
        let bytes = file(value);
        let turned = decode_oriented(&bytes, Orientation::Exif).unwrap();
        assert!(turned == expected(&stored, value), "{what} {value}");
        let size = oriented_size(&bytes, Orientation::Exif).unwrap();
        assert_eq!(size, Size::new(turned.height, turned.width), "{what} {value}");
        let kept = decode_oriented(&bytes, Orientation::Stored).unwrap();
        assert!(kept == if always { turned } else { stored.clone() }, "{what} {value}");
    }
}

#[test]
fn all_eight_orientations_turn_every_format() {
    check("JPEG", |value| jpeg_with(&exif(value)), false);
    check(
        "JPEG of EXIF in two segments",
        |value| {
            // The second is put in first, because each segment is put before the others.
            let exif = exif(value);
            let (first, second) = exif.split_at(20);
            with_app1(&jpeg_with(second), b"Exif\0\0", first)
        },
        false,
    );
    check("PNG", |value| png_with(&[chunk(b"eXIf", &exif(value))], false), false);
    check("PNG, behind the pixels", |value| png_with(&[chunk(b"eXIf", &exif(value))], true), false);
    for name in ["kind_lossless.webp", "kind_lossy.webp"] {
        check(name, |value| webp_with(name, b"EXIF", 8, &exif(value)), false);
        let marked = |value| webp_with(name, b"EXIF", 8, &[b"Exif\0\0", &exif(value)[..]].concat());
        check(name, marked, false);
    }
    check("TIFF", tiff_with, true);
}

#[test]
fn xmp_counts_where_exif_has_no_orientation() {
    let xmp = |value: u16| format!("<x tiff:Orientation=\"\" tiff:Orientation=\"{value}\"/>").into_bytes();
    let namespace = b"http://ns.adobe.com/xap/1.0/\0";
    check("JPEG", |value| with_app1(&fixture("kind_420.jpg"), namespace, &xmp(value)), false);
    let text = |value| [b"XML:com.adobe.xmp\0\0\0en\0\0", &xmp(value)[..]].concat();
    check("PNG", |value| png_with(&[chunk(b"iTXt", &text(value))], false), false);
    check("WebP", |value| webp_with("kind_lossy.webp", b"XMP ", 4, &xmp(value)), false);
    check(
        "JPEG with other EXIF",
        |value| with_app1(&jpeg_with(&directory(true, &[(271, 2, 4, 0)])), namespace, &xmp(value)),
        false,
    );
    check("EXIF first", |value| with_app1(&jpeg_with(&exif(value)), namespace, &xmp(9 - value)), false);
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// EXIF as ImageMagick writes it into text: hexadecimal digits from the fourth line on, 36 bytes to a line.
fn profile(exif: &[u8]) -> Vec<u8> {
    let digits: Vec<String> = exif.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = digits.chunks(36).map(<[String]>::concat).collect();
    format!("\nexif\n{:8}\n{}\n", exif.len(), lines.join("\n")).into_bytes()
}

#[test]
fn png_states_exif_and_xmp_as_text() {
    let name = b"Raw profile type exif\0";
    let marked = |value| profile(&[b"Exif\0\0", &exif(value)[..]].concat());
    let png = |kind: &'static [u8; 4], parts: &[&[u8]]| png_with(&[chunk(kind, &parts.concat())], false);
    check("plain", |value| png(b"tEXt", &[name, &marked(value)]), false);
    check("compressed", |value| png(b"zTXt", &[name, b"\0", &deflated(&marked(value))]), false);
    check("international", |value| png(b"iTXt", &[name, b"\0\0\0\0", &marked(value)]), false);
    check("a text of EXIF itself", |value| png(b"tEXt", &[b"exif\0", &exif(value)]), false);
    let xmp = |value: u16| format!("<x tiff:Orientation=\"{value}\"/>").into_bytes();
    let key = b"XML:com.adobe.xmp\0";
    check("compressed XMP", |value| png(b"iTXt", &[key, b"\x01\0\0\0", &deflated(&xmp(value))]), false);
    check("XMP in zTXt", |value| png(b"zTXt", &[key, b"\0", &deflated(&xmp(value))]), false);
    // The chunk eXIf counts before the text, and of two texts the last.
    let text = |value| chunk(b"tEXt", &[name, &marked(value)[..]].concat());
    check("eXIf first", |value| png_with(&[chunk(b"eXIf", &exif(value)), text(9 - value)], false), false);
    check("the last text", |value| png_with(&[text(9 - value), text(value)], false), false);
}

/// Text that is no profile, or too long, turns nothing; Pillow refuses some of these files.
#[test]
fn damaged_texts_turn_nothing() {
    let name = b"Raw profile type exif\0";
    let whole = profile(&exif(6));
    let long = deflated(&[&whole[..], &vec![b' '; 1 << 20]].concat());
    let half = &deflated(&whole)[..20];
    let stored = decode_image(&fixture("rgb.png")).unwrap();
    for (what, kind, parts) in [
        ("letters", b"tEXt", vec![&b"\nexif\n 8\nno digits"[..]]),
        ("an odd number of digits", b"tEXt", vec![&whole[..whole.len() - 2]]),
        ("a space between the digits of a byte", b"tEXt", vec![&b"\n\n\n4 9"[..]]),
        ("no lines", b"tEXt", vec![&b"4949"[..]]),
        ("another compression", b"zTXt", vec![&b"\x01"[..], &whole]),
        ("no stream", b"zTXt", vec![&b"\0"[..], &whole]),
        ("the beginning of a stream", b"zTXt", vec![&b"\0"[..], half]),
        ("more than a megabyte", b"zTXt", vec![&b"\0"[..], &long]),
        ("no text", b"iTXt", vec![&b"\0\0en"[..]]),
    ] {
        let file = png_with(&[chunk(kind, &[&name[..], &parts.concat()].concat())], false);
        assert!(decode_oriented(&file, Orientation::Exif).unwrap() == stored, "{what}");
    }
}

/// A TIFF file without the tag whose XMP, of the type `kind`, states an orientation.
fn tiff_with_xmp(value: u16, kind: u16) -> Vec<u8> {
    let xmp = format!("<x tiff:Orientation=\"{value}\"/>");
    let whole = tiff_with(1);
    // The entry of the tag becomes that of XMP, which is put behind the pixels and comes last in the order of
    // tags.
    let (start, length) = (10 + 12 * 6, 12);
    let entry = |bytes: &[u8]| bytes.to_vec();
    let header = entry(&whole[..start]);
    let rest = entry(&whole[start + length..10 + 12 * 10]);
    let count = (xmp.len() as u32).to_le_bytes();
    let own = [&700_u16.to_le_bytes()[..], &kind.to_le_bytes(), &count, &(whole.len() as u32).to_le_bytes()];
    [header, rest, own.concat(), entry(&whole[10 + 12 * 10..]), xmp.into_bytes()].concat()
}

#[test]
fn tiff_states_the_orientation_in_xmp_too() {
    check("bytes", |value| tiff_with_xmp(value, 1), true);
    check("bytes of no type", |value| tiff_with_xmp(value, 7), true);
    let text = tiff_with_xmp(6, 2);
    assert!(decode_image(&text).unwrap() == decode_image(&tiff_with(1)).unwrap(), "text is no XMP in Pillow");
}

/// As in Pillow, which warns and reads on or ends; entries before the damage count.
#[test]
fn damaged_exif_turns_nothing() {
    let six = (274, 3, 1, 6);
    let stated = |exif: &[u8]| {
        let (file, stored) = (jpeg_with(exif), decode_image(&fixture("kind_420.jpg")).unwrap());
        let found = decode_oriented(&file, Orientation::Exif).unwrap();
        (1..=8).find(|&value| found == expected(&stored, value)).unwrap()
    };
    let whole = directory(true, &[(271, 2, 4, 0), six]);
    assert_eq!(stated(&whole), 6);
    for length in 0..whole.len() {
        // The last four bytes are the offset of the next directory, and two before them pad the value.
        let expected = if length < whole.len() - 4 { 1 } else { 6 };
        assert_eq!(stated(&whole[..length]), expected, "{length}");
    }
    for (what, exif, expected) in [
        ("a value that no turn has", directory(true, &[(274, 3, 1, 9)]), 1),
        ("the value 0", directory(true, &[(274, 3, 1, 0)]), 1),
        ("a byte, which Pillow reads as text", directory(true, &[(274, 1, 1, 6)]), 1),
        ("four bytes", directory(true, &[(274, 4, 1, 6)]), 6),
        ("no value, then one", directory(true, &[(274, 3, 0, 6), (274, 3, 1, 3)]), 3),
        ("two values", directory(true, &[six, (274, 3, 1, 3)]), 6),
        ("an unknown type before", directory(true, &[(271, 99, 1, 0), six]), 6),
        ("a larger value before than the file", directory(true, &[(271, 2, 1 << 20, 8), six]), 6),
        ("a value before that lies beyond the end", directory(true, &[(271, 2, 8, 1 << 20), six]), 1),
        ("another byte order", [b"IM*\0", &whole[4..]].concat(), 1),
        ("a directory beyond the end", [b"II*\0\xff\xff\xff\xff", &whole[8..]].concat(), 1),
        ("more entries than there are", [&whole[..8], &[0xff, 0xff], &whole[10..]].concat(), 6),
    ] {
        assert_eq!(stated(&exif), expected, "{what}");
    }
}

/// 300 files of random bytes in the place of EXIF.
#[test]
fn any_bytes_in_the_place_of_exif_are_no_error() {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for length in 0..300 {
        let mut exif: Vec<u8> = exif(6).into_iter().take(length).collect();
        exif.resize_with(length, &mut byte);
        for bytes in [
            jpeg_with(&exif),
            png_with(&[chunk(b"eXIf", &exif)], true),
            webp_with("kind_lossless.webp", b"EXIF", 8, &exif),
        ] {
            let image = decode_oriented(&bytes, Orientation::Exif).unwrap();
            let size = oriented_size(&bytes, Orientation::Exif).unwrap();
            assert_eq!(size, Size::new(image.height, image.width), "{length}");
        }
    }
}

/// A folder of three images; the second and the third are turned by a quarter, and the third states so behind
/// 200 kB.
fn folder() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a.jpg", &jpeg_with(&exif(1)));
    put(root.path(), "b.jpg", &jpeg_with(&exif(6)));
    let comment = chunk(b"tEXt", &[&b"Comment\0"[..], &[b'x'; 200_000]].concat());
    put(root.path(), "c.png", &png_with(&[comment, chunk(b"eXIf", &exif(8))], true));
    root
}

fn transform(orientation: Orientation) -> Transform {
    let microsoft = Transform::microsoft(Size::new(16, 24), 3, true);
    Transform { orientation, resize: Resize::ShorterSide(26), ..microsoft }
}

fn options() -> LoaderOptions {
    LoaderOptions { batch_size: 3, threads: 2, ..LoaderOptions::default() }
}

#[test]
fn loaders_turn_images_before_the_resize() {
    let root = folder();
    for orientation in [Orientation::Stored, Orientation::Exif] {
        let data = Dataset::open(root.path(), Split::Val).unwrap();
        let transform = transform(orientation);
        let prepared: Vec<Vec<u8>> = ["a.jpg", "b.jpg", "c.png"]
            .map(|name| std::fs::read(root.path().join(name)).unwrap())
            .map(|bytes| preprocess(&decode_oriented(&bytes, orientation).unwrap(), &transform))
            .to_vec();
        let mut loader = Loader::new(data.clone(), vec![0, 1, 2], transform.clone(), options()).unwrap();
        assert_eq!(loader.batch(0, 0).unwrap().pixels, prepared.concat(), "{orientation}");
        let turned = if orientation == Orientation::Exif { vec![1, 2] } else { Vec::new() };
        assert_eq!(data.turned(), turned, "{orientation}");

        let augment = Augment::none();
        for cache_bytes in [0, 1 << 20] {
            let train = TrainOptions {
                loader: options(),
                augment: augment.clone(),
                require_labels: false,
                cache_bytes,
                ..TrainOptions::default()
            };
            let mut loader = TrainLoader::new(data.clone(), vec![0, 1, 2], transform.clone(), train).unwrap();
            for epoch in 0..2 {
                let batch = loader.batch(epoch, 0).unwrap();
                for (index, &id) in batch.ids.iter().enumerate() {
                    assert!(batch.pixels_of(index) == prepared[id], "{orientation} {id}");
                }
            }
        }
    }
}

#[test]
fn sizes_are_those_of_the_turned_images() {
    let root = folder();
    let data = Dataset::open(root.path(), Split::Val).unwrap();
    let sizes =
        |rule| -> Vec<Size> { data.image_sizes(rule).into_iter().map(|size| size.unwrap()).collect() };
    let (stored, turned) = (sizes(Orientation::Stored), sizes(Orientation::Exif));
    let quarter = |size: Size| Size::new(size.width, size.height);
    assert_eq!(turned, [stored[0], quarter(stored[1]), quarter(stored[2])]);
    assert_ne!(stored[1], turned[1]);

    let images = turned.iter().copied().enumerate();
    let batches = OfOneSize::batches(images, Padding::default(), |_| 8);
    let transform = transform(Orientation::Exif);
    let loader = SizedLoader::new(data.clone(), Sizing::Keep, batches, &transform, &options()).unwrap();
    for index in 0..loader.batches().len() {
        let (batch, unread) = loader.batch(index).unwrap();
        assert!(unread.is_empty(), "{unread:?}");
        for (place, &id) in batch.ids.iter().enumerate() {
            let image = data.decode_oriented(id, Orientation::Exif).unwrap();
            assert!(batch.pixels_of(place) == image.pixels, "{id}");
        }
    }
}

#[test]
fn channels_have_the_order_that_the_transform_states() {
    let image = decode_image(&fixture("rgb.png")).unwrap();
    let transform = transform(Orientation::Stored);
    let reversed = |pixels: &[u8]| -> Vec<u8> {
        pixels.chunks_exact(3).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect()
    };
    let bgr = Transform { channel_order: ChannelOrder::Bgr, ..transform.clone() };
    let rgb = preprocess(&image, &transform);
    assert_eq!(preprocess(&image, &bgr), reversed(&rgb));
    assert_ne!(preprocess(&image, &bgr), rgb);
    let variation = Augment::none().draw((image.width, image.height), bgr.size, &[1]);
    assert_eq!(variation.apply(&image, &bgr), reversed(&variation.apply(&image, &transform)));
    let grey = Transform { channel_order: ChannelOrder::Bgr, ..Transform::microsoft(bgr.size, 1, true) };
    let usual = Transform { channel_order: ChannelOrder::Rgb, ..grey.clone() };
    assert_eq!(preprocess(&image, &grey), preprocess(&image, &usual));
}
