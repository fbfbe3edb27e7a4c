//! Hexadecimal texts of hashes.

/// The bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
