//! Sequential reads from the bytes of a pickle.

use crate::error::damaged;

/// The bytes of a pickle, and the position of the next read.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next `length` bytes.
    pub(super) fn take_u64(&mut self, length: u64) -> Result<&'a [u8], String> {
        self.take(usize::try_from(length).map_err(|_| truncated())?)
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len()).ok_or_else(truncated)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
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
        let text = String::from_utf8_lossy(&rest[..length]).into_owned();
        self.at += length + 1;
        Ok(text)
    }
}

fn truncated() -> String {
    damaged("file of torch.save", "its pickle ends too early")
}
