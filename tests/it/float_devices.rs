//! The float forward in candle's operations against our own CPU kernels: simulation on the CPU, and
//! calibration and simulation on a GPU. The tests on a GPU need a build with the feature `cuda` and a GPU.
//! Without these they print that they are skipped, or fail if `REQUIRE_IMPL` names `candle_cuda`.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;

use crate::common::sample::{self, calibrated};
use crate::common::{float_model, with_channels};
use candle_core::{Device, Tensor};
use swinq_eval::{Collected, fidelity};
use swinq_float::ops::Compute;
use swinq_float::{FakeQuant, FloatClassifier, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Batch, BoxError, Classifier, HostTensor, Kind, Logits, Ptq, QuantizedModel, Recipe, Rule, Size, Transform,
};

fn run(classifier: &dyn Classifier, model: &FloatModel) -> Collected {
    sample::run(classifier, model, 40)
}

/// Recipes with the minimum signal-to-noise ratio of each: the shipped recipes, and recipes that quantize
/// only a part of attention. A rounding difference flips codes, so its effect grows with the number of sites.
fn recipes() -> Vec<(Recipe, f64)> {
    let mut recipes: Vec<(Recipe, f64)> =
        ["default", "mode1", "mode2"].map(|name| (Recipe::shipped(name).unwrap(), 45.0)).to_vec();
    let (on, off, s8) = ((Some(true), None), (Some(false), None), (Some(true), Some(Kind::S8)));
    for changes in [
        &[("**.scores", on), ("**.probs", s8)][..],
        &[("**.k", off), ("**.v", off), ("**.output", on)],
        &[("**.scores", on), ("**.v", off), ("**.probs", s8), ("**.add.*", on)],
        &[("**.probs", off), ("**.weight", off), ("**.output", on)],
    ] {
        // What is quantized matters here, and not how well.
        let mut recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
        for &(pattern, (enable, kind)) in changes {
            recipe = recipe.with_rule(Rule { pattern: pattern.to_owned(), enable, kind, ..Rule::default() });
        }
        recipe.name = format!("{:?}", changes.iter().map(|(pattern, _)| *pattern).collect::<Vec<_>>());
        recipes.push((recipe, 40.0));
    }
    recipes
}

/// The models of [`recipes`], and one whose inputs of `mlp.fc2` have scales and zero points of their
/// channels.
fn models(float: &FloatModel) -> Vec<(String, QuantizedModel, f64)> {
    let model = |(recipe, least): (Recipe, f64)| {
        let model = calibrated(float, &recipe, &Device::Cpu).model;
        (recipe.name, model, least)
    };
    let mut models: Vec<_> = recipes().into_iter().map(model).collect();
    let channels = with_channels(models[0].1.clone(), float, |_| true);
    models.push(("channels".to_owned(), channels, 45.0));
    models
}

/// A classifier that runs the float forward in candle's operations on the CPU.
struct Composed {
    swin: Swin,
    sites: Mutex<FakeQuant>,
    transform: Transform,
}

impl Composed {
    fn new(model: &QuantizedModel) -> Composed {
        let tensor = |(name, float): (String, HostTensor)| {
            (name, Tensor::from_vec(float.data, float.shape, &Device::Cpu).unwrap())
        };
        let tensors: BTreeMap<String, Tensor> = model.float_tensors().into_iter().map(tensor).collect();
        Composed {
            swin: Swin::with_ops(&model.config, &tensors, &Device::Cpu, Compute::Candle.into()).unwrap(),
            sites: Mutex::new(FakeQuant::with(model, &Device::Cpu, Compute::Candle).unwrap()),
            transform: model.transform.clone(),
        }
    }
}

impl Classifier for Composed {
    fn classes(&self) -> usize {
        self.swin.config().num_classes
    }

    fn input_size(&self) -> Size {
        self.swin.config().image_size
    }

    fn channels(&self) -> usize {
        3
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        let images = self.swin.images(batch, &self.transform)?;
        let logits = self.swin.forward(&images, &mut *self.sites.lock().unwrap())?;
        Ok(Logits { values: logits.flatten_all()?.to_vec1()?, classes: self.classes() })
    }
}

/// Runs `test` in a process of its own, with one thread for candle's operations, and returns whether this is
/// that process. Several threads wait for each other by spinning, most of the time while other tests run.
fn on_one_thread(test: &str) -> bool {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("float_devices::{test}");
    let output = command.args(["--exact", &name, "--nocapture"]).env(THREADS, "1").output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

#[test]
fn a_simulation_in_candles_operations_is_the_simulation() {
    if !on_one_thread("a_simulation_in_candles_operations_is_the_simulation") {
        return;
    }
    let float = float_model();
    for (name, model, least) in models(&float) {
        let expected = run(&FloatClassifier::simulate(&model, &Device::Cpu).unwrap(), &float);
        let found = fidelity(&expected, &run(&Composed::new(&model), &float)).unwrap();
        eprintln!("{name}: {:.1} dB", found.sqnr_db);
        assert!(found.sqnr_db >= least, "{name}: {found:?}");
    }
}

/// GPU 0 as candle's device. Without one, prints that `test` is skipped, or fails if `REQUIRE_IMPL` names
/// `candle_cuda`.
fn candle_cuda(test: &str) -> Option<Device> {
    let opened = match cfg!(feature = "cuda") {
        true => Device::new_cuda_with_stream(0).map_err(|error| error.to_string()),
        false => Err("built without the feature cuda".to_owned()),
    };
    if let Err(error) = &opened {
        let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name == "candle_cuda"),
            "REQUIRE_IMPL names candle_cuda: {error}"
        );
        eprintln!("SKIPPED {test}: {error}");
    }
    opened.ok()
}

#[test]
fn a_gpu_finds_the_ranges_of_the_cpu() {
    let Some(gpu) = candle_cuda("a_gpu_finds_the_ranges_of_the_cpu") else { return };
    let float = float_model();
    for recipe in recipes().into_iter().map(|(recipe, _)| recipe.with_ptq(Ptq::Basic)) {
        let [expected, found] = [&Device::Cpu, &gpu].map(|device| calibrated(&float, &recipe, device));
        assert_eq!(found.pixels_sha256, expected.pixels_sha256);
        assert_eq!(
            found.histograms.keys().collect::<Vec<_>>(),
            expected.histograms.keys().collect::<Vec<_>>()
        );
        let mut worst = 0f32;
        for (site, expected_of) in &expected.histograms {
            let found_of = &found.histograms[site];
            assert_eq!(found_of.count(), expected_of.count(), "{site}");
            let difference = (found_of.max() - expected_of.max()).abs() / expected_of.max();
            worst = worst.max(difference);
            assert!(difference <= 1e-5, "{site}: {} instead of {}", found_of.max(), expected_of.max());
            // A calibrator may choose the neighbouring bin.
            let scale =
                |model: &QuantizedModel| 127.0 * model.activation_scale(*site).unwrap().unwrap_or(0.0);
            let [a, b] = [scale(&expected.model), scale(&found.model)];
            let bin = expected_of.width() as f32;
            assert!((a - b).abs() <= bin + 1e-5 * a, "{site}: range {b} instead of {a}");
        }
        eprintln!(
            "{}: {} sites, largest magnitudes within {worst:e}",
            recipe.name,
            expected.histograms.len()
        );
    }
}

/// A refinement chooses among rewritten layers and ranges. Where two are equally good, a rounding decides, so
/// that the models are compared as a whole.
#[test]
fn a_refinement_on_a_gpu_is_as_good_as_on_the_cpu() {
    let Some(gpu) = candle_cuda("a_refinement_on_a_gpu_is_as_good_as_on_the_cpu") else { return };
    let float = float_model();
    let expected = run(&FloatClassifier::new(&float, &Device::Cpu).unwrap(), &float);
    let recipe = Recipe::shipped("default").unwrap();
    let [on_cpu, on_gpu] = [&Device::Cpu, &gpu].map(|device| {
        let model = calibrated(&float, &recipe, device).model;
        let found = run(&FloatClassifier::simulate(&model, &Device::Cpu).unwrap(), &float);
        fidelity(&expected, &found).unwrap().sqnr_db
    });
    eprintln!("{on_cpu:.2} dB from the CPU, {on_gpu:.2} dB from the GPU");
    assert!((on_cpu - on_gpu).abs() < 0.5, "{on_cpu} dB from the CPU, {on_gpu} dB from the GPU");
}

#[test]
fn a_gpu_simulates_as_the_cpu_does() {
    let Some(gpu) = candle_cuda("a_gpu_simulates_as_the_cpu_does") else { return };
    let float = float_model();
    let [expected, found] =
        [&Device::Cpu, &gpu].map(|device| run(&FloatClassifier::new(&float, device).unwrap(), &float));
    let found = fidelity(&expected, &found).unwrap();
    eprintln!("float: {:.1} dB", found.sqnr_db);
    assert!(found.sqnr_db >= 90.0, "{found:?}");
    for (name, model, least) in models(&float) {
        let [expected, found] = [&Device::Cpu, &gpu]
            .map(|device| run(&FloatClassifier::simulate(&model, device).unwrap(), &float));
        let found = fidelity(&expected, &found).unwrap();
        eprintln!("{name}: {:.1} dB", found.sqnr_db);
        assert!(found.sqnr_db >= least, "{name}: {found:?}");
    }
}
