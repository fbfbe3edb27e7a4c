//! The float forward against timm, transformers, torchvision and mmpretrain on images that are not square, of
//! several sizes, and with one or four channels (`tests/parity/make_sizes.py`).

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView as SafeView;
use serde_json::Value;
use swinq_float::ops::Compute;
use swinq_float::{Float, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Documents, ElementType, HostTensor, InMemory, LoadOptions, PositionSizes, Size, SwinConfig, TensorView,
    WindowPolicy, load_config, load_float_from_memory,
};
use swinq_testing::model::{random, small};
use swinq_testing::relative_distance;

const TOLERANCE: f64 = 1e-5;

/// A fixture: the model as its library describes it, and the library's logits by image size.
struct Fixture {
    model: FloatModel,
    logits: Vec<(Size, Vec<f32>)>,
}

fn fixture(name: &str) -> Fixture {
    let path = format!("{}/tests/fixtures/sizes/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let described: Value = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["model"]).unwrap();
    let views: Vec<(String, SafeView<'_>)> =
        file.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    let mut tensors = BTreeMap::new();
    let mut logits = Vec::new();
    for (name, view) in &views {
        if let Some(name) = name.strip_prefix("model.") {
            let view = TensorView { element: ElementType::F32, shape: view.shape(), bytes: view.data() };
            tensors.insert(name.to_owned(), view);
        } else if let Some(size) = name.strip_prefix("logits.") {
            let (height, width) = size.split_once('x').unwrap();
            let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            logits.push((Size::new(height.parse().unwrap(), width.parse().unwrap()), values.collect()));
        }
    }
    let text = |key: &str| described.get(key).map(Value::to_string);
    let documents = text("config").map(|config| Documents { config, preprocessor: text("preprocessor") });
    let memory = InMemory { name: name.to_owned(), tensors, documents, transform: None, window_policy: None };
    let cfg =
        described.get("opts").map(|opts| load_config("swin_tiny_patch4_window7_224", &pairs(opts)).unwrap());
    let options = LoadOptions { cfg, ..LoadOptions::default() };
    let model = load_float_from_memory(&memory, &options).unwrap().model;
    Fixture { model, logits }
}

/// The keys and values of a configuration.
fn pairs(opts: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    opts.as_object().unwrap().iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// Two images of `size`: the numbers of `make_sizes.py`.
fn images(channels: usize, size: Size) -> Tensor {
    let value = |i: u64| {
        let hashed = (i.wrapping_mul(2_654_435_761) % (1 << 32)) >> 8;
        (hashed as f64 / f64::from(1 << 22) - 2.0) as f32
    };
    let values: Vec<f32> = (0..2 * channels as u64 * size.area() as u64).map(value).collect();
    Tensor::from_vec(values, (2, channels, size.height, size.width), &Device::Cpu).unwrap()
}

#[test]
fn logits_are_those_of_the_libraries_at_every_size() {
    let folder = format!("{}/tests/fixtures/sizes", env!("CARGO_MANIFEST_DIR"));
    let files =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> =
        files.map(|name| name.trim_end_matches(".safetensors").to_owned()).collect();
    assert!(names.len() >= 22, "{names:?}");
    let mut wrong = Vec::new();
    for name in names {
        let Fixture { model, logits } = fixture(&name);
        let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
        for (size, want) in logits {
            let found = swin.forward(&images(model.config.in_chans, size), &mut Float);
            let error = match found {
                Ok(found) => {
                    relative_distance(&found.flatten_all().unwrap().to_vec1::<f32>().unwrap(), &want)
                }
                Err(error) => {
                    wrong.push(format!("{name} at {size}: {error}"));
                    continue;
                }
            };
            if error > TOLERANCE {
                wrong.push(format!("{name} at {size}: {error:.2e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Training changes the embedding, so that its interpolation for other sizes would need a gradient.
#[test]
fn training_refuses_the_sizes_for_which_positions_would_be_interpolated() {
    let config = SwinConfig {
        ape: true,
        ape_sizes: PositionSizes::Bicubic,
        window_policy: WindowPolicy::Detection,
        ..small()
    };
    let model = random(config, 1);
    let (own, other) = (model.config.image_size, Size::new(20, 44));
    let fixed = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    assert!(fixed.maps(own).is_ok() && fixed.maps(other).is_ok());
    let tensor = |tensor: &HostTensor| {
        Tensor::from_slice(&tensor.data, tensor.shape.as_slice(), &Device::Cpu).unwrap()
    };
    let tensors = model.tensors.iter().map(|(name, value)| (name.clone(), tensor(value))).collect();
    let trained = Swin::with_ops(&model.config, &tensors, &Device::Cpu, Compute::Candle.into()).unwrap();
    assert!(trained.maps(own).is_ok());
    let message = trained.maps(other).err().unwrap().to_string();
    assert!(message.contains("images of 20x44") && message.contains("absolute_pos_embed"), "{message}");
    assert!(message.contains("swinq.torch.prepare"), "{message}");
}
