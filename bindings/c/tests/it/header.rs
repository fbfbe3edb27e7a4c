//! `include/swinq.h` declares what the crate exports: the same functions with the same parameters, and the
//! same structures with the same fields, in the same order. cbindgen writes the header, but is not a
//! dependency.

use std::collections::BTreeMap;

/// Functions and structures by name, with the names of their parameters or fields.
type Declarations = BTreeMap<String, Vec<String>>;

fn file(path: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// The texts between each `before` and the next `after`, split at the end of the name that they begin with.
fn named<'a>(text: &'a str, before: &str, after: &str) -> Vec<(&'a str, &'a str)> {
    let bodies = text.split(before).skip(1).filter_map(|rest| rest.split_once(after));
    bodies.filter_map(|(body, _)| body.split_once(['(', '{', ' '])).collect()
}

/// The last identifier of a declaration in C, without the length of an array; of a function's pointer the
/// name of the pointer.
fn c_name(declaration: &str) -> Option<String> {
    let declaration = declaration.rsplit_once('[').map_or(declaration, |(declaration, _)| declaration);
    let declaration =
        declaration.split_once("(*").map_or(declaration, |(_, rest)| rest.split(')').next().unwrap());
    let name =
        declaration.rsplit(|c: char| !c.is_alphanumeric() && c != '_').find(|word| !word.is_empty())?;
    (name != "void").then(|| name.to_owned())
}

/// The name in `name: type`, behind `pub` if there is one, without the `r#` of a name that is a word of Rust.
fn rust_name(declaration: &str) -> Option<String> {
    let (name, _) = declaration.split_once(':')?;
    Some(name.trim().trim_start_matches("pub ").trim_start_matches("r#").to_owned())
}

/// The functions and structures of the header.
fn of_header() -> [Declarations; 2] {
    let text = file("include/swinq.h");
    let functions = text.split(';').filter_map(|statement| {
        let (head, parameters) = statement.split_once("(")?;
        let name = c_name(head).filter(|name| name.starts_with("swinq_"))?;
        let parameters = parameters.trim_end().strip_suffix(')')?;
        Some((name, parameters.split(',').filter_map(c_name).collect()))
    });
    let structures = named(&text, "typedef struct ", "\n}");
    let fields = |body: &str| body.split(";\n").filter_map(c_name).collect();
    let structures = structures.into_iter().filter(|(_, body)| body.contains('\n'));
    [functions.collect(), structures.map(|(name, body)| (name.to_owned(), fields(body))).collect()]
}

/// The functions and structures of the crate.
fn of_crate() -> [Declarations; 2] {
    let modules = ["mod", "model", "image", "engine", "tensor", "run", "device"];
    let text = modules.map(|module| file(&format!("src/exports/{module}.rs"))).join("\n");
    let parameters = |body: &str| body.split(',').filter_map(rust_name).collect();
    let functions = named(&text, "pub extern \"C\" fn ", ")").into_iter();
    let functions = functions.chain(named(&text, "pub unsafe extern \"C\" fn ", ")"));
    let fields =
        |body: &str| body.lines().filter(|line| line.contains("pub ")).filter_map(rust_name).collect();
    let structures = named(&text, "#[repr(C)]\n#[derive(Clone, Copy)]\npub struct ", "\n}").into_iter();
    [
        functions.map(|(name, body)| (name.to_owned(), parameters(body))).collect(),
        structures.map(|(name, body)| (name.to_owned(), fields(body))).collect(),
    ]
}

#[test]
fn the_header_declares_what_the_crate_exports() {
    let ([functions, structures], [exported, laid_out]) = (of_header(), of_crate());
    assert!(functions.len() >= 16 && structures.len() >= 6, "{functions:?} {structures:?}");
    assert!(functions["swinq_engine_run"].len() == 6 && structures["swinq_tensor"].len() == 10);
    assert_eq!(functions, exported);
    assert_eq!(structures, laid_out);
}
