//! Variants of one model: their logits equal an engine's from every position, and launches that variants
//! share are made once.

use crate::common::{self, CLASSES, SIZE, pixels};
use swinq_int8_runtime::{Backend, CpuOptions, Engine, Images, Start, VariantRunner};
use swinq_model::{QuantizedModel, Size};

const IMAGES: usize = 3;

fn options(threads: usize) -> CpuOptions {
    CpuOptions { threads, max_batch: IMAGES, ..CpuOptions::detect().unwrap() }
}

/// A run from the images `pixels`.
fn images(pixels: &[u8]) -> Start<'_> {
    Start::Images(Images::new(Size::square(SIZE), pixels))
}

/// The engine's logits.
fn expected(model: &QuantizedModel) -> Vec<f32> {
    let engine = Engine::new(model, Backend::Cpu(options(1))).unwrap();
    let mut logits = vec![0.0; IMAGES * CLASSES];
    engine.infer_into(&pixels(IMAGES), &mut logits).unwrap();
    logits
}

#[test]
fn logits_equal_the_engines_from_every_position() {
    let models = common::RECIPES.map(common::model);
    for threads in [1, 2] {
        let mut runner = VariantRunner::new(&models[0], options(threads)).unwrap();
        for (model, name) in models.iter().zip(common::RECIPES) {
            let expected = expected(model);
            let variant = runner.prepare(model).unwrap();
            let positions = runner.positions().to_vec();
            let last = positions.len() - 1;
            // Image, patch norm, two halves of four blocks (the first is where the patch norm ends), the
            // merge, the pool, the logits.
            assert_eq!(positions.len(), 13, "{positions:?}");
            let pixels = pixels(IMAGES);
            for (at, position) in positions.iter().enumerate().take(last).skip(1) {
                let mut residual = vec![0.0; IMAGES * position.values];
                runner.run(&variant, IMAGES, images(&pixels), at, &mut residual);
                let mut logits = vec![0.0; IMAGES * CLASSES];
                runner.run(&variant, IMAGES, Start::Residual(at, &residual), last, &mut logits);
                assert_eq!(logits, expected, "{name} from {}, {threads} threads", position.name);
            }
        }
    }
}

#[test]
fn variants_share_the_launches_that_are_equal() {
    let [float, default, _, mode2] = common::RECIPES.map(common::model);
    let mut runner = VariantRunner::new(&float, options(1)).unwrap();
    let first = runner.prepare(&default).unwrap();
    let steps = runner.launches();
    let again = runner.prepare(&default).unwrap();
    assert_eq!(runner.launches(), steps, "nothing is made twice");
    assert_eq!(runner.first_difference(&first, &again), None);

    // Another range of the last fc2's input: fc1 stores other codes, and fc2 has other multipliers.
    let mut other = common::model("default");
    let site = "layers.1.blocks.1.mlp.fc2.input".parse().unwrap();
    other.sites.get_mut(&site).unwrap().amax = Some(2.0);
    let variant = runner.prepare(&other).unwrap();
    assert_eq!(runner.launches(), steps + 2);
    let at = runner.first_difference(&first, &variant).unwrap();
    assert_eq!(runner.positions()[at].name, "layers.1.blocks.1.norm2");
    let prefix = {
        let mut residual = vec![0.0; IMAGES * runner.positions()[at].values];
        runner.run(&first, IMAGES, images(&pixels(IMAGES)), at, &mut residual);
        residual
    };
    let (last, mut logits) = (runner.positions().len() - 1, vec![0.0; IMAGES * CLASSES]);
    runner.run(&variant, IMAGES, Start::Residual(at, &prefix), last, &mut logits);
    assert_eq!(logits, expected(&other));
    assert_ne!(logits, expected(&default));

    drop((again, variant));
    runner.forget_unused();
    assert_eq!(runner.launches(), steps);
    let mode2 = runner.prepare(&mode2).unwrap();
    let at = runner.first_difference(&first, &mode2).unwrap();
    assert_eq!(runner.positions()[at].name, "layers.0.blocks.0.norm1");
}

#[test]
fn another_architecture_is_refused() {
    let model = common::model("float");
    let mut runner = VariantRunner::new(&model, options(1)).unwrap();
    let mut other = model;
    other.config.name = "another".to_owned();
    let error = runner.prepare(&other).err().unwrap().to_string();
    assert!(error.contains("another") && error.contains("small"), "{error}");
}
