//! Complete calibrations of a small random Swin.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use swinq_calib::{CalibError, CalibrateOptions, Calibrated, Observe, Progress, amax, calibrate, quantize};
use swinq_float::{Attention, FakeQuant, Float, FloatError, Sites, Swin};
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, Param, Source};
use swinq_model::{
    Batch, BatchSource, BoxError, Calibrator, HostTensor, Ptq, Recipe, Rule, Site, Size, StateDict,
    SwinConfig, Transform,
};
use swinq_testing::Rng;

fn config() -> SwinConfig {
    SwinConfig {
        name: "test".to_owned(),
        image_size: Size::square(16),
        patch_size: 2,
        num_classes: 5,
        embed_dim: 16,
        depths: vec![2, 1],
        num_heads: vec![2, 4],
        window_size: Size::square(4).into(),
        ..SwinConfig::default()
    }
}

fn model() -> FloatModel {
    let config = config();
    config.validate().unwrap();
    let mut rng = Rng(7);
    let mut tensors = StateDict::new();
    for (name, shape) in parameters(&config) {
        let columns: usize = shape.iter().skip(1).product();
        let (mean, spread) = match name.as_str() {
            n if n.contains("norm") && n.ends_with("weight") => (1.0, 0.3),
            n if shape.len() > 1 && !n.contains("table") => (0.0, 1.7 / (columns as f32).sqrt()),
            _ => (0.0, 0.5),
        };
        let data = (0..shape.iter().product::<usize>()).map(|_| mean + spread * rng.float()).collect();
        tensors.insert(name, HostTensor::new(shape, data));
    }
    let transform = Transform::microsoft(Size::square(16), 3, false);
    FloatModel { config, transform, labels: None, labels_from: None, tensors, source: Source::default() }
}

/// Random images in batches of 3, the last shorter.
struct Images(usize);

impl BatchSource for Images {
    fn batches(&self) -> usize {
        self.0.div_ceil(3)
    }

    fn images(&self) -> usize {
        self.0
    }

    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        if epoch != 0 {
            return Err(format!("epoch {epoch}").into());
        }
        let ids: Vec<usize> = (3 * index..self.0.min(3 * index + 3)).map(|id| 10 * id).collect();
        let mut rng = Rng(index as u64);
        let pixels = (0..ids.len() * 16 * 16 * 3).map(|_| (rng.float() * 127.0 + 128.0) as u8).collect();
        Ok(Batch { pixels, ids, ..Batch::empty(Size::square(16), 3) })
    }
}

fn run(model: &FloatModel, recipe: &Recipe, images: usize) -> Result<Calibrated, CalibError> {
    let options = CalibrateOptions {
        imported: None,
        device: &Device::Cpu,
        progress: &mut |_| ControlFlow::Continue(()),
    };
    calibrate(model, recipe, &mut Images(images), options)
}

fn shipped(name: &str) -> Recipe {
    Recipe::shipped(name).unwrap().with_ptq(Ptq::Basic)
}

fn site(name: &str) -> Site {
    name.parse().unwrap()
}

/// Keeps all values of all activations and of the softmax.
#[derive(Default)]
struct Keep(BTreeMap<Site, Vec<f32>>);

impl Keep {
    fn keep(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        self.0.entry(site).or_default().extend(x.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

impl Sites for Keep {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.keep(site, &x)?;
        Ok(x)
    }

    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        self.keep(Site::Probs(attention.block), &attention.softmax(&logits)?)?;
        attention.attend(&logits, &v)
    }
}

#[test]
fn ranges_come_from_all_values_of_a_site() {
    let model = model();
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let mut keep = Keep::default();
    for index in 0..3 {
        let batch = Images(8).batch(0, index).unwrap();
        swin.forward(&swin.images(&batch, &model.transform).unwrap(), &mut keep).unwrap();
    }
    for recipe in ["default", "mode1", "mode2"] {
        let recipe = shipped(recipe);
        let calibrated = run(&model, &recipe, 8).unwrap();
        assert_eq!(calibrated.ids, [0, 10, 20, 30, 40, 50, 60, 70]);
        let mut with_range = 0;
        for (site, state) in &calibrated.model.sites {
            assert_eq!(state.amax.is_some(), state.spec.needs_scale(*site), "{site}");
            let Some(chosen) = state.amax else { continue };
            with_range += 1;
            let values = &keep.0[site];
            let histogram = &calibrated.histograms[site];
            assert_eq!(histogram.count(), values.len() as u64, "{site}");
            assert_eq!(histogram.max(), values.iter().fold(0f32, |m, v| m.max(v.abs())), "{site}");
            // At least 99.99 % of the values are within the range that percentile 99.99 chooses.
            let within = values.iter().filter(|v| v.abs() <= chosen).count();
            assert!(within as f64 >= 0.9999 * values.len() as f64 && chosen <= histogram.max(), "{site}");
        }
        assert_eq!(with_range, calibrated.histograms.len());
        assert!(with_range >= 3 * 7, "{with_range}");
        assert!(calibrated.model.is_quantized());
        FakeQuant::new(&calibrated.model, &Device::Cpu).unwrap();
    }
}

#[test]
fn observing_keeps_the_logits_and_quantizing_nearly_keeps_them() {
    let model = model();
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let images = swin.images(&Images(3).batch(0, 0).unwrap(), &model.transform).unwrap();
    let forward = |sites: &mut dyn Sites| -> Vec<f32> {
        swin.forward(&images, sites).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let float = forward(&mut Float);
    let sites = shipped("mode1").resolve(&model.config).unwrap().into_iter().map(|(site, _)| site);
    let mut observe = Observe::new(sites.filter(|site| !site.is_weight()));
    assert_eq!(forward(&mut observe), float);
    assert!(observe.histograms().values().all(|histogram| !histogram.is_empty()));
    let calibrated = run(&model, &shipped("default"), 9).unwrap();
    let quantized = forward(&mut FakeQuant::new(&calibrated.model, &Device::Cpu).unwrap());
    let power: f64 = float.iter().map(|v| f64::from(*v).powi(2)).sum();
    let noise: f64 = float.iter().zip(&quantized).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let sqnr = 10.0 * (power / noise).log10();
    assert!(noise > 0.0 && sqnr > 25.0, "{sqnr} dB");
}

#[test]
fn a_calibration_repeats_bit_for_bit() {
    let model = model();
    let (a, b) = (run(&model, &shipped("mode2"), 7).unwrap(), run(&model, &shipped("mode2"), 7).unwrap());
    assert_eq!((a.model, a.histograms, a.pixels_sha256.clone()), (b.model, b.histograms, b.pixels_sha256));
    assert_eq!(a.pixels_sha256.len(), 64);
    assert_ne!(a.pixels_sha256, run(&model, &shipped("mode2"), 6).unwrap().pixels_sha256);
}

#[test]
fn fixed_ranges_precede_imported_ranges_which_precede_calibrated_ranges() {
    let model = model();
    let (fixed, imported) = (site("layers.0.blocks.0.attn.q"), site("layers.0.blocks.0.attn.k"));
    let rule = Rule { pattern: fixed.to_string(), amax: Some(2.5), ..Rule::default() };
    let recipe = shipped("default").with_rule(rule);
    let given = BTreeMap::from([(fixed, 9.0), (imported, 1.25), (site("head.input"), 3.0)]);
    let options = CalibrateOptions {
        imported: Some(&given),
        device: &Device::Cpu,
        progress: &mut |_| ControlFlow::Continue(()),
    };
    let calibrated = calibrate(&model, &recipe, &mut Images(3), options).unwrap();
    assert_eq!(calibrated.model.site(fixed).amax, Some(2.5));
    assert_eq!(calibrated.model.site(imported).amax, Some(1.25));
    assert_eq!(calibrated.model.site(site("head.input")).amax, None);
    assert!(!calibrated.histograms.contains_key(&fixed) && !calibrated.histograms.contains_key(&imported));
    let v = site("layers.0.blocks.0.attn.v");
    let expected = amax(&calibrated.histograms[&v], Calibrator::Percentile(99.99)).unwrap();
    assert_eq!(calibrated.model.site(v).amax, Some(expected));
}

#[test]
fn no_image_is_read_if_every_range_is_given() {
    let model = model();
    let first = run(&model, &shipped("default"), 3).unwrap();
    let ranges: BTreeMap<Site, f32> =
        first.model.sites.iter().filter_map(|(site, state)| Some((*site, state.amax?))).collect();
    let options = CalibrateOptions {
        imported: Some(&ranges),
        device: &Device::Cpu,
        progress: &mut |_| panic!("an image was read"),
    };
    let again = calibrate(&model, &shipped("default"), &mut Images(3), options).unwrap();
    assert_eq!(again.model, first.model);
    assert!(again.ids.is_empty() && again.histograms.is_empty());
}

#[test]
fn progress_is_reported_and_can_stop_the_calibration() {
    let (model, mut seen) = (model(), Vec::new());
    let mut progress = |Progress { done, total, .. }| {
        seen.push((done, total));
        if done < 6 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let options = CalibrateOptions { imported: None, device: &Device::Cpu, progress: &mut progress };
    let stopped = calibrate(&model, &shipped("default"), &mut Images(8), options);
    assert!(matches!(stopped, Err(CalibError::Interrupted { images: 6 })));
    assert_eq!(seen, [(3, 8), (6, 8)]);
}

#[test]
fn invalid_models_and_ranges_are_refused_by_name() {
    let refused = |result: Result<Calibrated, CalibError>, words: &[&str]| {
        let message = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    assert!(matches!(run(&model(), &shipped("default"), 0), Err(CalibError::NoImages)));

    let mut zero = model();
    for name in ["layers.0.blocks.1.norm2.weight", "layers.0.blocks.1.norm2.bias"] {
        zero.tensors.get_mut(name).unwrap().data.fill(0.0);
    }
    let words = ["layers.0.blocks.1.mlp.fc1.input", "amax 0", "disable"];
    refused(run(&zero, &shipped("default"), 3), &words);

    let mut huge = model();
    huge.tensors.get_mut("layers.0.blocks.0.attn.qkv.weight").unwrap().data.fill(3e38);
    refused(
        run(&huge, &shipped("default"), 3),
        &["layers.0.blocks.0.attn.q", "only finite", "preprocessing"],
    );

    let ranges = BTreeMap::from([(site("layers.3.blocks.0.attn.q"), 1.0)]);
    let unknown = quantize(&model(), &shipped("default"), &ranges);
    assert!(matches!(unknown, Err(CalibError::UnknownSite { .. })));
    let missing = quantize(&model(), &shipped("default"), &BTreeMap::new()).unwrap_err().to_string();
    assert!(missing.contains("qkv.input") && missing.contains("no range"), "{missing}");
}

#[test]
fn unusable_ranges_are_refused() {
    let model = model();
    let good = run(&model, &shipped("default"), 3).unwrap().model;
    let ranges: BTreeMap<Site, f32> =
        good.sites.iter().filter_map(|(site, state)| Some((*site, state.amax?))).collect();
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-38] {
        let mut ranges = ranges.clone();
        ranges.insert(site("layers.1.blocks.0.attn.v"), bad);
        let message = quantize(&model, &shipped("default"), &ranges).unwrap_err().to_string();
        assert!(message.contains("layers.1.blocks.0.attn.v") && message.contains("amax"), "{message}");
    }
    let again = quantize(&model, &shipped("default"), &ranges).unwrap();
    assert_eq!(again, good);
    let stored = |linear: &str| matches!(again.params[linear], Param::Int8(_));
    assert!(stored("layers.0.downsample.reduction.weight") && !stored("head.weight"));
}
