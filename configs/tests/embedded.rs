//! Every YAML file of the folders is embedded under its own name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use swinq_configs::{BACKBONES, IMAGENET_1K, NamedYaml, QAT, QUANT, SWIN, SWINV2, find};

/// Name and text of every YAML file in a folder of this crate.
fn files(folder: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "yaml", "{} is not YAML", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        files.insert(name, fs::read_to_string(&path).unwrap());
    }
    files
}

fn embedded(table: &[NamedYaml]) -> BTreeMap<String, String> {
    table.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn every_file_is_embedded() {
    let folders =
        [("swin", SWIN), ("swinv2", SWINV2), ("backbones", BACKBONES), ("quant", QUANT), ("qat", QAT)];
    for (folder, table) in folders {
        assert_eq!(embedded(table), files(folder), "configs/{folder}");
        assert_eq!(embedded(table).len(), table.len(), "configs/{folder}: a name is listed twice");
    }
}

#[test]
fn an_entry_is_found_by_its_whole_name() {
    assert_eq!(find(QUANT, "mode1"), Some(files("quant")["mode1"].as_str()));
    assert_eq!(find(QUANT, "mode"), None);
}

#[test]
fn imagenet_has_1000_names() {
    let names: Vec<&str> = IMAGENET_1K.lines().collect();
    let known = [
        (0, "tench"),
        (134, "crane (bird)"),
        (281, "tabby"),
        (517, "crane (machine)"),
        (999, "toilet tissue"),
    ];
    for (class, name) in known {
        assert_eq!(names[class], name);
    }
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 1000, "a name occurs twice");
    assert_eq!((names.len(), IMAGENET_1K.contains('\r')), (1000, false));
    assert!(names.iter().all(|name| !name.is_empty() && name.trim() == *name));
}
