//! Short names of the models of a report.

use crate::results::ModelResult;

/// Extensions of model files, which short names leave out.
const EXTENSIONS: [&str; 5] = [".safetensors", ".pth", ".pt", ".bin", ".onnx"];

/// A short name for each model, all different: the name without folders and extension. If files of different
/// folders would have equal names, only the folders that all models share are left out. Models that still
/// have equal names also show their precision and backend, and then a number.
pub fn short_names(models: &[ModelResult]) -> Vec<String> {
    let full: Vec<&str> = models.iter().map(|model| &model.name[..]).collect();
    let mut names = file_names(&full);
    number_equal(&mut names, |i| format!(" ({}, {})", models[i].precision, models[i].backend));
    number_equal(&mut names, |i| format!(" #{}", i + 1));
    names
}

/// The names of models in tables and reports: those of their files, without folders and extensions. If files
/// of different folders would have equal names, only the folders that all share are left out. Equal paths
/// have equal names.
pub fn file_names(paths: &[&str]) -> Vec<String> {
    let full: Vec<&str> = paths.iter().map(|path| path.trim_end_matches('/')).collect();
    let file = |name: &str| name.rfind('/').map_or(0, |end| end + 1);
    let stem = |name: &'_ str, from: usize| without_extension(&name[from..]).to_owned();
    let ambiguous = |a: &&str| full.iter().any(|b| a != b && stem(a, file(a)) == stem(b, file(b)));
    let shared = full.iter().any(ambiguous).then(|| shared_folders(&full));
    full.iter().map(|name| stem(name, shared.unwrap_or(file(name)))).collect()
}

/// Length of the longest prefix of folders that all names have in common.
fn shared_folders(names: &[&str]) -> usize {
    let folders = |name: &str| name.rfind('/').map_or(0, |end| end + 1);
    let Some(first) = names.first() else { return 0 };
    let mut shared = folders(first);
    for name in names {
        let common = first.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        shared = shared.min(common).min(folders(name));
        shared = first[..floor_boundary(first, shared)].rfind('/').map_or(0, |end| end + 1);
    }
    shared
}

/// The largest character boundary of `text` that is at most `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

fn without_extension(name: &str) -> &str {
    let stems = EXTENSIONS.iter().filter_map(|extension| name.strip_suffix(extension));
    stems.into_iter().find(|stem| !stem.is_empty()).unwrap_or(name)
}

/// Appends `suffix(i)` to every name that is not unique.
fn number_equal(names: &mut [String], suffix: impl Fn(usize) -> String) {
    let before = names.to_vec();
    for (i, name) in names.iter_mut().enumerate() {
        if before.iter().filter(|other| *other == name).count() > 1 {
            name.push_str(&suffix(i));
        }
    }
}

/// Shortens `text` to at most `length` characters by replacing its middle with an ellipsis.
pub fn shorten(text: &str, length: usize) -> String {
    let count = text.chars().count();
    if count <= length {
        return text.to_owned();
    }
    let (head, tail) = (length / 2, length - length / 2 - 1);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Precision;

    fn named(names: &[(&str, &str)]) -> Vec<String> {
        let model = |&(name, backend): &(&str, &str)| ModelResult::new(name, Precision::Int8, backend);
        short_names(&names.iter().map(model).collect::<Vec<_>>())
    }

    #[test]
    fn shared_folders_and_extensions_are_left_out() {
        assert_eq!(named(&[("/a/b/x.pth", "cpu"), ("/a/b/y.safetensors", "cpu")]), ["x", "y"]);
        assert_eq!(named(&[("/a/b/x.pth", "cpu"), ("/a/c/x.pth", "cpu")]), ["b/x", "c/x"]);
        assert_eq!(named(&[("/a/b/", "cpu")]), ["b"]);
        assert_eq!(named(&[("float", "cpu"), ("runs/q.int8.safetensors", "cpu")]), ["float", "q.int8"]);
        assert_eq!(named(&[("é/é.pth", "cpu"), ("é/è.pth", "cpu")]), ["é", "è"]);
        assert_eq!(named(&[(".pth", "cpu"), ("", "cpu")]), [".pth", ""]);
        assert_eq!(named(&[]), Vec::<String>::new());
    }

    #[test]
    fn equal_names_are_told_apart() {
        let found = named(&[("q", "cpu"), ("q", "cuda"), ("r", "cpu"), ("q", "cpu")]);
        assert_eq!(found, ["q (int8, cpu) #1", "q (int8, cuda)", "r", "q (int8, cpu) #4"]);
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("abcdefghij", 5), "ab…ij");
        assert_eq!(shorten("äöüß", 4), "äöüß");
    }
}
