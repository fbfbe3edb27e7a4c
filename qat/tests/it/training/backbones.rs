//! Trainings of a backbone: without labels, on images of several sizes.

use swinq_float::{FakeQuant, Float, Sites, Swin};
use swinq_model::{Batch, BatchSource, StageOutput, WindowPolicy};
use swinq_testing::sqnr_db;

use super::*;

/// The loss of the outputs alone. Relative errors are small; the factor keeps them far above AdamW's `eps`.
const KEYS: &str = "loss: {labels: 0, kl: 0, outputs: 100}\noptimizer: {lr: 1e-3}\n";

/// [`FULL`] for a backbone, whose images are not mixed.
const FULL_BACKBONE: &str = "loss: {labels: 0, kl: 0, outputs: 100, output_weights: {stage1: 3}, features: 0.1}\n\
    quantization: {activation_scales: learned, weight_scales: learned}\naccumulate: 2\ndrop_path: 0.1\n\
    optimizer: {lr: 1e-3, lr_scales: 1e-2, ema: 0.9}\nschedule: {warmup_steps: 2}\n";

/// Codes of three bits for the weights, so that there is much to regain.
const COARSE: &str = "name: coarse\nrules:\n  - {match: '**', enable: true, granularity: tensor, calibrator: max}\n  \
    - {match: '**.weight', bits: 4}\n  - {match: '**.{scores,output}', enable: false}\n  \
    - {match: '**.add.*', enable: false}\n";

fn backbone(iterations: u64, keys: &str) -> Setup {
    let config = SwinConfig { depths: vec![2, 1], window_policy: WindowPolicy::Detection, ..shifted() };
    let config = config.into_backbone(vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)]);
    let mut setup = Setup::of(config, Some(COARSE), iterations, keys);
    setup.sizes = vec![Size::new(32, 32), Size::new(29, 50), Size::new(40, 16), Size::new(33, 31)];
    setup
}

/// The outputs of `model` for `batch`, with its quantization simulated if `sites` says so.
fn outputs(model: &FloatModel, sites: &mut dyn Sites, batch: &Batch) -> Vec<Vec<f32>> {
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let images = swin.images(batch, &model.transform).unwrap();
    swin.outputs(&images, sites).unwrap().iter().map(values).collect()
}

/// The mean SQNR in dB of the outputs of `model` against the float model's, on images that no training sees.
fn sqnr(setup: &Setup, model: &QuantizedModel) -> f64 {
    let batch = Images { size: Size::new(38, 42), ..Images::of(&setup.float.config, 6, 1) };
    let batch = { batch }.batch(77, 0).unwrap();
    let mut sites = FakeQuant::new(model, &Device::Cpu).unwrap();
    let tensors = model.float_tensors();
    let trained = outputs(&FloatModel { tensors, ..setup.float.clone() }, &mut sites, &batch);
    let taught = outputs(&setup.float, &mut Float, &batch);
    let db = trained.iter().zip(&taught).map(|(found, exact)| sqnr_db(found, exact));
    db.sum::<f64>() / taught.len() as f64
}

#[test]
fn the_outputs_come_closer_to_the_teachers() {
    let setup = backbone(60, KEYS);
    let mut watch = Watch::default();
    let mut trainer = setup.trainer();
    let before = sqnr(&setup, &trainer.model().unwrap());
    setup.run(&mut trainer, &mut watch, Begin::New).unwrap();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&watch.losses[..4]), mean(&watch.losses[56..]));
    let after = sqnr(&setup, &trainer.model().unwrap());
    eprintln!("loss {first:.3} to {last:.3}, SQNR {before:.2} to {after:.2} dB");
    assert!(last < 0.6 * first, "from {first} to {last}");
    assert!(after > before + 2.0, "from {before} to {after} dB");
    assert!(watch.said.iter().any(|text| text.contains("SQNR 0.00 dB of 1 images")), "{:?}", watch.said);
    let log = std::fs::read_to_string(setup.folder.path().join("log.jsonl")).unwrap();
    assert!(log.contains("\"outputs\":") && log.contains("\"sqnr_db\":"), "{log}");
    assert!(!log.contains("\"top1\":0"), "labels have no meaning: {log}");
}

#[test]
fn resuming_after_any_iteration_gives_the_same_bytes() {
    for recompute in ["false", "true"] {
        let keys = format!("{FULL_BACKBONE}recompute: {recompute}\n");
        let whole = backbone(5, &keys).finish(Begin::New);
        for iteration in 1..5 {
            let setup = backbone(5, &keys);
            setup.stop_at(iteration, Begin::New);
            setup.finish(Begin::Resume).equals(&whole, &format!("stopped after {iteration}"));
        }
    }
}

#[test]
fn activations_that_are_computed_again_give_the_same_bytes() {
    let [kept, again] = ["false", "true"].map(|recompute| {
        swinq_float::use_threads(if recompute == "true" { 3 } else { 1 }).unwrap();
        backbone(4, &format!("{FULL_BACKBONE}recompute: {recompute}\n")).finish(Begin::New)
    });
    again.equals(&kept, "recompute");
}

/// An output without weight has no effect; stages behind the last one with a weight have no gradient.
#[test]
fn outputs_have_weights() {
    let train = |weights: &str| {
        let keys = format!("loss: {{labels: 0, kl: 0, outputs: 100, output_weights: {weights}}}\n");
        let setup = backbone(2, &keys);
        let mut trainer = setup.trainer();
        setup.run(&mut trainer, &mut Watch::default(), Begin::New).unwrap();
        parameters(&mut trainer)
    };
    let (both, first) = (train("{}"), train("{stage2: 0}"));
    let start = &backbone(2, KEYS).float.tensors;
    let moved = |trained: &BTreeMap<String, Vec<f32>>, name: &str| trained[name] != start[name].data;
    for name in ["layers.1.blocks.0.mlp.fc2.weight", "layers.0.downsample.reduction.weight"] {
        assert!(moved(&both, name) && !moved(&first, name), "{name}");
    }
    assert!(moved(&first, "norm0.weight") && moved(&first, "layers.0.blocks.0.attn.qkv.weight"));
    assert_ne!(first["norm0.weight"], both["norm0.weight"]);
}

/// The best model is that of the highest SQNR, which may be negative.
#[test]
fn the_best_model_has_the_highest_sqnr() {
    let setup = backbone(3, &format!("{KEYS}validate: {{every: 1}}\n"));
    let mut watch = Watch { accuracies: vec![-3.0, 12.5, 12.5, -4.0], ..Watch::default() };
    setup.run(&mut setup.trainer(), &mut watch, Begin::New).unwrap();
    let best = QuantizedModel::load(&setup.folder.path().join("best.safetensors")).unwrap();
    let training = best.provenance.training.unwrap();
    assert_eq!((training.iterations, training.loss["outputs"]), (1, 100.0));
    let chosen = training.chosen_by.unwrap();
    assert_eq!(chosen.score, Score::Sqnr(12.5));
    assert!(chosen.to_string().contains("SQNR 12.50 dB"), "{chosen}");
    let warned =
        watch.said.iter().any(|text| text.contains("SQNR -4.00 dB") && text.contains("SQNR -3.00 dB"));
    assert!(warned, "{:?}", watch.said);
}

#[test]
fn keys_of_the_other_task_are_refused_by_name() {
    let refused = |setup: &Setup, words: &[&str]| {
        let message = setup.job.check_network(&setup.float.config).unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    };
    for (keys, words) in [
        ("loss: {labels: 1, kl: 0, outputs: 1}\n", ["loss.labels: is 1", "a backbone"]),
        ("loss: {labels: 0, kl: 2, outputs: 1}\n", ["loss.kl: is 2", "a backbone"]),
        ("loss: {labels: 0, kl: 0, smoothing: 0.1, outputs: 1}\n", ["loss.smoothing: is 0.1", "no labels"]),
        (
            "loss: {labels: 0, kl: 0, outputs: 1}\nmixing: {mixup: 0.8}\n",
            ["mixing.mixup: is 0.8", "set it to 0"],
        ),
        (
            "loss: {labels: 0, kl: 0, outputs: 1}\nmixing: {cutmix: 1}\n",
            ["mixing.cutmix: is 1", "set it to 0"],
        ),
        (
            "loss: {labels: 0, kl: 0, outputs: 1, output_weights: {stage3: 1}}\n",
            ["loss.output_weights.stage3", "stage1, stage2"],
        ),
        (
            "loss: {labels: 0, kl: 0, outputs: 1, output_weights: {stage2: -1}}\n",
            ["loss.output_weights.stage2", "at least 0"],
        ),
        (
            "loss: {labels: 0, kl: 0, outputs: 1, output_weights: {stage1: 0, stage2: 0}}\n",
            ["loss.output_weights", "0 for every output"],
        ),
    ] {
        let mut setup = backbone(1, KEYS);
        let text = format!("model: q\nfloat: f\ndata: {{path: d}}\noutput: o\nsteps: 1\n{keys}");
        setup.job = Job::from_yaml("test", &text, &[]).unwrap();
        refused(&setup, &words);
    }
    let float = "quant: off\nfloat: f\ndata: {path: d}\noutput: o\nloss: {labels: 0, kl: 0, outputs: 1}\n";
    let mut setup = backbone(1, KEYS);
    setup.job = Job::from_yaml("test", float, &[]).unwrap();
    refused(&setup, &["quant: is off", "calibrated checkpoint"]);
    for (keys, words) in [
        ("loss: {outputs: 1}\n", ["loss.outputs: is 1", "a classifier"]),
        ("loss: {output_weights: {stage1: 2}}\n", ["loss.output_weights", "stage1"]),
        ("augment: {sizes: [32x32]}\n", ["augment.sizes", "set it to []"]),
        ("validate: {size: 32x32}\n", ["validate.size: is 32x32", "a classifier"]),
    ] {
        let setup = {
            let mut setup = Setup::new(Some("default"), 1, "");
            let text = format!("model: q\nfloat: f\ndata: {{path: d}}\noutput: o\nsteps: 1\n{keys}");
            setup.job = Job::from_yaml("test", &text, &[]).unwrap();
            setup
        };
        refused(&setup, &words);
    }
}
