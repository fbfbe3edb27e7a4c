//! The metadata of a file: facts about the input, the classes and the origin.

use swinq_model::{ChannelOrder, QuantizedModel, SizeRules, StageOutput};
use swinq_numerics::ImageEdge;

use crate::options::{ExportOptions, Images, InputForm, Target};
use crate::proto::StringStringEntryProto;

/// The metadata of `model`, exported with `options` for `images`; `f32_residual` is whether an f16 graph has
/// an f32 residual. Values are texts, or JSON where they have structure.
pub(crate) fn properties(
    model: &QuantizedModel,
    images: &Images,
    (options, f32_residual): (&ExportOptions, bool),
    remarks: &[String],
) -> Vec<StringStringEntryProto> {
    let source = &model.provenance.source;
    let json = |value: serde_json::Result<String>| value.expect("texts and numbers have JSON");
    let channels = model.config.in_chans;
    let sides = match images {
        Images::OfAnySize(_) => "height, width".to_owned(),
        Images::OfOneSize(size) if size.side().is_some() && !model.config.is_backbone() => {
            "size, size".to_owned()
        }
        Images::OfOneSize(size) => format!("{}, {}", size.height, size.width),
    };
    let colour = match channels {
        1 => ", luminance",
        3 if model.transform.channel_order == ChannelOrder::Bgr => ", BGR",
        3 => ", RGB",
        _ => "",
    };
    let input = match options.input {
        _ if model.config.takes_tokens() => {
            format!("images: float32 [batch, {channels}, {sides}], the tokens of a stack of blocks")
        }
        InputForm::Normalized => format!(
            "images: float32 [batch, {channels}, {sides}]{colour}, (pixel / 255 - mean) / std with the values of \
             swinq.preprocessing"
        ),
        InputForm::Pixels => {
            format!("pixels: uint8 [batch, {sides}, {channels}]{colour}; the graph normalises")
        }
    };
    let mut properties = vec![
        ("swinq.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("swinq.architecture", json(serde_json::to_string(&model.config))),
        ("swinq.input", input),
        ("swinq.preprocessing", json(serde_json::to_string(&model.transform))),
        ("swinq.batch", options.batch.to_string()),
        ("swinq.opset", options.opset.to_string()),
        ("swinq.target", options.target.name().to_owned()),
        ("swinq.float", if options.fp16 { "float16" } else { "float32" }.to_owned()),
        ("swinq.quantized", model.is_quantized().to_string()),
        ("swinq.source", json(serde_json::to_string(source))),
    ];
    if f32_residual {
        properties.push(("swinq.residual", "float32".to_owned()));
    }
    if model.config.is_backbone() {
        let map = |output: &StageOutput| {
            let channels = model.config.embed_dim << output.stage;
            let sides = match images {
                Images::OfAnySize(rules) => {
                    ["height", "width"].map(|side| side_in_words(side, output.stage, rules)).join(", ")
                }
                Images::OfOneSize(size) => {
                    let grid = model.config.grid_size(output.stage, *size);
                    format!("{}, {}", grid.height, grid.width)
                }
            };
            format!("{}: float32 [batch, {channels}, {sides}]", output.name)
        };
        let maps: Vec<String> = model.config.outputs.iter().map(map).collect();
        properties.push(("swinq.outputs", json(serde_json::to_string(&maps))));
    }
    if let Images::OfAnySize(rules) = images {
        let smallest = [rules.smallest.height, rules.smallest.width];
        let sizes = serde_json::json!({"rule": rules.in_words(), "smallest": smallest});
        properties.push(("swinq.sizes", sizes.to_string()));
    }
    if let Some(labels) = &model.labels {
        properties.push(("swinq.labels", json(serde_json::to_string(labels))));
    }
    if model.is_quantized() {
        properties.push(("swinq.recipe", json(serde_json::to_string(&model.recipe))));
        properties.push(("swinq.numbers", model.numbers().to_string()));
        properties.push(("swinq.probs", options.probs_form().name().to_owned()));
    }
    if let Some(hash) = &options.checkpoint_hash {
        properties.push(("swinq.checkpoint_hash", hash.clone()));
    }
    if options.target == Target::TensorRt {
        properties.push(("swinq.tensorrt", "build with strong typing (--stronglyTyped)".to_owned()));
    }
    if !remarks.is_empty() {
        properties.push(("swinq.remarks", json(serde_json::to_string(remarks))));
    }
    let entry = |(key, value): (&str, String)| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value),
    };
    properties.into_iter().map(entry).collect()
}

/// The length of a side of a stage's map, from that of the image.
fn side_in_words(side: &str, stage: usize, rules: &SizeRules) -> String {
    match (rules.edge, stage) {
        (ImageEdge::Padded, _) => format!("ceil({side} / {})", rules.patch << stage),
        (ImageEdge::Cut, 0) => format!("floor({side} / {})", rules.patch),
        (ImageEdge::Cut, _) => format!("ceil(floor({side} / {}) / {})", rules.patch, 1 << stage),
    }
}
