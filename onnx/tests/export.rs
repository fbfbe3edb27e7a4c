//! Graphs of small models under recipes of every kind: they pass the structural check, quantize what the plan
//! quantizes, and are as recorded. `UPDATE_SNAPSHOTS=1` rewrites the records in `tests/snapshots`.
//!
//! Whether runtimes accept the graphs and give the engine's logits is tested by `tests/onnx/compare.py`, by
//! hand.

#[path = "export/free.rs"]
mod free;
#[path = "export/residual.rs"]
mod residual;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use prost::Message;
use swinq_calib::{quantize, set_channel_codes};
use swinq_model::quantized::Param;
use swinq_model::site::all_sites;
use swinq_model::{
    BlockId, Linear, Ptq, QuantizedModel, Recipe, Site, Size, StageOutput, SwinConfig, WindowPolicy,
};
use swinq_onnx::proto::{GraphProto, NodeProto, ValueInfoProto, data_type};
use swinq_onnx::{
    BatchSize, ExportOptions, ImageSize, InputForm, ModelProto, OPSETS, OnnxError, ProbsForm, Target, check,
    export,
};
use swinq_testing::model::{
    gray_rectangle, odd, padded, random, random_channels, rectangle, second, second_padded, second_rectangle,
    shifted,
};

/// Every site on; probabilities of both kinds; 4-bit weights with one scale for a layer.
const ALL: &str = "
name: all
rules:
  - {match: '**', enable: true, calibrator: max}
  - {match: '**.weight', granularity: tensor, bits: 4}
  - {match: 'layers.0.**.probs', kind: s8}
";

/// Every combination in which one operand of a product is on and the other is off.
const MIXED: &str = "
name: mixed
rules:
  - {match: '**', enable: true, calibrator: max}
  - {match: 'layers.*.blocks.0.**.{fc1,proj}.input', enable: false}
  - {match: 'layers.*.blocks.1.**.{fc1,proj}.weight', enable: false}
  - {match: 'layers.0.blocks.0.attn.q', enable: false}
  - {match: 'layers.0.blocks.1.attn.{k,v}', enable: false}
  - {match: 'layers.1.blocks.1.attn.{q,probs}', enable: false}
  - {match: '{layers.1.blocks.0.mlp.fc2,head}.weight', enable: false}
";

/// Every site on, and weights of 7 bits.
const W7: &str = "
name: w7
rules:
  - {match: '**', enable: true}
  - {match: '**.weight', bits: 7}
";

fn recipe(name: &str) -> Recipe {
    match name {
        "all" => Recipe::from_yaml("all", ALL).unwrap(),
        "mixed" => Recipe::from_yaml("mixed", MIXED).unwrap(),
        "w7" => Recipe::from_yaml("w7", W7).unwrap(),
        _ => Recipe::shipped(name).unwrap().with_ptq(Ptq::Basic),
    }
}

/// `config` with random weights under the recipe `name`; each site has a different range.
fn model(config: SwinConfig, name: &str) -> QuantizedModel {
    let float = random(config, 5);
    if name == "float" {
        return QuantizedModel::from_float(float).unwrap();
    }
    let sites = all_sites(&float.config).into_iter().enumerate();
    let ranges: BTreeMap<Site, f32> = sites
        .map(|(i, site)| (site, site.known_range(&float.config).unwrap_or(1.0 + i as f32 / 8.0)))
        .collect();
    quantize(&float, &recipe(name), &ranges).unwrap()
}

/// [`model`] of the recipe `default` with scales and zero points of channels at every input of `mlp.fc2`.
fn with_channels(config: SwinConfig) -> QuantizedModel {
    let float = random(config, 5);
    let mut model = model(float.config.clone(), "default");
    for (stage, depth) in float.config.depths.iter().enumerate() {
        for block in 0..*depth {
            let id = BlockId { stage, block };
            let hidden = float.config.stages()[stage].hidden;
            set_channel_codes(&mut model, &float, id, 3.0, random_channels(hidden, block as u64 + 1))
                .unwrap();
        }
    }
    model
}

const RECIPES: [&str; 6] = ["float", "default", "mode1", "mode2", "all", "mixed"];

fn graph(model: &ModelProto) -> &GraphProto {
    model.graph.as_ref().unwrap()
}

/// The nodes of the operator `op`.
fn nodes<'a>(model: &'a ModelProto, op: &str) -> Vec<&'a NodeProto> {
    graph(model).node.iter().filter(|node| node.op_type() == op).collect()
}

#[test]
fn every_recipe_of_every_architecture_passes_the_check() {
    let rectangles = [rectangle(), second_rectangle(), gray_rectangle()];
    for config in [shifted(), padded(), odd(), second(), second_padded()].into_iter().chain(rectangles) {
        for name in RECIPES {
            let model = model(config.clone(), name);
            for target in [Target::Ort, Target::OpenVino, Target::TensorRt] {
                for (batch, input, fp16) in [
                    (BatchSize::Free, InputForm::Normalized, false),
                    (BatchSize::Fixed(3), InputForm::Pixels, false),
                    (BatchSize::Free, InputForm::Pixels, true),
                ] {
                    let options = ExportOptions { target, batch, input, fp16, ..ExportOptions::default() };
                    let file = export(&model, &options);
                    let file = file.unwrap_or_else(|e| panic!("{}, {name}, {options:?}: {e}", config.name));
                    check(&file.model, None).unwrap();
                }
            }
        }
    }
}

/// `config` as a backbone by the rule of detectors, whose first output has a norm.
fn backbone(config: SwinConfig) -> SwinConfig {
    let config = SwinConfig { window_policy: WindowPolicy::Detection, ..config };
    config.into_backbone(vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)])
}

/// The dimensions of an input or an output; 0 is the batch.
fn dims(info: &ValueInfoProto) -> Vec<i64> {
    let tensor = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
    tensor.shape.as_ref().unwrap().dim.iter().map(|dim| dim.dim_value.unwrap_or(0)).collect()
}

/// Windows divide the grids of no stage of these sizes, and the patch divides the sides of one only.
#[test]
fn backbones_have_named_maps_for_images_of_one_size() {
    for size in [Size::new(40, 56), Size::new(29, 50)] {
        let (height, width) = (size.height.div_ceil(4), size.width.div_ceil(4));
        for name in RECIPES {
            let model = model(backbone(shifted()), name);
            for target in [Target::Ort, Target::OpenVino, Target::TensorRt] {
                for (batch, input, fp16) in [
                    (BatchSize::Free, InputForm::Normalized, false),
                    (BatchSize::Fixed(3), InputForm::Pixels, true),
                ] {
                    let (default, size) = (ExportOptions::default(), ImageSize::Fixed(size));
                    let options = ExportOptions { target, batch, input, fp16, size, ..default };
                    let file =
                        export(&model, &options).unwrap_or_else(|e| panic!("{name}, {options:?}: {e}"));
                    check(&file.model, None).unwrap();
                    let (graph, images) = (graph(&file.model), if batch == BatchSize::Free { 0 } else { 3 });
                    let names: Vec<&str> = graph.output.iter().map(ValueInfoProto::name).collect();
                    assert_eq!(names, ["stage1", "stage2"]);
                    let maps: Vec<Vec<i64>> = graph.output.iter().map(dims).collect();
                    let half = |side: usize| side.div_ceil(2) as i64;
                    assert_eq!(maps[0], [images, 12, height as i64, width as i64]);
                    assert_eq!(maps[1], [images, 24, half(height), half(width)]);
                    let on = model.sites.iter().filter(|(_, state)| state.spec.enabled);
                    let expected: BTreeSet<String> = on.map(|(site, _)| site.to_string()).collect();
                    assert_eq!(quantized_sites(&file.model), expected, "{name}");
                }
            }
        }
    }
}

#[test]
fn the_metadata_of_a_backbone_state_its_maps() {
    let options = ExportOptions { size: ImageSize::Fixed(Size::square(36)), ..ExportOptions::default() };
    let file = export(&model(backbone(shifted()), "default"), &options).unwrap();
    let metadata: BTreeMap<&str, &str> =
        file.model.metadata_props.iter().map(|entry| (entry.key(), entry.value())).collect();
    assert!(metadata["swinq.input"].starts_with("images: float32 [batch, 3, 36, 36], RGB"));
    let maps: Vec<String> = serde_json::from_str(metadata["swinq.outputs"]).unwrap();
    assert_eq!(maps, ["stage1: float32 [batch, 12, 9, 9]", "stage2: float32 [batch, 24, 5, 5]"]);
}

#[test]
fn backbones_need_a_size_and_it_must_be_one_that_the_network_takes() {
    let refused = |config: SwinConfig, size: ImageSize, word: &str| {
        let options = ExportOptions { size, ..ExportOptions::default() };
        match export(&model(config, "float"), &options) {
            Err(OnnxError::Option { option: "--size", problem }) => {
                assert!(problem.contains(word), "{problem}")
            }
            other => panic!("{other:?}"),
        }
    };
    refused(backbone(shifted()), ImageSize::Own, "as in 800x1344");
    refused(backbone(shifted()), ImageSize::Fixed(Size::new(8, 60000)), "cannot process 8x60000");
    refused(shifted(), ImageSize::Fixed(Size::square(36)), "cannot process 36x36");
    let size = ImageSize::Fixed(Size::new(32, 64));
    export(&model(shifted(), "float"), &ExportOptions { size, ..ExportOptions::default() }).unwrap();
}

#[test]
fn every_opset_passes_the_check() {
    let model = model(shifted(), "default");
    for opset in OPSETS {
        let file = export(&model, &ExportOptions { opset, ..ExportOptions::default() }).unwrap();
        assert_eq!(file.model.opset_import[0].version(), opset);
        assert_eq!(nodes(&file.model, "Gelu").is_empty(), opset < 20);
        assert_eq!(nodes(&file.model, "Erf").is_empty(), opset >= 20);
    }
}

/// The sites of activations and weights that a graph quantizes.
fn quantized_sites(model: &ModelProto) -> BTreeSet<String> {
    let names = nodes(model, "DequantizeLinear").into_iter().map(|node| node.output[0].clone());
    names.collect()
}

#[test]
fn exactly_the_sites_that_are_on_are_quantized() {
    for config in [shifted(), padded()] {
        for name in RECIPES {
            let model = model(config.clone(), name);
            let file = export(&model, &ExportOptions::default()).unwrap();
            let on = model.sites.iter().filter(|(_, state)| state.spec.enabled);
            let expected: BTreeSet<String> = on.map(|(site, _)| site.to_string()).collect();
            assert_eq!(quantized_sites(&file.model), expected, "{}, {name}", config.name);
        }
    }
}

/// Weights of 7 bits are codes that no sum of two products with codes of 8 bits saturates.
#[test]
fn weights_of_7_bits_keep_their_codes() {
    let file = export(&model(shifted(), "w7"), &ExportOptions::default()).unwrap();
    let constants = graph(&file.model).initializer.iter();
    let weights = nodes(&file.model, "DequantizeLinear").into_iter().map(|node| node.input[0].clone());
    let weights: BTreeSet<String> = weights.collect();
    let found: Vec<u8> = constants
        .filter(|constant| weights.contains(constant.name()))
        .map(|constant| constant.raw_data().iter().map(|&byte| (byte as i8).unsigned_abs()).max().unwrap())
        .collect();
    assert!(!found.is_empty() && found.iter().all(|&most| most == 63), "{found:?}");
}

#[test]
fn no_weights_share_a_zero_point() {
    for name in ["default", "all"] {
        let file = export(&model(shifted(), name), &ExportOptions::default()).unwrap();
        let constants: BTreeSet<&str> = graph(&file.model).initializer.iter().map(|c| c.name()).collect();
        let weights = nodes(&file.model, "DequantizeLinear").into_iter();
        let weights: Vec<_> = weights.filter(|node| constants.contains(&node.input[0][..])).collect();
        let zeros: BTreeSet<&str> = weights.iter().map(|node| &node.input[2][..]).collect();
        assert!(!weights.is_empty() && zeros.len() == weights.len(), "{zeros:?}");
        let others = graph(&file.model).node.iter().filter(|node| !constants.contains(&node.input[0][..]));
        assert!(others.flat_map(|node| &node.input).all(|input| !zeros.contains(&input[..])), "{zeros:?}");
    }
}

#[test]
fn residual_additions_of_the_default_recipe_are_float() {
    let model = model(shifted(), "default");
    let file = export(&model, &ExportOptions::default()).unwrap();
    let dequantized: BTreeSet<&str> =
        (nodes(&file.model, "DequantizeLinear").into_iter()).map(|node| node.output[0].as_str()).collect();
    let additions: Vec<_> =
        nodes(&file.model, "Add").into_iter().filter(|node| node.name().ends_with(".add")).collect();
    assert_eq!(additions.len(), 2 * 4);
    for node in additions {
        assert!(node.input.iter().all(|input| !dequantized.contains(&input[..])), "{}", node.name());
    }
}

#[test]
fn weights_are_the_models_codes_with_a_scale_per_output_channel() {
    let model = model(shifted(), "default");
    let file = export(&model, &ExportOptions::default()).unwrap();
    let constants: BTreeMap<&str, _> =
        graph(&file.model).initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
    let mut found = 0;
    for (name, param) in &model.params {
        let Param::Int8(weight) = param else { continue };
        let codes = constants[&format!("{name}.codes")[..]];
        let (rows, columns) = weight.matrix();
        assert_eq!(
            (codes.data_type(), &codes.dims[..]),
            (data_type::INT8, &[rows as i64, columns as i64][..])
        );
        assert!(codes.raw_data().iter().map(|b| b.cast_signed()).eq(weight.codes.iter().copied()), "{name}");
        let scales = constants[&format!("{name}.scale")[..]].raw_data();
        assert!(scales.iter().copied().eq(weight.scales.iter().flat_map(|s| s.to_le_bytes())), "{name}");
        let node = nodes(&file.model, "DequantizeLinear").into_iter().find(|node| node.output[0] == *name);
        let axis = node.unwrap().attribute.iter().find(|a| a.name() == "axis").unwrap();
        assert_eq!(axis.i, Some(0), "{name}");
        found += 1;
    }
    assert_eq!(found, 4 * 4 + 1);
}

#[test]
fn tensorrt_has_signed_codes_without_zero_points() {
    for name in ["default", "mode1", "all"] {
        let model = model(shifted(), name);
        let options = ExportOptions { target: Target::TensorRt, ..ExportOptions::default() };
        let file = export(&model, &options).unwrap();
        assert!(graph(&file.model).initializer.iter().all(|c| c.data_type() != data_type::UINT8), "{name}");
        let zeros: BTreeSet<&str> = (nodes(&file.model, "DequantizeLinear").into_iter())
            .chain(nodes(&file.model, "QuantizeLinear"))
            .map(|node| node.input[2].as_str())
            .collect();
        let constants = graph(&file.model).initializer.iter().filter(|c| zeros.contains(c.name()));
        let constants: Vec<_> = constants.collect();
        assert!(!zeros.is_empty() && constants.len() == zeros.len(), "{zeros:?}");
        assert!(constants.iter().all(|zero| zero.raw_data().iter().all(|&byte| byte == 0)), "{zeros:?}");
    }
}

#[test]
fn zero_points_of_channels_are_carried_or_refused() {
    let model = with_channels(shifted());
    let file = export(&model, &ExportOptions::default()).unwrap();
    assert!(file.remarks.iter().any(|remark| remark.contains("zero points")), "{:?}", file.remarks);
    let options = ExportOptions { target: Target::TensorRt, ..ExportOptions::default() };
    let error = export(&model, &options).unwrap_err();
    assert!(matches!(error, OnnxError::Site { .. }));
    let message = error.to_string();
    assert!(
        message.contains("layers.0.blocks.0.mlp.fc2.input") && message.contains("--ptq basic"),
        "{message}"
    );

    // bias + sum of -z w s_x s_w, of the first column of the first block.
    let site = model.site(Site::Input(Linear::Fc2(BlockId { stage: 0, block: 0 })));
    let zeros = &site.channels.as_ref().unwrap().zero_points;
    let Param::Int8(weight) = &model.params["layers.0.blocks.0.mlp.fc2.weight"] else { panic!() };
    let Param::Float(bias) = &model.params["layers.0.blocks.0.mlp.fc2.bias"] else { panic!() };
    let products = weight.codes.iter().zip(zeros).map(|(&w, &z)| f64::from(w) * f64::from(z));
    let step = f64::from(site.scale().unwrap()) * f64::from(weight.scales[0]);
    let expected = f64::from(bias.data[0]) - products.sum::<f64>() * step;
    let constant = graph(&file.model).initializer.iter();
    let constant = constant.clone().find(|c| c.name() == "layers.0.blocks.0.mlp.fc2.bias").unwrap();
    let found = f32::from_le_bytes(constant.raw_data()[..4].try_into().unwrap());
    assert!((f64::from(found) - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found} {expected}");
    assert!((expected - f64::from(bias.data[0])).abs() > 0.01, "the zero points have an effect");
}

#[test]
fn forms_of_the_probabilities() {
    let model = model(shifted(), "default");
    let with =
        |probs, target| export(&model, &ExportOptions { probs, target, ..ExportOptions::default() }).unwrap();
    let count = |file: &swinq_onnx::OnnxFile, op| nodes(&file.model, op).len();
    for target in [Target::Ort, Target::OpenVino] {
        let exact = with(None, target);
        assert_eq!((count(&exact, "Exp"), count(&exact, "ReduceSum"), count(&exact, "Softmax")), (4, 4, 0));
        assert!(exact.remarks.is_empty(), "{:?}", exact.remarks);
        let softmax = with(Some(ProbsForm::Softmax), target);
        assert_eq!((count(&softmax, "Exp"), count(&softmax, "Softmax")), (0, 4));
        assert!(softmax.remarks[0].contains("16 tokens has 34.8 dB"), "{:?}", softmax.remarks);
    }
    let tensorrt = with(None, Target::TensorRt);
    assert_eq!((count(&tensorrt, "Exp"), count(&tensorrt, "Softmax")), (0, 4));
    assert!(tensorrt.remarks[0].contains("steps of 1/127"), "{:?}", tensorrt.remarks);
}

#[test]
fn contradictory_options_are_refused() {
    let model = model(shifted(), "default");
    let refused = |options: ExportOptions, option: &str| match export(&model, &options) {
        Err(OnnxError::Option { option: found, .. }) => assert_eq!(found, option),
        other => panic!("{other:?}"),
    };
    let default = ExportOptions::default;
    refused(ExportOptions { opset: 17, ..default() }, "--opset");
    refused(ExportOptions { opset: 24, ..default() }, "--opset");
    refused(ExportOptions { opset: 18, fp16: true, ..default() }, "--fp16");
    refused(ExportOptions { batch: BatchSize::Fixed(0), ..default() }, "--batch");
    let (target, probs) = (Target::TensorRt, Some(ProbsForm::Exact));
    refused(ExportOptions { target, probs, ..default() }, "--probs");
}

#[test]
fn a_value_beyond_f16_is_refused() {
    let mut model = model(shifted(), "float");
    let Some(Param::Float(bias)) = model.params.get_mut("head.bias") else { panic!() };
    bias.data[0] = 70000.0;
    let error = export(&model, &ExportOptions { fp16: true, ..ExportOptions::default() }).unwrap_err();
    assert!(matches!(error, OnnxError::Float16 { ref tensor, .. } if tensor == "head.bias"), "{error}");
    export(&model, &ExportOptions::default()).unwrap();
}

#[test]
fn the_file_is_the_message_and_states_its_origin() {
    let model = model(shifted(), "default");
    let options = ExportOptions { checkpoint_hash: Some("0123".to_owned()), ..ExportOptions::default() };
    let file = export(&model, &options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    file.write(&path).unwrap();
    assert_eq!(ModelProto::decode(&std::fs::read(&path).unwrap()[..]).unwrap(), file.model);
    let metadata: BTreeMap<&str, &str> =
        file.model.metadata_props.iter().map(|entry| (entry.key(), entry.value())).collect();
    for (key, part) in [
        ("swinq.preprocessing", "0.485"),
        ("swinq.recipe", "default"),
        ("swinq.source", "sha256"),
        ("swinq.opset", "20"),
        ("swinq.target", "ort"),
        ("swinq.probs", "exact"),
        ("swinq.input", "images: float32"),
        ("swinq.checkpoint_hash", "0123"),
    ] {
        assert!(metadata[key].contains(part), "{key}: {}", metadata[key]);
    }
}

#[test]
fn the_metadata_state_the_input() {
    let input = |config, input| {
        let options = ExportOptions { input, ..ExportOptions::default() };
        let properties = export(&model(config, "float"), &options).unwrap().model.metadata_props;
        properties.into_iter().find(|entry| entry.key() == "swinq.input").unwrap().value().to_owned()
    };
    let [square, wide, gray] =
        [shifted(), rectangle(), gray_rectangle()].map(|c| input(c, InputForm::Normalized));
    assert!(square.starts_with("images: float32 [batch, 3, size, size], RGB, "), "{square}");
    assert!(wide.starts_with("images: float32 [batch, 3, 24, 56], RGB, "), "{wide}");
    assert!(gray.starts_with("images: float32 [batch, 1, 20, 44], luminance, "), "{gray}");
    let pixels = input(gray_rectangle(), InputForm::Pixels);
    assert!(pixels.starts_with("pixels: uint8 [batch, 20, 44, 1], luminance; "), "{pixels}");
}

/// Asserts that the check refuses a graph after `change`, with `word` in its message.
fn damaged(word: &str, change: impl FnOnce(&mut GraphProto)) {
    let mut file = export(&model(shifted(), "default"), &ExportOptions::default()).unwrap();
    change(file.model.graph.as_mut().unwrap());
    let error = check(&file.model, None).unwrap_err();
    assert!(matches!(error, OnnxError::Graph { .. }));
    assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
}

#[test]
fn the_check_finds_damage() {
    let at = |graph: &GraphProto, op: &str| graph.node.iter().position(|n| n.op_type() == op).unwrap();
    damaged("not defined before", |graph| graph.node.swap(2, 3));
    damaged("another value has it", |graph| graph.node[5].output[0] = graph.node[4].output[0].clone());
    damaged("two nodes", |graph| graph.node[5].name = graph.node[4].name.clone());
    damaged("nothing uses", |graph| {
        let mut extra = graph.initializer[0].clone();
        extra.name = Some("extra".to_owned());
        graph.initializer.push(extra);
    });
    damaged("do not fit its shape", |graph| graph.initializer[0].dims.push(2));
    damaged("no order", |graph| {
        let node = at(graph, "Transpose");
        graph.node[node].attribute[0].ints = vec![0, 0, 1];
    });
    damaged("the product", |graph| {
        let transpose = graph.node.iter_mut().find(|n| n.name().ends_with("weight.transposed")).unwrap();
        transpose.attribute[0].ints = vec![0, 1];
    });
    damaged("another type than the codes", |graph| {
        let node = at(graph, "QuantizeLinear");
        graph.node[node].input[2] = "zero.u8".to_owned();
        let zero = graph.initializer.iter().position(|c| c.name() == "zero.u8").unwrap();
        graph.initializer.swap(0, zero);
    });
    damaged("is declared as", |graph| {
        let tensor = graph.output[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.elem_type = Some(data_type::FLOAT16);
    });
}

/// A graph in words: constants by name and shape, and nodes.
fn text(model: &ModelProto) -> String {
    let mut out = String::new();
    for tensor in &graph(model).initializer {
        writeln!(out, "{} {:?} of type {}", tensor.name(), tensor.dims, tensor.data_type()).unwrap();
    }
    for node in &graph(model).node {
        let attribute = |a: &swinq_onnx::proto::AttributeProto| match (a.i, a.f) {
            (Some(i), _) => format!("{}={i}", a.name()),
            (_, Some(f)) => format!("{}={f}", a.name()),
            _ => format!("{}={:?}", a.name(), a.ints),
        };
        let attributes: Vec<String> = node.attribute.iter().map(attribute).collect();
        let (outputs, op, inputs) = (node.output.join(", "), node.op_type(), node.input.join(", "));
        writeln!(out, "{outputs} = {op}({inputs}) {}", attributes.join(" ")).unwrap();
    }
    out
}

#[test]
fn the_graphs_are_as_recorded() {
    let default = ExportOptions::default;
    let cases = [
        ("shifted_float", model(shifted(), "float"), default()),
        ("padded_default", model(padded(), "default"), default()),
        ("shifted_channels", with_channels(shifted()), default()),
        (
            "shifted_all_pixels",
            model(shifted(), "all"),
            ExportOptions { input: InputForm::Pixels, ..default() },
        ),
        (
            "second_tensorrt",
            model(second(), "default"),
            ExportOptions { target: Target::TensorRt, ..default() },
        ),
        (
            "backbone_default",
            model(backbone(shifted()), "default"),
            ExportOptions { size: ImageSize::Fixed(Size::new(29, 50)), ..default() },
        ),
    ];
    for (name, model, options) in cases {
        let text = text(&export(&model, &options).unwrap().model);
        let file = format!("tests/snapshots/{name}.txt");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text == expected, "{file} differs; UPDATE_SNAPSHOTS=1 records it anew");
    }
}

#[test]
fn heads_with_two_codes_have_three_products_of_codes() {
    let mut float = random(second(), 5);
    for (name, tensor) in float.tensors.iter_mut().filter(|(name, _)| name.ends_with("logit_scale")) {
        // A factor of 90 for the first head of a block, and of 2 for the others.
        tensor.data.iter_mut().for_each(|scale| *scale = 2f32.ln());
        tensor.data[0] = 90f32.ln();
        assert!(tensor.data.len() > 1, "{name}");
    }
    let ranges = all_sites(&float.config).into_iter();
    let ranges = ranges.map(|site| (site, site.known_range(&float.config).unwrap_or(2.0))).collect();
    let model = quantize(&float, &recipe("default"), &ranges).unwrap();
    for (target, unsigned) in [(Target::Ort, true), (Target::OpenVino, false), (Target::TensorRt, false)] {
        let file = export(&model, &ExportOptions { target, ..ExportOptions::default() }).unwrap();
        assert!(file.remarks.iter().any(|remark| remark.contains("two codes")), "{:?}", file.remarks);
        let products =
            nodes(&file.model, "MatMul").into_iter().filter(|n| n.name().contains(".attn.product"));
        assert_eq!(products.count(), 3 * 4, "four blocks");
        let constants = &graph(&file.model).initializer;
        assert_eq!(constants.iter().any(|c| c.name() == "middle.u8"), unsigned, "{target:?}");
        let which = constants.iter().find(|c| c.name() == "layers.0.blocks.0.attn.q.two_codes").unwrap();
        let which: Vec<f32> =
            which.raw_data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(which, [1.0, 0.0]);
    }
}
