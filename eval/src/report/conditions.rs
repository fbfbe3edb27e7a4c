//! The conditions of a measurement: machine, data, recipes and hashes.

use std::collections::BTreeMap;

use crate::results::{ModelResult, Results};
use crate::text::{counted, mebibytes, thousands};

/// A named fact.
pub type Fact = (&'static str, String);

/// The pairs whose value is present.
fn facts(pairs: Vec<(&'static str, Option<String>)>) -> Vec<Fact> {
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The rows about machine and software.
pub fn environment(results: &Results) -> Vec<Fact> {
    let environment = &results.environment;
    let gpu = environment.gpu.as_ref().map(|gpu| {
        let parts = [Some(&gpu.name), gpu.arch.as_ref(), gpu.driver.as_ref()];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
    });
    let libraries = environment.libraries.iter().map(|(name, version)| format!("{name} {version}"));
    let libraries = libraries.collect::<Vec<_>>().join(", ");
    let load = environment.load_average.map(|load| {
        let cores = environment.cores.map_or(String::new(), |cores| format!(" on {cores} cores"));
        format!("{load:.2}{cores}")
    });
    facts(vec![
        ("swinq", Some(environment.swinq.clone())),
        ("time", Some(environment.time.clone())),
        ("system", Some(format!("{} {}", environment.os, environment.arch))),
        ("processor", environment.cpu.clone()),
        ("instruction set", environment.isa.clone()),
        ("cores", environment.cores.map(|cores| cores.to_string())),
        ("threads", Some(environment.threads.to_string())),
        ("load average at the start", load),
        ("memory", environment.memory_bytes.map(mebibytes)),
        ("GPU", gpu),
        ("libraries", Some(libraries).filter(|text| !text.is_empty())),
    ])
}

/// The rows about the data set.
pub fn data(results: &Results) -> Vec<Fact> {
    let Some(data) = &results.data else { return Vec::new() };
    facts(vec![
        ("data set", Some(data.path.clone())),
        ("split", data.split.clone()),
        ("images in the list", data.total.map(thousands)),
        ("limit", data.limit.map(thousands)),
        ("seed", data.seed.map(|n| n.to_string())),
        ("list, SHA-256", data.sha256.clone()),
        ("corrupt, skipped", data.skipped.map(thousands)),
        ("sizes", data.sizing.clone()),
        ("preprocessing", data.transform.as_ref().map(ToString::to_string)),
    ])
}

/// The origin of one model.
pub struct ModelFacts {
    pub name: String,
    pub facts: Vec<Fact>,
    /// Its recipe as lines of a file, one for each rule.
    pub rules: Vec<String>,
}

/// The origin of every model.
pub fn models(results: &Results, names: &[String]) -> Vec<ModelFacts> {
    results.models.iter().zip(names).map(|(model, name)| model_facts(model, name)).collect()
}

fn model_facts(model: &ModelResult, name: &str) -> ModelFacts {
    let origin = model.origin.as_ref();
    let calibration = origin.map(|origin| match &origin.calibration {
        Some(set) => format!(
            "{} in batches of {}, seed {}, SHA-256 of the pixels {}",
            counted(set.images, "image"),
            set.batch_size,
            set.seed,
            set.sha256
        ),
        None => match &origin.imported_ranges {
            Some(file) => format!("none; ranges imported from {file}"),
            None => "none; ranges imported or fixed by the recipe".to_owned(),
        },
    });
    let made_by = origin.map(|origin| match &origin.training {
        Some(training) if training.quantized => format!("QAT: {training}"),
        Some(training) => format!("PTQ after training in float: {training}"),
        None => "PTQ".to_owned(),
    });
    let source = origin.map(|origin| format!("{}, SHA-256 {}", origin.source, origin.source_sha256));
    ModelFacts {
        name: name.to_owned(),
        facts: facts(vec![
            ("file", model.path.clone().or_else(|| Some(model.name.clone()))),
            ("SHA-256", model.sha256.clone()),
            ("architecture", model.architecture.clone()),
            ("arithmetic", Some(format!("{}, {}", model.precision, model.backend))),
            ("quantized by", made_by),
            ("recipe", model.recipe.clone()),
            ("calibrators", calibrators(model)),
            ("calibration set", calibration),
            ("made from", source),
        ]),
        rules: origin.map_or(Vec::new(), |origin| recipe(model.recipe.as_deref(), &origin.rules)),
    }
}

/// The calibrators in effect, with the number of sites of each.
fn calibrators(model: &ModelResult) -> Option<String> {
    let mut counts: BTreeMap<(bool, String), usize> = BTreeMap::new();
    for site in model.sites.iter().filter(|site| site.enabled) {
        let Some(calibrator) = site.calibrator else { continue };
        let weight = site.site.ends_with(".weight");
        *counts.entry((weight, calibrator.to_string())).or_default() += 1;
    }
    let text = |((weight, name), count): ((bool, String), usize)| {
        let what = if weight { "weights" } else { "activations" };
        format!("{name} ({count} {what})")
    };
    (!counts.is_empty()).then(|| counts.into_iter().map(text).collect::<Vec<_>>().join(", "))
}

/// The lines of a recipe's file, with a line for each rule; none without rules.
pub fn recipe(name: Option<&str>, rules: &[swinq_model::Rule]) -> Vec<String> {
    if rules.is_empty() {
        return Vec::new();
    }
    let name = name.map(|name| format!("name: {}", serde_json::Value::from(name)));
    name.into_iter().chain(["rules:".to_owned()]).chain(rules.iter().map(rule)).collect()
}

/// A rule as it stands in a recipe's YAML.
fn rule(rule: &swinq_model::Rule) -> String {
    let json = serde_json::to_value(rule).unwrap_or_default();
    let keys = json.as_object().into_iter().flatten();
    let mut pairs: Vec<String> = keys.map(|(key, value)| format!("{key}: {value}")).collect();
    // `match` comes first, as in the documentation.
    pairs.sort_by_key(|pair| !pair.starts_with("match:"));
    format!("  - {{{}}}", pairs.join(", "))
}
