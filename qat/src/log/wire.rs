//! TensorBoard's file format: protobuf events in TFRecord frames.
//!
//! A frame holds the event's length in 8 bytes, the length's masked CRC, the event, and the event's masked
//! CRC. Numbers are little-endian and the CRC is CRC-32C.

use crc::{CRC_32_ISCSI, Crc};

const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

// Numbers of the fields in use of `tensorflow.Event`, `Summary`, `Summary.Value` and `SessionLog`.
const EVENT_WALL_TIME: u32 = 1;
const EVENT_STEP: u32 = 2;
const EVENT_FILE_VERSION: u32 = 3;
const EVENT_SUMMARY: u32 = 5;
const EVENT_SESSION_LOG: u32 = 7;
const SUMMARY_VALUE: u32 = 1;
const VALUE_TAG: u32 = 1;
const VALUE_SIMPLE: u32 = 2;
const SESSION_STATUS: u32 = 1;
const SESSION_START: u64 = 1;

/// The content of an event.
pub(super) enum Content<'a> {
    /// The first event of a file.
    FileVersion,
    /// The run continues at this iteration: readers drop the events of earlier files from this iteration on.
    SessionStart,
    /// Tags and values.
    Scalars(&'a [(String, f32)]),
}

/// The frame of an event.
pub(super) fn frame_of(wall_time: f64, iteration: u64, content: &Content) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, EVENT_WALL_TIME, 1);
    event.extend(wall_time.to_le_bytes());
    // Protobuf omits fields that are zero.
    if iteration > 0 {
        key(&mut event, EVENT_STEP, 0);
        varint(&mut event, iteration);
    }
    match content {
        Content::FileVersion => bytes(&mut event, EVENT_FILE_VERSION, b"brain.Event:2"),
        Content::SessionStart => {
            let mut session = Vec::new();
            key(&mut session, SESSION_STATUS, 0);
            varint(&mut session, SESSION_START);
            bytes(&mut event, EVENT_SESSION_LOG, &session);
        }
        Content::Scalars(scalars) => bytes(&mut event, EVENT_SUMMARY, &summary(scalars)),
    }
    frame(&event)
}

fn summary(scalars: &[(String, f32)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        bytes(&mut value, VALUE_TAG, tag.as_bytes());
        key(&mut value, VALUE_SIMPLE, 5);
        value.extend(number.to_le_bytes());
        bytes(&mut summary, SUMMARY_VALUE, &value);
    }
    summary
}

fn frame(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut frame = length.to_vec();
    frame.extend(masked_crc(&length).to_le_bytes());
    frame.extend(event);
    frame.extend(masked_crc(event).to_le_bytes());
    frame
}

/// The CRC in TFRecord's form: rotated and offset, because the stored CRC may itself be covered by another
/// CRC.
fn masked_crc(data: &[u8]) -> u32 {
    CRC32C.checksum(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes a protobuf field's key: its number and its wire type (0 varint, 1 eight bytes, 2 bytes with a
/// length, 5 four bytes).
fn key(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, u64::from(field << 3 | wire_type));
}

fn bytes(out: &mut Vec<u8>, field: u32, content: &[u8]) {
    key(out, field, 2);
    varint(out, content.len() as u64);
    out.extend(content);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_crc_is_crc32c() {
        assert_eq!(CRC32C.checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn varints_have_seven_bits_a_byte() {
        for (number, expected) in
            [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (u64::MAX, "ffffffffffffffffff01")]
        {
            let mut out = Vec::new();
            varint(&mut out, number);
            assert_eq!(hex(&out), expected);
        }
    }

    /// The bytes that TensorBoard's own `RecordWriter` and protobuf classes write for these events.
    #[test]
    fn frames_equal_tensorboards() {
        let scalars = [("train/loss".to_owned(), 0.5), ("train/lr".to_owned(), 5e-5)];
        for (iteration, content, expected) in [
            (0, Content::FileVersion, FILE_VERSION),
            (300, Content::Scalars(&scalars), SCALARS),
            (301, Content::SessionStart, SESSION),
        ] {
            assert_eq!(hex(&frame_of(1.5e9, iteration, &content)), expected);
        }
    }

    const FILE_VERSION: &str =
        "1800000000000000a37f4b2209000000c00b5ad6411a0d627261696e2e4576656e743a324ca9a464";
    const SCALARS: &str = "3200000000000000241956ec09000000c00b5ad64110ac022a240a110a0a747261696e2f6c6f7373150000003f0a0f0a\
        08747261696e2f6c721517b75138580b6a4f";
    const SESSION: &str = "100000000000000095fbfe1809000000c00b5ad64110ad023a020801a62462fc";
}
