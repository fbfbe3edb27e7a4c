//! Endings of the names of files, which state their formats.

use std::path::{Path, PathBuf};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A safetensors file: a checkpoint, or feature maps.
    Safetensors,
    /// An ONNX graph.
    Onnx,
    /// An HTML page.
    Html,
    /// Markdown.
    Markdown,
    /// JSON.
    Json,
    /// CSV.
    Csv,
}

/// The kinds, with their endings. Messages propose the first ending of a kind.
const ENDINGS: [(FileKind, &str, &[&str]); 6] = [
    (FileKind::Safetensors, "a safetensors file", &["safetensors"]),
    (FileKind::Onnx, "an ONNX file", &["onnx"]),
    (FileKind::Html, "an HTML page", &["html", "htm"]),
    (FileKind::Markdown, "Markdown", &["md", "markdown"]),
    (FileKind::Json, "JSON", &["json"]),
    (FileKind::Csv, "CSV", &["csv"]),
];

/// Endings of formats that swinq does not write.
const OTHERS: [&str; 14] = [
    "npz", "npy", "pt", "pth", "bin", "pkl", "pdf", "xml", "zip", "engine", "xlsx", "xls", "docx", "parquet",
];

impl FileKind {
    /// Refuses a name with the ending of another format. Any other ending, or none, is accepted.
    ///
    /// # Errors
    /// The format of the file, and a name for it.
    pub fn check(self, path: &Path) -> Result<(), String> {
        let Some(ending) = path.extension() else { return Ok(()) };
        let ending = ending.to_string_lossy().to_ascii_lowercase();
        let (_, holds, own) = ENDINGS[self as usize];
        let is_of = |endings: &[&str]| endings.contains(&ending.as_str());
        if is_of(own) || !(is_of(&OTHERS) || ENDINGS.iter().any(|(.., endings)| is_of(endings))) {
            return Ok(());
        }
        Err(format!(
            "the file is {holds}, not a .{ending} file; name it {}",
            path.with_extension(own[0]).display()
        ))
    }

    /// The same for the value of an option.
    ///
    /// # Errors
    /// The errors of [`FileKind::check`].
    pub fn named(self, path: PathBuf) -> Result<PathBuf, String> {
        self.check(&path).map(|()| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_kinds() {
        assert!(ENDINGS.iter().enumerate().all(|(index, (kind, ..))| *kind as usize == index));
    }

    #[test]
    fn an_ending_of_another_format_is_refused() {
        for (kind, name) in [
            (FileKind::Html, "report.html"),
            (FileKind::Html, "REPORT.HTM"),
            (FileKind::Html, "report.2026-11-30"),
            (FileKind::Markdown, "report"),
            (FileKind::Safetensors, "maps.safetensors.tmp"),
            (FileKind::Json, "-"),
        ] {
            assert_eq!(kind.check(Path::new(name)), Ok(()), "{name}");
        }
        let refused = FileKind::Html.check(Path::new("out/report.MD")).unwrap_err();
        assert_eq!(refused, "the file is an HTML page, not a .md file; name it out/report.html");
        assert!(
            FileKind::Safetensors.check(Path::new("maps.npz")).unwrap_err().ends_with("maps.safetensors")
        );
        assert!(FileKind::Onnx.check(Path::new("x.safetensors")).is_err());
    }
}
