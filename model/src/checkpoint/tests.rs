//! Damaged and hostile files give an error or a valid result, never a panic, in memory bounded by the file's
//! size.

use proptest::prelude::*;

use super::raw::RawDict;
use super::{safetensors, torch};

const ZIP: &[u8] = include_bytes!("../../tests/checkpoints/ms_training.pth");
const LEGACY: &[u8] = include_bytes!("../../tests/checkpoints/ms_training_legacy.pth");
const SAFE: &[u8] = include_bytes!("../../tests/checkpoints/timm/model.safetensors");
const LATIN1: &[u8] = include_bytes!("../../tests/checkpoints/pickles/protocol2.pkl");
const ARRAYS: &[u8] = include_bytes!("../../tests/checkpoints/pickles/views5.pkl");

type Reader = for<'a> fn(&'a [u8]) -> Result<RawDict<'a>, String>;

fn read_torch(bytes: &[u8]) -> Result<RawDict<'_>, String> {
    Ok(torch::read(bytes, None)?.0)
}

const FILES: [(&[u8], Reader); 5] = [
    (ZIP, read_torch),
    (LEGACY, read_torch),
    (SAFE, safetensors::read),
    (LATIN1, read_torch),
    (ARRAYS, read_torch),
];

/// Reads and converts every tensor; there must be at most as many values as the file has bytes.
fn exercise(bytes: &[u8], read: Reader) -> Result<usize, String> {
    let raw = read(bytes)?;
    let mut values = 0;
    for tensor in raw.values() {
        values += tensor.to_f32().map_or(0, |tensor| tensor.data.len());
    }
    assert!(values <= bytes.len(), "{values} values from {} bytes", bytes.len());
    Ok(values)
}

#[test]
fn whole_files_read() {
    for (bytes, read) in FILES {
        assert!(exercise(bytes, read).unwrap() > 3000);
    }
}

#[test]
fn every_truncation_is_an_error() {
    for (bytes, read) in FILES {
        for length in (0..bytes.len()).step_by(97) {
            let message = exercise(&bytes[..length], read).unwrap_err();
            assert!(!message.is_empty());
        }
        assert!(exercise(&bytes[..bytes.len() - 1], read).is_err());
    }
}

#[test]
fn the_length_of_a_header_is_no_pickle() {
    let (length, rest) = SAFE.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    for protocol in 2..=5 {
        let length = 0x10080 + (protocol << 8);
        let mut padded = header.to_vec();
        padded.resize(length, b' ');
        let file = [&(length as u64).to_le_bytes()[..], &padded, data].concat();
        assert!(!torch::is_torch(&file));
        assert_eq!(exercise(&file, safetensors::read), exercise(SAFE, safetensors::read));
    }
}

/// A safetensors file with this header and no data.
fn header(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn headers_that_lie_are_refused() {
    for text in [
        r#"{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,0]}}"#,
        r#"{"a":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}}"#,
        r#"{"a":"#,
        "[]",
    ] {
        assert!(exercise(&header(text), safetensors::read).is_err(), "{text}");
    }
    let mut long = header("{}");
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(exercise(&long, safetensors::read).is_err());
}

#[test]
fn tensors_that_repeat_one_storage_are_bounded() {
    // A thousand names for one tensor of 1000 values: together more values than the file has bytes.
    let mut body = b"\x80\x02}(".to_vec();
    let tensor = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000\
        X\x03\x00\x00\x00cpuM\xe8\x03tQK\x00M\xe8\x03\x85K\x01\x85\x89Nt";
    let tensor = [&tensor[..], b"R"].concat();
    for index in 0..1000u16 {
        body.extend([b'X', 2, 0, 0, 0, b'a' + (index / 26 % 26) as u8, b'a' + (index % 26) as u8]);
        if index == 0 {
            body.extend(&tensor);
            body.extend(b"q\x00");
        } else {
            body.extend(b"h\x00");
        }
    }
    body.extend(b"u.");
    let mut file = LEGACY[..legacy_prefix()].to_vec();
    file.extend(body);
    file.extend(b"\x80\x02]X\x01\x00\x00\x000a.");
    file.extend(1000i64.to_le_bytes());
    file.extend([0; 4000]);
    let message = exercise(&file, read_torch).unwrap_err();
    assert!(message.contains("together have more values than the file has bytes"), "{message}");
}

#[test]
fn arrays_that_repeat_one_text_are_bounded() {
    // A thousand entries with one array of 1000 values, which is decoded from text.
    let dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb";
    let text =
        [&b"c_codecs\nencode\nX"[..], &4000u32.to_le_bytes(), &[0; 4000], b"X\x06\x00\x00\x00latin1\x86R"]
            .concat();
    let array =
        b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01M\xe8\x03\x85";
    let array = [&array[..], dtype, b"\x89", &text, b"tbq\x000"].concat();
    let entries = b"X\x01\x00\x00\x00ah\x00".repeat(1000);
    let file = [b"\x80\x02", &array[..], b"}(", &entries, b"u."].concat();
    let message = exercise(&file, read_torch).unwrap_err();
    assert!(message.contains("together have more values than the file has bytes"), "{message}");
    let long = [b"\x80\x02", &array[..], b"}X", &3000u32.to_le_bytes(), &[b'a'; 3000], b"h\x00s."].concat();
    assert!(exercise(&long, read_torch).unwrap_err().contains("a tensor name of 3000 bytes"));
}

/// Length of the three pickles at the start of every file of the older format.
fn legacy_prefix() -> usize {
    (0..3).fold(0, |at, _| at + super::pickle::read(&LEGACY[at..]).unwrap().consumed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        file in 0usize..FILES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        // Most of a file is tensor data, so most edits go to the header, the pickle or the zip directory.
        window in prop_oneof![Just(0.0..0.15f64), Just(0.85..1.0), Just(0.0..1.0)],
    ) {
        let (bytes, read) = FILES[file];
        let mut bytes = bytes.to_vec();
        let start = (window.start * bytes.len() as f64) as usize;
        let end = (window.end * bytes.len() as f64) as usize;
        for (at, byte) in edits {
            bytes[start + at.index(end - start)] = byte;
        }
        let _ = exercise(&bytes, read);
    }

    #[test]
    fn spliced_files_never_panic(
        file in 0usize..FILES.len(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        length in 0usize..200,
    ) {
        let (bytes, read) = FILES[file];
        let from = from.index(bytes.len());
        let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
        let mut bytes = bytes.to_vec();
        let at = to.index(bytes.len());
        bytes.splice(at..at, piece);
        let _ = exercise(&bytes, read);
    }
}
