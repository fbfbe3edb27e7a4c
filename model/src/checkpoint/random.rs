//! Models with random parameters, which stand for trained checkpoints in measurements.

use crate::arch::SwinVersion;
use crate::config::LoadedConfig;
use crate::draws::Draws;
use crate::params::parameters;
use crate::quantized::{FloatModel, Source};
use crate::tensor::{HostTensor, StateDict};

/// A model with random parameters. Weights have the distribution N(0, 1 / fan-in); norm weights are uniform
/// in 0.7..1.3; biases, bias tables and position embeddings have N(0, 0.5^2). The factors of `QK^T` that a
/// Swin V2 learns are between 5 and 100, on a logarithmic scale; its keys have no bias. A seed gives the same
/// bits on every machine. The model stands for a trained checkpoint in measurements; its predictions mean
/// nothing.
pub fn random_model(loaded: &LoadedConfig, seed: u64) -> FloatModel {
    let mut tensors = StateDict::new();
    for (index, (name, shape)) in parameters(&loaded.config).into_iter().enumerate() {
        let mut draws = Draws::new(Draws::new(seed ^ (index as u64).rotate_left(40)).next());
        let mut data = draw(&mut draws, &name, &shape);
        if loaded.config.version == SwinVersion::V2 && name.ends_with(".attn.qkv.bias") {
            let third = data.len() / 3;
            data[third..2 * third].fill(0.0);
        }
        tensors.insert(name, HostTensor::new(shape, data));
    }
    FloatModel {
        config: loaded.config.clone(),
        transform: loaded.transform.clone(),
        labels: None,
        labels_from: None,
        tensors,
        source: Source {
            file: format!("random weights, seed {seed}, {}", loaded.config.name),
            sha256: String::new(),
            dialect: "random".to_owned(),
        },
    }
}

fn draw(draws: &mut Draws, name: &str, shape: &[usize]) -> Vec<f32> {
    let count = shape.iter().product();
    if name.ends_with(".logit_scale") {
        // The logarithms of 5 and of 122: the largest factors are clamped.
        return (0..count).map(|_| 1.6 + 3.2 * uniform(draws)).collect();
    }
    let is_table = name.ends_with("_table") || name == "absolute_pos_embed";
    if shape.len() == 1 && name.ends_with(".weight") {
        return (0..count).map(|_| 0.7 + 0.6 * uniform(draws)).collect();
    }
    let deviation = if is_table || shape.len() == 1 {
        0.5
    } else {
        let fan_in: usize = shape[1..].iter().product();
        1.0 / (fan_in as f32).sqrt()
    };
    (0..count).map(|_| deviation * normal(draws)).collect()
}

/// Uniform in 0..1, a multiple of 2^-24.
fn uniform(draws: &mut Draws) -> f32 {
    (draws.next() >> 40) as f32 / (1 << 24) as f32
}

/// Approximately normal with mean 0 and variance 1: the sum of twelve uniform 16-bit numbers (Irwin-Hall).
/// The sum is exact in f32, so it is equal on every machine.
fn normal(draws: &mut Draws) -> f32 {
    let mut sum = 0u64;
    for _ in 0..3 {
        let bits = draws.next();
        sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    }
    (sum as f32 - 6.0 * 65535.0) / 65536.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_config;
    use crate::params::check_parameters;

    #[test]
    fn every_parameter_is_drawn_and_depends_on_the_seed_only() {
        every_parameter_is_drawn("swin_tiny_patch4_window7_224");
        every_parameter_is_drawn("swinv2_tiny_patch4_window8_256");
    }

    fn every_parameter_is_drawn(name: &str) {
        let loaded = load_config(name, &[]).unwrap();
        let model = random_model(&loaded, 7);
        check_parameters(&model.config, &model.tensors).unwrap();
        assert_eq!(model.tensors, random_model(&loaded, 7).tensors);
        let other = random_model(&loaded, 8);
        for (name, tensor) in &model.tensors {
            let mean = tensor.data.iter().sum::<f32>() / tensor.data.len() as f32;
            assert!(tensor.data.iter().any(|&v| (v - mean).abs() > 0.01), "{name} is constant");
            assert_ne!(*tensor, other.tensors[name], "{name}");
        }
        assert_ne!(
            model.tensors["layers.0.blocks.0.attn.proj.bias"].data,
            model.tensors["layers.0.blocks.1.attn.proj.bias"].data
        );
    }

    #[test]
    fn weights_have_fan_in_scale() {
        let loaded = load_config("swin_tiny_patch4_window7_224", &[]).unwrap();
        let model = random_model(&loaded, 1);
        let weight = &model.tensors["layers.3.blocks.0.mlp.fc1.weight"];
        let n = weight.data.len() as f64;
        let variance = weight.data.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
        assert!((variance * 768.0 - 1.0).abs() < 0.01, "{variance}");
        let fourth = weight.data.iter().map(|&v| f64::from(v).powi(4)).sum::<f64>() / n;
        assert!((fourth / (variance * variance) - 2.9).abs() < 0.05);
        let norm = &model.tensors["norm.weight"].data;
        assert!(norm.iter().all(|v| (0.7..=1.3).contains(v)));
    }
}
