//! Gradients of whole networks against candle's own gradients of the same networks; logits against the
//! simulation of the number contract; and fake-quantized tensors against the contract itself, bit for bit.

mod contract;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;

use std::collections::BTreeMap;

use crate::common::{
    Images, calibrated, odd, padded, random, random_channels, second, second_padded, shifted, values,
};
use candle_core::{Device, Tensor};
use reference::Reference;
use swinq_calib::set_channel_codes;
use swinq_float::FloatClassifier;
use swinq_float::ops::Compute;
use swinq_model::quantized::FloatModel;
use swinq_model::{
    Batch, BatchSource, BlockId, Classifier, Linear, QuantizedModel, Site, Size, StageOutput, SwinConfig,
    WindowPolicy,
};
use swinq_qat::export;
use swinq_qat::job::{Job, LossKeys, Scales};
use swinq_qat::scales::sites_with_scales;
use swinq_qat::schedule::Schedule;
use swinq_qat::student::{Student, Teacher, TeacherOutput, is_scale};
use swinq_qat::{Start, Trainer};
use swinq_testing::{relative_distance, sqnr_db};

/// A recipe that quantizes every site with signed codes.
pub(crate) const EVERYTHING: &str = "name: everything\nrules:\n  - {match: '**', enable: true, granularity: channel, calibrator: max}\n  - \
                              {match: '**.probs', kind: s8}\n";
/// The default recipe with 4-bit weights and one scale per tensor.
pub(crate) const W4: &str = "name: w4\nrules:\n  - {match: '**', enable: true, granularity: tensor, calibrator: max}\n  - {match: \
                      '**.weight', bits: 4}\n  - {match: '{patch_embed,head}.**', enable: false}\n  - {match: \
                      '**.{scores,output}', enable: false}\n  - {match: '**.add.*', enable: false}\n";

/// A network, its quantization, its teacher and a batch.
pub(crate) struct Case {
    pub(crate) float: FloatModel,
    pub(crate) quantized: Option<QuantizedModel>,
    pub(crate) policy: Vec<(Site, Scales)>,
    pub(crate) teacher: FloatModel,
    /// The size of the images.
    pub(crate) size: Size,
    pub(crate) batch: Batch,
}

impl Case {
    /// A network of `config`; `learned` says which scales are trained. Ranges are narrowed, so that many
    /// values lie outside of them and errors in the gradients of clipped values show.
    pub(crate) fn new(config: SwinConfig, recipe: Option<&str>, learned: impl Fn(Site) -> bool) -> Case {
        Case::of(random(config, 5), recipe, learned)
    }

    /// [`Case::new`] of a network with its parameters.
    fn of(float: FloatModel, recipe: Option<&str>, learned: impl Fn(Site) -> bool) -> Case {
        let size = float.config.image_size;
        let mut images = Images::of(&float.config, 3, 1);
        let teacher = random(float.config.clone(), 6);
        let quantized = recipe.map(|recipe| {
            let mut model = calibrated(&float, recipe, &mut images);
            model.sites.values_mut().for_each(|state| state.amax = state.amax.map(|amax| 0.6 * amax));
            model
        });
        let scales = |site: Site| match (learned(site), site.is_weight()) {
            (true, _) => Scales::Learned,
            (false, true) => Scales::Recomputed,
            (false, false) => Scales::Fixed,
        };
        let sites = quantized.as_ref().map(sites_with_scales).unwrap_or_default();
        let policy = sites.into_iter().map(|site| (site, scales(site))).collect();
        let batch = images.batch(0, 0).unwrap();
        Case { float, quantized, policy, teacher, size, batch }
    }

    /// The case with images of another size.
    fn with_images_of(mut self, size: Size) -> Case {
        self.size = size;
        self.batch = self.images().batch(0, 0).unwrap();
        self
    }

    fn images(&self) -> Images {
        Images { size: self.size, ..Images::of(&self.float.config, 3, BATCHES) }
    }

    /// Gives every input of `mlp.fc2` scales and zero points of its channels.
    fn with_channels(mut self) -> Case {
        let model = self.quantized.as_mut().unwrap();
        for stage in self.float.config.stages() {
            for block in (0..stage.depth).map(|block| BlockId { stage: stage.index, block }) {
                let amax = model.site(Site::Input(Linear::Fc2(block))).amax.unwrap();
                let channels = random_channels(stage.hidden, block.block as u64);
                set_channel_codes(model, &self.float, block, amax, channels).unwrap();
            }
        }
        self
    }

    /// A student whose learned scales are below their initial values, by factors without simple ratios to
    /// each other. Two sites in a row may have one range, such as `qkv.output` and `q`: with a simple ratio
    /// of their scales, such as 3/4, many values would lie halfway between two codes, where the last bit
    /// decides.
    pub(crate) fn student(&self) -> Student {
        self.student_on(&Device::Cpu, Compute::host().unwrap())
    }

    /// [`Case::student`] on `device`.
    pub(crate) fn student_on(&self, device: &Device, compute: Compute) -> Student {
        let quantized = self.quantized.as_ref().map(|model| (model, self.policy.as_slice()));
        let mut student = Student::new(&self.float, quantized, device, &compute.into()).unwrap();
        for (name, parameter) in student.parameters().iter().filter(|(name, _)| name.starts_with("scale.")) {
            let part = 0.6 + 0.4 * (name.len() as f32 * GOLDEN_RATIO).fract();
            let ratio = vec![part; parameter.elem_count()];
            parameter.slice_set(&Tensor::new(ratio, device).unwrap(), 0, 0).unwrap();
        }
        student.update_scales().unwrap();
        student
    }

    /// The teacher's outputs for the batch.
    fn taught(&self, device: &Device) -> TeacherOutput {
        let ops = Compute::for_training(device).unwrap().into();
        Teacher::new(&self.teacher, true, device, &ops).unwrap().forward(&self.batch).unwrap()
    }
}

const GOLDEN_RATIO: f32 = 1.618_034;

fn keys() -> LossKeys {
    let (labels, smoothing, kl, temperature, features) = (0.7, 0.1, 1.3, 3.0, 0.4);
    LossKeys { labels, smoothing, kl, temperature, features, ..LossKeys::default() }
}

/// The loss of a backbone.
fn keys_of_maps() -> LossKeys {
    let output_weights = BTreeMap::from([("stage2".to_owned(), 2.5)]);
    LossKeys { labels: 0.0, kl: 0.0, outputs: 0.8, output_weights, features: 0.4, ..LossKeys::default() }
}

impl Case {
    /// The keys of the loss that suits the network.
    fn keys(&self) -> LossKeys {
        if self.float.config.is_backbone() { keys_of_maps() } else { keys() }
    }
}

/// Compares the student's losses and gradients of [`BATCHES`] batches with the reference's. Sums in another
/// order may round a value to the neighbouring code, and in a network this small one code may change a whole
/// gradient. Where no code differs, only rounding does. So one batch must agree within [`ROUNDING`], which a
/// wrong formula exceeds in every batch, and all within [`NOISE`]; without quantization all agree within
/// [`ROUNDING`].
fn agree(what: &str, mut case: Case) {
    let most = if case.quantized.is_some() { NOISE } else { ROUNDING };
    let far = (0..BATCHES).map(|batch| {
        case.batch = case.images().batch(0, batch).unwrap();
        let (far, of) = farthest(what, &case);
        eprintln!("{what}, batch {batch}: the farthest is {of} by {far:.1e}");
        assert!(far < most, "{what}: {of} is off by {far}");
        far
    });
    let least = far.min_by(f64::total_cmp).unwrap();
    assert!(least < ROUNDING, "{what}: off by at least {least}");
}

/// The largest distance of the student's loss and gradients from the reference's, with its name.
fn farthest(what: &str, case: &Case) -> (f64, String) {
    let mut student = case.student();
    let teacher_output = case.taught(&Device::Cpu);
    let outputs = student.forward(&case.batch, None, true).unwrap();
    let mut complete = BTreeMap::new();
    let mut once = |name: &str, gradient: &Tensor| {
        assert!(
            complete.insert(name.to_owned(), gradient.id()).is_none(),
            "{what}: {name} is complete twice"
        );
        Ok(())
    };
    let targets = (&case.batch, None);
    let (parts, gradients) = student
        .backward_with(&case.keys(), &outputs, targets, Some(&teacher_output), (1.0, 1.0), &mut once)
        .unwrap();
    let reference = Reference::new(case, student.parameters());
    let (loss, wanted) = reference.gradients(case, &case.keys(), &teacher_output);
    let mut errors = Errors::of_loss(parts.total, loss);
    for (name, parameter) in student.parameters() {
        let want = values(&wanted[name]);
        assert!(want.iter().all(|w| w.is_finite()), "{what}: the gradient of {name} is not finite");
        assert!(want.iter().any(|w| *w != 0.0), "{what}: {name} has no gradient to compare");
        let gradient = gradients.get(parameter).unwrap_or_else(|| panic!("{what}: no gradient of {name}"));
        assert_eq!(
            complete.get(name),
            Some(&gradient.id()),
            "{what}: {name} was complete too early, or never"
        );
        errors.add(name, relative_distance(&values(gradient), &want));
    }
    errors.farthest()
}

/// The distances of a loss and of gradients. The gradient of a scale is one sum of terms of both signs; where
/// the terms cancel, one different code may change the sum a lot. A wrong formula changes the gradients of
/// all scales of a kind, so their median counts.
struct Errors {
    of_loss: f64,
    of_parameters: Vec<(f64, String)>,
    /// By [`kind`].
    of_scales: BTreeMap<String, Vec<f64>>,
}

impl Errors {
    fn of_loss(got: f64, want: f64) -> Errors {
        Errors { of_loss: (got / want - 1.0).abs(), of_parameters: Vec::new(), of_scales: BTreeMap::new() }
    }

    /// Adds the distance of the gradient of the parameter `name`.
    fn add(&mut self, name: &str, distance: f64) {
        match is_scale(name) {
            true => self.of_scales.entry(kind(name).to_owned()).or_default().push(distance),
            false => self.of_parameters.push((distance, name.to_owned())),
        }
    }

    /// The largest, with its name.
    fn farthest(self) -> (f64, String) {
        let of_scales = self
            .of_scales
            .into_iter()
            .map(|(kind, errors)| (median(errors), format!("scales of kind {kind}")));
        let all =
            self.of_parameters.into_iter().chain(of_scales).chain([(self.of_loss, "the loss".to_owned())]);
        all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
    }
}

/// The median; of an even number of values, the lower one.
fn median(mut values: Vec<f64>) -> f64 {
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// The kind of a scale's site, such as `input`, `q`, `weight`.
fn kind(name: &str) -> &str {
    name.rsplit('.').next().unwrap()
}

/// Number of batches to compare.
const BATCHES: usize = 5;
/// Tolerance where student and reference add the same numbers in different orders.
const ROUNDING: f64 = 1e-4;
/// Tolerance where some values round to different codes.
const NOISE: f64 = 0.2;

#[test]
fn float_training() {
    for config in [shifted(), padded(), odd()] {
        agree(&config.name.clone(), Case::new(config, None, |_| false));
    }
}

/// A network of a Swin V2 whose factors of `q k^T` are 5 to 8: with those of random models, up to 100, one
/// different code changes the softmax so much that no gradient can be compared.
fn swin_v2(config: SwinConfig, recipe: Option<&str>, learned: impl Fn(Site) -> bool) -> Case {
    let mut case = Case::new(config, None, &learned);
    let scales = case.float.tensors.iter_mut().filter(|(name, _)| name.ends_with("logit_scale"));
    scales.for_each(|(_, scale)| {
        scale.data.iter_mut().enumerate().for_each(|(h, s)| *s = 1.6 + 0.2 * h as f32)
    });
    Case::of(case.float, recipe, learned)
}

#[test]
fn float_training_of_swin_v2() {
    for config in [second(), second_padded()] {
        agree(&config.name.clone(), swin_v2(config, None, |_| false));
    }
}

/// Everything but the scores, whose scale differs from head to head in a Swin V2.
const WITHOUT_SCORES: &str = "name: everything\nrules:\n  - {match: '**', enable: true, granularity: channel, calibrator: max}\n  - {match: \
     '**.probs', kind: s8}\n  - {match: '**.scores', enable: false}\n";

#[test]
fn quantized_swin_v2() {
    for config in [second(), second_padded()] {
        agree(&config.name.clone(), swin_v2(config, Some("default"), |_| false));
    }
    agree("every site", swin_v2(second(), Some(WITHOUT_SCORES), |_| true));
    let scores = swin_v2(second(), Some(EVERYTHING), |_| false);
    let message = scores.student().forward(&scores.batch, None, false).unwrap_err().to_string();
    assert!(message.contains("layers.0.blocks.0.attn.scores") && message.contains("Swin V2"), "{message}");
}

#[test]
fn the_default_recipe() {
    for config in [shifted(), padded(), odd()] {
        agree(&config.name.clone(), Case::new(config, Some("default"), |_| false));
    }
}

/// A backbone by the rule of detectors; the first output has a norm and the second has none, or the other way
/// round.
fn backbone(first: bool) -> SwinConfig {
    let config = SwinConfig { window_policy: WindowPolicy::Detection, ..shifted() };
    config.into_backbone(vec![StageOutput::of_stage(0, first), StageOutput::of_stage(1, !first)])
}

/// Images of another size than that for which the network was built, whose sides are no multiple of the
/// patch.
#[test]
fn backbones() {
    for (first, size) in [(true, Size::new(32, 32)), (false, Size::new(37, 22))] {
        let case = |recipe| Case::new(backbone(first), recipe, |site| site.is_weight()).with_images_of(size);
        agree("a backbone in float", case(None));
        agree("a backbone", case(Some("default")));
    }
}

#[test]
fn mode1() {
    agree("mode1", Case::new(padded(), Some("mode1"), |_| false));
}

#[test]
fn every_site_with_a_trained_scale() {
    agree("everything", Case::new(shifted(), Some(EVERYTHING), |_| true));
    agree("everything, odd", Case::new(odd(), Some(EVERYTHING), |_| true));
}

#[test]
fn four_bits_and_one_scale_per_tensor() {
    agree("w4, recomputed", Case::new(shifted(), Some(W4), |_| false));
    agree("w4, trained", Case::new(shifted(), Some(W4), |site| site.is_weight()));
}

#[test]
fn logits_are_those_of_the_exported_model_in_simulation() {
    let case = |recipe| Case::new(shifted(), Some(recipe), |_| true);
    let plain = ["default", "mode1", EVERYTHING, W4].map(|recipe| (recipe, case(recipe)));
    let v2 = ["default", WITHOUT_SCORES].map(|recipe| (recipe, swin_v2(second(), Some(recipe), |_| true)));
    let channels = ["default", EVERYTHING].map(|recipe| (recipe, case(recipe).with_channels()));
    for (recipe, case) in plain.into_iter().chain(v2).chain(channels) {
        let mut student = case.student();
        let logits = values(&student.forward(&case.batch, None, false).unwrap()[0]);
        let template = case.quantized.as_ref().unwrap();
        let exported =
            export::quantized_student(template, &case.float, student.scales(), student.parameters()).unwrap();
        let simulated =
            FloatClassifier::simulate(&exported, &Device::Cpu).unwrap().infer(&case.batch).unwrap().values;
        let float =
            FloatClassifier::new(&case.float, &Device::Cpu).unwrap().infer(&case.batch).unwrap().values;
        let (near, far) = (sqnr_db(&logits, &simulated), sqnr_db(&float, &simulated));
        eprintln!("{recipe:.20}: {near:.1} dB, float {far:.1} dB");
        assert!(near > 40.0, "{recipe}: {near} dB");
        assert!(far < 25.0, "{recipe}: quantization changed little ({far} dB), so nothing was compared");
    }
}

/// Copies of parameters, which no training changes.
pub(crate) fn copies(parameters: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    parameters.iter().map(|(name, tensor)| (name.clone(), tensor.copy().unwrap())).collect()
}

/// Losses of `ITERATIONS` iterations, and how they were launched.
fn losses(
    case: &Case,
    device: &Device,
    compute: Compute,
    keys: &[(&str, &str)],
) -> (Vec<f64>, Option<String>) {
    let keys: Vec<(String, String)> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let model = if case.quantized.is_some() { "model: q" } else { "quant: off" };
    let text = format!("{model}\nfloat: f\ndata: {{path: unused}}\noutput: unused\nbatch_size: 3\n");
    let job = Job::from_yaml("iterations", &text, &keys).unwrap();
    let start = Start {
        job: &job,
        float: &case.float,
        quantized: case.quantized.as_ref(),
        teacher: Some(&case.teacher),
        drop_path: 0.3,
        device: device.clone(),
        compute,
    };
    let mut trainer = Trainer::new(&start, Schedule::of(&job, 100).unwrap()).unwrap();
    let mut images = Images::of(&case.float.config, 3, 4);
    let losses = (0..ITERATIONS).map(|_| trainer.iterate(&mut images).unwrap().loss.total).collect();
    (losses, trainer.launches())
}

const ITERATIONS: usize = 6;

/// Each loss of `got` is that of `want`, within the relative `tolerance`.
fn same_losses(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got / want - 1.0).abs() < tolerance, "{what}: {got} instead of {want}");
    }
}

/// Iterations in candle's operations are those of the host's passes.
#[test]
fn iterations_in_candles_operations() {
    let more =
        [("accumulate", "2"), ("optimizer.ema", "0.9"), ("recompute", "true"), ("optimizer.lr", "1e-3")];
    let mixed = [("mixing.mixup", "0.8"), ("loss.smoothing", "0.1"), ("optimizer.clip_norm", "0.1")];
    for keys in [&[][..], &more, &mixed] {
        for (recipe, tolerance) in [(None, 1e-4), (Some("default"), 2e-2)] {
            let case = Case::new(shifted(), recipe, |_| false);
            let (want, _) = losses(&case, &Device::Cpu, Compute::Candle, keys);
            let (got, launches) = losses(&case, &Device::Cpu, Compute::host().unwrap(), keys);
            assert_eq!(launches, None);
            same_losses(&format!("{keys:?}"), &got, &want, tolerance);
        }
    }
}
