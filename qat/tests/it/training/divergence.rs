//! A training that diverges stops, names the place, and leaves the last good checkpoint.

use candle_core::Tensor;

use super::*;

/// Trains one iteration, sets a value of `parameter`, and returns the error of the next iteration.
fn diverges(setup: &Setup, parameter: &str, value: f32) -> String {
    setup.stop_at(2, Begin::New);
    let before = std::fs::read(setup.checkpoint(2)).unwrap();
    let mut trainer = setup.trainer();
    let mut images = setup.images();
    trainer.iterate(&mut images).unwrap();
    set(&mut trainer, parameter, value);
    let error = trainer.iterate(&mut images).unwrap_err();
    assert!(matches!(error, QatError::Diverged { iteration: 2, .. }), "{parameter}: {error}");
    assert_eq!(trainer.iterations_done(), 1);
    assert!(before == std::fs::read(setup.checkpoint(2)).unwrap());
    error.to_string()
}

fn set(trainer: &mut Trainer, parameter: &str, value: f32) {
    let (_, state) = trainer.state();
    let tensor = &state.parameters[parameter];
    let mut values = values(tensor);
    values[0] = value;
    let changed = Tensor::from_vec(values, tensor.shape(), tensor.device()).unwrap();
    tensor.slice_set(&changed, 0, 0).unwrap();
}

#[test]
fn a_parameter_that_is_not_finite_is_named() {
    let keys = "optimizer: {lr: 1e-4}\n";
    for name in ["layers.0.blocks.1.mlp.fc1.weight", "layers.0.blocks.0.norm1.weight", "norm.bias"] {
        for (recipe, value) in
            [(None, f32::NAN), (Some("default"), f32::NAN), (Some("default"), f32::INFINITY)]
        {
            let message = diverges(&Setup::new(recipe, 5, keys), name, value);
            assert!(message.contains(name), "{recipe:?}: {message}");
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_is_named_by_its_site() {
    let site = "layers.0.blocks.0.attn.qkv.input";
    let message = diverges(&Setup::new(Some("default"), 5, FULL), &format!("scale.{site}"), f32::NAN);
    assert!(message.contains(site), "{message}");
}

/// The parameters are finite, but so large that activations overflow.
#[test]
fn an_overflow_is_reported_at_its_first_site() {
    let setup = Setup::new(None, 5, "optimizer: {lr: 1e-4}\n");
    let mut trainer = setup.trainer();
    set(&mut trainer, "layers.0.blocks.1.mlp.fc2.bias", f32::MAX);
    set(&mut trainer, "layers.0.blocks.0.mlp.fc2.bias", f32::MAX);
    let message = trainer.iterate(&mut setup.images()).unwrap_err().to_string();
    let site = "layers.0.downsample.reduction.input";
    assert!(message.contains(site) && message.contains("flat index"), "{message}");
}

#[test]
fn an_absurd_learning_rate_stops_and_names_the_last_checkpoint() {
    for recipe in [None, Some("default"), Some("mode1")] {
        let mut setup = Setup::new(recipe, 40, "checkpoint: {every: 1}\n");
        setup.job.optimizer.lr = 1e30;
        let mut watch = Watch::default();
        let error = setup.run(&mut setup.trainer(), &mut watch, Begin::New).unwrap_err();
        assert!(matches!(error, QatError::Diverged { .. }), "{recipe:?}: {error}");
        let message = error.to_string();
        let kept = format!("the checkpoint after iteration {} is in", watch.done);
        for word in [&kept, "checkpoints", "optimizer.lr"] {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
        assert!(watch.done <= 3, "{recipe:?}: noticed after {} iterations: {:?}", watch.done, watch.losses);
        assert!(setup.checkpoint(watch.done).exists());
    }
}

#[test]
fn a_loss_that_explodes_late_stops() {
    let setup = Setup::new(None, 60, "optimizer: {lr: 1e-5}\nloss: {labels: 1, kl: 0}\n");
    let (mut trainer, mut images) = (setup.trainer(), setup.images());
    for _ in 0..25 {
        trainer.iterate(&mut images).unwrap();
    }
    set(&mut trainer, "head.bias", 1e4);
    let error = trainer.iterate(&mut images).unwrap_err();
    assert!(matches!(error, QatError::Diverged { iteration: 26, .. }), "{error}");
    assert!(error.to_string().contains("explodes"), "{error}");
}
