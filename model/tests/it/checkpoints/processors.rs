//! The defaults of image processors of transformers. `make_processors.py` writes those of the library.

use serde_json::{Value, json};
use swinq_model::Transform;

use super::*;

/// The transform of the folder `hf` with the fields `processor` as its preprocessing.
fn transform(processor: &Value) -> Result<Transform, String> {
    let copy = edited("hf", "preprocessor_config.json", |json| *json = processor.clone());
    let model = load_float(copy.path(), &LoadOptions::default());
    model.map(|model| model.transform).map_err(|error| error.to_string())
}

#[test]
fn absent_fields_have_the_defaults_of_the_class() {
    let text = fs::read_to_string(fixture("processors.json")).unwrap();
    let classes: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(classes.len() > 8);
    for (class, default) in &classes {
        for end in ["ImageProcessor", "ImageProcessorFast", "FeatureExtractor"] {
            let key =
                if end == "FeatureExtractor" { "feature_extractor_type" } else { "image_processor_type" };
            let mut processor = json!({key: format!("{class}{end}"), "size": 24});
            if !default["crop"].is_null() {
                processor["size"] = json!({"shortest_edge": 28});
                processor["crop_size"] = json!(24);
            }
            let found = transform(&processor).unwrap_or_else(|error| panic!("{class}{end}: {error}"));
            let numbers = |field: &str| -> Vec<f32> {
                default[field]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|value| value.as_f64().unwrap() as f32)
                    .collect()
            };
            let filter = if default["resample"] == 3 { Filter::Bicubic } else { Filter::Bilinear };
            assert_eq!((found.mean, found.std), (numbers("image_mean"), numbers("image_std")), "{class}");
            assert_eq!(found.filter, filter, "{class}");
            let resize = if default["crop"].is_null() { Resize::Direct } else { Resize::ShorterSide(28) };
            assert_eq!(found.resize, resize, "{class}");
        }
    }
    // transformers reads the files of Swins without a class as those of a ViT.
    let named = json!({"image_processor_type": "ViTImageProcessor", "size": 24});
    assert_eq!(transform(&json!({"size": 24})), transform(&named));
}

#[test]
fn defaults_that_do_not_fit_or_are_not_known_are_refused() {
    let message = transform(&json!({})).unwrap_err();
    assert!(
        message.contains("gives images of 224x224 pixels, but config.json has image_size 24"),
        "{message}"
    );
    let message = transform(&json!({"image_processor_type": "DonutImageProcessor"})).unwrap_err();
    assert!(message.contains("field size: is missing"), "{message}");
    let other = json!({"image_processor_type": "OtherImageProcessor", "size": 24});
    let message = transform(&other).unwrap_err();
    assert!(message.contains("image_mean: is missing") && message.contains("--transform"), "{message}");
    // Some classes crop by default (LeViT, PoolFormer, MobileNetV2): 9.6 dB without it.
    let mut stated = json!({"image_processor_type": "LevitImageProcessor", "size": 24, "resample": 3});
    stated["image_mean"] = json!([0.5, 0.5, 0.5]);
    stated["image_std"] = stated["image_mean"].clone();
    assert!(transform(&stated).unwrap_err().contains("do_center_crop: is missing, and swinq does not know"));
    stated["do_center_crop"] = json!(false);
    assert_eq!(transform(&stated).unwrap().resize, Resize::Direct);
    let copy = edited("hf", "preprocessor_config.json", |json| *json = other.clone());
    load_float(copy.path(), &LoadOptions { any_transform: true, ..LoadOptions::default() }).unwrap();
}

#[test]
fn classes_that_resize_in_a_way_of_their_own_are_remarked() {
    let remarks = |class: &str| {
        let processor = json!({
            "image_processor_type": class, "size": 24, "resample": 3, "do_center_crop": false,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]
        });
        let copy = edited("hf", "preprocessor_config.json", |json| *json = processor.clone());
        load_float_with_remarks(copy.path(), &LoadOptions::default()).unwrap().remarks
    };
    assert_eq!(remarks("ViTImageProcessor"), Vec::<String>::new());
    for class in ["DonutImageProcessor", "EfficientNetImageProcessorFast"] {
        let [remark] = &remarks(class)[..] else { panic!("{class}") };
        assert!(remark.contains(class) && remark.contains("--transform"), "{remark}");
    }
}
