//! A seekable, buffered reader of a file that many threads share.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use swinq_system::files::read_at;

/// Size of the buffer in bytes.
const BUFFER: usize = 1 << 16;

/// A read position in a shared file. Each read passes its own offset to the system, so clones do not affect
/// each other. A clone starts at the original's position with an empty buffer.
#[derive(Debug)]
pub(super) struct Cursor {
    file: Arc<File>,
    length: u64,
    position: u64,
    buffer: Vec<u8>,
    /// Offset in the file of the buffer's first byte.
    buffer_start: u64,
}

impl Cursor {
    /// A cursor at the start of `file`.
    pub(super) fn new(file: File) -> io::Result<Cursor> {
        let length = file.metadata()?.len();
        Ok(Cursor { file: Arc::new(file), length, position: 0, buffer: Vec::new(), buffer_start: 0 })
    }

    /// Length of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The buffered bytes from the current position on.
    fn buffered(&self) -> &[u8] {
        let skip = self.position.checked_sub(self.buffer_start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.buffer.get(skip..)).unwrap_or_default()
    }

    /// Refills the buffer from the current position on.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.resize(BUFFER, 0);
        let count = read_at(&self.file, &mut self.buffer, self.position);
        self.buffer_start = self.position;
        self.buffer.truncate(*count.as_ref().unwrap_or(&0));
        count.map(drop)
    }
}

impl Clone for Cursor {
    fn clone(&self) -> Cursor {
        Cursor { file: Arc::clone(&self.file), buffer: Vec::new(), ..*self }
    }
}

impl Read for Cursor {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() {
            if out.len() >= BUFFER {
                let count = read_at(&self.file, out, self.position)?;
                self.position += count as u64;
                return Ok(count);
            }
            self.fill()?;
        }
        let buffered = self.buffered();
        let count = buffered.len().min(out.len());
        out[..count].copy_from_slice(&buffered[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = target.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the offset to seek to is negative or too large")
        })?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_and_seeks_like_a_file() {
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut cursor = Cursor::new(file).unwrap();
        for (offset, count) in
            [(0, 10), (5, 70_000), (1_199_000, 1000), (65_530, 12), (65_530, 200_000), (3, 1)]
        {
            let mut other = cursor.clone();
            for cursor in [&mut cursor, &mut other] {
                let mut out = vec![0; count];
                cursor.seek(SeekFrom::Start(offset)).unwrap();
                cursor.read_exact(&mut out).unwrap();
                assert_eq!(out, bytes[offset as usize..offset as usize + count]);
            }
        }
        assert_eq!(cursor.seek(SeekFrom::End(-4)).unwrap(), 1_199_996);
        assert_eq!(cursor.read(&mut [0; 10]).unwrap(), 4);
        assert_eq!(cursor.read(&mut [0; 10]).unwrap(), 0);
        assert!(cursor.seek(SeekFrom::Current(-2_000_000)).is_err());
    }
}
