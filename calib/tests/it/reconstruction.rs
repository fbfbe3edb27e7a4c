//! Reconstruction (`ptq: reconstruct`) of small random models, in the quantized network's own simulation.

use std::ops::ControlFlow;

use candle_core::Device;
use swinq_calib::{
    CalibError, CalibrateOptions, Calibrated, Phase, Progress, Refinement, calibrate, quantize,
    quantize_by_scales,
};
use swinq_float::{FakeQuant, Float, Sites, Swin};
use swinq_model::quantized::{FloatModel, Param};
use swinq_model::{
    Batch, BatchSource, BoxError, Granularity, Linear, Ptq, QuantizedModel, Recipe, Rule, Site, Size,
    all_linears,
};
use swinq_testing::model::{odd, padded, random, shifted};
use swinq_testing::{XorShift, sqnr_db};

/// Images of noise: `count` of them from number `first` on, in batches of `batch_size`, in reverse order if
/// `reversed`.
#[derive(Clone, Copy)]
struct Noise {
    size: usize,
    first: usize,
    count: usize,
    batch_size: usize,
    reversed: bool,
}

impl Noise {
    fn of(model: &FloatModel, first: usize, count: usize) -> Noise {
        Noise { size: model.config.image_size.height, first, count, batch_size: 4, reversed: false }
    }
}

impl BatchSource for Noise {
    fn batches(&self) -> usize {
        self.count.div_ceil(self.batch_size)
    }

    fn images(&self) -> usize {
        self.count
    }

    fn batch(&mut self, _: u64, index: usize) -> Result<Batch, BoxError> {
        let all = index * self.batch_size..self.count.min((index + 1) * self.batch_size);
        let place = |i: usize| if self.reversed { self.count - 1 - i } else { i };
        let ids: Vec<usize> = all.map(|i| self.first + place(i)).collect();
        // Smooth images of different brightness, so that tokens differ and correlate.
        let side = self.size;
        let image = |&id: &usize| {
            let mut random = XorShift::new(id as u64);
            let corners = random.bytes(12);
            let noise = random.bytes(side * side * 3);
            let value = move |(i, noise): (usize, u8)| {
                let (channel, x, y) = (i % 3, i / 3 % side, i / 3 / side);
                let at = |corner: usize| f32::from(corners[corner * 3 + channel]);
                let (fx, fy) = (x as f32 / side as f32, y as f32 / side as f32);
                let smooth =
                    (at(0) * (1.0 - fx) + at(1) * fx) * (1.0 - fy) + (at(2) * (1.0 - fx) + at(3) * fx) * fy;
                (0.7 * smooth + 0.3 * f32::from(noise)) as u8
            };
            noise.into_iter().enumerate().map(value).collect::<Vec<u8>>()
        };
        let pixels = ids.iter().flat_map(image).collect();
        Ok(Batch { pixels, ids, ..Batch::empty(Size::square(side), 3) })
    }
}

/// The recipe `default` with `rule` for all weights that it quantizes.
fn recipe(name: &str, rule: Rule) -> Recipe {
    let rule = Rule { pattern: "layers.**.weight".to_owned(), ..rule };
    Recipe::shipped(name).unwrap().with_rule(rule)
}

fn rule(bits: u8, ptq: Ptq) -> Rule {
    Rule { bits: Some(bits), ptq: Some(ptq), ..Rule::default() }
}

fn run(model: &FloatModel, recipe: &Recipe, mut images: Noise) -> Result<Calibrated, CalibError> {
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    calibrate(model, recipe, &mut images, options)
}

fn calibrated(model: &FloatModel, recipe: &Recipe) -> QuantizedModel {
    run(model, recipe, Noise::of(model, 0, 24)).unwrap().model
}

fn logits(swin: &Swin, model: &FloatModel, sites: &mut dyn Sites) -> Vec<f32> {
    let mut images = Noise::of(model, 1000, 32);
    let mut of_batch = |index| {
        let images = swin.images(&images.batch(0, index).unwrap(), &model.transform).unwrap();
        swin.forward(&images, sites).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    (0..8).flat_map(&mut of_batch).collect()
}

/// SQNR in dB of the simulation's logits on images that the calibration did not see.
fn sqnr(model: &FloatModel, quantized: &QuantizedModel) -> f64 {
    let float = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let exact = logits(&float, model, &mut Float);
    let swin = Swin::new(&model.config, &quantized.float_tensors(), &Device::Cpu).unwrap();
    let found = logits(&swin, model, &mut FakeQuant::new(quantized, &Device::Cpu).unwrap());
    sqnr_db(&found, &exact)
}

#[test]
fn four_bit_weights_gain_over_the_nearest_codes() {
    for (config, seed) in [(shifted(), 1), (padded(), 2), (odd(), 3)] {
        let model = random(config, seed);
        let of = |ptq| sqnr(&model, &calibrated(&model, &recipe("default", rule(4, ptq))));
        let (refined, reconstructed) = (of(Ptq::Refined), of(Ptq::Reconstruct));
        eprintln!("{}: refined {refined:.2} dB, reconstructed {reconstructed:.2} dB", model.config.name);
        assert!(reconstructed > refined + 3.0, "{}: {reconstructed} dB, {refined} dB", model.config.name);
    }
}

#[test]
fn eight_bit_weights_and_one_scale_for_a_tensor_do_not_lose() {
    let model = random(shifted(), 4);
    for granularity in [Granularity::Channel, Granularity::Tensor] {
        let of = |ptq| {
            let rule = Rule { granularity: Some(granularity), ..rule(8, ptq) };
            sqnr(&model, &calibrated(&model, &recipe("default", rule)))
        };
        let (refined, reconstructed) = (of(Ptq::Refined), of(Ptq::Reconstruct));
        eprintln!("{granularity:?}: refined {refined:.2} dB, reconstructed {reconstructed:.2} dB");
        assert!(reconstructed > refined - 0.2, "{granularity:?}: {reconstructed} dB, {refined} dB");
    }
}

#[test]
fn weights_alone_and_output_sites_are_reconstructed() {
    let model = random(shifted(), 5);
    let weights_only = Recipe::float().with_rule(Rule {
        pattern: "**.weight".to_owned(),
        enable: Some(true),
        granularity: Some(Granularity::Channel),
        ..Rule::default()
    });
    for base in [weights_only, Recipe::shipped("mode1").unwrap()] {
        let of = |ptq| {
            let rule = Rule { pattern: "**.weight".to_owned(), ..rule(4, ptq) };
            calibrated(&model, &base.clone().with_rule(rule))
        };
        let (refined, reconstructed) = (of(Ptq::Refined), of(Ptq::Reconstruct));
        let (before, after) = (sqnr(&model, &refined), sqnr(&model, &reconstructed));
        eprintln!("{}: refined {before:.2} dB, reconstructed {after:.2} dB", base.name);
        assert!(after > before + 2.0, "{}: {after} dB, {before} dB", base.name);
    }
}

#[test]
fn the_file_keeps_the_codes_and_they_are_those_of_their_own_values() {
    let model = random(shifted(), 6);
    let recipe = recipe("default", rule(4, Ptq::Reconstruct));
    let found = calibrated(&model, &recipe);
    let nearest = calibrated(&model, &self::recipe("default", rule(4, Ptq::Refined)));
    let mut changed = 0;
    for layer in all_linears(&model.config) {
        let Some(Param::Int8(weight)) = found.params.get(&layer.weight_name()) else { continue };
        assert!(weight.codes.iter().all(|code| code.abs() <= 7), "{layer}");
        let again = quantize_by_scales(&weight.dequantize(), weight.scales.clone(), 7);
        assert_eq!(&again, weight, "{layer}");
        changed += usize::from(nearest.params[&layer.weight_name()] != found.params[&layer.weight_name()]);
    }
    assert!(changed >= 12, "{changed} layers");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    found.save(&path).unwrap();
    assert!(QuantizedModel::load(&path).unwrap() == found);
}

#[test]
fn only_the_layers_with_the_rule_change() {
    let model = random(shifted(), 7);
    let base = recipe("default", rule(8, Ptq::Refined));
    let one = Rule { pattern: "layers.0.blocks.1.mlp.fc2.weight".to_owned(), ..rule(8, Ptq::Reconstruct) };
    let found = run(&model, &base.clone().with_rule(one), Noise::of(&model, 0, 24)).unwrap();
    let refined = calibrated(&model, &base);
    let trials = found.trials.iter().filter(|trial| trial.transform == Refinement::Rounding);
    let names: Vec<String> = trials.map(|trial| trial.layer.to_string()).collect();
    assert_eq!(names, ["layers.0.blocks.1.mlp.fc2"]);
    for (name, param) in &found.model.params {
        let of_layer = name.starts_with("layers.0.blocks.1.mlp.fc2.");
        assert_eq!(of_layer, param != &refined.params[name], "{name}");
    }
    for (site, state) in &found.model.sites {
        assert_eq!(state.amax, refined.sites[site].amax, "{site}");
        assert_eq!(state.channels, refined.sites[site].channels, "{site}");
    }
}

#[test]
fn the_result_depends_on_the_set_of_images_only() {
    let model = random(shifted(), 8);
    let recipe = recipe("default", rule(4, Ptq::Reconstruct));
    let all = Noise::of(&model, 0, 9);
    let variants = [all, all, Noise { batch_size: 5, ..all }, Noise { batch_size: 1, reversed: true, ..all }];
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let found: Vec<Calibrated> = variants
        .iter()
        .enumerate()
        .map(|(i, images)| pool(1 + i % 2).install(|| run(&model, &recipe, *images).unwrap()))
        .collect();
    for other in &found[1..] {
        assert!(other.model == found[0].model && other.trials == found[0].trials);
    }
}

#[test]
fn few_images_are_divided_by_rows() {
    let model = random(shifted(), 9);
    let recipe = recipe("default", rule(4, Ptq::Reconstruct));
    let rounded = |count| {
        let found = run(&model, &recipe, Noise::of(&model, 0, count)).unwrap();
        found.trials.iter().filter(|trial| trial.transform == Refinement::Rounding).count()
    };
    assert_eq!((rounded(1), rounded(3)), (17, 17));
    // The classifier has one row for each image, which cannot be fitted and judged.
    let head = Rule { enable: Some(true), pattern: "head.*".to_owned(), ..Rule::default() };
    let head = recipe
        .with_rule(head)
        .with_rule(Rule { pattern: "head.weight".to_owned(), ..rule(4, Ptq::Reconstruct) });
    for (images, judged) in [(2, false), (3, true)] {
        let found = run(&model, &head, Noise::of(&model, 0, images)).unwrap();
        let is_head = |layer| layer == Linear::Head;
        let trial = found.trials.iter().any(|t| is_head(t.layer) && t.transform == Refinement::Rounding);
        assert_eq!(trial, judged, "{images} images");
    }
}

#[test]
fn a_simulation_that_takes_over_a_layer_equals_a_new_one() {
    let model = random(shifted(), 10);
    let refined = calibrated(&model, &recipe("default", rule(4, Ptq::Refined)));
    let reconstructed = calibrated(&model, &recipe("default", rule(4, Ptq::Reconstruct)));
    let mut mixed = refined.clone();
    let mut swin = Swin::new(&model.config, &refined.float_tensors(), &Device::Cpu).unwrap();
    let mut sites = FakeQuant::new(&refined, &Device::Cpu).unwrap();
    for layer in all_linears(&model.config).into_iter().filter(|layer| refined.is_int8(*layer)) {
        for name in [layer.weight_name(), layer.bias_name()] {
            if let Some(param) = reconstructed.params.get(&name) {
                mixed.params.insert(name, param.clone());
            }
        }
        sites.update(&mixed, layer).unwrap();
        if let Some(bias) = mixed.params.get(&layer.bias_name()) {
            swin.set_bias(layer, &bias.to_float().data).unwrap();
        }
    }
    assert!(mixed.params == reconstructed.params);
    let fresh = Swin::new(&model.config, &reconstructed.float_tensors(), &Device::Cpu).unwrap();
    let expected = logits(&fresh, &model, &mut FakeQuant::new(&reconstructed, &Device::Cpu).unwrap());
    assert_eq!(logits(&swin, &model, &mut sites), expected);
    let error = sites.update(&mixed, Linear::Head).unwrap_err().to_string();
    assert!(error.contains("head.weight") && error.contains("INT8"), "{error}");
}

#[test]
fn progress_counts_layers_and_can_stop() {
    let model = random(shifted(), 11);
    let recipe = recipe("default", rule(8, Ptq::Reconstruct));
    let mut seen = Vec::new();
    let mut progress = |step: Progress| {
        seen.push(step);
        if step.phase == Phase::Reconstruct && step.done == 5 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let stopped = calibrate(&model, &recipe, &mut Noise::of(&model, 0, 6), options);
    assert!(matches!(stopped, Err(CalibError::Stopped)));
    let steps: Vec<&Progress> = seen.iter().filter(|step| step.phase == Phase::Reconstruct).collect();
    assert_eq!(steps.iter().map(|step| step.done).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(steps.iter().all(|step| step.total == 17));
    assert!(seen.is_sorted_by_key(|step| step.phase));
}

#[test]
fn reconstruction_without_images_is_refused() {
    let model = random(shifted(), 12);
    let recipe = recipe("default", rule(8, Ptq::Reconstruct));
    assert!(matches!(run(&model, &recipe, Noise::of(&model, 0, 0)), Err(CalibError::NoImages)));
    let refined = calibrated(&model, &self::recipe("default", rule(8, Ptq::Refined)));
    let ranges = refined.sites.iter().filter_map(|(site, state)| Some((*site, state.amax?))).collect();
    let error = quantize(&model, &recipe, &ranges).unwrap_err().to_string();
    assert!(error.contains("ptq reconstruct") && error.contains("images"), "{error}");
    // With every range given, images are still needed.
    let mut progress = |_| ControlFlow::Continue(());
    let options = CalibrateOptions { imported: Some(&ranges), device: &Device::Cpu, progress: &mut progress };
    let found = calibrate(&model, &recipe, &mut Noise::of(&model, 0, 6), options).unwrap();
    assert_eq!(found.ids.len(), 6);
    let rounding = found.trials.iter().filter(|trial| trial.transform == Refinement::Rounding);
    assert_eq!(rounding.count(), 17);
    assert_eq!(
        found.model.site(Site::Input(Linear::Reduction(0))).amax,
        ranges.get(&Site::Input(Linear::Reduction(0))).copied()
    );
}
