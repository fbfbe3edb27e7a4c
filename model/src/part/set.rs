//! All parts of one run.

use std::path::{Path, PathBuf};

use super::difference::first_difference;
use super::file::{PartFile, stated_document};
use super::{PartDocument, PartKind};
use crate::error::ModelError;

/// The most shards that a message lists.
const LISTED: usize = 8;

/// The parts of one run, in the order of their shards, which is that of the images.
#[derive(Debug)]
pub struct PartSet {
    parts: Vec<(PathBuf, PartDocument)>,
}

impl PartSet {
    /// Checks that `paths` are the parts of one run, each once and in any order. Only headers are read.
    ///
    /// # Errors
    /// [`ModelError::Io`] and [`ModelError::File`] for a file that is no part or damaged;
    /// [`ModelError::File`] for parts of different runs, which names the difference, and for shards that are
    /// missing or given twice.
    ///
    /// # Panics
    /// If `paths` is empty.
    pub fn open(paths: &[PathBuf]) -> Result<PartSet, ModelError> {
        let documents = paths.iter().map(|path| Ok((path.clone(), stated_document(path)?)));
        let mut parts = documents.collect::<Result<Vec<_>, ModelError>>()?;
        assert!(!parts.is_empty(), "there is a part");
        for other in &parts[1..] {
            check_same_run(&parts[0], other)?;
        }
        parts.sort_by_key(|(_, document)| document.shard.index);
        if let Some(pair) = parts.windows(2).find(|pair| pair[0].1.shard == pair[1].1.shard) {
            let problem = match pair[0].0 == pair[1].0 {
                true => "is given twice; give each part once".to_owned(),
                false => {
                    format!("is shard {}, as {} is; leave one out", pair[1].1.shard, pair[0].0.display())
                }
            };
            return Err(ModelError::file(&pair[1].0, problem));
        }
        let set = PartSet { parts };
        match set.missing() {
            Some(problem) => Err(ModelError::file(&set.parts[0].0, problem)),
            None => Ok(set),
        }
    }

    /// The problem, if shards are missing.
    fn missing(&self) -> Option<String> {
        let shard = self.parts[0].1.shard;
        let mut present = vec![false; shard.count];
        self.parts.iter().for_each(|(_, document)| present[document.shard.index - 1] = true);
        let missing: Vec<usize> = (1..=shard.count).filter(|index| !present[index - 1]).collect();
        if missing.is_empty() {
            return None;
        }
        let listed = missing.iter().take(LISTED).map(|index| format!("{index}/{}", shard.count));
        let mut list = listed.collect::<Vec<_>>().join(", ");
        if missing.len() > LISTED {
            list += &format!(" and {} more", missing.len() - LISTED);
        }
        let (shards, are) = if missing.len() == 1 { ("shard", "is") } else { ("shards", "are") };
        Some(format!(
            "is one of {} parts, of which {shards} {list} {are} missing; run {} with --shard, or name the files",
            shard.count,
            if missing.len() == 1 { "it" } else { "them" }
        ))
    }

    /// The kind of the parts.
    pub fn kind(&self) -> PartKind {
        self.parts[0].1.kind
    }

    /// Number of parts.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The paths, in the order of the shards.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|(path, _)| path.as_path())
    }

    /// Reads the parts one after the other, in the order of the shards.
    ///
    /// # Errors
    /// Those of [`PartFile::read`] for each, and [`ModelError::File`] if the file was replaced.
    pub fn files(&self) -> impl Iterator<Item = Result<PartFile, ModelError>> {
        self.parts.iter().map(|(path, document)| {
            let file = PartFile::read(path)?;
            match file.document() == document {
                true => Ok(file),
                false => Err(ModelError::file(path, "was replaced while it was read; merge again")),
            }
        })
    }
}

/// Refuses two parts that are not of one run.
fn check_same_run(
    (first, a): &(PathBuf, PartDocument),
    (path, b): &(PathBuf, PartDocument),
) -> Result<(), ModelError> {
    let first = first.display();
    if a.kind != b.kind {
        let problem =
            format!("is a part of {}, but {first} is a part of {}; merge them apart", b.kind, a.kind);
        return Err(ModelError::file(path, problem));
    }
    if a.shard.count != b.shard.count {
        let problem = format!(
            "is shard {}, but {first} is shard {}: the parts are of different runs; run all shards with the same N",
            b.shard, a.shard
        );
        return Err(ModelError::file(path, problem));
    }
    if let Some((field, here, there)) = first_difference(&b.run, &a.run) {
        let problem = format!(
            "is a part of another run than {first}: `{field}` is {here} here and {there} there; run both shards with the \
             same model, images and options"
        );
        return Err(ModelError::file(path, problem));
    }
    Ok(())
}
