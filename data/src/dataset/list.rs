//! Text files of a data set: lists of images with their classes, and class names.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::labels::Labels;
use super::names::Names;
use crate::error::DataError;

/// Maximum length of a line in bytes. A longer one is no path of a file.
const MAX_LINE: u64 = 1 << 16;

/// Maximum number of bytes reserved for the names of a list. A file may claim any length.
const MAX_RESERVED: u64 = 1 << 28;

/// Bytes of the shortest line with a class: a name of one byte, a tab, a digit and the line's end.
const SHORTEST_LINE: usize = 4;

/// Number of names that are compared at once in the search for repeated names: 8 MiB of hashes.
const COMPARED: usize = 1 << 20;

/// The contents of a list: one name per image, and either one label per image or no labels at all.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) names: Names,
    pub(super) labels: Labels,
    /// The names that the labels number, in sorted order, if the list has class names instead of numbers.
    pub(super) classes: Option<Vec<String>>,
}

/// Reads and parses the list `path`.
pub(super) fn read(path: &Path) -> Result<Listing, DataError> {
    let bytes = path.metadata().map_err(|error| DataError::io(path, error))?.len();
    parse(|| File::open(path).map(|file| BufReader::with_capacity(1 << 20, file)), path, bytes)
}

/// Parses lines `path<TAB>class`, `path<spaces>number` or `path`. A class is a number or, in all lines, a
/// name. Either all lines have a class or none has. Blank lines are skipped. A path that is listed twice is
/// an error. `open` opens the text of `bytes` bytes at its start.
fn parse<R: BufRead>(
    open: impl Fn() -> io::Result<R>,
    path: &Path,
    bytes: u64,
) -> Result<Listing, DataError> {
    let reader = || open().map_err(|error| DataError::io(path, error));
    let mut listing = Listing { names: Names::default(), labels: Labels::default(), classes: None };
    // A list that doubles its memory again and again leaves the smaller pieces behind.
    let bytes = bytes.min(MAX_RESERVED) as usize;
    listing.names.reserve(bytes);
    listing.labels.reserve(bytes / SHORTEST_LINE);
    let mut known: HashMap<String, u32> = HashMap::new();
    for_each_line(reader()?, path, |_, text| {
        let (name, class) = split_line(text)?;
        let label = match class {
            Some(Class::Name(class)) if !listing.labels.is_empty() && known.is_empty() => {
                return Err(format!("class `{class}` is not a number, but the lines before it have numbers"));
            }
            Some(Class::Number(number)) if !known.is_empty() => {
                let header =
                    if listing.names.len() == 1 { "; if the first line is a header, remove it" } else { "" };
                return Err(format!(
                    "class {number} is a number, but the lines before it have class names{header}"
                ));
            }
            Some(Class::Name(class)) => Some(number_of(&mut known, class)?),
            Some(Class::Number(number)) => Some(number),
            None => None,
        };
        if label.is_some() != (listing.labels.len() == listing.names.len()) && !listing.names.is_empty() {
            let (this, others) =
                if label.is_some() { ("has a class", "have none") } else { ("has no class", "have one") };
            return Err(format!(
                "`{text}` {this}, but the lines before it {others}; write a class in every line or in none (columns are \
                 separated by tabs)"
            ));
        }
        listing.names.push(name);
        label.into_iter().for_each(|label| listing.labels.push(label));
        Ok(())
    })?;
    if listing.names.is_empty() {
        return Err(DataError::layout(path, "the list is empty; write one `path<TAB>class` per line"));
    }
    listing.names.shrink();
    listing.labels.shrink();
    if !known.is_empty() {
        let mut classes: Vec<String> = known.keys().cloned().collect();
        classes.sort_unstable();
        renumber(&mut listing.labels, &known, &classes);
        listing.classes = Some(classes);
    }
    if let Some(repeated) = repeated(&listing.names) {
        refuse_repeated(&repeated, reader()?, path)?;
    }
    Ok(listing)
}

/// The number of the class called `name`: the order in which names appear.
fn number_of(known: &mut HashMap<String, u32>, name: &str) -> Result<u32, String> {
    if let Some(&number) = known.get(name) {
        return Ok(number);
    }
    let number = known.len() as u32;
    if number == MAX_CLASSES {
        return Err(format!("more than {MAX_CLASSES} class names; is the text after the tab a class?"));
    }
    known.insert(name.to_owned(), number);
    Ok(number)
}

/// Changes `labels`, which number names by `known`, to positions in `classes`, which has all these names.
fn renumber(labels: &mut Labels, known: &HashMap<String, u32>, classes: &[String]) {
    let mut to = vec![0; known.len()];
    for (position, class) in classes.iter().enumerate() {
        if let Some(&number) = known.get(class) {
            to[number as usize] = position as u32;
        }
    }
    labels.renumber(&to);
}

impl Listing {
    /// Numbers the classes by the names `all`, the lines of a `classes.txt`.
    ///
    /// # Errors
    /// The first name of the list that `all` does not have.
    pub(super) fn number_by(&mut self, all: &[String]) -> Result<(), String> {
        let Some(classes) = self.classes.take() else { return Ok(()) };
        let missing = classes.iter().find(|class| !all.contains(class));
        if let Some(class) = missing {
            return Err(format!("class `{class}` is not in classes.txt beside the list"));
        }
        let known = classes.into_iter().zip(0..).collect();
        renumber(&mut self.labels, &known, all);
        Ok(())
    }
}

/// A name that occurs more than once, if there is one. Only a part of the names' hashes is in memory at a
/// time.
fn repeated(names: &Names) -> Option<String> {
    let parts = names.len().div_ceil(COMPARED) as u64;
    (0..parts).find_map(|part| {
        // One buffer for all threads: the pieces of several would need twice the memory.
        let hashes = Mutex::new(Vec::with_capacity(COMPARED + COMPARED / 16));
        (0..names.blocks()).into_par_iter().with_min_len(64).for_each(|block| {
            let mut found = Vec::new();
            names.visit_block(block, |_, name| found.extend(Some(hash(name)).filter(|h| h % parts == part)));
            hashes.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        });
        let mut hashes: Vec<u64> = hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
        hashes.par_sort_unstable();
        let mut equal: Vec<u64> =
            hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        equal.dedup();
        // The memory is needed again below.
        drop(hashes);
        if equal.is_empty() { None } else { first_repeated(names, &equal) }
    })
}

/// The first name that occurs again, among the names whose hashes are in the sorted list `hashes`.
fn first_repeated(names: &Names, hashes: &[u64]) -> Option<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut found = None;
    names.visit(|_, name| {
        if found.is_none() && hashes.binary_search(&hash(name)).is_ok() {
            let count = counts.entry(name.to_owned()).or_default();
            *count += 1;
            if *count == 2 {
                found = Some(name.to_owned());
            }
        }
    });
    found
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The error for `repeated`, which names the first two lines that have it.
fn refuse_repeated(repeated: &str, reader: impl BufRead, path: &Path) -> Result<(), DataError> {
    let mut first = None;
    for_each_line(reader, path, |line, text| match (split_line(text), first) {
        (Ok((name, _)), Some(first)) if name == repeated => {
            Err(format!("`{name}` is already listed in line {first}; remove one of the two lines"))
        }
        (Ok((name, _)), None) if name == repeated => {
            first = Some(line);
            Ok(())
        }
        _ => Ok(()),
    })
}

/// The line of the list `path` that has image `index`; lines are counted from 1.
pub(super) fn line_of(path: &Path, index: usize) -> Result<usize, DataError> {
    let file = File::open(path).map_err(|error| DataError::io(path, error))?;
    let (mut before, mut found) = (0, 0);
    for_each_line(BufReader::new(file), path, |line, _| {
        if before == index {
            found = line;
        }
        before += 1;
        Ok(())
    })?;
    Ok(found)
}

/// Calls `each(line, text)` for every line that is not blank; lines are counted from 1. Line ends,
/// surrounding whitespace and a byte order mark are removed. An error of `each` becomes the line's.
fn for_each_line(
    mut reader: impl BufRead,
    path: &Path,
    mut each: impl FnMut(usize, &str) -> Result<(), String>,
) -> Result<(), DataError> {
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes);
        if read.map_err(|error| DataError::io(path, error))? == 0 {
            break;
        }
        let problem = |problem: String| DataError::List { path: path.to_owned(), line, problem };
        if bytes.len() as u64 == MAX_LINE && !bytes.ends_with(b"\n") {
            return Err(problem(format!("longer than {MAX_LINE} bytes; is this a list of images?")));
        }
        let text = if line == 1 { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes) } else { &bytes };
        let text = std::str::from_utf8(text)
            .map_err(|_| problem("not UTF-8 text; is this a list of images?".to_owned()))?
            .trim();
        if !text.is_empty() {
            each(line, text).map_err(problem)?;
        }
    }
    Ok(())
}

/// The class of a line.
enum Class<'a> {
    Number(u32),
    Name(&'a str),
}

/// Splits a line into path and class. Text after a tab is a class. Text after a space that is not a number
/// belongs to the path.
fn split_line(text: &str) -> Result<(&str, Option<Class<'_>>), String> {
    let (name, class, tab) = match (text.rsplit_once('\t'), text.rsplit_once(' ')) {
        (Some((name, class)), _) => (name, class, true),
        (None, Some((name, class))) => (name, class, false),
        (None, None) => return Ok((text, None)),
    };
    match class.trim().parse::<u32>() {
        Ok(label) if label < MAX_CLASSES => Ok((name.trim_end(), Some(Class::Number(label)))),
        Ok(label) => {
            Err(format!("class {label} is not below the limit of {MAX_CLASSES}; write path<TAB>class"))
        }
        Err(_) if looks_like_a_number(class) => {
            Err(format!("class `{class}` is not a whole number from 0 up; write path<TAB>class"))
        }
        Err(_) if tab => Ok((name.trim_end(), Some(Class::Name(class.trim())))),
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
pub(super) fn class_names(folder: &Path) -> Result<Option<Vec<String>>, DataError> {
    let path = folder.join("classes.txt");
    if !path.is_file() {
        return Ok(None);
    }
    let file = File::open(&path).map_err(|error| DataError::io(&path, error))?;
    let mut names = Vec::new();
    for_each_line(BufReader::new(file), &path, |_, text| {
        names.push(text.to_owned());
        Ok(())
    })?;
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_bytes(bytes: &[u8]) -> Result<Listing, String> {
        parse(|| Ok(bytes), Path::new("val_map.txt"), bytes.len() as u64).map_err(|error| error.to_string())
    }

    fn numbers(labels: &Labels) -> Vec<u32> {
        labels.iter().collect()
    }

    fn parse_text(text: &str) -> Result<Listing, String> {
        parse_bytes(text.as_bytes())
    }

    #[test]
    fn tabs_spaces_and_line_ends() {
        let listing = parse_text("\u{feff}a/b c.jpg\t3\r\n\r\nd.jpg   12 \ne f.jpg 0").unwrap();
        assert_eq!(listing.names.to_vec(), ["a/b c.jpg", "d.jpg", "e f.jpg"]);
        assert_eq!(numbers(&listing.labels), [3, 12, 0]);
        let unlabelled = parse_text("a b.jpg\nc.jpg\n").unwrap();
        assert_eq!(
            (unlabelled.names.to_vec(), numbers(&unlabelled.labels)),
            (vec!["a b.jpg".into(), "c.jpg".into()], vec![])
        );
    }

    #[test]
    fn classes_may_be_names() {
        let mut listing = parse_text("a.jpg\tzebra\nb 1.jpg\tant eater\nc.jpg\tzebra\n").unwrap();
        assert_eq!(listing.names.to_vec(), ["a.jpg", "b 1.jpg", "c.jpg"]);
        assert_eq!(numbers(&listing.labels), [1, 0, 1]);
        assert_eq!(listing.classes.as_ref().unwrap()[..], ["ant eater", "zebra"]);
        let all = ["zebra", "cat", "ant eater"].map(str::to_owned);
        listing.number_by(&all).unwrap();
        assert_eq!((numbers(&listing.labels), listing.classes), (vec![0, 2, 0], None));
        let mut listing = parse_text("a.jpg\tdog\n").unwrap();
        assert!(listing.number_by(&all).unwrap_err().contains("`dog`"));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, word) in [
            ("a.jpg\t0\nb.jpg\tcat\n", "line 2", "`cat`"),
            ("a.jpg\t-1\n", "line 1", "`-1`"),
            ("a.jpg 1.5\n", "line 1", "1.5"),
            ("a.jpg\t0\n\nb.jpg\n", "line 3", "no class"),
            ("a.jpg\nb.jpg\t0\n", "line 2", "has a class"),
            ("a.jpg\tcat\nb.jpg\t0\n", "line 2", "class names"),
            ("path\tlabel\na.jpg\t0\n", "line 2", "if the first line is a header, remove it"),
            ("a.jpg\t0\nb.jpg\t0\na.jpg\t1\n", "line 3", "line 1"),
            ("a.jpg\t4294967295\n", "line 1", "limit"),
            ("a.jpg\t4294967296\n", "line 1", "4294967296"),
        ] {
            let message = parse_text(text).unwrap_err();
            assert!(message.contains(line) && message.contains(word), "{text:?}: {message}");
        }
        assert!(parse_text(" \n\n").unwrap_err().contains("empty"));
        let message = parse_bytes(b"a.jpg\t0\n\xff\xfe\t1\n").unwrap_err();
        assert!(message.contains("val_map.txt, line 2") && message.contains("UTF-8"), "{message}");
        let long = "a".repeat(70_000);
        assert!(parse_text(&format!("b.jpg\n{long}\n")).unwrap_err().contains("line 2: longer"));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(listing) = parse_bytes(&bytes) {
                prop_assert!(listing.labels.is_empty() || listing.labels.len() == listing.names.len());
            }
        }

        #[test]
        fn a_written_list_is_read_back(
            entries in proptest::collection::btree_map("[a-z/._-]{1,12}[a-z]", 0_u32..1000, 1..30)
        ) {
            let text: String = entries.iter().map(|(name, label)| format!("{name}\t{label}\n")).collect();
            let listing = parse_text(&text).unwrap();
            prop_assert!(listing.names.to_vec().iter().eq(entries.keys()));
            prop_assert!(listing.labels.iter().eq(entries.values().copied()));
        }
    }
}
