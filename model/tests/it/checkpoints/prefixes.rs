//! The beginnings of a network's names: wrappers of training programs, and other networks beside it.

use super::*;

/// Prefixes that training programs put before names.
const PREFIXES: [&str; 9] = [
    "module.",
    "_orig_mod.",
    "model.",
    "net.",
    "backbone.",
    "encoder.",
    "0.model.",
    "module._orig_mod.",
    "pipeline.stages.3.",
];

/// The tensors of a fixture in safetensors, each name after `prefix`.
fn prefixed(name: &str, prefix: &str) -> StateDict {
    expected(name).into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
}

fn written(tensors: &StateDict) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    write(tensors, &path);
    (folder, path)
}

#[test]
fn a_prefix_of_all_names_is_left_out_and_named() {
    let files = [
        ("expected.safetensors", "microsoft"),
        ("timm/model.safetensors", "timm"),
        ("hf/model.safetensors", "hf"),
    ];
    for (name, dialect) in files {
        for prefix in PREFIXES {
            let (_folder, path) = written(&prefixed(name, prefix));
            let loaded = load_float_with_remarks(&path, &options_with(&[])).unwrap();
            assert_eq!(loaded.model.tensors, expected("expected.safetensors"), "{name} {prefix}");
            assert_eq!(loaded.model.source.dialect, dialect);
            let remark = format!("the names of its tensors begin with `{prefix}`, which is left out");
            assert!(loaded.remarks[0].contains(&remark), "{:?}", loaded.remarks);
        }
    }
    let loaded = load_float_with_remarks(&fixture("ms_ddp.pth"), &options_with(&[])).unwrap();
    assert!(loaded.remarks[0].contains("begin with `module.`"), "{:?}", loaded.remarks);
}

#[test]
fn a_network_among_other_tensors_is_read_if_asked_for() {
    let mut tensors = prefixed("timm/model.safetensors", "student.net.");
    tensors.insert("loss.center".to_owned(), swinq_model::HostTensor::new([2], vec![0.0; 2]));
    let (_folder, path) = written(&tensors);
    let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
    for word in ["a network under `student.net.`", "1 other tensors (loss.center)", "--prefix student.net."] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    for prefix in ["student.net.", "student"] {
        let options = LoadOptions { prefix: Some(prefix.to_owned()), ..options_with(&[]) };
        let loaded = load_float_with_remarks(&path, &options).unwrap();
        assert_eq!(loaded.model.tensors, expected("expected.safetensors"));
        assert!(loaded.remarks[0].contains("are left out: loss.center"), "{:?}", loaded.remarks);
    }
    let options = LoadOptions { prefix: Some("teacher".to_owned()), ..options_with(&[]) };
    let message = load_float(&path, &options).unwrap_err().to_string();
    assert!(message.contains("no tensor whose name begins with `teacher.`"), "{message}");
}

#[test]
fn errors_name_the_tensor_as_the_file_does() {
    let mut tensors = prefixed("hf/model.safetensors", "module.");
    tensors.remove("module.classifier.bias");
    let (_folder, path) = written(&tensors);
    let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
    assert!(message.contains("`module.classifier.bias` in the names of hf"), "{message}");
}
