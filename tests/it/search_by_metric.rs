//! `tune_by_metric` and `sensitivity_by_metric`: a program's own metric decides, and no value is computed
//! twice.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common;
use swinq::eval::results::tune::SearchEnd;
use swinq::model::{Ptq, Size};
use swinq::{
    EngineOptions, Error, Evaluation, Images, Model, PartKinds, PartsOf, ReadOptions, Recipe,
    SensitivityOptions, Sizing, TuneOptions, Tuned, sensitivity_by_metric, tune_by_metric,
};

const LAYER: &str = "layers.1.blocks.0.mlp.fc1";

/// Normalised images of two sizes.
fn images() -> Images {
    let of = |height: usize, width: usize, count: usize| {
        let values = (0..count * 3 * height * width).map(|i| ((i * i / 5) % 97) as f32 / 24.0 - 2.0);
        (Size::new(height, width), values.collect::<Vec<f32>>())
    };
    Images::from_values(3, [of(32, 48, 2), of(48, 32, 1)]).unwrap()
}

/// Whether the layer with the outlier runs in INT8 counts, and nothing else.
fn value(model: Option<&Model>) -> f64 {
    let site = format!("{LAYER}.input").parse().unwrap();
    let is_bad = model.is_some_and(|model| model.as_quantized().site(site).spec.enabled);
    if is_bad { 0.25 } else { 0.75 }
}

/// An evaluation that stops at call `most`, and counts the calls.
fn tune(folder: &Path, max_drop: f64, most: usize, calls: &mut usize) -> Result<Tuned, Error> {
    let options = TuneOptions {
        recipe: Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic),
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: Vec::new(),
        engine: EngineOptions::cpu(2),
        batch_size: 1,
        max_drop,
        min_sqnr: None,
        min_speedup: None,
        budget: None,
        cache: Some(folder.join("cache")),
        latencies: Some(folder.join("latencies.json")),
    };
    let mut evaluate = |model: Option<&Model>| {
        *calls += 1;
        if *calls == most { ControlFlow::Break(()) } else { ControlFlow::Continue(value(model)) }
    };
    let evaluation =
        Evaluation { metric: "AP".to_owned(), context: "a head".to_owned(), evaluate: &mut evaluate };
    let model = Model::from_float(common::backbone_with_outliers()).unwrap();
    tune_by_metric(model, &options, &images(), evaluation, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn the_metric_decides_and_a_stopped_search_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut calls = [0; 3];
    let stopped = tune(folder.path(), 0.5, 2, &mut calls[0]);
    assert!(matches!(stopped, Err(Error::Interrupted)) && calls[0] == 2);
    // The start recipe keeps a drop of 0.5.
    let tuned = tune(folder.path(), 0.5, usize::MAX, &mut calls[1]).unwrap();
    let results = &tuned.results;
    assert_eq!(calls[1], results.candidates.len(), "the value of float was known");
    assert!(results.kept && results.candidates[0].value == Some(0.25) && results.verification.is_none());
    assert_eq!(results.cost.image_size, Some([32, 48]), "most images have this size");

    // A smaller drop needs the layer in float; what is known is not evaluated again.
    let strict = tune(folder.path(), 0.25, usize::MAX, &mut calls[2]).unwrap();
    let results = &strict.results;
    let chosen = &results.candidates[results.chosen];
    println!("{:?}: {:?}", chosen.changes, results.goal);
    assert_eq!((results.end, results.kept, chosen.value), (SearchEnd::Reached, true, Some(0.75)));
    assert!(chosen.changes.contains(&format!("{LAYER}: float")), "{:?}", chosen.changes);
    assert!(calls[2] < results.candidates.len());
    assert_eq!(value(Some(&strict.model)), 0.75);
    assert_eq!(results.goal.limit(), "a drop of AP of at most 0.25 from 0.75");
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let model = || Model::from_float(common::backbone_with_outliers()).unwrap();
    let options = SensitivityOptions {
        recipe: Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic),
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: Vec::new(),
        threads: 2,
        cache: None,
    };
    let parts = PartsOf { kinds: PartKinds::Layers, pattern: "layers.1.blocks.0.**".to_owned() };
    let measure = |evaluate: &mut swinq::Evaluate<'_>| {
        let (metric, context) = ("AP".to_owned(), String::new());
        // The function outlives the call only.
        let mut evaluate = |model: Option<&Model>| evaluate(model);
        let evaluation = Evaluation { metric, context, evaluate: &mut evaluate };
        sensitivity_by_metric(model(), &options, &parts, &images(), evaluation, &mut |_| {
            ControlFlow::Continue(())
        })
    };
    let found = measure(&mut |model| ControlFlow::Continue(value(model))).unwrap();
    assert_eq!((found.float, found.whole, found.images, found.parts.len()), (0.75, 0.25, 3, 6));
    assert_eq!((found.parts[0].element.name.as_str(), found.parts[0].value), (LAYER, 0.75));
    assert!(found.parts[1..].iter().all(|part| part.value == 0.25));
    // Among equal values, the part that removes most noise is first.
    let noise = |part: &swinq::PartSensitivity| part.element.without.sqnr_db;
    assert!(found.parts[1..].windows(2).all(|pair| noise(&pair[0]) >= noise(&pair[1])));
    let error = measure(&mut |_| ControlFlow::Continue(f64::NAN)).unwrap_err().to_string();
    assert!(error.contains("evaluate: returned NaN"), "{error}");
}
