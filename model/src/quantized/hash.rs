//! The hash of a quantized checkpoint and of a part: it finds damage, not malice.

use safetensors::{Dtype, SafeTensors};
use twox_hash::XxHash3_128;

/// The algorithm's name in the file.
const ALGORITHM: &str = "xxh3-128:";
/// Hexadecimal digits of a hash.
const DIGITS: usize = 32;

/// The value of the key `hash` while the hash is computed.
pub(crate) fn placeholder() -> String {
    format!("{ALGORITHM}{}", "0".repeat(DIGITS))
}

/// The value of the key `hash` for a file with this `document`, in which the digits of the hash are zeros,
/// and these `tensors`: names with type, shape and bytes, in the order of their names.
///
/// The hash is XXH3-128 with seed 0 over the text of the document, a newline and, for each tensor, the line
/// `NAME DTYPE [SIZE, SIZE]`, a newline and its bytes.
pub(crate) fn of<'a>(
    document: &str,
    tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [usize], &'a [u8])>,
) -> String {
    let mut hash = XxHash3_128::new();
    hash.write(document.as_bytes());
    hash.write(b"\n");
    for (name, dtype, shape, bytes) in tensors {
        hash.write(format!("{name} {dtype:?} {shape:?}\n").as_bytes());
        hash.write(bytes);
    }
    format!("{ALGORITHM}{:032x}", hash.finish_128())
}

/// Compares the hash `stated` in the `document` of `file` with the file's content.
///
/// # Errors
/// The problem and the next step, which is `remedy`, if the text is not a hash or the content has another.
pub(crate) fn verify(stated: &str, document: &str, file: &SafeTensors, remedy: &str) -> Result<(), String> {
    let digits = stated.strip_prefix(ALGORITHM).filter(|digits| digits.len() == DIGITS);
    let Some(digits) = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit())) else {
        let stated = stated.escape_debug();
        return Err(format!("its hash `{stated}` is not {ALGORITHM} and {DIGITS} digits; {remedy}"));
    };
    let document = document.replacen(digits, &"0".repeat(DIGITS), 1);
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let tensors = tensors.iter().map(|(name, view)| (name.as_str(), view.dtype(), view.shape(), view.data()));
    let found = of(&document, tensors);
    if found == stated {
        return Ok(());
    }
    Err(format!("is damaged: its content has the hash {found}, but it states {stated}; {remedy}"))
}
