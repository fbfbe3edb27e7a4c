//! Sequential reads from the bytes of a pickle.

use crate::error::damaged;

/// Most bytes of one pickle beside the values of its texts and byte strings, which are not copied.
const MAX_PICKLE: usize = 64 << 20;

/// The bytes of a pickle, and the position of the next read.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes read so far that [`MAX_PICKLE`] limits.
    counted: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, counted: 0 }
    }

    /// Number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next `length` bytes: the value of a text or of a byte string, which the caller borrows.
    pub(super) fn value(&mut self, length: u64) -> Result<&'a [u8], String> {
        let length = usize::try_from(length).map_err(|_| truncated())?;
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len()).ok_or_else(truncated)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let taken = self.value(length as u64)?;
        self.count(length)?;
        Ok(taken)
    }

    /// Counts bytes that [`MAX_PICKLE`] limits.
    pub(super) fn count(&mut self, length: usize) -> Result<(), String> {
        self.counted = self.counted.saturating_add(length);
        if self.counted > MAX_PICKLE {
            return Err(format!(
                "the pickle has more than {MAX_PICKLE} bytes beside its texts and the values of its arrays, which no \
                 checkpoint of a Swin has"
            ));
        }
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().expect("take gives as many bytes as asked for"))
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A little-endian number of four bytes.
    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    /// A little-endian number of eight bytes.
    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// The text up to the next line feed, which is skipped.
    pub(super) fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&b| b == b'\n').ok_or_else(truncated)?;
        let line = self.take(length + 1)?;
        Ok(String::from_utf8_lossy(&line[..length]).into_owned())
    }
}

fn truncated() -> String {
    damaged("checkpoint", "its pickle ends too early")
}
