use super::*;
use crate::checkpoint::raw::RawTensor;

fn dict(names: &[&str]) -> RawDict<'static> {
    names.iter().map(|name| (name.to_string(), RawTensor::unreadable())).collect()
}

fn find(names: &[&str], prefix: Option<&str>) -> Result<Network<'static>, String> {
    Network::find(Path::new("x.pth"), dict(names), Task::Classification, None, prefix)
        .map_err(|error| error.to_string())
}

#[test]
fn a_common_prefix_is_left_out_and_named() {
    let network = find(&["a.0.patch_embed.proj.weight", "a.0.head.bias"], None).unwrap();
    let names: Vec<&str> = network.tensors.keys().map(String::as_str).collect();
    assert_eq!((names, network.naming.root.as_str()), (vec!["head.bias", "patch_embed.proj.weight"], "a.0."));
    assert_eq!(network.remarks, ["x.pth: the names of its tensors begin with `a.0.`, which is left out"]);
    assert!(find(&["patch_embed.proj.weight", "head.bias"], None).unwrap().remarks.is_empty());
}

#[test]
fn other_tensors_are_left_out_if_asked_for() {
    let names = ["model.patch_embed.proj.weight", "model.head.bias", "loss.weight"];
    let message = find(&names, None).err().unwrap();
    for word in ["`model.`", "among 1 other tensors (loss.weight)", "--prefix model."] {
        assert!(message.contains(word), "{message}");
    }
    for prefix in ["model", "model."] {
        let network = find(&names, Some(prefix)).unwrap();
        assert_eq!((network.tensors.len(), network.naming.root.as_str()), (2, "model."));
        assert_eq!(network.remarks, ["x.pth: 1 tensors outside of `model.` are left out: loss.weight"]);
    }
    let message = find(&names, Some("mod")).err().unwrap();
    assert!(message.contains("no tensor whose name begins with `mod.`"), "{message}");
    let two = ["a.patch_embed.proj.weight", "a.head.bias", "b.patch_embed.proj.weight"];
    let message = find(&two, None).err().unwrap();
    assert!(message.contains("under `a.`, `b.`; pass --prefix a."), "{message}");
    assert_eq!(find(&two, Some("b")).unwrap().tensors.len(), 1);
}

/// `--prefix` would only lead to the next refusal.
#[test]
fn a_detector_has_no_classifier_to_read_alone() {
    let detector = ["backbone.patch_embed.proj.weight", "backbone.norm0.bias", "rpn_head.bias"];
    let message = find(&detector, None).err().unwrap();
    assert!(
        message.contains("has a backbone under `backbone.` among 1 other tensors (rpn_head.bias), and no cl")
    );
    assert!(message.contains("`swinq features`") && !message.contains("--prefix"), "{message}");
}

#[test]
fn an_error_names_both() {
    let network = find(&["module.swin.embeddings.patch_embeddings.projection.weight"], None).unwrap();
    let text = |name| network.with_stored_name(ModelError::tensor(name, "missing")).to_string();
    assert_eq!(
        text("head.weight"),
        "tensor `head.weight`: `module.classifier.weight` in the names of hf; missing"
    );
    let plain = find(&["patch_embed.proj.weight"], None).unwrap();
    let error = plain.with_stored_name(ModelError::tensor("other", "missing"));
    assert_eq!(error.to_string(), "tensor `other`: missing");
}

#[test]
fn another_network_is_named_before_its_prefix() {
    let vit =
        ["vit.embeddings.cls_token", "vit.embeddings.patch_embeddings.projection.weight", "classifier.bias"];
    let message = find(&vit, None).err().unwrap();
    assert!(message.contains("a ViT or DeiT, not a Swin") && !message.contains("--prefix"), "{message}");
}
