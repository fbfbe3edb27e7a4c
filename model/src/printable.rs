//! Text from files, for a terminal.

use std::borrow::Cow;

/// `text` with every character escaped (`\u{1b}`) that would control a terminal or hide text: control
/// characters, marks of the direction of text, and characters without width. Line feeds and tabs stay.
///
/// Names in checkpoints, configurations and data sets are somebody else's text. Printed as they are, they
/// could move the cursor, change what was printed before, or show another name than the one that is meant.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_control(c) && c != '\n' && c != '\t')
}

/// [`printable`] for a name: line feeds and tabs are escaped, too, so that a name is always on one line.
pub fn printable_name(text: &str) -> Cow<'_, str> {
    escaped(text, is_control)
}

fn escaped(text: &str, escape: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&escape) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if escape(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        assert_eq!(printable("été 猫 a\tb\n"), "été 猫 a\tb\n");
        assert!(matches!(printable("head.weight"), Cow::Borrowed(_)));
        assert_eq!(printable("\x1b]0;x\x07\x1b[2J\r"), r"\u{1b}]0;x\u{7}\u{1b}[2J\u{d}");
        assert_eq!(printable("\u{9b}31m \u{7f} \u{202e}gnp"), r"\u{9b}31m \u{7f} \u{202e}gnp");
        assert_eq!(printable_name("a\nerror: b\t"), r"a\u{a}error: b\u{9}");
    }
}
