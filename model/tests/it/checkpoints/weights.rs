//! Files with several state dictionaries, heads in a `Sequential`, and numbers that tools keep beside
//! parameters. The files come from `make_weights.py`.

use super::*;

fn read(name: &str, weights: Option<&str>) -> Result<swinq_model::Loaded, ModelError> {
    let options = LoadOptions { weights: weights.map(str::to_owned), ..options_with(&[]) };
    load_float_with_remarks(&fixture(&format!("weights/{name}.pth")), &options)
}

fn refused(name: &str, weights: Option<&str>) -> String {
    read(name, weights).unwrap_err().to_string()
}

#[test]
fn the_average_is_taken_where_timm_takes_it() {
    let wanted = expected("expected.safetensors");
    let files = [
        ("timm", "reads `state_dict_ema`, the average of the weights"),
        ("torchvision", "reads `model_ema`, the average of the weights"),
        ("no_average", ""),
        (
            "mmengine",
            "reads `state_dict`, in mmengine's files the average of the weights; the file also has ema_state_dict",
        ),
        (
            "nested",
            "reads `model`; the file also has ema.module, callbacks.EMA.ema_state_dict (--weights ema.module)",
        ),
        ("checkpoint_0000000012", ""),
        ("mmcv", "2 tensors that are no part of the network are left out: ema_head_bias, ema_head_weight"),
    ];
    for (name, remark) in files {
        let loaded = read(name, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(loaded.model.tensors, wanted, "{name}");
        assert!(loaded.remarks.join(" ").contains(remark), "{name}: {:?}", loaded.remarks);
        assert!(!remark.is_empty() || loaded.remarks.is_empty(), "{name}: {:?}", loaded.remarks);
    }
}

#[test]
fn a_key_chooses_the_weights() {
    let message = refused("teacher", None);
    for word in ["has no state dictionary under", "student, teacher", "--weights student"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    for (name, key) in [("teacher", "teacher"), ("mmengine", "state_dict"), ("timm", "state_dict_ema")] {
        assert_eq!(read(name, Some(key)).unwrap().model.tensors, expected("expected.safetensors"), "{name}");
    }
    // The other dictionaries are no whole networks.
    for (name, key) in [
        ("teacher", "student"),
        ("timm", "state_dict"),
        ("nested", "ema.module"),
        ("nested", "callbacks.EMA.ema_state_dict"),
    ] {
        assert!(refused(name, Some(key)).contains("head."), "{name}");
    }
    let message = refused("timm", Some("net"));
    assert!(message.contains("has no `net`") && message.contains("--weights state_dict"), "{message}");
    assert!(refused("timm", Some("epoch")).contains("under `epoch` holds an integer"));
    let keyless = LoadOptions { weights: Some("model".to_owned()), ..options_with(&[]) };
    let message = load_float(&fixture("expected.safetensors"), &keyless).unwrap_err().to_string();
    assert!(message.contains("leave --weights out"), "{message}");
}

#[test]
fn an_archive_of_torch_script_is_refused_by_name() {
    let message = load_float(&fixture("weights/script.pt"), &options_with(&[])).unwrap_err().to_string();
    assert!(message.contains("is a TorchScript archive; save the model's state_dict()"), "{message}");
}

#[test]
fn the_linear_layer_of_a_sequence_is_the_head() {
    let loaded = read("dropout", None).unwrap();
    assert_eq!(loaded.model.tensors, expected("expected.safetensors"));
    let counters: Vec<&String> =
        loaded.remarks.iter().filter(|remark| remark.contains("total_ops")).collect();
    assert!(counters.len() == 1 && counters[0].contains("no part of the network"), "{:?}", loaded.remarks);
}

#[test]
fn heads_of_every_dialect_may_stand_in_a_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    let dialects = [
        ("expected.safetensors", "head."),
        ("timm/model.safetensors", "head.fc."),
        ("hf/model.safetensors", "classifier."),
    ];
    for (name, head) in dialects {
        let tensors: StateDict = expected(name)
            .into_iter()
            .map(|(name, tensor)| (name.replace(head, &format!("{head}1.")), tensor))
            .collect();
        write(&tensors, &path);
        assert_eq!(load_float(&path, &options_with(&[])).unwrap().tensors, expected("expected.safetensors"));
        let mut deep = tensors;
        let first = deep[&format!("{head}1.weight")].clone();
        deep.insert(format!("{head}3.weight"), first);
        write(&deep, &path);
        let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
        assert!(message.contains("several layers") && message.contains(head), "{name}: {message}");
    }
}

#[test]
fn pretrainings_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    let kinds = [
        ("encoder.", "encoder.mask_token", "SimMIM"),
        ("encoder.", "queue1", "MoBY"),
        ("backbone.", "head.last_layer.weight_v", "EsViT"),
    ];
    for (prefix, name, kind) in kinds {
        let inside = |(name, tensor): (String, _)| (format!("{prefix}{name}"), tensor);
        let mut tensors: StateDict = expected("expected.safetensors")
            .into_iter()
            .filter(|(name, _)| !name.starts_with("head"))
            .map(inside)
            .collect();
        tensors.insert(name.to_owned(), swinq_model::HostTensor::new([1], vec![0.0]));
        write(&tensors, &path);
        let message = load_float(&path, &options_with(&[])).unwrap_err().to_string();
        assert!(message.contains(kind) && message.contains("--task features"), "{message}");
        let backbone = LoadOptions { task: Some(swinq_model::Task::Features), ..options_with(&[]) };
        load_float(&path, &backbone).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}
