//! Command lines with the quotes that a shell needs.

use std::path::MAIN_SEPARATOR;

/// Joins `words` into one line that a shell splits into the same words.
pub fn join(words: &[impl AsRef<str>]) -> String {
    words.iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == MAIN_SEPARATOR || "-_./=:,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn odd_words_are_quoted() {
        assert_eq!(join(&["a", "b c", "", "**.fc2.*", "it's"]), r"a 'b c' '' '**.fc2.*' 'it'\''s'");
    }
}
