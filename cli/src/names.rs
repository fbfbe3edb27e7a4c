//! Short names of models: `--name A=float --name q.safetensors=default`.

use std::path::PathBuf;

use crate::args::Usage;

/// The name that the arguments `KEY=NAME` give to each of `models`, if any. A key is a model's path as given,
/// or the letter of its place: A for the first.
fn names(models: &[PathBuf], arguments: &[String]) -> Result<Vec<Option<String>>, Usage> {
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

/// The name of each of `models` in everything that is printed and written: the one that the arguments give,
/// or that of the file.
pub fn shown(models: &[PathBuf], arguments: &[String]) -> Result<Vec<String>, Usage> {
    let paths: Vec<String> = models.iter().map(|path| path.display().to_string()).collect();
    let files = swinq::eval::file_names(&paths.iter().map(String::as_str).collect::<Vec<_>>());
    let given = names(models, arguments)?;
    Ok(given.into_iter().zip(files).map(|(given, file)| given.unwrap_or(file)).collect())
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
    fn a_model_without_a_name_has_that_of_its_file() {
        let models = ["runs/a/float.pth", "runs/b/q.safetensors", "runs/timm/"].map(PathBuf::from);
        let shown = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
            shown(&models, &arguments).unwrap()
        };
        assert_eq!(shown(&[]), ["float", "q", "timm"]);
        assert_eq!(shown(&["B=tuned"]), ["float", "tuned", "timm"]);
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
