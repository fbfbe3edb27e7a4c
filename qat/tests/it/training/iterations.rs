//! The effect of iterations on the parameters.

use swinq_model::Transform;
use swinq_model::config::LoadedConfig;

use super::*;
use crate::common::{OfSizes, second};

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn the_loss_falls() {
    let keys = "optimizer: {lr: 3e-3, weight_decay: 0}\nloss: {labels: 1, kl: 0}\nlog: {every: 1}\n";
    for recipe in [None, Some("default"), Some("mode1")] {
        let setup = Setup::new(recipe, 30, keys);
        let mut watch = Watch::default();
        setup.run(&mut setup.trainer(), &mut watch, Begin::New).unwrap();
        let (first, last) = (mean(&watch.losses[..5]), mean(&watch.losses[25..]));
        assert!(last < 0.5 * first, "{recipe:?}: from {first} to {last}");
        // The start, and ten epochs of three iterations; the training ends with the last.
        assert_eq!((watch.validated.len(), watch.validated.last()), (11, Some(&true)));
        let log = std::fs::read_to_string(setup.folder.path().join("log.jsonl")).unwrap();
        assert_eq!(log.lines().filter(|line| line.contains("\"kind\":\"step\"")).count(), 30);
    }
}

#[test]
fn an_untrained_swin_v2_learns() {
    let keys =
        "optimizer: {lr: 3e-3, weight_decay: 0.05}\nloss: {labels: 1, kl: 0}\nschedule: {warmup_steps: 5}\n";
    let mut setup = Setup::new(None, 60, keys);
    let config = second();
    let transform = Transform::microsoft(config.image_size, 3, false);
    let loaded = LoadedConfig {
        config,
        transform,
        states_crop: false,
        stages: None,
        drop_path: 0.0,
        origin: "test".to_owned(),
    };
    setup.float = swinq_qat::init::untrained(&loaded, 1);
    let mut watch = Watch::default();
    let mut trainer = setup.trainer();
    setup.run(&mut trainer, &mut watch, Begin::New).unwrap();
    let (first, last) = (mean(&watch.losses[..5]), mean(&watch.losses[55..]));
    assert!(last < 0.5 * first, "from {first} to {last}");
    let trained = parameters(&mut trainer);
    let c = loaded.config.embed_dim;
    for (name, values) in &trained {
        assert_ne!(*values, setup.float.tensors[name].data, "{name} did not move");
        if name.starts_with("layers.0.") && name.ends_with("attn.qkv.bias") {
            assert!(values[c..2 * c].iter().all(|&b| b == 0.0), "{name}: the keys have no bias");
        }
    }
}

#[test]
fn divergence_from_the_teacher_falls() {
    let keys = "optimizer: {lr: 5e-4, lr_scales: 1e-3}\nloss: {labels: 0, kl: 1, features: 0.1}\n\
                quantization: {activation_scales: learned, weight_scales: learned}\n";
    let setup = Setup::new(Some("mode1"), 30, keys);
    let mut watch = Watch::default();
    setup.run(&mut setup.trainer(), &mut watch, Begin::New).unwrap();
    let (first, last) = (mean(&watch.losses[..5]), mean(&watch.losses[25..]));
    assert!(last < 0.8 * first, "from {first} to {last}");
}

#[test]
fn a_learning_rate_of_zero_changes_no_bit() {
    let keys = "optimizer: {lr: 0, lr_scales: 0, weight_decay: 0.5}\n\
                quantization: {activation_scales: learned, weight_scales: learned}\n";
    for recipe in [None, Some("default")] {
        let setup = Setup::new(recipe, 3, keys);
        let mut trainer = setup.trainer();
        let (before, model) = (parameters(&mut trainer), exported(&trainer));
        let mut watch = Watch::default();
        setup.run(&mut trainer, &mut watch, Begin::New).unwrap();
        assert!(before == parameters(&mut trainer), "{recipe:?}: a parameter moved");
        assert!(model == exported(&trainer), "{recipe:?}: the model changed");
        assert!(watch.losses[0] > 0.0);
    }
}

/// With an `eps` of 1, AdamW's first update is about proportional to the gradient, so comparing updates
/// compares gradients.
#[test]
fn two_batches_of_four_are_one_of_eight() {
    let keys = "optimizer: {lr: 1, eps: 1, clip_norm: 0, weight_decay: 0}\n";
    for (recipe, tolerance) in [(None, 1e-4), (Some("default"), 1e-2)] {
        let moved = |accumulate: usize, batch_size: usize| {
            let mut setup = Setup::new(recipe, 1, keys);
            (setup.job.accumulate, setup.job.batch_size) = (accumulate, batch_size);
            let mut trainer = setup.trainer();
            let before = parameters(&mut trainer);
            let report = trainer.iterate(&mut setup.images()).unwrap();
            let after = parameters(&mut trainer);
            let change = |(name, b): (&String, &Vec<f32>)| {
                b.iter().zip(&after[name]).map(|(b, a)| f64::from(a - b)).collect::<Vec<_>>()
            };
            (report, before.iter().flat_map(change).collect::<Vec<f64>>())
        };
        let ((twice, a), (once, b)) = (moved(2, 4), moved(1, 8));
        assert!((twice.loss.total / once.loss.total - 1.0).abs() < tolerance, "{twice:?} {once:?}");
        assert_eq!((twice.loss.labelled, twice.loss.correct), (8, once.loss.correct));
        let length = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let apart = length(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / length(&mut b.iter().copied());
        assert!(apart < tolerance, "{recipe:?}: the updates differ by {apart}");
        let halves = moved(1, 4).1;
        let far = length(&mut halves.iter().zip(&b).map(|(a, b)| a - b)) / length(&mut b.iter().copied());
        assert!(far > 10.0 * tolerance, "{recipe:?}: half of the images give the update of all of them");
    }
}

#[test]
fn a_seed_gives_the_same_files_twice_on_any_number_of_threads() {
    let train = |threads: usize, seed: u64| {
        let mut setup = Setup::new(Some("mode1"), 4, FULL);
        setup.job.seed = seed;
        swinq_float::use_threads(threads).unwrap();
        setup.finish(Begin::New)
    };
    let first = train(1, 0);
    first.equals(&train(1, 0), "again");
    first.equals(&train(3, 0), "with three threads");
    // The images are the same; the dropped branches differ.
    assert!(first.model != train(1, 1).model, "another seed gave the same model");
}

#[test]
fn recomputed_activations_give_the_same_files() {
    let features = format!("{FULL}loss: {{labels: 1, kl: 1, features: 0.1}}\n");
    for (recipe, keys) in [(None, FULL), (Some("default"), FULL), (Some("mode1"), features.as_str())] {
        let train = |more: &str| Setup::new(recipe, 3, &format!("{keys}{more}")).finish(Begin::New);
        train("").equals(&train("recompute: true\n"), &format!("{recipe:?}, recomputed"));
    }
}

#[test]
fn swin_v2_recomputes_the_same_bits() {
    let updated = |more: &str| {
        let mut setup = Setup::new(None, 2, more);
        setup.float = random(SwinConfig { depths: vec![2, 1], ..second() }, 5);
        let mut trainer = setup.trainer();
        trainer.iterate(&mut setup.images()).unwrap();
        parameters(&mut trainer)
    };
    let (kept, recomputed) = (updated(""), updated("recompute: true\n"));
    assert!(kept == recomputed);
}

#[test]
fn the_average_follows_the_parameters() {
    let decay = 0.75;
    let mut setup = Setup::new(None, 2, "optimizer: {lr: 1e-2}\n");
    setup.job.optimizer.ema = decay;
    let mut trainer = setup.trainer();
    let mut images = setup.images();
    let start = parameters(&mut trainer);
    let mut expected: BTreeMap<String, Vec<f64>> =
        start.iter().map(|(name, v)| (name.clone(), v.iter().map(|&x| f64::from(x)).collect())).collect();
    for _ in 0..2 {
        trainer.iterate(&mut images).unwrap();
        for (name, values) in parameters(&mut trainer) {
            let average = expected.get_mut(&name).unwrap().iter_mut().zip(values);
            average.for_each(|(a, v)| *a = decay * *a + (1.0 - decay) * f64::from(v));
        }
    }
    let written = trainer.float().unwrap();
    let now = parameters(&mut trainer);
    for (name, tensor) in &written.tensors {
        for (got, want) in tensor.data.iter().zip(&expected[name]) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{name}: {got} instead of {want}");
        }
    }
    assert!(written.tensors["head.weight"].data != now["head.weight"], "the last parameters were exported");
}

/// A batch is empty if all its images were skipped as corrupt.
#[test]
fn an_empty_batch_adds_nothing() {
    struct Empty(OfSizes);
    impl swinq_model::BatchSource for Empty {
        fn batches(&self) -> usize {
            self.0.batches()
        }

        fn images(&self) -> usize {
            self.0.images()
        }

        fn batch(&mut self, epoch: u64, index: usize) -> Result<swinq_model::Batch, BoxError> {
            let batch = self.0.batch(epoch, index)?;
            let none = swinq_model::Batch { pixels: vec![], labels: vec![], ids: vec![], ..batch.clone() };
            Ok(if index == 0 { none } else { batch })
        }
    }
    for recipe in [None, Some("default")] {
        let setup = Setup::new(recipe, 2, "optimizer: {lr: 1e-3, weight_decay: 0}\n");
        let mut trainer = setup.trainer();
        let before = parameters(&mut trainer);
        let report = trainer.iterate(&mut Empty(setup.images())).unwrap();
        assert_eq!((report.loss.labelled, report.loss.total), (0, 0.0));
        assert!(before == parameters(&mut trainer), "{recipe:?}: an empty batch changed a parameter");
        trainer.iterate(&mut Empty(setup.images())).unwrap();
        assert!(before != parameters(&mut trainer), "{recipe:?}: the next iteration changed nothing");
        assert_eq!(trainer.iterations_done(), 2);
    }
}
