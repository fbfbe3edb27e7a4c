//! f16 graphs whose residual stream is f32 because f16 does not hold it.

use std::collections::BTreeSet;

use swinq_model::quantized::{CalibrationRecord, ResidualRange};
use swinq_model::site::all_sites;
use swinq_model::{SwinVersion, WindowPolicy, all_blocks};
use swinq_testing::model::{second_stack, stack, stack_behind_merging};

use super::*;

/// `model` with a calibration that saw this magnitude in its first block, and 1 in the others.
fn with_residual(mut model: QuantizedModel, largest: f32) -> QuantizedModel {
    let mut blocks: BTreeMap<BlockId, f32> =
        all_blocks(&model.config).into_iter().map(|id| (id, 1.0)).collect();
    *blocks.first_entry().unwrap().get_mut() = largest;
    model.provenance.calibration = Some(CalibrationRecord {
        images: Vec::new(),
        sha256: String::new(),
        seed: 0,
        batch_size: 8,
        sizing: None,
        residual: ResidualRange::of(&blocks),
    });
    model
}

fn fp16(model: &QuantizedModel, options: ExportOptions) -> swinq_onnx::OnnxFile {
    export(model, &ExportOptions { fp16: true, ..options }).unwrap()
}

#[test]
fn every_recipe_of_every_architecture_has_an_f32_residual() {
    let backbone =
        shifted().into_backbone(vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)]);
    let (size, mut of_any_size) = (Size::square(32), 0);
    let ends_with_merging = SwinConfig {
        version: SwinVersion::V1,
        mask: -100.0,
        window_policy: WindowPolicy::HuggingFace,
        ..second_stack()
    };
    let stacks = [stack(), stack_behind_merging(), ends_with_merging];
    for config in [shifted(), padded(), odd(), backbone].into_iter().chain(stacks) {
        for recipe in RECIPES {
            // These name blocks of the second stage, or a layer that a stack lacks.
            if matches!(recipe, "all" | "mixed") && config.takes_tokens() {
                continue;
            }
            let model = with_residual(model(config.clone(), recipe), 75_000.0);
            let own = if config.is_backbone() { ImageSize::Fixed(size) } else { ImageSize::Own };
            for (size, target) in
                [(own, Target::Ort), (own, Target::TensorRt), (ImageSize::Any, Target::OpenVino)]
            {
                let options = ExportOptions { fp16: true, size, target, ..ExportOptions::default() };
                let file = match export(&model, &options) {
                    Ok(file) => file,
                    Err(OnnxError::Option { option: "--size", .. }) if size == ImageSize::Any => continue,
                    Err(error) => panic!("{}, {recipe}: {error}", config.name),
                };
                of_any_size += usize::from(size == ImageSize::Any);
                check_types(&model, &file.model);
            }
        }
    }
    assert!(of_any_size >= RECIPES.len(), "{of_any_size}");
    check_types(
        &model(shifted(), "default"),
        &fp16(&with_residual(with_channels(shifted()), 75_000.0), Default::default()).model,
    );
}

/// The residual additions are f32: their operands come from f32 constants only, which the structural check
/// compares. Products of branches have as many codes as without an f32 residual.
fn check_types(model: &QuantizedModel, found: &ModelProto) {
    let constants: BTreeMap<&str, i32> =
        graph(found).initializer.iter().map(|tensor| (tensor.name(), tensor.data_type())).collect();
    let float = |name: &str| constants.get(name).is_none_or(|&elements| elements == data_type::FLOAT);
    let half = |name: &str| constants.get(name).is_none_or(|&elements| elements == data_type::FLOAT16);
    for (stage, &depth) in model.config.depths.iter().enumerate() {
        for block in 0..depth {
            let id = BlockId { stage, block };
            for layer in ["attn.proj", "mlp.fc2"] {
                for part in ["weight", "weight.scale", "bias", "zero_points.bias"] {
                    assert!(float(&format!("{id}.{layer}.{part}")), "{id}.{layer}.{part}");
                }
            }
            for layer in ["attn.qkv", "mlp.fc1"] {
                for part in ["weight", "weight.scale", "bias"] {
                    assert!(half(&format!("{id}.{layer}.{part}")), "{id}.{layer}.{part}");
                }
            }
            for norm in ["norm1", "norm2"] {
                assert_eq!(constants[&format!("{id}.{norm}.weight")[..]], data_type::FLOAT);
            }
        }
    }
    let written: Vec<&NodeProto> = graph(found).node.iter().collect();
    let on = |site: &Site| model.site(*site).spec.enabled && !site.is_weight();
    let sites: BTreeSet<String> =
        all_sites(&model.config).iter().filter(|site| on(site)).map(ToString::to_string).collect();
    // No Cast stands between codes and their product.
    for cast in written.iter().filter(|node| node.op_type() == "Cast") {
        assert!(!sites.contains(&cast.input[0]), "a cast of {}", cast.input[0]);
    }
    let metadata =
        |key: &str| found.metadata_props.iter().find(|entry| entry.key() == key).map(|entry| entry.value());
    assert_eq!((metadata("swinq.float"), metadata("swinq.residual")), (Some("float16"), Some("float32")));
}

#[test]
fn a_swin_v2_is_refused_because_its_branches_read_the_residual_without_a_norm() {
    let own = |largest| with_residual(model(second(), "default"), largest);
    let options = ExportOptions { fp16: true, ..ExportOptions::default() };
    let error = export(&own(75_000.0), &options).unwrap_err().to_string();
    for part in ["--fp16: the residual stream reaches 75000 in layers.0.blocks.0", "export without --fp16"] {
        assert!(error.contains(part), "{error}");
    }
    export(&own(75_000.0), &ExportOptions::default()).unwrap();
    export(&own(16_000.0), &options).unwrap();
}

#[test]
fn the_file_decides_by_the_magnitude_and_says_so() {
    let own = || model(shifted(), "default");
    let options = ExportOptions::default;
    let (large, small, unknown) = (
        fp16(&with_residual(own(), 75_000.0), options()),
        fp16(&with_residual(own(), 16_000.0), options()),
        fp16(&own(), options()),
    );
    let said = |file: &swinq_onnx::OnnxFile| file.remarks.last().unwrap().clone();
    for part in ["residual stream, which is f32", "reaches 75000 in layers.0.blocks.0", "65504"] {
        assert!(said(&large).contains(part), "{}", said(&large));
    }
    assert_eq!(said(&small), "float tensors are f16 inside the graph");
    assert!(
        said(&unknown).contains("does not state") && said(&unknown).contains("calibrate again"),
        "{}",
        said(&unknown)
    );
    let float = said(&fp16(&model(shifted(), "float"), options()));
    assert!(float.contains("calibrate it and export the result"), "{float}");
    // The magnitude decides about the types only.
    assert_eq!(graph(&small.model), graph(&unknown.model));
    assert_ne!(graph(&small.model), graph(&large.model));
    let without = |model: &QuantizedModel| export(model, &options()).unwrap();
    assert_eq!(
        without(&with_residual(own(), 75_000.0)),
        without(&own()),
        "an f32 graph does not depend on it"
    );
}
