//! Checks of JSON that serde_json's own reader leaves to its caller: keys that are stated twice, of which it
//! silently keeps the last, and the number of keys, which decides how much memory the text takes once it is
//! read.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The most keys of a document. A safetensors header has five for each tensor, so that it may have 80,000
/// tensors; the largest Swin with its optimizer's state has less than 2,000.
pub(crate) const MAX_KEYS: usize = 400_000;

/// Checks that no object in `text` has a key twice, and that all objects together have at most `most` keys.
/// The values are not kept.
///
/// # Errors
/// The key and its place, the number, or the fault of the JSON.
pub(crate) fn check(text: &[u8], most: usize) -> Result<(), String> {
    let mut left = most;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let checked = Checked { left: &mut left, most }.deserialize(&mut reader);
    checked.and_then(|()| reader.end()).map_err(|e| e.to_string())
}

/// Reads one value; `left` further keys are allowed.
struct Checked<'a> {
    left: &'a mut usize,
    most: usize,
}

impl Checked<'_> {
    fn inner(&mut self) -> Checked<'_> {
        Checked { left: self.left, most: self.most }
    }
}

impl<'de> DeserializeSeed<'de> for Checked<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checked<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(self.inner())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let Some(left) = self.left.checked_sub(1) else {
                return Err(A::Error::custom(format_args!("it has more than {} keys", self.most)));
            };
            *self.left = left;
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key `{}` is stated twice",
                    key.escape_debug()
                )));
            }
            seen.insert(key);
            entries.next_value_seed(self.inner())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_be_stated_once_and_be_few() {
        check(br#"{"a": {"b": 1, "c": [1.5, -2, "x", null, true]}, "b": {"b": 2}}"#, 5).unwrap();
        for (text, word) in [
            (r#"{"a": 1, "a": 1}"#, "`a` is stated twice"),
            (r#"[{"x": {"b": 1, "b": 2}}]"#, "`b` is stated twice"),
            (r#"{"a": 1, "\u0061": 1}"#, "`a` is stated twice"),
            (r#"{"a": 1, "b": [{"c": 1, "d": 2}]}"#, "more than 3 keys"),
            (r#"{"a": 1} x"#, "trailing"),
            (r#"{"a": "#, "EOF"),
        ] {
            let error = check(text.as_bytes(), 3).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
