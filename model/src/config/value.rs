//! Values of a configuration, with the conversions that Microsoft's code (yacs) accepts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use swinq_numerics::Size;

use crate::arch::Windows;

/// A value from YAML or from an override.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

/// Deepest nesting of lists in a literal.
const MAX_DEPTH: usize = 8;

impl Value {
    /// The value of a text under yacs's rule: a Python literal (`None`, `True`, `1e-8`, `[2, 2, 6, 2]`,
    /// `(0.9, 0.999)`, `'x'`) if the text is one, else the text itself.
    pub(super) fn from_text(text: &str) -> Value {
        let mut rest = text.trim();
        match literal(&mut rest, MAX_DEPTH) {
            Some(value) if rest.trim().is_empty() => value,
            _ => Value::Text(text.to_owned()),
        }
    }

    /// A text decoded by [`Value::from_text`]; other values unchanged.
    fn decoded(&self) -> Value {
        match self {
            Value::Text(text) => Value::from_text(text),
            other => other.clone(),
        }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        match self.decoded() {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A whole number of at least 0; `4.0` is accepted.
    pub(super) fn as_size(&self) -> Option<usize> {
        match self.decoded() {
            Value::Int(value) => usize::try_from(value).ok(),
            Value::Float(value) if value.fract() == 0.0 && (0.0..1e15).contains(&value) => {
                Some(value as usize)
            }
            _ => None,
        }
    }

    /// A size: a whole number for both sides, or a list of a height and a width.
    pub(super) fn as_extent(&self) -> Option<Size> {
        if let Some(side) = self.as_size() {
            return Some(Size::square(side));
        }
        match self.as_sizes()?[..] {
            [height, width] => Some(Size::new(height, width)),
            _ => None,
        }
    }

    /// Windows: one for all stages, or a list with one for each. Two whole numbers are always a height and a
    /// width, as in timm.
    pub(super) fn as_windows(&self) -> Option<Windows> {
        if let Some(window) = self.as_extent() {
            return Some(window.into());
        }
        match self.decoded() {
            Value::List(values) => {
                Windows::of_stages(values.iter().map(Value::as_extent).collect::<Option<_>>()?)
            }
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self.decoded() {
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn as_sizes(&self) -> Option<Vec<usize>> {
        match self.decoded() {
            Value::List(values) => values.iter().map(Value::as_size).collect(),
            _ => None,
        }
    }

    /// A list of texts. In an override, `[stage1, stage2]` is one without quotes, as in YAML.
    pub(super) fn as_texts(&self) -> Option<Vec<String>> {
        match self.decoded() {
            Value::List(values) => values.iter().map(|value| value.as_text().map(str::to_owned)).collect(),
            Value::Text(text) => bare_words(&text),
            _ => None,
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.decoded() == Value::None
    }

    /// The text itself, not decoded.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("None"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Text(text) => write!(f, "`{}`", text.chars().take(60).collect::<String>()),
            Value::List(values) => write!(f, "a list of {} values", values.len()),
            Value::Map(entries) => write!(f, "a section of {} keys", entries.len()),
        }
    }
}

/// The words of a list without quotes.
fn bare_words(text: &str) -> Option<Vec<String>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let words: Vec<String> = inner.split(',').map(|word| word.trim().to_owned()).collect();
    let is_word = |word: &String| {
        !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
    };
    words.iter().all(is_word).then_some(words)
}

/// Reads one Python literal from the front of `rest`; `None` if there is none.
fn literal(rest: &mut &str, depth: usize) -> Option<Value> {
    *rest = rest.trim_start();
    match rest.chars().next()? {
        open @ ('[' | '(') => list(rest, if open == '[' { ']' } else { ')' }, depth.checked_sub(1)?),
        quote @ ('\'' | '"') => {
            let (text, after) = rest[1..].split_once(quote)?;
            *rest = after;
            Some(Value::Text(text.to_owned()))
        }
        _ => {
            let end = rest.find([',', ']', ')']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            word_value(word.trim())
        }
    }
}

fn list(rest: &mut &str, close: char, depth: usize) -> Option<Value> {
    *rest = &rest[1..];
    let mut values = Vec::new();
    loop {
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            *rest = after;
            return Some(Value::List(values));
        }
        values.push(literal(rest, depth)?);
        *rest = rest.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => *rest = after,
            None if rest.starts_with(close) => {}
            None => return None,
        }
    }
}

fn word_value(word: &str) -> Option<Value> {
    match word {
        "None" | "null" | "~" => return Some(Value::None),
        "True" | "true" => return Some(Value::Bool(true)),
        "False" | "false" => return Some(Value::Bool(false)),
        _ => {}
    }
    // Rust's parser also accepts `inf` and `nan`, which are not Python literals.
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
        || word.contains(['n', 'N'])
    {
        return None;
    }
    word.parse().map(Value::Int).ok().or_else(|| word.parse().map(Value::Float).ok())
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a section")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_literals_are_decoded() {
        assert_eq!(Value::from_text("1e-8"), Value::Float(1e-8));
        assert_eq!(Value::from_text(" None "), Value::None);
        assert_eq!(Value::from_text("4."), Value::Float(4.0));
        assert_eq!(Value::from_text("[2, 2,6,2,]").as_sizes(), Some(vec![2, 2, 6, 2]));
        assert_eq!(
            Value::from_text("(0.9, 0.999)"),
            Value::List(vec![Value::Float(0.9), Value::Float(0.999)])
        );
        assert_eq!(Value::from_text("'12'"), Value::Text("12".to_owned()));
    }

    #[test]
    fn lists_of_texts_need_no_quotes() {
        let two = Some(vec!["stage1".to_owned(), "stage2".to_owned()]);
        for text in ["[stage1, stage2]", "['stage1','stage2']", "[\"stage1\", \"stage2\"]"] {
            assert_eq!(Value::from_text(text).as_texts(), two, "{text}");
        }
        for text in ["stage1", "[stage1", "[stage1, ]", "[stage 1]", "[[stage1]]"] {
            assert_eq!(Value::from_text(text).as_texts(), None, "{text}");
        }
    }

    #[test]
    fn other_texts_stay_texts() {
        let deep = "[".repeat(100_000);
        for text in ["bicubic", "rand-m9-mstd0.5-inc1", "[1", "[1 2]", "nan", "-inf", "", "'", &deep] {
            assert_eq!(Value::from_text(text), Value::Text(text.to_owned()));
        }
        assert_eq!(Value::Text("-3".into()).as_size(), None);
        assert_eq!(Value::Float(1e300).as_size(), None);
    }
}
