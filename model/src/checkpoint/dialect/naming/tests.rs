use super::*;
use crate::arch::SwinConfig;
use crate::params::parameters;

/// The names of a network with stages 0 to 3.
fn naming(dialect: Dialect, version: SwinVersion) -> Naming {
    let trunk = dialect.table().trunks.iter().find(|(v, _)| *v == version).unwrap().1;
    let policy = dialect.window_policy(version);
    let task = Task::Classification;
    Naming { dialect, version, root: String::new(), trunk, task, policy, final_norm: false, last: 3 }
}

fn renamed(naming: &Naming, name: &str) -> String {
    match naming.target(name) {
        Target::Parameter(name, Values::Whole) => name,
        Target::Parameter(name, Values::Third(index)) => format!("{name}[{index}]"),
        Target::Parameter(name, Values::Unfolded) => format!("{name}, unfolded"),
        Target::Parameter(name, Values::Map) => format!("{name}, a map"),
        Target::Dropped => "dropped".to_owned(),
    }
}

#[test]
fn names_of_each_dialect() {
    let cases = [
        (Dialect::Timm, "layers.1.downsample.norm.bias", "layers.0.downsample.norm.bias"),
        (Dialect::Timm, "head.fc.weight", "head.weight"),
        (Dialect::Timm, "layers.0.downsample.norm.bias", "layers.0.downsample.norm.bias"),
        (Dialect::TorchVision, "features.0.2.bias", "patch_embed.norm.bias"),
        (Dialect::TorchVision, "features.5.4.mlp.3.weight", "layers.2.blocks.4.mlp.fc2.weight"),
        (Dialect::TorchVision, "features.6.norm.weight", "layers.2.downsample.norm.weight"),
        (Dialect::TorchVision, "features.1.0.attn.relative_position_index", "dropped"),
        (Dialect::TorchVision, "features.1.0.mlp.1.weight", "features.1.0.mlp.1.weight"),
        (Dialect::HuggingFace, "swin.encoder.layers.0.downsample.norm.bias", "layers.0.downsample.norm.bias"),
        (
            Dialect::HuggingFace,
            "swin.encoder.layers.3.blocks.1.attention.self.key.weight",
            "layers.3.blocks.1.attn.qkv.weight[1]",
        ),
        (
            Dialect::HuggingFace,
            "swin.encoder.layers.3.blocks.1.attention.v_proj.bias",
            "layers.3.blocks.1.attn.qkv.bias[2]",
        ),
        (Dialect::HuggingFace, "swin.pooler.weight", "swin.pooler.weight"),
        (Dialect::OpenMmLab, "backbone.norm3.bias", "norm.bias"),
        (Dialect::OpenMmLab, "backbone.norm2.bias", "backbone.norm2.bias"),
        (Dialect::OpenMmLab, "head.fc.bias", "head.bias"),
        (
            Dialect::OpenMmLab,
            "backbone.stages.2.blocks.5.ffn.layers.0.0.bias",
            "layers.2.blocks.5.mlp.fc1.bias",
        ),
        (
            Dialect::OpenMmLab,
            "backbone.stages.0.downsample.norm.weight",
            "layers.0.downsample.norm.weight, unfolded",
        ),
        (Dialect::FasterTransformer, "layers.0.blocks.0.mlp.fc1._input_quantizer._amax", "dropped"),
        (Dialect::Microsoft, "layers.0.blocks.1.attn_mask", "dropped"),
    ];
    for (dialect, theirs, ours) in cases {
        assert_eq!(renamed(&naming(dialect, SwinVersion::V1), theirs), ours, "{dialect}");
    }
    let cases = [
        (Dialect::Timm, "layers.0.blocks.1.attn.v_bias", "layers.0.blocks.1.attn.qkv.bias[2]"),
        (
            Dialect::OpenMmLab,
            "backbone.stages.0.blocks.1.attn.w_msa.q_bias",
            "layers.0.blocks.1.attn.qkv.bias[0]",
        ),
        (Dialect::OpenMmLab, "backbone.stages.3.downsample.norm.bias", "layers.2.downsample.norm.bias"),
    ];
    for (dialect, theirs, ours) in cases {
        assert_eq!(renamed(&naming(dialect, SwinVersion::V2), theirs), ours, "{dialect}");
    }
}

#[test]
fn every_parameter_has_a_stored_name_that_is_read_as_it() {
    for version in [SwinVersion::V1, SwinVersion::V2] {
        let config = SwinConfig { ape: true, version, ..SwinConfig::default() };
        for table in &TABLES {
            let naming = naming(table.dialect, version);
            for (name, _) in parameters(&config) {
                let stored = naming.stored_name(&name).unwrap_or_else(|| name.clone());
                // The first of the names in braces.
                let (first, rest) = stored.split_once('{').unwrap_or((&stored, ""));
                let (part, last) = rest.split_once('}').unwrap_or((rest, ""));
                let stored = format!("{first}{}{last}", part.split(',').next().unwrap_or_default());
                let read = match naming.target(&stored) {
                    Target::Parameter(read, _) => read,
                    Target::Dropped => panic!("{} drops {stored}", table.dialect),
                };
                assert_eq!(read, name, "{}: {stored}", table.dialect);
            }
        }
    }
}

#[test]
fn stored_names_are_those_of_files() {
    let stored = |dialect, version, name| naming(dialect, version).stored_name(name);
    let v1 = |dialect, name| stored(dialect, SwinVersion::V1, name);
    assert_eq!(v1(Dialect::Timm, "head.weight").unwrap(), "head.fc.weight");
    assert_eq!(v1(Dialect::Microsoft, "head.weight"), None);
    assert_eq!(v1(Dialect::OpenMmLab, "norm.bias").unwrap(), "backbone.norm3.bias");
    let bias = "layers.1.blocks.0.attn.qkv.bias";
    assert_eq!(
        v1(Dialect::HuggingFace, bias).unwrap(),
        "swin.encoder.layers.1.blocks.0.attention.self.{query,key,value}.bias"
    );
    let split = "layers.1.blocks.0.attn.{q,v}_bias";
    assert_eq!(stored(Dialect::Microsoft, SwinVersion::V2, bias).unwrap(), split);
    let wrapped = Naming { root: "module.".to_owned(), ..naming(Dialect::HuggingFace, SwinVersion::V2) };
    assert_eq!(wrapped.stored_name("norm.bias").unwrap(), "module.swinv2.layernorm.bias");
    assert_eq!(wrapped.stored_name("head.bias").unwrap(), "module.classifier.bias");
}

/// The networks among `keys`, each as `dialect root trunk`.
fn found(keys: &[&str]) -> Vec<String> {
    let found = networks(Task::Classification, keys).unwrap().into_iter().map(|found| found.naming);
    found.map(|n| format!("{} [{}][{}]", n.dialect, n.root, n.trunk)).collect()
}

#[test]
fn networks_are_found_by_their_projection_of_patches() {
    assert_eq!(found(&["patch_embed.proj.weight"]), ["microsoft [][]"]);
    assert_eq!(found(&["patch_embed.proj.weight", "head.fc.bias"]), ["timm [][]"]);
    assert_eq!(found(&["m.patch_embed.proj.bias", "m.layers.1.downsample.norm.bias"]), ["timm [m.][]"]);
    let microsoft =
        ["patch_embed.proj.bias", "layers.0.downsample.norm.bias", "layers.1.downsample.norm.bias"];
    assert_eq!(found(&microsoft), ["microsoft [][]"]);
    assert_eq!(found(&["patch_embed.proj.weight", "layers.0.x._input_quantizer._amax"]), ["ft [][]"]);
    assert_eq!(found(&["0.model.features.0.0.weight"]), ["torchvision [0.model.][]"]);
    let hf = "embeddings.patch_embeddings.projection.weight";
    assert_eq!(found(&[hf]), ["hf [][]"]);
    assert_eq!(found(&[&format!("net.swinv2.{hf}")]), ["hf [net.][swinv2.]"]);
    assert_eq!(found(&["backbone.patch_embed.projection.weight"]), ["openmmlab [][backbone.]"]);
    assert_eq!(found(&["a.backbone.patch_embed.projection.bias"]), ["openmmlab [a.][backbone.]"]);
    assert_eq!(found(&["mybackbone.patch_embed.projection.bias"]), ["openmmlab [mybackbone.][]"]);
    assert_eq!(found(&["my_patch_embed.proj.weight", "patch_embed.weight", "x"]), [""; 0]);
    let many: Vec<String> = (0..17).map(|i| format!("{i}.patch_embed.proj.weight")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(networks(Task::Classification, &many).unwrap_err().contains("17 networks"));
}
