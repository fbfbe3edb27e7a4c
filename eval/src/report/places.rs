//! Names of sites and launches, split into the module and the place in it.

/// Splits a name into its module (`2.11` for block 11 of stage 2, `merge 0` for a patch merging, or the first
/// part) and its place in the module.
pub fn split(name: &str) -> (String, String) {
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["layers", stage, "blocks", block, rest @ ..] if !rest.is_empty() => {
            (format!("{stage}.{block}"), rest.join("."))
        }
        ["layers", stage, "downsample", .., last] => (format!("merge {stage}"), (*last).to_owned()),
        ["patch_embed", .., last] => ("patches".to_owned(), (*last).to_owned()),
        [first, .., last] if parts.len() > 1 => ((*first).to_owned(), (*last).to_owned()),
        _ => (name.to_owned(), String::new()),
    }
}

/// The distinct values, in order of first appearance.
pub fn in_order<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// The distinct names in order of first appearance, each with its number if that is not 1:
/// `a (12), b, c (2)`.
pub fn counted(names: &[String]) -> String {
    let shown =
        in_order(names).into_iter().map(|name| match names.iter().filter(|other| *other == name).count() {
            1 => name.clone(),
            count => format!("{name} ({count})"),
        });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_module_and_place() {
        let cases = [
            ("layers.2.blocks.11.mlp.fc1.input", ("2.11", "mlp.fc1.input")),
            ("layers.0.downsample.reduction.weight", ("merge 0", "weight")),
            ("patch_embed.proj.input", ("patches", "input")),
            ("head.output", ("head", "output")),
            ("odd", ("odd", "")),
            ("layers.0.blocks.1", ("layers", "1")),
        ];
        for (name, (module, place)) in cases {
            assert_eq!(split(name), (module.to_owned(), place.to_owned()), "{name}");
        }
    }

    #[test]
    fn equal_names_are_counted() {
        assert_eq!(counted(&["a", "b", "a"].map(str::to_owned)), "a (2), b");
    }
}
