//! Errors of the YAML reader in one line.

/// The problem and its place: the reader's message without the lines of the file, which it would repeat.
pub fn problem(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

/// Where the problem is, without any text of the file.
pub(crate) fn place(error: &serde_saphyr::Error) -> String {
    match error.location() {
        Some(location) => format!("line {} column {}", location.line(), location.column()),
        None => "an unknown place".to_owned(),
    }
}
