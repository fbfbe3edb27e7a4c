//! Initial parameters: of a whole network, or of a head for other classes.

use swinq_model::config::LoadedConfig;
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, Source};
use swinq_model::{Draws, HostTensor, Problem, StateDict};

/// Standard deviation of Swin's initial weights, which are truncated at two deviations.
const DEVIATION: f64 = 0.02;

/// The factors of `q k^T` of an untrained Swin V2.
const FACTOR: f64 = 10.0;

/// An untrained network with Swin's initialisation. Weights, bias tables and position embeddings have a
/// normal distribution with standard deviation 0.02, truncated at two deviations; biases are 0; norm weights
/// are 1. In a Swin V2 the weights of the norms that follow branches are 0, so that every block starts as the
/// identity, and the factors of `q k^T` are 10.
pub fn untrained(loaded: &LoadedConfig, seed: u64) -> FloatModel {
    let tensors: StateDict = parameters(&loaded.config)
        .into_iter()
        .map(|(name, shape)| {
            let branch = name.ends_with(".norm1.weight") || name.ends_with(".norm2.weight");
            let tensor = match loaded.config.post_norm() && branch {
                true => HostTensor::new(shape.clone(), vec![0.0; shape.iter().product()]),
                false => initial(&name, &shape, seed),
            };
            (name, tensor)
        })
        .collect();
    let source = Source {
        file: format!("untrained, seed {seed}, {}", loaded.config.name),
        sha256: String::new(),
        dialect: "random".to_owned(),
    };
    FloatModel {
        config: loaded.config.clone(),
        transform: loaded.transform.clone(),
        labels: None,
        labels_from: None,
        tensors,
        source,
    }
}

/// Replaces the head of `model` with an untrained one for `classes` classes; an image has one of them.
pub fn replace_head(model: &mut FloatModel, classes: usize, labels: Option<Vec<String>>, seed: u64) {
    (model.config.num_classes, model.config.problem) = (classes, Problem::SingleLabel);
    model.labels = labels;
    model.labels_from = None;
    for (name, shape) in parameters(&model.config).into_iter().filter(|(name, _)| name.starts_with("head.")) {
        model.tensors.insert(name.clone(), initial(&name, &shape, seed));
    }
}

fn initial(name: &str, shape: &[usize], seed: u64) -> HostTensor {
    let count = shape.iter().product();
    let data = match (shape.len(), name.ends_with(".weight")) {
        _ if name.ends_with(".logit_scale") => vec![libm::log(FACTOR) as f32; count],
        (1, true) => vec![1.0; count],
        (1, false) => vec![0.0; count],
        _ => {
            let key: Vec<u64> = [seed].into_iter().chain(name.bytes().map(u64::from)).collect();
            let mut random = Draws::keyed(&key);
            (0..count).map(|_| (DEVIATION * truncated_normal(&mut random)) as f32).collect()
        }
    };
    HostTensor::new(shape.to_vec(), data)
}

/// A standard normal number (Box and Muller), drawn again until it lies within two deviations.
fn truncated_normal(random: &mut Draws) -> f64 {
    loop {
        let radius = (-2.0 * libm::log(1.0 - random.unit())).sqrt();
        let value = radius * libm::cos(2.0 * std::f64::consts::PI * random.unit());
        if value.abs() <= 2.0 {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use swinq_model::load_config;

    use super::*;

    #[test]
    fn weights_are_swins_and_a_new_head_leaves_the_rest() {
        let loaded = load_config("swin_tiny_patch4_window7_224", &[]).unwrap();
        let mut model = untrained(&loaded, 3);
        let weight = &model.tensors["layers.2.blocks.1.mlp.fc1.weight"].data;
        let variance = weight.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() / weight.len() as f64;
        // Truncation at two deviations leaves 0.774 of the normal distribution's variance.
        assert!((variance / (0.774 * 4e-4) - 1.0).abs() < 0.02, "{variance}");
        assert!(weight.iter().all(|w| w.abs() <= 0.04));
        assert_eq!(model.tensors["norm.weight"].data, vec![1.0; 768]);
        assert_eq!(model.tensors["layers.0.blocks.0.attn.qkv.bias"].data, vec![0.0; 288]);
        let before = model.tensors.clone();
        model.config.problem = Problem::MultiLabel;
        replace_head(&mut model, 10, None, 4);
        assert_eq!(model.config.problem, Problem::SingleLabel);
        swinq_model::params::check_parameters(&model.config, &model.tensors).unwrap();
        assert_eq!(model.tensors["head.weight"].shape, [10, 768]);
        assert!(before.iter().all(|(name, t)| name.starts_with("head.") || *t == model.tensors[name]));
        assert_ne!(untrained(&loaded, 5).tensors["head.weight"], before["head.weight"]);
    }

    #[test]
    fn blocks_of_swin_v2_start_as_the_identity() {
        let loaded = load_config("swinv2_tiny_patch4_window8_256", &[]).unwrap();
        let model = untrained(&loaded, 3);
        swinq_model::params::check_parameters(&model.config, &model.tensors).unwrap();
        let values = |name: &str| model.tensors[name].data.as_slice();
        for (name, value) in [
            ("layers.0.blocks.1.norm1.weight", 0.0),
            ("layers.3.blocks.0.norm2.weight", 0.0),
            ("layers.0.downsample.norm.weight", 1.0),
            ("norm.weight", 1.0),
            ("layers.2.blocks.0.attn.logit_scale", 10f32.ln()),
            ("layers.2.blocks.0.attn.cpb_mlp.0.bias", 0.0),
        ] {
            assert!(values(name).iter().all(|&x| x == value), "{name}");
        }
        assert!(values("layers.2.blocks.0.attn.cpb_mlp.2.weight").iter().any(|&x| x != 0.0));
    }
}
