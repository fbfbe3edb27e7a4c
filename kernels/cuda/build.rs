//! Lists the files of `sources`, and declares the parameter structs of the kernels in Rust, from their
//! declarations in C.
//!
//! Each struct whose name ends with `Params`, and each struct that is a field of one or that a field points
//! to, becomes a `repr(C)` struct of the same name, in a module that has the name of its file without the
//! extension. A field is a number, a pointer (in Rust its address, a u64), an array or a struct. A
//! declaration of another form fails the build.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Text of each file by name.
type Sources = BTreeMap<String, String>;

/// A struct: the file that declares it, and its name.
type Struct<'a> = (&'a str, &'a str);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=sources");
    let folder = |variable| env::var(variable).expect("Cargo sets it");
    let (from, to) = (Path::new(&folder("CARGO_MANIFEST_DIR")).join("sources"), folder("OUT_DIR"));
    let write = |name, text| fs::write(Path::new(&to).join(name), text).expect("Cargo's folder is writable");
    let sources = read(&from);
    let entry = |name: &String| format!("({name:?}, include_str!({:?})),\n", from.join(name));
    write("sources.rs", format!("&[\n{}]\n", sources.keys().map(entry).collect::<String>()));
    write("params.rs", params(&sources));
}

fn read(folder: &Path) -> Sources {
    let entries = fs::read_dir(folder).expect("the package has sources");
    let paths = entries.map(|entry| entry.expect("the folder is readable").path());
    let name = |path: &Path| path.file_name().expect("it is a file").to_string_lossy().into_owned();
    // A checkout on Windows may have added carriage returns.
    let text = |path: &Path| fs::read_to_string(path).expect("sources are UTF-8").replace('\r', "");
    let is_source = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "cu" || kind == "cuh");
    paths.filter(is_source).map(|path| (name(&path), text(&path))).collect()
}

/// The Rust declarations of all parameter structs.
fn params(sources: &Sources) -> String {
    let mut open: Vec<Struct<'_>> = Vec::new();
    for (file, text) in sources {
        let names = text.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
        open.extend(names.filter(|name| name.ends_with("Params")).map(|name| (file.as_str(), name)));
    }
    let (mut done, mut modules) = (BTreeSet::new(), BTreeMap::<&str, String>::new());
    while let Some(next) = open.pop() {
        if done.insert(next) {
            *modules.entry(module(next.0)).or_default() += &declaration(sources, next, &mut open);
        }
    }
    modules.iter().map(|(module, structs)| format!("pub mod {module} {{\n{structs}}}\n")).collect()
}

fn module(file: &str) -> &str {
    file.split('.').next().unwrap_or(file)
}

/// The Rust declaration of a struct. Adds the structs among its fields to `others`.
fn declaration<'a>(sources: &'a Sources, (file, name): Struct<'a>, others: &mut Vec<Struct<'a>>) -> String {
    let parts: Vec<&str> = sources[file].split(&opening(name)).collect();
    let [before, after] = parts[..] else { panic!("{file} declares {name} more than once") };
    let above: Vec<&str> = before.lines().rev().take_while(|line| line.starts_with("//")).collect();
    let about: String = above.into_iter().rev().map(doc).collect();
    let (mut fields, mut comment) = (String::new(), String::new());
    for line in after.lines().take_while(|line| *line != "};").map(str::trim) {
        if line.starts_with("//") {
            comment += &doc(line);
            continue;
        }
        let (of, names) = split(line).unwrap_or_else(|| panic!("{file}: {name}: Rust has no field `{line}`"));
        let of = rust_type(sources, (file, of), others);
        for field in names.split(", ") {
            let array = field.split_once('[').map(|(field, len)| (field, format!("[{of}; {len}")));
            let (field, of) = array.unwrap_or_else(|| (field, of.clone()));
            fields += &format!("{comment}pub {field}: {of},\n");
        }
        comment.clear();
    }
    let more = if fields.contains("crate::") { "" } else { ", Debug, Default, PartialEq" };
    let parameter = format!(
        "// SAFETY: `repr(C)`, with the fields of `{name}` in {file} in the same order.\n\
         unsafe impl crate::Params for {name} {{}}\n"
    );
    let parameter = if name.ends_with("Params") { parameter } else { String::new() };
    format!("{about}#[repr(C)]\n#[derive(Clone, Copy{more})]\npub struct {name} {{\n{fields}}}\n{parameter}")
}

/// The line that begins the declaration of `name`.
fn opening(name: &str) -> String {
    format!("\nstruct {name} {{\n")
}

/// A comment of C as one of Rust's documentation.
fn doc(comment: &str) -> String {
    format!("/{comment}\n")
}

/// Type and names of a declaration of fields. In C, only the first of several names would be a pointer.
fn split(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_suffix(';')?;
    let end = line.rfind("* ").map(|star| star + 1).or_else(|| line.find(' '))?;
    let (of, names) = (&line[..end], &line[end + 1..]);
    (!of.ends_with('*') || !names.contains(',')).then_some((of, names))
}

/// Rust's name of a type in `file`. Adds the type, or the type that it points to, to `others` if that is a
/// struct of the sources.
fn rust_type<'a>(sources: &'a Sources, (file, c): Struct<'a>, others: &mut Vec<Struct<'a>>) -> String {
    let name = c.trim_start_matches("const ").trim_end_matches('*');
    let from = declaring(sources, file, name);
    others.extend(from.map(|from| (from, name)));
    match (c, from) {
        ("s32", _) => "i32".to_owned(),
        ("u32" | "u64" | "f32" | "f64", _) => c.to_owned(),
        // The driver fills it, and Rust alone knows how.
        ("TensorMap", _) => "crate::TensorMap".to_owned(),
        _ if c.ends_with('*') => "u64".to_owned(),
        (_, Some(from)) => format!("super::{}::{name}", module(from)),
        _ => panic!("{file}: Rust has no type `{c}`"),
    }
}

/// The file that declares `name`: `file`, or one that it includes.
fn declaring<'a>(sources: &'a Sources, file: &str, name: &str) -> Option<&'a str> {
    let (file, text) = sources.get_key_value(file)?;
    if text.contains(&opening(name)) {
        return Some(file);
    }
    let mut included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    included.find_map(|file| declaring(sources, file, name))
}
