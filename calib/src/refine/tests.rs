//! Each transform alone, on small random models with outlier channels.

use candle_core::Device;
use swinq_float::{Float, Swin};
use swinq_model::{BatchSource, Recipe};
use swinq_testing::model::{self as random_models, NoiseImages};

use super::*;
use crate::{Observe, norm_before};

/// 12 images of noise.
fn noise(model: &FloatModel) -> NoiseImages {
    NoiseImages::of(&model.config, 6)
}

/// The recipe `default` with every layer refined.
fn specs(model: &FloatModel) -> BTreeMap<Site, SiteSpec> {
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Refined);
    recipe.resolve(&model.config).unwrap().into_iter().collect()
}

/// The logits of all images.
fn logits(model: &FloatModel) -> Vec<f32> {
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let mut images = noise(model);
    let of_batch = |index| {
        let batch = images.batch(0, index).unwrap();
        let images = swin.images(&batch, &model.transform).unwrap();
        swin.forward(&images, &mut Float).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    (0..noise(model).batches).flat_map(of_batch).collect()
}

/// A refinement of `model` whose ranges are the largest magnitudes.
fn refiner<'a>(
    model: &'a FloatModel,
    specs: &'a BTreeMap<Site, SiteSpec>,
    fixed: &'a BTreeSet<Site>,
) -> Refiner<'a> {
    let layers = refined_layers(specs);
    let sites = specs.iter().filter(|(site, spec)| spec.needs_scale(**site)).map(|(site, _)| *site);
    let blocks = layers.iter().filter_map(|layer| layer.block()).collect();
    let mut sampler = Sampler::new(Observe::new(sites), layers, blocks, noise(model).images());
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    for index in 0..noise(model).batches {
        let batch = noise(model).batch(0, index).unwrap();
        sampler.next_images(&batch.ids);
        swin.forward(&swin.images(&batch, &model.transform).unwrap(), &mut sampler).unwrap();
    }
    let (samples, observe) = sampler.into_samples();
    let ranges = observe.histograms().iter().map(|(site, histogram)| (*site, histogram.max())).collect();
    let refined = RefinedParameters::new(ranges);
    Refiner { float: model, specs, fixed, samples, refined, trials: Vec::new() }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    let scale = a.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |max, (a, b)| max.max((a - b).abs())) / scale
}

/// Multiplies channels 1 and 5 of the norms' outputs, or of the values, by 30, and divides them where they
/// are read.
fn planted(mut model: FloatModel, values: bool) -> FloatModel {
    let layers: Vec<Linear> = model.tensors.keys().filter_map(|name| layer_of(name)).collect();
    for layer in layers {
        let writers = match (layer, values) {
            (Linear::Proj(block), true) => {
                let qkv = Linear::Qkv(block);
                vec![qkv.weight_name(), qkv.bias_name()]
            }
            (_, false) => match norm_before(&model.config, layer) {
                Some(norm) => vec![format!("{norm}.weight"), format!("{norm}.bias")],
                None => continue,
            },
            _ => continue,
        };
        let columns = model.tensors[&layer.weight_name()].matrix().1;
        for name in writers {
            let Some(tensor) = model.tensors.get_mut(&name) else { continue };
            let (rows, width) = tensor.matrix();
            let first = if values { rows - columns } else { 0 };
            for channel in [1, 5] {
                tensor.data[(first + channel) * width..][..width].iter_mut().for_each(|w| *w *= 30.0);
            }
        }
        let weight = model.tensors.get_mut(&layer.weight_name()).unwrap();
        for row in weight.data.chunks_exact_mut(columns) {
            [1, 5].into_iter().for_each(|channel| row[channel] /= 30.0);
        }
    }
    model
}

fn layer_of(name: &str) -> Option<Linear> {
    match name.parse::<Site>() {
        Ok(Site::Weight(layer)) => Some(layer),
        _ => None,
    }
}

#[test]
fn migrations_keep_the_function_and_take_planted_channels_away() {
    for config in [random_models::shifted(), random_models::padded(), random_models::odd()] {
        let model = random_models::random(config, 3);
        let (specs, fixed) = (specs(&model), BTreeSet::new());
        for values in [false, true] {
            let planted = planted(model.clone(), values);
            let before = logits(&planted);
            assert!(largest_difference(&logits(&model), &before) < 1e-4, "planting keeps the function");
            let mut refiner = refiner(&planted, &specs, &fixed);
            for layer in refined_layers(&specs) {
                match (layer, norm_before(&model.config, layer)) {
                    (Linear::Proj(block), _) if values => refiner.migrate_values(block).unwrap(),
                    (_, Some(norm)) if !values => drop(refiner.migrate_norm(layer, &norm).unwrap()),
                    _ => {}
                }
            }
            let migration = if values { Refinement::MigrateValues } else { Refinement::MigrateNorm };
            let trials: Vec<&Trial> = refiner.trials.iter().filter(|t| t.transform == migration).collect();
            assert!(!trials.is_empty() && trials.iter().all(|trial| trial.gain_db() > 6.0), "{trials:?}");
            let difference = largest_difference(&before, &logits(&refiner.refined.applied_to(&planted)));
            assert!(difference < 1e-4, "{}, values {values}: {difference}", model.config.name);
        }
    }
}

#[test]
fn fixed_ranges_stay_and_their_layers_are_not_rewritten() {
    let model = planted(random_models::random(random_models::shifted(), 3), false);
    let specs = specs(&model);
    let fixed: BTreeSet<Site> = specs.keys().filter(|site| !site.is_weight()).copied().collect();
    let refiner = refiner(&model, &specs, &fixed);
    let before = refiner.refined.ranges.clone();
    let (refined, trials) = refiner.run(refined_layers(&specs), &mut |_| Ok(())).unwrap();
    assert_eq!(refined.ranges, before);
    assert!(trials.iter().all(|trial| trial.transform == Refinement::BiasCorrection));
    assert!(refined.tensors.is_empty());
}

#[test]
fn bias_correction_removes_the_mean_error() {
    let model = random_models::random(random_models::shifted(), 5);
    let (specs, fixed) = (specs(&model), BTreeSet::new());
    let mut refiner = refiner(&model, &specs, &fixed);
    let layer: Linear = layer_of("layers.0.blocks.0.mlp.fc1.weight").unwrap();
    let mut fitted = refiner.plain(layer).unwrap();
    // Coarse codes that are all too large.
    fitted.weight.codes.iter_mut().for_each(|code| *code = (*code / 16) * 16 + 3);
    let (rows, weight) = (refiner.samples.inputs[&layer].clone(), refiner.weight(layer).clone());
    let rounded = fitted.weight.dequantize();
    fitted.error =
        Target::new(&rows.held, &weight).unwrap().error(&fitted.codes, &rounded.data, None).unwrap();
    let before = &model.tensors[&layer.bias_name()].data;
    refiner.correct_bias(layer, &mut fitted).unwrap();
    assert!(refiner.trials.last().unwrap().kept());
    let after = &refiner.refined.biases[&layer];
    let mean = Target::new(&rows.held, &weight).unwrap().mean_error(&fitted.codes, &rounded.data).unwrap();
    let square = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let left: Vec<f32> = mean.iter().zip(after.iter().zip(before)).map(|(m, (a, b))| m + a - b).collect();
    assert!(square(&left) < 0.01 * square(&mean), "{} of {}", square(&left), square(&mean));
}

#[test]
fn a_sample_has_every_third_image_held_out_and_the_range_of_all_values() {
    let model = random_models::random(random_models::shifted(), 7);
    let (specs, fixed) = (specs(&model), BTreeSet::new());
    let refiner = refiner(&model, &specs, &fixed);
    for (layer, rows) in &refiner.samples.inputs {
        assert_eq!(rows.fit.len(), 2 * rows.held.len(), "{layer}");
        assert_eq!(rows.max(), refiner.refined.ranges[&Site::Input(*layer)], "{layer}");
    }
    for (block, windows) in &refiner.samples.attentions {
        let count = (windows.qkv[0].fit.len() + windows.qkv[0].held.len()) / windows.qkv[0].width;
        let addends = windows.heads * windows.tokens * windows.tokens;
        assert_eq!(windows.addend.len(), count / windows.tokens * addends, "{block}");
    }
}

#[test]
fn codes_of_hidden_channels_are_those_of_the_model() {
    let model = random_models::random(random_models::shifted(), 9);
    let (specs, fixed) = (specs(&model), BTreeSet::new());
    let mut refiner = refiner(&model, &specs, &fixed);
    let layer: Linear = layer_of("layers.0.blocks.0.mlp.fc2.weight").unwrap();
    let plain = refiner.plain(layer).unwrap();
    let before = plain.error;
    let own = refiner.hidden_channels(layer, plain).unwrap();
    assert!(own.error < 0.5 * before, "zero points and factors halve the error: {} of {before}", own.error);
    let Codes::Channels { amax, factors, .. } = &own.codes else { panic!("channels have their own codes") };
    let codes = ChannelCodes { factors: factors.clone(), zero_points: own.codes.zero_points() };
    let width = factors.len();
    let exact = codes.quantizers(Site::Input(layer), amax / 127.0, width).unwrap();
    let rows = &refiner.samples.inputs[&layer].held;
    for (index, (x, rounded)) in rows.iter().zip(own.codes.round(rows, width)).enumerate() {
        let channel = index % width;
        let (found, wanted) = (rounded * factors[channel], exact.fake(channel, *x));
        assert!(
            (found - wanted).abs() <= 1e-3 * exact.scales()[channel],
            "channel {channel}: {found}, {wanted}"
        );
    }
}

#[test]
fn layers_that_are_refined_at_the_same_time_do_not_affect_each_other() {
    let model = random_models::random(random_models::shifted(), 4);
    let (specs, fixed) = (specs(&model), BTreeSet::new());
    let refined = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut done = Vec::new();
        let mut count = |layers| {
            done.push(layers);
            Ok(())
        };
        let refiner = refiner(&model, &specs, &fixed);
        let found = pool.install(|| refiner.run(refined_layers(&specs), &mut count).unwrap());
        (found, done)
    };
    let ((one, trials), done) = refined(1);
    assert_eq!(done, (1..=refined_layers(&specs).len()).collect::<Vec<_>>());
    let ((several, their_trials), _) = refined(3);
    assert_eq!(
        (one.tensors, one.ranges, one.channels, one.biases, trials),
        (several.tensors, several.ranges, several.channels, several.biases, their_trials)
    );
}
