//! Text files of a data set: lists of images with their classes, and class names.

use std::collections::HashMap;
use std::path::Path;

use crate::error::DataError;

/// The contents of a list: one name per image, and either one label per image or no labels at all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) names: Vec<String>,
    pub(super) labels: Vec<u32>,
}

/// Reads and parses the list `path`.
pub(super) fn read(path: &Path) -> Result<Listing, DataError> {
    let bytes = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
    parse(&bytes, path)
}

/// Parses lines `path<TAB>class`, `path<spaces>class` or `path`. Either all lines have a class or none has. Blank
/// lines are skipped. A path that is listed twice is an error.
pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Listing, DataError> {
    let mut listing = Listing { names: Vec::new(), labels: Vec::new() };
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (line, text) in lines(bytes, path)? {
        let problem = |problem: String| DataError::List { path: path.to_owned(), line, problem };
        let (name, label) = split_line(text).map_err(problem)?;
        if let Some(first) = seen.insert(name, line) {
            return Err(problem(format!(
                "`{name}` is already listed in line {first}; remove one of the two lines"
            )));
        }
        if label.is_some() != (listing.labels.len() == listing.names.len()) && !listing.names.is_empty() {
            let (this, others) =
                if label.is_some() { ("has a class", "have none") } else { ("has no class", "have one") };
            return Err(problem(format!(
                "`{text}` {this}, but the lines before it {others}; write a class in every line or in none"
            )));
        }
        listing.names.push(name.to_owned());
        listing.labels.extend(label);
    }
    if listing.names.is_empty() {
        return Err(DataError::layout(path, "the list is empty; write one `path<TAB>class` per line"));
    }
    Ok(listing)
}

/// Non-blank lines with their numbers, counted from 1. Line ends, surrounding whitespace and a byte order mark are
/// removed.
fn lines<'a>(bytes: &'a [u8], path: &Path) -> Result<Vec<(usize, &'a str)>, DataError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = Vec::new();
    for (index, raw) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let text = std::str::from_utf8(raw).map_err(|_| DataError::List {
            path: path.to_owned(),
            line: index + 1,
            problem: "not UTF-8 text; is this a list of images?".to_owned(),
        })?;
        let text = text.trim();
        if !text.is_empty() {
            lines.push((index + 1, text));
        }
    }
    Ok(lines)
}

/// Splits a line into path and class. Text after a tab must be a class number. Text after a space that is not a
/// number belongs to the path.
fn split_line(text: &str) -> Result<(&str, Option<u32>), String> {
    let (name, class, tab) = match (text.rsplit_once('\t'), text.rsplit_once(' ')) {
        (Some((name, class)), _) => (name, class, true),
        (None, Some((name, class))) => (name, class, false),
        (None, None) => return Ok((text, None)),
    };
    match class.trim().parse::<u32>() {
        Ok(label) if label < MAX_CLASSES => Ok((name.trim_end(), Some(label))),
        Ok(label) => {
            Err(format!("class {label} is not below the limit of {MAX_CLASSES}; write path<TAB>class"))
        }
        Err(_) if tab || looks_like_a_number(class) => {
            Err(format!("class `{class}` is not a whole number from 0 up; write path<TAB>class"))
        }
        Err(_) => Ok((text, None)),
    }
}

/// Limit of class numbers. A larger number is a mistake, and buffers of that size would be allocated.
const MAX_CLASSES: u32 = 1 << 24;

fn looks_like_a_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The class names in `classes.txt` of `folder`, if that file exists: non-blank line n, counted from 0, names
/// class n.
pub(super) fn class_names(folder: &Path, labels: &[u32]) -> Result<Option<Vec<String>>, DataError> {
    let path = folder.join("classes.txt");
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = std::fs::read(&path).map_err(|error| DataError::io(&path, error))?;
    let names: Vec<String> = lines(&bytes, &path)?.into_iter().map(|(_, text)| text.to_owned()).collect();
    let needed = labels.iter().max().map_or(0, |&label| label as usize + 1);
    if names.len() < needed {
        let problem = format!(
            "{} class names, but the labels go up to {}; add the missing names",
            names.len(),
            needed - 1
        );
        return Err(DataError::List { path, line: names.len(), problem });
    }
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_text(text: &str) -> Result<Listing, String> {
        parse(text.as_bytes(), Path::new("val_map.txt")).map_err(|error| error.to_string())
    }

    #[test]
    fn tabs_spaces_and_line_ends() {
        let listing = parse_text("\u{feff}a/b c.jpg\t3\r\n\r\nd.jpg   12 \ne f.jpg 0").unwrap();
        assert_eq!(listing.names, ["a/b c.jpg", "d.jpg", "e f.jpg"]);
        assert_eq!(listing.labels, [3, 12, 0]);
        let unlabelled = parse_text("a b.jpg\nc.jpg\n").unwrap();
        assert_eq!(unlabelled, Listing { names: vec!["a b.jpg".into(), "c.jpg".into()], labels: vec![] });
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, word) in [
            ("a.jpg\t0\nb.jpg\tcat\n", "line 2", "`cat`"),
            ("a.jpg\t-1\n", "line 1", "`-1`"),
            ("a.jpg 1.5\n", "line 1", "1.5"),
            ("a.jpg\t0\n\nb.jpg\n", "line 3", "no class"),
            ("a.jpg\nb.jpg\t0\n", "line 2", "has a class"),
            ("a.jpg\t0\nb.jpg\t0\na.jpg\t1\n", "line 3", "line 1"),
            ("a.jpg\t4294967295\n", "line 1", "limit"),
            ("a.jpg\t4294967296\n", "line 1", "4294967296"),
        ] {
            let message = parse_text(text).unwrap_err();
            assert!(message.contains(line) && message.contains(word), "{text:?}: {message}");
        }
        assert!(parse_text(" \n\n").unwrap_err().contains("empty"));
        let message = parse(b"a.jpg\t0\n\xff\xfe\t1\n", Path::new("m.txt")).unwrap_err().to_string();
        assert!(message.contains("m.txt, line 2") && message.contains("UTF-8"), "{message}");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(listing) = parse(&bytes, Path::new("x.txt")) {
                prop_assert!(listing.labels.is_empty() || listing.labels.len() == listing.names.len());
            }
        }

        #[test]
        fn a_written_list_is_read_back(
            entries in proptest::collection::btree_map("[a-z/._-]{1,12}[a-z]", 0_u32..1000, 1..30)
        ) {
            let text: String = entries.iter().map(|(name, label)| format!("{name}\t{label}\n")).collect();
            let listing = parse_text(&text).unwrap();
            prop_assert!(listing.names.iter().eq(entries.keys()));
            prop_assert!(listing.labels.iter().eq(entries.values()));
        }
    }
}
