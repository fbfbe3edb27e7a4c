//! Helpers for the tests of whole networks and whole trainings.

#![allow(dead_code)] // Each test binary uses a part of it.

use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_model::config::LoadedConfig;
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Batch, BatchSource, BoxError, QuantizedModel, Recipe, SwinConfig, Transform, WindowPolicy, random_model,
};

/// Two stages: the first has shifted windows, one window covers the second.
pub fn shifted() -> SwinConfig {
    SwinConfig {
        name: "shifted".to_owned(),
        image_size: 32,
        patch_size: 4,
        num_classes: 5,
        embed_dim: 12,
        depths: vec![2, 2],
        num_heads: vec![2, 3],
        window_size: 4,
        ..SwinConfig::default()
    }
}

/// A grid that needs padding for the windows and for merging.
pub fn padded() -> SwinConfig {
    SwinConfig {
        name: "padded".to_owned(),
        image_size: 28,
        window_policy: WindowPolicy::ShrinkAndPad,
        ..shifted()
    }
}

/// The optional parts of the architecture, each in its unusual form.
pub fn odd() -> SwinConfig {
    SwinConfig {
        name: "ape, no QKV bias, own scale, no patch norm".to_owned(),
        ape: true,
        qkv_bias: false,
        qk_scale: Some(0.3),
        patch_norm: false,
        ..shifted()
    }
}

/// A model with random weights.
pub fn random(config: SwinConfig, seed: u64) -> FloatModel {
    config.validate().unwrap();
    let transform = Transform::microsoft(config.image_size, false);
    random_model(&LoadedConfig { config, transform, drop_path: 0.0, origin: "test".to_owned() }, seed)
}

/// `float`, calibrated on images of `source`.
pub fn calibrated(float: &FloatModel, recipe: &str, source: &mut Images) -> QuantizedModel {
    let recipe = match Recipe::shipped(recipe) {
        Some(recipe) => recipe,
        None => Recipe::from_yaml("test", recipe).unwrap(),
    };
    let mut progress = |_, _| ControlFlow::Continue(());
    calibrate(
        float,
        &recipe,
        source,
        CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress },
    )
    .unwrap()
    .model
}

/// The values of a tensor, row-major.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Synthetic images with separable classes: each shows stripes in its class's colours under noise. Image `i` of an epoch
/// does not depend on the batch size.
pub struct Images {
    pub size: usize,
    pub classes: u32,
    pub batch_size: usize,
    pub batches: usize,
}

impl Images {
    /// Images for `config`, with `batches` batches per epoch.
    pub fn of(config: &SwinConfig, batch_size: usize, batches: usize) -> Images {
        Images { size: config.image_size, classes: config.num_classes as u32, batch_size, batches }
    }

    fn image(&self, id: u64, class: u32, pixels: &mut Vec<u8>) {
        let mut state = (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for i in 0..self.size * self.size * 3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let noise = (state >> 40) % 120;
            let (channel, column) = (i % 3, i / 3 % self.size);
            let stripe = (column / 4 + channel + class as usize).is_multiple_of(3);
            pixels.push(noise as u8 + if stripe { 130 } else { 10 * class as u8 });
        }
    }
}

impl BatchSource for Images {
    fn batches(&self) -> usize {
        self.batches
    }

    fn images(&self) -> usize {
        self.batches * self.batch_size
    }

    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        let first = index * self.batch_size;
        let ids: Vec<usize> = (first..first + self.batch_size).collect();
        let labels: Vec<u32> = ids.iter().map(|&id| (id as u32 + epoch as u32) % self.classes).collect();
        let mut pixels = Vec::new();
        for (&id, &class) in ids.iter().zip(&labels) {
            self.image(id as u64 + 1000 * epoch, class, &mut pixels);
        }
        Ok(Batch { pixels, size: self.size, labels, ids })
    }
}
