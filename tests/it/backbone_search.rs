//! `sensitivity` and `tune` of backbones, by the SQNR of their outputs, and weights of 4 bits.

use std::ops::ControlFlow;

use crate::backbones::folder;
use crate::common::{self, Folder, backbone_with_outliers, go_on, refused, stdout, swinq};
use swinq::eval::Sensitivity;
use swinq::eval::results::sensitivity::{ranking, read_sensitivity};
use swinq::eval::results::tune::{SearchEnd, Verdict};
use swinq::model::{Ptq, QuantizedModel};
use swinq::{
    CalibrateOptions, Candidate, EngineOptions, Error, EvaluateOptions, Images, Model, PartKinds, PartsOf,
    ReadOptions, Recipe, Rule, SensitivityOptions, SensitivityProgress, Sizing, Split, TuneOptions,
    TuneProgress, Tuned, calibrate, evaluate,
};

/// The pictures of several sizes in `folder`.
fn images(folder: &Folder) -> Images {
    Images::open(folder.path("photos"), Split::Val, None, 0).unwrap()
}

/// Two of them, of two sizes.
fn two(folder: &Folder) -> Images {
    images(folder).first(2)
}

fn basic() -> Recipe {
    Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic)
}

fn sensitivity(
    folder: &Folder,
    sqnr_of: &[&str],
    progress: &mut dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()>,
) -> Result<Sensitivity, Error> {
    let options = SensitivityOptions {
        recipe: basic(),
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: sqnr_of.iter().map(|name| (*name).to_owned()).collect(),
        threads: 2,
        cache: Some(folder.path("cache")),
    };
    let model = Model::from_float(backbone_with_outliers()).unwrap();
    let parts = PartsOf::all(PartKinds::LayersAndSites);
    swinq::sensitivity(model, &options, &parts, &two(folder), &two(folder), progress)
}

/// The SQNR of each output of the quantized model against float on `images`, as `eval` measures it.
fn outputs(images: &Images, recipe: Recipe) -> Vec<f64> {
    let float = Model::from_float(backbone_with_outliers()).unwrap();
    let options = CalibrateOptions { recipe, ..CalibrateOptions::default() };
    let int8 = calibrate(float.clone(), &options, images, &mut go_on).unwrap().model;
    let candidate = |model: &Model| Candidate::engine("m", model, &EngineOptions::cpu(2)).unwrap();
    let go = &mut |_: usize, _: usize| ControlFlow::Continue(());
    let mut candidates = [candidate(&float), candidate(&int8)];
    let results = evaluate(&mut candidates, images, &EvaluateOptions::default(), go).unwrap();
    results.models[1].outputs.iter().map(|output| output.sqnr_db).collect()
}

#[test]
fn the_effect_of_layers_is_that_on_outputs() {
    let folder = folder();
    let mut measured = 0;
    let mut stop = |progress: SensitivityProgress<'_>| {
        measured += usize::from(matches!(progress, SensitivityProgress::Measure(..)));
        if measured == 40 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(sensitivity(&folder, &[], &mut stop), Err(Error::Interrupted)));
    let mut kept = 0;
    let mut watch = |progress: SensitivityProgress<'_>| {
        if let SensitivityProgress::Cache(found) = progress {
            kept = found.kept;
        }
        ControlFlow::Continue(())
    };
    let found = sensitivity(&folder, &[], &mut watch).unwrap();
    assert!(kept > 30, "{kept} measurements of the stopped run are used");
    assert_eq!((found.images, found.float_correct, found.whole.kl), (2, None, None));
    assert_eq!(found.data.as_ref().unwrap().sizing.as_deref(), Some("keep"));

    // The whole recipe is what `eval` measures.
    let names: Vec<&str> = found.whole.outputs.iter().map(|output| &output.name[..]).collect();
    assert_eq!(names, ["stage1", "stage2"]);
    let expected = outputs(&two(&folder), basic());
    for (output, db) in found.whole.outputs.iter().zip(&expected) {
        assert!((output.sqnr_db - db).abs() < 1e-6, "{output:?} against {db}");
    }
    assert_eq!(found.whole.sqnr_db, found.whole.outputs[1].sqnr_db.min(found.whole.outputs[0].sqnr_db));
    let layer = |name: &str| found.layers.iter().find(|layer| layer.name == name).unwrap();
    let planted = layer("layers.1.blocks.0.mlp.fc1");
    assert_eq!(ranking(&found.layers)[0].name, planted.name);
    // A layer of the second stage does not change the first output.
    assert_eq!(planted.alone.outputs[0].sqnr_db, f64::INFINITY);
    assert_eq!(planted.without.outputs[0], found.whole.outputs[0]);
    let off =
        Rule { pattern: "layers.1.blocks.0.mlp.fc1.*".to_owned(), enable: Some(false), ..Rule::default() };
    let expected = outputs(&two(&folder), basic().with_rule(off));
    assert!((planted.without.outputs[1].sqnr_db - expected[1]).abs() < 1e-6, "{planted:?} {expected:?}");
    assert!(layer("layers.0.blocks.0.mlp.fc1").alone.outputs.iter().all(|output| output.sqnr_db < 90.0));
    assert!(found.blocks.len() > 6 && !found.ranges.is_empty());

    let error =
        sensitivity(&folder, &["stage3"], &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("no output stage3") && error.contains("stage1, stage2"), "{error}");
}

fn tune(folder: &Folder, min_sqnr: Option<f64>) -> Result<Tuned, Error> {
    let options = TuneOptions {
        recipe: basic(),
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: vec!["stage2".to_owned()],
        engine: EngineOptions::cpu(2),
        batch_size: 1,
        max_drop: 0.0,
        min_sqnr,
        min_speedup: None,
        budget: None,
        cache: Some(folder.path("cache")),
        latencies: Some(folder.path("latencies.json")),
    };
    let model = Model::from_float(backbone_with_outliers()).unwrap();
    swinq::tune(model, &options, &images(folder), &images(folder), &mut |_: TuneProgress<'_>| {
        ControlFlow::Continue(())
    })
}

#[test]
fn a_search_reaches_the_sqnr_of_an_output() {
    let folder = folder();
    let start = outputs(&images(&folder), basic())[1];
    let least = start + 3.0;
    let tuned = tune(&folder, Some(least)).unwrap();
    let results = &tuned.results;
    let chosen = &results.candidates[results.chosen];
    println!("{start:.1} dB, {:?}, {:?}, {:?}", chosen.changes, chosen.effect, results.verification);
    assert_eq!((results.end, results.kept, results.goal.max_drop), (SearchEnd::Reached, true, None));
    assert_eq!(results.goal.min_sqnr_db, Some(least));
    assert!(chosen.effect.sqnr_db >= least && results.candidates[0].effect.sqnr_db < least);
    assert!(!chosen.changes.is_empty() && chosen.top1_difference.is_none() && chosen.int8_share > 0.5);
    let names: Vec<&str> = chosen.effect.outputs.iter().map(|output| &output.name[..]).collect();
    assert_eq!(names, ["stage2"]);
    // The largest of the sizes of equally many search images.
    assert_eq!(results.cost.image_size, Some([64, 96]));
    let check = results.verification.as_ref().unwrap();
    let holds = check.effect.sqnr_db >= least;
    assert_eq!((check.images, check.verdict == Verdict::Holds), (4, holds));
    assert_eq!(
        tuned.model.as_quantized().provenance.calibration.as_ref().unwrap().sizing.as_deref(),
        Some("keep")
    );

    // Everything is kept: the second search measures nothing, and ends at the same recipe.
    common::set_disturbed(folder.as_path(), "null");
    let again = tune(&folder, Some(least)).unwrap();
    assert_eq!(again.model.as_quantized(), tuned.model.as_quantized());
    assert_eq!(again.results.candidates[again.results.chosen].predicted_ms, chosen.predicted_ms);

    let error = tune(&folder, None).unwrap_err().to_string();
    assert!(error.contains("min_sqnr") && error.contains("is a backbone"), "{error}");
}

#[test]
fn the_program_measures_and_tunes_backbones() {
    let folder = folder();
    QuantizedModel::from_float(backbone_with_outliers()).unwrap().save(&folder.backbone()).unwrap();
    let run = |command: &str, output: &str, more: &[&str]| {
        let mut run = swinq([command]);
        run.arg(folder.backbone()).arg("--data-path").arg(folder.path("photos"));
        run.args(["--ptq", "basic", "-o"]).arg(folder.path(output)).args(more).assert()
    };
    let shown =
        run("sensitivity", "s.json", &["--size", "32x48", "--images", "2", "--sqnr-of", "stage2"]).success();
    let text = stdout(&shown);
    assert!(
        text.contains("stage2 alone") && !text.contains("stage1 alone") && !text.contains("top-1"),
        "{text}"
    );
    let found = read_sensitivity(&folder.path("s.json")).unwrap();
    assert_eq!(found.data.unwrap().sizing.as_deref(), Some("32x48"));

    refused(run("tune", "t.safetensors", &[]), 2, &["--min-sqnr", "no accuracy"]);
    refused(run("tune", "t.safetensors", &["--max-drop", "1"]), 2, &["--max-drop is for classifiers"]);
    // A search that ends at once writes everything.
    let report = folder.path("report.html");
    let more =
        ["--backend", "cpu", "--size", "32x48", "--min-sqnr", "300", "--budget", "0.00001", "--report"];
    let shown = run("tune", "t.safetensors", &[&more[..], &[report.to_str().unwrap()]].concat());
    let text = stdout(&shown);
    refused(shown, 3, &["before a recipe kept the limit; the closest has"]);
    assert!(text.contains("an SQNR of at least 300 dB at every output does not hold"), "{text}");
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("Outputs and images") && page.contains("The goal fails: an SQNR of"), "{text}");
    assert!(QuantizedModel::load(&folder.path("t.safetensors")).unwrap().config.is_backbone());
}

#[test]
fn reconstruction_helps_weights_of_four_bits() {
    let folder = folder();
    let recipe = |ptq| {
        let weights = Rule { pattern: "layers.**.weight".to_owned(), bits: Some(4), ..Rule::default() };
        Recipe::shipped("default").unwrap().with_rule(weights).with_ptq(ptq)
    };
    let [basic, rebuilt] =
        [Ptq::Basic, Ptq::Reconstruct].map(|ptq| outputs(&images(&folder).first(6), recipe(ptq)));
    println!("4 bits: basic {basic:.1?} dB, reconstruct {rebuilt:.1?} dB");
    assert!(
        basic.iter().zip(&rebuilt).all(|(basic, rebuilt)| rebuilt - basic >= 3.0),
        "{basic:?} {rebuilt:?}"
    );
}
