//! Replays the corpora of the fuzz targets (`fuzz/corpus`): seeds and former findings.

#[path = "../../fuzz/src/job.rs"]
mod job;
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

use crate::common::root;

/// The target's name, its function, and whether its seeds are the images of `data/tests/fixtures` too.
type Target = (&'static str, fn(&[u8]) -> bool, bool);

const TARGETS: [Target; 18] = [
    ("safetensors", targets::safetensors, false),
    ("quantized", targets::quantized, false),
    ("index", targets::index, false),
    ("part", targets::part, false),
    ("torch", targets::torch, false),
    ("pickle", targets::pickle, false),
    ("png", targets::png, true),
    ("jpeg", targets::jpeg, true),
    ("webp", targets::webp, true),
    ("bmp", targets::bmp, true),
    ("tiff", targets::tiff, true),
    ("netpbm", targets::netpbm, true),
    ("list", targets::list, false),
    ("map", targets::map, false),
    ("archive", targets::archive, false),
    ("config", targets::config, false),
    ("recipe", targets::recipe, false),
    ("job", job::job, false),
];

/// The files of a folder, sorted.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Every input is handled as its target demands, and every target has an input that is accepted. A panic
/// fails, and so does an input that its reader does not answer.
#[test]
fn every_corpus_is_replayed() {
    let root = &root();
    for (name, target, images) in TARGETS {
        let mut inputs = files(&targets::corpus(root, name));
        if images {
            inputs.extend(files(&root.join("data/tests/fixtures")));
        }
        assert!(!inputs.is_empty(), "{name} has no inputs");
        let accepted = inputs.iter().filter(|input| target(input)).count();
        assert!(accepted > 0, "{name}: none of {} inputs is accepted", inputs.len());
        // A truncated input of every target is handled too.
        for input in &inputs {
            target(&input[..input.len() / 2]);
        }
    }
}

/// A target that is not replayed would not be tested.
#[test]
fn every_target_is_replayed() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    let declared: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")).collect();
    let replayed: Vec<String> = TARGETS.iter().map(|(name, ..)| format!("{name}.rs\"")).collect();
    assert_eq!(declared, replayed);
}
