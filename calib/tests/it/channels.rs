//! Scales and zero points for channels: the weight includes the factors, and finer codes lower the error.

use std::collections::BTreeMap;

use candle_core::Device;
use swinq_calib::{fold_factors, quantize, quantize_weight, set_channel_codes};
use swinq_float::FloatClassifier;
use swinq_model::quantized::{ChannelCodes, FloatModel, Param};
use swinq_model::{BatchSource, BlockId, Classifier, Linear, QuantizedModel, Recipe, Rule, Site, Size};
use swinq_testing::model::{NoiseImages, random, random_channels, shifted};

const BLOCK: BlockId = BlockId { stage: 1, block: 1 };

/// A range that clips no value.
const AMAX: f32 = 8.0;

/// A recipe that quantizes one `mlp.fc2` and nothing else.
fn recipe(weight: bool) -> Recipe {
    let rule =
        |pattern: &str, enable| Rule { pattern: pattern.into(), enable: Some(enable), ..Rule::default() };
    Recipe::float()
        .with_rule(rule("layers.1.blocks.1.mlp.fc2.input", true))
        .with_rule(rule("layers.1.blocks.1.mlp.fc2.weight", weight))
}

fn model(weight: bool) -> (FloatModel, QuantizedModel) {
    let float = random(shifted(), 3);
    let ranges = BTreeMap::from([(Site::Input(Linear::Fc2(BLOCK)), AMAX)]);
    let model = quantize(&float, &recipe(weight), &ranges).unwrap();
    (float, model)
}

#[test]
fn the_weight_is_quantized_with_its_factors() {
    let (float, plain) = model(true);
    let name = Linear::Fc2(BLOCK).weight_name();
    let channels = random_channels(96, 1);
    let mut model = plain.clone();
    set_channel_codes(&mut model, &float, BLOCK, 0.5, channels.clone()).unwrap();
    let folded = fold_factors(&float.tensors[&name], &channels.factors);
    assert_eq!(folded.data[97], float.tensors[&name].data[97] * channels.factors[1]);
    let spec = &model.site(Site::Weight(Linear::Fc2(BLOCK))).spec;
    assert_eq!(model.params[&name], Param::Int8(quantize_weight(&folded, spec).unwrap()));
    assert_eq!(model.site(Site::Input(Linear::Fc2(BLOCK))).amax, Some(0.5));
    model.validate().unwrap();
    // Nothing else has changed.
    model.sites = plain.sites.clone();
    model.params.insert(name.clone(), plain.params[&name].clone());
    assert_eq!(model, plain);
}

#[test]
fn a_float_weight_stays_as_it_is() {
    let (float, plain) = model(false);
    let mut model = plain.clone();
    set_channel_codes(&mut model, &float, BLOCK, 0.5, random_channels(96, 1)).unwrap();
    assert_eq!(model.params, plain.params);
    model.validate().unwrap();
}

#[test]
fn codes_that_cannot_be_used_leave_the_model_unchanged() {
    let (float, plain) = model(true);
    for (amax, channels, word) in [
        (0.5, random_channels(95, 1), "95 factors"),
        (0.0, random_channels(96, 1), "amax 0"),
        (0.5, ChannelCodes { factors: vec![0.0; 96], zero_points: vec![0; 96] }, "factor 0"),
    ] {
        let mut model = plain.clone();
        let error = set_channel_codes(&mut model, &float, BLOCK, amax, channels).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert_eq!(model, plain);
    }
    let off = BlockId { stage: 0, block: 0 };
    let error = set_channel_codes(&mut plain.clone(), &float, off, 0.5, random_channels(48, 1)).unwrap_err();
    assert!(error.to_string().contains("it is off"), "{error}");
}

/// Values of GELU reach from -0.17 to `AMAX`. Codes with a zero point are finer there: 210 instead of 127 of
/// them are positive. The weight is in float, so that its own error does not hide this.
#[test]
fn a_zero_point_lowers_the_error() {
    let (float, plain) = model(false);
    let batch = NoiseImages { size: Size::square(32), channels: 3, batches: 1 }.batch(0, 0).unwrap();
    let exact = FloatClassifier::new(&float, &Device::Cpu).unwrap().infer(&batch).unwrap().values;
    let error = |model: &QuantizedModel| {
        let logits = FloatClassifier::simulate(model, &Device::Cpu).unwrap().infer(&batch).unwrap().values;
        exact.iter().zip(logits).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    let mut shifted = plain.clone();
    let channels = ChannelCodes { factors: vec![1.0; 96], zero_points: vec![-83; 96] };
    // 210 codes above the zero point reach as far as the 127 of `plain`.
    set_channel_codes(&mut shifted, &float, BLOCK, AMAX * 127.0 / 210.0, channels).unwrap();
    let (before, after) = (error(&plain), error(&shifted));
    // 0.37, the square of 127 / 210, would be expected of many images.
    assert!(after < 0.8 * before, "{after:e}, symmetric {before:e}");
}
