//! The magnitude of the residual stream that a calibration records.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use swinq_calib::{CalibrateOptions, calibrate};
use swinq_float::{FloatError, Segment, Sites, Swin};
use swinq_model::quantized::{FloatModel, ResidualRange};
use swinq_model::site::{BlockId, Operand};
use swinq_model::{Batch, BatchSource, Recipe, Site, SwinConfig};
use swinq_testing::model::{
    NoiseImages, random, second, second_stack, shifted, small, stack, stack_behind_merging,
};

/// Batches of a calibration.
const BATCHES: usize = 3;

fn recorded(model: &FloatModel, recipe: &Recipe) -> Option<ResidualRange> {
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let mut images = NoiseImages::of(&model.config, BATCHES);
    calibrate(model, recipe, &mut images, options).unwrap().residual
}

fn largest(x: &Tensor) -> f32 {
    let values = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

/// The largest magnitude that each branch adds.
#[derive(Default)]
struct Branches(BTreeMap<BlockId, f32>);

impl Sites for Branches {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        if let Site::Add(block, _, Operand::Branch) = site {
            let most = self.0.entry(block).or_default();
            *most = most.max(largest(&x));
        }
        Ok(x)
    }
}

/// The same by running the network in its segments. A Swin V1 adds the results of its linear layers as they
/// are, so that this is the whole range.
fn by_segments(model: &FloatModel) -> ResidualRange {
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let (mut found, mut branches) = (BTreeMap::new(), Branches::default());
    let mut images = NoiseImages::of(&model.config, BATCHES);
    for index in 0..images.batches() {
        let batch: Batch = images.batch(0, index).unwrap();
        let mut x = swin.images(&batch, &model.transform).unwrap();
        for segment in Segment::all(&model.config) {
            x = swin.run(segment, batch.size, x, &mut branches).unwrap();
            let block = match segment {
                Segment::Embed => BlockId { stage: 0, block: 0 },
                Segment::Branch(id, _) => id,
                Segment::Merge(stage) => BlockId { stage: stage + 1, block: 0 },
                Segment::Head => continue,
            };
            let most: &mut f32 = found.entry(block).or_default();
            *most = most.max(largest(&x));
        }
    }
    for (block, added) in branches.0 {
        let most = found.get_mut(&block).unwrap();
        *most = most.max(added);
    }
    ResidualRange::of(&found).unwrap()
}

#[test]
fn each_block_has_the_largest_value_of_its_stream() {
    let first = |config: SwinConfig| SwinConfig { patch_norm: false, ..config };
    for config in [first(small()), first(shifted())] {
        let model = random(config, 5);
        let range = recorded(&model, &Recipe::shipped("default").unwrap()).unwrap();
        range.check(&model.config).unwrap();
        assert_eq!(range, by_segments(&model));
    }
}

#[test]
fn a_large_value_raises_its_block_and_those_behind_it() {
    let block = BlockId { stage: 1, block: 0 };
    let recipe = Recipe::shipped("mode1").unwrap();
    for (config, name) in [
        (small(), "mlp.fc2.bias"),
        (small(), "attn.proj.bias"),
        (second(), "norm1.weight"),
        (second(), "mlp.fc2.bias"),
    ] {
        let mut model = random(config, 5);
        let before = recorded(&model, &recipe).unwrap();
        let tensor = model.tensors.get_mut(&format!("{block}.{name}")).unwrap();
        tensor.data[3] += 40_000.0;
        let after = recorded(&model, &recipe).unwrap();
        let (place, magnitude) = after.largest();
        assert!(before.largest().1 < 1000.0, "{before:?}");
        assert_eq!(place.stage, 1, "{name}: {after:?}");
        // A norm behind the branch of a Swin V2 hides the bias from the stream, but the branch itself is as
        // large.
        assert!(magnitude > 30_000.0, "{name}: {magnitude}");
    }
}

#[test]
fn no_image_gives_no_magnitude() {
    let yaml = "name: fixed\nrules:\n  - {match: '**', enable: true, granularity: channel, calibrator: max}\n  \
                - {match: '**.{input,output,q,k,v,scores,probs,shortcut,branch}', enable: false}\n";
    let recipe = Recipe::from_yaml("fixed", yaml).unwrap();
    assert_eq!(recorded(&random(small(), 5), &recipe), None);
}

#[test]
fn a_stack_that_begins_or_ends_with_merging_has_a_number_for_each_block() {
    for config in [second_stack(), stack_behind_merging(), stack()] {
        let float = random(config.clone(), 3);
        let residual = recorded(&float, &Recipe::shipped("default").unwrap()).unwrap();
        residual.check(&config).unwrap();
        assert!(residual.largest().1 > 0.5, "{}", config.name);
    }
}
