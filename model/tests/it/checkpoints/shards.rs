//! Models whose weights are split over several files with an index.

use serde_json::{Value, json};

use super::*;

/// The folder `hf` with its weights in two shards. The first has the names up to the middle.
fn sharded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "preprocessor_config.json"] {
        fs::copy(fixture("hf").join(name), folder.path().join(name)).unwrap();
    }
    let mut first = expected("hf/model.safetensors");
    let middle = first.keys().nth(first.len() / 2).unwrap().clone();
    let second = first.split_off(&middle);
    let mut map = serde_json::Map::new();
    for (file, tensors) in [(SHARDS[0], first), (SHARDS[1], second)] {
        map.extend(tensors.keys().map(|name| (name.clone(), json!(file))));
        write(&tensors, &folder.path().join(file));
    }
    write_index(folder.path(), &json!({"metadata": {"total_size": 1}, "weight_map": map}));
    folder
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const INDEX: &str = "model.safetensors.index.json";

fn write_index(folder: &Path, index: &Value) {
    fs::write(folder.join(INDEX), index.to_string()).unwrap();
}

fn index(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join(INDEX)).unwrap()).unwrap()
}

fn loaded(path: &Path) -> Result<FloatModel, String> {
    load_float(path, &LoadOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn shards_are_read_as_one_file() {
    let folder = sharded();
    let whole = load_float(&fixture("hf"), &LoadOptions::default()).unwrap();
    let model = loaded(folder.path()).unwrap();
    assert_eq!((&model.tensors, &model.labels), (&whole.tensors, &whole.labels));
    assert_eq!((model.source.sha256.len(), model.source.sha256 == whole.source.sha256), (64, false));
    assert!(model.source.file.ends_with(INDEX), "{}", model.source.file);
    // The index alone, with a configuration.
    let by_index = load_float(&folder.path().join(INDEX), &options_with(&[])).unwrap();
    assert_eq!((by_index.tensors, by_index.source.sha256), (model.tensors, model.source.sha256));
}

/// One shard lacks stages, which is no matter of the configuration.
#[test]
fn a_shard_alone_names_its_index() {
    let folder = sharded();
    let index = folder.path().join(INDEX);
    for name in SHARDS {
        let shard = folder.path().join(name);
        let message = load_float(&shard, &options_with(&[])).unwrap_err().to_string();
        let wanted = format!(
            "{}: is one of the shards of a model; pass {} or its folder",
            shard.display(),
            index.display()
        );
        assert_eq!(message, wanted);
    }
    load_float(&index, &options_with(&[])).unwrap();
    loaded(folder.path()).unwrap();
}

/// The names that the modules of transformers 5 have for the tensors of saved files.
const MODULES: [(&str, &str); 7] = [
    (".attention.self.query.", ".attention.q_proj."),
    (".attention.self.key.", ".attention.k_proj."),
    (".attention.self.value.", ".attention.v_proj."),
    (
        ".attention.self.relative_position_bias_table",
        ".attention.relative_position_bias.relative_position_bias_table",
    ),
    (".attention.output.dense.", ".attention.o_proj."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
];

#[test]
fn shards_of_torch_are_read() {
    let folder = sharded();
    fs::remove_file(folder.path().join(INDEX)).unwrap();
    let message = loaded(folder.path()).unwrap_err();
    assert!(message.contains("neither model.safetensors nor pytorch_model.bin"), "{message}");
    // An index with one shard, a whole file of torch.save.
    let shard = "pytorch_model-1.bin";
    fs::copy(fixture("hf_modules.bin"), folder.path().join(shard)).unwrap();
    let index = |names: Vec<String>| {
        let map: serde_json::Map<String, Value> =
            names.into_iter().map(|name| (name, json!(shard))).collect();
        let text = json!({"weight_map": map}).to_string();
        fs::write(folder.path().join("pytorch_model.bin.index.json"), text).unwrap();
    };
    index(vec!["classifier.weight".to_owned()]);
    let message = loaded(folder.path()).unwrap_err();
    assert!(message.contains("does not place in it") && message.contains(shard), "{message}");
    let saved = expected("hf/model.safetensors").into_keys();
    index(saved.map(|name| MODULES.iter().fold(name, |name, (from, to)| name.replace(from, to))).collect());
    let whole = load_float(&fixture("hf_modules.bin"), &options_with(&[])).unwrap();
    assert_eq!(loaded(folder.path()).unwrap().tensors, whole.tensors);
}

#[test]
fn an_index_names_files_of_its_folder_only() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("outside.safetensors");
    write(&expected("hf/model.safetensors"), &target);
    let absolute = target.to_str().unwrap();
    for name in
        [absolute, "../x.safetensors", "..", ".", "", "a/b.safetensors", "a\\b", "/etc/passwd", "x\0y"]
    {
        let folder = sharded();
        let mut json = index(folder.path());
        json["weight_map"]["classifier.weight"] = json!(name);
        write_index(folder.path(), &json);
        let message = loaded(folder.path()).unwrap_err();
        assert!(message.contains("no plain file name"), "{name:?}: {message}");
        assert!(!message.contains('\0') && message.contains(INDEX), "{message}");
    }
}

#[cfg(unix)]
#[test]
fn links_stay_in_the_folder_of_the_index() {
    let (folder, outside) = (sharded(), tempfile::tempdir().unwrap());
    let (shard, moved) = (folder.path().join(SHARDS[0]), outside.path().join("moved"));
    fs::rename(&shard, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &shard).unwrap();
    let message = loaded(folder.path()).unwrap_err();
    assert!(message.contains("a link that leads out of the index's folder"), "{message}");
    // As in the cache of Hugging Face's hub: the index and the shards are links into one folder.
    for name in [INDEX, SHARDS[1]] {
        let (link, moved) = (folder.path().join(name), outside.path().join(name));
        fs::rename(&link, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &link).unwrap();
    }
    loaded(folder.path()).unwrap();
}

#[test]
fn missing_repeated_and_unlisted_tensors_name_the_shard() {
    let edit = |edit: &dyn Fn(&Path)| {
        let folder = sharded();
        edit(folder.path());
        loaded(folder.path()).unwrap_err()
    };
    let message = edit(&|folder| {
        let mut json = index(folder);
        json["weight_map"].as_object_mut().unwrap().remove("classifier.weight");
        write_index(folder, &json);
    });
    let unlisted = "has tensors that the index does not place in it: classifier.weight";
    assert!(message.contains(unlisted) && message.contains(SHARDS[0]), "{message}");
    let message = edit(&|folder| {
        let mut json = index(folder);
        json["weight_map"]["classifier.weight"] = json!(SHARDS[1]);
        json["weight_map"]["absent"] = json!(SHARDS[0]);
        write_index(folder, &json);
    });
    assert!(message.contains("lacks tensors that the index places in it: absent"), "{message}");
    // A tensor that both shards have.
    let message = edit(&|folder| {
        let first = expected_in(&folder.join(SHARDS[0]));
        let mut second = expected_in(&folder.join(SHARDS[1]));
        second.insert("classifier.bias".to_owned(), first["classifier.bias"].clone());
        write(&second, &folder.join(SHARDS[1]));
    });
    assert!(
        message.contains("does not place in it: classifier.bias") && message.contains(SHARDS[1]),
        "{message}"
    );
    let message = edit(&|folder| fs::remove_file(folder.join(SHARDS[1])).unwrap());
    assert!(message.contains(INDEX) && message.contains(SHARDS[1]), "{message}");
    assert!(message.contains("which is not there; copy or download it too"), "{message}");
    let text = r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#;
    let message = edit(&|folder| fs::write(folder.join(INDEX), text).unwrap());
    assert!(message.contains("`a` is stated twice"), "{message}");
    for text in ["{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#, r#"{"weight_map": []}"#, "x"] {
        let message = edit(&|folder| fs::write(folder.join(INDEX), text).unwrap());
        assert!(message.contains(INDEX), "{text}: {message}");
    }
}
