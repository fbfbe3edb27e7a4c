//! Models in memory: the state dictionary and the documents of a directory give the directory's model.

use std::collections::BTreeMap;
use std::fs;

use safetensors::{Dtype, SafeTensors};
use swinq_model::{
    Documents, ElementType, InMemory, LoadOptions, Size, TensorView, Transform, load_float_from_memory,
};

use super::*;

/// The bytes of the file, and the documents beside it.
fn directory(name: &str) -> (Vec<u8>, Documents) {
    let folder = fixture(name);
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    let preprocessor = fs::read_to_string(folder.join("preprocessor_config.json")).ok();
    (bytes, Documents { config, preprocessor })
}

fn tensors<'a>(
    file: &'a SafeTensors<'a>,
    shapes: &'a BTreeMap<String, Vec<usize>>,
) -> BTreeMap<String, TensorView<'a>> {
    let view = |(name, shape): (&String, &'a Vec<usize>)| {
        let stored = file.tensor(name).unwrap();
        let element = match stored.dtype() {
            Dtype::F32 => ElementType::F32,
            Dtype::F16 => ElementType::F16,
            Dtype::BF16 => ElementType::Bf16,
            Dtype::F64 => ElementType::F64,
            _ => ElementType::Other,
        };
        let bytes = stored.data();
        (name.clone(), TensorView { element, shape, bytes })
    };
    shapes.iter().map(view).collect()
}

fn shapes(file: &SafeTensors<'_>) -> BTreeMap<String, Vec<usize>> {
    file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect()
}

#[test]
fn documents_and_tensors_in_memory_are_the_model_of_their_directory() {
    for name in ["timm", "hf"] {
        let (bytes, documents) = directory(name);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let shapes = shapes(&file);
        let memory = InMemory {
            name: "a module".to_owned(),
            tensors: tensors(&file, &shapes),
            documents: Some(documents),
            transform: None,
            window_policy: None,
        };
        let loaded = load_float_from_memory(&memory, &LoadOptions::default()).unwrap();
        let found = loaded.model;
        let expected = load_float(&fixture(name), &LoadOptions::default()).unwrap();
        assert_eq!((&found.tensors, &found.transform), (&expected.tensors, &expected.transform), "{name}");
        assert_eq!((&found.labels, loaded.remarks), (&expected.labels, vec![]), "{name}");
        let unnamed =
            |model: &FloatModel| swinq_model::SwinConfig { name: String::new(), ..model.config.clone() };
        assert_eq!(unnamed(&found), unnamed(&expected), "{name}");
        assert_eq!(found.source.file, "a module");
        assert_eq!(found.source.sha256.len(), 64);

        let transform = Transform { family: "custom".to_owned(), ..expected.transform.clone() };
        let own = InMemory { transform: Some(transform.clone()), ..memory.clone() };
        let other = load_float_from_memory(&own, &LoadOptions::default()).unwrap().model;
        assert_eq!((other.transform, other.source.sha256), (transform, found.source.sha256));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (bytes, documents) = directory("timm");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shapes = shapes(&file);
    let memory = InMemory {
        name: "a module".to_owned(),
        tensors: tensors(&file, &shapes),
        documents: Some(documents),
        transform: None,
        window_policy: None,
    };
    let refused = |memory: &InMemory<'_>, options: &LoadOptions| {
        load_float_from_memory(memory, options).unwrap_err().to_string()
    };
    let first = memory.tensors.keys().next().unwrap().clone();
    let mut short = memory.clone();
    let view = short.tensors.get_mut(&first).unwrap();
    view.bytes = &view.bytes[1..];
    assert!(refused(&short, &LoadOptions::default()).contains(&first));

    let mut missing = memory.clone();
    missing.tensors.remove(&first);
    assert!(refused(&missing, &LoadOptions::default()).contains(&first));

    let wide = Transform { size: Size::square(99), ..Transform::microsoft(Size::square(24), 3, true) };
    let wide = InMemory { transform: Some(wide), ..memory.clone() };
    assert!(refused(&wide, &LoadOptions::default()).contains("99 pixels"));

    let text = Documents { config: "[]".to_owned(), preprocessor: None };
    let text = InMemory { documents: Some(text), ..memory.clone() };
    assert!(refused(&text, &LoadOptions::default()).contains("not a JSON object"));

    // Without a description the options describe the model, and no folder is searched.
    let bare = InMemory { documents: None, ..memory };
    assert!(refused(&bare, &LoadOptions::default()).contains("no architecture"));
    load_float_from_memory(&bare, &options_with(&[])).unwrap();
}
