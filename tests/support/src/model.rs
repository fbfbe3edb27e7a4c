//! Small architectures, models of random weights, and images of noise.

use swinq_model::config::LoadedConfig;
use swinq_model::quantized::{ChannelCodes, FloatModel};
use swinq_model::{
    Batch, BatchSource, BoxError, Input, Size, StageOutput, SwinConfig, SwinVersion, Transform, WindowPolicy,
    random_model,
};

use crate::XorShift;

/// Two stages: the first has shifted windows, one window covers the second.
pub fn shifted() -> SwinConfig {
    SwinConfig {
        name: "shifted".to_owned(),
        image_size: Size::square(32),
        patch_size: 4,
        num_classes: 5,
        embed_dim: 12,
        depths: vec![2, 2],
        num_heads: vec![2, 3],
        window_size: Size::square(4).into(),
        ..SwinConfig::default()
    }
}

/// Two stages whose heads are wider than those of [`shifted`]: 12 and 16 channels.
pub fn small() -> SwinConfig {
    SwinConfig { name: "small".to_owned(), num_classes: 7, embed_dim: 24, ..shifted() }
}

/// A grid that needs padding for the windows and for merging.
pub fn padded() -> SwinConfig {
    SwinConfig {
        name: "padded".to_owned(),
        image_size: Size::square(28),
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

/// A rectangle with timm's windows: 4 x 4, then 3 x 4 and a shift of one axis, both padded after the shift.
pub fn rectangle() -> SwinConfig {
    SwinConfig {
        name: "rectangle".to_owned(),
        image_size: Size::new(24, 56),
        window_policy: WindowPolicy::Timm,
        ..shifted()
    }
}

/// A rectangle as a Swin V2 of transformers, which pads the image, the windows, and the grids to merge.
pub fn second_rectangle() -> SwinConfig {
    SwinConfig {
        name: "rectangle of the second version".to_owned(),
        version: SwinVersion::V2,
        image_size: Size::new(30, 70),
        window_policy: WindowPolicy::HuggingFaceV2,
        mask: -200.0,
        ..shifted()
    }
}

/// A rectangle of one channel, with windows of two sides.
pub fn gray_rectangle() -> SwinConfig {
    SwinConfig {
        name: "rectangle of one channel".to_owned(),
        image_size: Size::new(20, 44),
        in_chans: 1,
        window_size: Size::new(2, 6).into(),
        window_policy: WindowPolicy::Pad,
        ..shifted()
    }
}

/// A stack of three blocks of 20 channels, whose heads are 10 wide, with SwinIR's windows: it takes grids of
/// tokens.
pub fn stack() -> SwinConfig {
    SwinConfig {
        name: "stack".to_owned(),
        input: Input::Tokens,
        image_size: Size::new(8, 12),
        in_chans: 20,
        patch_size: 1,
        embed_dim: 20,
        depths: vec![3],
        num_heads: vec![2],
        mlp_ratio: 2.0,
        patch_norm: false,
        window_policy: WindowPolicy::Restoration,
        ..shifted()
    }
    .into_backbone(vec![StageOutput::of_stage(0, false)])
}

/// [`stack`] as a Swin V2 of transformers, with a merging of patches behind its blocks and both outputs, on a
/// grid that is padded.
pub fn second_stack() -> SwinConfig {
    let outputs = [0, 1].map(|stage| StageOutput::of_stage(stage, false));
    SwinConfig {
        name: "stack of the second version".to_owned(),
        version: SwinVersion::V2,
        image_size: Size::new(7, 10),
        depths: vec![2, 0],
        num_heads: vec![2, 4],
        window_policy: WindowPolicy::HuggingFaceV2,
        mask: -200.0,
        ..stack()
    }
    .into_backbone(outputs.into())
}

/// [`stack`] with timm's windows and a merging of patches before its blocks.
pub fn stack_behind_merging() -> SwinConfig {
    SwinConfig {
        name: "stack behind merging".to_owned(),
        image_size: Size::new(13, 18),
        depths: vec![0, 2],
        num_heads: vec![2, 5],
        window_policy: WindowPolicy::Timm,
        ..stack()
    }
    .into_backbone(vec![StageOutput::of_stage(1, false)])
}

/// Tokens for a stack: f32 `[images, height, width, channels]`, in -2 to 2.
pub fn tokens(config: &SwinConfig, size: Size, images: usize) -> Vec<f32> {
    let mut rng = XorShift::new(size.area() as u64);
    let value = |_| (rng.next() >> 40) as f32 / (1 << 22) as f32 - 2.0;
    (0..images * size.area() * config.in_chans).map(value).collect()
}

/// `tokens` as maps `[images, channels, height, width]`.
pub fn maps<T: Copy>(tokens: &[T], size: Size, channels: usize) -> Vec<T> {
    let map = |map: &[T]| {
        let value = |at: usize| map[at % size.area() * channels + at / size.area()];
        (0..map.len()).map(value).collect::<Vec<T>>()
    };
    tokens.chunks(size.area() * channels).flat_map(map).collect()
}

/// [`shifted`] as a Swin V2.
pub fn second() -> SwinConfig {
    SwinConfig { name: "second version".to_owned(), version: SwinVersion::V2, ..shifted() }
}

/// [`padded`] as a Swin V2 of transformers, with windows of an earlier training.
pub fn second_padded() -> SwinConfig {
    SwinConfig {
        name: "second version, padded".to_owned(),
        version: SwinVersion::V2,
        mask: -200.0,
        pretrained_window_sizes: vec![3, 0],
        ..padded()
    }
}

/// A model with random weights and Microsoft's preprocessing.
///
/// # Panics
/// If `config` is not valid.
pub fn random(config: SwinConfig, seed: u64) -> FloatModel {
    config.validate().unwrap();
    let transform = Transform::microsoft(config.image_size, config.in_chans, false);
    random_model(
        &LoadedConfig {
            config,
            transform,
            states_crop: false,
            stages: None,
            drop_path: 0.0,
            origin: "test".to_owned(),
        },
        seed,
    )
}

/// Codes of `channels` channels with random factors between 1/3 and 3 and random zero points, most of them
/// between -124 and -61.
pub fn random_channels(channels: usize, seed: u64) -> ChannelCodes {
    let bytes = XorShift::new(seed).bytes(2 * channels);
    let (factors, zero_points) = bytes.split_at(channels);
    ChannelCodes {
        factors: factors.iter().map(|&b| 3f32.powf(f32::from(b) / 127.5 - 1.0)).collect(),
        zero_points: zero_points
            .iter()
            .map(|&b| if b.is_multiple_of(8) { b.cast_signed() } else { (b / 4).cast_signed() - 124 })
            .collect(),
    }
}

/// A source of `batches` batches of two images of noise without labels. The batches are the same in every
/// epoch.
#[derive(Clone, Copy, Debug)]
pub struct NoiseImages {
    /// Height and width.
    pub size: Size,
    /// Channels.
    pub channels: usize,
    /// Batches in an epoch.
    pub batches: usize,
}

impl NoiseImages {
    /// Images for `config`.
    pub fn of(config: &SwinConfig, batches: usize) -> NoiseImages {
        NoiseImages { size: config.image_size, channels: config.in_chans, batches }
    }
}

impl BatchSource for NoiseImages {
    fn batches(&self) -> usize {
        self.batches
    }

    fn images(&self) -> usize {
        2 * self.batches
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let pixels = XorShift::new(index as u64).bytes(2 * self.size.area() * self.channels);
        Ok(Batch { pixels, ids: vec![2 * index, 2 * index + 1], ..Batch::empty(self.size, self.channels) })
    }
}

/// Synthetic images with separable classes: each image shows stripes in the colours of its class, with added
/// noise. Image `i` of an epoch does not depend on the batch size.
#[derive(Clone, Copy, Debug)]
pub struct StripedImages {
    /// Height and width.
    pub size: Size,
    /// Number of classes.
    pub classes: u32,
    /// Images in a batch.
    pub batch_size: usize,
    /// Batches in an epoch.
    pub batches: usize,
}

impl StripedImages {
    /// Images for `config`, of one class for a backbone.
    pub fn of(config: &SwinConfig, batch_size: usize, batches: usize) -> StripedImages {
        let classes = config.num_classes.max(1) as u32;
        StripedImages { size: config.image_size, classes, batch_size, batches }
    }

    fn image(&self, id: u64, class: u32, pixels: &mut Vec<u8>) {
        let mut rng = XorShift((id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for i in 0..self.size.area() * 3 {
            let noise = (rng.next() >> 40) % 120;
            let (channel, column) = (i % 3, i / 3 % self.size.width);
            let stripe = (column / 4 + channel + class as usize).is_multiple_of(3);
            pixels.push(noise as u8 + if stripe { 130 } else { 10 * class as u8 });
        }
    }
}

impl BatchSource for StripedImages {
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
        Ok(Batch { pixels, labels, ids, ..Batch::empty(self.size, 3) })
    }
}
