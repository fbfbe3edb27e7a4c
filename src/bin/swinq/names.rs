//! Short names of models: `--name A=float --name q.safetensors=default`.

use std::path::{Path, PathBuf};

use crate::args::Usage;

/// The name that the arguments `KEY=NAME` give to each of `models`, if any. A key is a model's path as given, or the
/// letter of its place: A for the first.
pub fn names(models: &[PathBuf], arguments: &[String]) -> Result<Vec<Option<String>>, Usage> {
    let mut names: Vec<Option<String>> = vec![None; models.len()];
    for argument in arguments {
        let refuse = |problem: &str| Err(Usage(format!("--name {argument}: {problem}")));
        let by_path = models.iter().enumerate().find_map(|(i, path)| {
            let rest = argument.strip_prefix(path.to_str()?)?.strip_prefix('=')?;
            Some((i, rest))
        });
        let by_letter = || {
            let (key, name) = argument.split_once('=')?;
            let letter = key.chars().next().filter(|_| key.len() == 1)?;
            let index = letter.to_ascii_uppercase() as usize;
            Some((index.checked_sub('A' as usize).filter(|&i| i < models.len().min(26))?, name))
        };
        let Some((index, name)) = by_path.or_else(by_letter) else {
            let last = (b'A' + models.len().clamp(1, 26) as u8 - 1) as char;
            return refuse(&format!(
                "give KEY=NAME, where KEY is a letter (A for the first model, {last} for the last) or a model's path as \
                 given"
            ));
        };
        if name.is_empty() {
            return refuse("the name is empty");
        }
        if names[index].is_some() {
            return refuse(&format!("{} has a name already", models[index].display()));
        }
        if names.iter().flatten().any(|other| other == name) {
            return refuse("another model has this name; give each its own");
        }
        names[index] = Some(name.to_owned());
    }
    Ok(names)
}

/// The name to show for the model at `path`.
pub fn shown(path: &Path, name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(arguments: &[&str]) -> Result<Vec<Option<String>>, String> {
        let models = ["m/a=b.pth", "q.safetensors"].map(PathBuf::from);
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        names(&models, &arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_letters_or_paths() {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(named(&[]).unwrap(), [None, None]);
        assert_eq!(named(&["b=x=y"]).unwrap(), [None, some("x=y")]);
        assert_eq!(named(&["m/a=b.pth=float", "q.safetensors=q"]).unwrap(), [some("float"), some("q")]);
    }

    #[test]
    fn other_names_are_refused() {
        for (arguments, problem) in [
            (&["C=x"][..], "B for the last"),
            (&["x"], "KEY=NAME"),
            (&["=x"], "KEY=NAME"),
            (&["A="], "empty"),
            (&["A=x", "A=y"], "a name already"),
            (&["A=x", "B=x"], "another model"),
        ] {
            let error = named(arguments).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
