//! Hexadecimal texts of hashes.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file, hexadecimal.
pub(crate) fn sha256_of(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hash, mut piece) = (std::fs::File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(hash.finalize())),
            read => hash.update(&piece[..read]),
        }
    }
}
