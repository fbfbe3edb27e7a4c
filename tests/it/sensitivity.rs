//! Sensitivity on the bundled sample: what is measured, how a run continues, and the agreement of its ranking
//! with one that was made without any shortcut.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::{
    self, float_model, refused, sample_cfg, sample_data, sample_model, stderr, stdout, swinq,
};
use assert_cmd::assert::Assert;
use swinq::eval::results::sensitivity::{ElementKind, Sensitivity, ranking, read_sensitivity};
use swinq::eval::{Collected, fidelity};
use swinq::model::QuantizedModel;
use swinq::{
    Engine, EngineOptions, Error, Images, Model, PartKinds, PartsOf, ReadOptions, Recipe, Rule,
    SensitivityOptions, SensitivityProgress, Sizing, Split, infer_images,
};

/// Runs the command on the sample with more arguments.
fn run(output: &Path, more: &[&str]) -> Assert {
    let mut command = swinq(["sensitivity"]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
    command.arg("-o").arg(output).args(more).assert()
}

fn images(count: usize, split: Split) -> Images {
    Images::open(sample_data(), split, Some(count), 0).unwrap()
}

fn options(cache: Option<&Path>) -> SensitivityOptions {
    SensitivityOptions {
        recipe: Recipe::shipped("default").unwrap(),
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: Vec::new(),
        threads: 2,
        cache: cache.map(Path::to_owned),
    }
}

fn measure(
    count: usize,
    cache: Option<&Path>,
    progress: &mut dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()>,
) -> Result<Sensitivity, Error> {
    let model = Model::from_float(float_model()).unwrap();
    swinq::sensitivity(
        model,
        &options(cache),
        &PartsOf::all(PartKinds::LayersAndSites),
        &images(16, Split::Train),
        &images(count, Split::Val),
        progress,
    )
}

#[test]
fn the_command_measures_every_part_and_takes_finished_measurements_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("s.json");
    let arguments = ["--images", "8", "--calibration-images", "8", "--top", "3"];
    let text = stdout(&run(&output, &arguments).success());
    assert!(text.contains("alone: SQNR") && text.contains("layers.1.blocks.3"), "{text}");
    let results = read_sensitivity(&output).unwrap();
    // Six blocks of four linear layers and two products of attention, and one merge.
    assert_eq!(results.layers.len(), 6 * 6 + 1);
    assert_eq!(results.sites.len(), 6 * 12 + 2);
    assert!(results.sites.iter().all(|site| site.kind == ElementKind::Site && site.sites.len() == 1));
    assert!(results.layers.iter().all(|layer| layer.macs > 0 && layer.alone.sqnr_db.is_finite()));
    // The patch embedding, six blocks and the merge. Noise adds up: the last block is worse than the first.
    assert_eq!(results.blocks.len(), 8);
    assert!(results.blocks[7].sqnr_db < results.blocks[1].sqnr_db);
    assert!(results.blocks[0].sqnr_db.is_infinite(), "the recipe leaves the patch embedding in float");
    // All sites but the probabilities have ranges.
    assert_eq!(results.ranges.len(), results.sites.len() - 6);
    for range in &results.ranges {
        assert!((0.0..0.2).contains(&range.clipped) && (0.0..1.0).contains(&range.zeroed), "{range:?}");
        assert!(range.percentiles.is_sorted_by(|a, b| a.value <= b.value), "{range:?}");
    }
    let again = run(&output, &arguments).success();
    assert!(stderr(&again).contains("finished measurements are taken from"), "{}", stderr(&again));
    assert_eq!(read_sensitivity(&output).unwrap().layers, results.layers);
}

#[test]
fn a_stopped_run_continues_and_a_damaged_cache_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let whole = measure(8, None, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut stop = |progress: SensitivityProgress<'_>| match progress {
        SensitivityProgress::Measure(30.., _) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    assert!(matches!(measure(8, Some(&cache), &mut stop), Err(Error::Interrupted)));
    let mut damaged = std::fs::read(&cache).unwrap();
    let at = damaged.len() / 2;
    damaged[at] ^= 4;
    std::fs::write(&cache, &damaged).unwrap();
    let mut found = None;
    let mut watch = |progress: SensitivityProgress<'_>| {
        if let SensitivityProgress::Cache(cache) = progress {
            found = Some(cache);
        }
        ControlFlow::Continue(())
    };
    let continued = measure(8, Some(&cache), &mut watch).unwrap();
    let found = found.unwrap();
    assert_eq!((found.kept, found.damaged, found.replaced), (29, 1, false));
    let Sensitivity { environment, .. } = whole.clone();
    assert_eq!(Sensitivity { environment, ..continued }, whole);
}

/// The SQNR of the logits of `model` in dB, by whole runs of an engine.
fn sqnr(model: &QuantizedModel, reference: &Collected, images: &Images) -> f64 {
    let engine = Engine::new(model, EngineOptions::cpu(2).backend().unwrap()).unwrap();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let own = infer_images(&engine, images, &ReadOptions::default(), &mut go_on);
    fidelity(reference, &own.unwrap().scores).unwrap().sqnr_db
}

/// Kendall's rank correlation of two lists of scores without ties.
fn kendall(a: &[f64], b: &[f64]) -> f64 {
    let pairs = (0..a.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    let signs: Vec<f64> = pairs.map(|(i, j)| ((a[i] - a[j]) * (b[i] - b[j])).signum()).collect();
    signs.iter().sum::<f64>() / signs.len() as f64
}

#[test]
fn the_ranking_agrees_with_one_by_whole_runs_on_other_images() {
    let results = measure(32, None, &mut |_| ControlFlow::Continue(())).unwrap();
    let float = float_model();
    let options = swinq::CalibrateOptions::default();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let calibration = images(24, Split::Train);
    let images = images(96, Split::Val);
    let engine = Model::from_float(float.clone()).unwrap().engine(&EngineOptions::cpu(2)).unwrap();
    let reference = infer_images(&engine, &images, &ReadOptions::default(), &mut go_on).unwrap().scores;
    let rule =
        |pattern: &str, enable| Rule { pattern: pattern.to_owned(), enable: Some(enable), ..Rule::default() };
    let exhaustive = results.layers.iter().map(|layer| {
        let none = options.recipe.clone().with_rule(rule("**", false));
        let recipe = layer.sites.iter().fold(none, |recipe, site| recipe.with_rule(rule(site, true)));
        let (model, options) = (Model::from_float(float.clone()).unwrap(), options.clone());
        let options = swinq::CalibrateOptions { recipe, ..options };
        let go_on = &mut |_| ControlFlow::Continue(());
        let calibrated = swinq::calibrate(model, &options, &calibration, go_on).unwrap();
        sqnr(calibrated.model.as_quantized(), &reference, &images)
    });
    let exhaustive: Vec<f64> = exhaustive.collect();
    let measured: Vec<f64> = results.layers.iter().map(|layer| layer.alone.sqnr_db).collect();
    let tau = kendall(&measured, &exhaustive);
    println!("Kendall's tau of {} layers: {tau:.3}", measured.len());
    assert!(tau >= 0.7, "{tau}");
}

#[test]
fn a_run_says_its_cost_first_and_what_it_knows_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let (mut cost, mut measured, mut known) = (None, 0, None);
    let mut stop = |progress: SensitivityProgress<'_>| {
        match progress {
            SensitivityProgress::Cost(found) => {
                assert_eq!(measured, 0, "the cost is said before the first measurement");
                cost = Some(found);
            }
            SensitivityProgress::Measure(done, _) => measured = done,
            SensitivityProgress::Stopped(parts) => known = Some(parts.clone()),
            _ => {}
        }
        if measured >= 12 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(measure(8, Some(&cache), &mut stop), Err(Error::Interrupted)));
    let (cost, known) = (cost.unwrap(), known.unwrap());
    // The residual stream is measured once, each of 37 layers and 74 sites twice.
    assert_eq!((cost.measurements, cost.known, cost.images), (1 + 2 * (37 + 74), 0, 8));
    assert!(!cost.time.is_zero());
    // One measurement is that of the residual stream, and each layer needs two.
    assert_eq!((known.parts.len(), known.all, known.images), (5, 37, 8));
    let whole = measure(8, Some(&cache), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((&known.whole, &known.parts[..]), (&whole.whole, &whole.layers[..5]));
    for layer in &whole.layers {
        assert!(layer.alone_spread_db.unwrap() > 0.0 && layer.separates(&whole.whole).is_some(), "{layer:?}");
    }
}

#[test]
fn chosen_parts_alone_are_measured_and_the_first_row_has_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("s.json");
    let few = ["--images", "8", "--calibration-images", "8"];
    let done = run(&output, &[&few[..], &["--parts", "layers", "--only", "layers.1.blocks.0.**"]].concat())
        .success();
    let text = stdout(&done);
    let results = read_sensitivity(&output).unwrap();
    assert_eq!((results.layers.len(), results.sites.len()), (6, 0));
    assert!(stderr(&done).contains("13 measurements on 8 images, about "), "{}", stderr(&done));
    assert!(text.contains("Effects on 8 images are rough"), "{text}");
    assert!(text.contains(" ± ") && text.contains("± is half of the 95 % interval"), "{text}");
    let command = text.lines().find(|line| line.starts_with("  swinq calibrate ")).unwrap();
    let layer = &ranking(&results.layers)[0].name;
    assert!(command.contains(&format!("--disable {layer} ")), "{command}");

    run(&output, &[&few[..], &["--parts", "blocks"]].concat()).success();
    let results = read_sensitivity(&output).unwrap();
    assert!(results.layers.iter().any(|part| part.kind == ElementKind::Block) && results.sites.is_empty());
    run(&output, &[&few[..], &["--parts", "sites", "--only", "**.fc1.input"]].concat()).success();
    let results = read_sensitivity(&output).unwrap();
    assert_eq!((results.layers.len(), results.sites.len(), results.site_images), (0, 6, 4));
    refused(run(&output, &["--only", "layers.7.**"]), 1, &["layers.7", "one of them is"]);
    refused(run(&output, &["--only", "layers.0.*"]), 1, &["did you mean `layers.0.**`"]);
}

#[test]
fn printed_names_can_be_disabled() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("int8.safetensors");
    let names = ["layers.0.downsample.reduction", "layers.1.blocks.0.attn.qk", "layers.1.blocks.1"];
    let options: Vec<&str> = names.iter().flat_map(|name| ["--disable", name]).collect();
    common::calibrate(&output, &[&["--batches", "1", "--ptq", "basic"], &options[..]].concat()).success();
    let model = Model::open(&output).unwrap();
    let is_on = |site: &str| model.as_quantized().site(site.parse().unwrap()).spec.enabled;
    for site in [
        "layers.0.downsample.reduction.weight",
        "layers.1.blocks.0.attn.k",
        "layers.1.blocks.1.mlp.fc1.input",
    ] {
        assert!(!is_on(site), "{site}");
    }
    assert!(is_on("layers.1.blocks.0.attn.v") && is_on("layers.1.blocks.0.mlp.fc1.weight"));
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let quantized = folder.path().join("int8.safetensors");
    common::calibrate(&quantized, &["--batches", "1"]).success();
    let mut command = swinq(["sensitivity"]);
    command.arg(&quantized).arg("--data-path").arg(sample_data()).arg("-o").arg(folder.path().join("s.json"));
    refused(command.assert(), 1, &["quantized"]);
    refused(run(&folder.path().join("none/s.json"), &[]), 1, &["none"]);
}
