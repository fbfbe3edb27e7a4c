//! Refinement (`ptq: refined`) of models with outlier channels planted, and of the untouched models.
//!
//! Channels are planted in places where the network's function stays the same: a norm's output or a value of
//! attention is multiplied, and the weight that reads it is divided. Plain calibration loses many dB on such
//! a model; refinement must lose at most 1.5 dB against the untouched model's INT8. Where the function
//! changes (outputs of `mlp.fc2` and of patch merging), a model is compared with its own float.
//!
//! The tests on the full-size models are ignored, because they take minutes:
//!
//! ```console
//! $ SWINQ_DATA=/path/to/data cargo test --release --test it refined:: -- --ignored --nocapture
//! ```

use std::ops::ControlFlow;

use crate::common;
use crate::common::subject::Subject;
use swinq::model::quantized::FloatModel;
use swinq::model::{Draws, Linear, Ptq, all_linears};
use swinq::{
    CalibrateOptions, Candidate, EngineOptions, EvaluateOptions, Model, Recipe, Trial, calibrate, evaluate,
};

/// Where outlier channels are planted.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Outputs of the norms before `attn.qkv`, `mlp.fc1` and `downsample.reduction`.
    Norms,
    /// Values of attention.
    Values,
    /// Outputs of `mlp.fc2` and `downsample.reduction`, which changes the function.
    Outputs,
}

/// Multiplies rows `first..` of a parameter (of `width` values each) by the factors of planted channels.
fn scale_rows(model: &mut FloatModel, name: &str, first: usize, channels: &[(usize, f32)]) {
    let Some(tensor) = model.tensors.get_mut(name) else { return };
    let (_, width) = tensor.matrix();
    for &(channel, factor) in channels {
        tensor.data[(first + channel) * width..][..width].iter_mut().for_each(|w| *w *= factor);
    }
}

/// Divides columns of a layer's weight.
fn divide_columns(model: &mut FloatModel, layer: Linear, channels: &[(usize, f32)]) {
    let weight = model.tensors.get_mut(&layer.weight_name()).unwrap();
    let (_, width) = weight.matrix();
    for row in weight.data.chunks_exact_mut(width) {
        channels.iter().for_each(|&(channel, factor)| row[channel] /= factor);
    }
}

/// The model with `count` channels of each tensor at `place` multiplied by numbers between `factor / 2` and
/// `factor`.
fn planted(model: &FloatModel, place: Place, factor: f32, count: usize, seed: u64) -> FloatModel {
    let mut model = model.clone();
    let mut draws = Draws::new(seed);
    for layer in all_linears(&model.config) {
        let (rows, width) = model.tensors[&layer.weight_name()].matrix();
        let mut draw = |width: usize| -> Vec<(usize, f32)> {
            let mut channels: Vec<usize> = (0..width).collect();
            draws.shuffle_front(&mut channels, count);
            let strength = |channel| (channel, factor * draws.between([0.5, 1.0]) as f32);
            channels.into_iter().take(count).map(strength).collect()
        };
        match (place, layer) {
            (Place::Norms, Linear::Qkv(_) | Linear::Fc1(_) | Linear::Reduction(_)) => {
                let channels = draw(width);
                let norm = match layer {
                    Linear::Qkv(block) => format!("{block}.norm1"),
                    Linear::Fc1(block) => format!("{block}.norm2"),
                    _ => layer.to_string().replace("reduction", "norm"),
                };
                for part in ["weight", "bias"] {
                    scale_rows(&mut model, &format!("{norm}.{part}"), 0, &channels);
                }
                divide_columns(&mut model, layer, &channels);
            }
            (Place::Values, Linear::Proj(block)) => {
                let channels = draw(width);
                let qkv = Linear::Qkv(block);
                for name in [qkv.weight_name(), qkv.bias_name()] {
                    scale_rows(&mut model, &name, 2 * width, &channels);
                }
                divide_columns(&mut model, layer, &channels);
            }
            (Place::Outputs, Linear::Fc2(_) | Linear::Reduction(_)) => {
                let channels = draw(rows);
                for name in [layer.weight_name(), layer.bias_name()] {
                    scale_rows(&mut model, &name, 0, &channels);
                }
            }
            _ => {}
        }
    }
    model
}

impl Subject {
    /// SQNR in dB of `model`, calibrated with the recipe `default` and `ptq`, against its own float; and the
    /// transforms that were tried.
    fn sqnr(&self, model: &FloatModel, ptq: Ptq) -> (f64, Vec<Trial>) {
        let float = Model::from_float(model.clone()).unwrap();
        let recipe = Recipe::shipped("default").unwrap().with_ptq(ptq);
        let options = CalibrateOptions { recipe, ..CalibrateOptions::default() };
        let go = &mut |_| ControlFlow::Continue(());
        let found = calibrate(float.clone(), &options, &self.calibration, go).unwrap();
        let int8 = found.model;
        for layer in all_linears(&model.config) {
            let float = matches!(layer, Linear::PatchEmbed | Linear::Head);
            assert_eq!(int8.as_quantized().is_int8(layer), !float, "{layer}");
        }
        let engine = EngineOptions::cpu(2);
        let mut candidates = [
            Candidate::engine("float", &float, &engine).unwrap(),
            Candidate::engine("int8", &int8, &engine).unwrap(),
        ];
        let go = &mut |_: usize, _: usize| ControlFlow::Continue(());
        let results = evaluate(&mut candidates, &self.validation, &EvaluateOptions::default(), go).unwrap();
        (results.models[1].sqnr_db.unwrap(), found.trials)
    }
}

/// Largest loss in dB that planted channels may cause where the function is preserved.
const LOSS_DB: f64 = 1.5;

/// Plants channels of every strength in `factors` at every place, and checks what refinement makes of them.
fn check(subject: &Subject, factors: &[f32], count: usize) {
    let (basic, _) = subject.sqnr(&subject.model, Ptq::Basic);
    let (refined, trials) = subject.sqnr(&subject.model, Ptq::Refined);
    eprintln!("untouched: basic {basic:.2} dB, refined {refined:.2} dB");
    assert!(trials.iter().any(Trial::kept) && refined > basic, "{refined} dB");
    for place in [Place::Norms, Place::Values, Place::Outputs] {
        for (seed, &factor) in factors.iter().enumerate() {
            let model = planted(&subject.model, place, factor, count, seed as u64);
            let (plain, _) = subject.sqnr(&model, Ptq::Basic);
            let (found, _) = subject.sqnr(&model, Ptq::Refined);
            eprintln!("{place:?} x{factor}: basic {plain:.2} dB, refined {found:.2} dB");
            assert!(found > plain, "{place:?} x{factor}: {found} dB");
            if !matches!(place, Place::Outputs) {
                assert!(found > basic - LOSS_DB, "{place:?} x{factor}: {found} dB, untouched {basic} dB");
                assert!(found > refined - LOSS_DB, "{place:?} x{factor}: {found} dB, untouched {refined} dB");
            }
        }
    }
}

#[test]
fn planted_channels_of_the_sample_cost_little() {
    check(&Subject::sample(), &[32.0], 2);
}

#[test]
#[ignore = "takes minutes"]
fn planted_channels_of_the_full_models_cost_little() {
    let Some(data) = common::large_data("planted_channels_of_the_full_models_cost_little") else { return };
    check(&Subject::large(&data, "swin_micro_cifar10", "cifar10", Some(400)), &[8.0, 16.0, 32.0, 64.0], 3);
    check(&Subject::large(&data, "swin_t_imagenette", "imagenette", Some(400)), &[8.0, 16.0, 32.0, 64.0], 3);
}

#[test]
fn the_ranges_do_not_depend_on_the_batch_size() {
    let subject = Subject::sample();
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Refined);
    let images = subject.calibration.first(12);
    let calibrated = [1, 8].map(|batch_size| {
        let read = swinq::ReadOptions { batch_size, ..swinq::ReadOptions::default() };
        let options = CalibrateOptions { recipe: recipe.clone(), read, ..CalibrateOptions::default() };
        let float = Model::from_float(subject.model.clone()).unwrap();
        let go = &mut |_| ControlFlow::Continue(());
        calibrate(float, &options, &images, go).unwrap().model
    });
    let [one, eight] = calibrated.map(|model| model.as_quantized().clone());
    assert!(one.sites == eight.sites && one.params == eight.params);
}
