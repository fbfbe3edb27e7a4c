//! The messages in the sources that name an option of the program.

use std::path::{Path, PathBuf};

use crate::common::root;

/// The folders of the sources that are searched. Most strings of the program (`cli`) are names of its
/// arguments.
const FOLDERS: [&str; 3] = ["model/src", "qat/src", "src"];

/// A string in a source.
pub struct Literal {
    /// The file and the line in which it begins.
    pub place: String,
    /// Its text, with `{...}` for values.
    pub text: String,
}

impl Literal {
    /// The options that it names, such as `--cfg`.
    pub fn options(&self) -> Vec<String> {
        options(&self.text)
    }

    /// Whether `message` has its text, with any values.
    pub fn is_in(&self, message: &str) -> bool {
        let mut rest = message;
        self.fixed().iter().all(|part| {
            let found = rest.find(part.as_str());
            found.inspect(|at| rest = &rest[at + part.len()..]).is_some()
        })
    }

    /// Its text between the values.
    fn fixed(&self) -> Vec<String> {
        let text = self.text.replace("{{", "\u{1}").replace("}}", "\u{2}");
        let parts = text.split('{').enumerate().map(|(index, part)| match index {
            0 => part,
            _ => part.split_once('}').map_or("", |(_, rest)| rest),
        });
        parts.map(|part| part.replace('\u{1}', "{").replace('\u{2}', "}")).collect()
    }
}

/// The options in `text`: words that begin with `--` and a letter.
pub fn options(text: &str) -> Vec<String> {
    let starts = text.match_indices("--").map(|(at, _)| at).filter(|&at| !text[..at].ends_with('-'));
    let word = |at: usize| {
        let name: String = text[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')
            .collect();
        name.starts_with(|c: char| c.is_ascii_lowercase())
            .then(|| format!("--{}", name.trim_end_matches('-')))
    };
    starts.filter_map(word).collect()
}

/// The strings in the sources that name an option, without those of tests and comments.
pub fn all() -> Vec<Literal> {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    files.sort();
    let named = files.iter().flat_map(|path| in_file(path)).filter(|literal| !literal.options().is_empty());
    named.collect()
}

/// The files of Rust in `folder` and below, without tests.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// The strings in the file at `path`, up to its tests.
fn in_file(path: &Path) -> Vec<Literal> {
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split_once("#[cfg(test)]\nmod ").map_or(&text[..], |(code, _)| code);
    let shown = path.strip_prefix(root()).unwrap().display().to_string();
    strings(code).into_iter().map(|(line, text)| Literal { place: format!("{shown}:{line}"), text }).collect()
}

/// The strings in Rust's `code`, each with its line.
fn strings(code: &str) -> Vec<(usize, String)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let line = || code[..at].matches('\n').count() + 1;
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("r\"")
            || rest.starts_with("r#") && rest.trim_start_matches(['r', '#']).starts_with('"')
        {
            let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
            let start = 2 + hashes;
            let end = format!("\"{}", "#".repeat(hashes));
            let length = rest[start..].find(&end).expect("the string ends");
            found.push((line(), rest[start..start + length].to_owned()));
            at += start + length + end.len();
        } else if c == '"' {
            let (text, length) = quoted(&rest[1..]);
            found.push((line(), text));
            at += 1 + length;
        } else if c == '\'' {
            // A character, or a lifetime.
            at += match rest[1..].char_indices().nth(1) {
                Some((1.., '\'')) => 2 + rest[1..].chars().next().map_or(0, char::len_utf8),
                _ if rest[1..].starts_with('\\') => 2 + rest[2..].find('\'').unwrap_or(0) + 1,
                _ => 1,
            };
        } else {
            at += c.len_utf8();
        }
    }
    found
}

/// The string that begins behind its quote, and the bytes up to behind the closing one.
fn quoted(text: &str) -> (String, usize) {
    let (mut out, mut chars) = (String::new(), text.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (out, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n')) => out.push('\n'),
                Some((_, c)) => out.push(c),
                None => break,
            },
            c => out.push(c),
        }
    }
    panic!("a string without an end: {out}")
}

#[test]
fn strings_of_a_source_are_found() {
    let code = "// \"no --a\"\nlet x = '\"'; let y: &'a str = \"it's {x:?}: --bc or \\\n      --d\"; r#\"--e \"f\"\"#; '\\''; \"g\"";
    let found = strings(code);
    assert_eq!(
        found,
        [(2, "it's {x:?}: --bc or --d".to_owned()), (3, "--e \"f\"".to_owned()), (3, "g".to_owned())]
    );
    let literal = Literal { place: String::new(), text: found[0].1.clone() };
    assert_eq!(literal.options(), ["--bc", "--d"]);
    assert!(literal.is_in("error: it's 3: --bc or --d.") && !literal.is_in("it's 3: --d or --bc"));
    assert_eq!(options("a---b -- --cfg=x ---"), ["--cfg"]);
}
