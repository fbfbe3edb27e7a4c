//! Class names that the files of a model do not hold: those of ImageNet-1k.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use swinq_model::{LoadOptions, QuantizedModel, load_float};

use super::{edited, fixture};

/// The directory of timm with a head of `classes` classes and no names, and with these changes of its
/// `config.json`.
fn directory(classes: usize, edit: impl Fn(&mut Value)) -> tempfile::TempDir {
    let folder = edited("timm", "config.json", |json| {
        json.as_object_mut().unwrap().remove("label_names");
        json["num_classes"] = json!(classes);
        json["pretrained_cfg"]["num_classes"] = json!(classes);
        edit(json);
    });
    with_head(folder.path(), classes);
    folder
}

fn with_head(folder: &Path, classes: usize) {
    let bytes = std::fs::read(fixture("timm/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let width = file.tensor("head.fc.weight").unwrap().shape()[1];
    let zeros = vec![0; 4 * classes * width];
    let view = |shape: Vec<usize>| {
        let bytes = &zeros[..4 * shape.iter().product::<usize>()];
        TensorView::new(Dtype::F32, shape, bytes).unwrap()
    };
    let tensors = file.iter().map(|(name, tensor)| match name {
        "head.fc.weight" => (name, view(vec![classes, width])),
        "head.fc.bias" => (name, view(vec![classes])),
        _ => (name, tensor),
    });
    safetensors::serialize_to_file(tensors, None, &folder.join("model.safetensors")).unwrap();
}

/// The names and their origin.
fn names(folder: &Path) -> (Option<Vec<String>>, Option<String>) {
    let model = load_float(folder, &LoadOptions::default()).unwrap();
    let quantized = QuantizedModel::from_float(model.clone()).unwrap();
    assert_eq!(quantized.provenance.labels_from, model.labels_from);
    assert_eq!(quantized.into_float().unwrap(), model);
    (model.labels, model.labels_from)
}

#[test]
fn models_of_imagenet_1k_have_its_names() {
    let by_tag = directory(1000, |json| json["pretrained_cfg"]["tag"] = json!("ms_in22k_ft_in1k"));
    let by_name =
        directory(1000, |json| json["architecture"] = json!("swin_tiny_patch4_window7_224.ms_in1k"));
    for (folder, tag) in [(by_tag, "ms_in22k_ft_in1k"), (by_name, "ms_in1k")] {
        let (labels, from) = names(folder.path());
        let labels = labels.unwrap();
        assert_eq!((labels.len(), labels[0].as_str(), labels[281].as_str()), (1000, "tench", "tabby"));
        assert_eq!(from, Some(format!("ImageNet-1k, by timm's tag {tag}")));
    }
}

#[test]
fn other_models_have_none_of_imagenets_names() {
    let tagged = |classes, tag: &str| directory(classes, |json| json["pretrained_cfg"]["tag"] = json!(tag));
    let without_tag = directory(1000, |_| ());
    let others =
        [without_tag, tagged(1000, "ms_in22k"), tagged(1000, "in1k_ft_plants"), tagged(999, "ms_in1k")];
    for folder in others {
        assert_eq!(names(folder.path()), (None, None));
    }
    let own: Vec<String> = (0..1000).map(|class| format!("plant {class}")).collect();
    let folder = directory(1000, |json| {
        json["pretrained_cfg"]["tag"] = json!("ms_in1k");
        json["label_names"] = json!(own);
    });
    assert_eq!(names(folder.path()), (Some(own.clone()), None));
}
